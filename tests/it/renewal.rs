//! Promise: a held lease is renewed in the background for as long as it is held, and never otherwise than asked for.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded, unbounded};
use leasehold::{Client, Error, Lost, Mutex, MutexGuard, Renewed, Unlocked};
use support::{Proxy, Server, Traffic, eventually, ms};

support::tests![
    the_client_sets_the_interval_for_locks_that_set_nothing,
    a_renewal_beside_the_release_neither_revives_nor_loses,
    a_renewal_never_shortens,
    an_extend_keeps_a_lease_that_is_not_renewed,
    an_unanswered_lengthening_changes_nothing,
    a_renewal_that_fails_is_tried_again,
    a_renewal_succeeds_shortly_before_the_end,
    a_slow_callback_harms_no_lease,
    a_slow_on_lost_harms_no_lease,
    a_panicking_callback_harms_no_lease
];

support::timed![
    a_lease_lasts_as_long_as_it_is_held,
    renewals_keep_their_distance,
    without_renewal_a_lease_runs_out,
    renewals_of_one_lease_never_overlap,
    renewals_by_request_never_overlap_either,
    a_guard_renews_when_asked_to,
    an_extend_sets_the_ttl_from_now_on,
    an_unanswered_shortening_caps_all_that_comes_after,
    renewals_that_are_due_together_go_out_in_one_write
];

/// Long enough for anything that is to come, and short enough for a test that fails.
const PATIENCE: Duration = ms(10_000);

const COMMAND_TIMEOUT: Duration = ms(250);

fn client(url: &str) -> Client {
    Client::builder()
        .url(url)
        .connect_timeout(COMMAND_TIMEOUT)
        .command_timeout(COMMAND_TIMEOUT)
        .build()
        .unwrap()
}

/// Tells of its renewals.
fn telling(mutex: Mutex) -> (Mutex, Receiver<Renewed>) {
    let (teller, renewals) = unbounded();
    let mutex = mutex.on_renew(move |renewed| {
        let _ = teller.send(renewed.clone());
    });
    (mutex, renewals)
}

/// Waits for one that was asked for after now.
#[track_caller]
fn next(renewals: &Receiver<Renewed>) -> Renewed {
    while renewals.try_recv().is_ok() {}
    // The first may have been under way.
    renewals.recv_timeout(PATIENCE).unwrap();
    renewals.recv_timeout(PATIENCE).unwrap()
}

#[track_caller]
fn is_held(guard: &MutexGuard, server: &Server) {
    guard.ensure_held().unwrap();
    assert_eq!(
        server.get(format!("lock:{}", guard.name())).as_deref(),
        Some(guard.holder_id().as_str().as_bytes())
    );
}

fn a_lease_lasts_as_long_as_it_is_held() {
    let server = Server::start();
    let (client, other) = (client(&server.url()), client(&server.url()));
    let ttl = ms(900);
    let (mutex, renewals) = telling(client.mutex("a").ttl(ttl));
    let guard = mutex.lock().unwrap();
    let lost = guard.lost();
    let began = Instant::now();
    while began.elapsed() < 2 * ttl {
        let renewed = renewals.recv_timeout(PATIENCE).unwrap();
        assert_eq!(renewed.name(), guard.name());
        assert_eq!(renewed.holder_id(), guard.holder_id());
        assert_eq!(renewed.fencing_token(), guard.fencing_token());
        assert!(renewed.remaining() <= ttl);
        assert!(other.mutex("a").try_lock().unwrap().is_none());
    }
    is_held(&guard, &server);
    assert_eq!(lost.try_recv(), Err(TryRecvError::Empty));
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
}

fn renewals_keep_their_distance() {
    let server = Server::start();
    let client = client(&server.url());
    for (mutex, every) in [
        (client.mutex("a").ttl(ms(900)), ms(300)),
        (
            client.mutex("a").ttl(ms(3_000)).renew_every(ms(150)),
            ms(150),
        ),
    ] {
        let (mutex, renewals) = telling(mutex);
        let began = Instant::now();
        let guard = mutex.lock().unwrap();
        for _ in 0..5 {
            renewals.recv_timeout(PATIENCE).unwrap();
        }
        let took = began.elapsed();
        assert!(took + ms(5) >= 5 * every, "five within {took:?}");
        assert!(took <= 5 * every + ms(1_500), "five within {took:?}");
        is_held(&guard, &server);
    }
}

