//! How a resource rejects the writes of a holder that was overtaken.
//!
//! A process can be paused for longer than its lease after it has checked the lock and before it
//! writes. Then another holder may have written in between, and no lock can prevent it. The
//! resource can. Every exclusive holder has a [fencing token](crate::FencingToken), which is higher
//! than all earlier ones. Store the token with the data, and let the write compare it.
//!
#![doc = include_str!("../../docs/lost_lease.svg")]
//!
//! # In a database
//!
//! ```sql
//! -- once
//! ALTER TABLE account ADD COLUMN last_token bigint NOT NULL DEFAULT 0;
//!
//! -- every write made under the lock, with guard.fencing_token() as $1
//! UPDATE account
//!    SET balance = balance - 30, last_token = $1
//!  WHERE id = 123 AND last_token <= $1;
//! ```
//!
//! If no row was changed, a later holder has written: stop, and do not retry with this guard. The
//! same happens if the row does not exist: insert it before the first fenced write. The comparison
//! is `<=`, so that one holder can write several times. Tokens are integers from 1 to 2^53 - 1, and
//! fit into a `bigint` and a double.
//!
//! The statement is for Postgres and SQLite. In MySQL the placeholder is `?`, once for each use.
//! Set `CLIENT_FOUND_ROWS` on the connection: otherwise a write that changes nothing counts no row.
//!
//! The database's answer decides. If the fenced write was committed, it counts, even if `unlock` or
//! `with` then reports a loss: do not repeat it. After `with`, use
//! [`WithError::into_value`](crate::WithError::into_value), not `into_error`.
//!
//! With `rusqlite`, or any other driver that reports how many rows a statement changed:
//!
//! ```
//! # struct Database;
//! # impl Database {
//! #     fn execute(&self, _: &str, _: [i64; 1]) -> Result<usize, leasehold::Error> { Ok(1) }
//! # }
//! # #[derive(Debug)]
//! # struct Overtaken;
//! # impl From<leasehold::Error> for Overtaken {
//! #     fn from(_: leasehold::Error) -> Self { Self }
//! # }
//! # let database = Database;
//! # let server = leasehold::testing::Server::start();
//! # let client = server.client();
//! # let guard = client.mutex("account:123").lock()?;
//! let token = i64::from(guard.fencing_token());
//! let changed = database.execute(
//!     "UPDATE account SET balance = balance - 30, last_token = ?1
//!       WHERE id = 123 AND last_token <= ?1",
//!     [token],
//! )?;
//! if changed == 0 {
//!     return Err(Overtaken); // a later holder has written
//! }
//! # Ok::<(), Overtaken>(())
//! ```
//!
//! A write that touches several rows needs only one row with a token: change that row first, in the
//! same transaction, and roll back if it did not change.
//!
//! A holder that reads, decides and then writes, such as one that looks whether a seat is free,
//! stores its token before it reads:
//!
//! ```sql
//! UPDATE seat SET last_token = $1 WHERE id = '12A' AND last_token <= $1;
//! ```
//!
//! Otherwise a late write of an earlier holder can succeed between the read and the write, which
//! then overwrites it.
//!
//! # Elsewhere
//!
//! - *An object store.* Keep the token in the object's metadata, and write with a condition on the
//!   version that you read (`If-Match`). A holder that reads a higher token stops.
//! - *Your own service.* Send the token with the request. The service remembers the highest
//!   token of each name, and rejects lower ones.
//! - *A service that cannot compare*, such as a payment provider. Send an idempotency key made of
//!   the operation, not of the token: the token differs between two holders that repeat it.
//!
//! # Limits
//!
//! - Tokens are comparable for one name only.
//! - Readers of a read-write lock share the token of the last writer before them. A cache can use
//!   it as the version of a page, within limits: see [`RwLock`](crate::RwLock#fencing-tokens).
//! - A semaphore's tokens do not fence, because several holders may write at a time: see
//!   [`SemaphorePermit::fencing_token`](crate::SemaphorePermit::fencing_token).
//! - Only clients of this crate draw tokens. A program that takes the lock with a plain
//!   `SET … NX PX` has none, and the resource cannot tell when it was overtaken.
//! - A resource that remembers the highest token must keep it as long as the data. Once it has
//!   forgotten the token, it accepts an old one.
