//! Parker: the channel on which a waiting thread sleeps until another thread wakes it.

use std::convert::Infallible;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, select};

/// Blocks one waiting thread until another thread calls [`unpark`](Self::unpark).
///
/// Every clone has both ends of the channel, so the waiter never disconnects it while another
/// thread calls `unpark`. Disconnecting takes the lock that the waking thread holds until the
/// kernel has woken the waiter. Waiting for that lock can take as long as everything else that the
/// waiter does.
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

    /// Wakes the waiter. If it is not asleep, its next `park_timeout` returns at once.
    ///
    /// Several calls before that wake it only once.
    pub(crate) fn unpark(&self) {
        let _ = self.sender.try_send(());
    }

    /// Sleeps until `unpark` (returns true) or for `pause` (returns false).
    pub(crate) fn park_timeout(&self, pause: Duration) -> bool {
        self.receiver.recv_timeout(pause).is_ok()
    }

    /// Sleeps like [`park_timeout`](Self::park_timeout), at most until `cancelled` is disconnected.
    pub(crate) fn park_unless(&self, cancelled: &Receiver<Infallible>, pause: Duration) -> bool {
        select! {
            recv(self.receiver) -> woken => woken.is_ok(),
            recv(cancelled) -> _ => false,
            default(pause) => false,
        }
    }
}
