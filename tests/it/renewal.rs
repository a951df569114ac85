//! Promise: a held lease is renewed in the background until it is released, with the requested ttl
//! and interval.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded, unbounded};
use leasehold::{Client, Error, Lost, Mutex, MutexGuard, Renewed};
use support::{Control, Proxy, SLACK, Server, Traffic, builder_within, eventually, ms};

support::tests![
    a_renewal_in_flight_at_the_release_neither_revives_nor_loses_the_lock,
    a_renewal_is_retried_until_shortly_before_the_expiry,
    without_renewal_a_lease_expires,
    a_renewal_never_shortens_the_ttl,
    set_ttl_prolongs_a_lease_that_is_not_renewed,
    an_unanswered_extension_changes_nothing,
    a_failed_renewal_is_retried,
    a_slow_on_renew_harms_no_lease,
    a_slow_on_lost_harms_no_lease,
    a_panicking_callback_harms_no_lease,
    renew_extends_the_lease_to_the_whole_ttl
];

support::timed![
    a_lease_lasts_as_long_as_it_is_held,
    renewals_keep_their_interval,
    renewals_of_one_lease_never_overlap,
    explicit_renewals_of_one_lease_never_overlap,
    set_ttl_sets_the_ttl_of_later_renewals,
    an_unanswered_shortening_caps_later_renewals,
    renewals_that_are_due_together_are_sent_in_one_write
];

/// The limit for events that must happen: generous for a slow machine, short for a failing test.
const WAIT_LIMIT: Duration = ms(10_000);

const COMMAND_TIMEOUT: Duration = ms(250);

fn client(url: &str) -> Client {
    Client::builder()
        .url(url)
        .connect_timeout(COMMAND_TIMEOUT)
        .command_timeout(COMMAND_TIMEOUT)
        .build()
        .unwrap()
}

/// Returns the mutex with a callback that sends its renewals to the channel.
fn reporting_renewals(mutex: Mutex) -> (Mutex, Receiver<Renewed>) {
    let (report, renewals) = unbounded();
    let mutex = mutex.on_renew(move |renewed| {
        let _ = report.send(renewed.clone());
    });
    (mutex, renewals)
}

/// Waits for a renewal whose request is sent after this call.
#[track_caller]
fn next_renewal(renewals: &Receiver<Renewed>) -> Renewed {
    while renewals.try_recv().is_ok() {}
    // The first renewal may already be in flight.
    renewals.recv_timeout(WAIT_LIMIT).unwrap();
    renewals.recv_timeout(WAIT_LIMIT).unwrap()
}

#[track_caller]
fn assert_held(guard: &MutexGuard, server: &Server) {
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
    let (mutex, renewals) = reporting_renewals(client.mutex("a").ttl(ttl));
    let guard = mutex.lock().unwrap();
    let lost = guard.lost();
    let began = Instant::now();
    while began.elapsed() < 2 * ttl {
        let renewed = renewals.recv_timeout(WAIT_LIMIT).unwrap();
        assert_eq!(renewed.name(), guard.name());
        assert_eq!(renewed.holder_id(), guard.holder_id());
        assert_eq!(renewed.fencing_token(), guard.fencing_token());
        assert!(renewed.remaining() <= ttl);
        assert!(other.mutex("a").try_lock().unwrap().is_err());
    }
    assert_held(&guard, &server);
    assert_eq!(lost.try_recv(), Err(TryRecvError::Empty));
    guard.unlock().unwrap();
}

fn renewals_keep_their_interval() {
    let server = Server::start();
    let client = client(&server.url());
    for (mutex, every) in [
        (client.mutex("a").ttl(ms(900)), ms(300)),
        (
            client.mutex("a").ttl(ms(3_000)).renew_every(ms(150)),
            ms(150),
        ),
    ] {
        let (mutex, renewals) = reporting_renewals(mutex);
        let began = Instant::now();
        let guard = mutex.lock().unwrap();
        for _ in 0..5 {
            renewals.recv_timeout(WAIT_LIMIT).unwrap();
        }
        let took = began.elapsed();
        assert!(took + ms(5) >= 5 * every, "five within {took:?}");
        assert!(took <= 5 * every + ms(1_500), "five within {took:?}");
        assert_held(&guard, &server);
    }
}

