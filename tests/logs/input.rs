//! Promise: every input has a clear outcome, invalid input changes nothing, and no secret is shown.

use std::fmt::Debug;
use std::thread;
use std::time::Duration;

use leasehold::{Backoff, Client, ClientBuilder, Error, Lost, Mutex, Name, WaitPolicy};
use support::{
    Child, Server, assert_gives_up, eventually, log_records, log_records_about, ms, refusing_url,
    spawn_call, tell_parent,
};

support::roles![show_client_from_env, hold_with_client_from_env];

support::tests![
    basic_names_have_a_fence_each,
    names_can_be_any_bytes,
    names_can_be_given_as_text_or_bytes,
    impossible_names_are_errors_and_nothing_is_sent,
    a_key_of_another_type_is_an_error_that_names_it,
    a_held_key_that_becomes_another_type_is_left_alone,
    a_foreign_key_without_expiry_counts_as_held,
    absurd_ttls_are_errors_and_nothing_is_sent,
    a_lease_can_have_the_longest_ttl,
    absurd_settings_of_a_lock_are_errors_and_nothing_is_sent,
    absurd_settings_of_a_client_are_errors,
    the_longest_duration_means_no_deadline,
    an_endless_backoff_ends_at_the_deadline,
    a_zero_duration_means_one_attempt,
    no_password_is_an_error_at_once,
    a_wrong_password_is_an_error_at_once,
    a_missing_database_is_an_error_at_once,
    the_environment_sets_up_a_client,
    an_empty_environment_means_the_defaults,
    quotes_and_line_breaks_are_removed_with_a_warning,
    an_invalid_variable_is_named,
    an_impossible_setting_in_a_variable_is_named,
    no_password_is_shown,
    no_whole_holder_id_is_logged_above_trace
];

const MINUTE: Duration = Duration::from_secs(60);

/// The limit for calls that must return at once, generous for a busy machine.
const WAIT_LIMIT: Duration = Duration::from_secs(5);

const LONGEST_TTL: Duration = Duration::from_millis((1 << 53) - 1);

/// Returns a builder whose timeouts are longer than any test.
fn builder(url: impl Into<String>) -> ClientBuilder {
    Client::builder()
        .url(url)
        .command_timeout(MINUTE)
        .connect_timeout(MINUTE)
        .unreachable_for(MINUTE)
}

fn client(server: &Server) -> Client {
    builder(server.url()).build().unwrap()
}

/// Runs a call in another thread and returns its result, which must come at once.
#[track_caller]
fn result_of<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    support::result_of(&spawn_call(call))
}

/// Returns the error of every call that acquires.
#[track_caller]
fn errors_of_locking(mutex: &Mutex) -> Vec<Error> {
    let calls: [fn(&Mutex) -> Option<Error>; 5] = [
        |mutex| mutex.lock().err(),
        |mutex| mutex.try_lock().err(),
        |mutex| mutex.try_lock_for(MINUTE).err(),
        |mutex| mutex.with(|_| ()).err().map(Error::from),
        |mutex| mutex.try_with(|_| ()).err().map(Error::from),
    ];
    let of = |call: fn(&Mutex) -> Option<Error>| {
        let mutex = mutex.clone();
        result_of(move || call(&mutex)).expect("an error")
    };
    calls.into_iter().map(of).collect()
}

/// Returns the errors of [`errors_of_locking`], of `inspect` and of `force_unlock`.
#[track_caller]
fn errors_of_all_calls(mutex: &Mutex) -> Vec<Error> {
    let mut errors = errors_of_locking(mutex);
    errors.extend(mutex.inspect().err());
    errors.extend(mutex.force_unlock().err());
    assert_eq!(errors.len(), 7);
    errors
}

#[track_caller]
fn assert_config(error: &Error, about: &str) {
    match error {
        Error::Config(text) if text.contains(about) => {}
        other => panic!("not about {about}: {other:?}"),
    }
}

fn basic_names_have_a_fence_each() {
    let server = Server::start();
    let client = client(&server);
    for name in ["a", "b"] {
        drop(client.mutex(name).lock().unwrap());
    }
    assert_eq!(server.keys().len(), 2, "one fence for each name");
}

