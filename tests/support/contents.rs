//! The keys, the clock and the subscriptions of a server.

use std::time::Instant;

use redis::Value;

use super::server::Server;
use super::time::{eventually, ms};

impl Server {
    /// Returns the value of a string key, or `None` if it does not exist.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        redis::cmd("GET")
            .arg(key.as_ref())
            .query(&mut self.connection())
            .expect("GET answers")
    }

    /// Returns whether nobody holds the lock of this name, under the default prefix.
    pub fn is_free(&self, name: &str) -> bool {
        self.get(format!("lock:{name}")).is_none()
    }

    /// Returns a key's remaining time in ms: -1 without an expiry, -2 if it does not exist.
    pub fn pttl(&self, key: impl AsRef<[u8]>) -> i64 {
        redis::cmd("PTTL")
            .arg(key.as_ref())
            .query(&mut self.connection())
            .expect("PTTL answers")
    }

    /// Returns the time of the server's clock, in µs since 1970.
    pub fn micros(&self) -> u64 {
        let (seconds, micros): (u64, u64) = redis::cmd("TIME")
            .query(&mut self.connection())
            .expect("TIME answers");
        seconds * 1_000_000 + micros
    }

    /// Returns all keys, sorted, without those with which a client compares two connections.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = redis::cmd("KEYS")
            .arg("*")
            .query(&mut self.connection())
            .expect("KEYS answers");
        keys.retain(|key| !key.starts_with(b"leasehold:fence:probe:"));
        keys.sort();
        keys
    }

    /// Returns the number of connections that are subscribed to a channel.
    pub fn subscribers(&self, channel: impl AsRef<[u8]>) -> usize {
        let (_, count): (Value, usize) = redis::cmd("PUBSUB")
            .arg("NUMSUB")
            .arg(channel.as_ref())
            .query(&mut self.connection())
            .expect("PUBSUB NUMSUB answers");
        count
    }

    /// Returns the number of subscribed channels that match the pattern.
    pub fn subscribed_channels(&self, pattern: &str) -> usize {
        let channels: Vec<Value> = redis::cmd("PUBSUB")
            .arg("CHANNELS")
            .arg(pattern)
            .query(&mut self.connection())
            .expect("PUBSUB CHANNELS answers");
        channels.len()
    }

    /// Waits until a waiter has subscribed to the channel, and then until no script has run for
    /// 50 ms. Unless the machine is overloaded, the attempts that follow a subscription have then
    /// arrived.
    ///
    /// After that, the waiter sends commands only after a wake-up, to refresh its place in a queue,
    /// at the end of the holder's ttl, once a second, or shortly before its deadline.
    pub fn wait_until_waiter_sleeps(&self, channel: impl AsRef<[u8]>) {
        eventually(ms(10_000), || self.subscribers(&channel) > 0);
        let mut last = (0, Instant::now());
        eventually(ms(10_000), || {
            let calls = self.script_calls();
            if calls != last.0 {
                last = (calls, Instant::now());
            }
            last.1.elapsed() >= ms(50)
        });
    }
}
