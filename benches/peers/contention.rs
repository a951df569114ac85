//! The contention that all candidates meet: the name, the number of processes, and the times.

use std::time::Duration;

use support::ms;

pub(crate) const ROUNDS: usize = 5;
pub(crate) const PROCESSES: usize = 8;
pub(crate) const LASTS: Duration = ms(3_000);

pub(crate) const NAME: &str = "contended";
pub(crate) const TTL: Duration = Duration::from_secs(10);

/// The pause of the hand-written poller.
pub(crate) const TUNED: Duration = Duration::from_millis(1);
