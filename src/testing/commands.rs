//! The commands about connections, scripts and messages, and INFO, ROLE and WAIT. The database runs
//! all others.

use std::fmt::Write as _;

use super::connection::ClientConnection;
use super::database::DATABASES;
use super::keyspace::args::{integer, unknown_part, wrong_number};
use super::reply::Reply;
use super::resp::Protocol;
use super::state::ServerState;

/// Unsupported commands, grouped by the feature that is missing.
const UNSUPPORTED: [(&str, &[&str]); 5] = [
    (
        "no cluster",
        &["ASKING", "CLUSTER", "MIGRATE", "READONLY", "READWRITE"],
    ),
    ("no Sentinel", &["SENTINEL"]),
    (
        "no replicas",
        &[
            "FAILOVER",
            "PSYNC",
            "REPLCONF",
            "REPLICAOF",
            "SLAVEOF",
            "SYNC",
        ],
    ),
    ("no users and no passwords", &["ACL", "AUTH"]),
    (
        "no settings, memory limits or persistence",
        &[
            "BGREWRITEAOF",
            "BGSAVE",
            "CONFIG",
            "DEBUG",
            "DUMP",
            "LASTSAVE",
            "MEMORY",
            "MODULE",
            "RESTORE",
            "SAVE",
            "SHUTDOWN",
        ],
    ),
];

/// The commands that a subscribed connection may send, if it uses version 2 of the protocol.
const WHILE_SUBSCRIBED: [&str; 3] = ["SUBSCRIBE", "UNSUBSCRIBE", "PING"];

