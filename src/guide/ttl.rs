//! How long a lease should last.
//!
//! Renewal is on by default. The ttl then does not limit how long the work may take. It is the time
//! for which other clients wait after a holder died, and the time for which a holder survives
//! without Redis. The default of 10 s suits most programs.
//!
//! - Choose a ttl longer than the longest pause you expect of a process, such as a live migration
//!   of its machine, and longer than a restart of Redis takes.
//! - Choose at least ten times the [`command_timeout`](crate::ClientBuilder::command_timeout).
//!
//! Without renewal the ttl must be longer than the work, or the work must check
//! [`remaining`](crate::MutexGuard::remaining) while it runs.