fn names_can_be_any_bytes() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let longest = vec![b'n'; 64 * 1024];
    let names: [&[u8]; 16] = [
        b" ",
        b"a b",
        b"a\nb",
        b"a\r\nDEL x",
        b"{",
        b"}",
        b"{}",
        b"{a}b",
        b"a}{b",
        b"\0",
        b"\xff\xfe",
        "tisch-ü".as_bytes(),
        b"*",
        b"lock:a",
        b"leasehold:fence:{lock:a}",
        &longest,
    ];
    for (n, name) in names.into_iter().enumerate() {
        let mutex = one.mutex(name);
        let guard = mutex.lock().unwrap();
        assert_eq!(guard.name().as_bytes(), name);
        let key = [b"lock:", name].concat();
        let id = guard.holder_id().as_str().as_bytes();
        assert_eq!(server.get(&key).as_deref(), Some(id));
        assert_eq!(mutex.inspect().unwrap().unwrap().value(), id);
        let other = two.mutex(name);
        assert!(other.try_lock().unwrap().is_err());
        let waiter = spawn_call(move || other.lock().map(drop));
        server.wait_until_waiter_sleeps([b"lock_release:", name].concat());
        drop(guard);
        let woken = waiter
            .recv_timeout(WAIT_LIMIT)
            .expect("the release wakes the waiter");
        woken.unwrap();
        assert_eq!(server.get(&key), None);
        assert_eq!(server.keys().len(), n + 1, "one fence for each name");
    }
}

fn names_can_be_given_as_text_or_bytes() {
    let server = Server::start();
    let client = client(&server);
    let _guard = client.mutex("a").lock().unwrap();
    let (name, text) = (Name::from("a"), String::from("a"));
    for mutex in [
        client.mutex("a"),
        client.mutex(&text),
        client.mutex(text),
        client.mutex(&b"a"[..]),
        client.mutex(b"a"),
        client.mutex(vec![b'a']),
        client.mutex(&name),
        client.mutex(name.clone()),
    ] {
        assert!(mutex.try_lock().unwrap().is_err());
    }
    assert!(client.mutex(b"\xff").try_lock().unwrap().is_ok());
}

fn impossible_names_are_errors_and_nothing_is_sent() {
    let server = Server::start();
    let client = client(&server);
    for error in errors_of_all_calls(&client.mutex("")) {
        assert_config(&error, "empty");
    }
    for error in errors_of_all_calls(&client.mutex(vec![b'n'; 64 * 1024 + 1])) {
        assert_config(&error, "65536 bytes");
        assert!(error.to_string().len() < 500);
    }
    let bare = builder(server.url()).key_prefix("").build().unwrap();
    for error in errors_of_all_calls(&bare.mutex("leasehold:fence:{a}")) {
        assert_config(&error, "key_prefix");
    }
    assert!(!is_connected_to(&server));
    assert!(server.keys().is_empty());
}

fn a_key_of_another_type_is_an_error_that_names_it() {
    let server = Server::start();
    let mutex = client(&server).mutex("x");
    for other in [
        &["RPUSH", "lock:x", "v"][..],
        &["SADD", "lock:x", "v"],
        &["ZADD", "lock:x", "1", "v"],
        &["HSET", "lock:x", "f", "v"],
        &["XADD", "lock:x", "1-1", "f", "v"],
    ] {
        server.run("FLUSHALL", &[]);
        server.run(other[0], &other[1..]);
        let dump = || -> Vec<u8> {
            redis::cmd("DUMP")
                .arg("lock:x")
                .query(&mut server.connection())
                .unwrap()
        };
        let before = dump();
        for error in errors_of_all_calls(&mutex) {
            assert!(
                matches!(&error, Error::WrongType { key, .. } if key == "lock:x"),
                "{error:?}"
            );
            assert!(error.to_string().contains("lock:x"), "{error}");
        }
        assert_eq!(dump(), before);
        assert_eq!(server.keys(), [b"lock:x"], "no fence either");
    }
}

fn a_held_key_that_becomes_another_type_is_left_alone() {
    let server = Server::start();
    let mutex = client(&server).mutex("x").ttl(MINUTE);
    let become_a_list = || {
        server.run("DEL", &["lock:x"]);
        server.run("RPUSH", &["lock:x", "v"]);
    };
    let guard = mutex.lock().unwrap();
    become_a_list();
    let lost = guard.lost();
    assert_eq!(guard.renew().unwrap_err().lost(), Some(Lost::Taken));
    assert_eq!(lost.try_recv(), Ok(Lost::Taken));
    assert_eq!(guard.unlock().unwrap_err().lost(), Some(Lost::Taken));
    server.run("DEL", &["lock:x"]);
    let guard = mutex.lock().unwrap();
    become_a_list();
    drop(guard);
    assert!(mutex.try_lock().is_err());
    assert_eq!(server.keys().len(), 2);
}

