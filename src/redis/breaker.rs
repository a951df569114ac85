//! The circuit breaker: whether calls go to a server that keeps failing. No I/O.
//!
//! ```text
//!            `after` failures in a row
//! +--------+ -------------------------> +------+  one call or probe at a time is admitted,
//! | closed |                            | open |  at most one in a second
//! +--------+ <------------------------- +------+
//!                an answered write
//! ```

use std::time::Duration;

use crate::clock::Instant;

/// While the breaker is open, at most one call or probe starts in this time.
const EVERY: Duration = Duration::from_secs(1);

/// When to ask again while the admitted call is on its way for longer than that.
const BUSY: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Breaker {
    /// Consecutive failures that open it; zero disables it.
    after: u32,
    /// How many calls in a row have failed.
    pub(super) failures: u32,
    /// When the next call may start; `None` while it is closed.
    next: Option<Instant>,
    /// An admitted call is on its way.
    is_busy: bool,
}

impl Breaker {
    pub(super) const fn new(after: u32) -> Self {
        Self {
            after,
            failures: 0,
            next: None,
            is_busy: false,
        }
    }

    /// Admits a call, or returns how long to wait before asking again. Returns true if the caller
    /// must call [`ended`](Self::ended) when the call has ended.
    pub(super) fn admit(&mut self, now: Instant) -> Result<bool, Duration> {
        match self.retry_in(now) {
            None => Ok(false),
            Some(Duration::ZERO) => {
                self.next = Some(now.after(EVERY));
                self.is_busy = true;
                Ok(true)
            }
            Some(retry_in) => Err(retry_in),
        }
    }

    /// Records the end of an admitted call, whatever its outcome.
    pub(super) fn ended(&mut self) {
        self.is_busy = false;
    }

    /// Counts a failure. Returns true if this opened a closed breaker.
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        self.failures = self.failures.saturating_add(1);
        let opens = !self.is_open() && self.after > 0 && self.failures >= self.after;
        if opens {
            self.next = Some(now.after(EVERY));
        }
        opens
    }

    /// Closes the breaker after an answered write. Returns true if it was open.
    pub(super) fn succeeded(&mut self) -> bool {
        self.failures = 0;
        self.next.take().is_some()
    }

    pub(super) fn is_open(&self) -> bool {
        self.next.is_some()
    }

    /// The time in which no call is admitted; `None` if closed.
    pub(super) fn retry_in(&self, now: Instant) -> Option<Duration> {
        let retry_in = now.until(self.next?);
        Some(if self.is_busy {
            retry_in.max(BUSY)
        } else {
            retry_in
        })
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
    fn five_failures_open_it_and_an_answer_closes_it() {
        let mut breaker = failed(4);
        assert_eq!(breaker.admit(at(0)), Ok(false));
        assert!(breaker.failed(at(0)), "the fifth opens it");
        assert_eq!(breaker.admit(at(0)), Err(EVERY));
        assert!(breaker.succeeded());
        assert!(breaker.admit(at(0)) == Ok(false) && !breaker.is_open());
    }

    #[test]
    fn only_failures_in_a_row_open_it() {
        let mut breaker = failed(4);
        assert!(!breaker.succeeded(), "it was not open");
        for _ in 0..4 {
            assert!(!breaker.failed(at(0)));
        }
        assert!(!breaker.is_open());
    }

    #[test]
    fn one_call_starts_in_a_second() {
        let mut breaker = failed(5);
        for second in 1..9 {
            let now = second * 1_000;
            assert_eq!(breaker.admit(at(now)), Ok(true));
            breaker.ended();
            assert!(breaker.admit(at(now + 999)).is_err());
            assert!(!breaker.failed(at(now)), "it was open");
        }
    }

    #[test]
    fn one_call_is_on_its_way_at_a_time() {
        let mut breaker = failed(5);
        assert_eq!(breaker.admit(at(1_000)), Ok(true));
        assert_eq!(breaker.admit(at(9_000)), Err(BUSY));
        breaker.ended();
        assert_eq!(breaker.admit(at(9_000)), Ok(true));
    }

    #[test]
    fn zero_failures_disable_it() {
        let mut breaker = Breaker::new(0);
        for _ in 0..100 {
            assert!(!breaker.failed(at(0)));
        }
        assert_eq!(breaker.admit(at(0)), Ok(false));
    }
}
