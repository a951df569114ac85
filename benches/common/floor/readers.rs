//! A reader by hand: the scripts that the client under test sends.

use redis::{Connection, Script, Value};

use super::pair::{TTL_MS, channel, connect, fresh_id};

const QUEUE: &str = source!(
    "last_token",
    "now",
    "later_end",
    "readers",
    "lock_key",
    "admit_shared",
    "queue"
);
const QUEUE_ENTER: &str = source!("queue_enter");
const QUEUE_RELEASE: &str = source!("queue_release");

/// The readers' side of a read-write lock, acquired and released over one connection.
pub(crate) struct ReaderHand {
    connection: Connection,
    enter: Script,
    leave: Script,
    keys: Vec<String>,
    channel: String,
}

impl ReaderHand {
    pub(crate) fn new(url: &str, name: &str) -> Self {
        let lock = format!("lock:{name}");
        let others = ["fence", "queue", "places", "readers"];
        let others = others.map(|what| format!("leasehold:{what}:{{{lock}}}"));
        Self {
            connection: connect(url),
            enter: Script::new(&format!("{QUEUE}{QUEUE_ENTER}")),
            leave: Script::new(&format!("{QUEUE}{QUEUE_RELEASE}")),
            keys: [lock].into_iter().chain(others).collect(),
            channel: channel(name),
        }
    }

    pub(crate) fn pair(&mut self) {
        let id = fresh_id();
        let mut call = self.enter.prepare_invoke();
        call.key(&self.keys).arg(&id).arg(TTL_MS);
        call.arg(&["r", "l", "inbox"]);
        let answer: Vec<Value> = call.invoke(&mut self.connection).unwrap();
        assert_eq!(answer.first(), Some(&Value::Int(1)), "no writer");
        let mut call = self.leave.prepare_invoke();
        call.key(&self.keys).arg(&id).arg(&self.channel);
        let left: i64 = call.invoke(&mut self.connection).unwrap();
        assert_eq!(left, 1, "the lock was held");
    }
}
