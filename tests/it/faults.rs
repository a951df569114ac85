//! Promise: calls outlast server faults that pass, and report those that do not.
//!
//! A lock can always be released, and an outdated server never reports a loss.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded, unbounded};
use leasehold::{Client, ClientBuilder, Error, Lost, MutexGuard, Renewed};
use redis::{Connection, FromRedisValue};
use support::{Proxy, Server, Traffic, eventually, expect_unreachable, free_port, ms};

support::tests![
    replica_grants_nothing_and_error_says_so,
    full_server_grants_nothing_and_releases_everything,
    changed_password_is_reported_and_a_restored_one_saves_the_lease,
    junk_in_the_fence_is_an_error_and_leaves_no_lock,
    missing_replicas_are_waited_for,
    server_that_cannot_save_is_waited_for,
    reverted_demotion_is_waited_for,
    long_script_of_another_program_is_waited_for,
    empty_restart_is_outlasted_and_the_loss_reported,
    connections_closed_by_a_restart_fail_no_call,
    closed_idle_connections_delay_no_renewal,
    dead_idle_connections_delay_no_renewal,
    closed_idle_connections_delay_no_repeated_release,
    dead_idle_connections_cost_few_attempts,
    flushed_scripts_are_sent_again,
    flushall_is_a_loss_and_wakes_waiters,
    user_without_publish_permission_can_release,
    demoted_master_reports_no_loss,
    highest_token_is_granted_once,
    loading_server_is_waited_for
];

/// The limit for everything that must happen soon, on a busy machine.
const WAIT_LIMIT: Duration = ms(5_000);

fn builder(url: &str) -> ClientBuilder {
    Client::builder().url(url)
}

fn client(url: &str) -> Client {
    builder(url).build().unwrap()
}

