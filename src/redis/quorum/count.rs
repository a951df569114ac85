//! One answer made of those of all servers of a quorum. No I/O.

use crate::protocol::kind::{Acquired, Found, Refusal};
use crate::protocol::script::{Call, INSPECT, PROPOSE, PROPOSE_ALL, RELEASE, RELEASE_ALL, Reply};
use crate::redis::quorum::Quorum;
use crate::redis::quorum::votes::{Counted, Elected, Election, Sample, Size, Tally};

/// How the answers to a call are counted.
pub(in crate::redis) enum Count {
    /// Of an acquiring call.
    Election(Election),
    /// Of a release.
    Release(Tally),
    /// Of a renewal.
    Renewal(Tally),
    /// Of a question that changes nothing.
    Sample(Sample),
}

impl Count {
    pub(in crate::redis) fn of(call: Option<&Call<'_>>, size: Size) -> Self {
        let is = |script| call.is_some_and(|call| std::ptr::eq(call.script, script));
        if is(&PROPOSE) || is(&PROPOSE_ALL) {
            Self::Election(Election::new(size))
        } else if is(&RELEASE) || is(&RELEASE_ALL) {
            Self::Release(Tally::new(size))
        } else if call.is_none() || is(&INSPECT) {
            Self::Sample(Sample::new(size))
        } else {
            Self::Renewal(Tally::new(size))
        }
    }

    /// Counts a server that gives no answer.
    pub(in crate::redis) fn failed(&mut self) {
        match self {
            Self::Election(election) => election.count(None),
            Self::Release(tally) | Self::Renewal(tally) => tally.count(None, &[]),
            Self::Sample(sample) => sample.count(None),
        }
    }

    /// How many more answers it takes at the least.
    pub(in crate::redis) fn missing(&self) -> usize {
        match self {
            Self::Election(election) => election.missing(),
            Self::Release(tally) | Self::Renewal(tally) => tally.missing(),
            Self::Sample(sample) => sample.missing(),
        }
    }

    /// Whether further answers would change nothing.
    pub(in crate::redis) fn is_decided(&self) -> bool {
        match self {
            Self::Election(election) => election.outcome().is_some(),
            Self::Release(tally) | Self::Renewal(tally) => tally.outcome().is_some(),
            Self::Sample(sample) => sample.outcome().is_some(),
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
            Self::Election(election) => {
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
                tally.count(Found::read(&reply), value);
            }
            Self::Sample(sample) => sample.count(Some(reply)),
        }
    }

    /// All answers as one, in the shape of the script's own; `None` where too few came.
    pub(in crate::redis) fn outcome(&self) -> Option<Reply> {
        match self {
            Self::Election(election) => Some(match election.outcome()? {
                Elected::Granted(token) => list([1, token.value()]),
                Elected::Refused(Refusal {
                    name,
                    holder,
                    remaining,
                }) => Reply::List(vec![
                    Reply::Int(0),
                    Reply::Text(holder),
                    Reply::Int(remaining.map_or(-1, |left| left.as_millis() as i64)),
                    Reply::Int(name as i64 + 1),
                ]),
                Elected::TooLow(counter) => list([2, counter]),
                Elected::Split => list([3]),
                Elected::Unknown => return None,
            }),
            Self::Release(tally) | Self::Renewal(tally) => Some(match tally.outcome()? {
                Counted::Ours => Reply::Int(1),
                Counted::Nobody => Reply::Int(0),
                Counted::Another(value) => Reply::Text(value),
                Counted::Unknown => return None,
            }),
            Self::Sample(sample) => sample.outcome()?,
        }
    }
}

fn list<const N: usize>(numbers: [u64; N]) -> Reply {
    // All of them are below 2^53.
    let int = |number: u64| Reply::Int(i64::try_from(number).unwrap_or(i64::MAX));
    Reply::List(numbers.map(int).to_vec())
}
