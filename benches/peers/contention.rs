//! The candidates, and how long they are measured: seconds in all if `QUICK` is set.

use std::env;
use std::time::Duration;

use common::candidates;
use support::ms;

use crate::results::{BARE, OURS};

pub(crate) const PROCESSES: usize = 8;
pub(crate) const NAME: &str = candidates::NAME;
pub(crate) const TTL: Duration = Duration::from_secs(10);

/// The pause of a tuned candidate after a refusal.
pub(crate) const TUNED: Duration = ms(1);

/// Label and kind. The defaults of what has a tuned form, too, run if `PEERS` is `all`.
pub(crate) type Candidate = (&'static str, &'static str);

/// Locks of one holder. Redisson's has no setting that matters here.
pub(crate) const CANDIDATES: &[Candidate] = &[
    (OURS, "mutex"),
    ("leasehold Mutex, lingers 200 µs", "linger"),
    ("leasehold FairMutex", "fair"),
    (BARE, "poller"),
    ("bare commands, no pause", "spinner"),
    ("rslock", "rslock"),
    ("rslock, tuned", "rslock-tuned"),
    ("redlock", "redlock"),
    ("redlock, tuned", "redlock-tuned"),
    ("redis-lock", "redis-lock"),
    ("redis-lock, tuned", "redis-lock-tuned"),
    ("distributed-lock-redis", "distributed-lock"),
    ("distributed-lock-redis, tuned", "distributed-lock-tuned"),
    ("redis-py by hand", "redis-py"),
    ("redis-py by hand, tuned", "redis-py-tuned"),
    ("Redisson by hand", "redisson"),
    ("Redisson by hand, fair", "redisson-fair"),
];

/// The candidates of this run.
pub(crate) fn chosen() -> Vec<Candidate> {
    let all = env::var("PEERS").is_ok_and(|which| which == "all");
    let chosen = CANDIDATES
        .iter()
        .copied()
        .filter(|(label, _)| all || !has_tuned_form(label));
    chosen.collect()
}

pub(crate) fn has_tuned_form(label: &str) -> bool {
    let tuned = format!("{label}, tuned");
    CANDIDATES.iter().any(|(label, _)| *label == tuned)
}

pub(crate) fn is_quick() -> bool {
    env::var_os("QUICK").is_some()
}

/// How often each candidate contends, and for how long.
pub(crate) fn rounds() -> usize {
    if is_quick() { 1 } else { 3 }
}

pub(crate) fn lasts() -> Duration {
    if is_quick() { ms(300) } else { ms(1_500) }
}
