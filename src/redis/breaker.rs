//! The circuit breaker: whether calls go to a server that keeps failing. No I/O.
//!
//! ```text
//!              `after` failures in a row           the pause is over: one call is admitted
//! +--------+ -----------------------------> +------+ --------------------------> +---------+
//! | closed |                                | open |                             | probing |--+
//! +--------+ <----------------------------- +------+ <-------------------------- +---------+  |
//!     ^             any reply                             a failure: a longer pause    |  ^   |
//!     +--------------------------------------------------------------------------------+  +---+
//!                                 any reply                         no outcome for PROBE:
//!                                                                   another call is admitted
//! ```

use std::time::Duration;

use crate::clock::Instant;
use crate::wait_policy::Backoff;

/// How long the breaker stays open. Doubles, up to 30 s, each time the probing call fails too.
const OPEN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30)).jitter(0.2);

/// After this time without an outcome of the probing call, another call may probe.
const PROBE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Breaker {
    /// Consecutive failures that open it; zero disables it.
    after: u32,
    failures: u32,
    /// How many times it has opened since it was last closed.
    opened: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    /// Calls fail at once until this time.
    Open(Instant),
    /// One call may probe the server; its outcome is expected by this time.
    Probing(Instant),
}

impl Breaker {
    pub(super) const fn new(after: u32) -> Self {
        Self {
            after,
            failures: 0,
            opened: 0,
            state: State::Closed,
        }
    }

    /// Admits a call, or returns how long to wait before asking again.
    pub(super) fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        match self.state {
            State::Closed => Ok(()),
            State::Open(until) | State::Probing(until) if now < until => Err(now.until(until)),
            State::Open(_) | State::Probing(_) => {
                self.state = State::Probing(now.after(PROBE));
                Ok(())
            }
        }
    }

    /// Counts a failed call. Returns true if this opened a closed breaker.
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        self.failures = self.failures.saturating_add(1);
        let opens = match self.state {
            State::Closed => self.after > 0 && self.failures >= self.after,
            State::Probing(_) => true,
            // A call that was sent before it opened, or one that bypasses the breaker.
            State::Open(_) => false,
        };
        if opens {
            self.state = State::Open(now.after(OPEN.pause(self.opened)));
            self.opened = self.opened.saturating_add(1);
        }
        opens && self.opened == 1
    }

    /// Closes the breaker after a reply. Returns true if it was open.
    pub(super) fn succeeded(&mut self) -> bool {
        let was_open = self.is_open();
        *self = Self::new(self.after);
        was_open
    }

    /// The number of consecutive failures.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    pub(super) fn is_open(&self) -> bool {
        self.state != State::Closed
    }

    /// The remaining time in which calls fail at once; `None` if closed.
    pub(super) fn retry_in(&self, now: Instant) -> Option<Duration> {
        match self.state {
            State::Closed => None,
            State::Open(until) | State::Probing(until) => Some(now.until(until)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::START.after(Duration::from_millis(ms))
    }

    fn failed(times: u32) -> Breaker {
        let mut breaker = Breaker::new(5);
        for _ in 0..times {
            breaker.failed(at(0));
        }
        breaker
    }

    #[test]
    fn five_failures_open_it_and_a_reply_closes_it() {
        let mut breaker = failed(4);
        assert!(breaker.admit(at(0)).is_ok());
        assert!(breaker.failed(at(0)), "the fifth opens it");
        let retry_in = breaker.admit(at(0)).unwrap_err();
        assert!(retry_in >= Duration::from_millis(800) && retry_in <= Duration::from_secs(1));
        assert!(breaker.admit(at(1_000)).is_ok(), "one call probes");
        assert!(breaker.admit(at(1_000)).is_err(), "no other call meanwhile");
        assert!(breaker.succeeded());
        assert!(breaker.admit(at(1_000)).is_ok() && !breaker.is_open());
    }

    #[test]
    fn a_success_resets_the_count() {
        let mut breaker = failed(4);
        assert!(!breaker.succeeded(), "it was not open");
        for _ in 0..4 {
            assert!(!breaker.failed(at(0)));
        }
        assert!(!breaker.is_open());
    }

    #[test]
    fn breaker_stays_open_twice_as_long_each_time_up_to_a_limit() {
        let mut breaker = failed(5);
        let mut now = at(0);
        let mut waits = Vec::new();
        for _ in 0..8 {
            let wait = breaker.admit(now).unwrap_err();
            waits.push(wait.as_millis());
            now = now.after(wait);
            assert!(breaker.admit(now).is_ok());
            breaker.failed(now);
        }
        let doubles = [1, 2, 4, 8, 16, 30, 30, 30].map(|seconds| seconds * 1_000);
        for (wait, double) in waits.iter().zip(doubles) {
            assert!(*wait <= double && *wait >= double * 8 / 10, "{waits:?}");
        }
    }

    #[test]
    fn failures_of_calls_that_bypass_it_do_not_prolong_it() {
        let mut breaker = failed(5);
        let before = breaker.retry_in(at(0));
        for _ in 0..100 {
            assert!(!breaker.failed(at(10)));
        }
        assert_eq!(breaker.retry_in(at(0)), before);
    }

    #[test]
    fn a_probe_without_an_outcome_is_followed_by_another() {
        let mut breaker = failed(5);
        assert!(breaker.admit(at(1_000)).is_ok());
        assert!(breaker.admit(at(2_999)).is_err());
        assert!(breaker.admit(at(3_000)).is_ok());
    }

    #[test]
    fn zero_never_opens() {
        let mut breaker = Breaker::new(0);
        for _ in 0..100 {
            assert!(!breaker.failed(at(0)));
        }
        assert!(breaker.admit(at(0)).is_ok());
    }
}
