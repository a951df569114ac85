//! The threads that listen to the sentinels, one of which announces that the master has moved.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::{Instant, nap, sleep};
use crate::error::{Cause, Error};
use crate::logging;
use crate::redis::Deployment;
use crate::redis::sentinel::Sentinels;
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
        let workers = (0..sentinels)
            .map(|_| Worker::new("leasehold-sentinel"))
            .collect();
        Self {
            workers,
            stopping: AtomicBool::new(false),
        }
    }

    /// Starts a thread with `body(n)` for each sentinel `n`.
    pub(in crate::runtime) fn start<B: Fn() + Send + 'static>(
        &self,
        body: impl Fn(usize) -> B,
    ) -> Result<(), Error> {
        self.workers
            .iter()
            .enumerate()
            .try_for_each(|(n, worker)| worker.start(|| body(n)))
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    pub(crate) fn join(&self, until: Instant) -> bool {
        // Joins every worker, also if one before it has not ended in time.
        self.workers
            .iter()
            .filter(|worker| !worker.join(until))
            .count()
            == 0
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
        let mut listener = Listener {
            watch: self,
            deployment,
            sentinels,
            n,
            moves: sentinels.moves(),
            failures: 0,
        };
        while let Err(cause) = listener.listen(connect_timeout, &follow) {
            logging::debug!(server = deployment.label(); "cannot listen to sentinel {n}: {cause}");
            let end = Instant::now().after(RECONNECT.pause(listener.failures));
            listener.failures += 1;
            while Instant::now() < end && !self.is_stopping() {
                sleep(nap(Instant::now(), end).min(POLL_EVERY));
            }
        }
    }
}

struct Listener<'a> {
    watch: &'a SentinelWatch,
    deployment: &'a Deployment,
    sentinels: &'a Sentinels,
    n: usize,
    /// The number of moves of the master that `follow` was called for.
    moves: u64,
    /// Failed attempts in a row.
    failures: u32,
}

impl Listener<'_> {
    /// Listens until `stop`, or until the connection to the sentinel fails.
    fn listen(&mut self, connect_timeout: Duration, follow: impl Fn()) -> Result<(), Cause> {
        if self.watch.is_stopping() {
            return Ok(());
        }
        let (mut connection, mut has_moved) = self.sentinels.listen(self.n, connect_timeout)?;
        self.failures = 0;
        while !self.watch.is_stopping() {
            if has_moved {
                self.deployment.moved();
                let server = self.deployment.label();
                logging::warn!(
                    server = server;
                    "the master has moved: every connection to the old one is closed"
                );
            }
            // A thread that connects may have noticed the move first.
            let seen = std::mem::replace(&mut self.moves, self.sentinels.moves());
            if seen != self.moves {
                follow();
            }
            has_moved = self.sentinels.wait_for_move(&mut connection, POLL_EVERY)?;
        }
        Ok(())
    }
}
