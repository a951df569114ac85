//! Combines the replies of all servers of a quorum into one. No I/O.

use crate::protocol::answer::{Acquired, KeyState, Refusal};
use crate::protocol::script::{Call, INSPECT, PROPOSE, PROPOSE_ALL, RELEASE, RELEASE_ALL, Reply};
use crate::redis::quorum::Quorum;
use crate::redis::quorum::votes::{
    AcquireVerdict, AcquireVotes, LeaseVotes, Majority, ReadVotes, Verdict,
};

/// Counts the replies to one call, by the kind of the call.
pub(in crate::redis) enum Tally {
    /// An acquiring call.
    AcquireVotes(AcquireVotes),
    /// A release.
    Release(LeaseVotes),
    /// A renewal.
    Renewal(LeaseVotes),
    /// A call that only reads, or a ping.
    ReadVotes(ReadVotes),
}

impl Tally {
    pub(in crate::redis) fn of(call: Option<&Call<'_>>, size: Majority) -> Self {
        let is = |script| call.is_some_and(|call| std::ptr::eq(call.script, script));
        if is(&PROPOSE) || is(&PROPOSE_ALL) {
            Self::AcquireVotes(AcquireVotes::new(size))
        } else if is(&RELEASE) || is(&RELEASE_ALL) {
            Self::Release(LeaseVotes::new(size))
        } else if call.is_none() || is(&INSPECT) {
            Self::ReadVotes(ReadVotes::new(size))
        } else {
            Self::Renewal(LeaseVotes::new(size))
        }
    }

    /// Counts a server that did not answer.
    pub(in crate::redis) fn failed(&mut self) {
        match self {
            Self::AcquireVotes(election) => election.count(None),
            Self::Release(tally) | Self::Renewal(tally) => tally.count(None, &[]),
            Self::ReadVotes(sample) => sample.count(None),
        }
    }

    /// The least number of further answers that can decide the call.
    pub(in crate::redis) fn missing(&self) -> usize {
        match self {
            Self::AcquireVotes(election) => election.missing(),
            Self::Release(tally) | Self::Renewal(tally) => tally.missing(),
            Self::ReadVotes(sample) => sample.missing(),
        }
    }

    /// Returns true if further answers cannot change the outcome.
    pub(in crate::redis) fn is_decided(&self) -> bool {
        match self {
            Self::AcquireVotes(election) => election.outcome().is_some(),
            Self::Release(tally) | Self::Renewal(tally) => tally.outcome().is_some(),
            Self::ReadVotes(sample) => sample.outcome().is_some(),
        }
    }

    /// Counts an answer to `call`.
    pub(in crate::redis) fn answered(
        &mut self,
        quorum: &Quorum,
        call: Option<&Call<'_>>,
        reply: Reply,
    ) {
        match self {
            Self::AcquireVotes(election) => {
                let vote = call.and_then(|call| Acquired::read(&reply, call.wanted()));
                let vote = quorum.unless_by_ghost(vote);
                if let Some(Acquired::TooLow(counter)) = vote {
                    quorum.learn(counter);
                }
                election.count(vote);
            }
            Self::Release(tally) | Self::Renewal(tally) => {
                let value: &[u8] = match &reply {
                    Reply::Text(value) => value,
                    _ => &[],
                };
                tally.count(KeyState::read(&reply), value);
            }
            Self::ReadVotes(sample) => sample.count(Some(reply)),
        }
    }

    /// Returns the combined reply, shaped like the script's own; `None` if too few servers
    /// answered.
    pub(in crate::redis) fn outcome(&self) -> Option<Reply> {
        match self {
            Self::AcquireVotes(election) => Some(match election.outcome()? {
                AcquireVerdict::Granted(token) => list([1, token.value()]),
                AcquireVerdict::Refused(Refusal {
                    name,
                    holder,
                    remaining,
                }) => Reply::List(vec![
                    Reply::Int(0),
                    Reply::Text(holder),
                    Reply::Int(remaining.map_or(-1, |left| left.as_millis() as i64)),
                    Reply::Int(name as i64 + 1),
                ]),
                AcquireVerdict::TooLow(counter) => list([2, counter]),
                AcquireVerdict::Split => list([3]),
                AcquireVerdict::Unknown => return None,
            }),
            Self::Release(tally) | Self::Renewal(tally) => Some(match tally.outcome()? {
                Verdict::Ours => Reply::Int(1),
                Verdict::Nobody => Reply::Int(0),
                Verdict::Another(value) => Reply::Text(value),
                Verdict::Unknown => return None,
            }),
            Self::ReadVotes(sample) => sample.outcome()?,
        }
    }
}

fn list<const N: usize>(numbers: [u64; N]) -> Reply {
    // All of them are below 2^53.
    let int = |number: u64| Reply::Int(i64::try_from(number).unwrap_or(i64::MAX));
    Reply::List(numbers.map(int).to_vec())
}
