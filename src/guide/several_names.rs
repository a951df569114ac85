//! Locking several names at once, all or none.
//!
//! ```
//! # let server = leasehold::testing::Server::start();
//! # let client = server.client();
//! let guard = client.mutex_all(["account:1", "account:2"]).lock()?;
//! for name in guard.names() {
//!     let token = guard.fencing_token_of(name).expect("the guard holds each of its names");
//!     println!("UPDATE account SET fence = {token} WHERE name = '{name}' AND fence <= {token}");
//! }
//! // … in the same transaction: read both balances, then write them …
//! guard.unlock()?;
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! A name is the same lock whether it is acquired alone or in a set. [`MutexAll`] states what "all
//! or none" means on one server and in a cluster, how a set waits, and what the loss of one name
//! does to the others.
//!
//! - **Name every lock in one call.** Two threads that lock the same two names one after the other,
//!   in opposite orders, can deadlock. Two separate leases can also end at different times; a set
//!   is lost as a whole. A thread that already holds one name and locks a lower one can deadlock
//!   with a set that keeps the lower name and waits for the other.
//! - **Claim the row of every name, each with its own token**, before the first read: see
//!   [fencing](crate::guide::fencing). A token for one of the rows does not protect the others.
//! - **In a cluster, give the names one hash tag**: `{order:7}:stock` and `{order:7}:bill`. Then
//!   they are acquired in one round trip. Names in several slots take one for each slot.
//! - **Keep sets small.** Each name has its own lease, which is renewed and released like any
//!   other.
//!
//! [`MutexAll`]: crate::MutexAll
