//! Promise: keys, values and messages follow the wire format, and a foreign client that uses
//! `SET … NX PX` and compare-and-delete shares a lock with leasehold.

use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::unbounded;
use leasehold::{Client, ClientBuilder, HolderId, Lost};
use redis::Connection;
use support::{
    Control, SLACK, Server, assert_message_wakes, eventually, ms, result_of, spawn_call,
};

support::tests![
    a_foreign_release_without_a_message_is_noticed_by_the_next_refresh,
    lock_writes_only_its_key_and_its_fence,
    the_value_is_the_owner_and_a_fresh_uuid,
    a_foreign_release_that_publishes_wakes_at_once,
    a_lock_that_a_foreign_client_released_is_lost_at_the_next_renewal,
    a_lock_that_a_foreign_client_took_is_lost_at_the_next_renewal,
    a_published_foreign_release_of_our_lock_is_lost_at_once,
    a_release_publishes_the_holder_id,
    a_name_with_a_hash_tag_keeps_its_cluster_slot,
    keys_and_channels_have_the_configured_prefixes,
    locks_work_over_resp3,
    valkey_urls_are_accepted,
    locks_work_over_unix_sockets,
    the_database_user_and_password_of_the_url_are_used,
    every_connection_has_the_clients_name
];

support::timed![a_foreign_key_is_waited_for_until_it_expires];

/// Longer than any test. A waiter still refreshes its place in the queue, at least every 0.9 s.
const FOR_EVER: Duration = Duration::from_secs(600);

/// The limit for events that must happen at once, generous for a busy machine.
const WAIT_LIMIT: Duration = Duration::from_secs(5);

fn builder(server: &Server) -> ClientBuilder {
    Client::builder().url(server.url())
}

fn client(server: &Server) -> Client {
    builder(server).build().unwrap()
}

/// Takes a lock as another library's client does.
fn foreign_lock(redis: &mut Connection, key: &str, value: &str, ttl: Option<u64>) -> bool {
    let mut set = redis::cmd("SET");
    set.arg(key).arg(value).arg("NX");
    if let Some(ttl) = ttl {
        set.arg("PX").arg(ttl);
    }
    set.query::<Option<String>>(redis).unwrap().is_some()
}

/// Releases a lock as another library's client does.
fn foreign_release(redis: &mut Connection, key: &str, value: &[u8]) -> bool {
    redis::cmd("EVAL")
        .arg(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end \
             return 0",
        )
        .arg(1)
        .arg(key)
        .arg(value)
        .query(redis)
        .unwrap()
}

/// Deletes and publishes in one transaction, so that no other command runs between the two.
fn foreign_release_and_publish(redis: &mut Connection, key: &str, channel: &str, payload: &[u8]) {
    redis::pipe()
        .atomic()
        .cmd("DEL")
        .arg(key)
        .ignore()
        .cmd("PUBLISH")
        .arg(channel)
        .arg(payload)
        .ignore()
        .exec(redis)
        .unwrap();
}

fn lock_writes_only_its_key_and_its_fence() {
    let server = Server::start();
    let client = builder(&server).owner("booking:7").build().unwrap();
    let guard = client.mutex("x").lock().unwrap();
    assert_eq!(server.keys(), [&b"leasehold:fence:{lock:x}"[..], b"lock:x"]);
    assert_eq!(
        server.get("lock:x").unwrap(),
        guard.holder_id().as_str().as_bytes()
    );
    let left = server.pttl("lock:x");
    assert!((1..=10_000).contains(&left), "{left} ms");
    assert_eq!(
        server.get("leasehold:fence:{lock:x}").unwrap(),
        guard.fencing_token().to_string().into_bytes()
    );
    drop(guard);
    assert_eq!(server.keys(), [b"leasehold:fence:{lock:x}"]);
}

fn the_value_is_the_owner_and_a_fresh_uuid() {
    let server = Server::start();
    let mutex = builder(&server)
        .owner("booking:7")
        .build()
        .unwrap()
        .mutex("x");
    let mut ids = HashSet::new();
    for _ in 0..20 {
        let guard = mutex.lock().unwrap();
        let value = String::from_utf8(server.get("lock:x").unwrap()).unwrap();
        let (owner, id) = value.rsplit_once(':').unwrap();
        assert_eq!(owner, "booking:7");
        let id = uuid::Uuid::parse_str(id).unwrap();
        assert_eq!(id.get_version_num(), 4);
        assert!(value.ends_with(&id.hyphenated().to_string()), "{value}");
        assert!(ids.insert(id));
        drop(guard);
    }
    let guard = client(&server).mutex("x").lock().unwrap();
    let process = format!("/{}", std::process::id());
    assert!(guard.holder_id().owner().ends_with(&process));
}

