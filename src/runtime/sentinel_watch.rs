//! The threads that listen to the sentinels: one of them says when the master has moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::{Instant, nap};
use crate::error::{Cause, Error};
use crate::logging;
use crate::redis::sentinel::Sentinels;
use crate::runtime::Runtime;
use crate::runtime::worker::Worker;
use crate::wait_policy::RECONNECT;

/// How long a thread listens before it looks whether it is to end.
const POLL_EVERY: Duration = Duration::from_millis(250);

/// One thread for each sentinel, since any of them may be the one that is cut off.
pub(crate) struct SentinelWatch {
    workers: Vec<Worker>,
    stopping: AtomicBool,
}

impl SentinelWatch {
    /// Listens to so many sentinels; to none where there are none.
    pub(crate) fn new(sentinels: usize) -> Self {
        let workers = (0..sentinels)
            .map(|_| Worker::new("leasehold-sentinel"))
            .collect();
        Self {
            workers,
            stopping: AtomicBool::new(false),
        }
    }

    pub(crate) fn start(&self, runtime: &Arc<Runtime>) -> Result<(), Error> {
        for (n, worker) in self.workers.iter().enumerate() {
            if !worker.is_started() {
                let runtime = Arc::clone(runtime);
                worker.start(move || run(&runtime, n))?;
            }
        }
        Ok(())
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    pub(crate) fn join(&self, until: Instant) -> bool {
        // Each is joined, even where one before it was not through in time.
        self.workers
            .iter()
            .filter(|worker| !worker.join(until))
            .count()
            == 0
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }
}

fn run(runtime: &Runtime, n: usize) {
    let Some(sentinels) = runtime.deployment.sentinels() else {
        return;
    };
    let mut moves = sentinels.moves();
    let mut failures = 0;
    while let Err(cause) = listen(runtime, sentinels, n, &mut moves, &mut failures) {
        logging::debug!(server = runtime.deployment.label(); "sentinel {n} is not heard: {cause}");
        let end = Instant::now().after(RECONNECT.pause(failures));
        failures += 1;
        while Instant::now() < end && !runtime.switches.is_stopping() {
            std::thread::sleep(nap(Instant::now(), end).min(POLL_EVERY));
        }
    }
}

/// Listens to one sentinel until the end, or until it cannot be heard.
fn listen(
    runtime: &Runtime,
    sentinels: &Sentinels,
    n: usize,
    moves: &mut u64,
    failures: &mut u32,
) -> Result<(), Cause> {
    if runtime.switches.is_stopping() {
        return Ok(());
    }
    let (mut connection, mut has_moved) = sentinels.listen(n, runtime.config.connect_timeout)?;
    *failures = 0;
    while !runtime.switches.is_stopping() {
        if has_moved {
            runtime.deployment.moved();
            let server = runtime.deployment.label();
            logging::warn!(server = server; "the master has moved: every connection to the old one is given up");
        }
        // A dialer may have been told before us.
        let seen = std::mem::replace(moves, sentinels.moves());
        if seen != *moves {
            runtime.follow(|_| true);
        }
        has_moved = sentinels.hears_of_move(&mut connection, POLL_EVERY)?;
    }
    Ok(())
}
