//! Requests to a server's io thread, and the queue that carries them.

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

use crate::lease::release::Release;
use crate::redis::ServerHealth;
use crate::runtime::io::renewal_round::RenewalPart;
use crate::runtime::worker::Worker;
use crate::sync::Mutex;

/// A request to the io thread.
pub(in crate::runtime) enum IoRequest {
    Renew(Vec<RenewalPart>),
    /// Repeat a release until its effect is certain.
    Release(Release),
    /// A caller waits for a release: keep testing that the subscriber receives messages.
    Probe,
    /// The server was replaced: end after a delay, since a caller may be about to send a request.
    Retire,
    /// Wake the subscriber thread of a server of a quorum. That server may hang, so the waiter that
    /// needs the subscription does not send the wake-up itself.
    WakeSubscriber,
    Stop,
}

/// The handle of a server's io thread.
pub(crate) struct Io {
    queue: Sender<IoRequest>,
    requests: Receiver<IoRequest>,
    /// The thread has ended, with the client or because its server was replaced. Locked while a
    /// request is sent, so that none follows the last one that the thread takes.
    has_ended: Mutex<bool>,
    /// A `Probe` was sent, and the thread has not yet found that no caller waits.
    probing: AtomicBool,
    /// The health of this server as renewals find it.
    pub(crate) health: ServerHealth,
    pub(in crate::runtime) worker: Worker,
}

impl Default for Io {
    fn default() -> Self {
        let (queue, requests) = unbounded();
        Self {
            queue,
            requests,
            has_ended: Mutex::new(false),
            probing: AtomicBool::new(false),
            health: ServerHealth::new(0),
            worker: Worker::new("leasehold-io"),
        }
    }
}

impl Io {
    /// Sends a request to the thread. Returns it if the thread has ended.
    pub(in crate::runtime) fn send(&self, request: IoRequest) -> Result<(), Box<IoRequest>> {
        let has_ended = self.has_ended.lock();
        if *has_ended {
            return Err(Box::new(request));
        }
        // Cannot fail: `self` owns a receiver.
        let _ = self.queue.send(request);
        Ok(())
    }

    /// Stops accepting requests if the thread has taken all of them; returns whether it has.
    pub(in crate::runtime) fn end(&self) -> bool {
        let mut has_ended = self.has_ended.lock();
        *has_ended |= self.requests.is_empty();
        *has_ended
    }

    /// Tests from now on, while a caller waits, that the subscriber receives messages.
    pub(crate) fn probe(&self) {
        // Sent once: waking the thread for every waiter would cost more than the wait itself.
        if !self.probing.swap(true, Ordering::SeqCst) {
            // A thread that has ended serves no caller.
            let _ = self.send(IoRequest::Probe);
        }
    }
}
