//! How to test code that takes locks, without a Redis.
//!
//! With the feature `testing`, `leasehold::testing::Server` is a server in the test's own process.
//! The client that talks to it is the real one. The test decides what happens: another holder has
//! the lock, the lock is lost in the middle of the work, Redis hangs, refuses or is unreachable, a
//! reply is lost, or time passes. [`leasehold::testing`] says how to switch the feature on, and
//! lists what a test can do. `examples/testing.rs` in the package tests a booking service.
//!
//! ```
//! use leasehold::Lost;
//! use leasehold::testing::Server;
//!
//! let server = Server::start();
//! let guard = server.client().mutex("report").lock()?;
//! let lost = guard.lost();
//! server.lose("report");
//! assert_eq!(lost.recv(), Ok(Lost::Deleted));
//! assert!(guard.ensure_held().is_err());
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! - Give the code under test a `&Client`, or the URL. Nothing else must change.
//! - Wait for an event, such as a message from `lost()`, and not for a time. A call waits once its
//!   client's [`stats().waiting`](crate::Stats::waiting) counts it.
//! - Give the client of a test of outages a short
//!   [`command_timeout`](crate::ClientBuilder::command_timeout): calls wait in real time.
//! - The server is no cluster and has no replicas. To test a failover, use real servers.
//!
//! [`leasehold::testing`]: https://docs.rs/leasehold/latest/leasehold/testing/index.html