fn a_foreign_key_without_expiry_counts_as_held() {
    let server = Server::start();
    let mutex = client(&server).mutex("x");
    server.run("SET", &["lock:x", "v"]);
    assert!(mutex.try_lock().unwrap().is_err());
    assert!(mutex.try_lock_for(ms(300)).unwrap().is_err());
    assert!(mutex.try_with(|_| ()).unwrap().is_err());
    assert_eq!(server.get("lock:x").unwrap(), b"v");
    assert_eq!(server.pttl("lock:x"), -1);
    // The call that gave up leaves the queue in the background.
    eventually(WAIT_LIMIT, || server.keys() == [b"lock:x"]);
}

/// Returns whether a client of this crate is connected. Redis can still list a connection of the
/// test itself that has just been closed.
fn is_connected_to(server: &Server) -> bool {
    let mut clients = server.client_list().into_iter();
    clients.any(|client| client["name"].starts_with("leasehold:"))
}

fn absurd_ttls_are_errors_and_nothing_is_sent() {
    let server = Server::start();
    let absurd = [
        Duration::ZERO,
        Duration::from_micros(9_999),
        LONGEST_TTL + ms(1),
        Duration::MAX,
    ];
    for ttl in absurd {
        assert_config(
            &builder(server.url()).ttl(ttl).build().unwrap_err(),
            "ttl must be",
        );
        for error in errors_of_locking(&client(&server).mutex("x").ttl(ttl)) {
            assert_config(&error, "ttl must be");
        }
    }
    assert!(!is_connected_to(&server));

    let guard = client(&server).mutex("x").ttl(MINUTE).lock().unwrap();
    assert!(is_connected_to(&server));
    for ttl in absurd {
        assert_config(&guard.set_ttl(ttl).unwrap_err(), "ttl must be");
    }
    assert!(guard.remaining().unwrap() > MINUTE / 2);
    assert!(server.pttl("lock:x") > 30_000);
}

fn a_lease_can_have_the_longest_ttl() {
    let server = Server::start();
    let client = builder(server.url()).ttl(LONGEST_TTL).build().unwrap();
    let guard = client.mutex("x").lock().unwrap();
    assert!(server.pttl("lock:x") > (1 << 53) - 60_000);
    guard.renew().unwrap();
    guard.set_ttl(LONGEST_TTL).unwrap();
    // The client's clock counts 584 years.
    assert!(guard.remaining().unwrap() > MINUTE * 60 * 24 * 365 * 500);
    assert!(client.mutex("x").inspect().unwrap().unwrap().remaining() > Some(LONGEST_TTL / 2));
}

fn absurd_settings_of_a_lock_are_errors_and_nothing_is_sent() {
    let server = Server::start();
    let mutex = client(&server).mutex("x");
    let backoff = |backoff| mutex.clone().wait_policy(WaitPolicy::Backoff(backoff));
    for (mutex, about) in [
        (mutex.clone().renew_every(Duration::ZERO), "renew_every"),
        (mutex.clone().renew_every(ms(9_001)), "renew_every"),
        (mutex.clone().renew_every(Duration::MAX), "renew_every"),
        (mutex.clone().max_hold(Duration::ZERO), "max_hold"),
        (backoff(Backoff::new(Duration::ZERO, MINUTE)), "base"),
        (backoff(Backoff::new(MINUTE, ms(1))), "max"),
        (backoff(Backoff::new(ms(1), ms(1)).jitter(1.5)), "jitter"),
        (
            backoff(Backoff::new(ms(1), ms(1)).jitter(f64::NAN)),
            "jitter",
        ),
        (backoff(Backoff::new(ms(1), ms(1)).attempts(0)), "attempts"),
    ] {
        for error in errors_of_locking(&mutex) {
            assert_config(&error, about);
        }
    }
    assert!(!is_connected_to(&server));
    assert!(server.keys().is_empty());
}

