//! Promise: servers reply as recorded in this folder; the decoders are tested with the recordings.
//!
//! `LEASEHOLD_RECORD=1 cargo test --all-features --test it replies::` records them again.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use redis::Value;
use support::scripts;
use support::{Cluster, Sentinels, Server, Setup, eventually, in_repository, ms, recorded_reply};

support::tests![
    several_servers_reply_as_recorded,
    one_server_replies_as_recorded,
    no_script_leaves_the_format_of_a_large_number_to_the_server
];

mod shared;

/// Runs before a script, and fails if it passes a large number to a command that reads integers:
/// Redis 7.2.0 to 7.2.4 write a multiple of 10^8 with an exponent. The commands of sorted sets read
/// floating point.
const STRICT: &str = "
    local server = redis
    local function strict(run)
      return function(command, ...)
        for _, word in ipairs({...}) do
          if type(word) == 'number' and word >= 1e8 and string.sub(command, 1, 1) ~= 'Z' then
            error('a large number for ' .. command)
          end
        end
        return run(command, ...)
      end
    end
    local redis = {call = strict(server.call), pcall = strict(server.pcall)}
    redis.error_reply, redis.sha1hex = server.error_reply, server.sha1hex
";

/// A connection that keeps the bytes of its replies.
struct Raw {
    stream: TcpStream,
    /// Runs before each script.
    before: &'static str,
}

impl Raw {
    fn to(port: u16) -> Self {
        Self {
            stream: TcpStream::connect(("127.0.0.1", port)).unwrap(),
            before: "",
        }
    }

    fn send(&mut self, words: &[&str]) -> Vec<u8> {
        self.stream
            .write_all(&redis::cmd(words[0]).arg(&words[1..]).get_packed_command())
            .unwrap();
        self.receive()
    }

    fn script(&mut self, source: &str, keys: &[&str], args: &[&str]) -> Vec<u8> {
        let count = keys.len().to_string();
        let source = self.before.to_owned() + source;
        let reply = self.send(&[&["EVAL", &source, &count], keys, args].concat());
        let text = reply.escape_ascii().to_string();
        assert!(!text.contains("a large number"), "{text}");
        reply
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut reply = Vec::new();
        while redis::parse_redis_value(&reply).is_err() {
            let mut bytes = [0; 4096];
            let count = self.stream.read(&mut bytes).unwrap();
            assert!(count > 0, "closed after {}", reply.escape_ascii());
            reply.extend_from_slice(&bytes[..count]);
        }
        reply
    }
}

