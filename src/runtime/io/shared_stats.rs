//! The additions of this client to the shared statistics: a hash of counters for a whole fleet.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::Instant;
use crate::config::Config;
use crate::logging;
use crate::protocol::answer::Answer;
use crate::protocol::keys::{Keys, sibling_key};
use crate::protocol::reply::Reply;
use crate::protocol::script::{Arg, Call, TALLY};
use crate::protocol::verb::Verb;
use crate::random;
use crate::redis::Fault;
use crate::stats::Totals;
use crate::sync::Mutex;

/// How often counters are sent.
pub(in crate::runtime) const SEND_EVERY: Duration = Duration::from_secs(1);

/// The additions of this client to the shared statistics.
pub(crate) struct SharedStats {
    pub(in crate::runtime) is_shared: bool,
    /// A thread that sends counters was started.
    is_started: AtomicBool,
    /// The hash's key, in the form of a lock's keys: its slot determines the server.
    pub(in crate::runtime) lock_keys: Keys,
    pub(in crate::runtime) keys: Arc<StatsKeys>,
    state: Mutex<State>,
    #[cfg(feature = "metrics")]
    pub(in crate::runtime) facade: crate::stats::facade::Facade,
}

pub(in crate::runtime) struct StatsKeys {
    pub(in crate::runtime) hash: [Vec<u8>; 1],
    /// The key that holds the serial number of this client's last addition.
    mark: [Vec<u8>; 1],
}

#[derive(Default)]
struct State {
    /// The totals whose addition Redis has confirmed.
    confirmed: Totals,
    serial: u64,
    /// The additions that Redis has not confirmed, by rising serial number.
    ///
    /// They are sent again unchanged, so that the script adds each only once. An earlier attempt
    /// may have run. If the slot of the hash has moved, two threads may be sending.
    pending: Vec<StatsDelta>,
    has_warned: bool,
}

/// An addition to the shared statistics.
#[derive(Clone)]
pub(crate) struct StatsDelta {
    keys: Arc<StatsKeys>,
    serial: u64,
    /// The totals that are confirmed once this is added.
    totals: Totals,
    /// An attempt got no reply.
    may_have_run: bool,
    text: Vec<u8>,
}

impl StatsDelta {
    fn new(keys: &Arc<StatsKeys>, serial: u64, before: &Totals, now: Totals) -> Option<Self> {
        let mut text = String::new();
        for (name, count) in now.since(before).fields().filter(|(_, count)| *count > 0) {
            // Writing to a string cannot fail.
            let _ = write!(text, "{name} {count} ");
        }
        (!text.is_empty()).then(|| Self {
            keys: Arc::clone(keys),
            serial,
            totals: now,
            may_have_run: false,
            text: text.into_bytes(),
        })
    }

    pub(crate) fn call(&self) -> Call<'_> {
        let args = [Arg::Number(self.serial), Arg::Bytes(&self.text)];
        let keys: [&[Vec<u8>]; 2] = [&self.keys.hash, &self.keys.mark];
        Call::new(Verb::AddStats, &TALLY, keys, args)
    }
}

