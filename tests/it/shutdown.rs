//! Promise: a client ends on `shutdown` or when its last owner drops it, in bounded time: waits
//! end, held locks are released and reported lost, and no thread is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded, unbounded};
use leasehold::{CancelToken, Client, ClientBuilder, Error, Lost, MutexGuard, ShutdownReport};
use support::fair::PATIENCE;
use support::{
    BlackHole, Child, Cluster, ClusterSetup, FakeServer, Proxy, Server, Traffic, assert_gives_up,
    assert_released, eventually, ms, own_threads, parameter,
};

support::roles![shut_down_in_child, last_drop_in_child];

support::tests![
    shutdown_without_redis_ends_within_its_timeout,
    part_of_a_set_without_a_confirmed_release_is_reported,
    shutdown_ends_every_wait_at_once,
    shutdown_ends_a_wait_that_cannot_reach_redis,
    shutdown_ends_a_call_that_has_no_connection_to_enter_a_queue,
    shutdown_with_a_hanging_callback_ends_within_its_timeout,
    call_whose_command_the_shutdown_leaves_behind_ends_by_its_deadline,
    the_last_drop_without_redis_ends_within_a_command_timeout,
    shutdown_releases_and_reports_every_held_lock,
    holders_that_unlock_on_shutdown_count_as_released,
    shutdown_without_time_for_replies_still_releases_everything,
    locks_lost_before_the_shutdown_are_left_alone_and_counted,
    a_lock_lost_before_the_shutdown_is_released_with_its_guard,
    grant_whose_renewal_has_no_reply_is_reported,
    calls_after_the_shutdown_are_refused,
    a_second_shutdown_does_nothing,
    renewals_in_flight_neither_delay_the_shutdown_nor_revive_a_lock,
    a_callback_can_shut_down_its_own_client,
    a_client_that_was_shut_down_leaves_no_thread,
    a_client_that_was_dropped_leaves_no_thread
];

/// How late a bounded call may return on a busy machine.
const TOLERANCE: Duration = ms(1_000);

/// Enough time for a client to end without reaching the limit.
const WITHIN: Duration = ms(10_000);

const COMMAND_TIMEOUT: Duration = ms(400);

fn builder(url: &str) -> ClientBuilder {
    support::builder_within(url, COMMAND_TIMEOUT)
}

fn client(url: &str) -> Client {
    builder(url).build().unwrap()
}

fn lock_keys(server: &Server) -> usize {
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("lock:*")
        .query(&mut server.connection())
        .unwrap();
    keys.len()
}

fn lock_many(client: &Client, count: usize) -> Vec<MutexGuard> {
    let lock = |n| client.mutex(format!("{n}")).lock().unwrap();
    (0..count).map(lock).collect()
}

/// Calls `lock` in another thread and returns a channel for its result.
fn start_waiter(client: &Client, name: &str) -> Receiver<Result<MutexGuard, Error>> {
    let (sender, receiver) = bounded(1);
    let mutex = client.mutex(name);
    thread::spawn(move || {
        let _ = sender.send(mutex.lock());
    });
    receiver
}

#[track_caller]
fn assert_closed<T>(answer: Result<T, Error>) {
    match answer {
        Err(Error::Closed) => {}
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("the call was not refused"),
    }
}

fn counts(report: &ShutdownReport) -> [usize; 4] {
    [
        report.released,
        report.already_lost,
        report.unreleased,
        report.woken,
    ]
}