fn absurd_settings_of_a_client_are_errors() {
    let builder = || Client::builder().url("redis://127.0.0.1");
    for (builder, about) in [
        (Client::builder(), "ClientBuilder::url"),
        (builder().connect_timeout(Duration::ZERO), "connect_timeout"),
        (builder().connect_timeout(Duration::MAX), "connect_timeout"),
        (builder().command_timeout(Duration::ZERO), "command_timeout"),
        (builder().command_timeout(Duration::MAX), "command_timeout"),
        (builder().unreachable_for(Duration::ZERO), "unreachable_for"),
        (builder().max_connections(0), "max_connections"),
        (builder().owner(""), "owner"),
        (builder().owner("o".repeat(1025)), "owner"),
        (
            builder().key_prefix("").channel_prefix(""),
            "channel_prefix",
        ),
    ] {
        assert_config(&builder.build().unwrap_err(), about);
    }
    for url in [
        "",
        "127.0.0.1",
        "http://127.0.0.1",
        "redis://",
        "redis://127.0.0.1:99999",
        "redis://127.0.0.1/db",
        "redis://127.0.0.1?protocol=9",
    ] {
        assert_config(&Client::open(url).unwrap_err(), "URL");
    }
}

fn the_longest_duration_means_no_deadline() {
    let server = Server::start();
    let one = client(&server);
    let two = Client::builder()
        .url(server.url())
        .unreachable_for(Duration::MAX)
        .build()
        .unwrap();
    let waits: [fn(Mutex) -> bool; 3] = [
        |mutex| mutex.try_lock_for(Duration::MAX).unwrap().is_ok(),
        |mutex| mutex.lock().is_ok(),
        |mutex| {
            let endless = Backoff::new(ms(1), Duration::MAX);
            mutex
                .wait_policy(WaitPolicy::Backoff(endless))
                .lock()
                .is_ok()
        },
    ];
    for wait in waits {
        let guard = one.mutex("x").max_hold(Duration::MAX).lock().unwrap();
        assert!(guard.is_held());
        let mutex = two.mutex("x");
        let before = server.script_calls();
        let waiter = spawn_call(move || wait(mutex));
        eventually(WAIT_LIMIT, || server.script_calls() > before);
        drop(guard);
        assert_eq!(waiter.recv_timeout(WAIT_LIMIT), Ok(true));
    }
    assert!(two.shutdown(Duration::MAX).is_clean());
}

fn an_endless_backoff_ends_at_the_deadline() {
    let server = Server::start();
    let mutex = client(&server).mutex("x");
    server.run("SET", &["lock:x", "v"]);
    let endless = Backoff::new(Duration::MAX, Duration::MAX).jitter(0.0);
    let mutex = mutex.wait_policy(WaitPolicy::Backoff(endless));
    result_of(move || assert_gives_up(|limit| mutex.try_lock_for(limit)));
}

fn a_zero_duration_means_one_attempt() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let guard = one.mutex("x").try_lock_for(Duration::ZERO).unwrap();
    assert!(guard.is_ok());
    let before = server.script_calls();
    drop(two.mutex("y").try_lock().unwrap());
    let pair = server.script_calls() - before;
    let refused = two.mutex("x").try_lock_for(Duration::ZERO).unwrap();
    assert!(refused.is_err());
    let sent = server.script_calls() - before - pair;
    assert_eq!(sent, 1);
    drop(guard);
    assert!(one.shutdown(Duration::ZERO).is_clean());
}

/// Starts a server that requires a password.
fn closed_server() -> (Server, redis::Connection) {
    let server = Server::start();
    let mut redis = server.connection();
    redis::cmd("ACL")
        .arg(&["SETUSER", "ann", "on", ">right", "~*", "&*", "+@all"])
        .exec(&mut redis)
        .unwrap();
    redis::cmd("CONFIG")
        .arg(&["SET", "requirepass", "right"])
        .exec(&mut redis)
        .unwrap();
    (server, redis)
}