/// Replies, each with the request that it belongs to.
#[derive(Default)]
struct Replies(Vec<(&'static str, Vec<u8>)>);

impl Replies {
    fn note(&mut self, request: &'static str, reply: Vec<u8>) {
        self.0.push((request, reply));
    }
}

/// Returns the types of a reply and of its parts, and its small numbers: these do not depend on the
/// server, the time or the version. The number after a remaining time can be the time since a
/// grant.
fn shape(value: &Value) -> String {
    match value {
        Value::Int(n @ -2..=3) => n.to_string(),
        Value::Array(items) => {
            // The time since a grant can be short. It is the fourth item of a refusal, and precedes
            // the holder in the reply to a refresh.
            let precedes_holder =
                |n| n + 2 == items.len() && matches!(items[n + 1], Value::BulkString(_));
            let is_age = |n: usize| n == 3 && items[0] == Value::Int(0) || precedes_holder(n);
            let shapes = items.iter().enumerate().map(|(n, item)| match item {
                Value::Int(0..) if is_age(n) => "number ".to_owned(),
                item => shape(item) + " ",
            });
            shapes.collect()
        }
        value => top(value).to_owned(),
    }
}

fn top(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nil",
        Value::Int(_) => "number",
        Value::BulkString(_) => "text",
        Value::Okay | Value::SimpleString(_) => "status",
        Value::Array(_) => "list",
        Value::Map(_) => "map",
        Value::Push { .. } => "push",
        Value::ServerError(_) => "error",
        other => panic!("{other:?}"),
    }
}

/// Compares the replies with the recording in `file`, or records them.
fn compare(file: &str, replies: &Replies) {
    let path = in_repository("tests/it/replies").join(file);
    if env::var_os("LEASEHOLD_RECORD").is_some() {
        let line =
            |(request, reply): &(&str, Vec<u8>)| format!("{request}: {}\n", reply.escape_ascii());
        let lines: String = replies.0.iter().map(line).collect();
        return fs::write(path, lines).unwrap();
    }
    let recorded = fs::read_to_string(path).unwrap();
    let mut lines = recorded.lines();
    for (request, reply) in &replies.0 {
        let line = lines.next().unwrap_or_default();
        let (was_to, was) = recorded_reply(line);
        assert_eq!(
            was_to, *request,
            "the requests have changed: record the replies again"
        );
        let [is, was] = [&reply[..], &was].map(redis::parse_redis_value);
        let [is, was] = [is.unwrap(), was.unwrap()];
        // The contents of these replies differ by the server's version.
        let is_alike = match request.split([' ', ',']).next() {
            Some("CLUSTER" | "ROLE" | "HELLO") => top(&is) == top(&was),
            _ => shape(&is) == shape(&was),
        };
        assert!(is_alike, "{request}: {is:?} has another form than {was:?}");
    }
    assert_eq!(lines.next(), None);
}

const IDS: [&str; 3] = [
    "web:7:123e4567-e89b-12d3-a456-426614174000",
    "web:7:123e4567-e89b-12d3-a456-426614174001",
    "web:7:123e4567-e89b-12d3-a456-426614174002",
];
const TTL: &str = "60000";

fn one_server_replies_as_recorded() {
    let server = Server::start();
    let mut replies = Replies::default();
    mutex(&mut Raw::to(server.port()), &mut replies);
    acquire_after(&mut Raw::to(server.port()), &mut replies);
    quorum(&mut Raw::to(server.port()), &mut replies);
    fair(&mut Raw::to(server.port()), &mut replies);
    shared::cohort(&mut Raw::to(server.port()), &mut replies);
    shared::semaphore(&mut Raw::to(server.port()), &mut replies);
    shared::rw_lock(&mut Raw::to(server.port()), &mut replies);
    commands(server.port(), &mut replies);
    compare("one_server.txt", &replies);
}

fn no_script_leaves_the_format_of_a_large_number_to_the_server() {
    let server = Server::start();
    let mut raw = Raw::to(server.port());
    raw.before = STRICT;
    let mut replies = Replies::default();
    mutex(&mut raw, &mut replies);
    acquire_after(&mut raw, &mut replies);
    quorum(&mut raw, &mut replies);
    fair(&mut raw, &mut replies);
    shared::cohort(&mut raw, &mut replies);
    shared::semaphore(&mut raw, &mut replies);
    shared::rw_lock(&mut raw, &mut replies);
}

/// Leaves `lock:a` held by the first id, and `lock:foreign` without a ttl.
fn mutex_acquire(raw: &mut Raw, replies: &mut Replies) {
    let [mine, other, _] = IDS;
    let keys = &["lock:a", "fence:a"];
    let mut acquire = |raw: &mut Raw, what, id, keys: &[&str]| {
        replies.note(what, raw.script(scripts::ACQUIRE, keys, &[id, TTL, "64"]));
    };
    acquire(raw, "acquire, free", mine, keys);
    acquire(raw, "acquire, held", other, keys);
    raw.send(&["SET", "lock:foreign", "somebody"]);
    let foreign = &["lock:foreign", "fence:foreign"];
    acquire(raw, "acquire, held without a ttl", mine, foreign);
    raw.send(&["SET", "fence:bad", "x"]);
    acquire(raw, "acquire, bad fence", mine, &["lock:bad", "fence:bad"]);
    raw.send(&["LPUSH", "lock:list", "x"]);
    acquire(raw, "acquire, no string", mine, &["lock:list", "fence:l"]);
}

fn mutex(raw: &mut Raw, replies: &mut Replies) {
    mutex_acquire(raw, replies);
    let [mine, other, _] = IDS;
    let keys = &["lock:a", "fence:a"];
    let lock = &["lock:a"];
    let foreign = &["lock:foreign", "fence:foreign"];
    let mut note = |what, reply| replies.note(what, reply);
    note("inspect, held", raw.script(scripts::INSPECT, keys, &[]));
    note(
        "inspect, foreign",
        raw.script(scripts::INSPECT, foreign, &[]),
    );
    let free = &["lock:free", "fence:free"];
    note("inspect, free", raw.script(scripts::INSPECT, free, &[]));
    note("fence", raw.script(scripts::FENCE, &["fence:a"], &[]));
    note(
        "fence, none",
        raw.script(scripts::FENCE, &["fence:free"], &[]),
    );
    for (what, key, id) in [
        ("renew, held", "lock:a", mine),
        ("renew, another's", "lock:a", other),
        ("renew, free", "lock:free", mine),
    ] {
        note(what, raw.script(scripts::RENEW, &[key], &[id, TTL, "0"]));
    }
    let both = &["lock:a", "lock:a", "lock:free"];
    note(
        "renew_many, held, another's and free",
        raw.script(scripts::RENEW_MANY, both, &[TTL, mine, other, mine]),
    );
    let release = scripts::RELEASE;
    note(
        "release, another's",
        raw.script(release, lock, &[other, "c"]),
    );
    note("release, held", raw.script(release, lock, &[mine, "c"]));
    note("release, free", raw.script(release, lock, &[mine, "c"]));
    let undo = scripts::UNDO;
    note("undo, free", raw.script(undo, lock, &["c", mine, other]));
    raw.script(scripts::ACQUIRE, keys, &[other, TTL]);
    note(
        "undo, another's",
        raw.script(undo, lock, &["c", mine, IDS[2]]),
    );
    note("undo, held", raw.script(undo, lock, &["c", mine, other]));
}

/// The acquire of a further name of a set.
fn acquire_after(raw: &mut Raw, replies: &mut Replies) {
    let [mine, other, _] = IDS;
    let mut note = |what, reply| replies.note(what, reply);
    let (acquire, after) = (scripts::ACQUIRE, scripts::ACQUIRE_AFTER);
    let keys = &["lock:m2", "fence:m2", "lock:m1"];
    note(
        "acquire_after, not granted before",
        raw.script(after, keys, &[other, TTL, mine]),
    );
    raw.script(acquire, &["lock:m1", "fence:m1"], &[mine, TTL]);
    note(
        "acquire_after, free",
        raw.script(after, keys, &[other, TTL, mine]),
    );
    note(
        "acquire_after, held",
        raw.script(after, keys, &[other, TTL, mine]),
    );
}

fn quorum(raw: &mut Raw, replies: &mut Replies) {
    let [mine, other, _] = IDS;
    let [low, token] = ["1700000000000000", "1764000000000000"];
    let mut note = |what, reply| replies.note(what, reply);
    let (propose, keys) = (scripts::PROPOSE, &["lock:q", "fence:q"]);
    note(
        "propose, free",
        raw.script(propose, keys, &[mine, TTL, token]),
    );
    note(
        "propose, held",
        raw.script(propose, keys, &[other, TTL, token]),
    );
    raw.send(&["DEL", "lock:q"]);
    note(
        "propose, too low",
        raw.script(propose, keys, &[mine, TTL, low]),
    );
}

fn fair(raw: &mut Raw, replies: &mut Replies) {
    let [first, second, third] = IDS;
    let keys = &["lock:f", "fence:f", "queue:f", "places:f", "readers:f"];
    let mut note = |what, reply| replies.note(what, reply);
    let enter = scripts::LOCKS.enter;
    let refresh = scripts::LOCKS.refresh;
    let release = scripts::LOCKS.release;
    let undo = scripts::LOCKS.undo;
    note(
        "queue_enter, free",
        raw.script(enter, keys, &[first, TTL, "1", "l i"]),
    );
    note(
        "queue_enter, held",
        raw.script(enter, keys, &[second, TTL, "1", "l i"]),
    );
    let ids = &["i", second, third];
    note("queue_refresh, waits", raw.script(refresh, keys, ids));
    note(
        "queue_release, another's",
        raw.script(release, keys, &[third, "c"]),
    );
    note(
        "queue_release, held",
        raw.script(release, keys, &[first, "c"]),
    );
    note("queue_refresh, granted", raw.script(refresh, keys, ids));
    note(
        "queue_undo, another's",
        raw.script(undo, keys, &["c", first, third]),
    );
    note(
        "queue_undo, held",
        raw.script(undo, keys, &["c", second, third]),
    );
    note("queue_refresh, free", raw.script(refresh, keys, ids));
    note(
        "queue_release, free",
        raw.script(release, keys, &[first, "c"]),
    );
}

fn commands(port: u16, replies: &mut Replies) {
    let raw = &mut Raw::to(port);
    let mut note = |what, reply| replies.note(what, reply);
    let counts = &["attempts", "3", "released", "2"];
    let added = raw.script(scripts::ADD_STATS, &["lock_stats"], counts);
    note("add_stats", added);
    note("HGETALL", raw.send(&["HGETALL", "lock_stats"]));
    note("PING", raw.send(&["PING"]));
    note("SELECT", raw.send(&["SELECT", "0"]));
    note("SELECT, refused", raw.send(&["SELECT", "99"]));
    note("AUTH, refused", raw.send(&["AUTH", "ann", "wrong"]));
    note("CLIENT SETNAME", raw.send(&["CLIENT", "SETNAME", "me"]));
    note("LLEN", raw.send(&["LLEN", "lock:list"]));
    note("WAIT", raw.send(&["WAIT", "0", "1"]));
    note(
        "EVALSHA, unknown",
        raw.send(&["EVALSHA", &"0".repeat(40), "0"]),
    );
    note("ROLE, alone", raw.send(&["ROLE"]));
    let scan = [
        "SCAN",
        "0",
        "MATCH",
        "lock:[abf]*",
        "COUNT",
        "1000",
        "TYPE",
        "string",
    ];
    note("SCAN", raw.send(&scan));

    let subscriber = &mut Raw::to(port);
    let newer = &mut Raw::to(port);
    note("HELLO", newer.send(&["HELLO", "3"]));
    note("HELLO, refused", newer.send(&["HELLO", "9"]));
    note("HGETALL, RESP3", newer.send(&["HGETALL", "lock_stats"]));
    note("GET, none, RESP3", newer.send(&["GET", "none"]));
    note("SUBSCRIBE", subscriber.send(&["SUBSCRIBE", "c"]));
    note("SUBSCRIBE, RESP3", newer.send(&["SUBSCRIBE", "c"]));
    let grant = format!("grant 1764000000000000 1 {}", IDS[0]);
    note("PUBLISH", raw.send(&["PUBLISH", "c", &grant]));
    note("message", subscriber.receive());
    note("message, RESP3", newer.receive());
}

fn several_servers_reply_as_recorded() {
    let mut replies = Replies::default();
    let mut note = |what, reply| replies.note(what, reply);
    let master = Server::start();
    let replica = master.replica();
    // The master lists a replica only once that has acknowledged something.
    let port = replica.port().to_string();
    let role = || Raw::to(master.port()).send(&["ROLE"]);
    eventually(ms(30_000), || {
        role().escape_ascii().to_string().contains(&port)
    });
    note("ROLE, master", role());
    note("ROLE, replica", Raw::to(replica.port()).send(&["ROLE"]));
    let refused = Raw::to(replica.port()).send(&["SET", "a", "b"]);
    note("SET, replica", refused);

    let sentinels = Sentinels::start(Setup {
        replicas: 0,
        ..Setup::steady()
    });
    let url = sentinels.url();
    let ports = url.split(|c: char| !c.is_ascii_digit());
    let port = ports
        .filter_map(|port| port.parse().ok())
        .find(|port| *port > 1024);
    let raw = &mut Raw::to(port.unwrap());
    let name = url.rsplit('/').next().unwrap();
    let ask = |name| ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name];
    note("SENTINEL", raw.send(&ask(name)));
    note("SENTINEL, unknown", raw.send(&ask("unknown")));
    note("ROLE, sentinel", raw.send(&["ROLE"]));
    note(
        "SUBSCRIBE, sentinel",
        raw.send(&["SUBSCRIBE", "+switch-master"]),
    );

    let cluster = Cluster::start(2, 0);
    let [mut owner, mut other] = [0, 1].map(|n| Raw::to(cluster.node(n).port()));
    let key = format!("lock:{}", cluster.name_owned_by("a", 0));
    let slot = cluster.slot(&key);
    note("CLUSTER SLOTS", owner.send(&["CLUSTER", "SLOTS"]));
    note("GET, moved", other.send(&["GET", &key]));
    cluster.begin_migration(slot, 0, 1);
    note("GET, migrating", owner.send(&["GET", &key]));
    note("ASKING", other.send(&["ASKING"]));
    compare("several_servers.txt", &replies);
}
