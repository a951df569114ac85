//! The fencing tokens that a client proposes to a quorum. No I/O.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The largest lead of a server's token counter over our clock that is followed, in µs: one broken
/// counter must not spoil the tokens of all names. Acquiring a lock whose counter is further ahead
/// takes two round trips.
const FOLLOWED: u64 = Duration::from_secs(86_400).as_micros() as u64;

/// Our clock plus the largest lead seen on any server: without the lead, a client whose clock lags
/// would be refused on every first try.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    /// The largest lead, in µs.
    ahead: AtomicU64,
    last: AtomicU64,
}

impl Tokens {
    /// Returns a token higher than `above`, and at least our clock in µs. It is also higher than
    /// all proposed before, except those that an `above` raised.
    pub(crate) fn propose(&self, clock: u64, above: u64) -> u64 {
        let ours = clock.saturating_add(self.ahead.load(Ordering::Relaxed));
        let next = |last: u64| ours.max(last.saturating_add(1));
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        let last = self.last.fetch_update(set, get, |last| Some(next(last)));
        next(last.unwrap_or_default()).max(above.saturating_add(1))
    }

    /// Records the token counter that a server reported.
    pub(crate) fn learn(&self, clock: u64, counter: u64) {
        let ahead = counter.saturating_sub(clock);
        if ahead <= FOLLOWED {
            self.ahead.fetch_max(ahead, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_rise_and_follow_a_servers_counter() {
        let tokens = Tokens::default();
        assert_eq!(tokens.propose(1_000, 0), 1_000);
        assert_eq!(tokens.propose(1_000, 0), 1_001);
        assert_eq!(tokens.propose(900, 0), 1_002, "a clock set back");
        assert_eq!(tokens.propose(1_000, 5_000), 5_001);
        assert_eq!(
            tokens.propose(1_000, 0),
            1_004,
            "`above` applies to one call only"
        );
        tokens.learn(1_000, 5_001);
        assert_eq!(tokens.propose(2_000, 0), 6_001);
    }

    #[test]
    fn a_broken_counter_spoils_no_other_name() {
        let tokens = Tokens::default();
        tokens.learn(1_000, FOLLOWED * 2);
        assert_eq!(tokens.propose(2_000, 0), 2_000);
    }
}