#[track_caller]
fn assert_log_on_refused(url: &str, word: &str, redis: &mut redis::Connection) {
    let calls: [fn(&Client) -> Option<Error>; 6] = [
        |client| client.ping().err(),
        |client| client.mutex("x").lock().err(),
        |client| client.mutex("x").try_lock().err(),
        |client| client.mutex("x").try_lock_for(MINUTE).err(),
        |client| client.mutex("x").inspect().err(),
        |client| client.mutex("x").force_unlock().err(),
    ];
    for call in calls {
        // A new client each time, since a refused client waits before it reconnects.
        let client = builder(url).build().unwrap();
        let error = result_of(move || call(&client)).expect("an error");
        assert!(matches!(error, Error::Refused { .. }), "{url}: {error:?}");
        assert!(error.to_string().contains(word), "{url}: {error}");
        assert!(!error.may_be_held());
    }
    let keys: u64 = redis::cmd("DBSIZE").query(redis).unwrap();
    assert_eq!(keys, 0);
}

fn no_password_is_an_error_at_once() {
    let (server, mut redis) = closed_server();
    for url in [
        server.url(),
        server.url() + "?protocol=resp3",
        server.url() + "/3",
        server.unix_url(),
        server.unix_url() + "?db=3",
    ] {
        assert_log_on_refused(&url, "password", &mut redis);
    }
}

fn a_wrong_password_is_an_error_at_once() {
    let (server, mut redis) = closed_server();
    let at = format!("127.0.0.1:{}", server.port());
    for url in [
        format!("redis://:wrong@{at}"),
        format!("redis://:wrong@{at}/3"),
        format!("redis://ann:wrong@{at}"),
        format!("redis://nobody:right@{at}"),
        format!("redis://ann:wrong@{at}?protocol=resp3"),
        format!("{}?user=ann&pass=wrong", server.unix_url()),
    ] {
        assert_log_on_refused(&url, "password", &mut redis);
    }
    let right = builder(format!("redis://ann:right@{at}")).build().unwrap();
    assert!(right.mutex("x").try_lock().unwrap().is_ok());
}

fn a_missing_database_is_an_error_at_once() {
    let server = Server::start();
    let url = server.url() + "/99";
    assert_log_on_refused(&url, "DB index", &mut server.connection());
}

/// Every variable that is read: all are set, so that the test's own environment has no effect.
const VARIABLES: [&str; 17] = [
    "REDIS_URL",
    "REDIS_URLS",
    "REDIS_HOST",
    "REDIS_PORT",
    "REDIS_USERNAME",
    "REDIS_PASSWORD",
    "REDIS_PASSWORD_FILE",
    "REDIS_DB",
    "REDIS_TLS_CA",
    "REDIS_TLS_CERT",
    "REDIS_TLS_KEY",
    "REDIS_SENTINEL_TLS",
    "LOCK_TTL_MS",
    "LOCK_CONNECT_TIMEOUT_MS",
    "LOCK_COMMAND_TIMEOUT_MS",
    "LOCK_UNREACHABLE_FOR_MS",
    "LOCK_KEY_PREFIX",
];

fn with_environment(role: &str, set: &[(&str, &str)]) -> Child {
    let mut all: Vec<_> = VARIABLES.iter().map(|name| (*name, "")).collect();
    all.extend(set);
    Child::spawn(role, &all)
}

/// Reports the client that the environment configures. It does not connect: the server at the
/// default address may be in use.
fn show_client_from_env() {
    log_records();
    match Client::from_env() {
        Ok(client) => tell_parent(&format!("{client:?} {:?}", log_records())),
        Err(error) => tell_parent(&format!("{error:?} {error}")),
    }
}

/// Holds a lock and reports its renewals.
fn hold_with_client_from_env() {
    let client = Client::from_env().unwrap();
    let mutex = client.mutex("x").renew_every(ms(50));
    let mutex = mutex.on_renew(|_| tell_parent("renewed"));
    let guard = mutex.lock().unwrap();
    tell_parent(guard.holder_id().as_str());
    loop {
        thread::park();
    }
}

