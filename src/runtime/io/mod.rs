//! The io thread: renewals in one write, undos until they are sure, and the probe of the subscriber.

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
use crate::lease::undo::Undo;
use crate::redis::ServerHealth;
use crate::runtime::io::renewal_round::RenewalPart;
use crate::runtime::worker::Worker;

enum IoRequest {
    Renew(Vec<RenewalPart>),
    Undo(Undo),
    /// Somebody waits.
    Probe,
    /// Somebody waits until the server is asked again.
    Watch,
    /// The server is of no more use.
    Leave,
    /// The subscriber is to look what it was asked for.
    Wake,
    Stop,
}

pub(crate) struct Io {
    queue: Sender<IoRequest>,
    jobs: Receiver<IoRequest>,
    /// Somebody waits, and the thread knows it.
    probing: AtomicBool,
    /// How renewals go.
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
        // The receiver is in self, so there is somebody to send to.
        let _ = self.queue.send(job);
    }

    pub(crate) fn renew(&self, papers: Vec<RenewalPart>) {
        self.send(IoRequest::Renew(papers));
    }

    /// Repeats a release until it is sure.
    pub(crate) fn undo(&self, undo: Undo) {
        self.send(IoRequest::Undo(undo));
    }

    /// Wakes the subscriber, for a caller who has no time for this server.
    pub(crate) fn wake(&self) {
        self.send(IoRequest::Wake);
    }

    /// Somebody waits: proves from now on that the subscriber hears.
    pub(crate) fn probe(&self) {
        // Once is enough: a thread woken for every waiter would cost more than the waiting.
        if !self.probing.swap(true, Ordering::SeqCst) {
            self.send(IoRequest::Probe);
        }
    }

    /// The server is not asked at present, and somebody waits for that to end.
    pub(crate) fn watch(&self) {
        self.send(IoRequest::Watch);
    }

    /// Ends the thread by and by: somebody may be about to send it something.
    pub(crate) fn leave(&self) {
        self.send(IoRequest::Leave);
    }

    pub(crate) fn is_through(&self) -> bool {
        self.worker.is_through()
    }

    pub(crate) fn stop(&self) {
        self.send(IoRequest::Stop);
    }

    pub(crate) fn join(&self, until: Instant) -> bool {
        self.worker.join(until)
    }
}
