//! Promise: a grant goes to the first living place in a queue that it reaches, and lasts as long as
//! that place would have. The scripts are called directly.

use redis::{Connection, Value};
use support::fair::{PLACES, QUEUE, holder, queue_length};
use support::scripts;
use support::{Replicas, Server, eventually, let_pass, ms};

support::tests![
    refresh_of_a_waiting_place_runs_at_most_six_commands,
    grant_passes_over_a_place_that_nobody_listens_for,
    place_that_was_passed_over_and_refreshed_is_granted_next,
    lock_is_free_if_a_grant_reaches_nobody,
    refresh_is_granted_whether_or_not_anybody_listens,
    enter_of_a_free_lock_grants_it_to_the_first_place_that_listens,
    new_place_is_granted_before_its_client_listens,
    place_in_a_cluster_is_granted_whether_or_not_anybody_listens,
    no_place_is_passed_over_without_the_permission_to_count_listeners,
    listener_at_a_replica_receives_no_grant_that_passes_it_over,
    grant_lasts_from_the_last_refresh,
    grant_reserves_and_tells_the_whole_block_of_tokens,
    refresh_keeps_the_time_of_entry,
    passing_over_the_only_place_keeps_the_end_of_the_queue,
    place_whose_client_listens_again_is_passed_over_when_it_is_killed,
    new_place_stays_new_until_its_client_listens,
    refresh_is_granted_behind_any_number_of_places_that_nobody_listens_for,
    release_is_granted_behind_many_places_of_one_killed_client,
    grant_lasts_no_longer_than_a_place_although_the_clock_was_set_back,
    release_of_nothing_grants_a_free_lock,
    undo_frees_the_lock_although_its_queue_is_damaged,
    holder_whose_enter_runs_twice_reports_itself_and_has_no_place,
    malformed_place_is_removed_as_that_of_a_dead_waiter
];

const FENCE: &str = "leasehold:fence:{lock:a}";
const KEYS: [&str; 5] = ["lock:a", FENCE, QUEUE, PLACES, "leasehold:readers:{lock:a}"];
const TTL: &str = "60000";
const CHANNEL: &str = "lock_release:a";

/// A user of the scripts.
struct Raw(Connection);

impl Raw {
    fn to(server: &Server) -> Self {
        Self(server.connection())
    }

    fn run(&mut self, source: &str, args: &[&str]) -> Value {
        let mut eval = redis::cmd("EVAL");
        let eval = eval.arg(source).arg(KEYS.len()).arg(&KEYS).arg(args);
        eval.query(&mut self.0).unwrap()
    }

    /// Enters the queue, or acquires the lock and returns its token.
    fn enter(&mut self, id: &str, mark: &str) -> Option<u64> {
        self.enter_for(id, "1", mark)
    }

    fn enter_for(&mut self, id: &str, tokens: &str, mark: &str) -> Option<u64> {
        let place = format!("{mark} {}", inbox(id));
        scripts::granted(&self.run(scripts::LOCKS.enter, &[id, TTL, tokens, &place]))
    }

    fn refresh(&mut self, id: &str) -> i64 {
        let inbox = inbox(id);
        numbers(&self.run(scripts::LOCKS.refresh, &[&inbox, id]))[0]
    }

    fn release(&mut self, id: &str) {
        let reply = self.run(scripts::LOCKS.release, &[id, CHANNEL]);
        assert_eq!(reply, Value::Int(1));
    }

    /// Returns the fields of a place.
    fn place(&mut self, id: &str) -> Vec<String> {
        let mut get = redis::cmd("HGET");
        let place: Option<String> = get.arg(PLACES).arg(id).query(&mut self.0).unwrap();
        let place = place.unwrap_or_default();
        place.split(' ').map(str::to_owned).collect()
    }

    fn mark(&mut self, id: &str) -> String {
        self.place(id)[4].clone()
    }
}

fn inbox(id: &str) -> String {
    format!("inbox of {id}")
}