fn a_foreign_key_is_waited_for_until_it_expires() {
    let server = Server::start();
    let client = client(&server);
    let mut redis = server.connection();
    let set = Instant::now();
    assert!(foreign_lock(&mut redis, "lock:x", "v", Some(500)));
    assert!(client.mutex("x").try_lock().unwrap().is_err());
    let guard = client.mutex("x").try_lock_for(WAIT_LIMIT).unwrap().unwrap();
    assert!(set.elapsed() >= ms(490), "after {:?}", set.elapsed());
    assert!(!foreign_lock(&mut redis, "lock:x", "v", Some(500)));
    drop(guard);
    assert!(foreign_lock(&mut redis, "lock:x", "v", Some(500)));
}

fn a_foreign_release_that_publishes_wakes_at_once() {
    let server = Server::start();
    let client = client(&server);
    let mut redis = server.connection();
    // Any message on the channel wakes, whatever its payload. One above 1 MiB would end the
    // subscription.
    let long = vec![b'x'; 1 << 19];
    let payloads: [&[u8]; 5] = [b"v", b"", b"\xff\x00\r\n", b"web/1:no-uuid", &long];
    for payload in payloads {
        assert!(foreign_lock(&mut redis, "lock:x", "v", None));
        let waiter = spawn_call({
            let mutex = client.mutex("x");
            move || mutex.lock().map(drop)
        });
        eventually(WAIT_LIMIT, || client.stats().waiting == 1);
        server.wait_until_waiter_sleeps("lock_release:x");
        assert_message_wakes(&client, || {
            foreign_release_and_publish(&mut redis, "lock:x", "lock_release:x", payload);
            result_of(&waiter).unwrap();
        });
    }
}

fn a_foreign_release_without_a_message_is_noticed_by_the_next_refresh() {
    let server = Server::start();
    let client = client(&server);
    let mut redis = server.connection();
    assert!(foreign_lock(&mut redis, "lock:x", "v", None));
    let waiter = spawn_call(move || client.mutex("x").lock().map(drop));
    server.wait_until_waiter_sleeps("lock_release:x");
    // A waiter refreshes its place in the queue every 0.9 s.
    let noticed = Control::run(ms(900), || {
        assert!(foreign_release(&mut redis, "lock:x", b"v"));
        waiter.recv().unwrap()
    });
    noticed.no_later_than(SLACK).unwrap();
}

fn a_lock_that_a_foreign_client_released_is_lost_at_the_next_renewal() {
    let server = Server::start();
    let mutex = client(&server).mutex("x").ttl(FOR_EVER);
    let guard = mutex.renew_every(ms(300)).lock().unwrap();
    let value = server.get("lock:x").unwrap();
    let mut redis = server.connection();
    assert!(!foreign_release(&mut redis, "lock:x", b"v"));
    assert!(foreign_release(&mut redis, "lock:x", &value));
    assert_eq!(guard.lost().recv_timeout(WAIT_LIMIT), Ok(Lost::Deleted));
    assert_eq!(guard.unlock().unwrap_err().lost(), Some(Lost::Deleted));
}

fn a_lock_that_a_foreign_client_took_is_lost_at_the_next_renewal() {
    let server = Server::start();
    let mutex = client(&server).mutex("x").ttl(FOR_EVER);
    let guard = mutex.renew_every(ms(300)).lock().unwrap();
    let value = server.get("lock:x").unwrap();
    let mut redis = server.connection();
    assert!(foreign_release(&mut redis, "lock:x", &value));
    assert!(foreign_lock(&mut redis, "lock:x", "v", None));
    assert!(guard.lost().recv_timeout(WAIT_LIMIT).is_ok());
    drop(guard);
    assert_eq!(server.get("lock:x").unwrap(), b"v");
}

