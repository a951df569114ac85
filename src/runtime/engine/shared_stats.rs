//! The additions of this client to the shared statistics: a hash of counters for a whole fleet.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::Config;
use crate::logging;
use crate::protocol::answer::Answer;
use crate::protocol::keys::Keys;
use crate::protocol::reply::{Reply, read_digits};
use crate::protocol::script::{ADD_STATS, Call};
use crate::protocol::verb::Verb;
use crate::redis::Fault;
use crate::stats::Totals;
use crate::sync::Mutex;

/// How often counters are sent.
pub(in crate::runtime) const SEND_EVERY: Duration = Duration::from_secs(2);

/// The key of the hash that all clients share.
const HASH: &str = "lock_stats";

/// The additions of this client to the shared statistics.
pub(crate) struct SharedStats {
    pub(in crate::runtime) is_shared: bool,
    /// The hash's key, in the form of a lock's keys: its slot determines the server.
    pub(in crate::runtime) lock_keys: Keys,
    pub(in crate::runtime) hash: Arc<[Vec<u8>; 1]>,
    state: Mutex<State>,
    #[cfg(feature = "metrics")]
    pub(in crate::runtime) facade: Arc<crate::stats::facade::Facade>,
}

#[derive(Default)]
struct State {
    /// The totals that were sent. A command counts as sent unless it certainly did not run: what a
    /// lost reply or a refusal leaves uncertain may be missing in the hash, and is never added
    /// twice.
    sent: Totals,
    has_warned: bool,
}

/// An addition to the shared statistics.
pub(crate) struct StatsDelta {
    hash: Arc<[Vec<u8>; 1]>,
    counts: Totals,
    /// Fields and counts, in turns.
    args: Vec<Vec<u8>>,
}

impl StatsDelta {
    pub(crate) fn call(&self) -> Call<'_> {
        Call {
            rest: &self.args,
            ..Call::new(Verb::AddStats, &ADD_STATS, [&*self.hash, &[]], [])
        }
    }
}

impl SharedStats {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            is_shared: config.shared_stats,
            lock_keys: Keys::new(HASH.into(), "", ""),
            hash: Arc::new([HASH.into()]),
            state: Mutex::default(),
            #[cfg(feature = "metrics")]
            facade: Default::default(),
        }
    }

    fn is_wanted(&self) -> bool {
        self.is_shared || cfg!(feature = "metrics")
    }

    /// Returns when counters are sent for the first time; `None` if they never are.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.is_wanted().then(|| Instant::now().after(SEND_EVERY))
    }

    /// Returns what was counted since the last addition, which counts as sent from now on; `None`
    /// if that is nothing.
    pub(in crate::runtime) fn next_delta(&self, totals: Totals) -> Option<StatsDelta> {
        // The addition before this one may still be on its way.
        let sent = std::mem::replace(&mut self.state.lock().sent, totals);
        let counts = totals.since(&sent);
        let counted = counts.fields().filter(|(_, count)| *count > 0);
        let args = counted.flat_map(|(name, count)| [name.to_owned(), count.to_string()]);
        let args: Vec<_> = args.map(String::into_bytes).collect();
        (!args.is_empty()).then(|| StatsDelta {
            hash: Arc::clone(&self.hash),
            counts,
            args,
        })
    }

    /// Applies the reply to `delta`.
    pub(crate) fn settle(&self, delta: &StatsDelta, answer: Result<Answer, Fault>) {
        let mut state = self.state.lock();
        match answer {
            Ok(_) => state.has_warned = false,
            // The next addition includes these counts.
            Err(Fault::NotRun(_) | Fault::Open(_)) => state.sent = state.sent.since(&delta.counts),
            Err(Fault::Unknown(_)) => {}
            Err(Fault::Rejected(error) | Fault::NotReplicated(error)) => {
                let has_warned = std::mem::replace(&mut state.has_warned, true);
                drop(state);
                if !has_warned {
                    logging::warn!("cannot add to the shared statistics: {error}");
                }
            }
        }
    }
}

/// Reads the totals from the hash. Unknown fields and values that are not numbers are skipped.
/// Returns `None` if the reply is not a hash.
pub(crate) fn read(reply: Reply) -> Option<Totals> {
    let items = reply.into_list()?;
    let (pairs, []) = items.as_chunks::<2>() else {
        return None;
    };
    let mut totals = Totals::default();
    for pair in pairs {
        let [Reply::Text(name), Reply::Text(count)] = pair else {
            return None;
        };
        if let Some(field) = totals.field(name)
            && let Some(count) = read_digits(count)
        {
            *field = count;
        }
    }
    Some(totals)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Cause, Error};

    fn stats() -> SharedStats {
        SharedStats::new(&Config {
            shared_stats: true,
            ..Config::default()
        })
    }

    fn totals(attempts: u64) -> Totals {
        let mut totals = Totals::default();
        *totals.field(b"attempts").unwrap() = attempts;
        totals
    }

    #[track_caller]
    fn assert_sends(stats: &SharedStats, now: Totals, count: &str) -> StatsDelta {
        let delta = stats.next_delta(now).unwrap();
        assert_eq!(delta.args, [b"attempts", count.as_bytes()]);
        delta
    }

    fn lost() -> Cause {
        Cause::text("lost")
    }

    #[test]
    fn only_new_counts_are_sent() {
        let stats = stats();
        let delta = assert_sends(&stats, totals(3), "3");
        stats.settle(&delta, Ok(Answer::Done));
        assert!(
            stats.next_delta(totals(3)).is_none(),
            "no count has changed"
        );
        assert_sends(&stats, totals(5), "2");
    }

    #[test]
    fn addition_without_reply_or_refused_is_not_sent_again() {
        let stats = stats();
        let delta = assert_sends(&stats, totals(3), "3");
        stats.settle(&delta, Err(Fault::Unknown(lost())));
        let delta = assert_sends(&stats, totals(5), "2");
        let refusal = Error::Config("a field is no integer".into());
        stats.settle(&delta, Err(Fault::Rejected(refusal)));
        assert_sends(&stats, totals(6), "1");
    }

    #[test]
    fn addition_that_did_not_run_is_a_part_of_the_next() {
        let stats = stats();
        let delta = assert_sends(&stats, totals(3), "3");
        // The server is slow: another one is sent meanwhile.
        let other = assert_sends(&stats, totals(5), "2");
        stats.settle(&delta, Err(Fault::NotRun(lost())));
        stats.settle(&other, Ok(Answer::Done));
        assert_sends(&stats, totals(5), "3");
    }

    #[test]
    fn unknown_fields_of_the_hash_are_skipped() {
        let text = |text: &str| Reply::Text(text.as_bytes().to_vec());
        let items = ["attempts", "7", "of others", "1", "refused", "many"].map(text);
        let hash = |items: &[Reply]| read(Reply::List(items.to_vec()));
        assert_eq!(hash(&items), Some(totals(7)));
        assert_eq!(hash(&items[..5]), None);
        assert_eq!(read(Reply::Int(7)), None);
    }
}
