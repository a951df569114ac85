//! Whether to make a connection to a server now, and what to do about a dialer that hangs. No I/O.

use std::time::Duration;

use crate::clock::Instant;
use crate::error::Cause;
use crate::wait_policy::RECONNECT;

/// A name server that says nothing holds a dialer for 10 s and more. So many may hang before a
/// further one waits for one of them.
const LEFT_BEHIND: usize = 8;

/// Why there is no connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectError {
    pub(crate) cause: Cause,
    /// It stays so until somebody changes a setting, as after a wrong password.
    pub(crate) is_final: bool,
    /// The server or the network is the reason, and not that the caller had little time.
    pub(crate) is_the_servers: bool,
}

/// How the dialing of one server stands. One dialer is at work at a time; one that hangs is left
/// behind, and another takes its place.
#[derive(Debug, Default)]
pub(crate) struct Dialing {
    /// The dialer at work: its number, and since when it has been at this connection.
    current: Option<(u64, Instant)>,
    number: u64,
    left_behind: usize,
    failures: u32,
    /// The end of the pause after a failure, for all who want a connection: a server that restarts
    /// is not stormed.
    not_before: Option<Instant>,
    failure: Option<ConnectError>,
    /// How often dialing has failed.
    pub(crate) failed_times: u64,
}

impl Dialing {
    /// Whether another dialer is to be started; each connection should take no longer than `limit`.
    pub(crate) fn needs_dialer(&self, now: Instant, limit: Duration) -> bool {
        match self.current {
            None => true,
            Some((_, since)) => since.until(now) > limit && self.left_behind < LEFT_BEHIND,
        }
    }

    pub(crate) fn is_at_work(&self) -> bool {
        self.current.is_some()
    }

    /// A dialer takes the place of the one before; returns its number.
    pub(crate) fn start(&mut self, now: Instant) -> u64 {
        if self.current.is_some() {
            self.left_behind += 1;
        }
        self.number += 1;
        self.current = Some((self.number, now));
        self.number
    }

    /// There is another server to go to: the dialer at work is left behind, and no pause is made.
    pub(crate) fn leave_behind(&mut self) {
        if self.current.take().is_some() {
            self.left_behind += 1;
        }
        self.succeeded();
    }

    /// The dialer `number` begins a connection.
    pub(crate) fn begin(&mut self, number: u64, now: Instant) {
        self.current = Some((number, now));
    }

    /// The dialer at work has nothing to do any more.
    pub(crate) fn stop(&mut self) {
        self.current = None;
    }

    /// How long the next connection has to wait, after failures.
    pub(crate) fn pause(&self, now: Instant) -> Duration {
        self.not_before.map_or(Duration::ZERO, |at| now.until(at))
    }

    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
        self.not_before = None;
        self.failure = None;
    }

    pub(crate) fn failed(&mut self, now: Instant, failure: ConnectError) {
        self.not_before = Some(now.after(RECONNECT.pause(self.failures)));
        self.failures = self.failures.saturating_add(1);
        self.failure = Some(failure);
        self.failed_times += 1;
    }

    /// The last failure, unless a connection was made since.
    pub(crate) fn failure(&self) -> Option<&ConnectError> {
        self.failure.as_ref()
    }

    /// The dialer `number` has come back. False if it had been left behind, and is to end.
    pub(crate) fn came_back(&mut self, number: u64) -> bool {
        let is_current = self.current.is_some_and(|(current, _)| current == number);
        if !is_current {
            self.left_behind -= 1;
        }
        is_current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    fn at(seconds: u64) -> Instant {
        Instant::START.after(Duration::from_secs(seconds))
    }

    #[test]
    fn smoke() {
        let mut dialing = Dialing::default();
        assert!(dialing.needs_dialer(at(0), LIMIT));
        let number = dialing.start(at(0));
        assert!(!dialing.needs_dialer(at(1), LIMIT));
        assert!(dialing.came_back(number));
        dialing.succeeded();
        dialing.stop();
        assert!(dialing.needs_dialer(at(1), LIMIT));
    }

    #[test]
    fn one_that_hangs_is_left_behind_and_not_too_many() {
        let mut dialing = Dialing::default();
        let first = dialing.start(at(0));
        let mut now = 0;
        for _ in 0..LEFT_BEHIND {
            now += 3;
            assert!(dialing.needs_dialer(at(now), LIMIT));
            dialing.start(at(now));
        }
        assert!(
            !dialing.needs_dialer(at(now + 3), LIMIT),
            "enough of them hang"
        );
        assert!(!dialing.came_back(first));
        assert!(dialing.needs_dialer(at(now + 3), LIMIT));
    }

    #[test]
    fn where_there_is_another_server_nobody_waits_for_the_one_before() {
        let mut dialing = Dialing::default();
        let before = dialing.start(at(0));
        dialing.failed(
            at(0),
            ConnectError {
                cause: Cause::text("refused"),
                is_final: false,
                is_the_servers: true,
            },
        );
        dialing.leave_behind();
        assert!(dialing.needs_dialer(at(0), LIMIT));
        assert_eq!(dialing.pause(at(0)), Duration::ZERO);
        let after = dialing.start(at(0));
        assert!(!dialing.came_back(before));
        assert!(dialing.came_back(after));
    }

    #[test]
    fn failures_are_followed_by_growing_pauses() {
        let mut dialing = Dialing::default();
        let connect_error = ConnectError {
            cause: Cause::text("refused"),
            is_final: false,
            is_the_servers: true,
        };
        dialing.failed(at(0), connect_error.clone());
        let first = dialing.pause(at(0));
        assert!(first > Duration::ZERO && first <= Duration::from_millis(50));
        for _ in 0..10 {
            dialing.failed(at(0), connect_error.clone());
        }
        assert!(dialing.pause(at(0)) > first && dialing.pause(at(0)) <= Duration::from_millis(500));
        assert!(dialing.failure().is_some());
        dialing.succeeded();
        assert_eq!(dialing.pause(at(0)), Duration::ZERO);
        assert!(dialing.failure().is_none());
    }
}