fn a_published_foreign_release_of_our_lock_is_lost_at_once() {
    let server = Server::start();
    let client = client(&server);
    let mutex = client.mutex("x").ttl(FOR_EVER).renew_every(FOR_EVER / 2);
    let guard = mutex.lock().unwrap();
    let waiter = spawn_call({
        let mutex = mutex.clone();
        move || mutex.lock().unwrap().fencing_token()
    });
    server.wait_until_waiter_sleeps("lock_release:x");
    let value = server.get("lock:x").unwrap();
    foreign_release_and_publish(&mut server.connection(), "lock:x", "lock_release:x", &value);
    assert_eq!(guard.lost().recv_timeout(WAIT_LIMIT), Ok(Lost::Deleted));
    assert!(result_of(&waiter) > guard.fencing_token());
}

fn a_release_publishes_the_holder_id() {
    let server = Server::start();
    let client = client(&server);
    let mut redis = server.connection();
    let mut listener = redis.as_pubsub();
    listener.subscribe("lock_release:x").unwrap();
    let mut next_release = || {
        let message = listener.get_message().unwrap();
        assert_eq!(message.get_channel_name(), "lock_release:x");
        message.get_payload::<String>().unwrap()
    };
    let holder = |id: &HolderId| id.as_str().to_owned();

    let guard = client.mutex("x").lock().unwrap();
    let unlocked = holder(guard.holder_id());
    guard.unlock().unwrap();
    assert_eq!(next_release(), unlocked);

    let guard = client.mutex("x").lock().unwrap();
    let dropped = holder(guard.holder_id());
    drop(guard);
    assert_eq!(next_release(), dropped);

    let guard = client.mutex("x").lock().unwrap();
    assert!(client.mutex("x").force_unlock().unwrap());
    assert_eq!(next_release(), holder(guard.holder_id()));
}

fn a_name_with_a_hash_tag_keeps_its_cluster_slot() {
    let server = Server::start();
    let client = client(&server);
    for (name, fence) in [
        ("{u1}:cart", "leasehold:fence:lock:{u1}:cart"),
        ("a{b}c", "leasehold:fence:lock:a{b}c"),
        ("{}cart", "leasehold:fence:{lock:{}cart}"),
        ("a{b", "leasehold:fence:{lock:a{b}"),
        ("a}b", "leasehold:fence:{lock:a}b}"),
    ] {
        server.run("FLUSHALL", &[]);
        let _guard = client.mutex(name).lock().unwrap();
        let lock = format!("lock:{name}");
        assert_eq!(server.keys(), [fence.as_bytes(), lock.as_bytes()]);
    }
}

fn keys_and_channels_have_the_configured_prefixes() {
    let server = Server::start();
    let client = builder(&server)
        .key_prefix("app:l:")
        .channel_prefix("app:r:")
        .build()
        .unwrap();
    let mut redis = server.connection();
    assert!(foreign_lock(&mut redis, "app:l:x", "v", None));
    let waiter = spawn_call({
        let mutex = client.mutex("x");
        move || mutex.lock().unwrap()
    });
    server.wait_until_waiter_sleeps("app:r:x");
    let guard = assert_message_wakes(&client, || {
        foreign_release_and_publish(&mut redis, "app:l:x", "app:r:x", b"v");
        result_of(&waiter)
    });
    assert_eq!(
        server.get("app:l:x").unwrap(),
        guard.holder_id().as_str().as_bytes()
    );
    assert_eq!(
        server.keys(),
        [&b"app:l:x"[..], b"leasehold:fence:{app:l:x}"]
    );
}

/// Waits until a foreign client releases a lock, holds it past its ttl by renewals, and unlocks it.
fn round_trip(client: &Client, redis: &mut Connection, waiting: impl FnOnce()) {
    assert!(foreign_lock(redis, "lock:x", "v", None));
    let (renewed, renewals) = unbounded();
    let mutex = client.mutex("x").ttl(ms(600)).on_renew(move |_| {
        let _ = renewed.send(());
    });
    let waiter = spawn_call(move || mutex.lock().unwrap());
    waiting();
    foreign_release_and_publish(redis, "lock:x", "lock_release:x", b"v");
    let guard = result_of(&waiter);
    for _ in 0..4 {
        renewals
            .recv_timeout(WAIT_LIMIT)
            .expect("the lease is renewed");
    }
    guard.unlock().unwrap();
}