fn query<T: FromRedisValue>(connection: &mut Connection, command: &[&str]) -> T {
    redis::cmd(command[0])
        .arg(&command[1..])
        .query(connection)
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn run(server: &Server, command: &[&str]) {
    let _: redis::Value = query(&mut server.connection(), command);
}

fn config(server: &Server, setting: &str, value: &str) {
    run(server, &["CONFIG", "SET", setting, value]);
}

fn value(server: &Server, key: &str) -> Option<String> {
    query(&mut server.connection(), &["GET", key])
}

/// Starts a call in a new thread. The returned function waits for its result.
fn in_thread<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> impl FnOnce() -> T {
    let (sender, receiver) = bounded(1);
    thread::spawn(move || {
        // The receiver is gone if the test has failed.
        let _ = sender.send(call());
    });
    move || {
        let result = receiver.recv_timeout(ms(60_000));
        result.expect("the call returns")
    }
}

/// Starts a thread that waits for the held lock, and returns once the thread sleeps.
fn sleeping_waiter(server: &Server, client: Client) -> impl FnOnce() -> MutexGuard + use<> {
    let waiting = in_thread(move || client.mutex(NAME).lock().unwrap());
    server.wait_until_waiter_sleeps(format!("lock_release:{NAME}"));
    waiting
}

/// Every test has its own server, so one name suffices.
const NAME: &str = "a";
const LOCK: &str = "lock:a";
const FENCE: &str = "leasehold:fence:{lock:a}";

#[track_caller]
fn expect_refused<T>(answer: Result<T, Error>) -> String {
    match answer {
        Err(error @ Error::Refused { .. }) => error.to_string(),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("the call was not refused"),
    }
}

fn empty_restart_is_outlasted_and_the_loss_reported() {
    let mut server = Server::start();
    let holder = client(&server.url());
    let guard = holder.mutex(NAME).renew_every(ms(100)).lock().unwrap();
    let waiting = sleeping_waiter(&server, client(&server.url()));

    server.restart();

    let lost = guard.lost().recv_timeout(WAIT_LIMIT).unwrap();
    assert!(matches!(lost, Lost::Deleted | Lost::Taken), "{lost:?}");
    let next = waiting();
    assert!(next.fencing_token() > guard.fencing_token());
    assert_eq!(guard.unlock().unwrap_err().lost(), Some(lost));
    assert!(next.is_held());
    next.unlock().unwrap();
}

fn connections_closed_by_a_restart_fail_no_call() {
    const CONNECTIONS: usize = 24;
    let mut server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    // Enough calls at once that each needs its own connection.
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
    assert_eq!(guard.unlock().unwrap_err().lost(), Some(Lost::Deleted));
}

fn flushed_scripts_are_sent_again() {
    let server = Server::start();
    let (renewed, renewals) = unbounded();
    let holder = client(&server.url());
    let mutex = holder.mutex(NAME).renew_every(ms(200)).on_renew(move |_| {
        let _ = renewed.send(());
    });
    let other = client(&server.url());

    let guard = mutex.lock().unwrap();
    run(&server, &["SCRIPT", "FLUSH"]);
    while renewals.try_recv().is_ok() {}
    renewals
        .recv_timeout(WAIT_LIMIT)
        .expect("the engine renews the lease");
    run(&server, &["SCRIPT", "FLUSH"]);
    guard.renew().unwrap();
    run(&server, &["SCRIPT", "FLUSH"]);
    guard.set_ttl(ms(60_000)).unwrap();
    run(&server, &["SCRIPT", "FLUSH"]);
    assert!(mutex.inspect().unwrap().is_some());
    run(&server, &["SCRIPT", "FLUSH"]);
    assert!(other.mutex(NAME).try_lock().unwrap().is_err());
    run(&server, &["SCRIPT", "FLUSH"]);
    guard.unlock().unwrap();
    run(&server, &["SCRIPT", "FLUSH"]);
    let guard = mutex.try_lock().unwrap().expect("the lock is free");

    let waiting = sleeping_waiter(&server, other.clone());
    run(&server, &["SCRIPT", "FLUSH"]);
    guard.unlock().unwrap();
    assert!(waiting().is_held());
}

fn flushall_is_a_loss_and_wakes_waiters() {
    let server = Server::start();
    let holder = client(&server.url());
    let hold = |name: &str| holder.mutex(name).renew_every(ms(300)).lock().unwrap();
    let (guard, other) = (hold(NAME), hold("other"));
    let lost = guard.lost();
    let waiting = sleeping_waiter(&server, client(&server.url()));

    run(&server, &["FLUSHALL"]);

    assert_eq!(other.lost().recv_timeout(WAIT_LIMIT), Ok(Lost::Deleted));
    assert_eq!(other.unlock().unwrap_err().lost(), Some(Lost::Deleted));
    let lost = lost.recv_timeout(WAIT_LIMIT).unwrap();
    // The waiter may have acquired the lock before the renewal found it deleted.
    assert!(matches!(lost, Lost::Deleted | Lost::Taken), "{lost:?}");
    let next = waiting();
    assert!(next.fencing_token() > guard.fencing_token());
    assert!(next.is_held());
}

fn full_server_grants_nothing_and_releases_everything() {
    let server = Server::start();
    let client = client(&server.url());
    let other = self::client(&server.url());
    let (first, second) = (
        client.mutex("1").lock().unwrap(),
        client.mutex("2").lock().unwrap(),
    );
    let dropped = client.mutex("3").lock().unwrap();
    let permit = client.semaphore("4", 2).acquire().unwrap();
    let reader = client.rw_lock("5").read().unwrap();

    config(&server, "maxmemory", "1");

    let began = Instant::now();
    let text = expect_refused(client.mutex(NAME).try_lock());
    assert!(text.contains("OOM") && text.contains("maxmemory"), "{text}");
    expect_refused(client.mutex(NAME).try_lock_for(ms(60_000)));
    expect_refused(client.mutex(NAME).lock());
    assert!(began.elapsed() < WAIT_LIMIT, "a call has waited");
    assert_eq!(value(&server, LOCK), None);

    first.renew().unwrap();
    first.set_ttl(ms(30_000)).unwrap();
    permit.renew().unwrap();
    reader.renew().unwrap();
    permit.release().unwrap();
    reader.unlock().unwrap();
    assert!(client.mutex("1").inspect().unwrap().is_some());
    first.unlock().unwrap();
    assert_eq!(value(&server, "lock:1"), None);
    drop(dropped);
    assert_eq!(value(&server, "lock:3"), None);
    assert!(other.mutex("2").force_unlock().unwrap());
    assert_eq!(second.unlock().unwrap_err().lost(), Some(Lost::Deleted));

    config(&server, "maxmemory", "0");
    assert!(client.mutex(NAME).try_lock().unwrap().is_ok());
}

/// Rules of users that may not publish: without the command, and without the channels.
const NO_PUBLISH_RULES: [&[&str]; 2] = [
    &["~*", "+@all", "-publish", "&*"],
    &["~*", "+@all", "resetchannels"],
];

fn user_without_publish_permission_can_release() {
    for rights in NO_PUBLISH_RULES {
        let server = Server::start();
        let user = ["ACL", "SETUSER", "mute", "on", ">pw"];
        run(&server, &[&user[..], rights].concat());
        let url = format!("redis://mute:pw@127.0.0.1:{}", server.port());
        let (mute, other) = (client(&url), client(&server.url()));

        let guard = mute.mutex(NAME).lock().unwrap();
        let waiting = sleeping_waiter(&server, other.clone());
        guard
            .unlock()
            .unwrap_or_else(|error| panic!("{rights:?}: {error}"));
        // No message was published, so the waiter finds the lock free without one.
        let next = waiting();

        // A user without channels gets no messages either.
        let calls = server.calls(&["evalsha"]);
        let waiting = in_thread(move || {
            let guard = mute.mutex(NAME).try_lock_for(ms(10_000)).unwrap();
            (guard, mute)
        });
        eventually(WAIT_LIMIT, || server.calls(&["evalsha"]) > calls);
        next.unlock().unwrap();
        let (guard, _mute) = waiting();
        let guard = guard.expect("the lock was released");

        run(&server, &["DEL", LOCK]);
        assert_eq!(
            guard.unlock().unwrap_err().lost(),
            Some(Lost::Deleted),
            "{rights:?}"
        );
    }
}

/// The number of idle connections: more than the attempts of a renewal or a release within
/// [`WAIT_LIMIT`], because the pauses between attempts grow.
const IDLE: usize = 40;

/// Returns a client that has taken a lock, has renewed it, and has [`IDLE`] idle connections.
fn client_with_idle_connections(proxy: &Proxy) -> (Client, MutexGuard, Receiver<Renewed>) {
    let client = builder(&proxy.url())
        .max_connections(IDLE)
        .command_timeout(ms(1_500))
        .build()
        .unwrap();
    let (renewed, renewals) = unbounded();
    let guard = client
        .mutex("held")
        .ttl(ms(60_000))
        .renew_every(ms(300))
        .on_renew(move |renewal| drop(renewed.send(renewal.clone())))
        .lock()
        .unwrap();
    // The engine takes a connection for its renewals.
    renewals.recv_timeout(WAIT_LIMIT).unwrap();
    // Each of these calls has its own connection while it waits for a replica. On a busy
    // machine the first ones may end before the last ones begin.
    eventually(ms(30_000), || {
        thread::scope(|scope| {
            for n in 0..IDLE {
                let mutex = client.mutex(format!("name-{n}"));
                let mutex = mutex.min_replicas(1, ms(1_000));
                // Refused if an earlier round's attempt is not undone yet.
                let is_granted = move || matches!(mutex.try_lock(), Ok(Ok(_)));
                scope.spawn(move || assert!(!is_granted(), "there is no replica"));
            }
        });
        proxy.open_connections() >= IDLE
    });
    (client, guard, renewals)
}

fn closed_idle_connections_delay_no_renewal() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let (_client, guard, renewals) = client_with_idle_connections(&proxy);
    proxy.cut();
    while renewals.try_recv().is_ok() {}
    // One renewal may have been answered before the cut.
    (0..2).for_each(|_| drop(renewals.recv_timeout(WAIT_LIMIT).unwrap()));
    guard.unlock().unwrap();
}

