//! Decides when to dial a server, and what to do about a dialer that hangs. No I/O.
//!
//! A dialer is a thread that makes connections. Its states:
//!
//! ```text
//!           start            begin: true, for each connection and each pause
//!   (none) -------> working <--+
//!                    |  |  |   |
//!                    |  |  +---+
//!                    |  +--- stop ---> ended
//!                    |
//!                    | start of another dialer, because this one hangs;
//!                    | abandon_current, because another server has taken over
//!                    v
//!                 abandoned --- begin: false ---> ended
//! ```

use std::time::Duration;

use crate::clock::Instant;
use crate::error::Cause;
use crate::wait_policy::{LIVES, RECONNECT, SHORT_LIVED, SILENCE};

/// While this many abandoned dialers have not returned, a dialer that hangs is not replaced.
///
/// Each is a blocked thread: a DNS server that does not reply blocks a dialer for 10 s or more.
const MOST_ABANDONED: usize = 8;

/// The longest time in which a server must reply to a log-on, unless the user sets a longer one.
const LONGEST_LIMIT: Duration = Duration::from_secs(30);

/// How many times as long a server has to reply after each silence.
///
/// A server logs on the connections that were given up, too. With a factor of 2, each try stands
/// behind all earlier ones, and most are given up again.
const GROWTH: u32 = 8;

/// Why no connection could be made.
#[derive(Clone, Debug)]
pub(crate) struct ConnectError {
    pub(crate) cause: Cause,
    /// The failure lasts until a setting is changed, for example a wrong password.
    pub(crate) is_final: bool,
    /// The server or the network caused the failure, not a caller with too little time.
    pub(crate) is_servers_fault: bool,
    /// The peer had accepted the connection, and did not reply in time.
    pub(crate) is_unanswered: bool,
}

impl ConnectError {
    /// A failure that says nothing about the server.
    pub(super) const fn of_client(cause: Cause) -> Self {
        Self::passing(cause, false)
    }

    /// A failure of the server or the network, which may pass.
    pub(super) const fn of_server(cause: Cause) -> Self {
        Self::passing(cause, true)
    }

    const fn passing(cause: Cause, is_servers_fault: bool) -> Self {
        Self {
            cause,
            is_final: false,
            is_servers_fault,
            is_unanswered: false,
        }
    }

    /// Returns whether the calls that wait for a connection fail with this error at once.
    ///
    /// They do if waiting cannot help: a peer that speaks another protocol does not become a Redis
    /// in the meantime.
    pub(super) fn ends_waits(&self) -> bool {
        self.is_final || self.cause.is_not_redis()
    }
}

/// The state of dialing one server. One dialer works at a time; one that hangs is abandoned, and
/// another replaces it.
#[derive(Debug, Default)]
pub(super) struct Dialing {
    /// The number of the working dialer, and when it began its current connection or when its
    /// current pause ends.
    current: Option<(u64, Instant)>,
    /// The number of the dialer that was started last.
    number: u64,
    /// How many abandoned dialers have not returned.
    abandoned: usize,
    /// How many attempts in a row have failed.
    failures: u32,
    /// After how many attempts the peer had accepted a connection, and did not reply in time, since
    /// it last did anything else.
    silences: u32,
    /// When a connection was made; `None` once a write was answered since, or one was closed.
    unproven_since: Option<Instant>,
    /// How many connections were closed soon, without an answered write in between.
    short_lived: u32,
    /// When the pause after a failure ends. It applies to all callers, so that a restarting server
    /// is not flooded.
    not_before: Option<Instant>,
    /// The last failure, until a connection is made or another server takes over.
    pub(super) failure: Option<ConnectError>,
    /// How many attempts have failed in all.
    pub(super) failed_times: u64,
}

impl Dialing {
    /// Returns how long the next connection may take. That grows as long as the server accepts
    /// connections and does not reply: with too many clients, each connection that it has waiting
    /// would otherwise be given up, and begin again at the end of its line.
    pub(super) fn limit(&self, connect_timeout: Duration) -> Duration {
        let grown = connect_timeout.saturating_mul(GROWTH.saturating_pow(self.silences));
        grown.min(LONGEST_LIMIT.max(connect_timeout))
    }

    /// Returns whether a dialer must start: none is working, or the current one hangs and may be
    /// replaced. A dialer hangs if one connection takes longer than `limit`.
    pub(super) fn needs_dialer(&self, now: Instant, limit: Duration) -> bool {
        match self.current {
            None => true,
            Some((_, since)) => since.until(now) > limit && self.abandoned < MOST_ABANDONED,
        }
    }

    /// Records the start of a dialer, which replaces the current one. Returns its number.
    pub(super) fn start(&mut self, now: Instant) -> u64 {
        if self.current.is_some() {
            self.abandoned += 1;
        }
        self.number += 1;
        self.current = Some((self.number, now));
        self.number
    }

