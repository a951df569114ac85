//! Promise: a client ends when it is told to, or with its last owner: waiters are sent away, what was held is released and
//! said to be lost, the threads are gone, and all that takes a bounded time.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded, unbounded};
use leasehold::{Client, ClientBuilder, Error, Lost, MutexGuard, ShutdownReport, Unlocked};
use support::{BlackHole, Child, Proxy, Server, Traffic, eventually, ms, parameter};

support::roles![shut_down_in_child, last_drop_in_child];

support::tests![
    everything_held_is_released_and_told,
    holders_that_let_go_when_told_are_counted_like_the_others,
    without_time_to_wait_for_answers_everything_is_released_all_the_same,
    what_others_hold_by_then_is_left_alone_and_counted,
    no_new_call_is_served,
    a_second_call_does_nothing,
    renewals_on_their_way_delay_nothing_and_revive_nothing,
    a_callback_may_end_its_own_client,
    no_thread_is_left_of_a_client_that_was_shut_down,
    no_thread_is_left_of_a_client_that_nobody_has_any_more
];

support::timed![
    waiters_are_sent_away_at_once,
    a_redis_that_is_away_delays_the_end_by_no_more_than_was_given,
    a_waiter_that_cannot_reach_redis_is_sent_away,
    a_callback_that_hangs_delays_the_end_by_no_more_than_was_given,
    the_last_drop_is_not_held_up_by_a_redis_that_is_away
];

/// How late a call may be that is bounded: this machine has other things to do.
const NOISE: Duration = ms(1_000);

/// Enough for a client to end by itself.
const WITHIN: Duration = ms(10_000);

const COMMAND_TIMEOUT: Duration = ms(400);

