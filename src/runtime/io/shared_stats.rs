//! The client's numbers as others see them: the snapshot, and what `io` adds to the hash that a fleet shares.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Instant;
use crate::config::Config;
use crate::logging;
use crate::protocol::kind::{Keys, sibling_key};
use crate::protocol::script::{Arg, Call, Reply, TALLY};
use crate::random;
use crate::redis::Fault;
use crate::stats::Totals;

/// How often what was counted is told.
pub(in crate::runtime) const EVERY: Duration = Duration::from_secs(1);

/// What this client adds to the shared statistics.
pub(crate) struct SharedStats {
    pub(in crate::runtime) is_shared: bool,
    /// A thread that tells is there.
    has_begun: AtomicBool,
    /// The hash, as if it were a lock's key: that is how its server is found.
    pub(in crate::runtime) owner_of: Keys,
    pub(in crate::runtime) keys: Arc<TallyKeys>,
    state: Mutex<State>,
    #[cfg(feature = "metrics")]
    pub(in crate::runtime) facade: crate::stats::facade::Facade,
}

pub(in crate::runtime) struct TallyKeys {
    pub(in crate::runtime) hash: [Vec<u8>; 1],
    /// Where Redis notes which of our additions it has seen.
    mark: [Vec<u8>; 1],
}

#[derive(Default)]
struct State {
    /// What was added, as far as Redis has said so.
    told: Totals,
    serial: u64,
    /// Sent, and perhaps added: to be sent again as it is, which is sure to add it once.
    open: Option<StatsDelta>,
    has_warned: bool,
}

/// An addition to the shared statistics.
#[derive(Clone)]
pub(crate) struct StatsDelta {
    keys: Arc<TallyKeys>,
    serial: u64,
    /// What is told when this is added.
    told: Totals,
    text: Vec<u8>,
}

impl StatsDelta {
    fn new(keys: &Arc<TallyKeys>, serial: u64, before: &Totals, now: Totals) -> Option<Self> {
        let mut text = String::new();
        for (name, count) in now.since(before).fields().filter(|(_, count)| *count > 0) {
            // Writing to a string does not fail.
            let _ = write!(text, "{name} {count} ");
        }
        (!text.is_empty()).then(|| Self {
            keys: Arc::clone(keys),
            serial,
            told: now,
            text: text.into_bytes(),
        })
    }

    pub(crate) fn call(&self) -> Call<'_> {
        Call {
            script: &TALLY,
            keys: [&self.keys.hash, &self.keys.mark],
            rest: &[],
            args: [
                Arg::Number(self.serial),
                Arg::Bytes(&self.text),
                Arg::Absent,
                Arg::Absent,
            ],
            replicas: None,
            asking: false,
        }
    }
}

impl SharedStats {
    pub(crate) fn new(config: &Config) -> Self {
        let hash = config.shared_stats_key.clone().into_bytes();
        let sibling_key = sibling_key(&hash, "tally");
        let own = format!(":{}", random::uuid()).into_bytes();
        Self {
            is_shared: config.shared_stats,
            has_begun: AtomicBool::new(false),
            owner_of: Keys::new(config.shared_stats_key.as_str().into(), "", ""),
            keys: Arc::new(TallyKeys {
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

    /// When to tell for the first time, if at all.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.is_wanted().then(|| Instant::now().after(EVERY))
    }

    /// Whether a thread that tells must be started now.
    pub(in crate::runtime) fn begins(&self) -> bool {
        self.is_wanted() && !self.has_begun.swap(true, Ordering::Relaxed)
    }

    /// What is sent now: an addition that may have run, or else what has come since. With `all`,
    /// both.
    pub(in crate::runtime) fn parcels(&self, totals: Totals, all: bool) -> Vec<StatsDelta> {
        let mut state = self.state.lock();
        let open = state.open.clone();
        let mut parcels = Vec::from_iter(open);
        if parcels.is_empty() || all {
            let before = parcels.first().map_or(state.told, |open| open.told);
            let next = StatsDelta::new(&self.keys, state.serial + 1, &before, totals);
            if next.is_some() {
                state.serial += 1;
            }
            parcels.extend(next);
        }
        parcels
    }

    /// Sees to the answer to `parcel`.
    pub(crate) fn settle(&self, parcel: StatsDelta, answer: Result<Reply, Fault>) {
        let mut state = self.state.lock();
        let refusal = match answer {
            Ok(Reply::Int(_)) => {
                state.told = parcel.told;
                state.open = None;
                state.has_warned = false;
                return;
            }
            // One that never arrived is counted anew the next time, with what has come since.
            Err(Fault::NotRun(_) | Fault::Open(_) | Fault::Redirected(..)) => return,
            Err(Fault::Unknown(_)) => {
                state.open = Some(parcel);
                return;
            }
            Err(Fault::Rejected(error) | Fault::NotReplicated(error)) => error.to_string(),
            Ok(_) => "the tally script gave an answer that is not its own".into(),
        };
        let has_warned = std::mem::replace(&mut state.has_warned, true);
        drop(state);
        if !has_warned {
            logging::warn!(
                "what this client counts is not added to the shared statistics: {refusal}"
            );
        }
    }
}

/// Reads the hash. What is not ours in it, or no number, is left out. `None` for what is no hash.
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
    use crate::error::Cause;

    fn tally() -> SharedStats {
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

    fn next(tally: &SharedStats, now: Totals) -> Option<StatsDelta> {
        let state = tally.state.lock();
        StatsDelta::new(&tally.keys, state.serial + 1, &state.told, now)
    }

    #[test]
    fn smoke() {
        let tally = tally();
        let parcel = next(&tally, totals(3)).unwrap();
        assert_eq!(parcel.text, b"attempts 3 ");
        tally.settle(parcel, Ok(Reply::Int(1)));
        assert!(next(&tally, totals(3)).is_none(), "nothing has come since");
        assert_eq!(next(&tally, totals(5)).unwrap().text, b"attempts 2 ");
    }

    #[test]
    fn only_what_may_have_been_added_is_sent_again_as_it_is() {
        let tally = tally();
        let first = next(&tally, totals(3)).unwrap();
        tally.settle(first.clone(), Err(Fault::NotRun(Cause::text("away"))));
        assert!(tally.state.lock().open.is_none());
        tally.settle(first.clone(), Err(Fault::Unknown(Cause::text("late"))));
        // Even if a further try of it surely did not run.
        tally.settle(first, Err(Fault::NotRun(Cause::text("away"))));
        let open = tally.state.lock().open.clone().unwrap();
        assert_eq!((open.serial, open.told), (1, totals(3)));
        tally.settle(open, Ok(Reply::Int(0)));
        assert!(tally.state.lock().open.is_none());
        assert_eq!(tally.state.lock().told, totals(3));
    }

    #[test]
    fn what_is_not_ours_in_the_hash_is_left_out() {
        let text = |text: &str| Reply::Text(text.as_bytes().to_vec());
        let items = ["attempts", "7", "of others", "1", "refused", "many"].map(text);
        let hash = |items: &[Reply]| read(&Reply::List(items.to_vec()));
        assert_eq!(hash(&items), Some(totals(7)));
        assert_eq!(hash(&items[..5]), None);
        assert_eq!(read(&Reply::Int(7)), None);
    }

    #[test]
    fn the_mark_lies_beside_the_hash() {
        let tally = tally();
        assert_eq!(tally.keys.hash, [b"lock_stats"]);
        assert!(tally.keys.mark[0].starts_with(b"leasehold:tally:{lock_stats}:"));
    }
}