fn without_renewal_a_lease_expires() {
    let server = Server::start();
    let client = client(&server.url());
    let ttl = ms(400);
    let (mutex, renewals) = reporting_renewals(client.mutex("a").ttl(ttl).auto_renew(false));
    let guard = mutex.lock().unwrap();
    let lost = guard.lost();
    let timed = Control::run(ttl, || lost.recv_timeout(WAIT_LIMIT));
    assert_eq!(timed.no_later_than(SLACK), Ok(Lost::Expired));
    eventually(WAIT_LIMIT, || server.get("lock:a").is_none());
    assert!(renewals.is_empty());
    assert_eq!(server.calls(&["pexpire"]), 0);
}

/// Each lease is renewed every 1 ms, so that a renewal is in flight at many of the releases.
fn a_renewal_in_flight_at_the_release_neither_revives_nor_loses_the_lock() {
    let server = Server::start();
    // Renewals every ms load the machine: a reply can take long.
    let client = Client::builder()
        .url(server.url())
        .command_timeout(WAIT_LIMIT)
        .build()
        .unwrap();
    let (report, losses) = unbounded();
    thread::scope(|scope| {
        for n in 0..3 {
            let (server, client, report) = (&server, &client, report.clone());
            scope.spawn(move || {
                let name = format!("{n}");
                let key = format!("lock:{name}");
                let mut connection = server.connection();
                let (mutex, renewals) = reporting_renewals(
                    client
                        .mutex(name.as_str())
                        .ttl(ms(20_000))
                        .renew_every(ms(1))
                        .on_lost(move |lost| report.send(*lost).unwrap()),
                );
                for _ in 0..150 {
                    let guard = mutex.lock().unwrap();
                    // A renewal reported before may be that of an earlier lease.
                    next_renewal(&renewals);
                    guard.unlock().unwrap();
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
    drop((client, report));
    assert_eq!(
        losses.recv_timeout(WAIT_LIMIT),
        Err(RecvTimeoutError::Disconnected)
    );
    let left: Vec<String> = redis::cmd("KEYS")
        .arg("lock:*")
        .query(&mut server.connection())
        .unwrap();
    assert!(left.is_empty(), "{left:?}");
}

fn a_renewal_never_shortens_the_ttl() {
    let server = Server::start();
    let client = client(&server.url());
    let (mutex, renewals) =
        reporting_renewals(client.mutex("a").ttl(ms(2_000)).renew_every(ms(100)));
    let guard = mutex.lock().unwrap();
    server.run("PEXPIRE", &["lock:a", "600000"]);
    next_renewal(&renewals);
    guard.renew().unwrap();
    assert!(server.pttl("lock:a") > 500_000);
    server.run("PERSIST", &["lock:a"]);
    next_renewal(&renewals);
    guard.renew().unwrap();
    assert_eq!(server.pttl("lock:a"), -1);
    assert_held(&guard, &server);
    assert!(guard.remaining().unwrap() <= ms(2_000));
}

/// If renewals overlapped, they would follow the interval and not the slower round trips.
fn renewals_of_one_lease_never_overlap() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = Client::open(proxy.url()).unwrap();
    let round_trip = ms(200);
    let (mutex, renewals) =
        reporting_renewals(client.mutex("a").ttl(ms(20_000)).renew_every(ms(20)));
    let guard = mutex.lock().unwrap();
    proxy.delay(round_trip / 2, round_trip / 2);
    next_renewal(&renewals);
    let began = Instant::now();
    for _ in 0..6 {
        renewals.recv_timeout(WAIT_LIMIT).unwrap();
    }
    let took = began.elapsed();
    assert!(took + ms(10) >= 5 * round_trip, "six within {took:?}");
    assert_held(&guard, &server);
}

fn explicit_renewals_of_one_lease_never_overlap() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = builder_within(proxy.url(), ms(10_000)).build().unwrap();
    let round_trip = ms(200);
    let guard = client.mutex("a").ttl(ms(20_000)).lock().unwrap();
    proxy.delay(round_trip / 2, round_trip / 2);
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                guard.renew().unwrap();
                guard.set_ttl(ms(20_000)).unwrap();
            });
        }
    });
    let took = began.elapsed();
    assert!(took >= 4 * round_trip, "four within {took:?}");
    assert_held(&guard, &server);
}