impl SharedStats {
    pub(crate) fn new(config: &Config) -> Self {
        let hash = config.shared_stats_key.clone().into_bytes();
        let sibling_key = sibling_key(&hash, "tally");
        let own = format!(":{}", random::uuid()).into_bytes();
        Self {
            is_shared: config.shared_stats,
            is_started: AtomicBool::new(false),
            lock_keys: Keys::new(config.shared_stats_key.as_str().into(), "", ""),
            keys: Arc::new(StatsKeys {
                mark: [[sibling_key, own].concat()],
                hash: [hash],
            }),
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

    /// Returns true to the first caller, which must start a thread that sends counters.
    pub(in crate::runtime) fn must_start(&self) -> bool {
        self.is_wanted() && !self.is_started.swap(true, Ordering::Relaxed)
    }

    /// Returns the additions to send now: the pending ones, or else what was counted since the
    /// last. With `all`, returns both.
    pub(in crate::runtime) fn next_deltas(&self, totals: Totals, all: bool) -> Vec<StatsDelta> {
        let mut state = self.state.lock();
        if state.pending.is_empty() || all {
            let last = state.pending.last();
            let before = last.map_or(state.confirmed, |last| last.totals);
            let next = StatsDelta::new(&self.keys, state.serial + 1, &before, totals);
            if next.is_some() {
                state.serial += 1;
            }
            state.pending.extend(next);
        }
        state.pending.clone()
    }

    /// Applies the reply to `delta`.
    pub(crate) fn settle(&self, delta: StatsDelta, answer: Result<Answer, Fault>) {
        let mut state = self.state.lock();
        let refusal = match answer {
            Ok(_) => {
                state.has_warned = false;
                // A late reply to one that is confirmed already must not take `confirmed` back.
                let mut pending = state.pending.iter();
                if let Some(at) = pending.position(|pending| pending.serial == delta.serial) {
                    state.confirmed = delta.totals;
                    state.pending.drain(..=at);
                }
                return;
            }
            Err(Fault::Unknown(_)) => {
                let mut pending = state.pending.iter_mut();
                if let Some(at) = pending.find(|pending| pending.serial == delta.serial) {
                    at.may_have_run = true;
                }
                return;
            }
            Err(Fault::NotRun(_) | Fault::Open(_)) => return,
            Err(Fault::Rejected(error) | Fault::NotReplicated(error)) => {
                // Nothing was added, so the next addition includes these counts. The script fails
                // only if it can add no field, for example because all hold text in the hash. It
                // would then refuse this addition each time, and no later counts would be sent.
                (state.pending).pop_if(|last| last.serial == delta.serial && !last.may_have_run);
                error.to_string()
            }
        };
        let has_warned = std::mem::replace(&mut state.has_warned, true);
        drop(state);
        if !has_warned {
            logging::warn!("cannot add to the shared statistics: {refusal}");
        }
    }
}

/// Reads the totals from the hash. Unknown fields and values that are not numbers are skipped.
/// Returns `None` if the reply is not a hash.
pub(crate) fn read(reply: &Reply) -> Option<Totals> {
    let Reply::List(items) = reply else {
        return None;
    };
    let (pairs, []) = items.as_chunks::<2>() else {
        return None;
    };
    let mut totals = Totals::default();
    for pair in pairs {
        let [Reply::Text(name), Reply::Text(count)] = pair else {
            return None;
        };
        if let Some(field) = totals.field(name)
            && let Some(count) = std::str::from_utf8(count).ok().and_then(|n| n.parse().ok())
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

    fn next(stats: &SharedStats, now: Totals) -> Option<StatsDelta> {
        stats.next_deltas(now, false).pop()
    }

    #[test]
    fn only_new_counts_are_sent() {
        let stats = stats();
        let delta = next(&stats, totals(3)).unwrap();
        assert_eq!(delta.text, b"attempts 3 ");
        stats.settle(delta, Ok(Answer::Done));
        assert!(next(&stats, totals(3)).is_none(), "no count has changed");
        assert_eq!(next(&stats, totals(5)).unwrap().text, b"attempts 2 ");
    }

    #[test]
    fn addition_without_reply_is_sent_again_unchanged() {
        let stats = stats();
        let first = next(&stats, totals(3)).unwrap();
        stats.settle(first.clone(), Err(Fault::Unknown(Cause::text("late"))));
        // Even if a later attempt certainly did not run.
        stats.settle(first, Err(Fault::NotRun(Cause::text("away"))));
        let again = next(&stats, totals(5)).unwrap();
        assert_eq!((again.serial, again.totals), (1, totals(3)));
        // The last addition of a client comes with it.
        let [_, last] = stats.next_deltas(totals(5), true).try_into().ok().unwrap();
        assert_eq!((last.serial, &*last.text), (2, &b"attempts 2 "[..]));
        stats.settle(again, Ok(Answer::Done));
        assert_eq!(stats.state.lock().confirmed, totals(3));
        stats.settle(last, Ok(Answer::Done));
        assert_eq!(stats.state.lock().confirmed, totals(5));
    }

    #[test]
    fn refused_addition_is_a_part_of_the_next() {
        let stats = stats();
        let refused = || {
            Err(Fault::Rejected(Error::Config(
                "a field is no integer".into(),
            )))
        };
        stats.settle(next(&stats, totals(3)).unwrap(), refused());
        let second = next(&stats, totals(5)).unwrap();
        assert_eq!((second.serial, &*second.text), (2, &b"attempts 5 "[..]));
        // An earlier attempt may have run.
        stats.settle(second.clone(), Err(Fault::Unknown(Cause::text("late"))));
        stats.settle(second, refused());
        assert_eq!(next(&stats, totals(7)).unwrap().serial, 2);
    }

    /// While an addition is under way, the slot of the hash moves: the thread of its new owner
    /// sends, too.
    #[test]
    fn two_threads_add_each_count_once() {
        let stats = stats();
        let first = stats.next_deltas(totals(3), false).remove(0);
        let again = stats.next_deltas(totals(5), false).remove(0);
        assert_eq!((again.serial, again.totals), (first.serial, totals(3)));
        stats.settle(again, Ok(Answer::Done));
        let second = stats.next_deltas(totals(5), false).remove(0);
        assert_eq!((second.serial, &*second.text), (2, &b"attempts 2 "[..]));
        // Late replies to the other attempt change nothing.
        stats.settle(first.clone(), Ok(Answer::Done));
        stats.settle(first.clone(), Err(Fault::Unknown(Cause::text("late"))));
        stats.settle(first, Err(Fault::NotRun(Cause::text("away"))));
        let again = stats.next_deltas(totals(7), false).remove(0);
        assert_eq!((again.serial, again.totals), (2, totals(5)));
        stats.settle(again, Ok(Answer::Done));
        assert_eq!(stats.state.lock().confirmed, totals(5));
    }

    #[test]
    fn unknown_fields_of_the_hash_are_skipped() {
        let text = |text: &str| Reply::Text(text.as_bytes().to_vec());
        let items = ["attempts", "7", "of others", "1", "refused", "many"].map(text);
        let hash = |items: &[Reply]| read(&Reply::List(items.to_vec()));
        assert_eq!(hash(&items), Some(totals(7)));
        assert_eq!(hash(&items[..5]), None);
        assert_eq!(read(&Reply::Int(7)), None);
    }

    #[test]
    fn mark_is_in_the_slot_of_the_hash() {
        let stats = stats();
        assert_eq!(stats.keys.hash, [b"lock_stats"]);
        assert!(stats.keys.mark[0].starts_with(b"leasehold:tally:{lock_stats}:"));
    }
}
