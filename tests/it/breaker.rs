//! Promise: `try_lock` fails at once if its server keeps failing, and works soon after a recovery.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{BreakerState, Client, ClientBuilder, Error, HealthPart, HealthState, Lost};
use support::{
    Child, Cluster, ClusterSetup, Control, Recorder, SLACK, Sentinels, Server, SetOnDrop, Setup,
    eventually, free_port, ms, parameter, tell_parent,
};

support::roles![without_threads];

support::tests![
    health_of_a_cluster_probes_each_node,
    calls_fail_at_once_at_a_node_of_a_cluster,
    try_lock_finds_the_new_master_of_a_cluster_behind_an_open_breaker,
    new_master_closes_the_breaker,
    one_call_or_probe_starts_in_a_second,
    paused_writes_end_lock_and_are_no_health,
    calls_fail_at_once_until_the_first_answered_write,
    each_call_that_the_breaker_stops_says_so,
    waiter_behind_an_open_breaker_gets_the_lock,
    waiter_gives_up_after_unreachable_for,
    try_lock_for_behind_an_open_breaker_fails_at_its_deadline,
    health_returns_in_time_and_hides_the_password,
    open_breaker_names_the_server_and_its_last_failure,
    call_that_sent_an_acquire_reports_that_the_lock_may_be_held,
    number_of_failures_that_open_the_breaker_is_configurable,
    short_deadlines_do_not_open_the_breaker,
    renewals_and_releases_bypass_the_breaker,
    forced_releases_bypass_the_breaker,
    server_that_refuses_writes_for_good_is_not_healthy,
    refused_write_does_not_close_the_breaker,
    reads_bypass_the_breaker,
    client_that_only_reads_works_after_an_outage,
    breaker_of_a_quorum_opens_without_a_majority,
    majority_with_paused_writes_is_an_outage,
    health_of_a_replica_fails,
    health_of_a_user_who_may_not_probe_is_any_reply,
    health_reports_servers_and_threads,
    health_without_threads_reports_failure
];

const COMMAND_TIMEOUT: Duration = ms(250);

fn builder(server: &Server) -> ClientBuilder {
    Client::builder()
        .url(server.url())
        .connect_timeout(COMMAND_TIMEOUT)
        .command_timeout(COMMAND_TIMEOUT)
}

/// Makes calls until the breaker is open.
#[track_caller]
fn open_breaker(client: &Client) {
    let mut calls = 0;
    eventually(ms(10_000), || {
        calls += 1;
        assert!(calls < 100, "the breaker does not open");
        matches!(
            client.mutex("any").try_lock(),
            Err(Error::CircuitOpen { .. })
        )
    });
}

/// Has the client connect, pauses its server, and makes calls until the breaker is open.
#[track_caller]
fn pause_until_open(server: &Server, client: &Client) {
    drop(client.mutex("a").lock().unwrap());
    server.pause();
    open_breaker(client);
}