fn renew_extends_the_lease_to_the_whole_ttl() {
    let server = Server::start();
    let client = client(&server.url());
    for auto_renew in [true, false] {
        let mutex = client.mutex("a").ttl(ms(20_000)).auto_renew(auto_renew);
        let guard = mutex.lock().unwrap();
        server.run("PEXPIRE", &["lock:a", "5000"]);
        let before = guard.remaining().unwrap();
        let began = Instant::now();
        eventually(WAIT_LIMIT, || began.elapsed() > ms(20));
        let asked = Instant::now();
        guard.renew().unwrap();
        assert!(server.pttl("lock:a") > 10_000);
        let remaining = guard.remaining().unwrap();
        // The lease counts from the renewal, which was sent after `asked`. The 1 ms is for the two
        // clocks: `remaining` and `elapsed` do not read the same one.
        assert!(remaining + ms(1) > before - asked.elapsed());
        assert_held(&guard, &server);
    }
}

fn set_ttl_sets_the_ttl_of_later_renewals() {
    let server = Server::start();
    let client = client(&server.url());
    let (mutex, renewals) =
        reporting_renewals(client.mutex("a").ttl(ms(2_000)).renew_every(ms(100)));
    let guard = mutex.lock().unwrap();

    guard.set_ttl(ms(60_000)).unwrap();
    assert!(server.pttl("lock:a") > 30_000);
    assert!(guard.remaining().unwrap() > ms(30_000));
    server.run("PEXPIRE", &["lock:a", "5000"]);
    next_renewal(&renewals);
    assert!(
        server.pttl("lock:a") > 30_000,
        "renewed for the extended ttl"
    );

    guard.set_ttl(ms(5_000)).unwrap();
    for _ in 0..2 {
        assert!((1..=5_000).contains(&server.pttl("lock:a")));
        assert!(guard.remaining().unwrap() <= ms(5_000));
        next_renewal(&renewals);
    }

    // The loop lasts longer than this ttl: the renewals keep the lease.
    guard.set_ttl(ms(600)).unwrap();
    let began = Instant::now();
    while began.elapsed() < ms(1_500) {
        assert!(guard.remaining().unwrap() <= ms(600));
        next_renewal(&renewals);
    }
    assert_held(&guard, &server);

    assert!(matches!(guard.set_ttl(ms(0)), Err(Error::Config(_))));
    assert!(matches!(
        guard.set_ttl(Duration::MAX),
        Err(Error::Config(_))
    ));
    assert_held(&guard, &server);
}

fn set_ttl_prolongs_a_lease_that_is_not_renewed() {
    let server = Server::start();
    let client = client(&server.url());
    let mutex = client.mutex("a").ttl(ms(500)).auto_renew(false);
    let guard = mutex.lock().unwrap();
    guard.set_ttl(ms(30_000)).unwrap();
    assert_eq!(
        guard.lost().recv_timeout(ms(700)),
        Err(RecvTimeoutError::Timeout)
    );
    guard.set_ttl(ms(300)).unwrap();
    assert_eq!(guard.lost().recv_timeout(WAIT_LIMIT), Ok(Lost::Expired));
    assert_eq!(guard.unlock().unwrap_err().lost(), Some(Lost::Expired));
}

/// Returns a lease that is being renewed, and leaves its client an idle connection.
fn renewed_lease_and_an_idle_connection(
    client: &Client,
    ttl: Duration,
) -> (MutexGuard, Receiver<Renewed>) {
    let (mutex, renewals) = reporting_renewals(client.mutex("a").ttl(ttl).renew_every(ms(100)));
    let guard = mutex.lock().unwrap();
    // The engine takes a connection for its renewals.
    next_renewal(&renewals);
    client.mutex("b").lock().unwrap().unlock().unwrap();
    (guard, renewals)
}

