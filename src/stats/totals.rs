//! The counters of events, as atomics and as a snapshot.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter. Relaxed atomics suffice: no other memory access depends on its value.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, n: u64) {
        if n > 0 {
            self.0.fetch_add(n, Ordering::Relaxed);
        }
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
        /// [`Stats`](crate::Stats) contains those of one client, since that client was made.
        /// [`Client::shared_stats`](crate::Client::shared_stats) returns the sum over all clients
        /// that share theirs. It reads them from a Redis hash, whose fields have the names of the
        /// fields here.
        ///
        /// *A call that locks* is any call that acquires: `lock`, `read`, `write`, `acquire`, their
        /// `try_` forms, `with` and `try_with`. When it returns, it is counted in exactly one of
        /// `acquired_at_once`, `acquired_after_waiting`, `refused`, `timed_out`, `cancelled` and
        /// `failed`. An acquired lock is counted again when its holder releases it, in `released`
        /// or `released_too_late`.
        ///
        /// ```
        /// # let server = leasehold::testing::Server::start();
        /// # let client = server.client();
        /// drop(client.mutex("report").lock()?);
        /// let totals = client.stats().totals;
        /// assert_eq!((totals.acquired_at_once, totals.released), (1, 1));
        /// # Ok::<(), leasehold::Error>(())
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
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
    /// These are not calls, and can be more or fewer: [`calls`](Totals::calls) counts those.
    ///
    /// A call that locks makes one attempt if the lock is free, and can make more if it waits or
    /// retries. It makes none if it gets the lock by a
    /// [local hand-off](crate::Mutex::local_handoffs) without having asked, or if the client knows
    /// without asking that the lock is held.
    attempts,
    /// Calls that acquired the lock without waiting for another holder.
    acquired_at_once,
    /// Calls that acquired the lock after waiting.
    ///
    /// They waited for another holder, or behind earlier waiters of this client.
    acquired_after_waiting,
    /// Calls that ended without the lock because it was held, though not at a deadline.
    ///
    /// These are calls that do not wait, such as `try_lock`, and calls that used up the attempts of
    /// their [`Backoff`](crate::Backoff).
    refused,
    /// Calls that ended without the lock because it was still held at their deadline.
    timed_out,
    /// Calls that were cancelled by their [`CancelToken`](crate::CancelToken).
    cancelled,
    /// Calls that ended in another error, except
    /// [`AttemptsUsedUp`](crate::Error::AttemptsUsedUp), which counts as `refused`.
    failed,
    /// Locks that were released while they were held.
    ///
    /// Includes those whose release was not confirmed and is repeated in the background, and those
    /// that [`keep_for`](crate::Lease::keep_for) leaves to expire.
    released,
    /// Locks that were already lost when their holder released them:
    /// [`Error::Lost`](crate::Error::Lost).
    released_too_late,
    /// Locks lost to [`Lost::Expired`](crate::Lost::Expired).
    lost_expired,
    /// Locks lost to [`Lost::Taken`](crate::Lost::Taken).
    lost_taken,
    /// Locks lost to [`Lost::Deleted`](crate::Lost::Deleted).
    lost_deleted,
    /// Locks lost to [`Lost::MaxHold`](crate::Lost::MaxHold).
    lost_max_hold,
    /// Locks lost to [`Lost::ShutDown`](crate::Lost::ShutDown).
    lost_shut_down,
    /// Leases that were lost while they [lingered](crate::Mutex::linger): nobody held them.
    lingering_lost,
    /// Renewals that Redis confirmed, both in the background and by calls such as `renew` and
    /// `set_ttl`.
    renewals_ok,
    /// Renewals that Redis did not answer, or refused.
    ///
    /// Those in the background are retried while the lease lasts. A renewal that finds the lock
    /// gone counts as a loss instead.
    renewals_failed,
    /// Waiters that another thread woke, and that then got the lock or found it held.
    ///
    /// A release, a grant, a [local hand-off](crate::Mutex::local_handoffs) or a reconnection wakes
    /// a waiter, and so does its move to the front of its client's queue. A waiter that asks again
    /// on its own is not woken: at a refresh of its place, when the holder's lease is due to
    /// expire, or after a pause.
    wakes,
    /// Wake-ups after which another holder still, or again, had the lock.
    spurious_wakes,
}

