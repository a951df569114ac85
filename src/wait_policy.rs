//! How a waiter waits: woken by the release, or retrying after growing pauses.

use std::time::Duration;

use crate::error::Error;
use crate::random;

/// How a call that waits for a lock learns that the lock may be free.
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Backoff, WaitPolicy};
///
/// let pauses = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
/// let without_pub_sub = WaitPolicy::Backoff(pauses);
/// assert_eq!(WaitPolicy::default(), WaitPolicy::Wake);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum WaitPolicy {
    /// The release wakes the waiter, through Redis pub/sub. The default.
    ///
    /// A waiter with a place in a [queue](crate::guide::waiting) also refreshes it every 0.9 s, or
    /// more often if the ttl is shorter than 4 s. If Redis forbids pub/sub (the user may not
    /// subscribe, or the service has no pub/sub), waiters retry after pauses instead.
    ///
    /// The waiter sleeps until then. While other programs keep all processors busy, it gets one
    /// only after up to several ms, and the lock is idle for that time: see
    /// [the limitations](crate::guide::guarantees#limitations).
    #[default]
    Wake,
    /// The waiter retries after growing pauses, without pub/sub.
    ///
    /// A release within the same client still wakes it at once. Waiters of the same client with
    /// [`Wake`](Self::Wake) do not wait for the end of such a pause, and can overtake this waiter.
    /// On busy processors this policy is no faster than `Wake`: a waiter with a place in a queue
    /// gets the lock in its turn, and must run to take it.
    ///
    /// In a [queue](crate::guide::waiting) no pause is longer than the time between two refreshes
    /// of a place, at most 0.9 s. A longer `max` has no effect there, and the
    /// [attempts](Backoff::attempts) are used up sooner.
    Backoff(Backoff),
}

/// Pauses that double from `base` to `max`, each shortened at random by up to the share `jitter`.
///
/// The first call that locks fails with [`Error::Config`] unless `base` is longer than zero, `max`
/// is at least `base`, the jitter is from 0 to 1, and the number of attempts is at least 1.
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Backoff, WaitPolicy};
///
/// let patient = Backoff::new(Duration::from_millis(20), Duration::from_secs(2)).attempts(10);
/// let policy = WaitPolicy::Backoff(patient);
/// # let _ = policy;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    jitter: f64,
    attempts: Option<u32>,
}

impl Backoff {
    /// Returns pauses of `base`, twice `base`, and so on up to `max`.
    ///
    /// The jitter is 0.5, and the number of attempts is unlimited.
    ///
    /// ```
    /// use std::time::Duration;
    /// use leasehold::Backoff;
    ///
    /// // Pauses of at most 50, 100, 200, 400, 500, 500, … ms.
    /// let pauses = Backoff::new(Duration::from_millis(50), Duration::from_millis(500));
    /// ```
    pub const fn new(base: Duration, max: Duration) -> Self {
        Self {
            base,
            max,
            jitter: 0.5,
            attempts: None,
        }
    }

    /// Sets the share of each pause that is random, from 0 (none) to 1 (all). Defaults to 0.5.
    ///
    /// Without jitter, waiters that were refused at the same time would retry at the same time.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::Backoff;
    /// // The second pause lasts 75 to 100 ms.
    /// let pauses = Backoff::new(Duration::from_millis(50), Duration::from_secs(2)).jitter(0.25);
    /// ```
    #[must_use]
    pub const fn jitter(mut self, share: f64) -> Self {
        self.jitter = share;
        self
    }

