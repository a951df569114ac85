//! Tests without a Redis: a server in the test's process, the real client, and faults on demand.
//!
//! ```
//! use leasehold::testing::Server;
//! # use leasehold::{Client, Error};
//! # fn book(client: &Client, seat: &str) -> Result<&'static str, Error> {
//! #     Ok(match client.mutex(seat).try_lock()? {
//! #         Ok(_guard) => "booked",
//! #         Err(_taken) => "taken",
//! #     })
//! # }
//!
//! fn a_seat_that_another_request_books_is_taken() {
//!     let server = Server::start();
//!     let _other = server.hold("seat:12A");
//!     assert_eq!(book(&server.client(), "seat:12A").unwrap(), "taken");
//! }
//! # a_seat_that_another_request_books_is_taken();
//! ```
//!
//! `book` is the program's function, which takes `&Client`. With `#[test]` above it, the second
//! function is a whole test. `examples/testing.rs` tests a booking service with contention, a loss
//! in the middle of a booking, Redis unreachable, and a holder that crashes.
//!
//! ```toml
//! [dev-dependencies]
//! leasehold = { version = "0.1", features = ["testing"] }
//! ```
//!
//! The feature is for Unix only. It needs a C compiler, because it builds Lua 5.1. No part of it is
//! built without the feature. Until version 1.0 this module may change in any release.
//!
//! # What is real
//!
//! The client is the one that ships, with its threads, connections, timeouts and retries. It talks
//! over a socket to a [`Server`], which runs the same Lua scripts as Redis would, in the same
//! version of Lua. The commands of Redis that leasehold and its scripts use are reimplemented, on
//! data in memory.
//!
//! Each server has its own data, port and clock. Tests with different servers can run in
//! parallel. Three servers make a [quorum](crate::Client::quorum).
//!
//! # Situations
//!
//! | in the test | what the program sees |
//! |---|---|
//! | [`server.hold(name)`](Server::hold) | another holder has the lock: `try_lock` returns [`Taken`](crate::Taken) |
//! | [`server.lose(name)`](Server::lose) | the lock was deleted: [`lost`](crate::Lease::lost) receives the loss, and [`ensure_held`](crate::Lease::ensure_held) fails |
//! | [`foreign.forget()`](Foreign::forget), then [`server.advance(ttl)`](Server::advance) | the holder crashed, and its lease has expired |
//! | [`server.pause()`](Server::pause) | Redis hangs: no reply until the deadline |
//! | [`server.cut()`](Server::cut) | Redis is unreachable: connections break and are refused |
//! | [`server.refuse("OOM …")`](Server::refuse) | Redis replies with an error |
//! | [`server.drop_replies(1)`](Server::drop_replies) | the lock was acquired, and the caller does not know |
//! | [`server.drop_messages(1)`](Server::drop_messages) | a release wakes nobody |
//! | [`suspend(time)`](suspend()) | the machine was suspended |
//! | [`client.stats().waiting`](crate::Stats::waiting) | how many calls of this client wait now; [`Mutex::waiting`](crate::Mutex::waiting) also counts clients that waited in the last ten seconds |
//! | [`server.keys()`](Server::keys), [`server.commands()`](Server::commands) | the keys that exist; the number of commands received |
//!
//! Semaphores work, too; `hold` and `is_locked` are for locks.
//!
//! A fault has begun when its method returns. It lasts until its guard is dropped; `drop_replies`
//! and `drop_messages` last until their count is used up.
//!
//! Calls wait in real time. Tests of outages are faster with short deadlines:
//!
//! ```
//! use std::time::Duration;
//! use leasehold::{Client, Error, testing::Server};
//!
//! let server = Server::start();
//! let timeout = Duration::from_millis(100);
//! let client = Client::builder().url(server.url()).command_timeout(timeout).build()?;
//! let outage = server.cut();
//! assert!(matches!(client.mutex("seat:12A").try_lock(), Err(Error::Unreachable { .. })));
//! drop(outage);
//! assert!(client.mutex("seat:12A").try_lock_for(Duration::from_secs(10))?.is_ok());
//! # Ok::<(), Error>(())
//! ```
//!
//! # When a holder notices a loss
//!
//! [`Server::lose`] grants the lock to the first call in its queue. If it grants to nobody, it
//! deletes the key and publishes the release on the lock's channel. A real client listens to that
//! channel only if a thread waits for the lock, or did so shortly before. Otherwise it notices the
//! loss at its next renewal, by default at most a third of the ttl later. The kit also makes the
//! clients of the test's process check the lock at once. That takes a round trip, so wait for
//! [`lost`](crate::Lease::lost), and do not assert `is_held()` at once.
//!
//! # What it does not do
//!
//! The server is one Redis that never fails over. It lacks the following: test them with real
//! servers. Its errors about unsupported commands name `leasehold::testing`.
//!
//! - Cluster and Sentinel.
//! - Replicas: a lock with [`min_replicas`](crate::Mutex::min_replicas) is not acquired.
//! - Users, passwords and TLS. [`Server::refuse`] can reply `NOPERM …`.
//! - Memory limits, persistence and other settings. [`Server::refuse`] can reply `OOM …`.
//! - Commands that neither leasehold nor its tools send, and Lua libraries that its scripts do not
//!   use, such as `cjson`.
//!
//! It does not show what a failover, a lagging replica or an eviction does to locks: see the
//! [limitations](crate::guide::guarantees).
//!
//! # Values
//!
//! [`error`], [`lost`](mod@lost) and [`fencing_token`] make the values that a double of the
//! program's own traits returns, without any server.

mod clients;
mod commands;
mod connection;
mod database;
pub mod error;
mod faults;
mod foreign;
mod guards;
mod keyspace;
pub mod lost;
mod port;
mod reply;
mod resp;
mod script;
#[cfg(sim)]
pub(crate) mod scripted;
mod serve;
mod server;
mod shared;
mod state;

use std::time::Duration;

use crate::clock;
use crate::runtime::live_clients;
use crate::token::FencingToken;

pub use foreign::Foreign;
pub use guards::{Cut, Pause, Refusal};
pub use server::Server;

/// Makes a fencing token.
///
/// ```
/// use leasehold::testing::fencing_token;
///
/// assert!(fencing_token(7) < fencing_token(8));
/// ```
///
/// # Panics
///
/// If `value` is 0, or 2^53 or more.
#[track_caller]
pub fn fencing_token(value: u64) -> FencingToken {
    let token = i64::try_from(value).ok().and_then(FencingToken::read);
    token.unwrap_or_else(|| panic!("{value} is not a valid fencing token: expected 1 to 2^53 - 1"))
}

/// Moves the clock of this process ahead, as if the machine had been suspended for `time`.
///
/// Leases whose validity has ended are lost at once, and deadlines have passed. The clock is that
/// of all clients of the process, and never goes back. So tests that call this must run alone: in
/// their own binary, with `cargo nextest`, or with `--test-threads 1`.
///
/// The clocks of servers do not move. While a machine is suspended, its Redis goes on: also call
/// [`Server::advance`], unless the test is about a Redis that was suspended too.
///
/// ```standalone_crate
/// use std::time::Duration;
/// use leasehold::{Lost, testing};
///
/// let server = testing::Server::start();
/// let guard = server.client().mutex("account:123").lock()?;
/// testing::suspend(Duration::from_secs(10));
/// assert!(!guard.is_held());
/// assert_eq!(guard.lost().recv(), Ok(Lost::Expired));
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn suspend(time: Duration) {
    clock::suspend(time);
    for client in live_clients::all() {
        client.clock_jumped();
    }
}