fn the_client_sets_the_interval_for_locks_that_set_nothing() {
    let server = Server::start();
    let client = Client::builder()
        .url(server.url())
        .ttl(ms(20_000))
        .renew_every(ms(100))
        .build()
        .unwrap();
    let (mutex, renewals) = telling(client.mutex("a"));
    let guard = mutex.lock().unwrap();
    renewals.recv_timeout(PATIENCE / 4).unwrap();
    is_held(&guard, &server);
}

fn without_renewal_a_lease_runs_out() {
    let server = Server::start();
    let client = client(&server.url());
    let ttl = ms(400);
    let (mutex, renewals) = telling(client.mutex("a").ttl(ttl).auto_renew(false));
    let guard = mutex.lock().unwrap();
    let began = Instant::now();
    assert_eq!(
        guard.lost().recv_timeout(PATIENCE),
        Ok(Lost::Expired),
        "after {:?}",
        began.elapsed()
    );
    assert!(began.elapsed() <= ttl + ms(200));
    eventually(ms(500), || server.get("lock:a").is_none());
    assert!(renewals.is_empty());
    assert_eq!(server.calls(&["pexpire"]), 0);
}

/// It renews as fast as it can, so that at every release one is under way.
fn a_renewal_beside_the_release_neither_revives_nor_loses() {
    let server = Server::start();
    let client = client(&server.url());
    let (told, losses) = unbounded();
    thread::scope(|scope| {
        for n in 0..3 {
            let (server, client, told) = (&server, &client, told.clone());
            scope.spawn(move || {
                let name = format!("{n}");
                let key = format!("lock:{name}");
                let mut connection = server.connection();
                let (mutex, renewals) = telling(
                    client
                        .mutex(name.as_str())
                        .ttl(ms(20_000))
                        .renew_every(ms(1))
                        .on_lost(move |lost| told.send(*lost).unwrap()),
                );
                for _ in 0..150 {
                    let guard = mutex.lock().unwrap();
                    let _ = renewals.recv_timeout(PATIENCE).unwrap();
                    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
                    let after: (Option<String>, i64) = redis::pipe()
                        .cmd("GET")
                        .arg(&key)
                        .cmd("PTTL")
                        .arg(&key)
                        .query(&mut connection)
                        .unwrap();
                    assert_eq!(after, (None, -2));
                }
            });
        }
    });
    drop((client, told));
    assert_eq!(
        losses.recv_timeout(PATIENCE),
        Err(RecvTimeoutError::Disconnected)
    );
    let left: Vec<String> = redis::cmd("KEYS")
        .arg("lock:*")
        .query(&mut server.connection())
        .unwrap();
    assert!(left.is_empty(), "{left:?}");
}

fn a_renewal_never_shortens() {
    let server = Server::start();
    let client = client(&server.url());
    let (mutex, renewals) = telling(client.mutex("a").ttl(ms(2_000)).renew_every(ms(100)));
    let guard = mutex.lock().unwrap();
    server.run("PEXPIRE", &["lock:a", "600000"]);
    next(&renewals);
    guard.renew().unwrap();
    assert!(server.pttl("lock:a") > 500_000);
    server.run("PERSIST", &["lock:a"]);
    next(&renewals);
    guard.renew().unwrap();
    assert_eq!(server.pttl("lock:a"), -1);
    is_held(&guard, &server);
    assert!(guard.remaining().unwrap() <= ms(2_000));
}

/// Were they to overlap, they would come at their interval and not at the pace of the answers.
fn renewals_of_one_lease_never_overlap() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = Client::open(&proxy.url()).unwrap();
    let round_trip = ms(200);
    let (mutex, renewals) = telling(client.mutex("a").ttl(ms(20_000)).renew_every(ms(20)));
    let guard = mutex.lock().unwrap();
    proxy.delay(round_trip / 2, round_trip / 2);
    next(&renewals);
    let began = Instant::now();
    for _ in 0..6 {
        renewals.recv_timeout(PATIENCE).unwrap();
    }
    let took = began.elapsed();
    assert!(took + ms(10) >= 5 * round_trip, "six within {took:?}");
    is_held(&guard, &server);
}