fn the_environment_sets_up_a_client() {
    let server = Server::start();
    let mut redis = server.connection();
    redis::cmd("ACL")
        .arg(&["SETUSER", "ann", "on", ">s3c:r/e@t", "~*", "&*", "+@all"])
        .exec(&mut redis)
        .unwrap();
    redis::cmd("SELECT").arg(3).exec(&mut redis).unwrap();
    let port = server.port().to_string();
    let url = format!("redis://ann:s3c%3Ar%2Fe%40t@127.0.0.1:{port}/3");
    let by_parts = [
        ("REDIS_HOST", "127.0.0.1"),
        ("REDIS_PORT", port.as_str()),
        ("REDIS_USERNAME", "ann"),
        ("REDIS_PASSWORD", "s3c:r/e@t"),
        ("REDIS_DB", "3"),
    ];
    // With a complete URL the other five variables have no effect.
    let by_url = [
        ("REDIS_URL", url.as_str()),
        ("REDIS_HOST", "a b"),
        ("REDIS_PORT", "none"),
        ("REDIS_USERNAME", "bob"),
        ("REDIS_PASSWORD", "wrong"),
        ("REDIS_DB", "none"),
    ];
    let lock = [("LOCK_TTL_MS", "3600000"), ("LOCK_KEY_PREFIX", "app:")];
    let plain = format!("redis://127.0.0.1:{port}/3");
    let filled_in = [
        ("REDIS_URL", plain.as_str()),
        ("REDIS_USERNAME", "ann"),
        ("REDIS_PASSWORD", "s3c:r/e@t"),
        ("REDIS_DB", "none"),
    ];
    for server_part in [&by_parts[..], &by_url, &filled_in] {
        let mut child = with_environment(
            "input::hold_with_client_from_env",
            &[server_part, &lock].concat(),
        );
        assert_held_in(&mut redis, &child.next_line());
        child.wait_for_line("renewed");
        let names: Vec<_> = server
            .client_list()
            .into_iter()
            .filter(|client| client["user"] == "ann")
            .map(|client| client["name"].clone())
            .collect();
        assert!(!names.is_empty() && names.iter().all(|name| name.starts_with("leasehold:")));
        child.kill();
        redis::cmd("FLUSHALL").exec(&mut redis).unwrap();
    }
}

#[track_caller]
fn assert_held_in(redis: &mut redis::Connection, holder: &str) {
    let value: String = redis::cmd("GET").arg("app:x").query(redis).unwrap();
    assert_eq!(value, holder);
    let left: u64 = redis::cmd("PTTL").arg("app:x").query(redis).unwrap();
    assert!(left > 600_000 && left <= 3_600_000, "{left} ms");
}

fn an_empty_environment_means_the_defaults() {
    let shown = with_environment("input::show_client_from_env", &[]).next_line();
    assert!(shown.contains("127.0.0.1:6379"), "{shown}");
    let record = "is set: using redis://127.0.0.1:6379";
    assert_eq!(shown.matches(record).count(), 1, "{shown}");
    assert!(shown.contains("level: Info"), "{shown}");
    let port = [("REDIS_PORT", "7777")];
    let shown = with_environment("input::show_client_from_env", &port).next_line();
    let record = "is set: using redis://127.0.0.1:7777";
    assert_eq!(shown.matches(record).count(), 1, "{shown}");
    for set in ["REDIS_URL", "REDIS_URLS"] {
        let url = [(set, "redis://127.0.0.1:6379")];
        let shown = with_environment("input::show_client_from_env", &url).next_line();
        assert!(!shown.contains("is set: using"), "{shown}");
    }
}

