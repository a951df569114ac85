//! Jobs for a server's io thread, and the queue on which it takes them.

pub(crate) mod acknowledged;
pub(crate) mod acknowledged_loop;
pub(crate) mod io_loop;
pub(crate) mod job;
pub(crate) mod recovery;
pub(crate) mod renewal;
pub(crate) mod renewal_round;
pub(crate) mod shared_stats;
pub(crate) mod writer;

use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::clock::Instant;
use crate::error::Error;
use crate::lease::release::Release;
use crate::redis::ServerHealth;
use crate::runtime::io::renewal_round::RenewalPart;
use crate::runtime::worker::Worker;

enum IoRequest {
    Renew(Vec<RenewalPart>),
    Release(Release),
    /// A caller waits for a release: keep testing that the subscriber receives messages.
    Probe,
    /// A caller waits for the circuit breaker to close.
    ProbeBreaker,
    /// The server was replaced: end after a delay.
    Retire,
    /// Wake the subscriber thread: a channel was added to its queue.
    WakeSubscriber,
    Stop,
}

/// The handle of a server's io thread.
pub(crate) struct Io {
    queue: Sender<IoRequest>,
    jobs: Receiver<IoRequest>,
    /// A `Probe` was sent, and the thread has not yet found that no caller waits.
    probing: AtomicBool,
    /// The health of this server as renewals find it.
    pub(crate) condition: ServerHealth,
    worker: Worker,
}

impl Default for Io {
    fn default() -> Self {
        let (queue, jobs) = unbounded();
        Self {
            queue,
            jobs,
            probing: AtomicBool::new(false),
            condition: ServerHealth::new(0),
            worker: Worker::new("leasehold-io"),
        }
    }
}

impl Io {
    pub(in crate::runtime) fn start<B: Fn() + Send + 'static>(
        &self,
        body: impl FnOnce() -> B,
    ) -> Result<(), Error> {
        self.worker.start(body)
    }

    fn send(&self, job: IoRequest) {
        // Sending cannot fail: `self` owns a receiver.
        let _ = self.queue.send(job);
    }

    pub(crate) fn renew(&self, parts: Vec<RenewalPart>) {
        self.send(IoRequest::Renew(parts));
    }

    /// Repeats a release until its effect is certain.
    pub(crate) fn release(&self, release: Release) {
        self.send(IoRequest::Release(release));
    }

    /// Wakes the subscriber thread, without the caller having to wait for this server.
    pub(crate) fn wake_subscriber(&self) {
        self.send(IoRequest::WakeSubscriber);
    }

    /// Tests from now on, while a caller waits, that the subscriber receives messages.
    pub(crate) fn probe(&self) {
        // Sent once: waking the thread for every waiter would cost more than the wait itself.
        if !self.probing.swap(true, Ordering::SeqCst) {
            self.send(IoRequest::Probe);
        }
    }

    /// Probes the server while its circuit breaker is open: a caller waits for it to close.
    pub(crate) fn probe_breaker(&self) {
        self.send(IoRequest::ProbeBreaker);
    }

    /// Ends the thread after a delay: a caller may be about to send it a job.
    pub(crate) fn retire(&self) {
        self.send(IoRequest::Retire);
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.worker.is_finished()
    }

    pub(crate) fn stop(&self) {
        self.send(IoRequest::Stop);
    }

    pub(crate) fn join(&self, until: Instant) -> bool {
        self.worker.join(until)
    }
}