fn renewals_by_request_never_overlap_either() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = Client::open(&proxy.url()).unwrap();
    let round_trip = ms(200);
    let guard = client.mutex("a").ttl(ms(20_000)).lock().unwrap();
    proxy.delay(round_trip / 2, round_trip / 2);
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                guard.renew().unwrap();
                guard.extend(ms(20_000)).unwrap();
            });
        }
    });
    let took = began.elapsed();
    assert!(took >= 4 * round_trip, "four within {took:?}");
    is_held(&guard, &server);
}

fn a_guard_renews_when_asked_to() {
    let server = Server::start();
    let client = client(&server.url());
    for auto_renew in [true, false] {
        let mutex = client.mutex("a").ttl(ms(20_000)).auto_renew(auto_renew);
        let guard = mutex.lock().unwrap();
        server.run("PEXPIRE", &["lock:a", "5000"]);
        let before = guard.remaining().unwrap();
        let began = Instant::now();
        eventually(PATIENCE, || began.elapsed() > ms(20));
        let asked = Instant::now();
        guard.renew().unwrap();
        assert!(server.pttl("lock:a") > 10_000);
        let remaining = guard.remaining().unwrap();
        // It counts from the renewal. The two are read from different clocks.
        assert!(remaining + ms(1) > before - asked.elapsed());
        is_held(&guard, &server);
    }
}

fn an_extend_sets_the_ttl_from_now_on() {
    let server = Server::start();
    let client = client(&server.url());
    let (mutex, renewals) = telling(client.mutex("a").ttl(ms(2_000)).renew_every(ms(100)));
    let guard = mutex.lock().unwrap();

    guard.extend(ms(60_000)).unwrap();
    assert!(server.pttl("lock:a") > 30_000);
    assert!(guard.remaining().unwrap() > ms(30_000));
    server.run("PEXPIRE", &["lock:a", "5000"]);
    next(&renewals);
    assert!(server.pttl("lock:a") > 30_000, "renewed for as long");

    guard.extend(ms(5_000)).unwrap();
    for _ in 0..2 {
        assert!((1..=5_000).contains(&server.pttl("lock:a")));
        assert!(guard.remaining().unwrap() <= ms(5_000));
        next(&renewals);
    }

    // Shorter than the interval that was set for a longer one.
    guard.extend(ms(600)).unwrap();
    let began = Instant::now();
    while began.elapsed() < ms(1_500) {
        assert!(guard.remaining().unwrap() <= ms(600));
        next(&renewals);
    }
    is_held(&guard, &server);

    assert!(matches!(guard.extend(ms(0)), Err(Error::Config(_))));
    assert!(matches!(guard.extend(Duration::MAX), Err(Error::Config(_))));
    is_held(&guard, &server);
}

fn an_extend_keeps_a_lease_that_is_not_renewed() {
    let server = Server::start();
    let client = client(&server.url());
    let mutex = client.mutex("a").ttl(ms(500)).auto_renew(false);
    let guard = mutex.lock().unwrap();
    guard.extend(ms(30_000)).unwrap();
    assert_eq!(
        guard.lost().recv_timeout(ms(700)),
        Err(RecvTimeoutError::Timeout)
    );
    guard.extend(ms(300)).unwrap();
    assert_eq!(guard.lost().recv_timeout(ms(600)), Ok(Lost::Expired));
    assert_eq!(
        guard.unlock().unwrap(),
        Unlocked::AlreadyLost(Lost::Expired)
    );
}

/// A lease that is being renewed, whose client has an idle connection for the next request.
fn renewed_beside_an_idle_connection(
    client: &Client,
    ttl: Duration,
) -> (MutexGuard, Receiver<Renewed>) {
    let (mutex, renewals) = telling(client.mutex("a").ttl(ttl).renew_every(ms(100)));
    let guard = mutex.lock().unwrap();
    // The thread that renews takes a connection for itself.
    next(&renewals);
    let _ = client.mutex("b").lock().unwrap().unlock().unwrap();
    (guard, renewals)
}

