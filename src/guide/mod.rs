//! The manual, by topic. These modules contain only documentation.
//!
//! - Before you trust a lock: [`guarantees`], [`fencing`], [`ttl`].
//! - Daily use: [`waiting`], [`several_names`], [`leader`], [`testing`], [`async_code`], [`cli`].
//! - Where the locks are kept: [`sentinel`], [`cluster`], [`quorum`], [`wire_format`].
//! - In production: [`operations`], [`outages`], [`observability`], [`threads`], [`shutting_down`].
//! - Coming from elsewhere: [`other_libraries`].

pub mod cluster;
pub mod fencing;
pub mod guarantees;
pub mod leader;
pub mod observability;
pub mod outages;
pub mod quorum;
pub mod sentinel;
pub mod several_names;
pub mod shutting_down;
pub mod testing;
pub mod threads;
pub mod ttl;
pub mod waiting;
pub mod wire_format;

/// How a program with an async runtime calls these blocking locks.
///
// `tests/async` runs the examples: they need Tokio.
#[cfg_attr(not(doctest), doc = include_str!("async_code.md"))]
pub mod async_code {}

/// Moving from redlock, rslock, redis-py, Redisson or ShedLock.
///
#[doc = include_str!("other_libraries.md")]
pub mod other_libraries {}

/// The program `leasehold`: a command under a lock, and the locks on a screen.
///
#[doc = include_str!("../../docs/cli.md")]
pub mod cli {}

/// Encryption, permissions, numbers to watch, alerts.
///
#[doc = include_str!("../../docs/operations.md")]
pub mod operations {}