    /// Sets the number of refusals after which a waiting call gives up. Defaults to no limit.
    ///
    /// After the last refusal the `try_` calls return [`Taken`](crate::Taken), and the others, such
    /// as `lock`, fail with [`Error::AttemptsUsedUp`]. An attempt without a reply from Redis does
    /// not count.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::Backoff;
    /// // Gives up after the third refusal.
    /// let pauses = Backoff::new(Duration::from_millis(50), Duration::from_secs(2)).attempts(3);
    /// ```
    #[must_use]
    pub const fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = Some(attempts);
        self
    }

    pub(crate) const fn limit(&self) -> Option<u32> {
        self.attempts
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let problem = if self.base.is_zero() {
            "base must be longer than zero"
        } else if self.max < self.base {
            "max must not be shorter than base"
        } else if !(0.0..=1.0).contains(&self.jitter) {
            "jitter must be between 0 and 1"
        } else if self.attempts == Some(0) {
            "attempts must be at least 1"
        } else {
            return Ok(());
        };
        Err(Error::Config(format!("backoff: {problem}")))
    }

    /// Returns `base` doubled `failures` times, at most `max`, less the jitter.
    ///
    /// `chance` is a random number from 0 to 1.
    fn pause_at(&self, failures: u32, chance: f64) -> Duration {
        let doubled = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
        shortened(
            self.base.saturating_mul(doubled).min(self.max),
            self.jitter * chance,
        )
    }

    pub(crate) fn pause(&self, failures: u32) -> Duration {
        self.pause_at(failures, random::chance())
    }
}

/// Pauses between attempts to connect to a server, and between tries of a command that failed.
pub(crate) const RECONNECT: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_millis(500)).jitter(0.3);

/// The pauses of a lock that nobody is known to have: long enough for one of several calls to
/// finish before the next ones try.
pub(crate) const BUSY: Backoff =
    Backoff::new(Duration::from_millis(5), Duration::from_millis(100)).jitter(0.9);

/// Pauses between attempts to connect to a server that accepts connections and does not reply. Its
/// clients may be too many for it: long pauses of different lengths.
pub(crate) const SILENCE: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_secs(3)).jitter(0.5);

/// Pauses between connections that end soon after they were made.
pub(crate) const SHORT_LIVED: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_secs(5)).jitter(0.3);

/// A connection that has lived for this long is no short-lived one.
pub(crate) const LIVES: Duration = Duration::from_secs(5);

/// Returns `whole` shortened at random by up to a quarter.
///
/// Threads that went to sleep together then wake at different times.
pub(crate) fn jittered(whole: Duration) -> Duration {
    shortened(whole, 0.25 * random::chance())
}

/// Returns `whole` less `share` of it, and at most a year.
fn shortened(whole: Duration, share: f64) -> Duration {
    // `Duration::MAX.mul_f64(1.0)` panics: the conversion to `f64` rounds it up.
    const A_YEAR: Duration = Duration::from_secs(365 * 86_400);
    let whole = whole.min(A_YEAR);
    whole.saturating_sub(whole.mul_f64(share))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let backoff = Backoff::new(ms(50), ms(500)).jitter(0.0);
        let pauses: Vec<_> = (0..6).map(|n| backoff.pause_at(n, 0.9)).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 500, 500].map(ms));
        assert_eq!(backoff.pause_at(4_000_000, 0.0), ms(500));
        let endless = Backoff::new(Duration::MAX, Duration::MAX).jitter(0.0);
        assert!(endless.pause_at(9, 0.0) > ms(86_400_000));
        assert!(jittered(Duration::MAX) > ms(86_400_000));
    }

    #[test]
    fn jitter_only_shortens() {
        let backoff = Backoff::new(ms(100), ms(100)).jitter(0.5);
        assert_eq!(backoff.pause_at(0, 0.0), ms(100));
        assert_eq!(backoff.pause_at(0, 1.0), ms(50));
        for _ in 0..100 {
            assert!((ms(750)..=ms(1000)).contains(&jittered(ms(1000))));
        }
    }

    #[test]
    fn invalid_backoffs_are_rejected() {
        assert!(Backoff::new(ms(0), ms(1)).check().is_err());
        assert!(Backoff::new(ms(2), ms(1)).check().is_err());
        assert!(Backoff::new(ms(1), ms(1)).jitter(f64::NAN).check().is_err());
        assert!(Backoff::new(ms(1), ms(1)).attempts(0).check().is_err());
        assert!(Backoff::new(ms(1), Duration::MAX).check().is_ok());
    }
}
