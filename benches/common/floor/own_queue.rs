//! The queue of a lock by hand: the scripts that the client under test sends.

use redis::{Connection, Script, Value};
use support::scripts::granted;

use super::pair::{TTL_MS, connect};

/// Acquires and releases a lock with a queue by the client's own scripts over one connection.
pub struct OwnQueue {
    connection: Connection,
    enter: Script,
    release: Script,
    keys: Vec<String>,
}

impl OwnQueue {
    /// `scripts` acquire and release.
    pub fn new(url: &str, scripts: [&str; 2], keys: Vec<String>) -> Self {
        let [enter, release] = scripts.map(Script::new);
        Self {
            connection: connect(url),
            enter,
            release,
            keys,
        }
    }

    pub fn acquire(&mut self, id: &str, want: &str) {
        let mut call = self.enter.prepare_invoke();
        call.key(&self.keys).arg(id).arg(TTL_MS);
        call.arg(&[want, "l inbox"]);
        let answer: Value = call.invoke(&mut self.connection).unwrap();
        assert!(granted(&answer).is_some(), "the acquire was refused");
    }

    pub fn release(&mut self, id: &str, channel: &str) {
        let mut call = self.release.prepare_invoke();
        call.key(&self.keys).arg(id).arg(channel);
        let left: i64 = call.invoke(&mut self.connection).unwrap();
        assert_eq!(left, 1, "the lease was lost before its release");
    }
}
