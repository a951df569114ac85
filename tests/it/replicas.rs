//! Promise: a lock with `min_replicas` is granted and renewed only if enough replicas acknowledge.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Lost, Mutex};
use support::{Control, Recorder, Replicas, SLACK, Server, eventually, free_port, ms};

support::tests![
    a_wait_for_a_dead_replica_delays_no_other_renewal,
    an_acknowledged_lease_is_renewed_and_on_every_replica,
    a_deadline_shorter_than_the_replica_wait_is_met,
    a_lease_that_too_few_acknowledge_is_undone,
    a_lock_can_override_the_clients_min_replicas,
    a_refusal_does_not_wait_for_replicas,
    a_renewal_that_too_few_acknowledge_extends_nothing,
    an_unacknowledged_shortening_takes_effect,
    a_promoted_replica_has_the_lease,
    a_server_without_wait_is_an_error_that_names_it,
    an_unanswered_wait_undoes_the_lease,
    impossible_replica_timeouts_are_refused,
    passing_refusals_of_wait_end_no_call,
    refusal_of_wait_that_lasts_is_final,
    demotion_during_wait_ends_no_call
];

support::timed![
    a_renewal_is_retried_until_the_replica_is_back,
    a_wait_for_the_only_replica_loses_no_lease_of_one_second
];

const WITHIN: Duration = ms(100);

fn mutex(client: &Client, wanted: usize) -> Mutex {
    client.mutex("a").min_replicas(wanted, WITHIN)
}

/// Asserts that a call failed as not replicated; returns the acknowledged and the wanted number.
#[track_caller]
fn acknowledgements<T: std::fmt::Debug>(outcome: Result<T, Error>) -> (usize, usize) {
    match outcome {
        Err(Error::NotReplicated {
            acknowledged,
            wanted,
            ..
        }) => (acknowledged, wanted),
        other => panic!("{other:?}"),
    }
}

fn an_acknowledged_lease_is_renewed_and_on_every_replica() {
    let servers = Replicas::start(2);
    let client = servers.master().client();
    let guard = mutex(&client, 2).ttl(ms(1_500)).lock().unwrap();
    for server in servers.servers() {
        assert_eq!(
            server.get("lock:a").unwrap(),
            guard.holder_id().as_str().as_bytes()
        );
    }
    // Two ttls: only acknowledged renewals can have kept the lease.
    let start = Instant::now();
    eventually(ms(10_000), || start.elapsed() > ms(3_000));
    guard.ensure_held().unwrap();
    guard.renew().unwrap();
    guard.set_ttl(ms(5_000)).unwrap();
    assert!(guard.remaining().unwrap() > ms(4_000));
    guard.unlock().unwrap();
    // A name that was never locked waits for its replicas too.
    drop(client.mutex("b").min_replicas(2, WITHIN).lock().unwrap());
}

fn a_lease_that_too_few_acknowledge_is_undone() {
    let servers = Replicas::start(2);
    let client = servers.master().client();
    servers.pause(1);
    assert_eq!(acknowledgements(mutex(&client, 2).try_lock()), (1, 2));
    assert_eq!(acknowledgements(mutex(&client, 3).lock()), (1, 3));
    eventually(ms(5_000), || servers.master().get("lock:a").is_none());
    // One acknowledgement is enough if only one is wanted.
    drop(mutex(&client, 1).try_lock().unwrap().unwrap());
    servers.resume(1);
    eventually(ms(10_000), || {
        mutex(&client, 2).try_lock().is_ok_and(|got| got.is_ok())
    });
}

fn a_lock_can_override_the_clients_min_replicas() {
    let server = Server::start();
    let client = Client::builder()
        .url(server.url())
        .min_replicas(1, WITHIN)
        .build()
        .unwrap();
    assert_eq!(acknowledgements(client.mutex("a").lock()), (0, 1));
    eventually(ms(5_000), || server.get("lock:a").is_none());
    drop(client.mutex("a").min_replicas(0, WITHIN).lock().unwrap());
}

fn a_refusal_does_not_wait_for_replicas() {
    let servers = Replicas::start(1);
    let holder = servers.master().client();
    let guard = holder.mutex("a").lock().unwrap();
    servers.pause(0);
    let other = servers.master().client();
    assert!(mutex(&other, 1).try_lock().unwrap().is_err());
    drop(guard);
}

fn a_renewal_that_too_few_acknowledge_extends_nothing() {
    let servers = Replicas::start(1);
    let client = servers.master().client();
    let guard = mutex(&client, 1).ttl(ms(1_500)).lock().unwrap();
    let lost = guard.lost();
    servers.pause(0);
    assert_eq!(acknowledgements(guard.renew()), (0, 1));
    assert_eq!(acknowledgements(guard.set_ttl(ms(60_000))), (0, 1));
    assert!(guard.remaining().unwrap() < ms(1_500));
    // The master renews the key, but without the replica the lease expires in this client.
    assert_eq!(lost.recv_timeout(ms(5_000)), Ok(Lost::Expired));
    assert!(!guard.is_held());
    assert!(servers.master().pttl("lock:a") > 0);
}

