//! The data of a server: its keyspaces, its time, and the subscribers of each channel.

use std::collections::{BTreeMap, BTreeSet};

use super::keyspace::args::unknown_part;
use super::keyspace::{Keyspace, glob};
use super::reply::Reply;

/// How many databases a Redis has unless it is configured otherwise.
pub(super) const DATABASES: u32 = 16;

/// A message for a connection.
pub(super) struct Message {
    pub(super) to: u64,
    pub(super) channel: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

#[derive(Default)]
pub(super) struct Database {
    keyspaces: BTreeMap<u32, Keyspace>,
    subscribers: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    /// Published, and not handed to the connections yet.
    pub(super) outbox: Vec<Message>,
    /// How often scripts called each command.
    pub(super) calls_in_scripts: BTreeMap<String, u64>,
    /// How many of the next messages that scripts publish to subscribers are lost.
    pub(super) messages_to_drop: u64,
    /// The server's time while a command runs, in µs since 1970: a script sees a single instant.
    pub(super) now: u64,
    /// The number of the keyspace that commands use.
    pub(super) selected: u32,
}

impl Database {
    /// Runs a command on the data.
    pub(super) fn run(&mut self, words: &[Vec<u8>]) -> Reply {
        let keyspace = self.keyspaces.entry(self.selected).or_default();
        let reply = keyspace.execute(self.now, words);
        if reply == Reply::OK && words[0].eq_ignore_ascii_case(b"FLUSHALL") {
            self.keyspaces.clear();
        }
        reply
    }

    /// Runs a command that a script calls.
    pub(super) fn run_in_script(&mut self, words: &[Vec<u8>]) -> Reply {
        if let Some(verb) = words.first() {
            let verb = String::from_utf8_lossy(verb).to_ascii_lowercase();
            *self.calls_in_scripts.entry(verb).or_default() += 1;
        }
        match words {
            [verb, channel, payload] if verb.eq_ignore_ascii_case(b"PUBLISH") => {
                let is_lost = self.messages_to_drop > 0 && self.count_subscribers(channel) > 0;
                self.messages_to_drop -= u64::from(is_lost);
                Reply::Int(self.publish(channel, payload, is_lost))
            }
            [verb, what, args @ ..] if verb.eq_ignore_ascii_case(b"PUBSUB") => {
                let what = String::from_utf8_lossy(what).to_ascii_uppercase();
                self.pubsub(&what, args)
            }
            _ => self.run(words),
        }
    }

    /// Publishes a message and returns how many connections are subscribed, even if it `is_lost`:
    /// Redis does not know whether a message arrives.
    pub(super) fn publish(&mut self, channel: &[u8], payload: &[u8], is_lost: bool) -> i64 {
        let receivers = self.subscribers.get(channel);
        let receivers: Vec<u64> = receivers.into_iter().flatten().copied().collect();
        if !is_lost {
            for &to in &receivers {
                self.outbox.push(Message {
                    to,
                    channel: channel.to_vec(),
                    payload: payload.to_vec(),
                });
            }
        }
        i64::try_from(receivers.len()).unwrap_or(i64::MAX)
    }

    pub(super) fn subscribe(&mut self, connection: u64, channel: &[u8]) {
        let subscribers = self.subscribers.entry(channel.to_vec()).or_default();
        subscribers.insert(connection);
    }

    pub(super) fn unsubscribe(&mut self, connection: u64, channel: &[u8]) {
        if let Some(subscribers) = self.subscribers.get_mut(channel) {
            subscribers.remove(&connection);
            if subscribers.is_empty() {
                self.subscribers.remove(channel);
            }
        }
    }

    /// Returns the channels that a connection is subscribed to.
    pub(super) fn channels_of(&self, connection: u64) -> Vec<Vec<u8>> {
        let subscribed = self.subscribers.iter();
        let subscribed = subscribed.filter(|(_, subscribers)| subscribers.contains(&connection));
        subscribed.map(|(channel, _)| channel.clone()).collect()
    }

    fn count_subscribers(&self, channel: &[u8]) -> usize {
        self.subscribers.get(channel).map_or(0, BTreeSet::len)
    }

    /// Runs a subcommand of PUBSUB.
    pub(super) fn pubsub(&self, what: &str, args: &[Vec<u8>]) -> Reply {
        match (what, args) {
            ("NUMSUB", channels) => Reply::array(channels.iter().flat_map(|channel| {
                let count = self.count_subscribers(channel);
                [Reply::bulk(channel.clone()), Reply::count(count)]
            })),
            ("CHANNELS", [] | [_]) => {
                let pattern = args.first().map_or(&b"*"[..], Vec::as_slice);
                let channels = self.subscribers.keys();
                let found = channels.filter(|channel| glob::matches(pattern, channel));
                Reply::array(found.cloned().map(Reply::bulk))
            }
            _ => Reply::Error(unknown_part(b"PUBSUB", what.as_bytes())),
        }
    }

    /// Returns a copy of the selected keyspace.
    #[cfg(sim)]
    pub(super) fn data(&self) -> Keyspace {
        let data = self.keyspaces.get(&self.selected);
        data.cloned().unwrap_or_default()
    }

    #[cfg(sim)]
    pub(super) fn set_data(&mut self, data: Keyspace) {
        self.keyspaces.insert(self.selected, data);
    }

    /// Returns the names of all keys, of all databases.
    pub(super) fn keys(&mut self) -> Vec<String> {
        let now = self.now;
        let keys = self
            .keyspaces
            .values_mut()
            .flat_map(|keyspace| keyspace.keys(now));
        let mut keys: Vec<String> = keys
            .map(|key| String::from_utf8_lossy(&key).into_owned())
            .collect();
        keys.sort_unstable();
        keys
    }
}
