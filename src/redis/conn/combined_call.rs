//! A call that waits until another sends it along, or until it gets a connection itself.

use std::sync::Arc;
use std::thread::{self, Thread};

use parking_lot::Mutex;
use redis::{RedisResult, ServerError};

use crate::clock::{Instant, nap};
use crate::holder::HolderId;
use crate::protocol::expected::Expected;
use crate::protocol::kind::Keys;
use crate::protocol::script::Reply;
use crate::redis::conn::connection::Connection;

/// Shared by the call's own thread and whoever sends it.
pub(crate) struct CombinedCall {
    pub(crate) command: Vec<u8>,
    pub(crate) expected: Expected,
    /// What it may leave behind where no answer comes.
    pub(crate) undoable: Option<(Arc<Keys>, HolderId)>,
    told: Mutex<Delivered>,
    owner: Thread,
}

/// What came of a command, or why no answer came.
pub(crate) type Answer = RedisResult<Result<Reply, ServerError>>;

/// What became of it.
pub(crate) enum Delivery {
    /// Nobody will send it: it is to see to a connection of its own.
    Alone,
    /// It was sent, and its thread is to read.
    Read(Box<Write>),
    /// It was sent then, and this came of it.
    Answer(Instant, Answer),
}

#[derive(Default)]
enum Delivered {
    #[default]
    Nothing,
    Delivery(Delivery),
    /// Its thread waits no longer.
    Gone,
}

/// Commands that were sent together, and whose answers are still to be read.
pub(crate) struct Write {
    pub(crate) connection: Connection,
    pub(crate) sent: Instant,
    /// Before the command of the one who reads.
    pub(crate) others: Vec<Arc<CombinedCall>>,
}

impl CombinedCall {
    /// A call of this thread.
    pub(crate) fn new(
        command: Vec<u8>,
        expected: Expected,
        undoable: Option<(Arc<Keys>, HolderId)>,
    ) -> Arc<Self> {
        Arc::new(Self {
            command,
            expected,
            undoable,
            told: Mutex::default(),
            owner: thread::current(),
        })
    }

    /// Gives the news back where its thread waits no longer.
    pub(crate) fn deliver(&self, news: Delivery) -> Result<(), Delivery> {
        let mut told = self.told.lock();
        if matches!(*told, Delivered::Gone) {
            return Err(news);
        }
        *told = Delivered::Delivery(news);
        drop(told);
        self.owner.unpark();
        Ok(())
    }

    /// Waits no longer, unless there is news.
    pub(crate) fn give_up(&self) -> Option<Delivery> {
        match std::mem::replace(&mut *self.told.lock(), Delivered::Gone) {
            Delivered::Delivery(news) => Some(news),
            Delivered::Nothing | Delivered::Gone => None,
        }
    }

    /// Waits for news until `until`.
    pub(crate) fn wait(&self, until: Instant) -> Option<Delivery> {
        loop {
            if let Some(news) = self.news() {
                return Some(news);
            }
            let now = Instant::now();
            if now >= until {
                return None;
            }
            thread::park_timeout(nap(now, until));
        }
    }

    fn news(&self) -> Option<Delivery> {
        let mut told = self.told.lock();
        match std::mem::take(&mut *told) {
            Delivered::Delivery(news) => Some(news),
            nothing => {
                *told = nothing;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_read_or_given_back() {
        let in_time = CombinedCall::new(Vec::new(), Expected::Renewed, None);
        assert!(in_time.deliver(Delivery::Alone).is_ok());
        assert!(matches!(in_time.give_up(), Some(Delivery::Alone)));
        let late = CombinedCall::new(Vec::new(), Expected::Renewed, None);
        assert!(late.wait(Instant::START).is_none());
        assert!(late.give_up().is_none());
        assert!(
            late.deliver(Delivery::Alone).is_err(),
            "somebody else is to see to it"
        );
    }
}
