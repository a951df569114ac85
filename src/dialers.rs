//! The threads of one client that make connections, look up a server's address, or run a call that
//! can be cancelled, and their number.

use std::io;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use crate::clock::{Instant, nap};

/// The name of each thread.
pub(crate) const DIALER: &str = "leasehold-dial";

#[derive(Clone, Debug, Default)]
pub(crate) struct Dialers {
    work: Arc<Work>,
}

#[derive(Debug, Default)]
struct Work {
    threads: Mutex<usize>,
    ended: Condvar,
}

/// Counts a running thread until dropped, which also happens if the thread panics.
struct Running(Arc<Work>);

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.threads.lock() -= 1;
        self.0.ended.notify_all();
    }
}

impl Dialers {
    /// Runs `dial` on a new thread: nothing can interrupt it while it resolves a host name.
    pub(crate) fn spawn(&self, dial: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.spawn_as(DIALER, dial)
    }

    /// Runs `body` on a new thread with this name.
    pub(crate) fn spawn_as(
        &self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        *self.work.threads.lock() += 1;
        let running = Running(Arc::clone(&self.work));
        let run = move || {
            let _running = running;
            body();
        };
        thread::Builder::new()
            .name(name.into())
            .spawn(run)
            .map(drop)
    }

    /// Waits until all threads have ended, at most until `until`. Returns how many are still
    /// running.
    pub(crate) fn wait(&self, until: Instant) -> usize {
        let mut threads = self.work.threads.lock();
        loop {
            let now = Instant::now();
            if *threads == 0 || now >= until {
                return *threads;
            }
            self.work.ended.wait_for(&mut threads, nap(now, until));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;
    use std::time::Duration;

    #[test]
    fn running_threads_are_counted() {
        let dialers = Dialers::default();
        let (end, ending) = bounded::<()>(0);
        dialers
            .spawn(move || assert!(ending.recv().is_err()))
            .unwrap();
        dialers.spawn(|| {}).unwrap();
        let in_a_minute = Instant::now().after(Duration::from_secs(60));
        assert!(dialers.wait(Instant::START) >= 1);
        drop(end);
        assert_eq!(dialers.wait(in_a_minute), 0);
    }
}
