//! How a server, or a thread that talks to it, does: since when it answers or fails, what it said last, and whether calls still go to it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use crate::clock::Instant;
use crate::error::Cause;
use crate::health::{BreakerState, HealthPart, HealthState};
use crate::server::breaker::Breaker;

/// Callers note how their calls went; a success costs no lock.
#[derive(Debug)]
pub(crate) struct Condition {
    /// When it last answered anything, in nanoseconds of our clock.
    answered: AtomicU64,
    /// Something has failed since.
    failing: AtomicBool,
    /// Calls may have to be turned away.
    open: AtomicBool,
    detail: Mutex<Detail>,
}

#[derive(Debug)]
struct Detail {
    breaker: Breaker,
    /// Since when it answers, or fails.
    since: SystemTime,
    trouble: Option<String>,
}

impl Condition {
    pub(crate) fn new(breaker_after: u32) -> Self {
        Self {
            answered: AtomicU64::new(0),
            failing: AtomicBool::new(false),
            open: AtomicBool::new(false),
            detail: Mutex::new(Detail {
                breaker: Breaker::new(breaker_after),
                since: SystemTime::now(),
                trouble: None,
            }),
        }
    }

    /// Errors, with the time to ask again, while calls are to fail at once.
    pub(super) fn admit(&self) -> Result<(), Duration> {
        if self.open.load(Ordering::Relaxed) {
            self.detail.lock().breaker.admit(Instant::now())
        } else {
            Ok(())
        }
    }

    /// It answered something by `now`; true if calls go to it again for that.
    pub(crate) fn answered(&self, now: Instant) -> bool {
        self.answered.store(now.as_nanos(), Ordering::Relaxed);
        if !self.failing.load(Ordering::Relaxed) {
            return false;
        }
        let mut detail = self.detail.lock();
        if self.failing.swap(false, Ordering::Relaxed) {
            detail.since = SystemTime::now();
        }
        self.open.store(false, Ordering::Relaxed);
        detail.breaker.succeeded()
    }

    /// A call got no answer that counts. It is the server's fault if it `counts`, and not the
    /// caller's for having had too little time. True if calls fail at once from now on.
    pub(crate) fn failed(&self, cause: Option<&Cause>, counts: bool) -> bool {
        let mut detail = self.detail.lock();
        if !self.failing.swap(true, Ordering::Relaxed) {
            detail.since = SystemTime::now();
        }
        if let Some(cause) = cause {
            detail.trouble = Some(cause.to_string());
        }
        let opens = counts && detail.breaker.failed(Instant::now());
        self.open.store(detail.breaker.is_open(), Ordering::Relaxed);
        opens
    }

    /// Another server is in its place: what is known of it is over.
    pub(super) fn begin_anew(&self) {
        let mut detail = self.detail.lock();
        detail.breaker.succeeded();
        self.open.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// For how long at `now` it has not answered, for a caller that has asked since `start`; zero
    /// while nothing has failed since the last answer.
    pub(super) fn silent_for(&self, now: Instant, start: Instant) -> Duration {
        if !self.is_failing() {
            return Duration::ZERO;
        }
        let answered = Instant::from_nanos(self.answered.load(Ordering::Relaxed));
        start.max(answered).until(now)
    }

    /// As people are told of it.
    pub(crate) fn part(&self, server: &str, latency: Option<Duration>) -> HealthPart {
        let detail = self.detail.lock();
        let retry_in = detail.breaker.retry_in(Instant::now());
        let state = match (self.is_failing(), self.answered.load(Ordering::Relaxed)) {
            (true, _) => HealthState::Fails,
            (false, 0) => HealthState::Idle,
            (false, _) => HealthState::Works,
        };
        HealthPart {
            server: server.to_owned(),
            state,
            since: detail.since,
            last_error: detail.trouble.clone(),
            latency,
            breaker: retry_in.map_or(BreakerState::Closed, |retry_in| BreakerState::Open {
                retry_in,
            }),
        }
    }
}