fn shutdown_releases_and_reports_every_held_lock() {
    // More than fit in one write.
    const HELD: usize = 600;
    let server = Server::start();
    let client = client(&server.url());
    let guards = lock_many(&client, HELD);
    let (sender, losses) = unbounded();
    let callback = move |lost: &Lost| sender.send(*lost).unwrap();
    let one_more = client.mutex("callback").on_lost(callback).lock().unwrap();
    let lost: Vec<_> = guards.iter().map(|guard| guard.lost()).collect();

    let report = client.shutdown(WITHIN);

    assert_eq!(counts(&report), [HELD + 1, 0, 0, 0]);
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(lock_keys(&server), 0);
    for (guard, lost) in guards.iter().zip(lost) {
        assert_eq!(lost.try_recv(), Ok(Lost::ShutDown));
        assert!(!guard.is_held());
        assert_eq!(guard.remaining(), None);
        for answer in [guard.ensure_held(), guard.renew(), guard.set_ttl(ms(5_000))] {
            assert!(matches!(answer, Err(Error::Lost(Lost::ShutDown))));
        }
    }
    // The thread that runs callbacks has ended.
    assert_eq!(losses.try_recv(), Ok(Lost::ShutDown));
    for guard in guards.into_iter().chain([one_more]) {
        assert_eq!(guard.unlock().unwrap_err().lost(), Some(Lost::ShutDown));
    }
    assert!(losses.try_recv().is_err(), "the callback ran twice");
}

fn holders_that_unlock_on_shutdown_count_as_released() {
    const HELD: usize = 100;
    let server = Server::start();
    let client = client(&server.url());
    let workers: Vec<_> = lock_many(&client, HELD)
        .into_iter()
        .map(|guard| {
            thread::spawn(move || {
                assert_eq!(guard.lost().recv(), Ok(Lost::ShutDown));
                guard.unlock().unwrap_err()
            })
        })
        .collect();

    let report = client.shutdown(WITHIN);

    assert_eq!(counts(&report), [HELD, 0, 0, 0]);
    assert!(report.is_clean(), "{report:?}");
    for worker in workers {
        let error = worker.join().unwrap();
        assert_eq!(error.lost(), Some(Lost::ShutDown));
    }
}

fn shutdown_without_time_for_replies_still_releases_everything() {
    let server = Server::start();
    let client = client(&server.url());
    let guards = lock_many(&client, 5);

    let report = client.shutdown(Duration::ZERO);

    assert_eq!(report.released + report.unreleased, 5);
    eventually(ms(5_000), || lock_keys(&server) == 0);
    assert!(guards.iter().all(|guard| !guard.is_held()));
}

fn locks_lost_before_the_shutdown_are_left_alone_and_counted() {
    let server = Server::start();
    let client = client(&server.url());
    let guards = lock_many(&client, 5);
    let () = redis::pipe()
        .del("lock:1")
        .set("lock:2", "somebody")
        .ignore()
        .query(&mut server.connection())
        .unwrap();
    let short = client.mutex("short").ttl(ms(50)).auto_renew(false);
    let short = short.lock().unwrap();
    assert_eq!(short.lost().recv(), Ok(Lost::Expired));

    let report = client.shutdown(WITHIN);

    assert_eq!(counts(&report), [3, 2, 0, 0]);
    assert!(report.is_clean(), "{report:?}");
    // A lease expires a little earlier in the client than in Redis.
    eventually(ms(5_000), || lock_keys(&server) == 1);
    assert_eq!(server.get("lock:2").as_deref(), Some(&b"somebody"[..]));
    assert_eq!(short.unlock().unwrap_err().lost(), Some(Lost::Expired));
    drop(guards);
}

fn a_lock_lost_before_the_shutdown_is_released_with_its_guard() {
    let server = Server::start();
    let client = builder(&server.url()).ttl(PATIENCE * 2);
    let client = client.command_timeout(WITHIN).build().unwrap();
    let guard = client.mutex("a").max_hold(ms(300)).lock().unwrap();
    eventually(PATIENCE, || !guard.is_held());
    assert!(client.shutdown(WITHIN).is_clean());
    assert_eq!(lock_keys(&server), 1, "nobody has released it");
    drop(guard);
    assert_eq!(lock_keys(&server), 0);
}