/// It may still run, after any renewal: what Redis then has is the shorter time.
fn an_unanswered_shortening_caps_all_that_comes_after() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    let (guard, renewals) = renewed_beside_an_idle_connection(&client, ms(20_000));
    let short = ms(900);
    proxy.set_open(Traffic::Stall);
    // The first one may have waited for a renewal that was stalled too.
    eventually(PATIENCE, || match guard.extend(short) {
        Err(Error::Unreachable { .. }) => guard.remaining().unwrap() <= short,
        other => panic!("{other:?}"),
    });
    for _ in 0..5 {
        next(&renewals);
        let left = guard.remaining().unwrap();
        assert!(left <= short, "{left:?}");
    }
    guard.renew().unwrap();
    assert!(guard.remaining().unwrap() <= short);
    guard.extend(ms(20_000)).unwrap();
    assert!(guard.remaining().unwrap() <= short);
    assert!(server.pttl("lock:a") > 10_000);

    // Now it runs.
    proxy.set_open(Traffic::Pass);
    let began = Instant::now();
    while began.elapsed() < short + ms(300) {
        next(&renewals);
        is_held(&guard, &server);
    }
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
}

fn an_unanswered_lengthening_changes_nothing() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    let (guard, renewals) = renewed_beside_an_idle_connection(&client, ms(2_000));
    proxy.set_open(Traffic::DropBoth);
    assert!(matches!(
        guard.extend(ms(60_000)),
        Err(Error::Unreachable { .. })
    ));
    assert!(guard.remaining().unwrap() <= ms(2_000));
    assert!(next(&renewals).remaining() <= ms(2_000));
    is_held(&guard, &server);
}

/// One by one, each would be a read of its own to the server.
fn renewals_that_are_due_together_go_out_in_one_write() {
    let server = Server::start();
    let client = Client::open(&server.url()).unwrap();
    let leases = 300;
    let (teller, renewals) = unbounded();
    let mut guards = Vec::new();
    let began = Instant::now();
    for n in 0..leases {
        let teller = teller.clone();
        let mutex = client
            .mutex(format!("{n}"))
            .ttl(ms(60_000))
            .renew_every(ms(2_000))
            .on_renew(move |_| teller.send(()).unwrap());
        guards.push(mutex.lock().unwrap());
    }
    // Those that were taken within a tenth of a second are due together.
    let groups = 2 + began.elapsed().as_millis() as usize / 100;
    assert!(renewals.is_empty(), "this machine is too slow by far");
    let reads = || -> usize {
        let reads = server.info("stats", "total_reads_processed");
        reads.unwrap().parse().unwrap()
    };
    let before = reads();
    for _ in 0..leases {
        renewals.recv_timeout(PATIENCE).unwrap();
    }
    let reads = reads() - before;
    // The server reads up to 16 KiB at a time, Redis 6.2 often less, and a renewal has about 200 bytes. In writes of their
    // own it would be one for each.
    let most = 20 + 3 * groups + leases * 300 / 16_384;
    assert!(reads <= most, "{reads} reads, in about {groups} groups");
    assert!(guards.iter().all(MutexGuard::is_held));
}

fn a_renewal_that_fails_is_tried_again() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    for traffic in [Traffic::Cut, Traffic::DropBoth] {
        let (mutex, renewals) = telling(client.mutex("a").ttl(ms(6_000)).renew_every(ms(200)));
        let guard = mutex.lock().unwrap();
        let lost = guard.lost();
        next(&renewals);
        let connections = proxy.connections();
        proxy.set_all(traffic);
        assert_eq!(lost.recv_timeout(ms(1_500)), Err(RecvTimeoutError::Timeout));
        assert!(
            guard.remaining().unwrap() < ms(5_000),
            "nothing got through"
        );
        assert!(proxy.connections() >= connections + 2, "it was tried");
        proxy.set_all(Traffic::Pass);
        proxy.cut();
        next(&renewals);
        assert!(guard.remaining().unwrap() > ms(5_000));
        assert_eq!(lost.try_recv(), Err(TryRecvError::Empty));
        is_held(&guard, &server);
    }
}