    /// Abandons the working dialer and forgets the failures, because another server has taken over.
    pub(super) fn abandon_current(&mut self) {
        if self.current.take().is_some() {
            self.abandoned += 1;
        }
        self.forget_failures();
        self.proven();
    }

    /// Records that the dialer `number` begins a connection or a pause.
    ///
    /// Returns false if the dialer was abandoned, even before it first ran. It then counts as
    /// returned, and must end.
    pub(super) fn begin(&mut self, number: u64, now: Instant) -> bool {
        if self.is_current(number) {
            self.current = Some((number, now));
            return true;
        }
        self.abandoned -= 1;
        false
    }

    /// Returns whether the dialer `number` is the working one: only the failures of that one count.
    pub(super) fn is_current(&self, number: u64) -> bool {
        self.current.is_some_and(|(current, _)| current == number)
    }

    /// Records that the working dialer ends, or that its thread could not be started.
    pub(super) fn stop(&mut self) {
        self.current = None;
    }

    /// Returns how long the next connection must wait after failures. During that pause the working
    /// dialer does not count as hanging.
    pub(super) fn pause(&mut self, now: Instant) -> Duration {
        let Some(at) = self.not_before else {
            return Duration::ZERO;
        };
        if let Some((_, since)) = &mut self.current {
            *since = now.max(at);
        }
        now.until(at)
    }

    /// Records that the working dialer has nothing to do until then. It does not count as hanging.
    pub(super) fn rests_until(&mut self, at: Instant) {
        if let Some((_, since)) = &mut self.current {
            *since = at;
        }
    }

    fn forget_failures(&mut self) {
        self.failures = 0;
        self.silences = 0;
        self.not_before = None;
        self.failure = None;
    }

    /// Records that a connection was made.
    pub(super) fn connected(&mut self, now: Instant) {
        self.forget_failures();
        self.unproven_since.get_or_insert(now);
    }

    /// Records that a write was answered: the connections are of use.
    pub(super) fn proven(&mut self) {
        self.unproven_since = None;
        self.short_lived = 0;
    }

    /// Records that the peer has closed a connection. If that happens again and again soon after it
    /// was made, and without an answered write, the next connection waits.
    pub(super) fn closed(&mut self, now: Instant, failure: ConnectError) {
        let Some(since) = self.unproven_since.take() else {
            return;
        };
        if since.until(now) >= LIVES {
            self.short_lived = 0;
            return;
        }
        if let Some(n) = self.short_lived.checked_sub(1) {
            self.not_before = Some(now.after(SHORT_LIVED.pause(n)));
            self.failure = Some(failure);
        }
        self.short_lived = self.short_lived.saturating_add(1);
    }

