//! The state of a server, which its thread and the test share.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::clock;
use crate::sync::Mutex;

use super::connection::ClientConnection;
use super::database::{DATABASES, Database, Message};
use super::faults::Faults;
use super::port::{Listener, Port};
use super::reply::Reply;
use super::resp::read_request;
use super::script::Scripts;

/// The ttl of a foreign holder's lease: the default ttl of a client.
pub(super) const FOREIGN_TTL: Duration = Duration::from_secs(10);

/// The most by which a server's clock can be moved ahead: 100 years. Fencing tokens are its time in
/// µs, and must stay below 2^53, which is in the year 2255.
const LONGEST_AHEAD: Duration = Duration::from_secs(100 * 365 * 86_400);

pub(super) struct ServerState {
    pub(super) database: Arc<Mutex<Database>>,
    /// The Lua interpreter, started for the first script.
    scripts: Option<Scripts>,
    pub(super) port: Port,
    pub(super) connections: BTreeMap<u64, ClientConnection>,
    next_connection: u64,
    clock: ServerClock,
    pub(super) faults: Faults,
    /// How often each command was called.
    pub(super) calls: BTreeMap<String, u64>,
    /// The keys and holder ids of the foreign holders whose leases the server's thread renews.
    pub(super) foreign: Vec<(Vec<u8>, Vec<u8>)>,
    /// How many rounds the server's thread has begun.
    pub(super) rounds: u64,
    pub(super) is_stopping: bool,
}

impl ServerState {
    pub(super) fn new(port: Port) -> Self {
        Self {
            database: Arc::default(),
            scripts: None,
            port,
            connections: BTreeMap::new(),
            next_connection: 1,
            clock: ServerClock::start(),
            faults: Faults::default(),
            calls: BTreeMap::new(),
            foreign: Vec::new(),
            rounds: 0,
            is_stopping: false,
        }
    }

    /// Moves the clock ahead by `time` and a millisecond.
    pub(super) fn advance(&mut self, time: Duration) {
        // A key exists until the end of its last millisecond.
        let time = time.saturating_add(Duration::from_millis(1));
        // Foreign holders renew their leases while the time passes: none of them expires.
        self.renew_foreign(time.min(LONGEST_AHEAD) + FOREIGN_TTL);
        self.clock.advance(time);
        self.renew_foreign(FOREIGN_TTL);
    }

    /// Runs `act`, and returns the values that it has removed or replaced. The holder ids of all
    /// leases that it has ended are among them.
    pub(super) fn ended_by(&mut self, act: impl FnOnce(&mut Self)) -> Vec<Vec<u8>> {
        let before = self.values();
        act(self);
        let after = self.values();
        let ended = before.difference(&after);
        ended.map(|(_, _, value)| value.clone()).collect()
    }

    /// Returns the values of all strings with their databases and keys, and likewise the members of
    /// all sorted sets whose score, an end in ms, has not passed. The holder ids of all leases are
    /// among them.
    fn values(&mut self) -> BTreeSet<(u32, Vec<u8>, Vec<u8>)> {
        let now = (self.clock.now() / 1_000).to_string();
        let mut values = BTreeSet::new();
        for database in 0..DATABASES {
            let Reply::Array(Some(keys)) = self.run_on(database, &[b"KEYS", b"*"]) else {
                continue;
            };
            for key in keys {
                let Reply::Bulk(Some(key)) = key else {
                    continue;
                };
                let mut found = self.members_from(database, &key, now.as_bytes());
                if let Reply::Bulk(Some(value)) = self.run_on(database, &[b"GET", &key]) {
                    found.push(value);
                }
                values.extend(
                    found
                        .into_iter()
                        .map(|value| (database, key.clone(), value)),
                );
            }
        }
        values
    }

    /// Returns the members of a sorted set whose scores are at least `least`; none if the key is of
    /// another type.
    pub(super) fn members_from(&mut self, database: u32, key: &[u8], least: &[u8]) -> Vec<Vec<u8>> {
        let words: [&[u8]; 4] = [b"ZRANGEBYSCORE", key, least, b"+inf"];
        let Reply::Array(Some(members)) = self.run_on(database, &words) else {
            return Vec::new();
        };
        let members = members.into_iter();
        let members = members.filter_map(|member| match member {
            Reply::Bulk(member) => member,
            _ => None,
        });
        members.collect()
    }

    /// Runs a command on the data of database 0, for the test.
    pub(super) fn run_on_data(&mut self, words: &[&[u8]]) -> Reply {
        self.run_on(0, words)
    }

    fn run_on(&mut self, database: u32, words: &[&[u8]]) -> Reply {
        self.prepare(database);
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
        self.database.lock().run(&words)
    }

    /// Sets the time and the database of the next commands.
    pub(super) fn prepare(&mut self, database: u32) {
        let mut data = self.database.lock();
        data.now = self.clock.now();
        data.selected = database;
    }