fn numbers(reply: &Value) -> Vec<i64> {
    let Value::Array(items) = reply else {
        panic!("{reply:?}")
    };
    let number = |item: &Value| match item {
        Value::Int(number) => *number,
        _ => -3,
    };
    items.iter().map(number).collect()
}

/// Returns the token of a reply to an enter that was granted.
/// A listener of the inboxes of these ids.
fn listener(server: &Server, ids: &[&str]) -> Connection {
    let mut connection = server.connection();
    for id in ids {
        let subscribe = redis::cmd("SUBSCRIBE").arg(inbox(id)).get_packed_command();
        connection.send_packed_command(&subscribe).unwrap();
        connection.recv_response().unwrap();
    }
    connection
}

/// Returns the next message of a listener.
fn message(listener: &mut Connection) -> String {
    let Value::Array(items) = listener.recv_response().unwrap() else {
        panic!("no message")
    };
    redis::from_redis_value(items.into_iter().next_back().unwrap()).unwrap()
}

fn fence(server: &Server) -> u64 {
    let fence = String::from_utf8(server.get(FENCE).unwrap()).unwrap();
    fence.parse().unwrap()
}

fn grant_passes_over_a_place_that_nobody_listens_for() {
    let server = Server::start();
    let mut raw = Raw::to(&server);
    let mut listener = listener(&server, &["third"]);
    let first = raw.enter("holder", "l").expect("the lock is free");
    for id in ["first", "second", "third"] {
        assert_eq!(raw.enter(id, "l"), None);
    }
    raw.release("holder");
    assert_eq!(holder(&server).as_deref(), Some("third"));
    let token = fence(&server);
    assert!(token > first);
    assert_eq!(message(&mut listener), format!("grant {token} 1 third"));
    assert_eq!([raw.mark("first"), raw.mark("second")], ["p", "p"]);
}

fn place_that_was_passed_over_and_refreshed_is_granted_next() {
    let server = Server::start();
    let mut raw = Raw::to(&server);
    let _listener = listener(&server, &["second", "third"]);
    raw.enter("holder", "l");
    for id in ["first", "second", "third"] {
        raw.enter(id, "l");
    }
    raw.release("holder");
    assert_eq!(holder(&server).as_deref(), Some("second"));
    assert_eq!(raw.refresh("first"), 0);
    assert_eq!(raw.mark("first"), "r");
    raw.release("second");
    assert_eq!(holder(&server).as_deref(), Some("first"), "it is the first");
    let token = fence(&server);
    assert_eq!(raw.refresh("first"), i64::try_from(token).unwrap());
}

fn lock_is_free_if_a_grant_reaches_nobody() {
    let server = Server::start();
    let mut raw = Raw::to(&server);
    let mut releases = server.connection();
    let mut releases = releases.as_pubsub();
    releases.subscribe(CHANNEL).unwrap();
    raw.enter("holder", "l");
    raw.enter("first", "l");
    let before = fence(&server);
    raw.release("holder");
    assert_eq!(holder(&server), None);
    assert_eq!(fence(&server), before, "no token was drawn");
    let announced: String = releases.get_message().unwrap().get_payload().unwrap();
    assert_eq!(announced, "holder");
}

fn refresh_is_granted_whether_or_not_anybody_listens() {
    let server = Server::start();
    let mut raw = Raw::to(&server);
    raw.enter("holder", "l");
    for id in ["first", "second"] {
        raw.enter(id, "l");
    }
    raw.release("holder");
    assert_eq!(holder(&server), None);
    let token = raw.refresh("second");
    assert_eq!(holder(&server).as_deref(), Some("second"));
    assert_eq!(token, i64::try_from(fence(&server)).unwrap());
}

fn enter_of_a_free_lock_grants_it_to_the_first_place_that_listens() {
    let server = Server::start();
    let mut raw = Raw::to(&server);
    raw.enter("holder", "l");
    raw.enter("first", "l");
    raw.release("holder");
    assert_eq!(raw.enter("second", "0"), None, "others wait");
    assert_eq!(holder(&server), None);
    let mut listener = listener(&server, &["first", "third"]);
    assert_eq!(raw.enter("third", "l"), None);
    assert_eq!(holder(&server).as_deref(), Some("first"));
    assert!(message(&mut listener).ends_with(" 1 first"));
}

