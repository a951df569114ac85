//! The thread that runs users' callbacks, so that a slow or panicking callback affects no lease. It
//! also runs the logger and the recorder for the client's other threads.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;
use crate::logging::{self, Job, Later, contain};
use crate::runtime::worker::Worker;
use crate::sync::{Condvar, Mutex};

/// The most log records and exports of metrics that wait for a slow logger or recorder.
const MOST_RECORDS: usize = 1_000;

/// While as many callbacks wait, renewals are not reported. Losses always are.
const MOST_CALLBACKS: usize = 1_000;

pub(crate) struct Callbacks {
    waiting: Arc<Waiting>,
    pub(crate) worker: Worker,
}

#[derive(Default)]
struct Waiting {
    queues: Mutex<Queues>,
    /// Notified when a job is queued, and by `stop`.
    changed: Condvar,
    /// How many records found no room.
    dropped: AtomicU64,
}

#[derive(Default)]
struct Queues {
    callbacks: VecDeque<Job>,
    records: VecDeque<Job>,
    /// Nothing is queued any more. The thread ends once it has run what was queued before that.
    is_stopped: bool,
}

enum Next {
    Callback(Job),
    Record(Job),
}

impl Default for Callbacks {
    fn default() -> Self {
        Self {
            waiting: Arc::default(),
            worker: Worker::new("leasehold-callbacks"),
        }
    }
}

impl Callbacks {
    /// Starts the thread, unless it was started before.
    pub(crate) fn start(&self) -> Result<(), Error> {
        self.worker.start(|| {
            let waiting = Arc::clone(&self.waiting);
            move || waiting.run()
        })
    }

    /// Runs `job` on the thread, after the jobs queued before it. Drops it after `stop`, because it
    /// may own the client that owns this queue.
    pub(crate) fn run(&self, job: Job) {
        let mut queues = self.waiting.queues.lock();
        if queues.is_stopped {
            // Dropping the job may run a user's code.
            drop(queues);
            return;
        }
        queues.callbacks.push_back(job);
        drop(queues);
        self.waiting.changed.notify_all();
    }

    /// Returns whether renewals are reported: callbacks do not wait behind too many others.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.queues.lock().callbacks.len() < MOST_CALLBACKS
    }

    /// Has a thread leave its log records and exports of metrics to this thread, which runs them
    /// after the callbacks.
    pub(crate) fn later(self: &Arc<Self>) -> Later {
        let this = Arc::clone(self);
        Later(Arc::new(move |job| this.run_slow(job)))
    }

    /// Returns the job after `stop`, or if the thread cannot be started.
    fn run_slow(&self, job: Job) -> Result<(), Job> {
        let mut queues = self.waiting.queues.lock();
        if queues.is_stopped || self.start().is_err() {
            return Err(job);
        }
        if queues.records.len() >= MOST_RECORDS {
            self.waiting.dropped.fetch_add(1, Ordering::Relaxed);
            drop(queues);
            return Ok(());
        }
        queues.records.push_back(job);
        drop(queues);
        self.waiting.changed.notify_all();
        Ok(())
    }

    pub(crate) fn stop(&self) {
        self.waiting.queues.lock().is_stopped = true;
        self.waiting.changed.notify_all();
    }
}

/// The thread does not own this.
impl Drop for Callbacks {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Waiting {
    fn run(&self) {
        while let Some(next) = self.next() {
            match next {
                Next::Callback(job) => run_callback(job),
                Next::Record(job) => self.run_record(job),
            }
        }
    }

    /// Waits for the next job: callbacks come first. Returns `None` after `stop`, once all have
    /// run.
    fn next(&self) -> Option<Next> {
        let mut queues = self.queues.lock();
        loop {
            let callback = queues.callbacks.pop_front().map(Next::Callback);
            let next = callback.or_else(|| queues.records.pop_front().map(Next::Record));
            if next.is_some() || queues.is_stopped {
                return next;
            }
            self.changed.wait(&mut queues);
        }
    }

    fn run_record(&self, job: Job) {
        contain(job);
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            logging::warn!(
                "{dropped} log records or exports of metrics of a client were dropped: the logger \
                 or the recorder of this program is too slow"
            );
        }
    }
}

fn run_callback(job: Job) {
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        logging::error!("a callback panicked; leases are not affected");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{bounded, unbounded};
    use std::thread;

    #[test]
    fn no_job_is_queued_behind_the_end() {
        for _ in 0..200 {
            let callbacks = Callbacks::default();
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !callbacks.waiting.queues.lock().is_stopped {
                        callbacks.run(Box::new(|| ()));
                    }
                });
                // The thread is queueing.
                assert!(callbacks.waiting.next().is_some());
                callbacks.stop();
            });
            let owned = Arc::new(());
            let owner = Arc::clone(&owned);
            callbacks.run(Box::new(move || drop(owner)));
            assert_eq!(Arc::strong_count(&owned), 1, "the job is dropped");
            callbacks.waiting.run();
        }
    }

    #[test]
    fn a_callback_that_blocks_leaves_renewals_out_and_keeps_losses() {
        let callbacks = Callbacks::default();
        let (told, losses) = unbounded();
        for _ in 0..MOST_CALLBACKS {
            assert!(callbacks.has_room());
            callbacks.run(Box::new(|| ()));
        }
        assert!(!callbacks.has_room());
        callbacks.run(Box::new(move || told.send(()).unwrap()));
        callbacks.stop();
        callbacks.waiting.run();
        assert!(callbacks.has_room() && losses.try_recv().is_ok());
    }

    /// Nothing waits for the logger, and its thread tells how many records it did not get.
    #[test]
    fn records_without_room_are_counted() {
        let callbacks = Arc::new(Callbacks::default());
        let (resume, paused) = bounded::<()>(0);
        let is_queued = |job: Job| callbacks.run_slow(job).is_ok();
        assert!(is_queued(Box::new(move || _ = paused.recv())));
        for _ in 0..MOST_RECORDS + 3 {
            assert!(is_queued(Box::new(|| ())));
        }
        let dropped = || callbacks.waiting.dropped.load(Ordering::Relaxed);
        // The thread may have taken the first one by then.
        assert!((3..=4).contains(&dropped()));
        drop(resume);
        while dropped() > 0 {
            thread::yield_now();
        }
        callbacks.stop();
        let run_here = callbacks.run_slow(Box::new(|| ()));
        assert!(run_here.is_err(), "the thread has ended");
    }
}
