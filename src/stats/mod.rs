//! The statistics of a client: lock-free counters, and snapshots of them.

#[cfg(feature = "metrics")]
pub(crate) mod facade;
pub(crate) mod histogram;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::lost::Lost;

pub(crate) use crate::stats::histogram::{Buckets, Histogram};

/// A counter. Relaxed atomics suffice: no other memory access depends on its value.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Defines all totals once: as fields of the snapshot, as counters, and by name.
macro_rules! totals {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// The counters of one client, or their sum over several clients.
        ///
        /// [`Stats`] contains those of one client, since it was made.
        /// [`Client::shared_stats`](crate::Client::shared_stats) returns the sum over all clients
        /// that share theirs; the fields of the Redis hash have the names of the fields here.
        ///
        /// *A call that locks* is one of `lock`, `try_lock`, `try_lock_for`, `try_lock_until`,
        /// `with` and `try_with`. When it returns, it is counted in exactly one of
        /// `acquired_at_once`, `acquired_after_waiting`, `refused`, `timed_out` and `failed`. An
        /// acquired lock is counted again when its holder releases it, in `released` or
        /// `released_too_late`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Totals {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)+
        }

        impl Counters {
            pub(crate) fn totals(&self) -> Totals {
                Totals { $($name: self.$name.value(),)+ }
            }
        }

        impl Totals {
            /// Returns the name and value of every field.
            pub(crate) fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }

            /// Returns the field with this name.
            pub(crate) fn field(&mut self, name: &[u8]) -> Option<&mut u64> {
                $(if name == stringify!($name).as_bytes() {
                    return Some(&mut self.$name);
                })+
                None
            }

            /// Returns what was counted after `before`.
            pub(crate) fn since(&self, before: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(before.$name),)+ }
            }
        }
    };
}

totals! {
    /// Acquiring commands, including those that could not be sent because Redis was unreachable.
    ///
    /// A call that locks makes one attempt if the lock is free, and more if it waits or retries. It
    /// makes none if the client knows without asking that the lock is held.
    attempts,
    /// Calls that acquired the lock without waiting for another holder.
    acquired_at_once,
    /// Calls that acquired the lock after waiting for another holder, or behind earlier waiters of
    /// this client.
    acquired_after_waiting,
    /// Calls that ended without the lock because it was held, and that had no deadline left to wait
    /// for: `try_lock`, and calls that used up the attempts of their [`Backoff`](crate::Backoff).
    refused,
    /// Calls that ended without the lock because it was still held at their deadline.
    timed_out,
    /// Calls that ended in an error, except [`AttemptsUsedUp`](crate::Error::AttemptsUsedUp), which
    /// counts as `refused`.
    failed,
    /// Locks that were released while they were held, including those whose release was not
    /// confirmed and is repeated in the background.
    released,
    /// Locks that were already lost when their holder released them:
    /// [`AlreadyLost`](crate::Unlocked::AlreadyLost).
    released_too_late,
    /// Locks lost to [`Lost::Expired`].
    lost_expired,
    /// Locks lost to [`Lost::Taken`].
    lost_taken,
    /// Locks lost to [`Lost::Deleted`].
    lost_deleted,
    /// Locks lost to [`Lost::MaxHold`].
    lost_max_hold,
    /// Locks lost to [`Lost::ShutDown`].
    lost_shut_down,
    /// Renewals that Redis confirmed, both in the background and by `renew` and `extend`.
    renewals_ok,
    /// Renewals that Redis did not answer, or refused. They are retried while the lease lasts. A
    /// renewal that finds the lock gone counts as a loss instead.
    renewals_failed,
    /// Waiters woken by a message on the lock's channel, such as a release.
    wakes_message,
    /// Waiters woken because this client itself released or lost the lock.
    wakes_local,
    /// Waiters that received the lock from a holder of the same client by a
    /// [local hand-off](crate::Mutex::local_handoffs).
    wakes_hand_off,
    /// Waiters that retried because the holder's ttl was about to end.
    wakes_ttl,
    /// Waiters that retried without having been woken: after the
    /// [`backstop`](crate::ClientBuilder::backstop), after a pause of their
    /// [`Backoff`](crate::Backoff), or after a pause because messages cannot be received.
    wakes_backstop,
    /// Waiters woken because the subscriber reconnected and messages are received again.
    wakes_reconnect,
    /// Wakes from any source after which another holder still, or again, had the lock.
    spurious_wakes,
}