/// As long as there is time, and no longer.
fn a_renewal_succeeds_shortly_before_the_end() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    let (mutex, renewals) = telling(client.mutex("a").ttl(ms(2_000)).renew_every(ms(200)));
    let guard = mutex.lock().unwrap();
    next(&renewals);
    proxy.set_all(Traffic::Cut);
    eventually(PATIENCE, || guard.remaining().unwrap() < ms(900));
    proxy.set_all(Traffic::Pass);
    next(&renewals);
    is_held(&guard, &server);
    proxy.set_all(Traffic::Cut);
    assert_eq!(guard.lost().recv_timeout(PATIENCE), Ok(Lost::Expired));
}

/// A callback that does not come back until told to.
fn slow() -> (Sender<()>, Receiver<()>, impl Fn() + Send + Sync + 'static) {
    let (entered, entries) = unbounded();
    let (end, ending) = bounded::<()>(0);
    let callback = move || {
        let _ = entered.send(());
        let _ = ending.recv();
    };
    (end, entries, callback)
}

fn a_slow_callback_harms_no_lease() {
    let server = Server::start();
    let client = client(&server.url());
    let (end, entries, callback) = slow();
    let ttl = ms(900);
    let slow = client
        .mutex("slow")
        .ttl(ttl)
        .on_renew(move |_| callback())
        .lock()
        .unwrap();
    let (mutex, renewals) = telling(client.mutex("behind").ttl(ttl));
    let behind = mutex.lock().unwrap();
    let short = client.mutex("short").ttl(ttl / 2).auto_renew(false);
    let short = short.lock().unwrap();
    entries.recv_timeout(PATIENCE).unwrap();
    assert_eq!(short.lost().recv_timeout(ttl), Ok(Lost::Expired));
    let lost = slow.lost();
    assert_eq!(
        behind.lost().recv_timeout(ttl * 3 / 2),
        Err(RecvTimeoutError::Timeout)
    );
    assert_eq!(lost.try_recv(), Err(TryRecvError::Empty));
    for guard in [&slow, &behind] {
        is_held(guard, &server);
    }
    assert!(renewals.len() <= 1, "they wait their turn");
    drop(end);
    next(&renewals);
    assert_eq!(slow.unlock().unwrap(), Unlocked::Released);
}

fn a_slow_on_lost_harms_no_lease() {
    let server = Server::start();
    let client = client(&server.url());
    let (end, entries, callback) = slow();
    let ttl = ms(900);
    let short = client
        .mutex("short")
        .ttl(ms(100))
        .auto_renew(false)
        .on_lost(move |_| callback())
        .lock()
        .unwrap();
    let guard = client.mutex("a").ttl(ttl).lock().unwrap();
    entries.recv_timeout(PATIENCE).unwrap();
    assert_eq!(
        guard.lost().recv_timeout(ttl * 3 / 2),
        Err(RecvTimeoutError::Timeout)
    );
    is_held(&guard, &server);
    drop((end, short));
}

fn a_panicking_callback_harms_no_lease() {
    let server = Server::start();
    let client = client(&server.url());
    let set = |mutex: Mutex| mutex.ttl(ms(900)).renew_every(ms(200));
    let (teller, calls) = unbounded();
    let panicking = set(client.mutex("panicking"))
        .on_renew(move |_| {
            let _ = teller.send(());
            panic!("as this test wants it");
        })
        .lock()
        .unwrap();
    let short = client
        .mutex("short")
        .ttl(ms(100))
        .auto_renew(false)
        .on_lost(|_| panic!("as this test wants it"))
        .lock()
        .unwrap();
    let (mutex, renewals) = telling(set(client.mutex("a")));
    let guard = mutex.lock().unwrap();
    for _ in 0..6 {
        calls.recv_timeout(PATIENCE).unwrap();
        renewals.recv_timeout(PATIENCE).unwrap();
    }
    assert!(!short.is_held());
    for guard in [panicking, guard] {
        is_held(&guard, &server);
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    }
}
