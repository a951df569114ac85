//! Exports a client's statistics to the `metrics` facade, every two seconds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::{
    Label, SharedString, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

use crate::stats::{Buckets, Stats, Totals};
use crate::sync::Mutex;

/// The counts that one client has exported so far.
pub(crate) struct Facade {
    /// The label that distinguishes this client's gauges from those of others in the process.
    client: SharedString,
    reported: Mutex<Reported>,
}

#[derive(Default)]
struct Reported {
    totals: Totals,
    times: [Buckets; 3],
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
            reported: Mutex::default(),
        }
    }
}

impl Facade {
    /// Exports the counts since the last export, and the current gauges.
    ///
    /// `is_last` sets the gauges to zero, because the client ends.
    pub(crate) fn export(&self, stats: &Stats, times: [Buckets; 3], is_last: bool) {
        let mut reported = self.reported.lock();
        let totals = stats.totals.since(&reported.totals);
        reported.totals = stats.totals;
        let before = std::mem::replace(&mut reported.times, times.clone());
        // The recorder is the user's code, which must not run under the lock.
        drop(reported);
        // Each time, because the program may have installed its recorder only now.
        describe();
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
            ("leasehold_lingering", stats.lingering),
            ("leasehold_waiting", stats.waiting),
            ("leasehold_connections", stats.connections),
            ("leasehold_open_breakers", stats.open_breakers),
        ] {
            let now = if is_last { 0 } else { now };
            gauge!(name, "client" => self.client.clone()).set(now as f64);
        }
        if let Some(lag) = stats.renewal_lag {
            // Without a lease, no later renewal would replace a high lag, and an alert about it
            // would not end.
            let lag = if is_last || stats.held == 0 {
                Duration::ZERO
            } else {
                lag
            };
            let name = "leasehold_renewal_lag_seconds";
            gauge!(name, "client" => self.client.clone()).set(lag.as_secs_f64());
        }
    }
}

type Pair = (&'static str, &'static str);

/// Returns the name and label of the metric for a field of [`Totals`].
fn metric(field: &'static str) -> (String, Option<Pair>) {
    for (counted, key) in [
        ("acquired", "how"),
        ("lost", "reason"),
        ("renewals", "outcome"),
    ] {
        let value = field.strip_prefix(counted);
        if let Some(value) = value.and_then(|rest| rest.strip_prefix('_')) {
            return (total(counted), Some((key, value)));
        }
    }
    (total(field), None)
}

fn total(counted: &str) -> String {
    format!("leasehold_{counted}_total")
}

fn describe() {
    const WITHOUT_WAITING: &str =
        "Calls that found the lock held and did not wait, or used up their attempts";
    const TOO_LATE: &str = "Locks that were already lost when they were released";
    const SPURIOUS: &str = "Wake-ups after which another holder had the lock";
    for (counted, text) in [
        ("attempts", "Acquiring commands"),
        ("acquired", "Locks acquired"),
        ("refused", WITHOUT_WAITING),
        (
            "timed_out",
            "Calls whose deadline passed while the lock was held",
        ),
        ("cancelled", "Calls that were cancelled"),
        ("failed", "Calls that ended in another error"),
        ("released", "Locks released while they were held"),
        ("released_too_late", TOO_LATE),
        ("lost", "Locks lost"),
        ("lingering_lost", "Leases lost while nobody held them"),
        ("renewals", "Renewals"),
        ("wakes", "Wake-ups of waiters"),
        ("spurious_wakes", SPURIOUS),
    ] {
        describe_counter!(total(counted), Unit::Count, text);
    }
    let texts = [
        "Time from the call to the lock",
        "Time from the lock to its release",
        "Time from a command to its reply",
    ];
    for (name, text) in TIMES.into_iter().zip(texts) {
        describe_histogram!(name, Unit::Seconds, text);
    }
    describe_gauge!("leasehold_held", Unit::Count, "Locks held");
    describe_gauge!(
        "leasehold_lingering",
        Unit::Count,
        "Leases kept after their holder's unlock"
    );
    describe_gauge!("leasehold_waiting", Unit::Count, "Calls waiting for a lock");
    describe_gauge!("leasehold_connections", Unit::Count, "Open connections");
    describe_gauge!(
        "leasehold_open_breakers",
        Unit::Count,
        "Servers with an open circuit breaker"
    );
    describe_gauge!(
        "leasehold_renewal_lag_seconds",
        Unit::Seconds,
        "Time by which the latest renewal was late; 0 while no lock is held"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_total_has_a_metric() {
        assert_eq!(
            metric("lost_max_hold"),
            ("leasehold_lost_total".into(), Some(("reason", "max_hold")))
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
