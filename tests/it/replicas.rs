//! Promise: a lock that asks for replicas is granted, and counted on, only as far as they acknowledged it.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Lost, Mutex, Unlocked};
use support::{Replicas, Server, eventually, ms};

support::tests![
    a_lease_that_all_acknowledge_is_granted_renewed_and_on_all_of_them,
    a_lease_that_too_few_acknowledge_is_undone,
    the_client_asks_for_all_its_locks_and_a_lock_may_ask_for_none,
    who_is_refused_hears_so_whatever_the_replicas_do,
    a_renewal_that_too_few_acknowledge_lengthens_nothing,
    an_extend_that_shortens_and_is_not_acknowledged_counts_all_the_same,
    one_that_is_promoted_knows_the_lease,
    a_service_without_wait_is_named,
    a_wait_that_is_never_answered_undoes_the_lease,
    times_that_cannot_work_are_refused,
    a_wait_for_a_dead_replica_delays_no_other_renewal
];

support::timed![
    a_renewal_is_tried_again_until_the_replica_is_back,
    a_deadline_shorter_than_the_wait_is_kept,
    a_wait_for_the_only_replica_delays_no_lease_of_a_second
];

const WITHIN: Duration = ms(100);

fn client(server: &Server) -> Client {
    Client::open(&server.url()).unwrap()
}

fn mutex(client: &Client, wanted: usize) -> Mutex {
    client.mutex("a").min_replicas(wanted, WITHIN)
}

/// Whether a call failed for want of acknowledgements, and of how many of how many.
#[track_caller]
fn lacks<T: std::fmt::Debug>(outcome: Result<T, Error>) -> (usize, usize) {
    match outcome {
        Err(Error::NotReplicated {
            acknowledged,
            wanted,
        }) => (acknowledged, wanted),
        other => panic!("{other:?}"),
    }
}

fn a_lease_that_all_acknowledge_is_granted_renewed_and_on_all_of_them() {
    let servers = Replicas::start(2);
    let client = client(servers.master());
    let guard = mutex(&client, 2).ttl(ms(1_500)).lock().unwrap();
    for server in servers.servers() {
        assert_eq!(
            server.get("lock:a").unwrap(),
            guard.holder_id().as_str().as_bytes()
        );
    }
    // Two ttls: only renewals that counted can have kept it.
    let start = Instant::now();
    eventually(ms(10_000), || start.elapsed() > ms(3_000));
    guard.ensure_held().unwrap();
    guard.renew().unwrap();
    guard.extend(ms(5_000)).unwrap();
    assert!(guard.remaining().unwrap() > ms(4_000));
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    // A name that was never locked: its script runs by its source first, and is waited for too.
    drop(client.mutex("b").min_replicas(2, WITHIN).lock().unwrap());
}

fn a_lease_that_too_few_acknowledge_is_undone() {
    let servers = Replicas::start(2);
    let client = client(servers.master());
    servers.pause(1);
    assert_eq!(lacks(mutex(&client, 2).try_lock()), (1, 2));
    assert_eq!(lacks(mutex(&client, 3).lock()), (1, 3));
    eventually(ms(5_000), || servers.master().get("lock:a").is_none());
    // One is enough for who asks for one.
    drop(mutex(&client, 1).try_lock().unwrap().unwrap());
    servers.resume(1);
    eventually(ms(10_000), || {
        mutex(&client, 2).try_lock().is_ok_and(|got| got.is_some())
    });
}

fn the_client_asks_for_all_its_locks_and_a_lock_may_ask_for_none() {
    let server = Server::start();
    let client = Client::builder()
        .url(server.url())
        .min_replicas(1, WITHIN)
        .build()
        .unwrap();
    assert_eq!(lacks(client.mutex("a").lock()), (0, 1));
    eventually(ms(5_000), || server.get("lock:a").is_none());
    drop(client.mutex("a").min_replicas(0, WITHIN).lock().unwrap());
}

fn who_is_refused_hears_so_whatever_the_replicas_do() {
    let servers = Replicas::start(1);
    let holder = client(servers.master());
    let guard = holder.mutex("a").lock().unwrap();
    servers.pause(0);
    let other = client(servers.master());
    assert!(mutex(&other, 1).try_lock().unwrap().is_none());
    drop(guard);
}

fn a_renewal_that_too_few_acknowledge_lengthens_nothing() {
    let servers = Replicas::start(1);
    let client = client(servers.master());
    let guard = mutex(&client, 1).ttl(ms(1_500)).lock().unwrap();
    let told = guard.lost();
    servers.pause(0);
    assert_eq!(lacks(guard.renew()), (0, 1));
    assert_eq!(lacks(guard.extend(ms(60_000))), (0, 1));
    assert!(guard.remaining().unwrap() < ms(1_500));
    // The master alone would keep it for ever; without the replica it runs out here.
    assert_eq!(told.recv_timeout(ms(5_000)), Ok(Lost::Expired));
    assert!(!guard.is_held());
    assert!(servers.master().pttl("lock:a") > 0);
}

