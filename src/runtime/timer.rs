//! The timer thread: keeps every lease's deadline whatever the sockets do, and says what to renew. No I/O.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::clock::{Instant, LONGEST_SLEEP, nap};
use crate::error::Error;
use crate::lease::held::HeldLease;
use crate::lease::schedule::Leases;
use crate::lease::state::RENEWAL_WINDOW;
use crate::runtime::worker::Worker;

pub(crate) struct Timer {
    state: Mutex<State>,
    changed: Condvar,
    worker: Worker,
}

struct State {
    leases: Leases,
    rest: Rest,
    stopping: bool,
    /// Nobody takes out what is armed from now on.
    drained: bool,
}

/// When the thread looks at the leases by itself.
struct Rest {
    /// Until when it sleeps; the start of time while it is awake and will look anyway.
    until: Instant,
    /// When the last who [rang](Timer::ring) will do so again. Others may, too.
    rung_at: Instant,
}

impl Rest {
    /// Whether it misses what is due at `at`; that may wait until `by` if somebody is to ring at `at` or before.
    fn misses(&self, at: Instant, by: Instant) -> bool {
        at < self.until && (at < self.rung_at || by < self.until)
    }

    /// Notes that somebody rings, and will do so `again`. Returns whether it misses what is due `next`, where that is
    /// before then.
    fn ring(&mut self, next: Instant, again: Instant) -> bool {
        self.rung_at = again;
        next < self.until.min(again)
    }
}

impl Default for Timer {
    fn default() -> Self {
        let state = State {
            leases: Leases::default(),
            rest: Rest {
                until: Instant::START,
                rung_at: Instant::NEVER,
            },
            stopping: false,
            drained: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            worker: Worker::new("leasehold-timer"),
        }
    }
}

impl Timer {
    pub(in crate::runtime) fn start<B: Fn() + Send + 'static>(
        &self,
        body: impl FnOnce() -> B,
    ) -> Result<(), Error> {
        self.worker.start(body)
    }

    /// Looks at `hold` at the instant `at`, instead of when it was said before; no later than `by`, if somebody is to ring
    /// from now until `at` and does not.
    pub(crate) fn watch(&self, hold: &Arc<HeldLease>, at: Instant, by: Instant) {
        let mut state = self.state.lock();
        // Its holder may have let go since it was last looked at: then nobody would forget it again.
        if state.drained || !hold.lease(|lease| lease.is_open()) {
            return;
        }
        state.leases.arm(hold, at);
        if state.rest.misses(at, by) {
            self.changed.notify_one();
        }
    }

    /// Has the thread look at what is due before it would wake by itself, but for what the caller will ring for `again`, at
    /// that instant or shortly after.
    pub(crate) fn ring(&self, again: Instant) {
        let mut state = self.state.lock();
        let next = state.leases.next();
        if state.rest.ring(next, again) {
            self.changed.notify_one();
        }
    }

    /// Looks at `hold` no more.
    pub(crate) fn forget(&self, hold: &HeldLease) {
        let forgotten = self.state.lock().leases.disarm(hold);
        // A last reference may own a user's closure: not dropped under the lock.
        drop(forgotten);
    }

    /// Whether any lease is in use.
    pub(crate) fn watches_any(&self) -> bool {
        self.state.lock().leases.next() != Instant::NEVER
    }

    /// All leases in use.
    pub(crate) fn all(&self) -> Vec<Arc<HeldLease>> {
        self.state.lock().leases.all()
    }

    /// Takes all leases out.
    pub(crate) fn drain(&self) -> Vec<Arc<HeldLease>> {
        let mut state = self.state.lock();
        state.drained = true;
        state.leases.drain()
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.changed.notify_one();
    }

    pub(crate) fn join(&self, until: Instant) -> bool {
        self.worker.join(until)
    }

    /// Sleeps until something is due, and takes all that is due by then or shortly after; `None`
    /// at the end.
    pub(in crate::runtime) fn next_due(&self) -> Option<Vec<Arc<HeldLease>>> {
        let mut state = self.state.lock();
        let mut idle = false;
        loop {
            if state.stopping {
                return None;
            }
            let now = Instant::now();
            let next = state.leases.next();
            if next <= now {
                let mut due = Vec::new();
                while let Some(hold) = state.leases.take_due(now.after(RENEWAL_WINDOW)) {
                    due.push(hold);
                }
                return Some(due);
            }
            if next == Instant::NEVER && idle {
                state.rest.until = Instant::NEVER;
                self.changed.wait(&mut state);
                idle = false;
            } else {
                // A first second without leases is still slept through as such, so that a caller
                // who locks and unlocks all day does not wake this thread each time.
                idle = next == Instant::NEVER;
                state.rest.until = next.min(now.after(LONGEST_SLEEP));
                self.changed.wait_for(&mut state, nap(now, next));
            }
            state.rest.until = Instant::START;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(ms: u64) -> Instant {
        Instant::START.after(Duration::from_millis(ms))
    }

    #[test]
    fn a_ring_that_is_promised_spares_a_wake() {
        let mut rest = Rest {
            until: at(1_000),
            rung_at: Instant::NEVER,
        };
        assert!(rest.misses(at(3), at(2_000)));
        assert!(!rest.misses(at(1_000), at(1_000)));
        assert!(!rest.ring(Instant::NEVER, at(3)));
        assert!(!rest.misses(at(4), at(2_000)));
        // The ring comes too late for one, and the other must not wait if it never comes.
        assert!(rest.misses(at(2), at(2_000)));
        assert!(rest.misses(at(4), at(500)));
        assert!(rest.ring(at(4), Instant::NEVER));
    }

    #[test]
    fn one_promise_follows_the_other() {
        let mut rest = Rest {
            until: at(1_000),
            rung_at: at(3),
        };
        // It is late, and by now somebody is to ring for another.
        assert!(!rest.ring(Instant::NEVER, at(7)));
        assert!(!rest.misses(at(8), at(2_000)));
        assert!(rest.ring(at(8), at(11)));
        assert!(!rest.ring(at(12), at(11)));
    }
}