fn calls_fail_at_once_until_the_first_answered_write() {
    let server = Server::start();
    let client = builder(&server).build().unwrap();
    drop(client.mutex("a").lock().unwrap());
    server.pause();
    assert_eq!(client.stats().open_breakers, 0);
    open_breaker(&client);
    assert_eq!(client.stats().open_breakers, 1);
    // Far less time than 20 timeouts.
    let start = Instant::now();
    for _ in 0..20 {
        match client.mutex("a").try_lock() {
            Err(error @ Error::CircuitOpen { retry_in, .. }) => {
                assert!(retry_in <= ms(1_000));
                assert!(error.is_unreachable() && !error.may_be_held());
            }
            // A call that probed the server.
            Err(Error::Unreachable { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(
        start.elapsed() < 8 * COMMAND_TIMEOUT,
        "{:?}",
        start.elapsed()
    );
    server.resume();
    // The first answered write closes the breaker: a call, or the probe of `health`.
    eventually(ms(10_000), || client.health().is_healthy());
    assert_eq!(client.stats().open_breakers, 0);
    assert!(client.mutex("a").try_lock().unwrap().is_ok());
}

/// Several threads want one name. In a second, the breaker admits one call, and those that began
/// before it and wait for the same reply may say so, too.
fn each_call_that_the_breaker_stops_says_so() {
    let server = Server::start();
    let client = builder(&server).command_timeout(ms(100)).build().unwrap();
    pause_until_open(&server, &client);
    // The command of an admitted call gets no reply meanwhile.
    let end = Instant::now() + ms(1_500);
    let (mut stopped, mut others) = (0, Vec::new());
    thread::scope(|scope| {
        let calls = |n: u64| {
            let client = &client;
            move || {
                let mutex = client.mutex("a");
                let errors = std::iter::from_fn(|| {
                    let error = match n % 2 {
                        0 => mutex.try_lock_for(ms(20)).unwrap_err(),
                        _ => {
                            thread::sleep(ms(2));
                            mutex.try_lock().unwrap_err()
                        }
                    };
                    (Instant::now() < end).then_some(error)
                });
                errors.collect::<Vec<_>>()
            }
        };
        let threads: Vec<_> = (0..8).map(|n| scope.spawn(calls(n))).collect();
        for error in threads.into_iter().flat_map(|it| it.join().unwrap()) {
            match error {
                Error::CircuitOpen { .. } => stopped += 1,
                other => others.push(other.to_string()),
            }
        }
    });
    assert!(stopped > 20 * others.len(), "{stopped}, {others:#?}");
}

/// The calls do not wait for a refresh of the slot map.
fn calls_fail_at_once_at_a_node_of_a_cluster() {
    let cluster = Cluster::with(ClusterSetup::steady(3, 0));
    let builder = Client::builder().url(cluster.url());
    let client = builder.command_timeout(COMMAND_TIMEOUT).build().unwrap();
    let mutex = client.mutex(cluster.name_owned_by("a", 0));
    drop(mutex.lock().unwrap());
    cluster.pause(0);
    let is_open = || matches!(mutex.try_lock(), Err(Error::CircuitOpen { .. }));
    eventually(ms(10_000), is_open);
    // Far less time than a refresh for each call.
    let start = Instant::now();
    let rejected = (0..40).filter(|_| is_open()).count();
    let took = start.elapsed();
    assert!(rejected >= 30, "{rejected}");
    assert!(took < 8 * COMMAND_TIMEOUT, "{took:?}");
    cluster.resume(0);
    eventually(ms(30_000), || mutex.try_lock().is_ok());
}

fn try_lock_finds_the_new_master_of_a_cluster_behind_an_open_breaker() {
    let cluster = Cluster::with(ClusterSetup::steady(3, 1));
    let builder = Client::builder().url(cluster.url()).breaker(1);
    let client = builder.command_timeout(COMMAND_TIMEOUT).build().unwrap();
    let mutex = client.mutex(cluster.name_owned_by("a", 0));
    drop(mutex.lock().unwrap());
    cluster.pause(0);
    eventually(ms(60_000), || {
        matches!(mutex.try_lock(), Err(Error::CircuitOpen { .. }))
    });
    let replica = cluster.replicas_of(0).next();
    cluster.take_over(replica.expect("the master has a replica"));
    eventually(ms(30_000), || mutex.try_lock().is_ok());
}

/// As during `FAILOVER`, a shutdown that waits for replicas, or an operator's pause: the server
/// answers every read.
fn paused_writes_end_lock_and_are_no_health() {
    let server = Server::start();
    let limit = ms(2_500);
    let builder = builder(&server).breaker(2).unreachable_for(limit);
    let client = builder.build().unwrap();
    drop(client.mutex("a").lock().unwrap());
    server.run("CLIENT", &["PAUSE", "60000", "WRITE"]);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = SetOnDrop(&is_over);
        let looking = scope.spawn(|| {
            let (mut was_open, mut reads) = (false, 0);
            while !is_over.load(Ordering::SeqCst) {
                assert!(!client.health().is_healthy(), "{}", client.health());
                let is_open = client.stats().open_breakers == 1;
                assert!(is_open || !was_open, "an answered read closed the breaker");
                was_open = is_open;
                // On a busy machine, a new connection may take longer than the command timeout.
                reads += u32::from(client.ping().is_ok());
            }
            assert!(reads > 0, "reads are answered");
            was_open
        });
        let start = Instant::now();
        let error = client.mutex("a").lock().unwrap_err();
        let took = start.elapsed();
        drop(end);
        assert!(looking.join().unwrap(), "the breaker has opened");
        assert!(error.is_unreachable(), "{error:?}");
        assert!((limit - ms(200)..limit + SLACK).contains(&took), "{took:?}");
    });
    server.run("CLIENT", &["UNPAUSE"]);
    eventually(ms(10_000), || client.health().is_healthy());
    drop(client.mutex("a").lock().unwrap());
    assert_eq!(client.stats().open_breakers, 0);
}

fn one_call_or_probe_starts_in_a_second() {
    let server = Server::start();
    let proxy = Recorder::to(server.port());
    let builder = Client::builder().url(format!("redis://127.0.0.1:{}", proxy.port()));
    let builder = builder.command_timeout(COMMAND_TIMEOUT).breaker(2);
    let client = builder.build().unwrap();
    drop(client.mutex("a").lock().unwrap());
    server.run("CLIENT", &["PAUSE", "60000", "WRITE"]);
    open_breaker(&client);
    let starts = || {
        let exchanges = proxy.exchanges();
        let names = exchanges.iter().map(|exchange| {
            if exchange.is_message() {
                String::new()
            } else {
                exchange.request.name()
            }
        });
        names
            .filter(|name| name == "acquire" || name == "probe")
            .count()
    };
    let (before, start) = (starts(), Instant::now());
    let is_over = || start.elapsed() > ms(3_500);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over() {
                    assert!(client.mutex("b").try_lock().is_err());
                    thread::sleep(ms(1));
                }
            });
        }
        scope.spawn(|| {
            while !is_over() {
                assert!(!client.health().is_healthy());
                thread::sleep(ms(1));
            }
        });
    });
    let started = starts() - before;
    let most = start.elapsed().as_secs() as usize + 1;
    assert!(
        (2..=most).contains(&started),
        "{started} in {:?}",
        start.elapsed()
    );
}