fn a_renewal_is_tried_again_until_the_replica_is_back() {
    let servers = Replicas::start(1);
    let client = client(servers.master());
    let guard = mutex(&client, 1).ttl(ms(3_000)).lock().unwrap();
    servers.pause(0);
    assert_eq!(lacks(guard.renew()), (0, 1));
    // A lock that asks for no replica does not wait for those that do.
    let plain = client.mutex("plain").ttl(ms(1_000)).lock().unwrap();
    let start = Instant::now();
    eventually(ms(10_000), || start.elapsed() > ms(1_500));
    plain.ensure_held().unwrap();
    servers.resume(0);
    eventually(ms(10_000), || {
        guard.remaining().is_some_and(|left| left > ms(2_500))
    });
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
}

fn an_extend_that_shortens_and_is_not_acknowledged_counts_all_the_same() {
    let servers = Replicas::start(1);
    let client = client(servers.master());
    let guard = mutex(&client, 1).auto_renew(false).lock().unwrap();
    servers.pause(0);
    // The master has shortened it.
    assert_eq!(lacks(guard.extend(ms(2_000))), (0, 1));
    assert!(servers.master().pttl("lock:a") <= 2_000);
    assert!(guard.remaining().unwrap() <= ms(2_000));
}

fn a_deadline_shorter_than_the_wait_is_kept() {
    let servers = Replicas::start(1);
    let client = client(servers.master());
    drop(mutex(&client, 1).lock().unwrap());
    servers.pause(0);
    let start = Instant::now();
    let error = client
        .mutex("a")
        .min_replicas(1, ms(700))
        .try_lock_for(ms(150))
        .unwrap_err();
    assert!(start.elapsed() < ms(400), "{:?}", start.elapsed());
    assert!(error.may_be_held(), "{error}");
    eventually(ms(5_000), || servers.master().get("lock:a").is_none());
}

fn one_that_is_promoted_knows_the_lease() {
    let mut servers = Replicas::start(1);
    let guard = mutex(&client(servers.master()), 1).lock().unwrap();
    servers.kill_master();
    let heir = servers.replica(0);
    heir.run("REPLICAOF", &["NO", "ONE"]);
    assert!(client(heir).mutex("a").try_lock().unwrap().is_none());
    assert!(guard.is_held());
}

fn a_service_without_wait_is_named() {
    let server = Server::with(&["--rename-command", "WAIT", ""]);
    let client = client(&server);
    let error = mutex(&client, 1).try_lock().unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(error.to_string().contains("WAIT"), "{error}");
    eventually(ms(5_000), || server.get("lock:a").is_none());
}

fn a_wait_that_is_never_answered_undoes_the_lease() {
    let servers = Replicas::start(1);
    let client = client(servers.master());
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

fn times_that_cannot_work_are_refused() {
    let server = Server::start();
    for within in [Duration::ZERO, ms(801), Duration::MAX] {
        let builder = Client::builder().url(server.url());
        let error = builder.min_replicas(1, within).build().unwrap_err();
        assert!(error.to_string().contains("min_replicas"), "{error}");
        let client = client(&server);
        let outcome = client.mutex("a").min_replicas(1, within).try_lock();
        assert!(matches!(outcome, Err(Error::Config(_))), "{within:?}");
    }
    assert!(server.keys().is_empty());
}

/// Renewals every tenth of a second leave a busy machine most of each ttl.
fn a_wait_for_the_only_replica_delays_no_lease_of_a_second() {
    let servers = Replicas::start(1);
    let client = client(servers.master());
    let mutex = client.mutex("acknowledged").ttl(ms(60_000));
    let mutex = mutex.renew_every(ms(200)).min_replicas(1, ms(800));
    let acknowledged = mutex.lock().unwrap();
    servers.pause(0);
    let plain = [800, 1_000].map(|ttl| {
        let mutex = client.mutex(format!("plain-{ttl}")).ttl(ms(ttl));
        mutex.renew_every(ms(100)).lock().unwrap()
    });
    let start = Instant::now();
    eventually(ms(20_000), || start.elapsed() > ms(5_000));
    for guard in plain.iter().chain([&acknowledged]) {
        guard.ensure_held().unwrap();
    }
    for guard in plain {
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    }
}

/// Of two replicas one acknowledges nothing: each renewal of the leases that want both waits for it, for most of a second.
fn a_wait_for_a_dead_replica_delays_no_other_renewal() {
    let servers = Replicas::start(2);
    let client = client(servers.master());
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
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    }
    let report = client.shutdown(ms(5_000)).unwrap();
    assert!(report.is_clean(), "every thread has ended: {report:?}");
}
