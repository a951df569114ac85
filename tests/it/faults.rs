//! Promise: what goes wrong with Redis is outlasted where waiting can help, and said clearly where it cannot; a lock
//! can always be let go, and "not yours" is never said by a server that cannot know.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{bounded, unbounded};
use leasehold::{Client, ClientBuilder, Error, Lost, MutexGuard, Unlocked};
use redis::{Connection, FromRedisValue};
use support::{Proxy, Server, eventually, free_port, ms};

support::tests![
    a_restart_with_nothing_in_it_is_outlasted_and_its_loss_is_told,
    connections_that_died_in_a_restart_fail_no_call,
    scripts_that_the_server_forgot_are_sent_again,
    flushall_is_a_loss_and_wakes_who_waits,
    a_user_without_the_right_to_publish_still_releases,
    a_replica_grants_nothing_and_says_what_it_is,
    a_demoted_master_never_says_not_yours,
    the_last_token_there_can_be_is_given_and_no_further_one,
    a_server_that_loads_its_data_is_waited_out
];

support::timed![
    a_full_server_grants_nothing_and_lets_go_of_all,
    a_password_that_changed_is_said_and_one_that_comes_back_costs_no_lease,
    junk_where_the_last_token_is_kept_is_an_error_and_leaves_no_lock,
    too_few_replicas_are_waited_out,
    a_server_that_cannot_save_is_waited_out,
    a_demotion_that_is_taken_back_is_waited_out,
    a_long_script_of_somebody_else_is_waited_out
];

/// Long enough for whatever is to happen soon, on a busy machine.
const SOON: Duration = ms(5_000);

fn builder(url: &str) -> ClientBuilder {
    Client::builder().url(url).connection_name("under-test")
}

fn client(url: &str) -> Client {
    builder(url).build().unwrap()
}

