//! `std::sync` for a fleet: blocking locks across processes and machines, kept in Redis or Valkey.
//!
//! The crate is for programs without an async runtime: worker pools, batch jobs, payment and
//! booking services, cron jobs. A waiting thread does not poll: it sleeps until the release wakes
//! it. A background thread renews held locks. If a lock is lost, its holder finds out from a local
//! clock, even when the network is down.
//!
//! ```
//! use std::time::Duration;
//! use leasehold::Client;
//!
//! let client = Client::open("redis://127.0.0.1:6379")?;
//! # let server = leasehold::testing::Server::start();
//! # let client = server.client();
//! let account = client.mutex("account:123");
//!
//! let guard = account.lock()?; // sleeps until the lock is granted
//! // … no other client holds `account:123` here …
//! guard.ensure_held()?; // before a step that must not be done twice
//! guard.unlock()?; // on an error, do not repeat the work
//!
//! if let Ok(_guard) = account.try_lock_for(Duration::from_millis(200))? {
//!     // Released when `_guard` goes out of scope.
//! }
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! Start with [`Client`], [`Mutex`] and [`Lease`], whose calls every guard has.
//! [`Client::mutex_all`] locks several names together, [`Client::fair_mutex`] grants a lock in the
//! order of the requests, and [`Client::rw_lock`] is shared by readers. A [`Client::semaphore`] has
//! several holders at a time.
//!
//! The [`guide`] is the manual. Read its [guarantees and limitations](guide::guarantees) before you
//! trust a lock.
//!
//! # Features
//!
//! - `tls`: `rediss://` through rustls, with the crypto provider that the program has installed, or
//!   else `ring`.
//! - `cli`: the [program `leasehold`](guide::cli), which runs a command under a lock and shows
//!   locks. It does not change the library.
//! - `metrics`: sends [statistics](guide::observability#statistics) to the recorder of the
//!   [`metrics`](https://docs.rs/metrics) facade.
//! - `serde`: `Serialize` for [`Stats`], [`Held`], [`Taken`] and the like; names, tokens and
//!   statistics can be read back, too.
//! - `testing`: the module `testing`, a server in the process for the tests of your own code. Needs
//!   a C compiler.
//!
//! # Minimum supported Rust version
//!
//! 1.88. Raising it is not a breaking change; the changelog announces it.
// The examples start servers of `testing`, so without it there are no doctests.
#![cfg(any(not(doctest), feature = "testing"))]
// Examples can be pasted into a program that denies warnings.
#![doc(test(attr(deny(unused_must_use))))]
// Shows on docs.rs which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

/// Compiles the examples of the README, which is not part of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(not(unix))]
compile_error!("leasehold needs a Unix: its threads wait for sockets with poll(2)");

mod address_map;
mod advice;
mod api;
mod cancel;
mod cause;
mod client;
mod clock;
mod config;
mod connect_failure;
mod credentials;
mod error;
mod error_reply;
mod escape;
pub mod guide;
mod health;
mod held;
mod holder;
mod holder_id;
mod kernel;
mod latch;
mod lease;
mod logging;
mod lost;
mod majority;
mod mutant;
mod name;
mod parker;
mod process;
mod protocol;
mod quorum;
mod random;
mod redis;
mod renewed;
mod replicas;
mod resolver;
mod runtime;
#[cfg(feature = "serde")]
mod serialize;
mod set;
mod shortage;
mod stats;
mod sync;
mod taken;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
mod tests;
mod thread_group;
#[cfg(feature = "tls")]
mod tls;
mod token;
mod url;
mod validity;
mod violation;
mod wait_policy;
mod with_error;

pub use crossbeam_channel;

pub use api::builder::ClientBuilder;
pub use api::client::Client;
pub use api::fair_mutex::FairMutex;
pub use api::guards::{
    MutexAllGuard, MutexGuard, RwLockReadGuard, RwLockWriteGuard, SemaphorePermit,
};
pub use api::lease::Lease;
pub use api::mutex::Mutex;
pub use api::mutex_all::MutexAll;
pub use api::rw_lock::RwLock;
pub use api::semaphore::Semaphore;
pub use cancel::CancelToken;
pub use client::list::ListPage;
pub use client::shutdown::ShutdownReport;
pub use credentials::Credentials;
pub use error::{Cause, Error};
pub use health::{BreakerState, Health, HealthPart, HealthState};
pub use held::Held;
pub use holder::Holder;
pub use holder_id::HolderId;
pub use lost::Lost;
pub use name::Name;
pub use renewed::Renewed;
pub use stats::{Latency, Stats, Totals};
pub use taken::Taken;
pub use token::FencingToken;
pub use wait_policy::{Backoff, WaitPolicy};
pub use with_error::WithError;
