//! Decides which address to believe if the members of a deployment name different ones. No I/O.

use std::cmp::Reverse;

use crate::mutant::{Mutant, is_on};

/// What one member says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim<A> {
    /// The number of the member.
    pub(crate) member: usize,
    pub(crate) address: A,
    /// The epoch of the configuration that the member follows. `None` if it does not say.
    pub(crate) epoch: Option<u64>,
}

/// What was believed before the members were asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known<A> {
    pub(crate) address: A,
    pub(crate) epoch: Option<u64>,
    /// No connection to it has failed since the last one that was made.
    pub(crate) serves: bool,
}

/// What to do about the claims.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Choice<A> {
    /// The addresses to try, the best one first. Empty if the known address stays.
    pub(crate) candidates: Vec<A>,
    /// Most members name the first candidate: the known address must not be used any more, even if
    /// the candidate cannot be reached.
    pub(crate) is_by_majority: bool,
}

/// Weighs the claims of `members` members, of which some may not have answered in time.
///
/// - The highest epoch wins, even if one member alone names it.
/// - Without epochs, or if they are equal, an address that serves stays until more than half of all
///   members name another one.
/// - An address that does not serve is left for any address that a member names. But an epoch below
///   the highest one, or below that of the known address, counts only if more than half of all
///   members name that address: the one with the highest epoch may just be down, and the other an
///   old master that is still writable.
///
/// A claim with an epoch below `floor` is out of date, whoever makes it. `has_failed` is whether
/// the address of a claim was tried and failed a moment ago. Such an address is tried last, and
/// never instead of one that serves, unless most members name it.
pub(crate) fn choose<A: Clone + Eq>(
    claims: &[Claim<A>],
    members: usize,
    known: Option<&Known<A>>,
    floor: Option<u64>,
    has_failed: impl Fn(&Claim<A>) -> bool,
) -> Choice<A> {
    let is_outdated = |claim: &&Claim<A>| claim.epoch.is_some() && claim.epoch < floor;
    let valid = claims.iter().filter(|claim| !is_outdated(claim));
    let mut named: Vec<Named<'_, A>> = Vec::new();
    for claim in valid {
        match named
            .iter_mut()
            .find(|named| *named.address == claim.address)
        {
            Some(named) => named.add(claim, has_failed(claim)),
            None => named.push(Named::new(claim, has_failed(claim))),
        }
    }
    let is_known = |address: &A| known.is_some_and(|known| known.address == *address);
    named.sort_by_key(|named| Reverse((named.rank(members), is_known(named.address))));
    let known_epoch = known.and_then(|known| known.epoch);
    let Some(known) = known.filter(|known| known.serves) else {
        let epochs = named.iter().map(|named| named.epoch);
        let highest = epochs.fold(known_epoch, Option::max);
        named.retain(|named| {
            let is_latest = named.epoch == highest || is_on(Mutant::OldEpochIsBelieved);
            named.epoch.is_none() || is_latest || named.has_majority(members)
        });
        named.sort_by_key(|named| named.has_failed);
        return Choice {
            is_by_majority: false,
            candidates: named
                .into_iter()
                .map(|named| named.address.clone())
                .collect(),
        };
    };
    let own = named.iter().find(|named| *named.address == known.address);
    let epoch = known_epoch.max(own.and_then(|own| own.epoch));
    named.retain(|named| {
        let is_newer = epoch.is_some() && named.epoch > epoch;
        let is_older = named.epoch.is_some() && named.epoch < epoch;
        let has_majority = named.has_majority(members) || is_on(Mutant::MinorityMovesClients);
        *named.address != known.address
            && (is_newer && !named.has_failed || !is_older && has_majority)
    });
    Choice {
        is_by_majority: named
            .first()
            .is_some_and(|named| named.has_majority(members)),
        candidates: named
            .into_iter()
            .map(|named| named.address.clone())
            .collect(),
    }
}