impl Totals {
    /// Returns the number of locks acquired, at once or after waiting.
    pub fn acquired(&self) -> u64 {
        self.acquired_at_once + self.acquired_after_waiting
    }

    /// Returns the number of locks lost, for any reason.
    pub fn lost(&self) -> u64 {
        self.lost_expired
            + self.lost_taken
            + self.lost_deleted
            + self.lost_max_hold
            + self.lost_shut_down
    }

    /// Returns the number of times that waiters retried, from any source.
    ///
    /// Two cases are not counted: a waiter that only moves up to the head of its client's queue,
    /// and the retry after a first subscription.
    pub fn wakes(&self) -> u64 {
        self.wakes_message
            + self.wakes_local
            + self.wakes_hand_off
            + self.wakes_ttl
            + self.wakes_backstop
            + self.wakes_reconnect
    }

    /// Returns the share of acquired locks that had to wait, from 0 to 1.
    ///
    /// It is 0 if no lock was acquired. A useful threshold for an alert is 0.05.
    pub fn contention_rate(&self) -> f64 {
        match self.acquired() {
            0 => 0.0,
            acquired => self.acquired_after_waiting as f64 / acquired as f64,
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "attempts {}, acquired {} ({:.1} % after waiting), refused {}, timed out {}, \
             failed {}, released {}, too late {}, lost {}, renewed {}, \
             not renewed {}, wakes {} ({} spurious)",
            self.attempts,
            self.acquired(),
            self.contention_rate() * 100.0,
            self.refused,
            self.timed_out,
            self.failed,
            self.released,
            self.released_too_late,
            self.lost(),
            self.renewals_ok,
            self.renewals_failed,
            self.wakes(),
            self.spurious_wakes
        )
    }
}

/// The distribution of a duration.
///
/// Durations are counted in buckets, so `p50` and `p99` are at most a sixteenth too high, and never
/// too low. All fields are zero if nothing was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The counters since the client was made.
    pub totals: Totals,
    /// How many locks this client holds now, including leases whose end was not noticed yet.
    pub held: u64,
    /// How many calls wait for a lock now.
    pub waiting: u64,
    /// How many connections are open now: in use, idle, and those of background threads.
    ///
    /// Connections to sentinels do not count.
    pub connections: u64,
    /// How long after it was due the latest renewal was confirmed; `None` before the first one.
    ///
    /// Zero if the renewal was on time. Renewals that are due within 100 ms are sent together. If
    /// the lag approaches two thirds of the ttl, locks are lost.
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

impl Stats {
    /// Returns this client's [`Totals::contention_rate`].
    pub fn contention_rate(&self) -> f64 {
        self.totals.contention_rate()
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "held {}, waiting {}, connections {}, {}, renewal lag ",
            self.held, self.waiting, self.connections, self.totals
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

/// The reason why a waiter woke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    Message,
    Local,
    HandOff,
    Ttl,
    Backstop,
    Reconnect,
    /// Nothing was released: the waiter moved up in the queue, its subscription was confirmed, or
    /// the client was shut down.
    Turn,
}

/// The counters of one client, all of them relaxed atomics: counting never blocks.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    pub(crate) counters: Counters,
    pub(crate) wait: Histogram,
    pub(crate) hold: Histogram,
    /// The renewal lag in nanoseconds, plus one; 0 before the first renewal.
    lag: AtomicU64,
}

impl Meters {
    /// Counts a call that acquired its lock `after` this time.
    pub(crate) fn acquired(&self, has_waited: bool, after: Duration) {
        if has_waited {
            self.counters.acquired_after_waiting.up();
        } else {
            self.counters.acquired_at_once.up();
        }
        self.wait.record(after);
    }

    /// Counts a lock that its holder released, `after` having it for this time.
    pub(crate) fn let_go(&self, in_time: bool, after: Duration) {
        if in_time {
            self.counters.released.up();
        } else {
            self.counters.released_too_late.up();
        }
        self.hold.record(after);
    }

