//! What a waiting call sleeps on, and what wakes it.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

/// Both ends of a channel, for the waiter and for whoever rings: so it is never disconnected, and is not done away with by
/// the waiter while somebody rings. The last end that goes takes the lock that the ringer has until the kernel has woken
/// the other thread, which may take as long as all else that the waiter does.
#[derive(Clone, Debug)]
pub(crate) struct Parker {
    sender: Sender<()>,
    receiver: Receiver<()>,
}

impl Parker {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = bounded(1);
        Self { sender, receiver }
    }

    /// Wakes the waiter. One that is busy finds it when it would sleep next, and once, however often it was rung.
    pub(crate) fn unpark(&self) {
        let _ = self.sender.try_send(());
    }

    /// Sleeps until it is rung: true. Or for so long.
    pub(crate) fn park_timeout(&self, pause: Duration) -> bool {
        self.receiver.recv_timeout(pause).is_ok()
    }

    /// Whether it was rung since the last time.
    #[cfg(test)]
    pub(crate) fn is_unparked(&self) -> bool {
        self.receiver.try_recv().is_ok()
    }
}
