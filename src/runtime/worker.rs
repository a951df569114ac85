//! A background thread of the client: started when first needed, joined with a time limit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::clock::{Instant, sleep};
use crate::error::Error;
use crate::latch::Latch;
use crate::sync::Mutex;

/// A thread that may not have been started yet.
#[derive(Debug)]
pub(crate) struct Worker {
    name: &'static str,
    /// Lets later calls of `start` return without taking the lock.
    started: AtomicBool,
    running: Mutex<Option<WorkerThread>>,
}

#[derive(Debug)]
struct WorkerThread {
    handle: JoinHandle<()>,
    ended: Arc<Latch>,
}

/// Opens the latch when dropped: when the thread ends.
struct Running(Arc<Latch>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.open();
    }
}

impl Worker {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self {
            name,
            started: AtomicBool::new(false),
            running: Mutex::new(None),
        }
    }

    pub(crate) fn is_started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }

    /// Starts the thread, unless it was started before. A `body` that panics is run again, because
    /// leases depend on these threads.
    ///
    /// # Errors
    ///
    /// [`Error::Thread`] if the system cannot create a thread.
    pub(crate) fn start<B: Fn() + Send + 'static>(
        &self,
        body: impl FnOnce() -> B,
    ) -> Result<(), Error> {
        if self.is_started() {
            return Ok(());
        }
        let mut running = self.running.lock();
        if self.is_started() {
            return Ok(());
        }
        let ended = Arc::<Latch>::default();
        let running_thread = Running(Arc::clone(&ended));
        let body = body();
        let name = self.name;
        let handle = thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                let _running = running_thread;
                while catch_unwind(AssertUnwindSafe(&body)).is_err() {
                    // A body that panics immediately each time must not use a whole core.
                    sleep(Duration::from_millis(100));
                }
            })
            .map_err(|error| Error::Thread {
                name,
                cause: Arc::new(error),
            })?;
        *running = Some(WorkerThread { handle, ended });
        self.started.store(true, Ordering::Release);
        Ok(())
    }

    /// Waits until the thread has ended; returns false if it still runs at `until`. It then ends
    /// without being joined. A thread that joins itself returns true immediately.
    pub(crate) fn join(&self, until: Instant) -> bool {
        // Only the first caller waits.
        let Some(WorkerThread { handle, ended }) = self.running.lock().take() else {
            return true;
        };
        if handle.thread().id() == thread::current().id() {
            return true;
        }
        ended.wait(until) && handle.join().is_ok()
    }
}