/// The shortening can run after any later renewal and leave the shorter ttl in Redis.
fn an_unanswered_shortening_caps_later_renewals() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    let (guard, renewals) = renewed_lease_and_an_idle_connection(&client, ms(20_000));
    let short = ms(900);
    proxy.set_open(Traffic::Stall);
    // The first call may have waited behind a stalled renewal.
    eventually(WAIT_LIMIT, || match guard.set_ttl(short) {
        Err(Error::Unreachable { .. }) => guard.remaining().unwrap() <= short,
        other => panic!("{other:?}"),
    });
    for _ in 0..5 {
        next_renewal(&renewals);
        let left = guard.remaining().unwrap();
        assert!(left <= short, "{left:?}");
    }
    guard.renew().unwrap();
    assert!(guard.remaining().unwrap() <= short);
    guard.set_ttl(ms(20_000)).unwrap();
    assert!(guard.remaining().unwrap() <= short);
    assert!(server.pttl("lock:a") > 10_000);

    // The stalled shortening runs now.
    proxy.set_open(Traffic::Pass);
    let began = Instant::now();
    while began.elapsed() < short + ms(300) {
        next_renewal(&renewals);
        assert_held(&guard, &server);
    }
    guard.unlock().unwrap();
}

fn an_unanswered_extension_changes_nothing() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    let (guard, renewals) = renewed_lease_and_an_idle_connection(&client, ms(2_000));
    proxy.set_open(Traffic::DropBoth);
    assert!(matches!(
        guard.set_ttl(ms(60_000)),
        Err(Error::Unreachable { .. })
    ));
    assert!(guard.remaining().unwrap() <= ms(2_000));
    assert!(next_renewal(&renewals).remaining() <= ms(2_000));
    assert_held(&guard, &server);
}

/// Renewals sent one by one would each cost the server a read.
fn renewals_that_are_due_together_are_sent_in_one_write() {
    let server = Server::start();
    let client = server.client();
    let leases = 300;
    let (report, renewals) = unbounded();
    let mut guards = Vec::new();
    let began = Instant::now();
    for n in 0..leases {
        let report = report.clone();
        let mutex = client
            .mutex(format!("{n}"))
            .ttl(ms(60_000))
            .renew_every(ms(2_000))
            .on_renew(move |_| _ = report.send(()));
        guards.push(mutex.lock().unwrap());
    }
    // Leases acquired within 100 ms are renewed together.
    let groups = 2 + began.elapsed().as_millis() as usize / 100;
    assert!(renewals.is_empty(), "this machine is far too slow");
    let reads = || -> usize {
        let reads = server.info("stats", "total_reads_processed");
        reads.unwrap().parse().unwrap()
    };
    let before = reads();
    for _ in 0..leases {
        renewals.recv_timeout(WAIT_LIMIT).unwrap();
    }
    let reads = reads() - before;
    // The server reads up to 16 KiB at a time, Redis 6.2 often less; a renewal has about 200 bytes.
    // With one write per renewal there would be one read for each.
    let most = 20 + 3 * groups + leases * 300 / 16_384;
    assert!(reads <= most, "{reads} reads, in about {groups} groups");
    assert!(guards.iter().all(|guard| guard.is_held()));
}

fn a_failed_renewal_is_retried() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    for traffic in [Traffic::Cut, Traffic::DropBoth] {
        let (mutex, renewals) =
            reporting_renewals(client.mutex("a").ttl(ms(6_000)).renew_every(ms(200)));
        let guard = mutex.lock().unwrap();
        let lost = guard.lost();
        next_renewal(&renewals);
        let connections = proxy.connections();
        proxy.set_all(traffic);
        // The renewal is retried, and none gets through for a second.
        eventually(WAIT_LIMIT, || {
            proxy.connections() >= connections + 2 && guard.remaining().unwrap() < ms(5_000)
        });
        assert_eq!(lost.try_recv(), Err(TryRecvError::Empty));
        proxy.set_all(Traffic::Pass);
        proxy.cut();
        next_renewal(&renewals);
        assert!(guard.remaining().unwrap() > ms(5_000));
        assert_eq!(lost.try_recv(), Err(TryRecvError::Empty));
        assert_held(&guard, &server);
    }
}