/// A grant lasts for 3 s at most, but its renewal for the ttl may have run.
fn grant_whose_renewal_has_no_reply_is_reported() {
    let hangs = Arc::new(AtomicBool::new(false));
    let is_hanging = Arc::clone(&hangs);
    let server = FakeServer::start(move |request| match request.name().as_str() {
        "renew" => {
            is_hanging.store(true, Ordering::SeqCst);
            None
        }
        "WAIT" if !is_hanging.load(Ordering::SeqCst) => Some(b":0\r\n".to_vec()),
        "queue_enter" => Some(b"*4\r\n:0\r\n$5\r\nother\r\n:60000\r\n:-1\r\n".to_vec()),
        // Grants the lock under the token 7.
        "queue_refresh" => Some(b"*3\r\n:7\r\n:3000\r\n:-1\r\n".to_vec()),
        _ => None,
    });
    let client = client(&server.url());
    // The shutdown waits for a call that can be cancelled.
    let mutex = client.fair_mutex("a").cancel_on(&CancelToken::new());
    // Redis must confirm the grant, because replicas must acknowledge it.
    let mutex = mutex.min_replicas(1, ms(100));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| mutex.lock());
        eventually(PATIENCE, || hangs.load(Ordering::SeqCst));

        let report = client.shutdown(WITHIN);

        assert_eq!(report.unreleased, 1, "{report:?}");
        assert!(!report.is_clean(), "{report:?}");
        assert_closed(waiting.join().unwrap());
    });
}

fn part_of_a_set_without_a_confirmed_release_is_reported() {
    let cluster = Cluster::with(ClusterSetup::steady(2, 0));
    // The node of the first part must be paused before the call gives up.
    let builder = support::builder_within(cluster.url(), ms(3_000));
    let client = builder.ttl(PATIENCE * 2).build().unwrap();
    let names = [0, 1].map(|node| cluster.name_owned_by("part", node));
    for name in &names {
        assert_released(client.mutex(name).lock().unwrap().unlock());
    }
    let held = self::client(&cluster.url())
        .mutex(&names[1])
        .lock()
        .unwrap();
    let set = client.mutex_all(&names);
    cluster.pause(1);
    thread::scope(|scope| {
        let refused = scope.spawn(|| set.try_lock());
        eventually(PATIENCE, || lock_keys(cluster.node(0)) == 1);
        cluster.pause(0);
        cluster.resume(1);
        drop(refused.join().unwrap());
    });

    // The key of the part lasts for three seconds.
    let report = client.shutdown(ms(1_000));

    assert_eq!(counts(&report), [0, 0, 1, 0]);
    assert!(!report.is_clean(), "{report:?}");
    cluster.resume(0);
    assert_released(held.unlock());
}

fn calls_after_the_shutdown_are_refused() {
    let server = Server::start();
    let client = client(&server.url());
    let mutex = client.mutex("a");
    drop(mutex.lock().unwrap());
    assert!(client.shutdown(WITHIN).is_clean());

    let calls = server.calls(&["evalsha", "eval", "ping"]);
    assert_closed(mutex.lock());
    assert_closed(mutex.try_lock());
    assert_closed(mutex.try_lock_for(ms(5_000)));
    assert_closed(mutex.with(|_| ()).map_err(Error::from));
    assert_closed(mutex.try_with(|_| ()).map_err(Error::from));
    assert_closed(mutex.inspect());
    assert_closed(mutex.force_unlock());
    assert_closed(client.mutex("b").lock());
    assert_closed(client.ping());
    assert_eq!(server.calls(&["evalsha", "eval", "ping"]), calls);
    // No connection is left open. The server may notice late that they are closed.
    eventually(ms(10_000), || server.client_list().is_empty());
}

fn shutdown_ends_every_wait_at_once() {
    let server = Server::start();
    let other = client(&server.url());
    let client = builder(&server.url()).build().unwrap();
    let theirs = other.mutex("theirs").lock().unwrap();
    let ours = client.mutex("ours").lock().unwrap();
    // The first in a name's queue, the second, and one behind a holder of the same client.
    let first = start_waiter(&client, "theirs");
    server.wait_until_waiter_sleeps("lock_release:theirs");
    let second = start_waiter(&client, "theirs");
    let third = start_waiter(&client, "ours");
    server.wait_until_waiter_sleeps("lock_release:ours");
    let attempts = server.calls(&["evalsha"]);

    let began = Instant::now();
    let report = client.shutdown(WITHIN);
    for waiter in [first, second, third] {
        assert_closed(waiter.recv().unwrap());
    }
    assert!(began.elapsed() < TOLERANCE, "{:?}", began.elapsed());
    assert_eq!(counts(&report), [1, 0, 0, 3]);
    assert!(report.is_clean(), "{report:?}");
    // Two scripts were sent: the release of the held lock, and the removal of the place.
    assert_eq!(server.calls(&["evalsha"]), attempts + 2);
    drop(ours);
    theirs.unlock().unwrap();
}