impl Totals {
    /// Returns the number of calls that locked, or tried to, and have returned.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let report = client.mutex("report");
    /// let guard = report.lock()?;
    /// assert!(report.try_lock()?.is_err());
    /// let totals = client.stats().totals;
    /// assert_eq!((totals.calls(), totals.acquired(), totals.refused), (2, 1, 1));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn calls(&self) -> u64 {
        sum([
            self.acquired_at_once,
            self.acquired_after_waiting,
            self.refused,
            self.timed_out,
            self.cancelled,
            self.failed,
        ])
    }

    /// Returns the number of locks acquired, at once or after waiting.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// drop(client.mutex("report").lock()?);
    /// assert_eq!(client.stats().totals.acquired(), 1);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn acquired(&self) -> u64 {
        sum([self.acquired_at_once, self.acquired_after_waiting])
    }

    /// Returns the number of locks lost, for any reason.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let totals = client.stats().totals;
    /// if totals.lost() > 0 {
    ///     eprintln!("{} of {} locks were lost", totals.lost(), totals.acquired());
    /// }
    /// ```
    pub fn lost(&self) -> u64 {
        sum([
            self.lost_expired,
            self.lost_taken,
            self.lost_deleted,
            self.lost_max_hold,
            self.lost_shut_down,
        ])
    }

    /// Returns the share of acquired locks for which the call had to wait, from 0 to 1.
    ///
    /// It is 0 if no lock was acquired. A useful threshold for an alert is 0.05.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let totals = client.stats().totals;
    /// if totals.contention_rate() > 0.05 {
    ///     eprintln!("more than one lock in twenty had to wait");
    /// }
    /// ```
    pub fn contention_rate(&self) -> f64 {
        match self.acquired() {
            0 => 0.0,
            acquired => self.acquired_after_waiting as f64 / acquired as f64,
        }
    }
}

/// Adds counts, up to `u64::MAX`: another program can set the shared counts in Redis to anything.
fn sum<const N: usize>(counts: [u64; N]) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

/// The calls with their outcomes, whose numbers add up; then the commands, and the rest.
impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "calls {} (acquired {}, of which {:.1} % after waiting; refused {}; timed out {}; \
             cancelled {}; failed {}), commands to acquire {}, released {}, too late {}, lost {}, \
             renewed {}, not renewed {}, wakes {} ({} spurious)",
            self.calls(),
            self.acquired(),
            self.contention_rate() * 100.0,
            self.refused,
            self.timed_out,
            self.cancelled,
            self.failed,
            self.attempts,
            self.released,
            self.released_too_late,
            self.lost(),
            self.renewals_ok,
            self.renewals_failed,
            self.wakes,
            self.spurious_wakes
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn sums_of_the_largest_counts_do_not_overflow() {
        let mut totals = Totals::default();
        let names: Vec<_> = totals.fields().map(|(name, _)| name).collect();
        for name in names {
            *totals.field(name.as_bytes()).unwrap() = u64::MAX;
        }
        let sums = [totals.calls(), totals.acquired(), totals.lost()];
        assert_eq!(sums, [u64::MAX; 3]);
        assert_eq!(totals.contention_rate(), 1.0);
        assert!(!totals.to_string().is_empty());
    }

    #[test]
    fn every_field_is_found_by_its_name() {
        let mut totals = Totals::default();
        let names: Vec<_> = totals.fields().map(|(name, _)| name).collect();
        assert_eq!(names.first(), Some(&"attempts"));
        for (n, name) in (1..).zip(&names) {
            *totals.field(name.as_bytes()).unwrap() = n;
        }
        assert!(totals.fields().map(|(_, n)| n).eq(1..=names.len() as u64));
        assert_eq!(totals.field(b"unheard_of"), None);
        let one = Totals {
            refused: 1,
            ..Totals::default()
        };
        assert_eq!(totals.since(&one).refused, totals.refused - 1);
        assert_eq!(one.since(&totals), Totals::default());
    }
}