fn quotes_and_line_breaks_are_removed_with_a_warning() {
    for (name, value, removed) in [
        ("REDIS_URL", "\"redis://:s3cret@127.0.0.1:7\"", "quotes"),
        (
            "REDIS_URL",
            "redis://:s3cret@127.0.0.1:7\r\n",
            "white space",
        ),
        ("REDIS_URLS", "'redis://:s3cret@127.0.0.1:7'", "quotes"),
        ("REDIS_PASSWORD", "s3cret\n", "line break"),
    ] {
        let variables = [("REDIS_HOST", "127.0.0.1:7"), (name, value)];
        let shown = with_environment("input::show_client_from_env", &variables).next_line();
        assert!(shown.contains("127.0.0.1:7"), "{shown}");
        let warning = format!("the environment variable {name} was taken, but the {removed}");
        assert_eq!(shown.matches(&warning).count(), 1, "{shown}");
        assert!(shown.contains("level: Warn"), "{shown}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
    let plain = [("REDIS_URL", "redis://127.0.0.1:7")];
    let shown = with_environment("input::show_client_from_env", &plain).next_line();
    assert!(!shown.contains("level: Warn"), "{shown}");
}

fn an_invalid_variable_is_named() {
    for (name, value) in [
        ("REDIS_URL", "http://:s3cret@127.0.0.1"),
        ("REDIS_URL", "s3cret"),
        ("REDIS_HOST", "s3cret s3cret"),
        ("REDIS_PORT", "s3cret"),
        ("REDIS_PORT", "65536"),
        ("REDIS_DB", "s3cret"),
        ("REDIS_DB", "-1"),
        ("LOCK_TTL_MS", "10s"),
        ("LOCK_TTL_MS", "-1"),
        ("LOCK_TTL_MS", "1.5"),
    ] {
        let child = with_environment("input::show_client_from_env", &[(name, value)]);
        let line = child.next_line();
        assert!(line.starts_with("Config("), "{name}={value}: {line}");
        assert!(line.contains(name), "{name}={value}: {line}");
        assert!(line.contains("expect"), "{name}={value}: {line}");
        assert!(!line.contains("s3cret"), "{name}={value}: {line}");
    }
}

fn an_impossible_setting_in_a_variable_is_named() {
    for (name, value) in [
        ("LOCK_TTL_MS", "9"),
        ("LOCK_TTL_MS", "18446744073709551615"),
    ] {
        let line = with_environment("input::show_client_from_env", &[(name, value)]).next_line();
        assert!(line.starts_with("Config("), "{name}={value}: {line}");
        assert!(line.contains(name), "{name}={value}: {line}");
    }
}

const SECRET: &str = "hush-5f1c";

#[track_caller]
fn assert_secret_kept(shown: &dyn Debug) {
    for text in [format!("{shown:?}"), format!("{shown:#?}")] {
        assert!(!text.contains(SECRET), "{text}");
    }
}

#[track_caller]
fn assert_error_keeps_secret(error: &Error) {
    assert_secret_kept(error);
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        assert!(!error.to_string().contains(SECRET), "{error}");
        assert_secret_kept(&error);
        cause = error.source();
    }
}

fn no_password_is_shown() {
    support::log_records();
    let server = Server::start();
    server.run(
        "ACL",
        &[
            "SETUSER",
            "ann",
            "on",
            &format!(">{SECRET}"),
            "~*",
            "&*",
            "+@all",
        ],
    );
    let url = format!("redis://ann:{SECRET}@127.0.0.1:{}", server.port());
    let builder = builder(&url);
    assert_secret_kept(&builder);
    let client = builder.build().unwrap();
    assert_secret_kept(&client);
    let mutex = client.mutex("x");
    assert_secret_kept(&mutex);
    let guard = mutex.lock().unwrap();
    assert_secret_kept(&guard);
    assert_secret_kept(&mutex.inspect());
    drop(guard);

    let short = |url: &str| Client::builder().url(url).command_timeout(ms(200));
    let away = refusing_url().replace("redis://", &format!("redis://ann:{SECRET}@"));
    let refused = url.replace("ann", "bob");
    let impossible = url.clone() + "/99";
    let resp3 = refused.clone() + "?protocol=resp3";
    for url in [&away, &refused, &resp3, &impossible] {
        let client = short(url).build().unwrap();
        assert_error_keeps_secret(&client.mutex("x").try_lock().unwrap_err());
        assert_error_keeps_secret(&client.ping().unwrap_err());
    }
    for url in [
        SECRET.to_owned(),
        format!("{SECRET}://h"),
        format!("http://:{SECRET}@h"),
        format!("redis://:{SECRET}@h:99999"),
        format!("redis://h/{SECRET}"),
        format!("redis://:{SECRET}@"),
    ] {
        let builder = Client::builder().url(&url);
        assert_secret_kept(&builder);
        assert_error_keeps_secret(&builder.build().unwrap_err());
    }
    assert!(log_records_about(SECRET).is_empty());
}

fn no_whole_holder_id_is_logged_above_trace() {
    support::log_records();
    let server = Server::start();
    let client = builder(server.url()).owner("told").build().unwrap();
    let guard = client.mutex("told").lock().unwrap();
    let id = guard.holder_id().clone();
    let mut shown = format!("{guard:?} {id:?} {}", id.short());
    shown += &format!("{:?}", client.mutex("told").inspect());
    assert!(client.mutex("told").force_unlock().unwrap());
    shown += &format!("{:?}", guard.renew().unwrap_err());
    drop(guard);
    let lines = log_records_about("told");
    assert!(lines.iter().any(|line| line.level == log::Level::Warn));
    assert!(!shown.contains(id.as_str()), "{shown}");
    for line in log_records_about(id.as_str()) {
        assert_eq!(line.level, log::Level::Trace, "{line:?}");
    }
}
