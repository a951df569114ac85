//! The engine: the one thread of a client that sends everything but the first commands of calls. It
//! never waits for a server.

pub(crate) mod engine_loop;
pub(crate) mod pipes;
pub(crate) mod shared_stats;
pub(crate) mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock::{Instant, suspended_for};
use crate::latch::Latch;
use crate::runtime::wake::Wake;
use crate::runtime::worker::Worker;

/// The handle of the engine's thread.
pub(crate) struct Engine {
    /// The client is closed, and all its leases are pending releases.
    is_closed: AtomicBool,
    is_stopping: AtomicBool,
    /// The subscribers are probed: the thread has not yet found that no caller waits.
    is_probing: AtomicBool,
    /// No release is pending, or nobody sends them any more; told after a shutdown only.
    released: Latch,
    /// How many leases of a closed client may exist that the kernel does not know.
    may_exist: AtomicUsize,
    /// For how long the machine had been suspended when the client was made: a call may park, and a
    /// suspend begin, before the thread runs for the first time.
    suspended_for: Duration,
    pub(in crate::runtime) wake: Arc<Wake>,
    pub(crate) worker: Worker,
}

impl Engine {
    pub(in crate::runtime) fn new(wake: Wake) -> Self {
        Self {
            is_closed: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            is_probing: AtomicBool::new(false),
            released: Latch::default(),
            may_exist: AtomicUsize::new(0),
            suspended_for: suspended_for(),
            wake: Arc::new(wake),
            worker: Worker::new("leasehold-engine"),
        }
    }

    /// Has the thread look at the schedule.
    pub(crate) fn wake(&self) {
        self.wake.wake();
    }

    /// Tests from now on, while a caller waits, that messages arrive.
    pub(in crate::runtime) fn probe(&self) {
        // Waking the thread for every waiter would cost more than the wait itself.
        if !self.is_probing.swap(true, Ordering::SeqCst) {
            self.wake.wake();
        }
    }

    pub(in crate::runtime) fn is_probing(&self) -> bool {
        self.is_probing.load(Ordering::SeqCst)
    }

    /// Records whether a caller may wait.
    pub(in crate::runtime) fn set_probing(&self, is_probing: bool) {
        self.is_probing.store(is_probing, Ordering::SeqCst);
    }

    /// Notes that the client is closed, and that all its leases are pending releases.
    pub(in crate::runtime) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.wake.wake();
    }

    pub(in crate::runtime) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Has the thread send everything that is due, and end.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        self.wake.wake();
    }

    pub(in crate::runtime) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }

    /// Waits until a closed client has no pending release, at most until `until`.
    pub(crate) fn wait_for_releases(&self, until: Instant) {
        if self.worker.is_started() {
            self.released.wait(until);
        }
    }

    pub(in crate::runtime) fn note_may_exist(&self, leases: usize) {
        self.may_exist.store(leases, Ordering::SeqCst);
    }

    /// Returns how many leases of a closed client may exist that the kernel does not know.
    pub(crate) fn may_exist(&self) -> usize {
        self.may_exist.load(Ordering::SeqCst)
    }

    /// Ends the waits for releases.
    pub(in crate::runtime) fn note_released(&self) {
        self.released.open();
    }
}