    pub(crate) fn failed(&mut self, now: Instant, failure: ConnectError) {
        let pause = if failure.is_unanswered {
            SILENCE.pause(self.silences)
        } else {
            RECONNECT.pause(self.failures)
        };
        if failure.is_unanswered {
            self.silences = self.silences.saturating_add(1);
        } else if !failure.cause.is_silence() {
            self.silences = 0;
        }
        self.not_before = Some(now.after(pause));
        self.failures = self.failures.saturating_add(1);
        self.failure = Some(failure);
        self.failed_times += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    fn at(seconds: u64) -> Instant {
        Instant::START.after(Duration::from_secs(seconds))
    }

    fn refused() -> ConnectError {
        ConnectError {
            cause: Cause::text("refused"),
            is_final: false,
            is_servers_fault: true,
            is_unanswered: false,
        }
    }

    #[test]
    fn one_dialer_works_at_a_time() {
        let mut dialing = Dialing::default();
        assert!(dialing.needs_dialer(at(0), LIMIT));
        let number = dialing.start(at(0));
        assert!(!dialing.needs_dialer(at(1), LIMIT));
        assert!(dialing.begin(number, at(0)));
        dialing.connected(at(0));
        dialing.stop();
        assert!(dialing.needs_dialer(at(1), LIMIT));
    }

    #[test]
    fn hanging_dialers_are_abandoned_up_to_a_limit() {
        let mut dialing = Dialing::default();
        let first = dialing.start(at(0));
        let mut now = 0;
        for _ in 0..MOST_ABANDONED {
            now += 3;
            assert!(dialing.needs_dialer(at(now), LIMIT));
            dialing.start(at(now));
        }
        assert!(
            !dialing.needs_dialer(at(now + 3), LIMIT),
            "the limit of abandoned dialers is reached"
        );
        assert!(!dialing.begin(first, at(now + 3)));
        assert!(dialing.needs_dialer(at(now + 3), LIMIT));
    }

    #[test]
    fn a_dialer_that_pauses_does_not_hang() {
        let mut dialing = Dialing::default();
        let number = dialing.start(at(0));
        for _ in 0..10 {
            dialing.failed(at(0), refused());
        }
        assert!(dialing.begin(number, at(0)));
        let pause = dialing.pause(at(0));
        let limit = pause / 4;
        assert!(!dialing.needs_dialer(at(0).after(pause), limit));
        assert!(dialing.needs_dialer(at(0).after(pause * 2), limit));
    }

    #[test]
    fn after_a_takeover_a_new_dialer_starts_without_a_pause() {
        let mut dialing = Dialing::default();
        let before = dialing.start(at(0));
        dialing.failed(at(0), refused());
        dialing.abandon_current();
        assert!(dialing.needs_dialer(at(0), LIMIT));
        assert_eq!(dialing.pause(at(0)), Duration::ZERO);
        let after = dialing.start(at(0));
        assert!(!dialing.begin(before, at(0)));
        assert!(dialing.begin(after, at(0)));
    }

    #[test]
    fn abandoned_dialer_counts_until_it_returns() {
        let mut dialing = Dialing::default();
        for _ in 0..2 * MOST_ABANDONED {
            let number = dialing.start(at(0));
            dialing.abandon_current();
            assert!(!dialing.begin(number, at(0)));
            assert!(dialing.needs_dialer(at(0), LIMIT));
        }
        let hanging = dialing.start(at(0));
        assert!(dialing.needs_dialer(at(3), LIMIT));
        assert!(dialing.begin(hanging, at(3)) && dialing.is_current(hanging));
    }

    #[test]
    fn failures_are_followed_by_growing_pauses() {
        let mut dialing = Dialing::default();
        dialing.failed(at(0), refused());
        let first = dialing.pause(at(0));
        assert!(first > Duration::ZERO && first <= Duration::from_millis(50));
        for _ in 0..10 {
            dialing.failed(at(0), refused());
        }
        assert!(dialing.pause(at(0)) > first && dialing.pause(at(0)) <= Duration::from_millis(500));
        assert!(dialing.failure.is_some());
        dialing.connected(at(0));
        assert_eq!(dialing.pause(at(0)), Duration::ZERO);
        assert!(dialing.failure.is_none());
    }

    #[test]
    fn connections_that_are_closed_soon_are_followed_by_growing_pauses() {
        let mut dialing = Dialing::default();
        let mut made_and_closed = |made, closed| {
            dialing.connected(at(made));
            dialing.closed(at(closed), refused());
            dialing.pause(at(closed))
        };
        assert_eq!(made_and_closed(0, 0), Duration::ZERO, "the first one");
        let first = made_and_closed(0, 0);
        assert!(first > Duration::ZERO && first <= Duration::from_millis(50));
        let longest = (0..10).map(|_| made_and_closed(0, 0)).max().unwrap();
        assert!(longest > Duration::from_secs(3) && longest <= Duration::from_secs(5));
        assert_eq!(
            made_and_closed(1, 7),
            Duration::ZERO,
            "it has lived for 6 s"
        );
        for _ in 0..10 {
            made_and_closed(8, 8);
        }
        dialing.connected(at(9));
        dialing.proven();
        dialing.closed(at(9), refused());
        assert_eq!(dialing.pause(at(9)), Duration::ZERO, "a write was answered");
    }

    #[test]
    fn limit_grows_only_while_the_server_accepts_and_does_not_reply() {
        let mut dialing = Dialing::default();
        let mut fails = |cause, is_unanswered| {
            let failure = ConnectError {
                cause,
                is_unanswered,
                ..refused()
            };
            dialing.failed(at(0), failure);
            (dialing.limit(LIMIT).as_secs(), dialing.pause(at(0)))
        };
        let no_tcp = || Cause::silence("no connection in 1 s");
        let mut silent = |_| fails(no_tcp(), true);
        let grown: Vec<_> = (0..40).map(&mut silent).collect();
        let limits: Vec<_> = grown.iter().map(|(limit, _)| *limit).collect();
        assert_eq!(limits[..3], [16, 30, 30]);
        assert_eq!(limits[39], 30);
        let longest = grown.iter().map(|(_, pause)| *pause).max().unwrap();
        assert!(longest > Duration::from_millis(1_500) && longest <= Duration::from_secs(3));
        let (limit, pause) = fails(no_tcp(), false);
        assert!(
            limit == 30 && pause <= Duration::from_millis(500),
            "{pause:?}"
        );
        let (limit, pause) = fails(Cause::text("refused"), false);
        assert!(
            limit == 2 && pause <= Duration::from_millis(500),
            "{pause:?}"
        );
        let longer = Duration::from_secs(60);
        assert_eq!(Dialing::default().limit(longer), longer);
    }
}