fn new_place_is_granted_before_its_client_listens() {
    let server = Server::start();
    let mut raw = Raw::to(&server);
    let _listener = listener(&server, &["second"]);
    raw.enter("holder", "l");
    raw.enter("first", "n");
    raw.enter("second", "l");
    raw.release("holder");
    assert_eq!(holder(&server).as_deref(), Some("first"));
    raw.release("first");
    assert_eq!(holder(&server).as_deref(), Some("second"));
}

fn new_place_stays_new_until_its_client_listens() {
    let server = Server::start();
    let mut raw = Raw::to(&server);
    raw.enter("holder", "l");
    raw.enter("first", "n");
    assert_eq!(raw.refresh("first"), 0);
    assert_eq!(raw.mark("first"), "n");
    let _listener = listener(&server, &["first"]);
    assert_eq!(raw.refresh("first"), 0);
    assert_eq!(raw.mark("first"), "l");
}

fn place_whose_client_listens_again_is_passed_over_when_it_is_killed() {
    let server = Server::start();
    let mut raw = Raw::to(&server);
    let _listener = listener(&server, &["second"]);
    raw.enter("holder", "l");
    for id in ["first", "second"] {
        raw.enter(id, "l");
    }
    raw.release("holder");
    for mark in ["p", "r"] {
        assert_eq!(raw.mark("first"), mark);
        raw.refresh("first");
    }
    let first = listener(&server, &["first"]);
    assert_eq!(raw.refresh("first"), 0);
    assert_eq!(raw.mark("first"), "l");
    raw.enter("third", "r");
    drop(first);
    let has_listener = || {
        let mut count = redis::cmd("PUBSUB");
        let count = count.arg("NUMSUB").arg(inbox("first"));
        let (_, listeners): (String, u64) = count.query(&mut server.connection()).unwrap();
        listeners > 0
    };
    eventually(ms(10_000), || !has_listener());
    raw.release("second");
    assert_eq!(holder(&server).as_deref(), Some("third"));
}

/// Otherwise the places would stay on the server for ever.
fn passing_over_the_only_place_keeps_the_end_of_the_queue() {
    let server = Server::start();
    let mut raw = Raw::to(&server);
    raw.enter("holder", "l");
    raw.enter("first", "l");
    raw.release("holder");
    assert_eq!(raw.mark("first"), "p");
    for key in [QUEUE, PLACES] {
        assert!((1..=6_000).contains(&server.pttl(key)), "{key}");
    }
}

fn refresh_is_granted_behind_any_number_of_places_that_nobody_listens_for() {
    let server = Server::start();
    let mut raw = Raw::to(&server);
    raw.enter("holder", "l");
    for n in 0..120 {
        raw.enter(&format!("killed {n}"), "l");
    }
    raw.enter("last", "l");
    raw.release("holder");
    assert_eq!(holder(&server), None);
    let token = raw.refresh("last");
    assert_eq!(holder(&server).as_deref(), Some("last"));
    assert_eq!(token, i64::try_from(fence(&server)).unwrap());
}

fn release_is_granted_behind_many_places_of_one_killed_client() {
    let server = Server::start();
    let mut raw = Raw::to(&server);
    let _listener = listener(&server, &["last"]);
    raw.enter("holder", "l");
    for n in 0..120 {
        let id = format!("killed {n}");
        raw.run(scripts::LOCKS.enter, &[&id, TTL, "1", "l one inbox"]);
    }
    raw.enter("last", "l");
    raw.release("holder");
    assert_eq!(holder(&server).as_deref(), Some("last"));
}

fn grant_lasts_no_longer_than_a_place_although_the_clock_was_set_back() {
    let server = Server::start();
    let mut raw = Raw::to(&server);
    raw.enter("holder", "l");
    raw.enter("first", "a");
    let mut place = raw.place("first");
    place[0] = format!("9{}", place[0]);
    server.run("HSET", &[PLACES, "first", &place.join(" ")]);
    raw.release("holder");
    assert_eq!(holder(&server).as_deref(), Some("first"));
    assert!((1..=3_000).contains(&server.pttl("lock:a")));
}