    pub(crate) fn lost(&self, lost: Lost) {
        let counters = &self.counters;
        match lost {
            Lost::Expired => counters.lost_expired.up(),
            Lost::Taken => counters.lost_taken.up(),
            Lost::Deleted => counters.lost_deleted.up(),
            Lost::MaxHold => counters.lost_max_hold.up(),
            Lost::ShutDown => counters.lost_shut_down.up(),
        }
    }

    /// Counts a renewal that was confirmed `lag` after it was due; `None` if it failed.
    pub(crate) fn renewed(&self, lag: Option<Duration>) {
        match lag {
            Some(lag) => {
                self.counters.renewals_ok.up();
                let nanos = u64::try_from(lag.as_nanos()).unwrap_or(u64::MAX);
                self.lag.store(nanos.saturating_add(1), Ordering::Relaxed);
            }
            None => self.counters.renewals_failed.up(),
        }
    }

    pub(crate) fn lag(&self) -> Option<Duration> {
        let nanos = self.lag.load(Ordering::Relaxed).checked_sub(1)?;
        Some(Duration::from_nanos(nanos))
    }

    /// Counts a waiter that retries; returns false for a reason that is not counted.
    pub(crate) fn woke(&self, wake: Wake) -> bool {
        let counters = &self.counters;
        match wake {
            Wake::Message => counters.wakes_message.up(),
            Wake::Local => counters.wakes_local.up(),
            Wake::HandOff => counters.wakes_hand_off.up(),
            Wake::Ttl => counters.wakes_ttl.up(),
            Wake::Backstop => counters.wakes_backstop.up(),
            Wake::Reconnect => counters.wakes_reconnect.up(),
            Wake::Turn => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_in_their_totals() {
        let meters = Meters::default();
        meters.acquired(false, Duration::from_millis(1));
        meters.acquired(true, Duration::from_millis(3));
        meters.let_go(true, Duration::from_millis(5));
        meters.lost(Lost::Taken);
        assert!(meters.woke(Wake::Message));
        assert!(!meters.woke(Wake::Turn));
        assert_eq!(
            meters.counters.totals(),
            Totals {
                acquired_at_once: 1,
                acquired_after_waiting: 1,
                released: 1,
                lost_taken: 1,
                wakes_message: 1,
                ..Totals::default()
            }
        );
        assert_eq!(meters.lag(), None);
        meters.renewed(Some(Duration::ZERO));
        assert_eq!(meters.lag(), Some(Duration::ZERO));
    }

    #[test]
    fn the_contention_rate_is_a_share_of_acquired_locks() {
        let rate = |acquired_at_once, acquired_after_waiting| {
            Totals {
                acquired_at_once,
                acquired_after_waiting,
                refused: 100,
                ..Totals::default()
            }
            .contention_rate()
        };
        assert_eq!(rate(0, 0), 0.0);
        assert_eq!(rate(7, 0), 0.0);
        assert_eq!(rate(0, 7), 1.0);
        assert_eq!(rate(95, 5), 0.05);
    }

    #[test]
    fn every_field_is_found_by_its_name() {
        let mut totals = Totals::default();
        let names: Vec<_> = totals.fields().map(|(name, _)| name).collect();
        assert_eq!(names.first(), Some(&"attempts"));
        assert_eq!(names.len(), 22);
        for (n, name) in (1..).zip(&names) {
            *totals.field(name.as_bytes()).unwrap() = n;
        }
        assert!((1..=22).eq(totals.fields().map(|(_, n)| n)));
        assert_eq!(totals.field(b"unheard_of"), None);
        let one = Totals {
            refused: 1,
            ..Totals::default()
        };
        assert_eq!(totals.since(&one).refused, totals.refused - 1);
        assert_eq!(one.since(&totals), Totals::default());
    }

    #[test]
    fn the_display_is_one_line() {
        let line = Stats::default().to_string();
        assert!(!line.contains('\n'), "{line}");
        assert!(line.contains("held 0, waiting 0"), "{line}");
        assert!(line.contains("(0.0 % after waiting)"), "{line}");
    }
}