/// Retries continue while there is time for a reply, then the lease expires.
fn a_renewal_is_retried_until_shortly_before_the_expiry() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    let (mutex, renewals) =
        reporting_renewals(client.mutex("a").ttl(ms(2_000)).renew_every(ms(200)));
    let guard = mutex.lock().unwrap();
    next_renewal(&renewals);
    proxy.set_all(Traffic::Cut);
    eventually(WAIT_LIMIT, || guard.remaining().unwrap() < ms(900));
    proxy.set_all(Traffic::Pass);
    next_renewal(&renewals);
    assert_held(&guard, &server);
    proxy.set_all(Traffic::Cut);
    assert_eq!(guard.lost().recv_timeout(WAIT_LIMIT), Ok(Lost::Expired));
}

/// Returns a callback that blocks until `end` is dropped, and a channel of its calls.
fn blocking_callback() -> (Sender<()>, Receiver<()>, impl Fn() + Send + Sync + 'static) {
    let (entered, entries) = unbounded();
    let (end, ending) = bounded::<()>(0);
    let callback = move || {
        let _ = entered.send(());
        let _ = ending.recv();
    };
    (end, entries, callback)
}

fn a_slow_on_renew_harms_no_lease() {
    let server = Server::start();
    let client = client(&server.url());
    let (end, entries, callback) = blocking_callback();
    let ttl = ms(600);
    let slow = client
        .mutex("slow")
        .ttl(ttl)
        .on_renew(move |_| callback())
        .lock()
        .unwrap();
    let (mutex, renewals) = reporting_renewals(client.mutex("behind").ttl(ttl));
    let behind = mutex.lock().unwrap();
    let short = client.mutex("short").ttl(ttl / 2).auto_renew(false);
    let short = short.lock().unwrap();
    entries.recv_timeout(WAIT_LIMIT).unwrap();
    assert_eq!(short.lost().recv_timeout(ttl), Ok(Lost::Expired));
    let lost = slow.lost();
    assert_eq!(
        behind.lost().recv_timeout(ttl * 3 / 2),
        Err(RecvTimeoutError::Timeout)
    );
    assert_eq!(lost.try_recv(), Err(TryRecvError::Empty));
    for guard in [&slow, &behind] {
        assert_held(guard, &server);
    }
    assert!(renewals.len() <= 1, "callbacks run one at a time");
    drop(end);
    next_renewal(&renewals);
    slow.unlock().unwrap();
}

fn a_slow_on_lost_harms_no_lease() {
    let server = Server::start();
    let client = client(&server.url());
    let (end, entries, callback) = blocking_callback();
    let ttl = ms(600);
    let short = client
        .mutex("short")
        .ttl(ms(100))
        .auto_renew(false)
        .on_lost(move |_| callback())
        .lock()
        .unwrap();
    let guard = client.mutex("a").ttl(ttl).lock().unwrap();
    entries.recv_timeout(WAIT_LIMIT).unwrap();
    assert_eq!(
        guard.lost().recv_timeout(ttl * 3 / 2),
        Err(RecvTimeoutError::Timeout)
    );
    assert_held(&guard, &server);
    drop((end, short));
}

fn a_panicking_callback_harms_no_lease() {
    let server = Server::start();
    let client = client(&server.url());
    let set = |mutex: Mutex| mutex.ttl(ms(900)).renew_every(ms(200));
    let (report, calls) = unbounded();
    let panicking = set(client.mutex("panicking"))
        .on_renew(move |_| {
            let _ = report.send(());
            panic!("the panic of this test");
        })
        .lock()
        .unwrap();
    let short = client
        .mutex("short")
        .ttl(ms(100))
        .auto_renew(false)
        .on_lost(|_| panic!("the panic of this test"))
        .lock()
        .unwrap();
    let (mutex, renewals) = reporting_renewals(set(client.mutex("a")));
    let guard = mutex.lock().unwrap();
    for _ in 0..6 {
        calls.recv_timeout(WAIT_LIMIT).unwrap();
        renewals.recv_timeout(WAIT_LIMIT).unwrap();
    }
    assert!(!short.is_held());
    for guard in [panicking, guard] {
        assert_held(&guard, &server);
        guard.unlock().unwrap();
    }
}
