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
mod tests;
