//! The votes of several servers, or on several parts of a lock, that together decide a call. No
//! I/O.

use std::time::Duration;

use crate::holder::Holder;
use crate::holder_id::{HolderId, is_same_holder};
use crate::majority::Majority;
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::Answer;
use crate::protocol::refusal::RefusedName;
use crate::protocol::verb::Verb;

/// The votes on one call.
#[derive(Debug)]
pub(crate) struct Votes {
    verb: Verb,
    size: Majority,
    /// How many servers granted it, confirmed the lease or are alive.
    yes: usize,
    /// The answer of these.
    agreed: Answer,
    /// The other answers.
    others: Vec<Answer>,
    /// How many servers do not have the key of the lease and were not asked.
    absent: usize,
    /// How many servers gave no valid answer.
    failed: usize,
}

/// The outcome of the votes.
#[derive(Debug)]
#[cfg_attr(test, derive(PartialEq))]
pub(crate) enum Verdict {
    /// Further votes can change it.
    Open,
    Decided(Answer),
    /// Too few servers granted the call, and no other holder has a majority either.
    Split,
    /// Too many servers failed for the answers of the others to decide.
    Unknown,
}

impl Votes {
    pub(crate) const fn new(verb: Verb, size: Majority) -> Self {
        Self {
            verb,
            size,
            yes: 0,
            agreed: Answer::Done,
            others: Vec::new(),
            absent: 0,
            failed: 0,
        }
    }

    /// Counts a vote; `None` for a server without an answer that counts.
    pub(crate) fn count(&mut self, vote: Option<Answer>) {
        match vote {
            Some(vote @ (Answer::Granted(_) | Answer::Ours | Answer::Done)) => {
                self.yes += 1;
                // Each server grants the proposed token.
                self.agreed = vote;
            }
            Some(vote) => self.others.push(vote),
            None => self.failed += 1,
        }
    }

    /// A server does not have the key of the lease. Its holder, if there is one, is not known.
    pub(super) fn count_absent(&mut self) {
        self.absent += 1;
    }

    /// Returns how many more servers must grant or confirm for the call to succeed. For
    /// [`Verb::Inspect`], returns how many more must answer.
    pub(super) fn missing(&self) -> usize {
        let counted = match self.verb {
            Verb::Inspect => self.others.len(),
            _ => self.yes,
        };
        self.size.needed.saturating_sub(counted)
    }

    /// Returns true if enough servers granted the call, confirmed the lease or replied to the ping.
    pub(super) fn is_won(&self) -> bool {
        self.yes >= self.size.needed
    }

    pub(crate) fn verdict(&self) -> Verdict {
        if self.is_won() {
            return Verdict::Decided(self.agreed.clone());
        }
        match self.verb {
            Verb::Acquire(_) => self.on_acquire(),
            Verb::Inspect | Verb::Ping => self.on_read(),
            _ => self.on_lease(),
        }
    }

    fn unread(&self) -> usize {
        let read = self.yes + self.others.len() + self.absent + self.failed;
        self.size.all.saturating_sub(read)
    }

    /// The verdict on an acquiring call that has no majority of grants.
    fn on_acquire(&self) -> Verdict {
        let (needed, unread) = (self.size.needed, self.unread());
        if self.yes + unread >= needed {
            return Verdict::Open;
        }
        if self.failed > self.size.spare() {
            return Verdict::Unknown;
        }
        let refusals = self.others.iter().filter_map(|vote| match vote {
            Answer::Refused(refusal) => Some(refusal),
            _ => None,
        });
        let refusals: Vec<&RefusedName> = refusals.collect();
        let holders = refusals.iter().map(|refusal| &*refusal.holder);
        let (holder, most) = most(holders).unwrap_or_default();
        let most = if is_on(Mutant::RefusalsOfTwoAdd) {
            refusals.len()
        } else {
            most
        };
        let is_its = |refusal: &&&RefusedName| is_same_holder(&refusal.holder, holder);
        if most >= needed
            && let Some(of_holder) = refusals.iter().find(is_its)
        {
            let seen = refusals.iter().filter(is_its).map(|it| &*it.holder);
            return Verdict::Decided(Answer::Refused(RefusedName {
                remaining: self.free_in(&refusals),
                holder: self.shown(seen),
                ..RefusedName::clone(of_holder)
            }));
        }
        let too_low = self.others.iter().filter_map(|vote| match vote {
            Answer::TooLow(counter) => Some(*counter),
            _ => None,
        });
        // A majority may grant a token above the highest counter.
        if let Some(highest) = too_low.clone().max()
            && self.yes + too_low.count() + unread >= needed
        {
            return Verdict::Decided(Answer::TooLow(highest));
        }
        match refusals.first() {
            _ if most + unread >= needed => Verdict::Open,
            Some(refusal) if is_on(Mutant::SplitNamesAHolder) => {
                Verdict::Decided(Answer::Refused(RefusedName::clone(refusal)))
            }
            _ => Verdict::Split,
        }
    }

