//! The engine: the one thread of a client that sends everything but the commands of calls. It never
//! waits for a server.

pub(crate) mod engine_loop;
pub(crate) mod pipes;
pub(crate) mod recovery;
pub(crate) mod renewal;
pub(crate) mod renewal_round;
pub(crate) mod shared_stats;
pub(crate) mod work;

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lease::release::Release;
use crate::runtime::wake::Wake;
use crate::runtime::worker::Worker;
use crate::sync::Mutex;

/// The handle of the engine's thread.
pub(crate) struct Engine {
    queued: Mutex<QueuedWork>,
    /// The subscribers are probed: the thread has not yet found that no caller waits.
    is_probing: AtomicBool,
    pub(in crate::runtime) wake: Arc<Wake>,
    pub(crate) worker: Worker,
}

/// The work that other threads have left for the engine.
#[derive(Default)]
pub(in crate::runtime) struct QueuedWork {
    /// Releases to be repeated until their effect is certain, each with the index of a server of a
    /// quorum, or zero.
    pub(in crate::runtime) releases: Vec<(usize, Release)>,
    pub(in crate::runtime) is_stopping: bool,
    /// The thread takes nothing any more.
    has_ended: bool,
}

impl Engine {
    pub(in crate::runtime) fn new(wake: Arc<Wake>) -> Self {
        Self {
            queued: Mutex::default(),
            is_probing: AtomicBool::new(false),
            wake,
            worker: Worker::new("leasehold-engine"),
        }
    }

    /// Queues the parts of a release, or returns them if the thread has ended.
    pub(in crate::runtime) fn release(
        &self,
        parts: Vec<(usize, Release)>,
    ) -> Result<(), Vec<(usize, Release)>> {
        let mut queued = self.queued.lock();
        if queued.has_ended {
            return Err(parts);
        }
        queued.releases.extend(parts);
        drop(queued);
        self.wake.wake();
        Ok(())
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

    /// Returns what others have left for the thread.
    pub(in crate::runtime) fn take(&self) -> QueuedWork {
        let mut queued = self.queued.lock();
        let left = QueuedWork {
            releases: Vec::new(),
            ..*queued
        };
        mem::replace(&mut *queued, left)
    }

    /// Has the thread send everything that is left, and end.
    pub(crate) fn stop(&self) {
        let mut queued = self.queued.lock();
        queued.is_stopping = true;
        queued.has_ended |= !self.worker.is_started();
        drop(queued);
        self.wake.wake();
    }

    /// Accepts nothing more if the thread has taken everything; returns whether it has.
    pub(in crate::runtime) fn end(&self) -> bool {
        let mut queued = self.queued.lock();
        queued.has_ended |= queued.releases.is_empty();
        queued.has_ended
    }

    /// Accepts nothing more: the thread has failed.
    pub(in crate::runtime) fn abort(&self) {
        self.queued.lock().has_ended = true;
    }
}