fn builder(url: &str) -> ClientBuilder {
    Client::builder()
        .url(url)
        .connect_timeout(COMMAND_TIMEOUT)
        .command_timeout(COMMAND_TIMEOUT)
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

fn hold(client: &Client, count: usize) -> Vec<MutexGuard> {
    let lock = |n| client.mutex(format!("{n}")).lock().unwrap();
    (0..count).map(lock).collect()
}

/// Calls `lock` beside the test, which is to be sent away.
fn waiting(client: &Client, name: &str) -> Receiver<Result<MutexGuard, Error>> {
    let (sender, receiver) = bounded(1);
    let mutex = client.mutex(name);
    thread::spawn(move || {
        let _ = sender.send(mutex.lock());
    });
    receiver
}

#[track_caller]
fn is_closed<T>(answer: Result<T, Error>) {
    match answer {
        Err(Error::Closed) => {}
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it was not refused"),
    }
}

fn counts(report: &ShutdownReport) -> [usize; 4] {
    [
        report.released(),
        report.already_lost(),
        report.unreleased(),
        report.woken(),
    ]
}

fn everything_held_is_released_and_told() {
    // More than go out in one write.
    const HELD: usize = 600;
    let server = Server::start();
    let client = client(&server.url());
    let guards = hold(&client, HELD);
    let (sender, told) = unbounded();
    let callback = move |lost: &Lost| sender.send(*lost).unwrap();
    let one_more = client.mutex("callback").on_lost(callback).lock().unwrap();
    let lost: Vec<_> = guards.iter().map(MutexGuard::lost).collect();

    let report = client.shutdown(WITHIN).unwrap();

    assert_eq!(counts(&report), [HELD + 1, 0, 0, 0]);
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(lock_keys(&server), 0);
    for (guard, lost) in guards.iter().zip(lost) {
        assert_eq!(lost.try_recv(), Ok(Lost::ShutDown));
        assert!(!guard.is_held());
        assert_eq!(guard.remaining(), None);
        for answer in [guard.ensure_held(), guard.renew(), guard.extend(ms(5_000))] {
            assert!(matches!(answer, Err(Error::Lost(Lost::ShutDown))));
        }
    }
    // The thread that runs it has ended.
    assert_eq!(told.try_recv(), Ok(Lost::ShutDown));
    for guard in guards.into_iter().chain([one_more]) {
        assert_eq!(
            guard.unlock().unwrap(),
            Unlocked::AlreadyLost(Lost::ShutDown)
        );
    }
    assert!(told.try_recv().is_err(), "told twice");
}

fn holders_that_let_go_when_told_are_counted_like_the_others() {
    const HELD: usize = 100;
    let server = Server::start();
    let client = client(&server.url());
    let workers: Vec<_> = hold(&client, HELD)
        .into_iter()
        .map(|guard| {
            thread::spawn(move || {
                assert_eq!(guard.lost().recv(), Ok(Lost::ShutDown));
                guard.unlock().unwrap()
            })
        })
        .collect();

    let report = client.shutdown(WITHIN).unwrap();

    assert_eq!(counts(&report), [HELD, 0, 0, 0]);
    assert!(report.is_clean(), "{report:?}");
    for worker in workers {
        let unlocked = worker.join().unwrap();
        assert_eq!(unlocked, Unlocked::AlreadyLost(Lost::ShutDown));
    }
}

fn without_time_to_wait_for_answers_everything_is_released_all_the_same() {
    let server = Server::start();
    let client = client(&server.url());
    let guards = hold(&client, 5);

    let report = client.shutdown(Duration::ZERO).unwrap();

    assert_eq!(report.released() + report.unreleased(), 5);
    eventually(ms(5_000), || lock_keys(&server) == 0);
    assert!(guards.iter().all(|guard| !guard.is_held()));
}

fn what_others_hold_by_then_is_left_alone_and_counted() {
    let server = Server::start();
    let client = client(&server.url());
    let guards = hold(&client, 5);
    let () = redis::pipe()
        .del("lock:1")
        .set("lock:2", "somebody")
        .ignore()
        .query(&mut server.connection())
        .unwrap();
    let short = client.mutex("short").ttl(ms(50)).auto_renew(false);
    let short = short.lock().unwrap();
    assert_eq!(short.lost().recv(), Ok(Lost::Expired));

    let report = client.shutdown(WITHIN).unwrap();

    assert_eq!(counts(&report), [3, 2, 0, 0]);
    assert!(report.is_clean(), "{report:?}");
    // A lease ends a little sooner for us than for Redis.
    eventually(ms(5_000), || lock_keys(&server) == 1);
    assert_eq!(server.get("lock:2").as_deref(), Some(&b"somebody"[..]));
    assert_eq!(
        short.unlock().unwrap(),
        Unlocked::AlreadyLost(Lost::Expired)
    );
    drop(guards);
}

fn no_new_call_is_served() {
    let server = Server::start();
    let client = client(&server.url());
    let mutex = client.mutex("a");
    drop(mutex.lock().unwrap());
    assert!(client.shutdown(WITHIN).unwrap().is_clean());

    let calls = server.calls(&["evalsha", "eval", "ping"]);
    is_closed(mutex.lock());
    is_closed(mutex.try_lock());
    is_closed(mutex.try_lock_for(ms(5_000)));
    is_closed(mutex.with(|_| ()));
    is_closed(mutex.try_with(|_| ()));
    is_closed(mutex.inspect());
    is_closed(mutex.force_unlock());
    is_closed(client.mutex("b").lock());
    is_closed(client.ping());
    assert_eq!(server.calls(&["evalsha", "eval", "ping"]), calls);
    assert!(server.client_list().is_empty(), "a connection is left");
}

fn waiters_are_sent_away_at_once() {
    let server = Server::start();
    let other = client(&server.url());
    // Nobody looks again by itself.
    let client = builder(&server.url()).backstop(ms(60_000)).build().unwrap();
    let theirs = other.mutex("theirs").lock().unwrap();
    let ours = client.mutex("ours").lock().unwrap();
    // First in the queue of a name, behind another, and behind this client itself.
    let first = waiting(&client, "theirs");
    server.wait_until_waiter_sleeps("lock_release:theirs");
    let second = waiting(&client, "theirs");
    let third = waiting(&client, "ours");
    server.wait_until_waiter_sleeps("lock_release:ours");
    let attempts = server.calls(&["evalsha"]);

    let began = Instant::now();
    let report = client.shutdown(WITHIN).unwrap();
    for waiter in [first, second, third] {
        is_closed(waiter.recv().unwrap());
    }
    assert!(began.elapsed() < NOISE, "{:?}", began.elapsed());
    assert_eq!(counts(&report), [1, 0, 0, 3]);
    assert!(report.is_clean(), "{report:?}");
    // The release of what was held is all that was sent.
    assert_eq!(server.calls(&["evalsha"]), attempts + 1);
    drop(ours);
    assert_eq!(theirs.unlock().unwrap(), Unlocked::Released);
}

fn a_second_call_does_nothing() {
    let server = Server::start();
    let client = client(&server.url());
    let guards = hold(&client, 300);
    let reports: Vec<_> = thread::scope(|scope| {
        let calls = [(); 4].map(|()| scope.spawn(|| client.clone().shutdown(WITHIN).unwrap()));
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let released: Vec<_> = reports.iter().map(ShutdownReport::released).collect();
    assert_eq!(released.iter().sum::<usize>(), 300, "{released:?}");
    assert_eq!(released.iter().filter(|&&released| released > 0).count(), 1);
    assert!(reports.iter().all(ShutdownReport::is_clean), "{reports:?}");
    let again = client.shutdown(Duration::ZERO).unwrap();
    assert_eq!(counts(&again), [0; 4]);
    assert!(again.is_clean());
    drop(guards);
    assert_eq!(lock_keys(&server), 0);
}

/// A Redis that does not answer any more: stopped, dead, or out of reach.
fn a_redis_that_is_away_delays_the_end_by_no_more_than_was_given() {
    const HELD: usize = 300;
    let within = ms(300);
    for away in ["stopped", "killed", "stalled", "vanished"] {
        let mut server = Server::start();
        let proxy = Proxy::new(&server);
        let client = builder(&proxy.url())
            .unreachable_for(ms(60_000))
            .build()
            .unwrap();
        let guards = hold(&client, HELD);
        let first = waiting(&client, "0");
        server.wait_until_waiter_sleeps("lock_release:0");
        match away {
            "stopped" => server.pause(),
            "killed" => server.kill(),
            "stalled" => proxy.set_all(Traffic::Stall),
            _ => proxy.set_all(Traffic::DropBoth),
        }

        let began = Instant::now();
        let report = client.shutdown(within).unwrap();
        let took = began.elapsed();

        assert!(
            took < within + COMMAND_TIMEOUT + NOISE,
            "{away}: took {took:?}"
        );
        assert_eq!(counts(&report), [0, 0, HELD, 1], "{away}");
        assert!(!report.is_clean(), "{away}");
        is_closed(first.recv_timeout(NOISE).expect("it is sent away"));
        let began = Instant::now();
        for guard in guards {
            assert!(!guard.is_held());
            assert_eq!(
                guard.unlock().unwrap(),
                Unlocked::AlreadyLost(Lost::ShutDown)
            );
        }
        drop(client);
        assert!(began.elapsed() < NOISE, "{away}: dropping asks nobody");
        if away == "stopped" {
            server.resume();
        }
    }
}

fn a_waiter_that_cannot_reach_redis_is_sent_away() {
    let hole = BlackHole::start();
    for url in [support::refusing_url(), hole.url()] {
        let client = builder(&url).unreachable_for(ms(60_000)).build().unwrap();
        let lock = waiting(&client, "a");
        let (sender, trying) = bounded(1);
        let mutex = client.mutex("b");
        thread::spawn(move || {
            let _ = sender.send(mutex.try_lock_for(ms(60_000)));
        });
        assert!(lock.recv_timeout(ms(200)).is_err(), "it waits");

        let began = Instant::now();
        let report = client.shutdown(ms(100)).unwrap();
        is_closed(lock.recv().unwrap());
        is_closed(trying.recv().unwrap());
        let took = began.elapsed();
        assert!(took < ms(100) + COMMAND_TIMEOUT + NOISE, "took {took:?}");
        assert_eq!(counts(&report), [0, 0, 0, 2]);
    }
}

fn renewals_on_their_way_delay_nothing_and_revive_nothing() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = builder(&proxy.url()).renew_every(ms(20)).build().unwrap();
    let guards = hold(&client, 50);
    // Long enough for one to be under way at any time.
    proxy.delay(Duration::ZERO, ms(30));
    let expired = server.calls(&["pexpire"]);
    eventually(ms(5_000), || server.calls(&["pexpire"]) > expired + 100);

    let report = client.shutdown(WITHIN).unwrap();

    assert_eq!(counts(&report), [50, 0, 0, 0]);
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(lock_keys(&server), 0);
    let renewed = server.calls(&["pexpire"]);
    assert!(guards.iter().all(|guard| !guard.is_held()));
    drop((guards, client));
    assert_eq!(server.calls(&["pexpire"]), renewed);
    assert_eq!(lock_keys(&server), 0);
}

fn a_callback_may_end_its_own_client() {
    let server = Server::start();
    let client = client(&server.url());
    let others = hold(&client, 3);
    let (sender, reports) = bounded(1);
    let in_callback = client.clone();
    let mutex = client.mutex("a").ttl(ms(50)).auto_renew(false);
    let guard = mutex
        .on_lost(move |_| {
            let _ = sender.send(in_callback.shutdown(WITHIN).unwrap());
        })
        .lock()
        .unwrap();
    let report = reports.recv_timeout(WITHIN).expect("it does not hang");
    assert_eq!(report.released(), 3);
    // The thread that called ends after this.
    assert!(report.is_clean(), "{report:?}");
    is_closed(client.ping());
    assert_eq!(
        guard.unlock().unwrap(),
        Unlocked::AlreadyLost(Lost::Expired)
    );
    drop(others);
    eventually(ms(5_000), || lock_keys(&server) == 0);
}

fn a_callback_that_hangs_delays_the_end_by_no_more_than_was_given() {
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
    let report = client.shutdown(ms(100)).unwrap();
    let took = began.elapsed();

    assert!(took < ms(100) + COMMAND_TIMEOUT + NOISE, "took {took:?}");
    assert_eq!(counts(&report), [1, 0, 0, 0]);
    assert!(!report.is_clean(), "a thread is left");
    drop((release, guard, held));
}

/// The client's threads, as the kernel names them, without dialers, which nobody waits for.
fn own_threads() -> Vec<String> {
    fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.starts_with("leasehold-") && name != "leasehold-dial\n")
        .collect()
}

/// The kernel lists a thread for a moment after it was joined.
#[track_caller]
fn no_thread_is_left() {
    eventually(ms(2_000), || own_threads().is_empty());
}

/// A client with every thread that it can have, and what keeps it alive.
fn with_all_threads(server_url: &str) -> (Client, Vec<MutexGuard>) {
    let client = client(server_url);
    let other = self::client(server_url);
    let theirs = other.mutex("theirs").lock().unwrap();
    let called_back = client.mutex("called-back").on_lost(|_| ());
    let guards = vec![
        called_back.lock().unwrap(),
        client.mutex("b").lock().unwrap(),
    ];
    // Waits, so there is a subscriber.
    assert!(
        client
            .mutex("theirs")
            .try_lock_for(ms(100))
            .unwrap()
            .is_none()
    );
    drop((theirs, other));
    // Of the other client nothing is left.
    eventually(ms(5_000), || own_threads().len() == 4);
    (client, guards)
}

fn no_thread_is_left_of_a_client_that_was_shut_down() {
    let server = Server::start();
    Child::spawn("shutdown::shut_down_in_child", &[("URL", &server.url())])
        .wait()
        .succeeded();
    assert!(server.client_list().is_empty());
}

fn shut_down_in_child() {
    let (client, guards) = with_all_threads(&parameter("URL"));
    assert!(client.shutdown(WITHIN).unwrap().is_clean());
    no_thread_is_left();
    drop((client, guards));
}

fn no_thread_is_left_of_a_client_that_nobody_has_any_more() {
    let server = Server::start();
    Child::spawn("shutdown::last_drop_in_child", &[("URL", &server.url())])
        .wait()
        .succeeded();
    eventually(ms(5_000), || server.client_list().is_empty());
    assert_eq!(lock_keys(&server), 0);
}

fn last_drop_in_child() {
    let url = parameter("URL");

    // By the thread that made it.
    let (client, guards) = with_all_threads(&url);
    drop(client);
    assert_eq!(own_threads().len(), 4, "the guards keep it");
    drop(guards);
    no_thread_is_left();

    // By another one, the lock being what is left.
    let (client, guards) = with_all_threads(&url);
    let mutex = client.mutex("b");
    drop((client, guards));
    assert_eq!(own_threads().len(), 4, "the lock keeps it");
    thread::spawn(move || drop(mutex)).join().unwrap();
    no_thread_is_left();

    // By all at once.
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
    no_thread_is_left();

    // By a callback, on a thread of its own.
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
    dropped.recv_timeout(ms(10_000)).expect("it does not hang");
    no_thread_is_left();
}

fn the_last_drop_is_not_held_up_by_a_redis_that_is_away() {
    let server = Server::start();
    let client = client(&server.url());
    let guard = client.mutex("a").lock().unwrap();
    assert!(client.mutex("a").try_lock_for(ms(50)).unwrap().is_none());
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    server.pause();
    let began = Instant::now();
    drop(client);
    let took = began.elapsed();
    server.resume();
    assert!(took < COMMAND_TIMEOUT + NOISE, "took {took:?}");
}
