//! The votes of a quorum's servers, and whether they decide a call. No I/O.

use std::time::Duration;

use crate::protocol::answer::{Acquired, KeyState, Refusal};
use crate::protocol::script::Reply;
use crate::token::FencingToken;

/// The most frequent of `values`, with its count.
fn most<'a>(values: impl Iterator<Item = &'a [u8]> + Clone) -> Option<(&'a [u8], usize)> {
    let count = |value: &[u8]| values.clone().filter(|other| *other == value).count();
    values
        .clone()
        .map(|value| (value, count(value)))
        .max_by_key(|&(_, count)| count)
}

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

    /// How many may vote against a decision that is still possible.
    const fn spare(self) -> usize {
        self.all - self.needed
    }
}

/// The votes on one acquiring command.
#[derive(Debug)]
pub(crate) struct AcquireVotes {
    size: Majority,
    granted: usize,
    token: Option<FencingToken>,
    refused: Vec<Refusal>,
    /// Servers that refused only because the token was too low, and the highest counter among them.
    too_low: usize,
    highest: u64,
    failed: usize,
}

/// The outcome of an acquiring command.
#[derive(Debug, PartialEq)]
pub(crate) enum AcquireVerdict {
    Granted(FencingToken),
    /// Refused: another holder has a majority. `remaining` is the time until enough of its keys
    /// expire.
    Refused(Refusal),
    /// A majority may grant a token above this one.
    TooLow(u64),
    /// No holder has a majority of the servers that answered.
    Split,
    /// Too few servers answered.
    Unknown,
}

impl AcquireVotes {
    pub(crate) const fn new(size: Majority) -> Self {
        Self {
            size,
            granted: 0,
            token: None,
            refused: Vec::new(),
            too_low: 0,
            highest: 0,
            failed: 0,
        }
    }

    /// Counts a vote; `None` for a server without a valid answer.
    pub(crate) fn count(&mut self, vote: Option<Acquired>) {
        match vote {
            Some(Acquired::Granted(tokens)) => {
                self.granted += 1;
                // Each server grants the proposed token, the same for all names.
                self.token = tokens.first().copied();
            }
            Some(Acquired::Refused(refusal)) => self.refused.push(refusal),
            Some(Acquired::TooLow(last)) => {
                self.too_low += 1;
                self.highest = self.highest.max(last);
            }
            Some(Acquired::Split) | None => self.failed += 1,
        }
    }

    fn unread(&self) -> usize {
        let read = self.granted + self.refused.len() + self.too_low + self.failed;
        self.size.all.saturating_sub(read)
    }

    /// How many more grants are needed.
    pub(crate) fn missing(&self) -> usize {
        self.size.needed.saturating_sub(self.granted)
    }

    pub(crate) fn is_won(&self) -> bool {
        self.granted >= self.size.needed
    }

    /// Returns the outcome; `None` while further votes can change it.
    pub(crate) fn outcome(&self) -> Option<AcquireVerdict> {
        let (needed, unread) = (self.size.needed, self.unread());
        if let Some(token) = self.token.filter(|_| self.granted >= needed) {
            return Some(AcquireVerdict::Granted(token));
        }
        if self.granted + unread >= needed {
            return None;
        }
        if self.failed > self.size.spare() {
            return Some(AcquireVerdict::Unknown);
        }
        let holders = self.refused.iter().map(|refusal| &*refusal.holder);
        let (holder, most) = most(holders).unwrap_or_default();
        if most >= needed {
            let of_holder = self.refused.iter().find(|refusal| refusal.holder == holder);
            return Some(AcquireVerdict::Refused(Refusal {
                name: of_holder.map_or(0, |refusal| refusal.name),
                holder: holder.to_vec(),
                remaining: self.remaining(),
            }));
        }
        if self.too_low > 0 && self.granted + self.too_low + unread >= needed {
            return Some(AcquireVerdict::TooLow(self.highest));
        }
        (most + unread < needed).then_some(AcquireVerdict::Split)
    }

