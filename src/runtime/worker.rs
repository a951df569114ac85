//! A thread of the client: started when first needed, joined for a bounded time.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use parking_lot::Mutex;

use crate::clock::Instant;
use crate::error::Error;

/// A thread that may not have been started yet.
#[derive(Debug)]
pub(crate) struct Worker {
    name: &'static str,
    /// So that asking again costs no lock.
    started: AtomicBool,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    handle: JoinHandle<()>,
    /// Disconnected when the thread is through.
    through: Receiver<Infallible>,
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

    /// Starts the thread, unless it was started before. A `body` that panics is begun anew: only a
    /// user's logger can make it, and leases depend on these threads.
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
        let (alive, through) = bounded(0);
        let body = body();
        let name = self.name;
        let handle = thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                let _alive = alive;
                while catch_unwind(AssertUnwindSafe(&body)).is_err() {
                    // A panic that comes at once again must not take the machine with it.
                    thread::sleep(Duration::from_millis(100));
                }
            })
            .map_err(|error| Error::Thread {
                name,
                cause: Arc::new(error),
            })?;
        *running = Some(Running { handle, through });
        self.started.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether no thread runs, or will run on what was started.
    pub(crate) fn is_through(&self) -> bool {
        let running = self.running.lock();
        running.as_ref().is_none_or(|running| {
            running.through.try_recv() == Err(crossbeam_channel::TryRecvError::Disconnected)
        })
    }

    /// Waits until the thread is through; false if it is not by `until`, and is left to end by
    /// itself. So is the caller itself, which cannot wait for its own end.
    pub(crate) fn join(&self, until: Instant) -> bool {
        // Whoever comes second waits for nothing.
        let Some(Running { handle, through }) = self.running.lock().take() else {
            return true;
        };
        if handle.thread().id() == thread::current().id() {
            return true;
        }
        let _ = through.recv_timeout(Instant::now().until(until));
        match through.try_recv() {
            Err(crossbeam_channel::TryRecvError::Disconnected) => handle.join().is_ok(),
            _ => false,
        }
    }
}

/// Runs a part of a thread's work that calls a user's code on the way: a logger, or the drop of a
/// closure. A panic there costs no more than this part.
pub(crate) fn contain(act: impl FnOnce()) {
    // Nothing to be said: the panic's own message is out, and a logger may be what panics.
    let _ = catch_unwind(AssertUnwindSafe(act));
}
