//! The scripts and the data of a server without sockets, at the times that its user passes.

use std::fmt;
use std::sync::Arc;

use super::database::{Database, Message};
pub(crate) use super::keyspace::Keyspace;
use super::reply::Reply as Found;
use super::script::Scripts;

use crate::protocol::reply::Reply;
use crate::protocol::script::Call;
use crate::sync::Mutex;

/// A server for simulations. Times are in µs since 1970.
pub(crate) struct Scripted {
    scripts: Scripts,
    database: Arc<Mutex<Database>>,
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

impl Scripted {
    pub(crate) fn new() -> Self {
        let database = Arc::default();
        Self {
            scripts: Scripts::new(&database).expect("the prelude is valid"),
            database,
        }
    }

    /// Deletes all data and subscriptions.
    pub(crate) fn reset(&self) {
        *self.database.lock() = Database::default();
    }

    /// Runs a script; an error is the text of an error reply.
    pub(crate) fn run(&mut self, call: &Call<'_>, now: u64) -> Result<Reply, String> {
        self.database.lock().now = now;
        let [keys, args] = call.words();
        let sha = call.script.sha();
        let found = match self.scripts.run(sha, &keys, &args) {
            Some(found) => Some(found),
            None => {
                let source = call.script.source.as_bytes();
                self.scripts.load(source).expect("our scripts are valid");
                self.scripts.run(sha, &keys, &args)
            }
        };
        reply(found.expect("it was just loaded"))
    }

    /// Runs a command on the data.
    pub(crate) fn command(&self, words: &[&[u8]], now: u64) -> Result<Reply, String> {
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
        let mut database = self.database.lock();
        database.now = now;
        reply(database.run(&words))
    }

    pub(crate) fn subscribe(&self, connection: u64, channel: &[u8]) {
        self.database.lock().subscribe(connection, channel);
    }

    /// Ends all subscriptions of a connection.
    pub(crate) fn unsubscribe(&self, connection: u64) {
        let mut database = self.database.lock();
        for channel in database.channels_of(connection) {
            database.unsubscribe(connection, &channel);
        }
    }

    /// Returns what was published since the last time: each connection, with a channel and a
    /// message.
    pub(crate) fn take_messages(&self) -> Vec<(u64, Vec<u8>, Vec<u8>)> {
        let messages = std::mem::take(&mut self.database.lock().outbox);
        let parts = |message: Message| (message.to, message.channel, message.payload);
        messages.into_iter().map(parts).collect()
    }

    /// Returns a copy of the data.
    #[cfg(sim)]
    pub(crate) fn data(&self) -> Keyspace {
        self.database.lock().data()
    }

    /// Replaces the data.
    #[cfg(sim)]
    pub(crate) fn set_data(&self, data: Keyspace) {
        self.database.lock().set_data(data);
    }
}

fn reply(found: Found) -> Result<Reply, String> {
    Ok(match found {
        Found::Status(text) => Reply::Status(text.into()),
        Found::Int(number) => Reply::Int(number),
        Found::Bulk(Some(text)) => Reply::Text(text),
        Found::Bulk(None) | Found::Array(None) => Reply::Nil,
        Found::Array(Some(items)) => {
            let items = items.into_iter().map(reply);
            Reply::List(items.collect::<Result<_, _>>()?)
        }
        Found::Error(text) => return Err(text),
    })
}