    /// Returns the value by which a holder is named that has these at members: that which a
    /// majority has, or else that of its guard.
    #[expect(single_use_lifetimes, reason = "unstable without the name")]
    fn shown<'a>(&self, values: impl Iterator<Item = &'a [u8]> + Clone) -> Vec<u8> {
        let count = |value: &[u8]| values.clone().filter(|other| *other == value).count();
        let mut of_majority = values.clone().filter(|it| count(it) >= self.size.needed);
        if let Some(value) = of_majority.next() {
            return value.to_vec();
        }
        let first = values.clone().next().unwrap_or_default();
        HolderId::parse(first).map_or_else(|| first.to_vec(), |id| id.base().as_str().into())
    }

    /// The time until enough of the refusing keys have expired for a majority to be free.
    fn free_in(&self, refusals: &[&RefusedName]) -> Option<Duration> {
        let ends = refusals
            .iter()
            .map(|refusal| refusal.remaining.unwrap_or(Duration::MAX));
        let mut ends: Vec<Duration> = ends.collect();
        ends.sort_unstable();
        let end = ends.get(self.missing().saturating_sub(1)).copied();
        end.filter(|end| *end < Duration::MAX)
    }

    /// The verdict on a release or renewal that has no majority.
    fn on_lease(&self) -> Verdict {
        let (unread, spare) = (self.unread(), self.size.spare());
        let not_ours = self.others.len() + self.absent;
        if not_ours > spare {
            // Another holder took the lease if its keys, of those that we had, leave us no
            // majority; otherwise our majority was only lost.
            let others = self.others.iter().filter_map(|vote| match vote {
                Answer::Foreign(value) => Some(value.as_slice()),
                _ => None,
            });
            return Verdict::Decided(match most(others) {
                Some((value, count)) if count + self.absent > spare => {
                    Answer::Foreign(self.shown(std::iter::once(value)))
                }
                _ => Answer::Gone,
            });
        }
        if self.yes + unread < self.size.needed && not_ours + unread <= spare {
            Verdict::Unknown
        } else {
            Verdict::Open
        }
    }

    /// The verdict on a call that only reads: who holds the lock, or a ping.
    fn on_read(&self) -> Verdict {
        let Majority { needed, .. } = self.size;
        let holders = self.others.iter().filter_map(|vote| match vote {
            Answer::Holder(holder) => holder.as_ref(),
            _ => None,
        });
        let mut holders: Vec<&Holder> = holders.collect();
        let free = self.others.len() - holders.len();
        let (value, count) = most(holders.iter().map(|holder| holder.seen())).unwrap_or_default();
        if count >= needed {
            holders.retain(|holder| is_same_holder(holder.seen(), value));
            Verdict::Decided(Answer::Holder(self.held_by(&holders)))
        } else if free > self.size.spare() {
            Verdict::Decided(Answer::Holder(None))
        } else if self.failed > self.size.spare() {
            Verdict::Unknown
        } else if self.unread() > 0 {
            Verdict::Open
        } else if count + self.failed < needed {
            // Several holders, none with a majority: the lock is not held.
            Verdict::Decided(Answer::Holder(None))
        } else {
            Verdict::Unknown
        }
    }

    /// Returns the holder whose keys these are, a majority of all.
    fn held_by(&self, keys: &[&Holder]) -> Option<Holder> {
        let ends = keys
            .iter()
            .map(|key| key.remaining().unwrap_or(Duration::MAX));
        let mut ends: Vec<Duration> = ends.collect();
        // The lock is held while a majority of the holder's keys lasts.
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let end = ends.get(self.size.needed - 1).copied().unwrap_or_default();
        let end = Some(end).filter(|end| *end < Duration::MAX);
        let token = keys.iter().filter_map(|key| key.fencing_token()).max();
        let value = self.shown(keys.iter().map(|key| key.seen()));
        Some(Holder::new(value, end, token))
    }
}

