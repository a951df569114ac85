//! The counters and histograms that a running client updates.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::lost::Lost;
use crate::stats::histogram::Histogram;
use crate::stats::totals::Counters;

/// The counters of one client, all of them relaxed atomics: counting never blocks.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    pub(crate) counters: Counters,
    pub(crate) wait: Histogram,
    pub(crate) hold: Histogram,
    /// The lag of the last confirmed renewal in nanoseconds, plus one; 0 before the first.
    lag: AtomicU64,
}

impl Meters {
    /// Counts a call that acquired its lock and `took` this time.
    pub(crate) fn acquired(&self, has_waited: bool, took: Duration) {
        if has_waited {
            self.counters.acquired_after_waiting.up();
        } else {
            self.counters.acquired_at_once.up();
        }
        self.wait.record(took);
    }

    /// Counts a lock that its holder released after it had `held` the lock for this time; `in_time`
    /// if the lease had not ended before.
    pub(crate) fn released(&self, in_time: bool, held: Duration) {
        if in_time {
            self.counters.released.up();
        } else {
            self.counters.released_too_late.up();
        }
        self.hold.record(held);
    }

    pub(crate) fn lost(&self, lost: Lost) {
        let counters = &self.counters;
        match lost {
            Lost::Expired => counters.lost_expired.up(),
            Lost::Taken => counters.lost_taken.up(),
            Lost::Deleted => counters.lost_deleted.up(),
            Lost::MaxHold => counters.lost_max_hold.up(),
            Lost::ShutDown => counters.lost_shut_down.up(),
            // No lease of this process is lost by a fork, and one that is kept counts as released.
            Lost::Forked | Lost::Kept => {}
        }
    }

    /// Counts a renewal that was confirmed `lag` after it was due; `None` if it failed.
    pub(crate) fn renewed(&self, lag: Option<Duration>) {
        match lag {
            Some(lag) => {
                self.counters.renewals_ok.up();
                let nanos = u64::try_from(lag.as_nanos()).unwrap_or(u64::MAX);
                self.lag.store(nanos.saturating_add(1), Ordering::Relaxed);
            }
            None => self.counters.renewals_failed.up(),
        }
    }

    /// Returns the lag of the last confirmed renewal; `None` before the first.
    pub(crate) fn lag(&self) -> Option<Duration> {
        let nanos = self.lag.load(Ordering::Relaxed).checked_sub(1)?;
        Some(Duration::from_nanos(nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::totals::Totals;

    #[test]
    fn events_are_counted_in_their_totals() {
        let meters = Meters::default();
        meters.acquired(false, Duration::from_millis(1));
        meters.acquired(true, Duration::from_millis(3));
        meters.released(true, Duration::from_millis(5));
        meters.lost(Lost::Taken);
        assert_eq!(
            meters.counters.totals(),
            Totals {
                acquired_at_once: 1,
                acquired_after_waiting: 1,
                released: 1,
                lost_taken: 1,
                ..Totals::default()
            }
        );
        assert_eq!(meters.lag(), None);
        meters.renewed(Some(Duration::ZERO));
        assert_eq!(meters.lag(), Some(Duration::ZERO));
    }
}