fn a_second_shutdown_does_nothing() {
    let server = Server::start();
    let client = client(&server.url());
    let guards = lock_many(&client, 300);
    let reports: Vec<_> = thread::scope(|scope| {
        let calls = [(); 4].map(|()| scope.spawn(|| client.clone().shutdown(WITHIN)));
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let released: Vec<_> = reports.iter().map(|report| report.released).collect();
    assert_eq!(released.iter().sum::<usize>(), 300, "{released:?}");
    assert_eq!(released.iter().filter(|&&released| released > 0).count(), 1);
    assert!(reports.iter().all(ShutdownReport::is_clean), "{reports:?}");
    let again = client.shutdown(Duration::ZERO);
    assert_eq!(counts(&again), [0; 4]);
    assert!(again.is_clean());
    drop(guards);
    assert_eq!(lock_keys(&server), 0);
}

/// Redis stops replying in four ways: stopped, killed, or behind a network that stalls or drops.
fn shutdown_without_redis_ends_within_its_timeout() {
    const HELD: usize = 300;
    let within = ms(300);
    for away in ["stopped", "killed", "stalled", "vanished"] {
        let mut server = Server::start();
        let proxy = Proxy::new(&server);
        let client = builder(&proxy.url())
            .unreachable_for(ms(60_000))
            .build()
            .unwrap();
        let guards = lock_many(&client, HELD);
        let first = start_waiter(&client, "0");
        server.wait_until_waiter_sleeps("lock_release:0");
        match away {
            "stopped" => server.pause(),
            "killed" => server.kill(),
            "stalled" => proxy.set_all(Traffic::Stall),
            _ => proxy.set_all(Traffic::DropBoth),
        }

        let began = Instant::now();
        let report = client.shutdown(within);
        let took = began.elapsed();

        assert!(
            took < within + COMMAND_TIMEOUT + TOLERANCE,
            "{away}: took {took:?}"
        );
        assert_eq!(counts(&report), [0, 0, HELD, 1], "{away}");
        assert!(!report.is_clean(), "{away}");
        assert_closed(first.recv_timeout(TOLERANCE).expect("the wait ends"));
        let began = Instant::now();
        for guard in guards {
            assert!(!guard.is_held());
            assert_eq!(guard.unlock().unwrap_err().lost(), Some(Lost::ShutDown));
        }
        drop(client);
        assert!(began.elapsed() < TOLERANCE, "{away}: a drop sends nothing");
        if away == "stopped" {
            server.resume();
        }
    }
}

fn shutdown_ends_a_wait_that_cannot_reach_redis() {
    let hole = BlackHole::start();
    for url in [support::refusing_url(), hole.url()] {
        let client = builder(&url).unreachable_for(ms(60_000)).build().unwrap();
        let lock = start_waiter(&client, "a");
        let (sender, trying) = bounded(1);
        let mutex = client.mutex("b");
        thread::spawn(move || {
            let _ = sender.send(mutex.try_lock_for(ms(60_000)));
        });
        assert!(lock.recv_timeout(ms(200)).is_err(), "the call waits");

        let began = Instant::now();
        let report = client.shutdown(ms(100));
        assert_closed(lock.recv().unwrap());
        assert_closed(trying.recv().unwrap());
        let took = began.elapsed();
        assert!(
            took < ms(100) + COMMAND_TIMEOUT + TOLERANCE,
            "took {took:?}"
        );
        assert_eq!(counts(&report), [0, 0, 0, 2]);
    }
}

fn shutdown_ends_a_call_that_has_no_connection_to_enter_a_queue() {
    let timeout = ms(20_000);
    let url = support::refusing_url();
    let settings = builder(&url).unreachable_for(ms(60_000));
    let client = settings.command_timeout(timeout).build().unwrap();
    let fair = client.fair_mutex("a");
    let (sender, waiting) = bounded(1);
    thread::spawn(move || sender.send(fair.lock()));
    assert!(waiting.recv_timeout(ms(200)).is_err(), "the call waits");
    let began = Instant::now();
    client.shutdown(ms(100));
    assert_closed(waiting.recv().unwrap());
    let took = began.elapsed();
    assert!(
        took < timeout / 2,
        "the call tried to leave a queue that it had not entered: {took:?}"
    );
}

fn renewals_in_flight_neither_delay_the_shutdown_nor_revive_a_lock() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    let lock = |n| client.mutex(n).renew_every(ms(20)).lock().unwrap();
    let guards: Vec<_> = (0..50).map(lock).collect();
    // Long enough that a renewal is in flight at any time.
    proxy.delay(Duration::ZERO, ms(30));
    let expired = server.calls(&["pexpire"]);
    eventually(ms(5_000), || server.calls(&["pexpire"]) > expired + 100);

    let report = client.shutdown(WITHIN);

    assert_eq!(counts(&report), [50, 0, 0, 0]);
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(lock_keys(&server), 0);
    let renewed = server.calls(&["pexpire"]);
    assert!(guards.iter().all(|guard| !guard.is_held()));
    drop((guards, client));
    assert_eq!(server.calls(&["pexpire"]), renewed);
    assert_eq!(lock_keys(&server), 0);
}

fn a_callback_can_shut_down_its_own_client() {
    let server = Server::start();
    let client = client(&server.url());
    let others = lock_many(&client, 3);
    let (sender, reports) = bounded(1);
    let in_callback = client.clone();
    let mutex = client.mutex("a").ttl(ms(50)).auto_renew(false);
    let guard = mutex
        .on_lost(move |_| {
            let _ = sender.send(in_callback.shutdown(WITHIN));
        })
        .lock()
        .unwrap();
    let report = reports.recv_timeout(WITHIN).expect("the callback returns");
    assert_eq!(report.released, 3);
    // The thread that called ends after its callback.
    assert!(report.is_clean(), "{report:?}");
    assert_closed(client.ping());
    assert_eq!(guard.unlock().unwrap_err().lost(), Some(Lost::Expired));
    drop(others);
    eventually(ms(5_000), || lock_keys(&server) == 0);
}

fn shutdown_with_a_hanging_callback_ends_within_its_timeout() {
    let server = Server::start();
    let client = client(&server.url());
    let (entered, entries) = bounded(1);
    let (release, released) = bounded::<()>(0);
    let mutex = client.mutex("a").ttl(ms(50)).auto_renew(false);
    let guard = mutex
        .on_lost(move |_| {
            entered.send(()).unwrap();
            let _ = released.recv();
        })
        .lock()
        .unwrap();
    entries.recv().unwrap();
    let held = client.mutex("b").lock().unwrap();

    let began = Instant::now();
    let report = client.shutdown(ms(1_000));
    let took = began.elapsed();

    assert!(
        took < ms(1_000) + COMMAND_TIMEOUT + TOLERANCE,
        "took {took:?}"
    );
    assert_eq!(counts(&report), [1, 0, 0, 0]);
    assert!(!report.is_clean(), "a thread is left");
    drop((release, guard, held));
}

/// Nobody repeats the undo of its command, and its thread does not wait for that.
fn call_whose_command_the_shutdown_leaves_behind_ends_by_its_deadline() {
    const TIMEOUT: Duration = ms(5_000);
    let server = FakeServer::start(|_| None);
    let client = support::builder_within(server.url(), TIMEOUT);
    let client = client.build().unwrap();
    let mutex = client.mutex("a");
    let call = thread::spawn(move || {
        let began = Instant::now();
        (mutex.try_lock_for(ms(500)), began.elapsed())
    });
    eventually(PATIENCE, || !server.requests("acquire").is_empty());
    client.shutdown(Duration::ZERO);
    let (end, took) = call.join().unwrap();
    assert_closed(end);
    assert!(took < TIMEOUT / 2, "{took:?}");
    // It was written behind the command.
    eventually(PATIENCE, || server.requests("release").len() == 1);
}

/// Waits until no thread is left; the kernel still lists a thread for a moment after its join.
#[track_caller]
fn wait_until_no_thread_is_left() {
    eventually(PATIENCE, || own_threads().is_empty());
}

/// Returns a client that has started all its threads, and guards that keep it alive.
fn with_all_threads(server_url: &str) -> (Client, Vec<MutexGuard>) {
    let client = client(server_url);
    let other = self::client(server_url);
    let theirs = other.mutex("theirs").lock().unwrap();
    let called_back = client.mutex("called-back").on_lost(|_| ());
    let guards = vec![
        called_back.lock().unwrap(),
        client.mutex("b").lock().unwrap(),
    ];
    // A wait, which starts the subscriber.
    assert_gives_up(|limit| client.mutex("theirs").try_lock_for(limit));
    drop((theirs, other));
    // The threads of the other client have ended.
    eventually(ms(5_000), || own_threads().len() == 3);
    (client, guards)
}

fn a_client_that_was_shut_down_leaves_no_thread() {
    let server = Server::start();
    Child::spawn("shutdown::shut_down_in_child", &[("URL", &server.url())])
        .wait()
        .succeeded();
    eventually(ms(5_000), || server.client_list().is_empty());
}

fn shut_down_in_child() {
    let (client, guards) = with_all_threads(&parameter("URL"));
    assert!(client.shutdown(WITHIN).is_clean());
    wait_until_no_thread_is_left();
    drop((client, guards));
}

fn a_client_that_was_dropped_leaves_no_thread() {
    let server = Server::start();
    Child::spawn("shutdown::last_drop_in_child", &[("URL", &server.url())])
        .wait()
        .succeeded();
    eventually(ms(5_000), || server.client_list().is_empty());
    assert_eq!(lock_keys(&server), 0);
}

fn last_drop_in_child() {
    let url = parameter("URL");

    // Dropped by the thread that created the client.
    let (client, guards) = with_all_threads(&url);
    drop(client);
    assert_eq!(own_threads().len(), 3, "the guards keep the client alive");
    drop(guards);
    wait_until_no_thread_is_left();

    // Dropped by another thread; the last owner is a mutex.
    let (client, guards) = with_all_threads(&url);
    let mutex = client.mutex("b");
    drop((client, guards));
    assert_eq!(own_threads().len(), 3, "the mutex keeps the client alive");
    thread::spawn(move || drop(mutex)).join().unwrap();
    wait_until_no_thread_is_left();

    // Dropped by many threads at once.
    let (client, guards) = with_all_threads(&url);
    let owners: Vec<_> = (0..8)
        .map(|n| (client.clone(), client.mutex(format!("{n}"))))
        .collect();
    drop(client);
    thread::scope(|scope| {
        for guard in guards {
            scope.spawn(move || drop(guard));
        }
        for owner in owners {
            scope.spawn(move || drop(owner));
        }
    });
    wait_until_no_thread_is_left();

    // Dropped by a callback, on the client's own thread.
    let (client, guards) = with_all_threads(&url);
    let last = Arc::new(parking_lot::Mutex::new(None));
    let (sender, dropped) = bounded(1);
    let in_callback = Arc::clone(&last);
    let mutex = client.mutex("short").ttl(ms(200)).auto_renew(false);
    let guard = mutex
        .on_lost(move |_| {
            let owners = in_callback.lock().take();
            drop(owners);
            let _ = sender.send(());
        })
        .lock()
        .unwrap();
    *last.lock() = Some((client, guards, guard));
    dropped
        .recv_timeout(ms(10_000))
        .expect("the callback returns");
    wait_until_no_thread_is_left();
}

fn the_last_drop_without_redis_ends_within_a_command_timeout() {
    let server = Server::start();
    let client = client(&server.url());
    let guard = client.mutex("a").lock().unwrap();
    assert!(client.mutex("a").try_lock_for(ms(50)).unwrap().is_err());
    guard.unlock().unwrap();
    server.pause();
    let began = Instant::now();
    drop(client);
    let took = began.elapsed();
    server.resume();
    assert!(took < COMMAND_TIMEOUT + TOLERANCE, "took {took:?}");
}