fn release_of_nothing_grants_a_free_lock() {
    let server = Server::start();
    let mut raw = Raw::to(&server);
    let _listener = listener(&server, &["first"]);
    raw.enter("holder", "l");
    raw.enter("first", "l");
    server.run("DEL", &["lock:a"]);
    let reply = raw.run(scripts::LOCKS.release, &["nobody", CHANNEL]);
    assert_eq!(reply, Value::Int(0), "it released nothing");
    assert_eq!(holder(&server).as_deref(), Some("first"));
}

fn undo_frees_the_lock_although_its_queue_is_damaged() {
    for damaged in [QUEUE, PLACES] {
        let server = Server::start();
        let mut raw = Raw::to(&server);
        raw.enter("holder", "l");
        server.run("SET", &[damaged, "neither a list nor a hash"]);
        let reply = raw.run(scripts::LOCKS.undo, &[CHANNEL, "holder", "another"]);
        assert_eq!(reply, Value::Array(vec![Value::Int(0), Value::Int(1)]));
        assert_eq!(holder(&server), None);
    }
}

fn holder_whose_enter_runs_twice_reports_itself_and_has_no_place() {
    let server = Server::start();
    let mut raw = Raw::to(&server);
    let mut enter = |id| raw.run(scripts::LOCKS.enter, &[id, TTL, "1", "l inbox"]);
    assert!(scripts::granted(&enter("holder")).is_some());
    let Value::Array(again) = enter("holder") else {
        panic!("no refusal")
    };
    let itself = Value::BulkString(b"holder".into());
    assert_eq!(again[..2], [Value::Int(0), itself]);
    assert_eq!(queue_length(&server), 0);
}

fn place_in_a_cluster_is_granted_whether_or_not_anybody_listens() {
    let server = Server::start();
    let mut raw = Raw::to(&server);
    raw.enter("holder", "l");
    raw.enter("first", "a");
    assert_eq!(raw.refresh("first"), 0);
    raw.release("holder");
    assert_eq!(holder(&server).as_deref(), Some("first"));
}

fn no_place_is_passed_over_without_the_permission_to_count_listeners() {
    let server = Server::start();
    let url = format!("redis://user:password@127.0.0.1:{}", server.port());
    let rules = "SETUSER user on >password allkeys allchannels +@all -pubsub";
    server.run("ACL", &rules.split(' ').collect::<Vec<_>>());
    let user = redis::Client::open(url).unwrap().get_connection();
    let mut raw = Raw(user.unwrap());
    raw.enter("holder", "l");
    raw.enter("first", "l");
    raw.release("holder");
    assert_eq!(holder(&server).as_deref(), Some("first"));
}

/// A client may stay subscribed at a server that has become a replica. It receives what is
/// published at the master, which does not count it.
fn listener_at_a_replica_receives_no_grant_that_passes_it_over() {
    let replicas = Replicas::start(1);
    let server = replicas.master();
    let mut raw = Raw::to(server);
    let mut elsewhere = listener(replicas.replica(0), &["first"]);
    let _listener = listener(server, &["second"]);
    raw.enter("holder", "l");
    raw.enter("first", "l");
    raw.enter("second", "l");
    raw.release("holder");
    assert_eq!(holder(server).as_deref(), Some("second"));
    // The replica passes messages on in order.
    server.run("PUBLISH", &[&inbox("first"), "later"]);
    assert_eq!(message(&mut elsewhere), "later");
}

fn grant_lasts_from_the_last_refresh() {
    let server = Server::start();
    let mut raw = Raw::to(&server);
    raw.enter("holder", "l");
    raw.enter("first", "n");
    let_pass(ms(1_000));
    raw.release("holder");
    assert_eq!(holder(&server).as_deref(), Some("first"));
    let left = server.pttl("lock:a");
    assert!((1..=2_000).contains(&left), "{left}");
}

