//! How long a lease should last.
//!
//! Renewal is on by default, so the ttl does not limit how long the work may take;
//! [`max_hold`](crate::Mutex::max_hold) does. The ttl determines two times:
//!
//! - *How long other clients wait after a holder has crashed.* At most the ttl: shorter is better.
//! - *The longest pause or outage that a healthy holder survives.* About two thirds of the ttl,
//!   because by default the lease is renewed every third of it: longer is better. A lease that the
//!   queue in Redis granted lasts at most 3 s until its first renewal, a few milliseconds later.
//!
//! The default of 10 s suits most programs: a holder survives a pause of about 6 s, and after a
//! crash the others wait for at most 10 s.
//!
//! - Choose a ttl of which two thirds are longer than a restart of Redis takes, and longer than the
//!   longest pause you expect of a process, such as a live migration of its machine.
//! - Choose at least ten times the [`command_timeout`](crate::ClientBuilder::command_timeout), so
//!   that a failed renewal can be retried.
//!
//! Without renewal the ttl must be longer than the work, or the work must check
//! [`remaining`](crate::Lease::remaining) while it runs.
