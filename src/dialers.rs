//! The threads of one client that make connections, or ask where a server is: how many of them are at work.

use std::io;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use crate::clock::{Instant, nap};

/// The name of each.
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

/// Counts a thread until it ends, however it does.
struct Verdict(Arc<Work>);

impl Drop for Verdict {
    fn drop(&mut self) {
        *self.0.threads.lock() -= 1;
        self.0.ended.notify_all();
    }
}

impl Dialers {
    /// Runs `dial` on a thread of its own, which nothing can interrupt while it resolves a name.
    pub(crate) fn spawn(&self, dial: impl FnOnce() + Send + 'static) -> io::Result<()> {
        *self.work.threads.lock() += 1;
        let counted = Verdict(Arc::clone(&self.work));
        let run = move || {
            let _counted = counted;
            dial();
        };
        thread::Builder::new()
            .name(DIALER.into())
            .spawn(run)
            .map(drop)
    }

    /// Waits until all have ended, but not longer than `until`. Returns how many have not.
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
    fn those_that_have_not_ended_are_counted() {
        let dialers = Dialers::default();
        let (end, ending) = bounded::<()>(0);
        dialers
            .spawn(move || assert!(ending.recv().is_err()))
            .unwrap();
        dialers.spawn(|| {}).unwrap();
        let soon = Instant::now().after(Duration::from_secs(60));
        assert!(dialers.wait(Instant::START) >= 1);
        drop(end);
        assert_eq!(dialers.wait(soon), 0);
    }
}
