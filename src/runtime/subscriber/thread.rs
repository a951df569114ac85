//! The handle of the subscriber thread.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::vec;

use crossbeam_channel::{Receiver, bounded};

use crate::clock::Instant;
use crate::error::Error;
use crate::logging;
use crate::runtime::wake::Wake;
use crate::runtime::worker::Worker;
use crate::thread_group::ThreadGroup;

/// The one thread of a client that receives messages. It never waits for a server.
pub(crate) struct SubscriberThread {
    worker: Worker,
    /// Set before the thread starts.
    wake: OnceLock<Wake>,
    is_stopping: AtomicBool,
}

impl Default for SubscriberThread {
    fn default() -> Self {
        Self {
            worker: Worker::new("leasehold-subscriber"),
            wake: OnceLock::new(),
            is_stopping: AtomicBool::new(false),
        }
    }
}

impl SubscriberThread {
    /// Starts the thread, unless it was started before.
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] or [`Error::Shortage`] if the system has no thread or no pipe left.
    pub(in crate::runtime) fn start<B: Fn() + Send + 'static>(
        &self,
        body: impl FnOnce() -> B,
    ) -> Result<(), Error> {
        if self.wake.get().is_none() {
            // Fails only if another thread was first.
            let _ = self.wake.set(Wake::new()?);
        }
        self.worker.start(body)
    }

    /// Has the thread look at all that it serves.
    pub(in crate::runtime) fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            wake.wake();
        }
    }

    /// Tells the thread to end.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn join(&self, until: Instant) -> bool {
        self.worker.join(until)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }

    /// Sleeps until one of the `sockets` is ready, `left` is over, or another thread wakes this
    /// one. Returns whether one did, and which of the sockets are ready.
    pub(super) fn sleep<'a>(
        &'a self,
        sockets: impl Iterator<Item = (BorrowedFd<'a>, bool)>,
        left: Option<Duration>,
    ) -> (bool, vec::IntoIter<bool>) {
        let wake = self.wake.get().expect("set before the thread starts");
        let (is_woken, ready) = wake.wait(sockets, left, "subscriber");
        if is_woken {
            wake.drain();
        }
        (is_woken, ready)
    }

    /// Runs `job`, which may wait for a server, on one of the `dialers`, and then wakes this
    /// thread. The channel is disconnected if the job could not be started, or panics.
    pub(super) fn delegate<T: Send + 'static>(
        self: &Arc<Self>,
        dialers: &ThreadGroup,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Receiver<T> {
        let (sender, result) = bounded(1);
        let this = WakeOnDrop(Arc::clone(self));
        let spawned = dialers.spawn(move || {
            // Dropped after the sender, also by a panic.
            let _this = this;
            let sender = sender;
            // Fails only if the thread has ended.
            let _ = sender.send(job());
        });
        if let Err(shortage) = spawned {
            logging::debug!("{shortage}");
            self.wake();
        }
        result
    }
}

struct WakeOnDrop(Arc<SubscriberThread>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake();
    }
}