fn ask<T: FromRedisValue>(connection: &mut Connection, command: &[&str]) -> T {
    redis::cmd(command[0])
        .arg(&command[1..])
        .query(connection)
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn tell(server: &Server, command: &[&str]) {
    let _: redis::Value = ask(&mut server.connection(), command);
}

fn config(server: &Server, setting: &str, value: &str) {
    tell(server, &["CONFIG", "SET", setting, value]);
}

fn value(server: &Server, key: &str) -> Option<String> {
    ask(&mut server.connection(), &["GET", key])
}

/// A call in a thread of its own, and what it came to.
fn beside<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> impl FnOnce() -> T {
    let (sender, receiver) = bounded(1);
    thread::spawn(move || {
        // The test is over if nobody wants it.
        let _ = sender.send(call());
    });
    move || receiver.recv_timeout(ms(20_000)).expect("it comes back")
}

/// A thread in which the client waits for what another one holds, asleep by now.
fn waiter(server: &Server, client: Client) -> impl FnOnce() -> MutexGuard + use<> {
    let waiting = beside(move || client.mutex(NAME).lock().unwrap());
    server.wait_until_waiter_sleeps(format!("lock_release:{NAME}"));
    waiting
}

/// Every test has a server of its own, so one name does.
const NAME: &str = "a";
const LOCK: &str = "lock:a";
const FENCE: &str = "leasehold:fence:{lock:a}";

#[track_caller]
fn refused<T>(answer: Result<T, Error>) -> String {
    match answer {
        Err(error @ Error::Refused { .. }) => error.to_string(),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it was not refused"),
    }
}

#[track_caller]
fn unreachable<T>(answer: Result<T, Error>) -> String {
    match answer {
        Err(error @ Error::Unreachable { .. }) => error.to_string(),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it was not away"),
    }
}

fn a_restart_with_nothing_in_it_is_outlasted_and_its_loss_is_told() {
    let mut server = Server::start();
    let holder = builder(&server.url()).renew_every(ms(100)).build().unwrap();
    let guard = holder.mutex(NAME).lock().unwrap();
    let waiting = waiter(&server, client(&server.url()));

    server.restart();

    let lost = guard.lost().recv_timeout(SOON).unwrap();
    assert!(matches!(lost, Lost::Deleted | Lost::Taken), "{lost:?}");
    let next = waiting();
    assert!(next.fencing_token() > guard.fencing_token());
    assert_eq!(guard.unlock().unwrap(), Unlocked::AlreadyLost(lost));
    assert!(next.is_held());
    assert_eq!(next.unlock().unwrap(), Unlocked::Released);
}

fn connections_that_died_in_a_restart_fail_no_call() {
    const CONNECTIONS: usize = 24;
    let mut server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    // As many at once as it takes for each to need a connection.
    proxy.delay(Duration::ZERO, ms(10));
    thread::scope(|scope| {
        for n in 0..CONNECTIONS {
            let mutex = client.mutex(format!("{n}"));
            let proxy = &proxy;
            scope.spawn(move || {
                while proxy.open_connections() < CONNECTIONS {
                    drop(mutex.lock().unwrap());
                }
            });
        }
    });
    proxy.delay(Duration::ZERO, Duration::ZERO);

    server.restart();
    let guard = client.mutex(NAME).try_lock().unwrap().unwrap();
    server.restart();
    assert!(client.ping().is_ok());
    assert_eq!(
        guard.unlock().unwrap(),
        Unlocked::AlreadyLost(Lost::Deleted)
    );
}

fn scripts_that_the_server_forgot_are_sent_again() {
    let server = Server::start();
    let (renewed, renewals) = unbounded();
    let holder = builder(&server.url()).renew_every(ms(200)).build().unwrap();
    let mutex = holder.mutex(NAME).on_renew(move |_| {
        let _ = renewed.send(());
    });
    let other = client(&server.url());

    let guard = mutex.lock().unwrap();
    tell(&server, &["SCRIPT", "FLUSH"]);
    while renewals.try_recv().is_ok() {}
    renewals
        .recv_timeout(SOON)
        .expect("a renewal in the background");
    tell(&server, &["SCRIPT", "FLUSH"]);
    guard.renew().unwrap();
    tell(&server, &["SCRIPT", "FLUSH"]);
    guard.extend(ms(60_000)).unwrap();
    tell(&server, &["SCRIPT", "FLUSH"]);
    assert!(mutex.inspect().unwrap().is_some());
    tell(&server, &["SCRIPT", "FLUSH"]);
    assert!(other.mutex(NAME).try_lock().unwrap().is_none());
    tell(&server, &["SCRIPT", "FLUSH"]);
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    tell(&server, &["SCRIPT", "FLUSH"]);
    let guard = mutex.try_lock().unwrap().expect("the lock is free");

    let waiting = waiter(&server, other.clone());
    tell(&server, &["SCRIPT", "FLUSH"]);
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    assert!(waiting().is_held());
}

fn flushall_is_a_loss_and_wakes_who_waits() {
    let server = Server::start();
    let holder = builder(&server.url()).renew_every(ms(300)).build().unwrap();
    let guard = holder.mutex(NAME).lock().unwrap();
    let lost = guard.lost();
    let other = holder.mutex("other").lock().unwrap();
    let waiting = waiter(&server, client(&server.url()));

    tell(&server, &["FLUSHALL"]);

    assert_eq!(other.lost().recv_timeout(SOON), Ok(Lost::Deleted));
    assert_eq!(
        other.unlock().unwrap(),
        Unlocked::AlreadyLost(Lost::Deleted)
    );
    let lost = lost.recv_timeout(SOON).unwrap();
    // The waiter may have come before the renewal.
    assert!(matches!(lost, Lost::Deleted | Lost::Taken), "{lost:?}");
    let next = waiting();
    assert!(next.fencing_token() > guard.fencing_token());
    assert!(next.is_held());
}

fn a_full_server_grants_nothing_and_lets_go_of_all() {
    let server = Server::start();
    let client = client(&server.url());
    let other = self::client(&server.url());
    let (first, second) = (
        client.mutex("1").lock().unwrap(),
        client.mutex("2").lock().unwrap(),
    );
    let dropped = client.mutex("3").lock().unwrap();

    config(&server, "maxmemory", "1");

    let began = Instant::now();
    let text = refused(client.mutex(NAME).try_lock());
    assert!(text.contains("OOM") && text.contains("maxmemory"), "{text}");
    refused(client.mutex(NAME).try_lock_for(ms(60_000)));
    refused(client.mutex(NAME).lock());
    assert!(began.elapsed() < SOON, "waiting would not help");
    assert_eq!(value(&server, LOCK), None);

    first.renew().unwrap();
    first.extend(ms(30_000)).unwrap();
    assert!(client.mutex("1").inspect().unwrap().is_some());
    assert_eq!(first.unlock().unwrap(), Unlocked::Released);
    assert_eq!(value(&server, "lock:1"), None);
    drop(dropped);
    assert_eq!(value(&server, "lock:3"), None);
    assert!(other.mutex("2").force_unlock().unwrap());
    assert_eq!(
        second.unlock().unwrap(),
        Unlocked::AlreadyLost(Lost::Deleted)
    );

    config(&server, "maxmemory", "0");
    assert!(client.mutex(NAME).try_lock().unwrap().is_some());
}

/// Without the command, and without the channels.
const MUTE: [&[&str]; 2] = [
    &["~*", "+@all", "-publish", "&*"],
    &["~*", "+@all", "resetchannels"],
];

fn a_user_without_the_right_to_publish_still_releases() {
    for rights in MUTE {
        let server = Server::start();
        let user = ["ACL", "SETUSER", "mute", "on", ">pw"];
        tell(&server, &[&user[..], rights].concat());
        let url = format!("redis://mute:pw@127.0.0.1:{}", server.port());
        let (mute, other) = (client(&url), client(&server.url()));

        let guard = mute.mutex(NAME).lock().unwrap();
        let waiting = waiter(&server, other.clone());
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released, "{rights:?}");
        // Nobody told it, so it looks by itself.
        let next = waiting();

        // It hears of nothing either, where channels are what it lacks.
        let calls = server.calls(&["evalsha"]);
        let waiting = beside(move || {
            let guard = mute.mutex(NAME).try_lock_for(ms(10_000)).unwrap();
            (guard, mute)
        });
        eventually(SOON, || server.calls(&["evalsha"]) > calls);
        assert_eq!(next.unlock().unwrap(), Unlocked::Released);
        let (guard, _mute) = waiting();
        let guard = guard.expect("the lock was released");

        tell(&server, &["DEL", LOCK]);
        assert_eq!(
            guard.unlock().unwrap(),
            Unlocked::AlreadyLost(Lost::Deleted),
            "{rights:?}"
        );
    }
}

