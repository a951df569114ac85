//! The kit's server without its connections and clock.
//!
//! These are the kit's own source files, compiled into this test once more: the kit's interface
//! has no command that stops the clock at a given time.

#[expect(dead_code, reason = "connections and `KEYS` are not in this test")]
#[path = "../../src/testing/database.rs"]
mod database;
#[path = "../../src/testing/keyspace/mod.rs"]
mod keyspace;
#[path = "../../src/testing/reply.rs"]
mod reply;
#[expect(dead_code, reason = "no script is deleted in this test")]
#[path = "../../src/testing/script.rs"]
mod script;

use std::sync::Arc;

use crate::sync::Mutex;
use database::Database;
pub(crate) use reply::Reply;
use script::Scripts;

/// The number of the connection that receives all messages.
const SUBSCRIBER: u64 = 1;

pub(crate) struct Kit {
    database: Arc<Mutex<Database>>,
    scripts: Scripts,
}

impl Kit {
    pub(crate) fn new() -> Self {
        let database = Arc::default();
        let scripts = Scripts::new(&database).expect("Lua starts");
        Self { database, scripts }
    }

    /// Compiles a script and returns its digest.
    pub(crate) fn load(&mut self, source: &str) -> String {
        self.scripts
            .load(source.as_bytes())
            .expect("the script is Lua")
    }

    pub(crate) fn run(&mut self, now: u64, args: &[Vec<u8>]) -> Reply {
        self.database.lock().now = now;
        let [verb, digest, count, rest @ ..] = args else {
            return self.database.lock().run(args);
        };
        if verb != b"EVALSHA" {
            return self.database.lock().run(args);
        }
        let digest = str::from_utf8(digest).unwrap();
        let count = str::from_utf8(count).unwrap().parse().unwrap();
        let (keys, args) = rest.split_at(count);
        self.scripts
            .run(digest, keys, args)
            .expect("the script is loaded")
    }

    /// Returns whether scripts can call a command.
    pub(crate) fn knows(&mut self, command: &str) -> bool {
        // Some arguments, so that commands with parameters run, too.
        let words = [command, "none", "0"].map(|word| word.as_bytes().to_vec());
        let reply = self.database.lock().run_in_script(&words);
        !matches!(reply, Reply::Error(text) if text.contains("unknown command"))
    }

    pub(crate) fn subscribe(&mut self, channel: &str) {
        self.database
            .lock()
            .subscribe(SUBSCRIBER, channel.as_bytes());
    }

    /// Returns the messages published since the last call, as Redis sends them.
    pub(crate) fn messages(&mut self) -> Reply {
        let mut database = self.database.lock();
        let messages = database.outbox.drain(..);
        Reply::array(messages.map(|message| {
            let words = [b"message".to_vec(), message.channel, message.payload];
            Reply::array(words.map(Reply::bulk))
        }))
    }
}
