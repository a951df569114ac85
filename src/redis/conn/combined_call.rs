//! A combined call: one that another thread may send, in one write with other calls.
//!
//! The call's thread waits for a delivery to the call's mailbox. The states of the mailbox:
//!
//! ```text
//!           deliver             received, give_up
//!   Empty ----------> Full ------------------------> (the call's thread acts)
//!     |
//!     | give_up
//!     v
//!   Gone   deliver fails and returns the delivery
//! ```
//!
//! If a [`Delivery::Read`] fails, no thread reads the replies, so its sender closes the connection.
//! Any other delivery that fails is dropped: the call's thread treats its call as unanswered, and
//! needs no connection any more.

use std::mem;
use std::sync::Arc;
use std::thread::{self, Thread};

use crate::clock::{Instant, nap};
use crate::protocol::verb::Verb;
use crate::redis::conn::connection::{CallResult, Connection};
use crate::sync::Mutex;

/// A combined call, shared by its own thread and the thread that sends it.
pub(crate) struct CombinedCall {
    pub(crate) command: Vec<u8>,
    pub(crate) verb: Verb,
    mailbox: Mutex<Mailbox>,
    undo: Mutex<Undo>,
    owner: Thread,
}

/// A message from another thread to the thread of a combined call.
pub(crate) enum Delivery {
    /// No thread will send the call: it must get its own connection.
    Alone,
    /// The batch was sent, and this call's thread must read the replies.
    Read(Box<Write>),
    /// The call was sent at this instant, with this result.
    Answer(Instant, CallResult, Option<Arc<Mutex<Connection>>>),
}

/// The undo of a call whose thread has stopped waiting goes behind its command once the connection
/// has failed. Its thread and the one that notices the failure come in either order.
#[derive(Default)]
enum Undo {
    #[default]
    Nothing,
    Left(Vec<u8>),
    Failed(Arc<Mutex<Connection>>),
}

#[derive(Default)]
enum Mailbox {
    #[default]
    Empty,
    Full(Delivery),
    /// The call's thread has stopped waiting.
    Gone,
}

/// A batch that was sent and whose replies are still unread.
pub(crate) struct Write {
    pub(crate) connection: Connection,
    pub(crate) sent: Instant,
    /// The calls sent before the reader's own, in order.
    pub(crate) others: Vec<Arc<CombinedCall>>,
}

impl CombinedCall {
    /// Creates a call that the current thread waits for.
    pub(crate) fn new(command: Vec<u8>, verb: Verb) -> Arc<Self> {
        Arc::new(Self {
            command,
            verb,
            mailbox: Mutex::default(),
            undo: Mutex::default(),
            owner: thread::current(),
        })
    }

    /// Delivers to the call's thread, or returns the delivery if that thread has stopped waiting.
    pub(crate) fn deliver(&self, delivery: Delivery) -> Result<(), Delivery> {
        let mut mailbox = self.mailbox.lock();
        if matches!(*mailbox, Mailbox::Gone) {
            return Err(delivery);
        }
        *mailbox = Mailbox::Full(delivery);
        drop(mailbox);
        self.owner.unpark();
        Ok(())
    }

    /// Has the call get its own connection. A call that has given up needs none.
    pub(crate) fn send_alone(&self) {
        let _ = self.deliver(Delivery::Alone);
    }

    /// Leaves the undo of the call, which has stopped waiting.
    pub(crate) fn leave_undo(&self, undo: Vec<u8>) {
        let mut state = self.undo.lock();
        match mem::take(&mut *state) {
            Undo::Failed(connection) => connection.lock().write_behind(&undo),
            Undo::Nothing | Undo::Left(_) => *state = Undo::Left(undo),
        }
    }

    /// The connection has failed, and the call has stopped waiting.
    pub(crate) fn failed(&self, connection: &Arc<Mutex<Connection>>) {
        let mut state = self.undo.lock();
        match mem::take(&mut *state) {
            Undo::Left(undo) => connection.lock().write_behind(&undo),
            Undo::Nothing | Undo::Failed(_) => *state = Undo::Failed(Arc::clone(connection)),
        }
    }

    /// Stops waiting; returns a delivery that has already arrived.
    pub(crate) fn give_up(&self) -> Option<Delivery> {
        match mem::replace(&mut *self.mailbox.lock(), Mailbox::Gone) {
            Mailbox::Full(delivery) => Some(delivery),
            Mailbox::Empty | Mailbox::Gone => None,
        }
    }

    /// Waits for a delivery until `until`.
    pub(crate) fn wait(&self, until: Instant) -> Option<Delivery> {
        loop {
            if let Some(delivery) = self.received() {
                return Some(delivery);
            }
            let now = Instant::now();
            if now >= until {
                return None;
            }
            thread::park_timeout(nap(now, until));
        }
    }

    fn received(&self) -> Option<Delivery> {
        let mut mailbox = self.mailbox.lock();
        match mem::take(&mut *mailbox) {
            Mailbox::Full(delivery) => Some(delivery),
            empty => {
                *mailbox = empty;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_is_received_or_returned() {
        let in_time = CombinedCall::new(Vec::new(), Verb::Renew);
        assert!(in_time.deliver(Delivery::Alone).is_ok());
        assert!(matches!(in_time.give_up(), Some(Delivery::Alone)));
        let late = CombinedCall::new(Vec::new(), Verb::Renew);
        assert!(late.wait(Instant::START).is_none());
        assert!(late.give_up().is_none());
        assert!(
            late.deliver(Delivery::Alone).is_err(),
            "the sender must act on it"
        );
    }
}
