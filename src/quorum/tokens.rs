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

/// The most tokens that are proposed for a name, one after the other.
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

/// What the proposals for a name have found since the last grant.
#[derive(Debug, Default)]
struct OfName {
    /// The highest counter of a server that found a token too low.
    above: u64,
    /// How many proposals in a row were too low, and how many in a row were split.
    too_low: usize,
    splits: u32,
}

impl Tokens {
    /// Returns a token above the highest counter of the name, and at least our clock in µs. It is
    /// also higher than all proposed before, except those that a counter raised.
    pub(super) fn propose(&mut self, name: &Name, clock: u64) -> u64 {
        self.last = clock
            .saturating_add(self.ahead)
            .max(self.last.saturating_add(1));
        let above = self.names.get(name).map_or(0, |of| of.above);
        self.last.max(above.saturating_add(1))
    }

    /// Records the token counter that a server reported.
    pub(super) fn learn(&mut self, clock: u64, counter: u64) {
        let ahead = counter.saturating_sub(clock);
        if ahead <= FOLLOWED {
            self.ahead = self.ahead.max(ahead);
        }
    }

    /// The servers have seen a higher token: the next one is above their counter. Returns whether
    /// that was the case too often in a row.
    pub(super) fn too_low(&mut self, name: &Name, counter: u64) -> bool {
        let of = self.of(name);
        of.above = of.above.max(counter);
        of.too_low += 1;
        let is_too_often = of.too_low >= at_most(Bound::Proposals, MOST_PROPOSALS);
        if is_too_often {
            of.too_low = 0;
        }
        is_too_often
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

    #[test]
    fn tokens_rise_and_follow_a_servers_counter() {
        let (mut tokens, [a, b]) = (Tokens::default(), ["a", "b"].map(Name::from));
        assert_eq!(tokens.propose(&a, 1_000), 1_000);
        assert_eq!(tokens.propose(&a, 1_000), 1_001);
        assert_eq!(tokens.propose(&a, 900), 1_002, "a clock set back");
        assert!(!tokens.too_low(&a, 5_000));
        assert_eq!(tokens.propose(&a, 1_000), 5_001);
        assert_eq!(tokens.propose(&b, 1_000), 1_004, "the counter of one name");
        tokens.granted(&a);
        assert_eq!(tokens.propose(&a, 1_000), 1_005);
        tokens.learn(1_000, 5_001);
        assert_eq!(tokens.propose(&a, 2_000), 6_001);
    }

    #[test]
    fn a_broken_counter_spoils_no_other_name() {
        let (mut tokens, a) = (Tokens::default(), Name::from("a"));
        tokens.learn(1_000, FOLLOWED * 2);
        assert_eq!(tokens.propose(&a, 2_000), 2_000);
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
            tokens.too_low(name, 5_000);
        }
        assert_eq!(tokens.names.len(), MOST_NAMES);
        assert_eq!(tokens.propose(&names[0], 0), 1, "forgotten");
        assert_eq!(tokens.propose(&names[1], 0), 5_001);
    }
}
