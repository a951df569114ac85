//! The thread that runs users' callbacks, so that a slow or panicking callback affects no lease.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;

use crate::error::Error;
use crate::logging;
use crate::runtime::worker::Worker;

type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Callbacks {
    /// `None` ends the thread once it has run the callbacks queued before it.
    queue: Sender<Option<Job>>,
    jobs: Receiver<Option<Job>>,
    /// Locked while a job is queued: one queued behind the `None` would never run.
    stopped: Mutex<bool>,
    pub(crate) worker: Worker,
}

impl Default for Callbacks {
    fn default() -> Self {
        let (queue, jobs) = unbounded();
        Self {
            queue,
            jobs,
            stopped: Mutex::new(false),
            worker: Worker::new("leasehold-callbacks"),
        }
    }
}

impl Callbacks {
    /// Starts the thread, unless it was started before.
    pub(crate) fn start(&self) -> Result<(), Error> {
        self.worker.start(|| {
            let jobs = self.jobs.clone();
            move || run(&jobs)
        })
    }

    /// Runs `job` on the thread, after the jobs queued before it.
    pub(crate) fn run(&self, job: Job) {
        // A job that will never run must be dropped: it may own the client that owns this queue.
        let stopped = self.stopped.lock();
        if !*stopped {
            // Sending cannot fail: `self` owns a receiver.
            let _ = self.queue.send(Some(job));
        }
    }

    pub(crate) fn stop(&self) {
        let mut stopped = self.stopped.lock();
        *stopped = true;
        let _ = self.queue.send(None);
    }
}

fn run(jobs: &Receiver<Option<Job>>) {
    while let Ok(Some(job)) = jobs.recv() {
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            logging::error!("a callback panicked; leases are not affected");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn no_job_is_queued_behind_the_end() {
        for _ in 0..200 {
            let callbacks = Callbacks::default();
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !*callbacks.stopped.lock() {
                        callbacks.run(Box::new(|| ()));
                    }
                });
                // The thread is queueing.
                callbacks.jobs.recv().unwrap();
                callbacks.stop();
            });
            let last = callbacks.jobs.try_iter().last();
            assert!(last.is_some_and(|last| last.is_none()), "a job stays");
        }
    }
}
