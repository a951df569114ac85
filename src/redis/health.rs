//! The health of a server, or of a thread that talks to one: its state, last error and circuit
//! breaker.
//!
//! ```text
//! +------+  answered write  +-------+    a call that was not served   +-------+
//! | idle | ---------------> | works | ------------------------------> | fails |
//! +------+                  +-------+ <------------------------------ +-------+
//!    |                                        answered write              ^
//!    +--------------------------------------------------------------------+
//!                        a call that was not served
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::clock::{Instant, wall_time};
use crate::error::Cause;
use crate::health::{BreakerState, HealthPart, HealthState};
use crate::kernel::fault::{Fault, OpenCircuit};
use crate::redis::breaker::Breaker;
use crate::sync::Mutex;

/// The outcomes of calls, recorded by their callers. Only writes count as answers: a server whose
/// writes are paused still answers reads, and grants no lock. Recording a success takes a lock only
/// after a failure.
#[derive(Debug)]
pub(crate) struct ServerHealth {
    /// When the server last answered a write, in ns of [`Instant`]; 0 if never.
    answered: AtomicU64,
    /// A call has failed since the last answer.
    failing: AtomicBool,
    /// The breaker may be open.
    open: AtomicBool,
    detail: Mutex<Detail>,
}

#[derive(Debug)]
struct Detail {
    breaker: Breaker,
    /// When the server last changed between answering and failing.
    since: SystemTime,
    last_error: Option<Cause>,
}

impl ServerHealth {
    pub(crate) fn new(breaker_after: u32) -> Self {
        Self {
            answered: AtomicU64::new(0),
            failing: AtomicBool::new(false),
            open: AtomicBool::new(false),
            detail: Mutex::new(Detail {
                breaker: Breaker::new(breaker_after),
                since: wall_time(),
                last_error: None,
            }),
        }
    }

    /// Admits a call until the admission is dropped, or returns an error while the breaker is open;
    /// `server` is the address for its message.
    pub(super) fn admit(&self, server: &str) -> Result<Admission<'_>, Fault> {
        if !self.open.load(Ordering::Relaxed) {
            return Ok(Admission(None));
        }
        let mut detail = self.detail.lock();
        let admitted = detail.breaker.admit(Instant::now());
        let admission = |must_end: bool| Admission(must_end.then_some(self));
        admitted.map(admission).map_err(|retry_in| {
            Fault::Open(Box::new(OpenCircuit {
                server: server.to_owned(),
                failures: detail.breaker.failures,
                // A breaker opens only on a failure that has a cause.
                last: detail
                    .last_error
                    .clone()
                    .unwrap_or_else(|| Cause::text("no reply")),
                retry_in,
            }))
        })
    }

    /// Returns whether the server has ever answered a write.
    pub(super) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed) > 0
    }

    /// Records the answer to a write at `now`. Returns true if it closed the breaker.
    pub(crate) fn answered(&self, now: Instant) -> bool {
        self.answered.store(now.as_nanos(), Ordering::Relaxed);
        if !self.failing.load(Ordering::Relaxed) {
            return false;
        }
        let mut detail = self.detail.lock();
        if self.failing.swap(false, Ordering::Relaxed) {
            detail.since = wall_time();
        }
        self.open.store(false, Ordering::Relaxed);
        detail.breaker.succeeded()
    }

    /// Returns the last failure, unless a write was answered since.
    pub(crate) fn last_error(&self) -> Option<Cause> {
        let last = || self.detail.lock().last_error.clone();
        self.is_failing().then(last).flatten()
    }

    /// Returns whether the server has answered anything since `start`.
    pub(crate) fn has_answered_since(&self, start: Instant) -> bool {
        self.answered.load(Ordering::Relaxed) >= start.as_nanos()
    }

    /// Records a call without a valid answer. Returns true if it opened the breaker.
    ///
    /// `counts` is whether the failure counts towards the breaker: false if the caller gave the
    /// server too little time.
    pub(crate) fn failed(&self, cause: Option<&Cause>, counts: bool) -> bool {
        let mut detail = self.detail.lock();
        if !self.failing.swap(true, Ordering::Relaxed) {
            detail.since = wall_time();
        }
        if let Some(cause) = cause {
            detail.last_error = Some(cause.clone());
        }
        let opens = counts && detail.breaker.failed(Instant::now());
        self.open.store(detail.breaker.is_open(), Ordering::Relaxed);
        opens
    }

    /// Closes the breaker, because another server has taken over.
    pub(super) fn reset(&self) {
        let mut detail = self.detail.lock();
        self.open.store(false, Ordering::Relaxed);
        detail.breaker.succeeded();
    }

    /// Returns whether nothing has been answered since the last failure.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns whether the breaker is open and admits no call yet.
    pub(super) fn rejects_calls(&self) -> bool {
        let retry_in = || self.detail.lock().breaker.retry_in(Instant::now());
        self.is_open() && retry_in().is_some_and(|retry_in| !retry_in.is_zero())
    }

    /// The state of the breaker for the public report.
    pub(super) fn breaker_state(&self) -> BreakerState {
        self.detail.lock().breaker_state()
    }

    /// The public report.
    pub(crate) fn part(&self, server: &str, latency: Option<Duration>) -> HealthPart {
        let detail = self.detail.lock();
        let state = match (self.is_failing(), self.answered.load(Ordering::Relaxed)) {
            (true, _) => HealthState::Fails,
            (false, 0) => HealthState::Idle,
            (false, _) => HealthState::Works,
        };
        HealthPart {
            server: server.to_owned(),
            state,
            since: detail.since,
            last_error: detail.last_error.as_ref().map(Cause::to_string),
            latency,
            breaker: detail.breaker_state(),
        }
    }
}

/// The permission to make a call.
pub(super) struct Admission<'a>(Option<&'a ServerHealth>);

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        if let Some(health) = self.0 {
            health.detail.lock().breaker.ended();
        }
    }
}

impl Detail {
    fn breaker_state(&self) -> BreakerState {
        let retry_in = self.breaker.retry_in(Instant::now());
        retry_in.map_or(BreakerState::Closed, |retry_in| BreakerState::Open {
            retry_in,
        })
    }
}
