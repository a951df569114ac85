//! The circuit breaker: whether calls go to a server that keeps failing. No I/O.
//!
//! ```text
//!              `after` failures in a row           the pause is over: one call is admitted
//! +--------+ -----------------------------> +------+ --------------------------> +---------+
//! | closed |                                | open |                             | probing |--+
//! +--------+ <----------------------------- +------+ <-------------------------- +---------+  |
//!     ^           a valid reply                           a failure: a longer pause    |  ^   |
//!     +--------------------------------------------------------------------------------+  +---+
//!                               a valid reply                       no outcome for PROBE:
//!                                                                   another call is admitted
//! ```
//!
//! A probing call that could not be sent leaves the breaker open, with its pause over.

use std::time::Duration;

use crate::clock::Instant;
use crate::wait_policy::Backoff;

/// How long the breaker stays open. Doubles, up to 30 s, each time a call fails while one probes.
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
    /// No call is admitted until this time.
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

    /// Admits a call and returns whether it probes, or returns how long to wait before asking
    /// again.
    pub(super) fn admit(&mut self, now: Instant) -> Result<bool, Duration> {
        match self.state {
            State::Closed => Ok(false),
            State::Open(until) | State::Probing(until) if now < until => Err(now.until(until)),
            State::Open(_) | State::Probing(_) => {
                self.state = State::Probing(now.after(PROBE));
                Ok(true)
            }
        }
    }

    /// Records at `now` that the probing call was not sent: the next call may probe in its place.
    pub(super) fn withdraw(&mut self, now: Instant) {
        if let State::Probing(_) = self.state {
            self.state = State::Open(now);
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

    /// The remaining time in which no call is admitted; `None` if closed.
    pub(super) fn retry_in(&self, now: Instant) -> Option<Duration> {
        match self.state {
            State::Closed => None,
            State::Open(until) | State::Probing(until) => Some(now.until(until)),
        }
    }
}

#[cfg(test)]
mod tests;
