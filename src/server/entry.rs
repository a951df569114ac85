//! A call that waits until another sends it along, or until it gets a connection itself.

use std::sync::Arc;
use std::thread::{self, Thread};

use parking_lot::Mutex;
use redis::{RedisResult, ServerError};

use crate::clock::{Instant, nap};
use crate::holder::HolderId;
use crate::kind::Keys;
use crate::scripts::Reply;
use crate::server::node::Wire;

/// Shared by the call's own thread and whoever sends it.
pub(crate) struct Entry {
    pub(crate) command: Vec<u8>,
    /// What it may leave behind where no answer comes.
    pub(crate) stake: Option<(Arc<Keys>, HolderId)>,
    told: Mutex<Option<News>>,
    owner: Thread,
}

/// What came of a command, or why no answer came.
pub(crate) type Answer = RedisResult<Result<Reply, ServerError>>;

/// What became of it.
pub(crate) enum News {
    /// Nobody will send it: it is to see to a connection of its own.
    Alone,
    /// It was sent, and its thread is to read.
    Read(Write),
    /// It was sent then, and this came of it.
    Answer(Instant, Answer),
}

/// Commands that were sent together, and whose answers are still to be read.
pub(crate) struct Write {
    pub(crate) wire: Wire,
    pub(crate) sent: Instant,
    /// Behind the command of the one who reads.
    pub(crate) others: Vec<Arc<Entry>>,
}

impl Entry {
    /// A call of this thread.
    pub(crate) fn new(command: Vec<u8>, stake: Option<(Arc<Keys>, HolderId)>) -> Arc<Self> {
        Arc::new(Self {
            command,
            stake,
            told: Mutex::default(),
            owner: thread::current(),
        })
    }

    pub(crate) fn tell(&self, news: News) {
        *self.told.lock() = Some(news);
        self.owner.unpark();
    }

    /// Waits for news until `until`.
    pub(crate) fn wait(&self, until: Instant) -> Option<News> {
        loop {
            if let Some(news) = self.told.lock().take() {
                return Some(news);
            }
            let now = Instant::now();
            if now >= until {
                return None;
            }
            thread::park_timeout(nap(now, until));
        }
    }
}