/// A value of the most frequent holder of `values`, with the count of its values.
fn most<'a>(values: impl Iterator<Item = &'a [u8]> + Clone) -> Option<(&'a [u8], usize)> {
    let is_same = |one: &[u8], other: &[u8]| {
        one == other || is_same_holder(one, other) && !is_on(Mutant::JoinedIsAnotherHolder)
    };
    let count = |value: &[u8]| values.clone().filter(|other| is_same(other, value)).count();
    values
        .clone()
        .map(|value| (value, count(value)))
        .max_by_key(|&(_, count)| count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::answer::Wanted;
    use crate::token::FencingToken;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    const TOKEN: FencingToken = FencingToken::new(7);

    const ACQUIRE: Verb = Verb::Acquire(Wanted {
        after: false,
        reserved: 0,
        proposed: Some(7),
    });

    fn granted() -> Option<Answer> {
        Some(Answer::Granted(TOKEN))
    }

    fn refused_by(holder: &str, remaining: Option<Duration>) -> Answer {
        Answer::Refused(RefusedName {
            name: 0,
            holder: holder.into(),
            remaining,
            detail: None,
        })
    }

    fn refused(holder: &str, left: u64) -> Option<Answer> {
        Some(refused_by(holder, Some(ms(left))))
    }

    /// Returns the verdict of `all` servers on an acquiring call, after these votes.
    fn acquire<const N: usize>(all: usize, votes: [Option<Answer>; N]) -> Verdict {
        let mut counted = Votes::new(ACQUIRE, Majority::of(all));
        for vote in votes {
            assert!(!counted.is_won(), "decided too early");
            counted.count(vote);
        }
        counted.verdict()
    }

    fn decided(answer: Option<Answer>) -> Verdict {
        answer.map_or(Verdict::Open, Verdict::Decided)
    }

    #[test]
    fn a_majority_of_grants_acquires() {
        assert_eq!(acquire(3, [granted()]), Verdict::Open);
        assert_eq!(acquire(3, [granted(), granted()]), decided(granted()));
        assert_eq!(acquire(3, [granted(), None, granted()]), decided(granted()));
        assert_eq!(
            acquire(5, [granted(), refused("x", 1), granted(), granted()]),
            decided(granted())
        );
        assert_eq!(acquire(1, [granted()]), decided(granted()));
        assert_eq!(
            acquire(2, [granted()]),
            Verdict::Open,
            "half is not a majority"
        );
        assert_eq!(acquire(4, [granted(), granted(), None]), Verdict::Open);
    }

    #[test]
    fn too_few_answers_are_no_refusal() {
        assert_eq!(acquire(3, [None, None]), Verdict::Unknown);
        assert_eq!(acquire(3, [refused("x", 1), None, None]), Verdict::Unknown);
        assert_eq!(acquire(2, [granted(), None]), Verdict::Unknown);
    }

    #[test]
    fn a_refusal_names_the_holder_of_a_majority() {
        assert_eq!(
            acquire(3, [refused("x", 9), refused("x", 5)]),
            decided(refused("x", 9))
        );
        assert_eq!(
            acquire(3, [granted(), refused("x", 9), refused("x", 5)]),
            decided(refused("x", 5)),
            "one expired key is enough"
        );
        assert_eq!(
            acquire(3, [refused("x", 9), refused("y", 5)]),
            Verdict::Open,
            "one holder may have two"
        );
        assert_eq!(
            acquire(3, [refused("x", 9), refused("y", 5), granted()]),
            Verdict::Split
        );
        assert_eq!(
            acquire(3, [granted(), refused("x", 9), None]),
            Verdict::Split
        );
        assert_eq!(
            acquire(5, [refused("y", 1), refused("y", 1), refused("x", 1)]),
            Verdict::Open,
            "x may still get three"
        );
        let endless = Some(refused_by("x", None));
        assert_eq!(
            acquire(3, [refused("x", 5), endless]),
            Verdict::Decided(refused_by("x", None))
        );
    }

    #[test]
    fn the_keys_of_members_that_have_joined_are_those_of_one_holder() {
        let id = HolderId::fresh("x");
        let of = |number: u16| id.numbered(number).as_str().to_owned();
        let refusals = [refused(&of(1), 9), None, refused(&of(2), 5)];
        assert_eq!(
            acquire(3, refusals),
            decided(refused(&of(0), 9)),
            "by the id of its guard"
        );
        let refusals = [refused(&of(1), 9), refused(&of(1), 5)];
        assert_eq!(
            acquire(3, refusals),
            decided(refused(&of(1), 9)),
            "by the value that a majority has"
        );
    }

    #[test]
    fn a_token_that_is_too_low_is_reported_with_the_highest_counter() {
        let low = |last| Some(Answer::TooLow(last));
        assert_eq!(
            acquire(3, [low(9), granted(), granted()]),
            decided(granted())
        );
        assert_eq!(
            acquire(3, [low(9), low(12)]),
            Verdict::Decided(Answer::TooLow(12))
        );
        assert_eq!(
            acquire(3, [low(9), granted(), refused("x", 1)]),
            Verdict::Decided(Answer::TooLow(9))
        );
        assert_eq!(
            acquire(3, [low(9), refused("x", 1), refused("x", 1)]),
            decided(refused("x", 1))
        );
    }

    #[test]
    fn a_holder_needs_a_majority_and_lasts_as_long_as_it() {
        let seen = |value: &str, left, token| {
            let token = Some(FencingToken::new(token));
            let holder = Holder::new(value.into(), Some(ms(left)), token);
            Some(Answer::Holder(Some(holder)))
        };
        let read = |votes: &[Option<Answer>]| {
            let mut counted = Votes::new(Verb::Inspect, Majority::of(3));
            votes.iter().for_each(|vote| counted.count(vote.clone()));
            counted.verdict()
        };
        assert_eq!(
            read(&[seen("x", 9, 7), seen("x", 5, 8)]),
            decided(seen("x", 5, 8))
        );
        assert_eq!(read(&[seen("x", 9, 7), seen("y", 5, 8)]), Verdict::Open);
        let free = || Some(Answer::Holder(None));
        assert_eq!(read(&[free(), seen("y", 5, 8), free()]), decided(free()));
        assert_eq!(
            read(&[free(), seen("x", 9, 7), seen("y", 5, 8)]),
            decided(free())
        );
        assert_eq!(read(&[free(), seen("x", 9, 7), None]), Verdict::Unknown);
        assert_eq!(read(&[None, None]), Verdict::Unknown);
        let endless = Holder::new("x".into(), None, None);
        let endless = || Some(Answer::Holder(Some(endless.clone())));
        assert_eq!(read(&[endless(), endless()]), decided(endless()));
    }

    #[test]
    fn a_ping_needs_replies_of_a_majority() {
        let ping = |votes: &[Option<Answer>]| {
            let mut counted = Votes::new(Verb::Ping, Majority::of(3));
            votes.iter().for_each(|vote| counted.count(vote.clone()));
            counted.verdict()
        };
        let pong = || Some(Answer::Done);
        assert_eq!(ping(&[pong(), None]), Verdict::Open);
        assert_eq!(ping(&[pong(), None, pong()]), decided(pong()));
        assert_eq!(ping(&[None, None]), Verdict::Unknown);
    }

    #[test]
    fn a_lease_needs_a_majority_of_all() {
        let counted = |all, votes: &[Option<Answer>]| {
            let mut counted = Votes::new(Verb::Renew, Majority::of(all));
            votes.iter().for_each(|vote| counted.count(vote.clone()));
            counted.verdict()
        };
        let ours = || Some(Answer::Ours);
        let gone = || Some(Answer::Gone);
        let taken = || Some(Answer::Foreign(b"x".to_vec()));
        assert_eq!(counted(3, &[ours(), ours()]), decided(ours()));
        assert_eq!(counted(3, &[ours(), None]), Verdict::Open);
        assert_eq!(counted(3, &[ours(), None, None]), Verdict::Unknown);
        assert_eq!(counted(3, &[ours(), gone(), None]), Verdict::Unknown);
        assert_eq!(counted(3, &[gone(), gone()]), decided(gone()));
        assert_eq!(counted(3, &[gone(), taken()]), decided(gone()));
        assert_eq!(counted(3, &[taken(), taken()]), decided(taken()));
        let of_three = |absent, vote| {
            let mut counted = Votes::new(Verb::Renew, Majority::of(3));
            (0..absent).for_each(|_| counted.count_absent());
            counted.count(vote);
            counted.verdict()
        };
        assert_eq!(of_three(1, taken()), decided(taken()), "it had two keys");
        assert_eq!(of_three(1, gone()), decided(gone()));
        assert_eq!(of_three(1, ours()), Verdict::Open);
        assert_eq!(of_three(2, ours()), decided(gone()));
        assert_eq!(counted(5, &[gone(), gone(), ours()]), Verdict::Open);
        assert_eq!(
            counted(4, &[gone(), gone()]),
            decided(gone()),
            "two of four are too few to keep"
        );
        assert_eq!(counted(5, &[None, None, None]), Verdict::Unknown);
    }
}