fn grant_reserves_and_tells_the_whole_block_of_tokens() {
    let server = Server::start();
    let mut raw = Raw::to(&server);
    let mut listener = listener(&server, &["first"]);
    let mut last = raw.enter_for("holder", "5", "l").unwrap() + 4;
    assert_eq!(fence(&server), last);
    raw.enter_for("first", "33", "l");
    raw.release("holder");
    let told = message(&mut listener);
    let words: Vec<&str> = told.split(' ').collect();
    let first: u64 = words[1].parse().unwrap();
    assert!(first > last);
    last = fence(&server);
    assert_eq!((words[2], last), ("33", first + 32));
    assert_eq!(raw.refresh("first"), i64::try_from(last).unwrap());
}

fn refresh_keeps_the_time_of_entry() {
    let server = Server::start();
    let mut raw = Raw::to(&server);
    raw.enter("holder", "l");
    raw.enter_for("first", "7", "l");
    let entered = raw.place("first");
    eventually(ms(10_000), || {
        raw.refresh("first");
        raw.place("first")[0] > entered[0]
    });
    let now = raw.place("first");
    assert_eq!(now[1..], entered[1..]);
    assert_eq!(now[1..3], ["3000", "7"].map(str::to_owned));
    assert_eq!(now[3], entered[0], "it entered when it was first seen");
}

fn malformed_place_is_removed_as_that_of_a_dead_waiter() {
    for words in [
        "3000 inbox",
        "3000 1 l inbox",
        "3000 1 1 l",
        "3000 1 1 12 inbox",
        "",
    ] {
        let server = Server::start();
        let mut raw = Raw::to(&server);
        // It would last for centuries.
        let place = format!("{} {words}", 1_u64 << 48);
        let damage = || {
            server.run("RPUSH", &[QUEUE, "damaged"]);
            server.run("HSET", &[PLACES, "damaged", &place]);
        };
        damage();
        assert!(raw.enter("holder", "l").is_some(), "{place}");
        damage();
        raw.enter("first", "a");
        raw.release("holder");
        assert_eq!(holder(&server).as_deref(), Some("first"), "{place}");
        damage();
        assert_eq!(raw.refresh("damaged"), -1, "{place}");
        raw.release("first");
        assert_eq!(holder(&server), None, "{place}");
        assert_eq!(queue_length(&server), 0, "{place}");
    }
}

/// Every client that waits sends such a refresh each 0.9 s.
fn refresh_of_a_waiting_place_runs_at_most_six_commands() {
    let server = Server::start();
    let permits = ["permits", FENCE, "permits-queue", "permits-places"];
    let of_lock = (scripts::LOCKS.enter, scripts::LOCKS.refresh);
    let of_permits = (scripts::PERMITS.enter, scripts::PERMITS.refresh);
    let run = |source: &str, keys: &[&str], args: &[&str]| {
        let mut eval = redis::cmd("EVAL");
        let eval = eval.arg(source).arg(keys.len()).arg(keys).arg(args);
        eval.query::<Value>(&mut server.connection()).unwrap()
    };
    for (keys, (enter, refresh), holds, wants) in [
        (&KEYS[..], of_lock, "1", "1"),
        (&KEYS, of_lock, "1", "+33"),
        (&KEYS, of_lock, "1", "r"),
        (&KEYS, of_lock, "r", "1"),
        (&permits, of_permits, "1/1", "1/1"),
    ] {
        server.run("FLUSHALL", &[]);
        let granted = run(enter, keys, &["1 holder", TTL, holds, "0"]);
        assert!(scripts::granted(&granted).is_some());
        let ids = ["1 first", "1 second", "1 third"];
        for id in ids {
            let granted = run(enter, keys, &[id, TTL, wants, "a inbox"]);
            assert_eq!(scripts::granted(&granted), None);
        }
        for count in [1, 3] {
            let before = server.command_stats();
            let args = [&["inbox"], &ids[..count]].concat();
            assert_eq!(numbers(&run(refresh, keys, &args))[0], 0);
            let commands = server.command_stats().since(&before).in_scripts();
            assert!(commands < 6 + count as u64, "{holds}, {wants}: {commands}");
        }
    }
}
