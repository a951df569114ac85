//! What is in a server, and who listens to it.

use std::time::Instant;

use redis::Value;

use super::server::Server;
use super::time::{eventually, ms};

impl Server {
    /// The value of a string.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        redis::cmd("GET")
            .arg(key.as_ref())
            .query(&mut self.connection())
            .expect("GET answers")
    }

    /// Milliseconds that a key has left; -1 where it has no end, -2 where there is none.
    pub fn pttl(&self, key: impl AsRef<[u8]>) -> i64 {
        redis::cmd("PTTL")
            .arg(key.as_ref())
            .query(&mut self.connection())
            .expect("PTTL answers")
    }

    /// All keys, sorted.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = redis::cmd("KEYS")
            .arg("*")
            .query(&mut self.connection())
            .expect("KEYS answers");
        keys.sort();
        keys
    }

    /// How many connections listen to a channel.
    pub fn listeners(&self, channel: impl AsRef<[u8]>) -> usize {
        let (_, count): (Value, usize) = redis::cmd("PUBSUB")
            .arg("NUMSUB")
            .arg(channel.as_ref())
            .query(&mut self.connection())
            .expect("PUBSUB NUMSUB answers");
        count
    }

    /// How many channels somebody listens to, of those that match.
    pub fn channels(&self, pattern: &str) -> usize {
        let channels: Vec<Value> = redis::cmd("PUBSUB")
            .arg("CHANNELS")
            .arg(pattern)
            .query(&mut self.connection())
            .expect("PUBSUB CHANNELS answers");
        channels.len()
    }

    /// Returns when somebody listens to the channel, and the looks that belong to that are over: from then on only a
    /// wake-up makes a waiter look before its time.
    pub fn wait_for_a_waiter(&self, channel: impl AsRef<[u8]>) {
        eventually(ms(10_000), || self.listeners(&channel) > 0);
        let mut seen = (0, Instant::now());
        eventually(ms(10_000), || {
            let calls = self.calls(&["evalsha", "eval"]);
            if calls != seen.0 {
                seen = (calls, Instant::now());
            }
            seen.1.elapsed() >= ms(50)
        });
    }
}
