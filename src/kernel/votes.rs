//! The votes of several servers, or on several parts of a lock, that together decide a call. No
//! I/O.

use std::time::Duration;

use crate::holder::Holder;
use crate::protocol::answer::Answer;
use crate::protocol::refusal::RefusedName;
use crate::protocol::verb::Verb;

/// The number of servers, and how many of them decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Majority {
    pub(crate) all: usize,
    pub(crate) needed: usize,
}

impl Majority {
    pub(crate) const fn of(all: usize) -> Self {
        Self {
            all,
            needed: all / 2 + 1,
        }
    }

    /// A decision that needs all of them.
    pub(crate) const fn each(all: usize) -> Self {
        Self { all, needed: all }
    }

    /// How many servers may disagree or fail without preventing a decision.
    pub(crate) const fn spare(self) -> usize {
        self.all - self.needed
    }
}

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
        let read = self.yes + self.others.len() + self.failed;
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
        if most >= needed
            && let Some(of_holder) = refusals.iter().find(|refusal| refusal.holder == holder)
        {
            return Verdict::Decided(Answer::Refused(RefusedName {
                remaining: self.free_in(&refusals),
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
        if most + unread < needed {
            Verdict::Decided(Answer::Split)
        } else {
            Verdict::Open
        }
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
        let (not_ours, unread, spare) = (self.others.len(), self.unread(), self.size.spare());
        if not_ours > spare {
            // Another holder took the lease if its keys alone leave us no majority; otherwise our
            // majority was only lost.
            let others = self.others.iter().filter_map(|vote| match vote {
                Answer::Foreign(value) => Some(value.as_slice()),
                _ => None,
            });
            return Verdict::Decided(match most(others) {
                Some((value, count)) if count > spare => Answer::Foreign(value.to_vec()),
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
            holders.retain(|holder| holder.seen() == value);
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
        Some(Holder::new(keys.first()?.seen().to_vec(), end, token))
    }
}

/// The most frequent of `values`, with its count.
fn most<'a>(values: impl Iterator<Item = &'a [u8]> + Clone) -> Option<(&'a [u8], usize)> {
    let count = |value: &[u8]| values.clone().filter(|other| *other == value).count();
    values
        .clone()
        .map(|value| (value, count(value)))
        .max_by_key(|&(_, count)| count)
}

#[cfg(test)]
mod tests;
