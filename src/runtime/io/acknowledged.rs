//! Renewals that replicas must acknowledge, on threads of their own: `WAIT` blocks its connection, and delays no other renewal.

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;

use crate::clock::Instant;
use crate::error::Error;
use crate::replicas::Replicas;
use crate::runtime::io::renewal_round::RenewalPart;
use crate::runtime::worker::Worker;

/// The most threads for one server. Locks with more different settings of `min_replicas` share them.
const MOST_THREADS: usize = 8;

/// One thread for each setting of `min_replicas`, started when the first such lease is renewed.
#[derive(Default)]
pub(crate) struct AcknowledgedRenewals {
    threads: Mutex<Threads>,
}

#[derive(Default)]
struct Threads {
    running: Vec<Thread>,
    is_stopped: bool,
}

struct Thread {
    replicas: Replicas,
    /// `None` ends the thread, after what came before.
    queue: Sender<Option<RenewalPart>>,
    worker: Worker,
}

impl AcknowledgedRenewals {
    /// Renews a lease that `replicas` must acknowledge. Returns the paper where there is no thread for it, and why none
    /// could be started.
    pub(in crate::runtime) fn renew(
        &self,
        replicas: Replicas,
        paper: RenewalPart,
        body: impl Fn(&Receiver<Option<RenewalPart>>) + Send + 'static,
    ) -> Result<(), (RenewalPart, Option<Error>)> {
        let mut threads = self.threads.lock();
        if threads.is_stopped {
            return Err((paper, None));
        }
        let running = &mut threads.running;
        let n = match running
            .iter()
            .position(|thread| thread.replicas == replicas)
        {
            Some(n) => n,
            None if running.len() < MOST_THREADS => match Thread::start(replicas, body) {
                Ok(thread) => {
                    running.push(thread);
                    running.len() - 1
                }
                Err(error) => return Err((paper, Some(error))),
            },
            // With those that wait for about as long.
            None => {
                let nearest = running
                    .iter()
                    .enumerate()
                    .min_by_key(|(_, thread)| thread.replicas.within.abs_diff(replicas.within));
                nearest.map_or(0, |(n, _)| n)
            }
        };
        if let Some(thread) = running.get(n) {
            // Its worker keeps the receiver.
            let _ = thread.queue.send(Some(paper));
        }
        Ok(())
    }

    /// Begins to end the threads. What comes from now on is for the io thread.
    pub(in crate::runtime) fn stop(&self) {
        let mut threads = self.threads.lock();
        if std::mem::replace(&mut threads.is_stopped, true) {
            return;
        }
        for thread in &threads.running {
            let _ = thread.queue.send(None);
        }
    }

    pub(in crate::runtime) fn is_through(&self) -> bool {
        let threads = self.threads.lock();
        threads
            .running
            .iter()
            .all(|thread| thread.worker.is_through())
    }

    /// Waits for the threads; false if one did not end by `until`.
    pub(in crate::runtime) fn join(&self, until: Instant) -> bool {
        let running = std::mem::take(&mut self.threads.lock().running);
        let late = running.iter().filter(|thread| !thread.worker.join(until));
        late.count() == 0
    }
}

impl Thread {
    fn start(
        replicas: Replicas,
        body: impl Fn(&Receiver<Option<RenewalPart>>) + Send + 'static,
    ) -> Result<Self, Error> {
        let (queue, papers) = unbounded();
        let worker = Worker::new("leasehold-replicas");
        worker.start(|| move || body(&papers))?;
        Ok(Self {
            replicas,
            queue,
            worker,
        })
    }
}
