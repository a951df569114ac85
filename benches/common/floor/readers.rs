//! A reader by hand: the scripts that the client under test sends.

use support::scripts;

use super::own_queue::OwnQueue;
use super::pair::{channel, fresh_id, queue_keys};

/// The scripts by which a `RwLock` of the client under test acquires and releases.
const SCRIPTS: [&str; 2] = [scripts::LOCKS.enter, scripts::LOCKS.release];

/// The readers' side of a read-write lock, acquired and released over one connection.
pub struct ReaderHand {
    queue: OwnQueue,
    channel: String,
}

impl ReaderHand {
    pub fn new(url: &str, name: &str) -> Self {
        let keys = queue_keys(&format!("lock:{name}"));
        Self {
            queue: OwnQueue::new(url, SCRIPTS, keys),
            channel: channel(name),
        }
    }

    pub fn pair(&mut self) {
        let id = fresh_id();
        self.queue.acquire(&id, "r");
        self.queue.release(&id, &self.channel);
    }
}
