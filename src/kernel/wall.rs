//! The wall clock beside the clock that counts, which stands still while a hypervisor pauses the
//! machine.
//!
//! If the wall clock has run ahead, the machine may have stood still, or the clock was set. Leases
//! that Redis has not confirmed since are in doubt, but not lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Instant;
use crate::sync::Mutex;

/// By how much the wall clock must have run ahead before all leases are renewed. If a thread is
/// preempted between two readings, the clocks seem to differ by less.
const LEAST_STEP: Duration = Duration::from_millis(100);

/// The most steps that are told apart: older ones count as one, at the time of the later.
const MOST_CLOCK_STEPS: usize = 8;

/// How far the wall clock has run ahead of the other one, and when.
#[derive(Debug)]
pub(super) struct WallClock {
    /// The time of the wall clock at [`Instant::START`], by the last step, in ns.
    at_start: AtomicU64,
    /// When the last step was noticed, in ns.
    last: AtomicU64,
    /// When each step ahead was noticed, and its size.
    steps: Mutex<Vec<(Instant, Duration)>>,
}

impl WallClock {
    pub(super) fn new(at_start: Duration) -> Self {
        Self {
            at_start: AtomicU64::new(nanos(at_start)),
            last: AtomicU64::new(0),
            steps: Mutex::default(),
        }
    }

    /// Records a step if the wall clock has run ahead since the last look, which is told by what it
    /// showed at the start. Returns whether it has.
    pub(super) fn look(&self, now: Instant, at_start: Duration) -> bool {
        let ahead = self.unnoticed(at_start);
        let is_step = ahead > LEAST_STEP;
        let is_back = nanos(at_start) < self.at_start.load(Ordering::Relaxed);
        if is_step {
            let mut steps = self.steps.lock();
            steps.push((now, ahead));
            if steps.len() > MOST_CLOCK_STEPS {
                let (_, oldest) = steps.remove(0);
                steps[0].1 += oldest;
            }
            self.last.store(now.as_nanos(), Ordering::Relaxed);
        }
        if is_step || is_back {
            self.at_start.store(nanos(at_start), Ordering::Relaxed);
        }
        is_step
    }

    /// Returns by how much the wall clock has run ahead since the last look.
    pub(super) fn unnoticed(&self, at_start: Duration) -> Duration {
        let before = self.at_start.load(Ordering::Relaxed);
        Duration::from_nanos(nanos(at_start).saturating_sub(before))
    }

    /// Returns by how much it has run ahead since `confirmed`, by the last look. A step counts
    /// from when it was noticed, which is after it happened.
    pub(super) fn noticed(&self, confirmed: Instant) -> Duration {
        if self.last.load(Ordering::Relaxed) <= confirmed.as_nanos() {
            return Duration::ZERO;
        }
        let steps = self.steps.lock();
        let since = steps.iter().filter(|(at, _)| *at > confirmed);
        since.map(|(_, size)| *size).sum()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Instant {
        Instant::START.after(SECOND * seconds)
    }

    #[test]
    fn a_step_counts_for_what_was_confirmed_before_it_was_noticed() {
        let clock = WallClock::new(100 * SECOND);
        assert!(!clock.look(at(1), 100 * SECOND + LEAST_STEP));
        assert_eq!(clock.noticed(at(0)), Duration::ZERO);
        assert_eq!(clock.unnoticed(103 * SECOND), 3 * SECOND);
        assert!(clock.look(at(2), 103 * SECOND));
        assert!(!clock.look(at(3), 103 * SECOND));
        assert!(clock.look(at(4), 108 * SECOND));
        assert_eq!(clock.unnoticed(108 * SECOND), Duration::ZERO);
        assert_eq!(
            [1, 2, 3, 4].map(|n| clock.noticed(at(n))),
            [8, 5, 5, 0].map(|n| n * SECOND)
        );
    }

    #[test]
    fn a_step_back_is_none_ahead() {
        let clock = WallClock::new(100 * SECOND);
        assert!(!clock.look(at(1), 50 * SECOND));
        assert_eq!(clock.noticed(at(0)), Duration::ZERO);
        assert!(clock.look(at(2), 60 * SECOND));
        assert_eq!(clock.noticed(at(0)), 10 * SECOND);
    }

    #[test]
    fn old_steps_count_as_one() {
        let clock = WallClock::new(Duration::ZERO);
        for n in 1..=20 {
            assert!(clock.look(at(n), SECOND * n));
        }
        assert_eq!(clock.noticed(at(0)), 20 * SECOND);
        assert_eq!(clock.noticed(at(12)), 20 * SECOND, "as if all were later");
        assert_eq!(clock.noticed(at(13)), 7 * SECOND);
        assert_eq!(clock.noticed(at(20)), Duration::ZERO);
    }
}
