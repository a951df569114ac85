//! The statistics of a client: lock-free counters, and snapshots of them.

#[cfg(feature = "metrics")]
pub(crate) mod facade;
pub(crate) mod histogram;
mod meters;
mod totals;

use std::fmt;
use std::time::Duration;

pub(crate) use crate::stats::histogram::{Buckets, Histogram};
pub(crate) use crate::stats::meters::Meters;
pub use crate::stats::totals::Totals;

/// The distribution of a duration.
///
/// Durations are rounded up to whole µs and counted in buckets. So `p50` and `p99` are at most a
/// sixteenth plus 1 µs too high, and up to 50 days never too low. All fields are zero if nothing
/// was counted.
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// # drop(client.mutex("report").lock()?);
/// let wait = client.stats().wait;
/// println!("{} locks, 99 % of them within {:?}", wait.count, wait.p99);
/// # assert_eq!(wait.count, 1);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
#[non_exhaustive]
pub struct Latency {
    /// The number of durations counted.
    pub count: u64,
    /// The median: half of the durations were at most this.
    pub p50: Duration,
    /// The 99th percentile: 99 of 100 durations were at most this.
    pub p99: Duration,
    /// The longest duration.
    pub max: Duration,
}

impl Latency {
    pub(crate) fn of(buckets: &Buckets) -> Self {
        Self {
            count: buckets.count(),
            p50: buckets.quantile(0.5),
            p99: buckets.quantile(0.99),
            max: buckets.max(),
        }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "p50 {:.1?} p99 {:.1?} max {:.1?}",
            self.p50, self.p99, self.max
        )
    }
}

/// A snapshot of a client's counters and gauges, made by [`Client::stats`](crate::Client::stats).
///
/// The numbers are read one after another while the client continues, so two of them may differ by
/// what happened in between. `Display` writes one line, for a log.
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let guard = client.mutex("report").lock()?;
/// let stats = client.stats();
/// assert_eq!((stats.held, stats.waiting), (1, 0));
/// println!("{stats}"); // held 1, waiting 0, connections 1, open breakers 0, calls 1 (…), …
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
#[non_exhaustive]
pub struct Stats {
    /// The counters since the client was made.
    pub totals: Totals,
    /// How many locks this client holds now, including leases whose end was not noticed yet.
    ///
    /// The permits of one call to a semaphore count as one lock. A set of
    /// [`MutexAll`](crate::MutexAll) counts once for each of its names here, but once in the
    /// `totals`.
    pub held: u64,
    /// How many leases [linger](crate::Mutex::linger) now: nobody holds them.
    pub lingering: u64,
    /// How many calls wait for a lock now.
    pub waiting: u64,
    /// How many connections are open now: in use, idle, and those of background threads.
    ///
    /// Connections to sentinels do not count.
    pub connections: u64,
    /// How many circuit breakers are open now.
    ///
    /// Each server has one; the servers of a quorum share one. While it is open, a `try_lock` on
    /// its servers fails at once, like other calls that do not wait.
    /// [`Client::health`](crate::Client::health) says which are open, and why.
    pub open_breakers: u64,
    /// How long after it was due the latest renewal was confirmed; `None` before the first one.
    ///
    /// Includes the time of the reply. Renewals that are due within 100 ms are sent together; the
    /// lag is zero if the reply arrives before the renewal was due. With the default
    /// [`renew_every`](crate::Mutex::renew_every), locks are lost if the lag reaches about 56 % of
    /// the ttl.
    pub renewal_lag: Option<Duration>,
    /// The time from the call to the lock, for every call that acquired it.
    pub wait: Latency,
    /// The time from the lock to its release, lost or not. Counted at the release.
    pub hold: Latency,
    /// The time from a command to its reply, including a wait for replicas.
    ///
    /// Commands without a reply do not count. Renewals that are sent together count as one.
    pub command: Latency,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "held {}, lingering {}, waiting {}, connections {}, open breakers {}, {}, renewal lag ",
            self.held,
            self.lingering,
            self.waiting,
            self.connections,
            self.open_breakers,
            self.totals
        )?;
        match self.renewal_lag {
            Some(lag) => write!(f, "{lag:.1?}")?,
            None => f.write_str("none")?,
        }
        write!(
            f,
            ", wait {}, hold {}, command {}",
            self.wait, self.hold, self.command
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_display_is_one_line() {
        let line = Stats::default().to_string();
        assert!(!line.contains('\n'), "{line}");
        assert!(line.contains("held 0, lingering 0, waiting 0"), "{line}");
        assert!(line.contains("of which 0.0 % after waiting"), "{line}");
    }
}