    /// The time until so many of the refusing keys have expired that a majority is free.
    fn remaining(&self) -> Option<Duration> {
        let mut ends: Vec<Duration> = self
            .refused
            .iter()
            .map(|refusal| refusal.remaining.unwrap_or(Duration::MAX))
            .collect();
        ends.sort_unstable();
        let end = ends.get(self.missing().saturating_sub(1)).copied();
        end.filter(|end| *end < Duration::MAX)
    }
}

/// The votes on one lease: of its renewal or release.
#[derive(Debug)]
pub(crate) struct LeaseVotes {
    size: Majority,
    ours: usize,
    nobody: usize,
    others: Vec<Vec<u8>>,
    failed: usize,
}

/// The outcome of a call about one lease.
#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    Ours,
    Nobody,
    Another(Vec<u8>),
    /// Too few servers answered.
    Unknown,
}

impl LeaseVotes {
    pub(crate) const fn new(size: Majority) -> Self {
        Self {
            size,
            ours: 0,
            nobody: 0,
            others: Vec::new(),
            failed: 0,
        }
    }

    /// Counts a vote, with the value of the other holder if there is one. `None` for a server
    /// without a valid answer.
    pub(crate) fn count(&mut self, found: Option<KeyState>, value: &[u8]) {
        match found {
            Some(KeyState::Ours) => self.ours += 1,
            Some(KeyState::Gone) => self.nobody += 1,
            Some(KeyState::Foreign) => self.others.push(value.to_vec()),
            None => self.failed += 1,
        }
    }

    /// How many more confirmations are needed.
    pub(crate) fn missing(&self) -> usize {
        self.size.needed.saturating_sub(self.ours)
    }

    /// Returns the outcome; `None` while further votes can change it.
    pub(crate) fn outcome(&self) -> Option<Verdict> {
        let Majority { all, needed } = self.size;
        let not_ours = self.nobody + self.others.len();
        let unread = all.saturating_sub(self.ours + not_ours + self.failed);
        if self.ours >= needed {
            Some(Verdict::Ours)
        } else if not_ours > self.size.spare() {
            // Another holder took the lease if its keys alone leave us no majority; otherwise our
            // majority was only lost.
            let others = self.others.iter().map(Vec::as_slice);
            Some(match most(others) {
                Some((value, count)) if count > self.size.spare() => {
                    Verdict::Another(value.to_vec())
                }
                _ => Verdict::Nobody,
            })
        } else if self.ours + unread < needed && not_ours + unread <= self.size.spare() {
            Some(Verdict::Unknown)
        } else {
            None
        }
    }
}

/// The replies to a call that only reads: who holds the lock, or a ping.
#[derive(Debug)]
pub(crate) struct ReadVotes {
    size: Majority,
    nil: usize,
    /// The holders seen: value, ttl in ms or -1, last fencing token.
    seen: Vec<(Vec<u8>, i64, Reply)>,
    alive: usize,
    failed: usize,
}

impl ReadVotes {
    pub(crate) const fn new(size: Majority) -> Self {
        Self {
            size,
            nil: 0,
            seen: Vec::new(),
            alive: 0,
            failed: 0,
        }
    }

    /// Counts a reply; `None` for a server that did not answer.
    pub(crate) fn count(&mut self, reply: Option<Reply>) {
        match reply {
            None => self.failed += 1,
            Some(Reply::Nil) => self.nil += 1,
            Some(Reply::List(items)) => match <[Reply; 3]>::try_from(items) {
                Ok([Reply::Text(value), Reply::Int(ttl), token]) => {
                    self.seen.push((value, ttl, token));
                }
                _ => self.failed += 1,
            },
            Some(_) => self.alive += 1,
        }
    }

    /// The least number of further replies that can decide.
    pub(crate) fn missing(&self) -> usize {
        let read = self.nil + self.seen.len() + self.alive;
        self.size.needed.saturating_sub(read)
    }