fn majority_with_paused_writes_is_an_outage() {
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let client = Client::builder()
        .quorum(servers.iter().map(Server::url))
        .command_timeout(COMMAND_TIMEOUT)
        .unreachable_for(ms(2_000))
        .build()
        .unwrap();
    drop(client.mutex("a").lock().unwrap());
    let pause = |server: &Server| server.run("CLIENT", &["PAUSE", "60000", "WRITE"]);
    pause(&servers[0]);
    drop(client.mutex("a").lock().unwrap());
    assert!(client.health().is_healthy(), "a majority accepts writes");
    pause(&servers[1]);
    assert!(client.mutex("b").lock().unwrap_err().is_unreachable());
    assert!(!client.health().is_healthy());
    servers[0].run("CLIENT", &["UNPAUSE"]);
    eventually(ms(10_000), || client.mutex("b").try_lock().is_ok());
    assert!(client.health().is_healthy());
}

fn health_of_a_cluster_probes_each_node() {
    let cluster = Cluster::with(ClusterSetup::steady(3, 0));
    let builder = Client::builder().url(cluster.url());
    let client = builder.command_timeout(ms(2_000)).build().unwrap();
    eventually(ms(30_000), || client.health().is_healthy());
    let node = cluster.node(1);
    node.run("CLIENT", &["PAUSE", "60000", "WRITE"]);
    let health = client.health();
    let fails = health
        .servers
        .iter()
        .filter(|part| part.state == HealthState::Fails);
    let fails: Vec<_> = fails.map(|part| part.server.clone()).collect();
    assert_eq!(fails, [format!("127.0.0.1:{}", node.port())], "{health}");
    drop(client.mutex(cluster.name_owned_by("a", 0)).lock().unwrap());
    node.run("CLIENT", &["UNPAUSE"]);
    eventually(ms(10_000), || client.health().is_healthy());
}

fn health_of_a_replica_fails() {
    let server = Server::start();
    let replica = server.replica();
    let health = replica.client().health();
    assert!(!health.is_healthy(), "{health}");
    assert_eq!(health.servers[0].state, HealthState::Fails);
    let error = health.servers[0].last_error.clone().unwrap();
    assert!(error.contains("READONLY"), "{error}");
}

fn health_of_a_user_who_may_not_probe_is_any_reply() {
    let server = Server::start();
    let rules = ["SETUSER", "u", "on", "nopass", "~other", "+@all"];
    server.run("ACL", &rules);
    let client = Client::open(format!("redis://u:p@127.0.0.1:{}", server.port())).unwrap();
    assert!(client.health().is_healthy());
}

