//! How long a lease should last.
//!
//! Renewal is on by default, so the ttl does not limit how long the work may take;
//! [`max_hold`](crate::Mutex::max_hold) does. The ttl determines two times:
//!
//! - *How long other clients wait after a holder has crashed.* At most the ttl: shorter is better.
//! - *The longest pause or outage that a healthy holder survives.* About 56 % of the ttl, because
//!   by default the lease is renewed every third of it, and the last tenth does not count: longer
//!   is better. A lease that the queue in Redis granted lasts at most 3 s until its first renewal,
//!   a few milliseconds later.
//!
//! The default of 10 s suits most programs: a holder survives a pause of 5.6 s, and after a crash
//! the others wait for at most 10 s.
//!
//! - Choose a ttl of which half is longer than a restart of Redis takes, and longer than the
//!   longest pause you expect of a process. The pause of a live migration counts, too, but the
//!   clocks may [miss it](crate::guide::guarantees#limitations): a long ttl does not make it safe.
//! - Choose at least ten times the [`command_timeout`](crate::ClientBuilder::command_timeout), so
//!   that a failed renewal can be retried.
//!
//! Without renewal the ttl must be longer than the work, or the work must check
//! [`remaining`](crate::Lease::remaining) while it runs.
//!
//! # How long a lease is certain
//!
//! [`is_held`](crate::Lease::is_held) stays true for a little less than the ttl, counted from before
//! the last command that set it was sent. A margin is taken off, the smaller of
//!
//! - 10 % of the ttl: 1 s with a ttl of 10 s, and
//! - 1 % of the ttl and 10 s: 46 s with a ttl of an hour,
//!
//! and another 2 ms. Redis measures the ttl by its own clock. While NTP slews that clock, it
//! can be faster than the holder's: by up to 8.3 % with the default limit of chrony. If the
//! clocks differ by more than the margin allows, the key can end before `is_held` returns
//! false: see the [limitations](crate::guide::guarantees#limitations).