fn a_password_that_changed_is_said_and_one_that_comes_back_costs_no_lease() {
    let server = Server::start();
    let set = |rule: &[&str]| tell(&server, &[&["ACL", "SETUSER", "app"], rule].concat());
    let kick = || tell(&server, &["CLIENT", "KILL", "USER", "app"]);
    set(&["on", ">first-secret", "~*", "&*", "+@all"]);
    let url = |password: &str| format!("redis://app:{password}@127.0.0.1:{}", server.port());
    let client = client(&url("first-secret"));
    let guard = client.mutex("held").lock().unwrap();

    set(&["resetpass", ">second-secret"]);
    kick();

    let began = Instant::now();
    // The connection that lies idle has died, which costs one attempt.
    let text = refused(client.mutex(NAME).try_lock());
    refused(client.mutex(NAME).lock());
    refused(client.ping());
    assert!(began.elapsed() < SOON, "waiting would not help");
    assert!(text.contains("user and password in the URL"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    refused(guard.renew());
    assert!(guard.is_held(), "a refused renewal is no loss");

    set(&[">first-secret"]);
    guard.renew().unwrap();
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    assert!(self::client(&url("second-secret")).ping().is_ok());

    let short = builder(&url("first-secret")).ttl(ms(600)).build().unwrap();
    let guard = short.mutex("held").lock().unwrap();
    set(&["resetpass", ">second-secret"]);
    kick();
    assert_eq!(guard.lost().recv_timeout(SOON), Ok(Lost::Expired));
    assert_eq!(
        guard.unlock().unwrap(),
        Unlocked::AlreadyLost(Lost::Expired)
    );
}

fn a_replica_grants_nothing_and_says_what_it_is() {
    let server = Server::start();
    let replica = server.replica();
    let client = builder(&replica.url())
        .unreachable_for(ms(400))
        .command_timeout(ms(300))
        .build()
        .unwrap();
    for text in [
        unreachable(client.mutex(NAME).try_lock()),
        unreachable(client.mutex(NAME).try_lock_for(ms(150))),
        unreachable(client.mutex(NAME).lock()),
    ] {
        assert!(text.contains("READONLY"), "{text}");
        assert!(text.contains("point the URL at the master"), "{text}");
    }
    assert_eq!(value(&server, LOCK), None);
}

fn a_demoted_master_never_says_not_yours() {
    let server = Server::start();
    let client = builder(&server.url())
        .command_timeout(ms(500))
        .ttl(ms(30_000))
        .build()
        .unwrap();
    let names = ["kept", "deleted", "taken", "unlocked", "unlocked-deleted"];
    let guards = names.map(|name| client.mutex(name).lock().unwrap());
    let [kept, deleted, taken, unlocked, unlocked_deleted] = guards;
    tell(&server, &["DEL", "lock:deleted", "lock:unlocked-deleted"]);
    tell(&server, &["SET", "lock:taken", "somebody"]);
    // Of a master that is not there, so that it keeps what it has.
    tell(
        &server,
        &["REPLICAOF", "127.0.0.1", &free_port().to_string()],
    );

    for guard in [&kept, &deleted, &taken] {
        let text = unreachable(guard.renew());
        assert!(text.contains("READONLY"), "{}: {text}", guard.name());
        unreachable(guard.extend(ms(20_000)));
        assert!(guard.is_held(), "{}", guard.name());
    }
    for guard in [unlocked, unlocked_deleted] {
        let text = unreachable(guard.unlock());
        assert!(text.contains("READONLY"), "{text}");
    }
    assert!(value(&server, "lock:unlocked").is_some());

    tell(&server, &["REPLICAOF", "NO", "ONE"]);
    kept.renew().unwrap();
    for (guard, loss) in [(deleted, Lost::Deleted), (taken, Lost::Taken)] {
        assert!(matches!(guard.renew(), Err(Error::Lost(lost)) if lost == loss));
        assert_eq!(guard.unlock().unwrap(), Unlocked::AlreadyLost(loss));
    }
    assert_eq!(value(&server, "lock:taken").as_deref(), Some("somebody"));
    // The release that went without an answer is repeated until it has one.
    eventually(SOON, || value(&server, "lock:unlocked").is_none());
}

/// What is no integer from 0 to below 2^53, or leaves no room for a next one.
const JUNK: [&str; 9] = [
    "text",
    "",
    "-5",
    "1.5",
    "1e9",
    " 7",
    "0x10",
    "9007199254740992",
    "99999999999999999999",
];

fn junk_where_the_last_token_is_kept_is_an_error_and_leaves_no_lock() {
    let server = Server::start();
    let client = client(&server.url());
    let mutex = client.mutex(NAME);
    let mut connection = server.connection();
    let bad = |what: &str| {
        for answer in [
            mutex.try_lock(),
            mutex.try_lock_for(ms(60_000)),
            mutex.lock().map(Some),
        ] {
            match answer {
                Err(Error::BadFence { key }) => assert_eq!(key, FENCE),
                other => panic!("{what:?}: {other:?}"),
            }
        }
        assert_eq!(value(&server, LOCK), None, "{what:?}");
    };

    let began = Instant::now();
    for junk in JUNK {
        let () = ask(&mut connection, &["SET", FENCE, junk]);
        bad(junk);
        assert_eq!(value(&server, FENCE).as_deref(), Some(junk), "untouched");
    }
    for command in [
        ["RPUSH", FENCE, "1"].as_slice(),
        &["SADD", FENCE, "1"],
        &["HSET", FENCE, "1", "1"],
    ] {
        let () = ask(&mut connection, &["DEL", FENCE]);
        let _: i64 = ask(&mut connection, command);
        bad(command[0]);
    }
    assert!(began.elapsed() < SOON, "waiting would not help");
    let text = mutex.try_lock().unwrap_err().to_string();
    assert!(text.contains(FENCE) && text.contains("2^53"), "{text}");
    assert!(client.mutex("other").try_lock().unwrap().is_some());

    let () = ask(&mut connection, &["DEL", FENCE]);
    assert!(mutex.try_lock().unwrap().is_some());
}

fn the_last_token_there_can_be_is_given_and_no_further_one() {
    let server = Server::start();
    let mutex = client(&server.url()).mutex(NAME);
    let highest = (1_u64 << 53) - 1;
    tell(&server, &["SET", FENCE, &(highest - 1).to_string()]);
    let guard = mutex.try_lock().unwrap().unwrap();
    assert_eq!(guard.fencing_token().value(), highest);
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    assert!(matches!(mutex.try_lock(), Err(Error::BadFence { .. })));
    assert_eq!(value(&server, LOCK), None);
}

/// A server that says "not now" while `is_so`, and the client under test behind a proxy that counts its connections:
/// each such answer makes it connect again.
fn not_now(server: &Server, word: &str, mut set: impl FnMut(bool)) {
    let proxy = Proxy::new(server);
    let client = builder(&proxy.url())
        .unreachable_for(ms(60_000))
        .command_timeout(ms(5_000))
        .build()
        .unwrap();
    let mutex = client.mutex(NAME);
    let again = |before: usize| eventually(SOON, || proxy.connections() >= before + 2);
    set(false);
    // A connection that is there before the trouble, and a lock that is held.
    let held = client.mutex("held").lock().unwrap();

    set(true);
    let before = proxy.connections();
    let limit = ms(400);
    let began = Instant::now();
    let text = unreachable(mutex.try_lock_for(limit));
    let took = began.elapsed();
    assert!(text.contains(word), "{text}");
    assert!(took >= limit, "{word}: given up after {took:?}");
    assert!(proxy.connections() >= before + 2, "{word}: not tried again");

    let before = proxy.connections();
    let locking = beside(move || mutex.lock().unwrap());
    again(before);
    set(false);
    let guard = locking();
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);

    set(true);
    let before = proxy.connections();
    let releasing = beside(move || held.unlock());
    again(before);
    set(false);
    assert_eq!(releasing().unwrap(), Unlocked::Released, "{word}");
    assert_eq!(value(server, "lock:held"), None);
}

fn too_few_replicas_are_waited_out() {
    let server = Server::start();
    not_now(&server, "NOREPLICAS", |is_so| {
        config(
            &server,
            "min-replicas-to-write",
            if is_so { "1" } else { "0" },
        );
    });
}

fn a_server_that_cannot_save_is_waited_out() {
    let server = Server::start();
    // Where the snapshot would go there is a directory.
    let socket = server.unix_url();
    let socket = socket.strip_prefix("redis+unix://").unwrap();
    fs::create_dir(PathBuf::from(socket).with_file_name("dump.rdb")).unwrap();
    config(&server, "save", "3600 1000000");
    tell(&server, &["BGSAVE"]);
    let status = || server.info("persistence", "rdb_last_bgsave_status");
    eventually(SOON, || status().as_deref() == Some("err"));
    not_now(&server, "MISCONF", |is_so| {
        config(
            &server,
            "stop-writes-on-bgsave-error",
            if is_so { "yes" } else { "no" },
        );
    });
}

fn a_demotion_that_is_taken_back_is_waited_out() {
    let server = Server::start();
    let nobody = free_port().to_string();
    not_now(&server, "READONLY", |is_so| {
        let master = if is_so {
            ["127.0.0.1", &nobody]
        } else {
            ["NO", "ONE"]
        };
        tell(&server, &[&["REPLICAOF"], &master[..]].concat());
    });
}

fn a_long_script_of_somebody_else_is_waited_out() {
    let server = Server::with(&["--lua-time-limit", "10"]);
    let mut killer = server.connection();
    let mut running: Option<thread::JoinHandle<()>> = None;
    not_now(&server, "BUSY", |is_so| {
        if is_so {
            let mut connection = server.connection();
            running = Some(thread::spawn(move || {
                let ended = redis::cmd("EVAL")
                    .arg("while true do end")
                    .arg(0)
                    .exec(&mut connection);
                assert!(ended.is_err(), "it ends by being killed");
            }));
            eventually(SOON, || {
                let answer = redis::cmd("PING").exec(&mut killer);
                answer.is_err_and(|error| error.code() == Some("BUSY"))
            });
        } else if let Some(running) = running.take() {
            let () = ask(&mut killer, &["SCRIPT", "KILL"]);
            running.join().unwrap();
        }
    });
}

fn a_server_that_loads_its_data_is_waited_out() {
    // While loading it answers after every two megabytes.
    let loads_slowly = ["--key-load-delay", "2000", "--rdbcompression", "no"];
    let mut server = Server::with(&loads_slowly);
    let mut connection = server.connection();
    let fill = "for n = 1, 300 do redis.call('SET', n, string.rep('x', 100000)) end";
    let () = ask(&mut connection, &["EVAL", fill, "0"]);
    let snapshot = server.snapshot();
    let client = client(&server.url());
    // Held by somebody who is not in the snapshot.
    tell(&server, &["SET", LOCK, "somebody"]);
    let waiting = waiter(&server, client.clone());
    let over = Arc::new(AtomicBool::new(false));
    let seen = beside({
        let over = Arc::clone(&over);
        move || {
            let mutex = client.mutex("other");
            let mut seen = Vec::new();
            while !over.load(Ordering::SeqCst) {
                seen.extend(mutex.try_lock_for(ms(150)).err());
            }
            seen
        }
    });

    server.restart_from(&snapshot);

    over.store(true, Ordering::SeqCst);
    // What they say depends on how far it has come, and on how often it was asked in vain: the circuit breaker turns
    // away calls with a deadline. That it is no refusal and no loss does not.
    for error in seen() {
        assert!(error.is_unreachable(), "{error:?}");
    }
    // The breaker of the client that both use may be open by then, and `lock` outlasts that.
    assert_eq!(waiting().unlock().unwrap(), Unlocked::Released);
}
