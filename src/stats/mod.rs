//! What a client counts: counters without a lock, and the plain snapshots that are taken of them.

mod histogram;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::lost::Lost;

pub(crate) use crate::stats::histogram::{Buckets, Histogram};

/// A number that only rises. Relaxed: nothing else is concluded from what it says.
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

/// One list of all totals: as fields of a snapshot, as counters, and by name.
macro_rules! totals {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// What was counted since the beginning, and adds up over clients.
        ///
        /// Of one client, as a part of its [`Stats`]; of a whole fleet, by
        /// [`Client::shared_stats`](crate::Client::shared_stats). A field's name is also the name of its
        /// field in the shared hash.
        ///
        /// *A call that locks* is one of `lock`, `try_lock`, `try_lock_for`, `try_lock_until`, `with`
        /// and `try_with`. It is counted when it returns, and then in one of `acquired_at_once`,
        /// `acquired_after_waiting`, `refused`, `timed_out` and `failed`. A lock that was acquired is
        /// counted once more when its holder lets go of it, in `released` or `released_too_late`.
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
            /// All of them, by name.
            pub(crate) fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }

            /// The one of that name.
            pub(crate) fn field(&mut self, name: &[u8]) -> Option<&mut u64> {
                $(if name == stringify!($name).as_bytes() {
                    return Some(&mut self.$name);
                })+
                None
            }

            /// What has come since `before`.
            pub(crate) fn since(&self, before: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(before.$name),)+ }
            }
        }
    };
}

totals! {
    /// Acquiring commands: how often Redis was asked for a lock, or was to be asked and could not be
    /// reached. A call that locks makes one where the lock is free, more where it waits or tries
    /// again, and none where it is known here that the answer would be no.
    attempts,
    /// Calls that locked, and got the lock without waiting for another holder.
    acquired_at_once,
    /// Calls that locked, and got the lock after another holder, or after others who waited before
    /// them in this client.
    acquired_after_waiting,
    /// Calls that ended without the lock because somebody else held it, and that had no deadline to
    /// wait for: `try_lock`, and all calls whose [`Backoff`](crate::Backoff) allowed no more
    /// attempts.
    refused,
    /// Calls that ended without the lock because somebody else still held it at their deadline.
    timed_out,
    /// Calls that locked and ended in an error, but for
    /// [`AttemptsUsedUp`](crate::Error::AttemptsUsedUp), which is `refused`.
    failed,
    /// Locks that their holder let go of while it held them. Those too whose release was not
    /// answered and is repeated in the background.
    released,
    /// Locks that their holder let go of when it had lost them:
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
    /// Renewals that Redis confirmed: those in the background, and those by `renew` and `extend`.
    renewals_ok,
    /// Renewals that Redis did not answer, or refused. They are tried again while the lease lasts;
    /// one that finds the lock gone is a loss instead.
    renewals_failed,
    /// Waiters woken because a release, or anything else, was published on the lock's channel.
    wakes_message,
    /// Waiters woken because this client itself had released the lock, or lost it.
    wakes_local,
    /// Waiters that were [handed](crate::Mutex::local_handoffs) a lock by its holder in the same
    /// client.
    wakes_hand_off,
    /// Waiters that looked again because the other holder's ttl was to run out.
    wakes_ttl,
    /// Waiters that looked again by themselves: after the [`backstop`](crate::ClientBuilder::backstop),
    /// after a pause of their [`Backoff`](crate::Backoff), or after one of those that replace the
    /// messages where these cannot be heard.
    wakes_backstop,
    /// Waiters woken because releases are heard again, after the connection that hears them was lost.
    wakes_reconnect,
    /// Wakes, of whatever source, after which somebody else still, or again, held the lock.
    spurious_wakes,
}

impl Totals {
    /// Locks acquired, at once or after waiting.
    pub fn acquired(&self) -> u64 {
        self.acquired_at_once + self.acquired_after_waiting
    }

    /// Locks lost, for whatever reason.
    pub fn lost(&self) -> u64 {
        self.lost_expired
            + self.lost_taken
            + self.lost_deleted
            + self.lost_max_hold
            + self.lost_shut_down
    }

    /// Waiters that looked again, from whatever source: woken, or by themselves. One that only moves
    /// up to the head of its client's queue goes on waiting and is not counted, nor is the look that
    /// follows a first subscription.
    pub fn wakes(&self) -> u64 {
        self.wakes_message
            + self.wakes_local
            + self.wakes_hand_off
            + self.wakes_ttl
            + self.wakes_backstop
            + self.wakes_reconnect
    }

    /// The part of all acquisitions that had to wait, from 0 to 1; 0 where nothing was acquired.
    /// Above 0.05 many operators want to know of it.
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
            "attempts {}, acquired {} ({:.1} % after waiting), refused {}, timed out {}, failed {}, \
             released {}, too late {}, lost {}, renewed {}, not renewed {}, wakes {} ({} spurious)",
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

/// How long something took.
///
/// Counted in buckets of a sixteenth of their times: `p50` and `p99` are too high by that much at
/// the most, and never too low. All zero where nothing was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// How often it was counted.
    pub count: u64,
    /// Half of them took no longer.
    pub p50: Duration,
    /// 99 of 100 took no longer.
    pub p99: Duration,
    /// The longest of all.
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

/// What a client has done so far and does now: a plain snapshot.
///
/// Made by [`Client::stats`](crate::Client::stats). The numbers are read one after the other while
/// the client goes on, so two of them may differ by what happened in between. `Display` is one line,
/// fit for a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// What was counted since the client was made.
    pub totals: Totals,
    /// Locks that this client holds now. One whose end was not noticed yet is among them.
    pub held: u64,
    /// Calls that sleep now until they get their lock.
    pub waiting: u64,
    /// Connections that are open now to the servers that keep the locks: in use, idle, and those of
    /// the client's own threads. Those to sentinels are not counted.
    pub connections: u64,
    /// How long after it was due the latest renewal was confirmed, zero where it was in time (those
    /// due within 100 ms go together). `None` before the first one. What approaches two thirds of the
    /// ttl loses locks.
    pub renewal_lag: Option<Duration>,
    /// From the call to the lock: for each call that got it, at once or after waiting.
    pub wait: Latency,
    /// From the lock to when its holder let go of it, lost or not. Counted then.
    pub hold: Latency,
    /// From a command to its answer, for all that were answered, a wait for replicas included.
    /// Renewals that go together are counted as one.
    pub command: Latency,
}

impl Stats {
    /// As [`Totals::contention_rate`], of this client.
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

/// Why a waiter is awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    Message,
    Local,
    HandOff,
    Ttl,
    Backstop,
    Reconnect,
    /// It is to look around, and nothing was released: it has moved up, it hears now, or the client
    /// is closed.
    Turn,
}

/// What one client counts. All of it is relaxed atomics: whoever counts waits for nobody.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    pub(crate) counters: Counters,
    pub(crate) wait: Histogram,
    pub(crate) hold: Histogram,
    /// In nanoseconds and one more; 0 before the first renewal.
    lag: AtomicU64,
}

impl Meters {
    /// A call got its lock `after` so long.
    pub(crate) fn acquired(&self, has_waited: bool, after: Duration) {
        if has_waited {
            self.counters.acquired_after_waiting.up();
        } else {
            self.counters.acquired_at_once.up();
        }
        self.wait.record(after);
    }

    /// A holder let go of its lock.
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

    /// A renewal came back, confirmed so long after it was due; `None` where it failed.
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

    /// A waiter looks again; true if that counts.
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
    fn smoke() {
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
    fn contention_is_a_part_of_what_was_acquired() {
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