fn a_renewal_is_retried_until_the_replica_is_back() {
    let servers = Replicas::start(1);
    let client = servers.master().client();
    let guard = mutex(&client, 1).ttl(ms(3_000)).lock().unwrap();
    servers.pause(0);
    assert_eq!(acknowledgements(guard.renew()), (0, 1));
    // A lock without `min_replicas` is not delayed by one with it.
    let plain = client.mutex("plain").ttl(ms(1_000)).lock().unwrap();
    let start = Instant::now();
    eventually(ms(10_000), || start.elapsed() > ms(1_500));
    plain.ensure_held().unwrap();
    servers.resume(0);
    eventually(ms(10_000), || {
        guard.remaining().is_some_and(|left| left > ms(2_500))
    });
    guard.unlock().unwrap();
}

fn an_unacknowledged_shortening_takes_effect() {
    let servers = Replicas::start(1);
    let client = servers.master().client();
    let guard = mutex(&client, 1).auto_renew(false).lock().unwrap();
    servers.pause(0);
    // The master has shortened the lease.
    assert_eq!(acknowledgements(guard.set_ttl(ms(2_000))), (0, 1));
    assert!(servers.master().pttl("lock:a") <= 2_000);
    assert!(guard.remaining().unwrap() <= ms(2_000));
}

fn a_deadline_shorter_than_the_replica_wait_is_met() {
    let servers = Replicas::start(1);
    let client = servers.master().client();
    drop(mutex(&client, 1).lock().unwrap());
    servers.pause(0);
    let limit = ms(150);
    let mutex = client.mutex("a").min_replicas(1, ms(700));
    let timed = Control::run(limit, || mutex.try_lock_for(limit));
    let error = timed.no_later_than(SLACK).unwrap_err();
    assert!(error.may_be_held(), "{error}");
    eventually(ms(5_000), || servers.master().get("lock:a").is_none());
}

fn a_promoted_replica_has_the_lease() {
    let mut servers = Replicas::start(1);
    let guard = mutex(&servers.master().client(), 1).lock().unwrap();
    servers.kill_master();
    let promoted = servers.replica(0);
    promoted.run("REPLICAOF", &["NO", "ONE"]);
    assert!(promoted.client().mutex("a").try_lock().unwrap().is_err());
    assert!(guard.is_held());
}

fn a_server_without_wait_is_an_error_that_names_it() {
    let server = Server::with(&["--rename-command", "WAIT", ""]);
    let client = server.client();
    let error = mutex(&client, 1).try_lock().unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(error.to_string().contains("WAIT"), "{error}");
    eventually(ms(5_000), || server.get("lock:a").is_none());
}

fn an_unanswered_wait_undoes_the_lease() {
    let servers = Replicas::start(1);
    let client = servers.master().client();
    drop(mutex(&client, 1).lock().unwrap());
    servers.pause(0);
    let waiting = thread::scope(|scope| {
        let call = scope.spawn(|| {
            client
                .mutex("a")
                .min_replicas(1, ms(800))
                .try_lock_for(ms(900))
        });
        eventually(ms(5_000), || servers.master().get("lock:a").is_some());
        servers.master().pause();
        call.join().unwrap()
    });
    assert!(waiting.unwrap_err().may_be_held());
    servers.master().resume();
    eventually(ms(5_000), || servers.master().get("lock:a").is_none());
}

/// Returns a proxy to the server that replies to `WAIT` with `error` as often as this.
fn proxy_that_refuses_wait(server: &Server, error: &'static str, mut times: u32) -> Recorder {
    let proxy = Recorder::to(server.port());
    proxy.replace(move |request| {
        let is_refused = request.name() == "WAIT" && times > 0;
        times -= u32::from(is_refused);
        is_refused.then(|| format!("-{error}"))
    });
    proxy
}

fn passing_refusals_of_wait_end_no_call() {
    let servers = Replicas::start(1);
    for error in [
        "UNBLOCKED force unblock from blocking operation, instance state changed",
        "READONLY You can't write against a read only replica.",
        "LOADING Redis is loading the dataset in memory",
        "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0",
        "NOREPLICAS Not enough good replicas to write.",
        "ERR Internal error",
    ] {
        let proxy = proxy_that_refuses_wait(servers.master(), error, 3);
        let url = format!("redis://127.0.0.1:{}", proxy.port());
        let client = Client::builder().url(url).min_replicas(1, WITHIN).build();
        let client = client.unwrap();
        // The lease without an acknowledgement is undone: it does not block the next attempt.
        let start = Instant::now();
        let guard = client.mutex("a").ttl(ms(60_000)).lock().unwrap();
        assert!(start.elapsed() < ms(20_000), "{error}");
        guard.renew().unwrap();
        guard
            .unlock()
            .unwrap_or_else(|other| panic!("{error}: {other}"));
        drop(client.fair_mutex("b").lock().unwrap());
        drop(client.mutex_all(["c", "d"]).lock().unwrap());
    }
}