/// Waits for two connections: for calls, and for messages. After a call without a reply, the client
/// makes the first one again.
fn connections_of_the_client(server: &Server) -> Vec<HashMap<String, String>> {
    let mut ours = Vec::new();
    eventually(ms(10_000), || {
        ours = server.client_list();
        ours.retain(|client| !client["name"].is_empty());
        ours.len() >= 2
    });
    ours
}

fn locks_work_over_resp3() {
    let server = Server::start();
    let url = format!("{}?protocol=resp3", server.url());
    let client = builder(&server).url(url).build().unwrap();
    round_trip(&client, &mut server.connection(), || {
        server.wait_until_waiter_sleeps("lock_release:x");
        let ours = connections_of_the_client(&server);
        // `CLIENT LIST` of 6.2 has no `resp` field.
        let is_listed = Server::version() >= 7;
        let is_so = |resp: Option<&String>| resp.map_or(!is_listed, |resp| resp == "3");
        assert!(ours.iter().all(|c| is_so(c.get("resp"))), "{ours:?}");
        assert!(server.calls(&["hello"]) >= 2);
    });
}

fn valkey_urls_are_accepted() {
    let server = Server::start();
    let url = server.url().replace("redis://", "valkey://");
    let client = builder(&server).url(url).build().unwrap();
    round_trip(&client, &mut server.connection(), || {
        server.wait_until_waiter_sleeps("lock_release:x");
    });
}

fn locks_work_over_unix_sockets() {
    let server = Server::start();
    let client = builder(&server).url(server.unix_url()).build().unwrap();
    round_trip(&client, &mut server.connection(), || {
        server.wait_until_waiter_sleeps("lock_release:x");
        let ours = connections_of_the_client(&server);
        assert!(ours.iter().all(|c| c["flags"].contains('U')), "{ours:?}");
    });
}

fn the_database_user_and_password_of_the_url_are_used() {
    let server = Server::start();
    let mut redis = server.connection();
    redis::cmd("ACL")
        .arg(&["SETUSER", "ann", "on", ">p@ss:w/rd", "~*", "&*", "+@all"])
        .exec(&mut redis)
        .unwrap();
    // The default user now has a password that the client does not know.
    redis::cmd("ACL")
        .arg(&["SETUSER", "default", "resetpass", ">other"])
        .exec(&mut redis)
        .unwrap();
    redis::cmd("SELECT").arg(3).exec(&mut redis).unwrap();
    let tcp = format!("redis://ann:p%40ss%3Aw%2Frd@127.0.0.1:{}/3", server.port());
    let unix = format!("{}?db=3&user=ann&pass=p%40ss%3Aw%2Frd", server.unix_url());
    for url in [tcp.clone() + "?protocol=resp3", tcp, unix] {
        let client = builder(&server).url(url).build().unwrap();
        client.ping().unwrap();
        let guard = client.mutex("x").lock().unwrap();
        let value: Option<String> = redis::cmd("GET").arg("lock:x").query(&mut redis).unwrap();
        assert_eq!(value.as_deref(), Some(guard.holder_id().as_str()));
        drop(guard);
        round_trip(&client, &mut redis, || ());
    }
}

fn every_connection_has_the_clients_name() {
    let server = Server::start();
    let named = builder(&server).owner("büro 7").build().unwrap();
    assert_connections_named(&server, &named, |name| name == "leasehold:b_ro_7");
    let process = format!("/{}", std::process::id());
    assert_connections_named(&server, &client(&server), |name| {
        name.starts_with("leasehold:") && name.ends_with(&process)
    });
}

#[track_caller]
fn assert_connections_named(server: &Server, client: &Client, is_right: impl Fn(&str) -> bool) {
    let own: HashSet<_> = server
        .client_list()
        .iter()
        .map(|c| c["id"].clone())
        .collect();
    let mutex = client.mutex("x").ttl(ms(600));
    let guard = mutex.lock().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| mutex.lock().map(drop));
        server.wait_until_waiter_sleeps("lock_release:x");
        // Connections of the pool, which the engine uses, too, and of the subscriber; each has
        // no name at first.
        eventually(WAIT_LIMIT, || {
            let mut clients = server.client_list();
            clients.retain(|client| !own.contains(&client["id"]));
            clients.len() >= 2 && clients.iter().all(|client| is_right(&client["name"]))
        });
        drop(guard);
        waiter.join().unwrap().unwrap();
    });
}