/// An address, and the claims that name it.
struct Named<'a, A> {
    address: &'a A,
    epoch: Option<u64>,
    votes: usize,
    /// No claim is left that was not refuted.
    has_failed: bool,
}

impl<'a, A> Named<'a, A> {
    fn new(claim: &'a Claim<A>, has_failed: bool) -> Self {
        Self {
            address: &claim.address,
            epoch: claim.epoch,
            votes: 1,
            has_failed,
        }
    }

    fn add(&mut self, claim: &Claim<A>, has_failed: bool) {
        self.epoch = self.epoch.max(claim.epoch);
        self.votes += 1;
        self.has_failed &= has_failed;
    }

    fn has_majority(&self, members: usize) -> bool {
        self.votes * 2 > members
    }

    /// The better address has the higher rank. An address that most members name without an epoch
    /// cannot be compared by epochs, and goes first.
    fn rank(&self, members: usize) -> (bool, Option<u64>, usize) {
        let is_voted = self.epoch.is_none() && self.has_majority(members);
        (is_voted, self.epoch, self.votes)
    }
}

/// Returns the highest epoch that more than half of all members have reached.
pub(crate) fn majority_epoch<A>(claims: &[Claim<A>], members: usize) -> Option<u64> {
    let mut epochs: Vec<u64> = claims.iter().filter_map(|claim| claim.epoch).collect();
    epochs.sort_unstable_by_key(|epoch| Reverse(*epoch));
    epochs.get(members / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the claim of each member, as `(address, epoch)`.
    fn claims(said: &[(&'static str, Option<u64>)]) -> Vec<Claim<&'static str>> {
        let claim = |(member, (address, epoch)): (usize, &(&'static str, Option<u64>))| Claim {
            member,
            address: *address,
            epoch: *epoch,
        };
        said.iter().enumerate().map(claim).collect()
    }

    fn known(
        address: &'static str,
        epoch: Option<u64>,
        serves: bool,
    ) -> Option<Known<&'static str>> {
        Some(Known {
            address,
            epoch,
            serves,
        })
    }

    /// Returns the choice among the claims of three members, of which those to `failed` were
    /// refuted.
    fn choice(
        said: &[(&'static str, Option<u64>)],
        known: &Option<Known<&'static str>>,
        failed: &[&str],
    ) -> (Vec<&'static str>, bool) {
        let has_failed = |claim: &Claim<&str>| failed.contains(&claim.address);
        let choice = choose(&claims(said), 3, known.as_ref(), None, has_failed);
        (choice.candidates, choice.is_by_majority)
    }

    #[test]
    fn the_highest_epoch_wins_even_if_one_member_names_it() {
        for known in [
            None,
            known("old", Some(5), true),
            known("old", Some(5), false),
        ] {
            let said = [("old", Some(5)), ("new", Some(6)), ("old", Some(5))];
            assert_eq!(choice(&said, &known, &[]).0[0], "new", "{known:?}");
        }
    }

    #[test]
    fn a_member_that_is_out_of_date_moves_nobody() {
        let good = known("good", Some(5), true);
        for said in [
            &[("old", Some(1)), ("good", Some(5)), ("good", Some(5))][..],
            // The others are late, or gone.
            &[("old", Some(1))],
            // The others are out of date as well.
            &[("old", Some(1)), ("old", Some(1)), ("old", Some(1))],
        ] {
            assert_eq!(choice(said, &good, &[]), (vec![], false), "{said:?}");
        }
    }

    #[test]
    fn without_epochs_only_a_majority_of_all_members_replaces_a_master_that_serves() {
        for epoch in [None, Some(5)] {
            let good = known("good", epoch, true);
            for said in [
                &[("bad", epoch), ("good", epoch), ("good", epoch)][..],
                &[("bad", epoch)],
                &[("bad", epoch), ("worse", epoch), ("good", epoch)],
            ] {
                assert_eq!(choice(said, &good, &[]), (vec![], false), "{said:?}");
            }
            let said = [("good", epoch), ("new", epoch), ("new", epoch)];
            assert_eq!(choice(&said, &good, &[]), (vec!["new"], true));
            // It need not have answered: the old master must not be used any more.
            assert_eq!(choice(&said, &good, &["new"]), (vec!["new"], true));
        }
    }

    #[test]
    fn a_master_that_does_not_serve_is_left_for_any_named_address() {
        let down = known("down", None, false);
        let said = [("other", None)];
        assert_eq!(choice(&said, &down, &["down"]).0, ["other"]);
        let said = [("down", None), ("down", None), ("other", None)];
        assert_eq!(choice(&said, &down, &["down"]).0, ["other", "down"]);
    }

    /// The new master restarts, and another member names the old one, which is still writable.
    #[test]
    fn a_lower_epoch_needs_a_majority_if_the_highest_one_does_not_serve() {
        let said = [("new", Some(6)), ("old", Some(5))];
        for known in [
            None,
            known("new", Some(6), false),
            known("old", Some(5), false),
        ] {
            assert_eq!(choice(&said, &known, &["new"]).0, ["new"]);
        }
        let said = [("wrong", Some(6)), ("good", Some(5)), ("good", Some(5))];
        assert_eq!(choice(&said, &None, &["wrong"]).0, ["good", "wrong"]);
    }

    /// The connections to the known master are cut, and meanwhile only a member that is out of date
    /// answers.
    #[test]
    fn an_epoch_below_that_of_the_known_address_needs_a_majority() {
        let good = known("good", Some(5), false);
        let said = [("old", Some(1))];
        assert_eq!(choice(&said, &good, &["good"]), (vec![], false));
        let said = [("old", Some(1)), ("old", Some(1))];
        assert_eq!(choice(&said, &good, &["good"]).0, ["old"]);
    }

    #[test]
    fn if_all_else_is_equal_the_known_address_goes_first() {
        let said = [("other", None), ("known", None)];
        assert_eq!(choice(&said, &None, &[]).0, ["other", "known"]);
        let known = known("known", None, false);
        assert_eq!(choice(&said, &known, &[]).0, ["known", "other"]);
    }

    #[test]
    fn an_address_that_has_just_failed_is_tried_last() {
        let said = [("closed", Some(9)), ("good", Some(5)), ("good", Some(5))];
        assert_eq!(choice(&said, &None, &[]).0, ["closed", "good"]);
        assert_eq!(choice(&said, &None, &["closed"]).0, ["good", "closed"]);
        let good = known("good", Some(5), true);
        assert_eq!(choice(&said, &good, &[]), (vec!["closed"], false));
        assert_eq!(choice(&said, &good, &["closed"]), (vec![], false));
    }

    #[test]
    fn an_epoch_below_that_of_most_members_never_counts() {
        let said = claims(&[("stale", Some(1)), ("down", Some(5)), ("down", Some(5))]);
        assert_eq!(majority_epoch(&said, 3), Some(5));
        assert_eq!(majority_epoch(&said[..1], 3), None);
        assert_eq!(majority_epoch(&said[..1], 1), Some(1));
        let down = known("down", Some(5), false);
        let choice = choose(&said, 3, down.as_ref(), Some(5), |claim| {
            claim.address == "down"
        });
        assert_eq!(choice.candidates, ["down"]);
    }

    #[test]
    fn a_majority_without_epochs_goes_before_one_member_with_an_epoch() {
        let said = [("new", None), ("old", Some(5)), ("new", None)];
        assert_eq!(choice(&said, &None, &[]).0, ["new", "old"]);
    }

    #[test]
    fn without_claims_nothing_changes() {
        for known in [None, known("good", None, true), known("good", None, false)] {
            assert_eq!(choice(&[], &known, &[]), (vec![], false));
        }
    }
}
