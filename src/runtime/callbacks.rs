//! The thread that runs users' callbacks, so that a slow or panicking callback affects no lease.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::error::Error;
use crate::logging;
use crate::runtime::worker::Worker;

type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Callbacks {
    /// `None` ends the thread once it has run the callbacks queued before it.
    queue: Sender<Option<Job>>,
    jobs: Receiver<Option<Job>>,
    stopped: AtomicBool,
    pub(crate) worker: Worker,
}

impl Default for Callbacks {
    fn default() -> Self {
        let (queue, jobs) = unbounded();
        Self {
            queue,
            jobs,
            stopped: AtomicBool::new(false),
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
        if !self.stopped.load(Ordering::SeqCst) {
            // Sending cannot fail: `self` owns a receiver.
            let _ = self.queue.send(Some(job));
        }
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
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
