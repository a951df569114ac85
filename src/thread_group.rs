//! The short-lived threads of a client for one kind of work: starts, counts and awaits them.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};

use crate::clock::{Instant, nap};
use crate::logging::{Later, defer_to};
use crate::shortage::Shortage;
use crate::sync::{Condvar, Mutex};

/// The name of each thread that opens connections, or asks a sentinel for the master or a cluster
/// node for the slots.
const DIALER: &str = "leasehold-dial";

/// A group of threads. A clone is the same group.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadGroup {
    running: Arc<GroupThreads>,
}

#[derive(Debug, Default)]
struct GroupThreads {
    threads: Mutex<HashSet<ThreadId>>,
    /// Notified when a thread has ended.
    ended: Condvar,
    /// Runs the logger for these threads, if leases depend on them.
    later: OnceLock<Later>,
}

/// Removes the calling thread from its group when dropped, which also happens if it panics.
struct Membership(Arc<GroupThreads>);

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.threads.lock().remove(&thread::current().id());
        self.0.ended.notify_all();
    }
}

impl ThreadGroup {
    /// Has another thread run the logger for the threads of this group.
    pub(crate) fn defer_to(&self, later: Later) {
        // Fails only if it was set before.
        let _ = self.running.later.set(later);
    }

    /// Runs `body` on a new thread, so that the caller can stop waiting for an operation that
    /// nothing can interrupt, such as the look-up of a host name.
    pub(crate) fn spawn(&self, body: impl FnOnce() + Send + 'static) -> Result<(), Shortage> {
        let running = Arc::clone(&self.running);
        let run = move || {
            let membership = Membership(running);
            if let Some(later) = membership.0.later.get() {
                defer_to(later.clone());
            }
            body();
        };
        // Locked until the thread is in the set. A thread that ends at once must not remove itself
        // before it is inserted: it would count as running for ever.
        let mut threads = self.running.threads.lock();
        let spawned = thread::Builder::new().name(DIALER.into()).spawn(run);
        let handle = spawned.map_err(|error| Shortage::of_thread(DIALER, error))?;
        threads.insert(handle.thread().id());
        Ok(())
    }

    /// Waits until the threads have ended, at most until `until`. Returns how many still run.
    ///
    /// If the calling thread is in the group, it does not count: it cannot wait for its own end.
    pub(crate) fn wait(&self, until: Instant) -> usize {
        let this = thread::current().id();
        let mut threads = self.running.threads.lock();
        loop {
            let others = threads.iter().filter(|id| **id != this).count();
            let now = Instant::now();
            if others == 0 || now >= until {
                return others;
            }
            self.running.ended.wait_for(&mut threads, nap(now, until));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;
    use std::time::Duration;

    fn in_a_minute() -> Instant {
        Instant::now().after(Duration::from_secs(60))
    }

    #[test]
    fn running_threads_are_counted() {
        let group = ThreadGroup::default();
        let (end, ending) = bounded::<()>(0);
        group
            .spawn(move || assert!(ending.recv().is_err()))
            .unwrap();
        group.spawn(|| {}).unwrap();
        assert!(group.wait(Instant::START) >= 1);
        drop(end);
        assert_eq!(group.wait(in_a_minute()), 0);
    }

    #[test]
    fn thread_does_not_wait_for_itself() {
        let group = ThreadGroup::default();
        let (done, found) = bounded(1);
        let own = group.clone();
        let body = move || done.send(own.wait(in_a_minute())).unwrap();
        group.spawn(body).unwrap();
        assert_eq!(found.recv(), Ok(0));
    }
}
