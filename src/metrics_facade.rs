//! What a client counts, told to the `metrics` facade: by the io thread once a second, never where locks are taken.

use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{
    Label, SharedString, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};
use parking_lot::Mutex;

use crate::stats::{Buckets, Stats, Totals};

/// What one client has told so far.
pub(crate) struct Facade {
    /// Tells this client's gauges from those of others in the process.
    client: SharedString,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    totals: Totals,
    times: [Buckets; 3],
    has_described: bool,
}

const TIMES: [&str; 3] = [
    "leasehold_wait_seconds",
    "leasehold_hold_seconds",
    "leasehold_command_seconds",
];

impl Default for Facade {
    fn default() -> Self {
        static CLIENTS: AtomicU64 = AtomicU64::new(1);
        let number = CLIENTS.fetch_add(1, Ordering::Relaxed);
        Self {
            client: number.to_string().into(),
            told: Mutex::default(),
        }
    }
}

impl Facade {
    /// Tells what has come since the last time, and how things are. After the last time nothing is
    /// held any more.
    pub(crate) fn tell(&self, stats: &Stats, times: [Buckets; 3], is_last: bool) {
        let mut told = self.told.lock();
        let totals = stats.totals.since(&told.totals);
        told.totals = stats.totals;
        let before = std::mem::replace(&mut told.times, times.clone());
        let has_described = std::mem::replace(&mut told.has_described, true);
        // The recorder is the user's code.
        drop(told);
        if !has_described {
            describe();
        }
        for (field, count) in totals.fields() {
            let (name, label) = metric(field);
            let label = label.map(|(key, value)| Label::from_static_parts(key, value));
            counter!(name, Vec::from_iter(label)).increment(count);
        }
        for ((name, now), before) in TIMES.into_iter().zip(&times).zip(&before) {
            let histogram = histogram!(name);
            for (took, count) in now.since(before) {
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                histogram.record_many(took.as_secs_f64(), count);
            }
        }
        for (name, now) in [
            ("leasehold_held", stats.held),
            ("leasehold_waiting", stats.waiting),
            ("leasehold_connections", stats.connections),
        ] {
            let now = if is_last { 0 } else { now };
            gauge!(name, "client" => self.client.clone()).set(now as f64);
        }
        if let Some(lag) = stats.renewal_lag {
            let name = "leasehold_renewal_lag_seconds";
            gauge!(name, "client" => self.client.clone()).set(lag.as_secs_f64());
        }
    }
}

type Pair = (&'static str, &'static str);

/// The metric that a total is told as.
fn metric(field: &'static str) -> (&'static str, Option<Pair>) {
    for (prefix, name, key) in [
        ("acquired_", "leasehold_acquired_total", "how"),
        ("lost_", "leasehold_lost_total", "reason"),
        ("renewals_", "leasehold_renewals_total", "outcome"),
        ("wakes_", "leasehold_wakes_total", "source"),
    ] {
        if let Some(value) = field.strip_prefix(prefix) {
            return (name, Some((key, value)));
        }
    }
    let name = match field {
        "attempts" => "leasehold_attempts_total",
        "refused" => "leasehold_refused_total",
        "timed_out" => "leasehold_timed_out_total",
        "failed" => "leasehold_failed_total",
        "released" => "leasehold_released_total",
        "released_too_late" => "leasehold_released_too_late_total",
        "spurious_wakes" => "leasehold_spurious_wakes_total",
        // A test below goes through all of them.
        other => other,
    };
    (name, None)
}

fn describe() {
    for (name, text) in [
        ("leasehold_attempts_total", "Acquiring commands"),
        ("leasehold_acquired_total", "Locks acquired"),
        (
            "leasehold_refused_total",
            "Calls that found the lock held and did not wait",
        ),
        (
            "leasehold_timed_out_total",
            "Calls that found the lock held until their deadline",
        ),
        (
            "leasehold_failed_total",
            "Calls that locked and ended in an error",
        ),
        (
            "leasehold_released_total",
            "Locks let go of while they were held",
        ),
        (
            "leasehold_released_too_late_total",
            "Locks let go of when they were lost",
        ),
        ("leasehold_lost_total", "Locks lost"),
        ("leasehold_renewals_total", "Renewals"),
        ("leasehold_wakes_total", "Waiters that looked again"),
        (
            "leasehold_spurious_wakes_total",
            "Waiters that looked again in vain",
        ),
    ] {
        describe_counter!(name, Unit::Count, text);
    }
    let texts = [
        "From the call to the lock",
        "From the lock to when its holder let go of it",
        "From a command to its answer",
    ];
    for (name, text) in TIMES.into_iter().zip(texts) {
        describe_histogram!(name, Unit::Seconds, text);
    }
    describe_gauge!("leasehold_held", Unit::Count, "Locks held");
    describe_gauge!(
        "leasehold_waiting",
        Unit::Count,
        "Calls that wait for a lock"
    );
    describe_gauge!("leasehold_connections", Unit::Count, "Open connections");
    describe_gauge!(
        "leasehold_renewal_lag_seconds",
        Unit::Seconds,
        "How late the latest renewal was"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoke() {
        assert_eq!(
            metric("lost_max_hold"),
            ("leasehold_lost_total", Some(("reason", "max_hold")))
        );
        for (field, _) in Totals::default().fields() {
            let (name, _) = metric(field);
            assert!(
                name.starts_with("leasehold_") && name.ends_with("_total"),
                "{field}"
            );
        }
    }
}