    /// Returns the majority's reply, or `Some(None)` if there is none. `None` while further replies
    /// can change it.
    pub(crate) fn outcome(&self) -> Option<Option<Reply>> {
        let Majority { all, needed } = self.size;
        let unread = all.saturating_sub(self.nil + self.seen.len() + self.alive + self.failed);
        let (holder, count) =
            most(self.seen.iter().map(|(value, ..)| value.as_slice())).unwrap_or_default();
        if count >= needed {
            Some(Some(self.held_by(holder)))
        } else if self.alive >= needed {
            Some(Some(Reply::Other))
        } else if self.nil > self.size.spare() {
            Some(Some(Reply::Nil))
        } else if self.failed > self.size.spare() {
            Some(None)
        } else if unread > 0 {
            None
        } else {
            // Several holders, none with a majority: the lock is not held.
            Some((count + self.failed < needed).then_some(Reply::Nil))
        }
    }

    fn held_by(&self, holder: &[u8]) -> Reply {
        let of_holder = self.seen.iter().filter(|(value, ..)| value == holder);
        let mut ends: Vec<i64> = of_holder
            .clone()
            .map(|(_, ttl, _)| if *ttl < 0 { i64::MAX } else { *ttl })
            .collect();
        // The lock is held while a majority of the holder's keys lasts.
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let end = ends.get(self.size.needed - 1).copied().unwrap_or_default();
        let number = |token: &Reply| match token {
            Reply::Text(digits) => FencingToken::parse(digits),
            _ => None,
        };
        let tokens = of_holder.filter_map(|(.., token)| number(token));
        Reply::List(vec![
            Reply::Text(holder.to_vec()),
            Reply::Int(if end == i64::MAX { -1 } else { end }),
            tokens.max().map_or(Reply::Nil, |token| {
                Reply::Text(token.to_string().into_bytes())
            }),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::one_or_many::OneOrMany;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn granted() -> Option<Acquired> {
        Some(Acquired::Granted(OneOrMany::One(FencingToken::new(7))))
    }

    fn by(holder: &str, remaining: Option<Duration>) -> Refusal {
        Refusal {
            name: 0,
            holder: holder.into(),
            remaining,
        }
    }

    fn refused(holder: &str, left: u64) -> Option<Acquired> {
        Some(Acquired::Refused(by(holder, Some(ms(left)))))
    }

    fn elect<const N: usize>(all: usize, votes: [Option<Acquired>; N]) -> Option<AcquireVerdict> {
        let mut election = AcquireVotes::new(Majority::of(all));
        for vote in votes {
            assert!(
                !matches!(election.outcome(), Some(AcquireVerdict::Granted(_))),
                "decided too early"
            );
            election.count(vote);
        }
        election.outcome()
    }

    #[test]
    fn a_majority_of_grants_acquires() {
        assert_eq!(elect(3, [granted()]), None);
        assert_eq!(
            elect(3, [granted(), granted()]),
            Some(AcquireVerdict::Granted(FencingToken::new(7)))
        );
        assert_eq!(
            elect(3, [granted(), None, granted()]),
            Some(AcquireVerdict::Granted(FencingToken::new(7)))
        );
        assert_eq!(
            elect(5, [granted(), refused("x", 1), granted(), granted()]),
            Some(AcquireVerdict::Granted(FencingToken::new(7)))
        );
        assert_eq!(
            elect(1, [granted()]),
            Some(AcquireVerdict::Granted(FencingToken::new(7)))
        );
        assert_eq!(elect(2, [granted()]), None, "half is not a majority");
        assert_eq!(elect(4, [granted(), granted(), None]), None);
    }

    #[test]
    fn too_few_answers_are_no_refusal() {
        assert_eq!(elect(3, [None, None]), Some(AcquireVerdict::Unknown));
        assert_eq!(
            elect(3, [refused("x", 1), None, None]),
            Some(AcquireVerdict::Unknown)
        );
        assert_eq!(elect(2, [granted(), None]), Some(AcquireVerdict::Unknown));
    }

    #[test]
    fn a_refusal_names_the_holder_of_a_majority() {
        assert_eq!(
            elect(3, [refused("x", 9), refused("x", 5)]),
            Some(AcquireVerdict::Refused(by("x", Some(ms(9)))))
        );
        assert_eq!(
            elect(3, [granted(), refused("x", 9), refused("x", 5)]),
            Some(AcquireVerdict::Refused(by("x", Some(ms(5))))),
            "one expired key is enough"
        );
        assert_eq!(
            elect(3, [refused("x", 9), refused("y", 5)]),
            None,
            "one holder may have two"
        );
        assert_eq!(
            elect(3, [refused("x", 9), refused("y", 5), granted()]),
            Some(AcquireVerdict::Split)
        );
        assert_eq!(
            elect(3, [granted(), refused("x", 9), None]),
            Some(AcquireVerdict::Split)
        );
        assert_eq!(
            elect(5, [refused("y", 1), refused("y", 1), refused("x", 1)]),
            None,
            "x may still get three"
        );
        let endless = Some(Acquired::Refused(by("x", None)));
        assert_eq!(
            elect(3, [refused("x", 5), endless]),
            Some(AcquireVerdict::Refused(by("x", None)))
        );
    }

    #[test]
    fn a_token_that_is_too_low_is_reported_with_the_highest_counter() {
        let low = |last| Some(Acquired::TooLow(last));
        assert_eq!(
            elect(3, [low(9), granted(), granted()]),
            Some(AcquireVerdict::Granted(FencingToken::new(7)))
        );
        assert_eq!(
            elect(3, [low(9), low(12)]),
            Some(AcquireVerdict::TooLow(12))
        );
        assert_eq!(
            elect(3, [low(9), granted(), refused("x", 1)]),
            Some(AcquireVerdict::TooLow(9))
        );
        assert_eq!(
            elect(3, [low(9), refused("x", 1), refused("x", 1)]),
            Some(AcquireVerdict::Refused(by("x", Some(ms(1)))))
        );
    }

    #[test]
    fn a_holder_needs_a_majority_and_lasts_as_long_as_it() {
        let seen = |value: &str, ttl, token: &str| {
            let items = [
                Reply::Text(value.into()),
                Reply::Int(ttl),
                Reply::Text(token.into()),
            ];
            Some(Reply::List(items.to_vec()))
        };
        let sampled = |replies: &[Option<Reply>]| {
            let mut sample = ReadVotes::new(Majority::of(3));
            for reply in replies {
                sample.count(reply.clone());
            }
            sample.outcome()
        };
        assert_eq!(
            sampled(&[seen("x", 9, "7"), seen("x", 5, "8")]),
            Some(seen("x", 5, "8"))
        );
        assert_eq!(sampled(&[seen("x", 9, "7"), seen("y", 5, "8")]), None);
        let nil = || Some(Reply::Nil);
        assert_eq!(sampled(&[nil(), seen("y", 5, "8"), nil()]), Some(nil()));
        assert_eq!(
            sampled(&[nil(), seen("x", 9, "7"), seen("y", 5, "8")]),
            Some(nil())
        );
        assert_eq!(sampled(&[nil(), seen("x", 9, "7"), None]), Some(None));
        assert_eq!(sampled(&[None, None]), Some(None));
    }

    #[test]
    fn a_lease_needs_a_majority_of_all() {
        let counted = |all, founds: &[Option<KeyState>]| {
            let mut tally = LeaseVotes::new(Majority::of(all));
            for found in founds {
                tally.count(*found, b"x");
            }
            tally.outcome()
        };
        let (ours, gone, taken) = (
            Some(KeyState::Ours),
            Some(KeyState::Gone),
            Some(KeyState::Foreign),
        );
        assert_eq!(counted(3, &[ours, ours]), Some(Verdict::Ours));
        assert_eq!(counted(3, &[ours, None]), None);
        assert_eq!(counted(3, &[ours, None, None]), Some(Verdict::Unknown));
        assert_eq!(counted(3, &[ours, gone, None]), Some(Verdict::Unknown));
        assert_eq!(counted(3, &[gone, gone]), Some(Verdict::Nobody));
        assert_eq!(counted(3, &[gone, taken]), Some(Verdict::Nobody));
        assert_eq!(
            counted(3, &[taken, taken]),
            Some(Verdict::Another(b"x".to_vec()))
        );
        assert_eq!(counted(5, &[gone, gone, ours]), None);
        assert_eq!(
            counted(4, &[gone, gone]),
            Some(Verdict::Nobody),
            "two of four are too few to keep"
        );
        assert_eq!(counted(5, &[None, None, None]), Some(Verdict::Unknown));
    }
}