/// A refusal that says nothing about this user's permissions is no answered write.
fn server_that_refuses_writes_for_good_is_not_healthy() {
    let server = Server::with(&["--rename-command", "EVALSHA", ""]);
    let health = server.client().health();
    assert!(!health.is_healthy(), "{health}");
    let error = health.servers[0].last_error.clone().unwrap();
    assert!(error.contains("EVALSHA"), "{error}");
}

fn refused_write_does_not_close_the_breaker() {
    let server = Server::start();
    let proxy = Recorder::to(server.port());
    let replace = |error: Option<&'static str>| {
        proxy.replace(move |request| {
            let is_script = request.words[0].starts_with(b"EVAL");
            error.filter(|_| is_script).map(|error| format!("-{error}"))
        });
    };
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let client = Client::builder().url(url).breaker(2).build().unwrap();
    drop(client.mutex("a").lock().unwrap());
    replace(Some("ERR upstream failure"));
    open_breaker(&client);
    replace(Some(
        "OOM command not allowed when used memory > 'maxmemory'.",
    ));
    // The breaker admits one of these in a second.
    eventually(ms(10_000), || match client.mutex("a").try_lock() {
        Err(Error::Refused { answer, .. }) => answer.starts_with("OOM"),
        _ => false,
    });
    assert!(!client.health().is_healthy());
    assert_eq!(client.stats().open_breakers, 1);
    replace(None);
    eventually(ms(10_000), || client.health().is_healthy());
    assert_eq!(client.stats().open_breakers, 0);
}

fn forced_releases_bypass_the_breaker() {
    let server = Server::start();
    let holder = server.client();
    let client = builder(&server).breaker(2).build().unwrap();
    let semaphore = client.semaphore("a", 1);
    let _mutexes = ["a", "b"].map(|name| holder.mutex(name).lock().unwrap());
    let permit = holder.semaphore("a", 1).acquire().unwrap();
    let _reader = holder.rw_lock("c").read().unwrap();
    let force: [&dyn Fn() -> Result<bool, Error>; 4] = [
        &|| client.mutex("a").force_unlock(),
        &|| client.fair_mutex("b").force_unlock(),
        &|| client.rw_lock("c").force_unlock(),
        &|| semaphore.force_release(permit.holder_id()),
    ];
    for force in force {
        server.pause();
        open_breaker(&client);
        server.resume();
        assert!(force().unwrap());
        assert_eq!(client.stats().open_breakers, 0, "a write was answered");
    }
}

fn open_breaker_names_the_server_and_its_last_failure() {
    let server = Server::start();
    let client = builder(&server).breaker(2).build().unwrap();
    pause_until_open(&server, &client);
    let text = client.mutex("a").try_lock().unwrap_err().to_string();
    let place = format!("127.0.0.1:{}", server.port());
    let failures = format!(" failures at {place} (last: ");
    assert!(text.contains(&failures), "{text}");
    assert!(text.contains("try again in"), "{text}");
}

/// An acquire that was sent before the breaker opened may still run.
fn call_that_sent_an_acquire_reports_that_the_lock_may_be_held() {
    let server = Server::start();
    let client = builder(&server).breaker(2).build().unwrap();
    drop(client.mutex("a").lock().unwrap());
    server.pause();
    let limit = ms(1_200);
    let error = client.mutex("a").try_lock_for(limit).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(error.may_be_held());
    assert!(error.to_string().contains(&server.port().to_string()));
}

