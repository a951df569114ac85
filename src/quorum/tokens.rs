//! The fencing tokens that a client proposes to a quorum, and what was found of each name. No I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::kernel::bounds::{Bound, at_most};
use crate::name::Name;
use crate::wait_policy::BUSY;

/// The largest lead of a server's token counter over our clock that is followed, in µs: one broken
/// counter must not spoil the tokens of all names. Acquiring a lock whose counter is further ahead
/// takes two round trips.
const FOLLOWED: u64 = Duration::from_secs(86_400).as_micros() as u64;

/// The most tokens that are proposed for a name, one after the other without a pause.
const MOST_PROPOSALS: usize = 8;

/// The most names of which something is remembered. Beyond that, that of one is forgotten: its next
/// proposal may be too low once more, and its next pause is a short one.
const MOST_NAMES: usize = 1_024;

/// Our clock plus the largest lead seen on any server: without the lead, a client whose clock lags
/// would be refused on every first try.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// The largest lead, in µs.
    ahead: u64,
    last: u64,
    names: BTreeMap<Name, OfName>,
}

/// The findings of the proposals for a name since the last grant.
#[derive(Debug, Default)]
struct OfName {
    /// The highest counter of a server that found a token too low.
    above: u64,
    /// How many proposals in a row were too low, and how many in a row were split.
    too_low: u32,
    splits: u32,
}

impl Tokens {
    /// Returns a token above the highest counter of the name, and at least our clock in µs. It is
    /// also higher than all proposed before, except those that a counter raised. Also returns the
    /// pause before it is proposed: too many in a row were too low.
    pub(super) fn propose(&mut self, name: &Name, clock: u64) -> (u64, Duration) {
        self.last = clock
            .saturating_add(self.ahead)
            .max(self.last.saturating_add(1));
        let of = self.names.get(name);
        let above = of.map_or(0, |of| of.above);
        let most = at_most(Bound::Proposals, MOST_PROPOSALS) as u32;
        let too_many = of.and_then(|of| of.too_low.checked_sub(most));
        let pause = too_many.map_or(Duration::ZERO, |too_many| BUSY.pause(too_many));
        (self.last.max(above.saturating_add(1)), pause)
    }

    /// Records the token counter that a server reported.
    pub(super) fn learn(&mut self, clock: u64, counter: u64) {
        let ahead = counter.saturating_sub(clock);
        if ahead <= FOLLOWED {
            self.ahead = self.ahead.max(ahead);
        }
    }

    /// The servers have seen a higher token: the next one is above their counter. One that was
    /// proposed before the counter was known is not counted.
    pub(super) fn too_low(&mut self, name: &Name, counter: u64, token: u64) {
        let of = self.of(name);
        if token > of.above {
            of.too_low = of.too_low.saturating_add(1);
        }
        of.above = of.above.max(counter);
    }

    /// Several calls each hold the lock on some servers. Returns the pause until the next try.
    pub(super) fn split(&mut self, name: &Name) -> Duration {
        let of = self.of(name);
        let pause = BUSY.pause(of.splits);
        of.splits = of.splits.saturating_add(1);
        pause
    }

    pub(super) fn refused(&mut self, name: &Name) {
        if let Some(of) = self.names.get_mut(name) {
            (of.too_low, of.splits) = (0, 0);
        }
    }

    pub(super) fn granted(&mut self, name: &Name) {
        self.names.remove(name);
    }

    fn of(&mut self, name: &Name) -> &mut OfName {
        if self.names.len() >= at_most(Bound::Names, MOST_NAMES) && !self.names.contains_key(name) {
            self.names.pop_first();
        }
        self.names.entry(name.clone()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(tokens: &mut Tokens, name: &Name, clock: u64) -> u64 {
        tokens.propose(name, clock).0
    }

    #[test]
    fn tokens_rise_and_follow_a_servers_counter() {
        let (mut tokens, [a, b]) = (Tokens::default(), ["a", "b"].map(Name::from));
        assert_eq!(token(&mut tokens, &a, 1_000), 1_000);
        assert_eq!(token(&mut tokens, &a, 1_000), 1_001);
        assert_eq!(token(&mut tokens, &a, 900), 1_002, "a clock set back");
        tokens.too_low(&a, 5_000, 1_002);
        assert_eq!(token(&mut tokens, &a, 1_000), 5_001);
        let of_other = token(&mut tokens, &b, 1_000);
        assert_eq!(of_other, 1_004, "the counter of one name");
        tokens.granted(&a);
        assert_eq!(token(&mut tokens, &a, 1_000), 1_005);
        tokens.learn(1_000, 5_001);
        assert_eq!(token(&mut tokens, &a, 2_000), 6_001);
    }

    #[test]
    fn a_broken_counter_spoils_no_other_name() {
        let (mut tokens, a) = (Tokens::default(), Name::from("a"));
        tokens.learn(1_000, FOLLOWED * 2);
        assert_eq!(token(&mut tokens, &a, 2_000), 2_000);
    }

    #[test]
    fn proposals_that_are_too_low_one_after_the_other_pause() {
        let (mut tokens, a) = (Tokens::default(), Name::from("a"));
        let together: Vec<u64> = (0..20).map(|_| token(&mut tokens, &a, 1_000)).collect();
        for proposed in together {
            tokens.too_low(&a, 5_000, proposed);
        }
        for n in 1..MOST_PROPOSALS as u64 {
            let (proposed, pause) = tokens.propose(&a, 1_000);
            assert_eq!(
                pause,
                Duration::ZERO,
                "those of calls side by side count once"
            );
            tokens.too_low(&a, 5_000 + 10 * n, proposed);
        }
        assert!(tokens.propose(&a, 1_000).1 > Duration::ZERO);
        tokens.refused(&a);
        assert_eq!(tokens.propose(&a, 1_000).1, Duration::ZERO);
    }

    #[test]
    fn pauses_after_split_votes_grow_until_a_call_is_granted_or_refused() {
        let (mut tokens, [a, b]) = (Tokens::default(), ["a", "b"].map(Name::from));
        let longest = |tokens: &mut Tokens, name: &Name| {
            (0..10)
                .map(|_| tokens.split(name))
                .max()
                .unwrap_or_default()
        };
        let first = |pause| pause <= Duration::from_millis(5);
        assert!(first(tokens.split(&a)));
        assert!(longest(&mut tokens, &a) > Duration::from_millis(5));
        assert!(first(tokens.split(&b)), "the pauses of one name");
        tokens.refused(&a);
        assert!(first(tokens.split(&a)));
        longest(&mut tokens, &a);
        tokens.granted(&a);
        assert!(first(tokens.split(&a)));
    }

    #[test]
    fn what_is_known_of_too_many_names_is_forgotten() {
        let mut tokens = Tokens::default();
        let names: Vec<Name> = (0..=MOST_NAMES).map(|n| format!("{n:04}").into()).collect();
        for name in &names {
            tokens.too_low(name, 5_000, 1);
        }
        assert_eq!(tokens.names.len(), MOST_NAMES);
        assert_eq!(token(&mut tokens, &names[0], 0), 1, "forgotten");
        assert_eq!(token(&mut tokens, &names[1], 0), 5_001);
    }
}