impl ServerState {
    /// Runs a command, and adds its reply to the connection's output.
    pub(super) fn serve(&mut self, id: u64, words: &[Vec<u8>]) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let (database, protocol) = (connection.database, connection.protocol);
        let is_subscribed = connection.channels > 0 && protocol == Protocol::Resp2;
        let Some((verb, args)) = words.split_first() else {
            return;
        };
        let verb = String::from_utf8_lossy(verb).to_ascii_uppercase();
        self.count(&verb, args);
        self.prepare(database);
        if is_subscribed && !WHILE_SUBSCRIBED.contains(&verb.as_str()) {
            let verb = verb.to_ascii_lowercase();
            let text = format!(
                "ERR Can't execute '{verb}': only SUBSCRIBE / UNSUBSCRIBE / PING are \
                 allowed in this context"
            );
            return self.reply(id, &Reply::Error(text));
        }
        match verb.as_str() {
            "EVAL" | "EVALSHA" => match self.eval(verb == "EVAL", args) {
                Some(reply) => self.reply(id, &reply),
                None => self.mute(id),
            },
            "SUBSCRIBE" | "UNSUBSCRIBE" => self.subscribe(id, verb == "SUBSCRIBE", args),
            "HELLO" => self.hello(id, args),
            "PING" if is_subscribed => {
                self.push(id, [Reply::bulk("pong"), Reply::bulk("")]);
            }
            _ => {
                let reply = self.reply_to(id, &verb, words);
                self.reply(id, &reply);
            }
        }
    }

    /// Runs a command that has one reply, and returns the reply.
    fn reply_to(&mut self, id: u64, verb: &str, words: &[Vec<u8>]) -> Reply {
        let args = words.get(1..).unwrap_or_default();
        match (verb, args) {
            ("PING", []) => Reply::Status("PONG"),
            ("PING", [text]) => Reply::bulk(text.clone()),
            ("SELECT", [number]) => self.select(id, number),
            ("CLIENT", [subcommand, rest @ ..]) => self.client(id, &upper(subcommand), rest),
            ("SCRIPT", [subcommand, rest @ ..]) => self.script(&upper(subcommand), rest),
            ("PUBLISH", [channel, message]) => {
                Reply::Int(self.database.lock().publish(channel, message, false))
            }
            ("PUBSUB", [subcommand, rest @ ..]) => {
                self.database.lock().pubsub(&upper(subcommand), rest)
            }
            ("ROLE", []) => Reply::array([Reply::bulk("master"), Reply::Int(0), Reply::array([])]),
            ("WAIT", [replicas, _]) if replicas == b"0" => Reply::Int(0),
            ("WAIT", [_, _]) => unsupported("WAIT", "no replicas"),
            ("INFO", _) => Reply::bulk(self.info()),
            (
                "PING" | "SELECT" | "CLIENT" | "SCRIPT" | "PUBLISH" | "PUBSUB" | "ROLE" | "WAIT",
                _,
            ) => Reply::Error(wrong_number(verb)),
            _ => match UNSUPPORTED.iter().find(|(_, verbs)| verbs.contains(&verb)) {
                Some((missing, _)) => unsupported(verb, missing),
                None => self.database.lock().run(words),
            },
        }
    }

    /// Runs a script. Returns its reply, or `None` if the test drops the reply.
    fn eval(&mut self, by_source: bool, args: &[Vec<u8>]) -> Option<Reply> {
        if let Some(error) = self.faults.refusal() {
            return Some(Reply::Error(error.into()));
        }
        let verb = if by_source { "eval" } else { "evalsha" };
        let [script, count, words @ ..] = args else {
            return Some(Reply::Error(wrong_number(verb)));
        };
        let count = match integer(count) {
            Ok(count) => usize::try_from(count),
            Err(error) => return Some(Reply::Error(error)),
        };
        let Ok(count) = count else {
            let text = "ERR Number of keys can't be negative";
            return Some(Reply::Error(text.into()));
        };
        let Some((keys, args)) = words.split_at_checked(count) else {
            let text = "ERR Number of keys can't be greater than number of args";
            return Some(Reply::Error(text.into()));
        };
        let name = if by_source {
            match self.scripts().load(script) {
                Ok(name) => name,
                Err(error) => return Some(error),
            }
        } else {
            String::from_utf8_lossy(script).to_ascii_lowercase()
        };
        match self.scripts().run(&name, keys, args) {
            Some(_) if self.faults.loses_reply() => None,
            Some(reply) => Some(reply),
            None => Some(Reply::Error(
                "NOSCRIPT No matching script. Please use EVAL.".into(),
            )),
        }
    }

    /// Runs a script for the test itself, even while the server refuses scripts or drops replies.
    /// `drop_messages` applies to it, too.
    pub(super) fn eval_without_faults(&mut self, words: &[Vec<u8>]) -> Reply {
        self.prepare(0);
        let faults = std::mem::take(&mut self.faults);
        let reply = self.eval(true, words.get(1..).unwrap_or_default());
        self.faults = faults;
        reply.expect("without a fault no reply is lost")
    }

    fn script(&mut self, subcommand: &str, args: &[Vec<u8>]) -> Reply {
        match (subcommand, args) {
            ("FLUSH", _) => {
                self.scripts().flush();
                Reply::OK
            }
            _ => Reply::Error(unknown_part(b"SCRIPT", subcommand.as_bytes())),
        }
    }

    fn subscribe(&mut self, id: u64, is_new: bool, args: &[Vec<u8>]) {
        let mut channels = args.to_vec();
        if channels.is_empty() && is_new {
            return self.reply(id, &Reply::Error(wrong_number("subscribe")));
        }
        let mut database = self.database.lock();
        if channels.is_empty() {
            channels = database.channels_of(id);
        }
        let mut confirmed = Vec::new();
        for channel in channels {
            if is_new {
                database.subscribe(id, &channel)
            } else {
                database.unsubscribe(id, &channel)
            }
            confirmed.push((Reply::bulk(channel), database.channels_of(id).len()));
        }
        drop(database);
        if confirmed.is_empty() {
            confirmed.push((Reply::NIL, 0));
        }
        let kind = if is_new { "subscribe" } else { "unsubscribe" };
        for (channel, count) in confirmed {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.channels = count;
            }
            self.push(id, [Reply::bulk(kind), channel, Reply::count(count)]);
        }
    }

    fn hello(&mut self, id: u64, args: &[Vec<u8>]) {
        let protocol = match args {
            [] => None,
            [version] if version == b"2" => Some(Protocol::Resp2),
            [version] if version == b"3" => Some(Protocol::Resp3),
            [_] => {
                let error = "NOPROTO unsupported protocol version";
                return self.reply(id, &Reply::Error(error.into()));
            }
            [_, option, ..] if !option.eq_ignore_ascii_case(b"AUTH") => {
                let error = Reply::Error(unknown_part(b"HELLO", option));
                return self.reply(id, &error);
            }
            [_, ..] => {
                let error = unsupported("AUTH", "no users and no passwords");
                return self.reply(id, &error);
            }
        };
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.protocol = protocol.unwrap_or(connection.protocol);
        let items = [
            (Reply::bulk("server"), Reply::bulk("redis")),
            (Reply::bulk("version"), Reply::bulk(VERSION)),
            (
                Reply::bulk("proto"),
                Reply::Int(connection.protocol.version()),
            ),
            (
                Reply::bulk("id"),
                Reply::count(usize::try_from(id).unwrap_or(0)),
            ),
            (Reply::bulk("mode"), Reply::bulk("standalone")),
            (Reply::bulk("role"), Reply::bulk("master")),
            (Reply::bulk("modules"), Reply::array([])),
        ];
        let items: Vec<Reply> = items
            .into_iter()
            .flat_map(|(key, value)| [key, value])
            .collect();
        connection
            .protocol
            .write_map(&items, &mut connection.output);
    }

    fn select(&mut self, id: u64, number: &[u8]) -> Reply {
        let number = match integer(number) {
            Ok(number) => u32::try_from(number).ok(),
            Err(error) => return Reply::Error(error),
        };
        match (number, self.connections.get_mut(&id)) {
            (Some(number), Some(connection)) if number < DATABASES => {
                connection.database = number;
                Reply::OK
            }
            _ => Reply::Error("ERR DB index is out of range".into()),
        }
    }

    fn client(&mut self, id: u64, subcommand: &str, args: &[Vec<u8>]) -> Reply {
        match (subcommand, args) {
            ("ID", []) => Reply::count(usize::try_from(id).unwrap_or(0)),
            ("SETINFO", [_, _]) => Reply::OK,
            ("SETNAME", [name]) => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.name.clone_from(name);
                }
                Reply::OK
            }
            ("LIST", []) => Reply::bulk(self.client_list()),
            ("KILL", _) => self.client_kill(id, args),
            _ => Reply::Error(unknown_part(b"CLIENT", subcommand.as_bytes())),
        }
    }

    fn client_list(&self) -> String {
        let mut list = String::new();
        for (id, connection) in &self.connections {
            let name = String::from_utf8_lossy(&connection.name);
            let flags = if connection.channels > 0 { "P" } else { "N" };
            let (database, channels) = (connection.database, connection.channels);
            let resp = connection.protocol.version();
            let _ = writeln!(
                list,
                "id={id} name={name} flags={flags} db={database} sub={channels} resp={resp}"
            );
        }
        list
    }

    /// Closes all connections, or those of the type that the option TYPE names. Closes the caller's
    /// own only with `SKIPME no`.
    fn client_kill(&mut self, id: u64, args: &[Vec<u8>]) -> Reply {
        match args {
            [] => return Reply::Error(wrong_number("client|kill")),
            [address] => return Reply::Error(unknown_part(b"CLIENT KILL", address)),
            _ => {}
        }
        let (options, []) = args.as_chunks() else {
            return Reply::Error("ERR syntax error".into());
        };
        let (mut has_type, mut skips_caller): (fn(&ClientConnection) -> bool, bool) =
            (|_| true, true);
        for [option, value] in options {
            match (&*upper(option), &*upper(value)) {
                ("TYPE", "NORMAL") => has_type = |connection| connection.channels == 0,
                ("TYPE", "PUBSUB") => has_type = |connection| connection.channels > 0,
                ("TYPE", "MASTER" | "REPLICA" | "SLAVE") => has_type = |_| false,
                ("TYPE", _) => {
                    let kind = value.escape_ascii();
                    return Reply::Error(format!("ERR Unknown client type '{kind}'"));
                }
                ("SKIPME", "YES") => skips_caller = true,
                ("SKIPME", "NO") => skips_caller = false,
                ("SKIPME", _) => return Reply::Error("ERR syntax error".into()),
                _ => return Reply::Error(unknown_part(b"CLIENT KILL", option)),
            }
        }
        let mut killed = 0;
        for (other, connection) in &mut self.connections {
            if has_type(connection) && !(skips_caller && *other == id) {
                connection.is_ending = true;
                killed += 1;
            }
        }
        Reply::Int(killed)
    }

    /// Returns the sections that tools read, whatever sections the command names.
    fn info(&self) -> String {
        let mut info = format!(
            "# Server\r\nredis_version:{VERSION}\r\nredis_mode:standalone\r\n\r\n# Replication\r\n\
             role:master\r\nconnected_slaves:0\r\n\r\n# Commandstats\r\n"
        );
        let mut calls = self.calls.clone();
        for (command, called) in &self.database.lock().calls_in_scripts {
            *calls.entry(command.clone()).or_default() += called;
        }
        for (command, calls) in calls {
            let _ = write!(info, "cmdstat_{command}:calls={calls}\r\n");
        }
        info
    }

    /// Counts a command under its name in the command statistics of Redis.
    fn count(&mut self, verb: &str, args: &[Vec<u8>]) {
        let mut name = verb.to_ascii_lowercase();
        if let ("CLIENT" | "SCRIPT" | "PUBSUB", [subcommand, ..]) = (verb, args) {
            name = format!("{name}|{}", upper(subcommand).to_ascii_lowercase());
        }
        *self.calls.entry(name).or_default() += 1;
    }

    /// Sends the replies before a dropped one, and nothing after it: the client would take a later
    /// reply for the dropped one.
    fn mute(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.send();
            connection.is_mute = true;
        }
    }

    fn reply(&mut self, id: u64, reply: &Reply) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.protocol.write(reply, &mut connection.output);
        }
    }

    fn push<const N: usize>(&mut self, id: u64, items: [Reply; N]) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection
                .protocol
                .write_push(&items, &mut connection.output);
        }
    }
}

/// The version of Redis that the server imitates.
const VERSION: &str = "7.0.15";

fn upper(word: &[u8]) -> String {
    String::from_utf8_lossy(word).to_ascii_uppercase()
}

fn unsupported(verb: &str, missing: &str) -> Reply {
    Reply::Error(format!(
        "ERR {verb}: the server of leasehold::testing has {missing}; test this with a real server"
    ))
}