fn dead_idle_connections_delay_no_renewal() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let (_client, guard, renewals) = client_with_idle_connections(&proxy);
    proxy.set_open(Traffic::DropBoth);
    while renewals.try_recv().is_ok() {}
    (0..2).for_each(|_| drop(renewals.recv_timeout(2 * WAIT_LIMIT).unwrap()));
    guard.unlock().unwrap();
}

fn closed_idle_connections_delay_no_repeated_release() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let (_client, guard, _) = client_with_idle_connections(&proxy);
    proxy.set_all(Traffic::DropBoth);
    assert!(guard.unlock().unwrap_err().is_unreachable());
    assert!(server.get("lock:held").is_some());
    proxy.cut();
    proxy.set_future(Traffic::Pass);
    eventually(WAIT_LIMIT, || server.get("lock:held").is_none());
}

fn dead_idle_connections_cost_few_attempts() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let (client, guard, _) = client_with_idle_connections(&proxy);
    let attempts = || client.stats().totals.attempts;
    let before = attempts();
    proxy.set_open(Traffic::DropBoth);
    let other = client.mutex("other").lock().unwrap();
    assert!(attempts() < before + 5, "{}", attempts() - before);
    other.unlock().unwrap();
    guard.unlock().unwrap();
}

fn changed_password_is_reported_and_a_restored_one_saves_the_lease() {
    let server = Server::start();
    let set = |rule: &[&str]| run(&server, &[&["ACL", "SETUSER", "app"], rule].concat());
    let kick = || run(&server, &["CLIENT", "KILL", "USER", "app"]);
    set(&["on", ">first-secret", "~*", "&*", "+@all"]);
    let url = |password: &str| format!("redis://app:{password}@127.0.0.1:{}", server.port());
    let client = client(&url("first-secret"));
    let guard = client.mutex("held").lock().unwrap();

    set(&["resetpass", ">second-secret"]);
    kick();

    let began = Instant::now();
    // The idle connection is closed, which costs one attempt.
    let text = expect_refused(client.mutex(NAME).try_lock());
    expect_refused(client.mutex(NAME).lock());
    expect_refused(client.ping());
    assert!(began.elapsed() < WAIT_LIMIT, "a call has waited");
    assert!(text.contains("user and password in the URL"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    expect_refused(guard.renew());
    assert!(guard.is_held(), "a refused renewal is no loss");

    set(&[">first-secret"]);
    guard.renew().unwrap();
    guard.unlock().unwrap();
    assert!(self::client(&url("second-secret")).ping().is_ok());

    let short = builder(&url("first-secret")).ttl(ms(600)).build().unwrap();
    let guard = short.mutex("held").lock().unwrap();
    set(&["resetpass", ">second-secret"]);
    kick();
    assert_eq!(guard.lost().recv_timeout(WAIT_LIMIT), Ok(Lost::Expired));
    assert_eq!(guard.unlock().unwrap_err().lost(), Some(Lost::Expired));
}

fn replica_grants_nothing_and_error_says_so() {
    let server = Server::start();
    let replica = server.replica();
    let client = builder(&replica.url())
        .unreachable_for(ms(2_000))
        .command_timeout(ms(2_000))
        .build()
        .unwrap();
    for text in [
        expect_unreachable(client.mutex(NAME).try_lock()),
        expect_unreachable(client.mutex(NAME).try_lock_for(ms(1_500))),
        expect_unreachable(client.mutex(NAME).lock()),
    ] {
        assert!(text.contains("READONLY"), "{text}");
        assert!(text.contains("must name the master"), "{text}");
    }
    assert_eq!(value(&server, LOCK), None);
}

fn demoted_master_reports_no_loss() {
    let server = Server::start();
    let client = builder(&server.url())
        .command_timeout(ms(500))
        .ttl(ms(30_000))
        .build()
        .unwrap();
    let names = ["kept", "deleted", "taken", "unlocked", "unlocked-deleted"];
    let guards = names.map(|name| client.mutex(name).lock().unwrap());
    let [kept, deleted, taken, unlocked, unlocked_deleted] = guards;
    run(&server, &["DEL", "lock:deleted", "lock:unlocked-deleted"]);
    run(&server, &["SET", "lock:taken", "another program"]);
    // The new master does not exist, so the replica keeps its data.
    run(
        &server,
        &["REPLICAOF", "127.0.0.1", &free_port().to_string()],
    );

    for guard in [&kept, &deleted, &taken] {
        let text = expect_unreachable(guard.renew());
        assert!(text.contains("READONLY"), "{}: {text}", guard.name());
        expect_unreachable(guard.set_ttl(ms(20_000)));
        assert!(guard.is_held(), "{}", guard.name());
    }
    for guard in [unlocked, unlocked_deleted] {
        let text = expect_unreachable(guard.unlock());
        assert!(text.contains("READONLY"), "{text}");
    }
    assert!(value(&server, "lock:unlocked").is_some());

    run(&server, &["REPLICAOF", "NO", "ONE"]);
    eventually(WAIT_LIMIT, || kept.renew().is_ok());
    for (guard, loss) in [(deleted, Lost::Deleted), (taken, Lost::Taken)] {
        assert!(matches!(guard.renew(), Err(Error::Lost(lost)) if lost == loss));
        assert_eq!(guard.unlock().unwrap_err().lost(), Some(loss));
    }
    let taken = value(&server, "lock:taken");
    assert_eq!(taken.as_deref(), Some("another program"));
    // The failed release is repeated until the server executes it.
    eventually(WAIT_LIMIT, || value(&server, "lock:unlocked").is_none());
}

/// Values that are not integers from 0 to below 2^53.
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

fn junk_in_the_fence_is_an_error_and_leaves_no_lock() {
    let server = Server::start();
    let client = client(&server.url());
    let mutex = client.mutex(NAME);
    let mut connection = server.connection();
    let bad = |what: &str| {
        for answer in [
            mutex.try_lock(),
            mutex.try_lock_for(ms(60_000)),
            mutex.lock().map(Ok),
        ] {
            match answer {
                Err(Error::BadFence { key, .. }) => assert_eq!(key, FENCE),
                other => panic!("{what:?}: {other:?}"),
            }
        }
        assert_eq!(value(&server, LOCK), None, "{what:?}");
    };

    let began = Instant::now();
    for junk in JUNK {
        let () = query(&mut connection, &["SET", FENCE, junk]);
        bad(junk);
        assert_eq!(value(&server, FENCE).as_deref(), Some(junk), "untouched");
    }
    for command in [
        ["RPUSH", FENCE, "1"].as_slice(),
        &["SADD", FENCE, "1"],
        &["HSET", FENCE, "1", "1"],
    ] {
        let () = query(&mut connection, &["DEL", FENCE]);
        let _: i64 = query(&mut connection, command);
        bad(command[0]);
    }
    assert!(began.elapsed() < WAIT_LIMIT, "a call has waited");
    let text = mutex.try_lock().unwrap_err().to_string();
    assert!(text.contains(FENCE) && text.contains("2^53"), "{text}");
    assert!(client.mutex("other").try_lock().unwrap().is_ok());

    let () = query(&mut connection, &["DEL", FENCE]);
    assert!(mutex.try_lock().unwrap().is_ok());
}

fn highest_token_is_granted_once() {
    let server = Server::start();
    let mutex = client(&server.url()).mutex(NAME);
    let highest = (1_u64 << 53) - 1;
    run(&server, &["SET", FENCE, &(highest - 1).to_string()]);
    let guard = mutex.try_lock().unwrap().unwrap();
    assert_eq!(guard.fencing_token().value(), highest);
    guard.unlock().unwrap();
    assert!(matches!(mutex.try_lock(), Err(Error::BadFence { .. })));
    assert_eq!(value(&server, LOCK), None);
}

/// Asserts that calls outlast a fault that the server reports with the error `word`.
///
/// `set` turns the fault on and off. After each such error the client connects again, and the proxy
/// counts the connections.
fn assert_waited_for(server: &Server, word: &str, mut set: impl FnMut(bool)) {
    let proxy = Proxy::new(server);
    let client = builder(&proxy.url())
        .unreachable_for(ms(60_000))
        .command_timeout(ms(5_000))
        .build()
        .unwrap();
    let mutex = client.mutex(NAME);
    let again = |before: usize| eventually(WAIT_LIMIT, || proxy.connections() >= before + 2);
    set(false);
    // Opens a connection and holds a lock before the fault begins.
    let held = client.mutex("held").lock().unwrap();

    set(true);
    let before = proxy.connections();
    let limit = ms(400);
    let began = Instant::now();
    let text = expect_unreachable(mutex.try_lock_for(limit));
    let took = began.elapsed();
    assert!(text.contains(word), "{text}");
    assert!(took >= limit, "{word}: gave up after {took:?}");
    assert!(proxy.connections() >= before + 2, "{word}: no second try");

    let before = proxy.connections();
    let locking = in_thread(move || mutex.lock().unwrap());
    again(before);
    set(false);
    let guard = locking();
    guard.unlock().unwrap();

    set(true);
    let before = proxy.connections();
    let releasing = in_thread(move || held.unlock());
    again(before);
    set(false);
    releasing().unwrap_or_else(|error| panic!("{word}: {error}"));
    assert_eq!(value(server, "lock:held"), None);
}

fn missing_replicas_are_waited_for() {
    let server = Server::start();
    assert_waited_for(&server, "NOREPLICAS", |is_so| {
        config(
            &server,
            "min-replicas-to-write",
            if is_so { "1" } else { "0" },
        );
    });
}

fn server_that_cannot_save_is_waited_for() {
    let server = Server::start();
    // A directory in place of the snapshot's file makes saving fail.
    let socket = server.unix_url();
    let socket = socket.strip_prefix("redis+unix://").unwrap();
    fs::create_dir(PathBuf::from(socket).with_file_name("dump.rdb")).unwrap();
    config(&server, "save", "3600 1000000");
    run(&server, &["BGSAVE"]);
    let status = || server.info("persistence", "rdb_last_bgsave_status");
    eventually(WAIT_LIMIT, || status().as_deref() == Some("err"));
    assert_waited_for(&server, "MISCONF", |is_so| {
        config(
            &server,
            "stop-writes-on-bgsave-error",
            if is_so { "yes" } else { "no" },
        );
    });
}

fn reverted_demotion_is_waited_for() {
    let server = Server::start();
    let unused_port = free_port().to_string();
    assert_waited_for(&server, "READONLY", |is_so| {
        let master = if is_so {
            ["127.0.0.1", &unused_port]
        } else {
            ["NO", "ONE"]
        };
        run(&server, &[&["REPLICAOF"], &master[..]].concat());
    });
}

fn long_script_of_another_program_is_waited_for() {
    let server = Server::with(&["--lua-time-limit", "10"]);
    let mut killer = server.connection();
    let mut running: Option<thread::JoinHandle<()>> = None;
    assert_waited_for(&server, "BUSY", |is_so| {
        if is_so {
            let mut connection = server.connection();
            running = Some(thread::spawn(move || {
                let ended = redis::cmd("EVAL")
                    .arg("while true do end")
                    .arg(0)
                    .exec(&mut connection);
                assert!(ended.is_err(), "the script ends only when killed");
            }));
            eventually(WAIT_LIMIT, || {
                let answer = redis::cmd("PING").exec(&mut killer);
                answer.is_err_and(|error| error.code() == Some("BUSY"))
            });
        } else if let Some(running) = running.take() {
            let () = query(&mut killer, &["SCRIPT", "KILL"]);
            running.join().unwrap();
        }
    });
}

fn loading_server_is_waited_for() {
    // While loading, the server replies after every 2 MB.
    let loads_slowly = ["--key-load-delay", "2000", "--rdbcompression", "no"];
    let mut server = Server::with(&loads_slowly);
    let mut connection = server.connection();
    let fill = "for n = 1, 300 do redis.call('SET', n, string.rep('x', 100000)) end";
    let () = query(&mut connection, &["EVAL", fill, "0"]);
    let snapshot = server.snapshot();
    // A slow machine loads for longer than `lock` usually outlasts.
    let client = builder(&server.url()).unreachable_for(ms(60_000));
    let client = client.build().unwrap();
    // The snapshot does not contain this holder.
    run(&server, &["SET", LOCK, "another program"]);
    let waiting = sleeping_waiter(&server, client.clone());
    let over = Arc::new(AtomicBool::new(false));
    let seen = in_thread({
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
    // The errors vary with the progress of loading, and the circuit breaker rejects calls with a
    // deadline after several failures. None of them may be a refusal or a loss.
    for error in seen() {
        assert!(error.is_unreachable(), "{error:?}");
    }
    // The breaker of the shared client may be open already, which `lock` outlasts.
    waiting().unlock().unwrap();
}
