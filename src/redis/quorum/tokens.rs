//! The fencing tokens that a client proposes to a quorum. No I/O but the look at the clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Who learns of a clock further ahead than this does not follow it: one broken counter must not
/// spoil the tokens of all names. A lock with such a counter takes two trips.
const FOLLOWED: u64 = Duration::from_secs(86_400).as_micros() as u64;

/// Our clock, moved ahead by what was learnt of others': who is behind would be refused each time.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    /// In µs.
    ahead: AtomicU64,
    last: AtomicU64,
}

impl Tokens {
    /// A token higher than `above`, than all proposed before, and than our clock in µs.
    pub(crate) fn propose(&self, above: u64) -> u64 {
        self.propose_at(clock(), above)
    }

    fn propose_at(&self, clock: u64, above: u64) -> u64 {
        let ours = clock.saturating_add(self.ahead.load(Ordering::Relaxed));
        let next = |last: u64| ours.max(last.saturating_add(1));
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        let last = self.last.fetch_update(set, get, |last| Some(next(last)));
        next(last.unwrap_or_default()).max(above.saturating_add(1))
    }

    /// A server has this counter.
    pub(crate) fn learn(&self, counter: u64) {
        self.learn_at(clock(), counter);
    }

    fn learn_at(&self, clock: u64, counter: u64) {
        let ahead = counter.saturating_sub(clock);
        if ahead <= FOLLOWED {
            self.ahead.fetch_max(ahead, Ordering::Relaxed);
        }
    }
}

/// The wall clock in µs. One before 1970 counts as 0, which is refused and learns better.
fn clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoke() {
        let tokens = Tokens::default();
        assert_eq!(tokens.propose_at(1_000, 0), 1_000);
        assert_eq!(tokens.propose_at(1_000, 0), 1_001);
        assert_eq!(tokens.propose_at(900, 0), 1_002, "a clock set back");
        assert_eq!(tokens.propose_at(1_000, 5_000), 5_001);
        assert_eq!(
            tokens.propose_at(1_000, 0),
            1_004,
            "that was of one name only"
        );
        tokens.learn_at(1_000, 5_001);
        assert_eq!(tokens.propose_at(2_000, 0), 6_001);
    }

    #[test]
    fn a_broken_counter_spoils_no_other_name() {
        let tokens = Tokens::default();
        tokens.learn_at(1_000, FOLLOWED * 2);
        assert_eq!(tokens.propose_at(2_000, 0), 2_000);
    }
}