fn number_of_failures_that_open_the_breaker_is_configurable() {
    let server = Server::start();
    let never = builder(&server).breaker(0).build().unwrap();
    let after_one = builder(&server).breaker(1).build().unwrap();
    server.pause();
    for _ in 0..8 {
        match never.mutex("a").try_lock() {
            Err(Error::Unreachable { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(after_one.mutex("a").try_lock().is_err());
    // The breaker lets a call through every second, which may be one of these.
    eventually(ms(30_000), || {
        let outcome = after_one.mutex("a").try_lock();
        matches!(outcome, Err(Error::CircuitOpen { .. }))
    });
}

/// A call that hits its own, shorter deadline does not count as a failure of the server.
fn short_deadlines_do_not_open_the_breaker() {
    let server = Server::start();
    let client = server.client();
    drop(client.mutex("a").lock().unwrap());
    server.pause();
    for _ in 0..20 {
        match client.mutex("a").try_lock_for(ms(20)) {
            Err(Error::Unreachable { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    server.resume();
    assert!(client.mutex("a").try_lock().unwrap().is_ok());
}

/// `lock` keeps waiting behind an open breaker and gets the lock soon after the server is back.
fn waiter_behind_an_open_breaker_gets_the_lock() {
    let server = Server::start();
    let client = builder(&server)
        .unreachable_for(ms(60_000))
        .build()
        .unwrap();
    pause_until_open(&server, &client);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            client
                .mutex("a")
                .lock()
                .map(|guard| (guard, Instant::now()))
        });
        let in_time = scope.spawn(|| {
            let limit = ms(700);
            Control::run(limit, || client.mutex("b").try_lock_for(limit))
        });
        let outcome = in_time.join().unwrap().no_later_than(SLACK);
        assert!(outcome.unwrap_err().is_unreachable());
        server.resume();
        let back = Instant::now();
        let (guard, got) = waiting.join().unwrap().unwrap();
        assert!(got - back < ms(2_500), "{:?}", got - back);
        guard.unlock().unwrap();
    });
}

fn waiter_gives_up_after_unreachable_for() {
    let server = Server::start();
    let client = builder(&server).unreachable_for(ms(1_500)).build().unwrap();
    pause_until_open(&server, &client);
    let start = Instant::now();
    assert!(client.mutex("a").lock().unwrap_err().is_unreachable());
    let took = start.elapsed();
    assert!((ms(1_400)..ms(3_000)).contains(&took), "{took:?}");
}

fn try_lock_for_behind_an_open_breaker_fails_at_its_deadline() {
    let server = Server::start();
    let client = builder(&server).build().unwrap();
    pause_until_open(&server, &client);
    let start = Instant::now();
    match client.mutex("a").try_lock_for(ms(400)) {
        // `Unreachable` if this call probed the server, which is less likely.
        Err(Error::CircuitOpen { .. } | Error::Unreachable { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(start.elapsed() >= ms(350), "{:?}", start.elapsed());
}

/// Behind an open breaker, held locks are still renewed and released. No lock is granted because of
/// an outage.
fn renewals_and_releases_bypass_the_breaker() {
    let server = Server::start();
    let client = builder(&server).build().unwrap();
    let kept = client.mutex("kept").ttl(ms(4_000)).lock().unwrap();
    let released = client.mutex("released").ttl(ms(60_000)).lock().unwrap();
    let lost = client
        .mutex("lost")
        .ttl(ms(600))
        .auto_renew(false)
        .lock()
        .unwrap();
    server.pause();
    open_breaker(&client);
    assert!(released.unlock().unwrap_err().is_unreachable());
    assert_eq!(lost.lost().recv_timeout(ms(5_000)), Ok(Lost::Expired));
    assert!(
        client.mutex("lost").try_lock().is_err(),
        "no lock is granted during an outage"
    );
    server.resume();
    eventually(ms(10_000), || server.get("lock:released").is_none());
    eventually(ms(10_000), || {
        kept.remaining().is_some_and(|left| left > ms(3_000))
    });
    kept.unlock().unwrap();
}

/// A replica replies to reads, and to no write.
fn reads_bypass_the_breaker() {
    let server = Server::start();
    let replica = server.replica();
    let client = builder(&replica).breaker(2).build().unwrap();
    open_breaker(&client);
    for _ in 0..20 {
        assert!(client.mutex("a").inspect().unwrap().is_none());
    }
    assert_eq!(client.stats().open_breakers, 1);
}

/// No write of this client would close a breaker that its reads had opened.
fn client_that_only_reads_works_after_an_outage() {
    let server = Server::start();
    let client = builder(&server).breaker(2).build().unwrap();
    let mutex = client.mutex("a");
    assert!(mutex.inspect().unwrap().is_none());
    server.pause();
    for _ in 0..3 {
        assert!(mutex.inspect().unwrap_err().is_unreachable());
    }
    server.resume();
    eventually(ms(10_000), || mutex.inspect().is_ok());
    for _ in 0..20 {
        assert!(mutex.inspect().unwrap().is_none());
    }
    assert_eq!(client.stats().open_breakers, 0);
}

fn new_master_closes_the_breaker() {
    let mut sentinels = Sentinels::start(Setup::fast_failover());
    let client = Client::builder()
        .url(sentinels.url())
        .command_timeout(COMMAND_TIMEOUT)
        .unreachable_for(ms(60_000))
        .build()
        .unwrap();
    drop(client.mutex("a").lock().unwrap());
    sentinels.kill_first_master();
    open_breaker(&client);
    sentinels.successor();
    let back = Instant::now();
    drop(client.mutex("a").lock().unwrap());
    assert!(back.elapsed() < ms(3_000), "{:?}", back.elapsed());
}

fn breaker_of_a_quorum_opens_without_a_majority() {
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let client = Client::builder()
        .quorum(servers.iter().map(Server::url))
        .command_timeout(COMMAND_TIMEOUT)
        .build()
        .unwrap();
    drop(client.mutex("a").lock().unwrap());
    servers[0].pause();
    assert!(client.health().is_healthy(), "a majority replies");
    servers[1].pause();
    assert_eq!(client.stats().open_breakers, 0);
    open_breaker(&client);
    assert_eq!(client.stats().open_breakers, 1);
    let health = client.health();
    assert!(!health.is_healthy());
    let is_open = |part: &HealthPart| matches!(part.breaker, BreakerState::Open { .. });
    assert!(health.servers.iter().all(is_open), "{health}");
    servers[0].resume();
    eventually(ms(10_000), || client.mutex("a").try_lock().is_ok());
    assert_eq!(client.stats().open_breakers, 0);
}

fn health_reports_servers_and_threads() {
    let mut server = Server::start();
    let client = builder(&server).build().unwrap();
    let health = client.health();
    assert!(health.is_healthy());
    assert_eq!(health.servers[0].state, HealthState::Works);
    assert!(health.servers[0].latency.is_some());
    assert_eq!(health.servers[0].breaker, BreakerState::Closed);

    let guard = client.mutex("a").ttl(ms(600)).lock().unwrap();
    let waiting = client.mutex("a");
    let waiting = thread::spawn(move || waiting.lock());
    server.wait_until_waiter_sleeps("lock_release:a");
    let subscriber = || client.health().subscribers[0].state;
    eventually(ms(5_000), || {
        let renewer = client.health().renewers[0].state;
        subscriber() == HealthState::Works && renewer == HealthState::Works
    });

    server.kill();
    eventually(ms(10_000), || {
        !client.health().is_healthy() && subscriber() == HealthState::Fails
    });
    let health = client.health();
    assert_eq!(health.servers[0].state, HealthState::Fails);
    assert_eq!(health.servers[0].latency, None);
    assert!(health.servers[0].last_error.is_some());
    let text = health.to_string();
    assert!(
        text.contains("failing") && text.contains("last error"),
        "{text}"
    );

    server.restart();
    eventually(ms(10_000), || client.health().is_healthy());
    drop(guard);
    drop(waiting.join().unwrap().unwrap());
}

fn health_returns_in_time_and_hides_the_password() {
    let url = format!("redis://user:s3cret@127.0.0.1:{}", free_port());
    let client = Client::builder()
        .url(url)
        .command_timeout(COMMAND_TIMEOUT)
        .build()
        .unwrap();
    let timed = Control::run(COMMAND_TIMEOUT, || client.health());
    let health = timed.no_later_than(SLACK);
    assert!(!health.is_healthy());
    assert!(!format!("{health:?}{health}").contains("s3cret"));
}

/// A stack larger than any address space: no thread can be started.
const HUGE_STACK: (&str, &str) = ("RUST_MIN_STACK", "1152921504606846976");

fn health_without_threads_reports_failure() {
    let servers = [(); 3].map(|()| Server::start());
    let urls = servers.each_ref().map(Server::url).join(" ");
    let child = Child::spawn("breaker::without_threads", &[("URLS", &urls), HUGE_STACK]);
    let finished = child.wait().succeeded();
    assert_eq!(
        finished.lines,
        ["3 servers, healthy: false"],
        "{}",
        finished.output
    );
}

fn without_threads() {
    assert!(thread::Builder::new().spawn(|| ()).is_err());
    let urls = parameter("URLS");
    let client = Client::quorum(urls.split(' ')).unwrap();
    let health = client.health();
    tell_parent(&format!(
        "{} servers, healthy: {}",
        health.servers.len(),
        health.is_healthy()
    ));
}
