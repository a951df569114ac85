//! The thread that runs users' callbacks, so that a slow or panicking callback affects no lease.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::error::Error;
use crate::logging;
use crate::runtime::worker::Worker;
use crate::sync::Mutex;

type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Callbacks {
    /// `None` after `stop`: the thread ends once it has run the callbacks queued before that.
    queue: Mutex<Option<Sender<Job>>>,
    jobs: Receiver<Job>,
    pub(crate) worker: Worker,
}

impl Default for Callbacks {
    fn default() -> Self {
        let (queue, jobs) = unbounded();
        Self {
            queue: Mutex::new(Some(queue)),
            jobs,
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

    /// Runs `job` on the thread, after the jobs queued before it. Drops it after `stop`, because it
    /// may own the client that owns this queue.
    pub(crate) fn run(&self, job: Job) {
        if let Some(queue) = &*self.queue.lock() {
            // Sending cannot fail: `self` owns a receiver.
            let _ = queue.send(job);
        }
    }

    pub(crate) fn stop(&self) {
        *self.queue.lock() = None;
    }
}

fn run(jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            logging::error!("a callback panicked; leases are not affected");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::TryRecvError;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn no_job_is_queued_behind_the_end() {
        for _ in 0..200 {
            let callbacks = Callbacks::default();
            thread::scope(|scope| {
                scope.spawn(|| {
                    while callbacks.queue.lock().is_some() {
                        callbacks.run(Box::new(|| ()));
                    }
                });
                // The thread is queueing.
                callbacks.jobs.recv().unwrap()();
                callbacks.stop();
            });
            let owned = Arc::new(());
            let owner = Arc::clone(&owned);
            callbacks.run(Box::new(move || drop(owner)));
            assert_eq!(Arc::strong_count(&owned), 1, "the job is dropped");
            callbacks.jobs.try_iter().for_each(drop);
            let end = callbacks.jobs.try_recv().err();
            assert_eq!(end, Some(TryRecvError::Disconnected), "the thread ends");
        }
    }
}
