//! The thread that runs users' callbacks, so that a slow or panicking callback affects no lease. It
//! also runs the logger and the recorder for the client's other threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, SendError, Sender, select_biased, unbounded};

use crate::error::Error;
use crate::logging::{self, Job, Later, contain};
use crate::runtime::worker::Worker;
use crate::sync::Mutex;

/// The most log records and exports of metrics that wait for a slow logger or recorder.
const MOST_RECORDS: usize = 1_000;

/// While as many callbacks wait, renewals are not reported. Losses always are.
const MOST_CALLBACKS: usize = 1_000;

pub(crate) struct Callbacks {
    /// `None` after `stop`: the thread ends once it has run what was queued before that.
    queues: Mutex<Option<Queues>>,
    waiting: Waiting,
    pub(crate) worker: Worker,
}

struct Queues {
    callbacks: Sender<Job>,
    records: Sender<Job>,
}

#[derive(Clone)]
struct Waiting {
    callbacks: Receiver<Job>,
    records: Receiver<Job>,
    /// How many records found no room.
    dropped: Arc<AtomicU64>,
}

impl Default for Callbacks {
    fn default() -> Self {
        let (callbacks, waiting_callbacks) = unbounded();
        // A bounded channel would have its memory from the start.
        let (records, waiting_records) = unbounded();
        Self {
            queues: Mutex::new(Some(Queues { callbacks, records })),
            waiting: Waiting {
                callbacks: waiting_callbacks,
                records: waiting_records,
                dropped: Arc::default(),
            },
            worker: Worker::new("leasehold-callbacks"),
        }
    }
}

impl Callbacks {
    /// Starts the thread, unless it was started before.
    pub(crate) fn start(&self) -> Result<(), Error> {
        self.worker.start(|| {
            let waiting = self.waiting.clone();
            move || waiting.run()
        })
    }

    /// Runs `job` on the thread, after the jobs queued before it. Drops it after `stop`, because it
    /// may own the client that owns this queue.
    pub(crate) fn run(&self, job: Job) {
        if let Some(queues) = &*self.queues.lock() {
            // Sending cannot fail: `self` owns a receiver.
            let _ = queues.callbacks.send(job);
        }
    }

    /// Returns whether renewals are reported: callbacks do not wait behind too many others.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.callbacks.len() < MOST_CALLBACKS
    }

    /// Has a thread leave its log records and exports of metrics to this thread, which runs them
    /// after the callbacks.
    pub(crate) fn later(self: &Arc<Self>) -> Later {
        let this = Arc::clone(self);
        Later(Arc::new(move |job| this.run_slow(job)))
    }

    /// Returns the job after `stop`, or if the thread cannot be started.
    fn run_slow(&self, job: Job) -> Result<(), Job> {
        let queues = self.queues.lock();
        let Some(queues) = queues.as_ref().filter(|_| self.start().is_ok()) else {
            return Err(job);
        };
        if queues.records.len() >= MOST_RECORDS {
            self.waiting.dropped.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        queues.records.send(job).map_err(|SendError(job)| job)
    }

    pub(crate) fn stop(&self) {
        *self.queues.lock() = None;
    }
}

impl Waiting {
    fn run(&self) {
        loop {
            select_biased! {
                recv(self.callbacks) -> job => match job {
                    Ok(job) => run_callback(job),
                    // After `stop`, nothing is queued any more.
                    Err(_) => break,
                },
                recv(self.records) -> job => job.into_iter().for_each(|job| self.run_record(job)),
            }
        }
        self.records.try_iter().for_each(|job| self.run_record(job));
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
    use crossbeam_channel::{TryRecvError, bounded};
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn no_job_is_queued_behind_the_end() {
        for _ in 0..200 {
            let callbacks = Callbacks::default();
            thread::scope(|scope| {
                scope.spawn(|| {
                    while callbacks.queues.lock().is_some() {
                        callbacks.run(Box::new(|| ()));
                    }
                });
                // The thread is queueing.
                callbacks.waiting.callbacks.recv().unwrap()();
                callbacks.stop();
            });
            let owned = Arc::new(());
            let owner = Arc::clone(&owned);
            callbacks.run(Box::new(move || drop(owner)));
            assert_eq!(Arc::strong_count(&owned), 1, "the job is dropped");
            callbacks.waiting.callbacks.try_iter().for_each(drop);
            let end = callbacks.waiting.callbacks.try_recv().err();
            assert_eq!(end, Some(TryRecvError::Disconnected), "the thread ends");
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
        for job in callbacks.waiting.callbacks.try_iter() {
            job();
        }
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
