//! The threads that listen to the sentinels for announcements that the master has moved.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::{Instant, nap, sleep};
use crate::error::Error;
use crate::logging;
use crate::redis::Deployment;
use crate::runtime::worker::Worker;
use crate::wait_policy::RECONNECT;

/// How long a thread listens or sleeps before it checks whether it must end.
const POLL_EVERY: Duration = Duration::from_millis(250);

/// One thread for each sentinel: any of the sentinels may be cut off from the master.
pub(crate) struct SentinelWatch {
    workers: Vec<Worker>,
    stopping: AtomicBool,
}

impl SentinelWatch {
    /// Creates one worker for each of `sentinels`; zero without Sentinel.
    pub(crate) fn new(sentinels: usize) -> Self {
        let workers = (0..sentinels).map(|_| Worker::new("leasehold-sentinel"));
        Self {
            workers: workers.collect(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Starts a thread with `body(n)` for each sentinel `n`.
    pub(in crate::runtime) fn start<B: Fn() + Send + 'static>(
        &self,
        body: impl Fn(usize) -> B,
    ) -> Result<(), Error> {
        let mut workers = self.workers.iter().enumerate();
        workers.try_for_each(|(n, worker)| worker.start(|| body(n)))
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    pub(crate) fn join(&self, until: Instant) -> bool {
        // Joins every worker, even if one before it has not ended in time.
        let workers = self.workers.iter();
        workers.fold(true, |is_joined, worker| worker.join(until) & is_joined)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Listens to sentinel `n` until `stop`, and calls `follow` when the master has moved.
    pub(in crate::runtime) fn run(
        &self,
        n: usize,
        deployment: &Deployment,
        connect_timeout: Duration,
        follow: impl Fn(),
    ) {
        let Some(sentinels) = deployment.sentinels() else {
            return;
        };
        let mut failures = 0;
        // The number of moves of the master that `follow` was called for.
        let mut moves = sentinels.moves();
        let look = |since: Instant| {
            if deployment.look_for_master(since) {
                logging::warn!(
                    server = deployment.label();
                    "the master has moved: every connection to the old one is closed"
                );
            }
        };
        let mut catch_up = || {
            if sentinels.is_ask_due() {
                look(Instant::now());
            }
            // A thread that connects may have noticed the move first.
            let seen = std::mem::replace(&mut moves, sentinels.moves());
            if seen != moves {
                follow();
            }
        };
        while !self.is_stopping() {
            let ended = sentinels
                .listen(n, connect_timeout)
                .and_then(|mut subscription| {
                    failures = 0;
                    // There may have been a failover while there was no subscription.
                    look(Instant::now());
                    while !self.is_stopping() {
                        catch_up();
                        if subscription.wait(sentinels.master(), POLL_EVERY)? {
                            look(Instant::now());
                        }
                    }
                    Ok(())
                });
            let Err(cause) = ended else {
                return;
            };
            logging::debug!(server = deployment.label(); "cannot listen to sentinel {n}: {cause}");
            let end = Instant::now().after(RECONNECT.pause(failures));
            failures += 1;
            while Instant::now() < end && !self.is_stopping() {
                catch_up();
                sleep(nap(Instant::now(), end).min(POLL_EVERY));
            }
        }
    }
}