fn refusal_of_wait_that_lasts_is_final() {
    let servers = Replicas::start(1);
    for error in [
        "NOPERM User app has no permissions to run the 'wait' command",
        "ERR unknown command 'WAIT', with args beginning with: '1' '100'",
    ] {
        let proxy = proxy_that_refuses_wait(servers.master(), error, 9);
        let url = format!("redis://127.0.0.1:{}", proxy.port());
        let client = Client::open(url).unwrap();
        let outcome = mutex(&client, 1).lock().unwrap_err();
        assert!(!outcome.is_retryable(), "{outcome:?}");
        assert!(outcome.to_string().contains("WAIT"), "{outcome}");
        eventually(ms(5_000), || servers.master().get("lock:a").is_none());
    }
}

/// As in a planned failover that is reverted: the master becomes a replica while `WAIT` blocks.
fn demotion_during_wait_ends_no_call() {
    let servers = Replicas::start(1);
    let master = servers.master();
    let client = Client::builder()
        .url(master.url())
        .command_timeout(ms(20_000))
        .unreachable_for(ms(60_000))
        .build()
        .unwrap();
    drop(mutex(&client, 1).lock().unwrap());
    servers.pause(0);
    let mutex = client.mutex("a").min_replicas(1, ms(10_000));
    thread::scope(|scope| {
        let locking = scope.spawn(move || mutex.lock());
        let blocked = || master.info("clients", "blocked_clients");
        eventually(ms(5_000), || blocked().as_deref() == Some("1"));
        master.run("REPLICAOF", &["127.0.0.1", &free_port().to_string()]);
        master.run("REPLICAOF", &["NO", "ONE"]);
        servers.resume(0);
        let guard = locking.join().unwrap().unwrap();
        guard.unlock().unwrap();
    });
}

fn impossible_replica_timeouts_are_refused() {
    let server = Server::start();
    for within in [Duration::ZERO, ms(801), Duration::MAX] {
        let builder = Client::builder().url(server.url());
        let error = builder.min_replicas(1, within).build().unwrap_err();
        assert!(error.to_string().contains("min_replicas"), "{error}");
        let client = server.client();
        let outcome = client.mutex("a").min_replicas(1, within).try_lock();
        assert!(matches!(outcome, Err(Error::Config(_))), "{within:?}");
    }
    assert!(server.keys().is_empty());
}

/// Renewals every 100 ms leave most of each ttl as slack for a busy machine.
fn a_wait_for_the_only_replica_loses_no_lease_of_one_second() {
    let servers = Replicas::start(1);
    let client = servers.master().client();
    let mutex = client.mutex("acknowledged").ttl(ms(60_000));
    let mutex = mutex.renew_every(ms(200)).min_replicas(1, ms(800));
    let acknowledged = mutex.lock().unwrap();
    servers.pause(0);
    let plain = [800, 1_000].map(|ttl| {
        let mutex = client.mutex(format!("plain-{ttl}")).ttl(ms(ttl));
        mutex.renew_every(ms(100)).lock().unwrap()
    });
    let start = Instant::now();
    eventually(ms(20_000), || start.elapsed() > ms(2_500));
    for guard in plain.iter().chain([&acknowledged]) {
        guard.ensure_held().unwrap();
    }
    for guard in plain {
        guard.unlock().unwrap();
    }
}

/// One of two replicas acknowledges nothing: each renewal of a lease that wants both waits for it,
/// for about 800 ms.
fn a_wait_for_a_dead_replica_delays_no_other_renewal() {
    let servers = Replicas::start(2);
    let client = servers.master().client();
    let wants_both = [780, 790, 800].map(|within| {
        let mutex = client.mutex(format!("both-{within}"));
        let mutex = mutex.ttl(ms(60_000)).renew_every(ms(200));
        mutex.min_replicas(2, ms(within)).lock().unwrap()
    });
    servers.pause(0);
    let others = [
        client.mutex("plain-1").ttl(ms(2_000)),
        client.mutex("plain-2").ttl(ms(3_000)),
        client.mutex("one").ttl(ms(2_000)).min_replicas(1, ms(300)),
    ];
    let others = others.map(|mutex| mutex.lock().unwrap());
    let start = Instant::now();
    eventually(ms(20_000), || start.elapsed() > ms(7_000));
    for guard in others.iter().chain(&wants_both) {
        guard.ensure_held().unwrap();
    }
    for guard in others {
        guard.unlock().unwrap();
    }
    let report = client.shutdown(ms(5_000));
    assert!(report.is_clean(), "every thread has ended: {report:?}");
}
