//! Threads for renewals that replicas must acknowledge: `WAIT` blocks its connection, and must not
//! delay other renewals.

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::clock::Instant;
use crate::error::Error;
use crate::replicas::Replicas;
use crate::runtime::io::renewal_round::RenewalPart;
use crate::runtime::worker::Worker;
use crate::sync::Mutex;

/// The most threads for one server. If there are more settings of `min_replicas`, some share a
/// thread.
const MAX_THREADS: usize = 8;

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
    /// `None` after `stop`: the thread ends once it has sent the renewals queued before that.
    queue: Option<Sender<RenewalPart>>,
    worker: Worker,
}

impl AcknowledgedRenewals {
    /// Queues a renewal that `replicas` must acknowledge, for a thread that runs `body`. Returns
    /// the renewal if there is no thread for it, with the error if none could be started.
    pub(in crate::runtime) fn renew(
        &self,
        replicas: Replicas,
        part: RenewalPart,
        body: impl Fn(&Receiver<RenewalPart>) + Send + 'static,
    ) -> Result<(), (RenewalPart, Option<Box<Error>>)> {
        let mut threads = self.threads.lock();
        if threads.is_stopped {
            return Err((part, None));
        }
        let running = &mut threads.running;
        let is_new = !running.iter().any(|thread| thread.replicas == replicas);
        if is_new && running.len() < MAX_THREADS {
            match Thread::start(replicas, body) {
                Ok(thread) => running.push(thread),
                Err(error) => return Err((part, Some(Box::new(error)))),
            }
        }
        // The thread for this setting, or else the one whose waiting time is nearest.
        let distance = |thread: &&Thread| {
            let other = thread.replicas;
            (other != replicas, other.within.abs_diff(replicas.within))
        };
        if let Some(queue) =
            (running.iter().min_by_key(distance)).and_then(|thread| thread.queue.as_ref())
        {
            // Sending cannot fail: the worker keeps the receiver while there is a sender.
            let _ = queue.send(part);
        }
        Ok(())
    }

    /// Tells the threads to end. The io thread sends the renewals that come later.
    pub(in crate::runtime) fn stop(&self) {
        let mut threads = self.threads.lock();
        threads.is_stopped = true;
        for thread in &mut threads.running {
            thread.queue = None;
        }
    }

    pub(in crate::runtime) fn is_finished(&self) -> bool {
        let threads = self.threads.lock();
        threads
            .running
            .iter()
            .all(|thread| thread.worker.is_finished())
    }

    /// Waits for the threads; returns false if one still runs at `until`.
    pub(in crate::runtime) fn join(&self, until: Instant) -> bool {
        let running = std::mem::take(&mut self.threads.lock().running);
        let late = running.iter().filter(|thread| !thread.worker.join(until));
        late.count() == 0
    }
}

impl Thread {
    fn start(
        replicas: Replicas,
        body: impl Fn(&Receiver<RenewalPart>) + Send + 'static,
    ) -> Result<Self, Error> {
        let (queue, parts) = unbounded();
        let worker = Worker::new("leasehold-replicas");
        worker.start(|| move || body(&parts))?;
        Ok(Self {
            replicas,
            queue: Some(queue),
            worker,
        })
    }
}