    /// Returns the interpreter; starts it for the first script.
    ///
    /// # Panics
    ///
    /// If Lua cannot be started, which takes a few dozen KiB of memory.
    pub(super) fn scripts(&mut self) -> &mut Scripts {
        let database = &self.database;
        self.scripts.get_or_insert_with(|| {
            Scripts::new(database).unwrap_or_else(|error| panic!("cannot start Lua: {error}"))
        })
    }

    /// Accepts the connections that wait; returns false if the process cannot accept them now.
    pub(super) fn accept(&mut self, listener: &Listener) -> bool {
        loop {
            match listener.accept() {
                // Closes the connection at once. A cut closes the port, but not the Unix socket: a
                // connection that waits there would keep it ready, and the thread would spin.
                Ok(_) if self.faults.cuts > 0 => {}
                Ok(socket) => {
                    let connection = ClientConnection::new(socket);
                    self.connections.insert(self.next_connection, connection);
                    self.next_connection += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Reads the requests that a connection has sent, and serves them.
    pub(super) fn receive(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let is_open = connection.receive();
        let mut input = std::mem::take(&mut connection.input);
        let mut served = 0;
        // A connection that is ending is not served any more, even if the peer has sent more.
        while self.is_served(id) {
            match read_request(input.get(served..).unwrap_or_default()) {
                Ok(None) => break,
                Ok(Some((words, length))) => {
                    served += length;
                    self.serve(id, &words);
                }
                Err(error) => self.end(id, &Reply::Error(error.into())),
            }
        }
        input.drain(..served);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.input = input;
        }
        self.deliver();
        if !is_open {
            self.close(id);
        }
    }

    fn is_served(&self, id: u64) -> bool {
        let connection = self.connections.get(&id);
        connection.is_some_and(|connection| !connection.is_ending)
    }

    /// Sends `last` as the last reply of a connection, and then closes the connection.
    pub(super) fn end(&mut self, id: u64, last: &Reply) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.protocol.write(last, &mut connection.output);
            connection.is_ending = true;
        }
    }

    /// Sends all replies and messages as far as the sockets take them; nothing while the server is
    /// paused.
    pub(super) fn deliver(&mut self) {
        let messages = std::mem::take(&mut self.database.lock().outbox);
        for Message {
            to,
            channel,
            payload,
        } in messages
        {
            if let Some(connection) = self.connections.get_mut(&to) {
                let items = [
                    Reply::bulk("message"),
                    Reply::bulk(channel),
                    Reply::bulk(payload),
                ];
                connection
                    .protocol
                    .write_push(&items, &mut connection.output);
            }
        }
        if self.faults.pauses > 0 {
            return;
        }
        let has_output =
            |connection: &ClientConnection| !connection.output.is_empty() || connection.is_ending;
        let mut broken = Vec::new();
        for (id, connection) in &mut self.connections {
            if has_output(connection) && !connection.send() {
                broken.push(*id);
            }
        }
        for id in broken {
            self.close(id);
        }
    }

    fn close(&mut self, id: u64) {
        self.connections.remove(&id);
        let mut database = self.database.lock();
        for channel in database.channels_of(id) {
            database.unsubscribe(id, &channel);
        }
    }

    /// Closes all connections, and refuses new ones.
    pub(super) fn close_port(&mut self) {
        let open: Vec<u64> = self.connections.keys().copied().collect();
        for id in open {
            self.close(id);
        }
        self.port.close().unwrap_or_else(|error| {
            panic!("cannot reserve the port of a testing::Server while it is cut off: {error}")
        });
    }

    pub(super) fn open_port(&mut self) {
        self.port
            .reopen()
            .expect("a socket that is bound to the port can listen");
    }

    /// Extends the leases of foreign holders to `ttl`, and forgets holders whose leases have ended.
    /// Does nothing while the server is paused or cut off.
    pub(super) fn renew_foreign(&mut self, ttl: Duration) {
        if self.faults.is_unreachable() {
            return;
        }
        let mut foreign = std::mem::take(&mut self.foreign);
        let ttl = ttl.as_millis().to_string();
        foreign.retain(|(key, id)| {
            let is_held = self.run_on_data(&[b"GET", key]) == Reply::bulk(id.clone());
            if is_held {
                self.run_on_data(&[b"PEXPIRE", key, ttl.as_bytes()]);
            }
            is_held
        });
        self.foreign = foreign;
    }
}

/// The server's clock: it runs at the speed of the machine's clock, and the test moves it ahead.
struct ServerClock {
    /// The wall clock when the server started.
    base: Duration,
    /// The time since the machine started, when the server started.
    started: Duration,
    /// By how much the test has moved the clock ahead.
    ahead: Duration,
}

impl ServerClock {
    fn start() -> Self {
        let since = clock::wall_time().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            base: since.unwrap_or_default(),
            started: clock::since_start(),
            ahead: Duration::ZERO,
        }
    }

    fn advance(&mut self, time: Duration) {
        self.ahead = self.ahead.saturating_add(time).min(LONGEST_AHEAD);
    }

    /// Returns µs since 1970.
    fn now(&self) -> u64 {
        let elapsed = clock::since_start().saturating_sub(self.started);
        let now = self.base + elapsed + self.ahead;
        u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
    }
}
