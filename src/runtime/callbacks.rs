//! The thread that runs users' callbacks, so that a slow or panicking callback affects no lease.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;

use crate::error::Error;
use crate::logging;
use crate::runtime::worker::Worker;

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
