//! Promise: every number of `stats()` counts what its documentation says, and the fleet's totals are the sum of all.

use std::sync::Barrier;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use leasehold::{Backoff, Client, ClientBuilder, Error, Lost, Totals, Unlocked, WaitPolicy};
use support::{Cluster, ClusterSetup, Proxy, Server, Traffic, eventually, let_pass, ms};

support::tests![
    calls_are_counted_by_how_they_ended,
    a_server_that_is_away_makes_failures,
    a_release_elsewhere_and_one_here,
    a_message_without_a_release_is_a_spurious_wake,
    a_ttl_that_runs_out,
    the_backstop,
    a_subscription_that_came_back,
    losses_by_reason,
    what_is_held_and_open_now,
    counts_of_many_threads_add_up,
    short_locks_in_a_cluster_are_shared_too,
    two_clients_share_one_hash,
    what_redis_missed_is_added_later_and_once,
    what_could_not_be_sent_is_added_when_it_can,
    the_last_of_it_is_added_at_the_end,
    the_hash_has_the_name_that_it_was_given,
    a_key_that_is_no_hash_is_an_error_and_loses_nothing
];

support::timed![renewals_and_how_late_they_were, how_long_things_took];

/// Long enough for anything that is to come, and short enough for a test that fails.
const PATIENCE: Duration = ms(20_000);

/// So long that whoever looks again before was woken.
const NO_BACKSTOP: Duration = ms(60_000);

fn builder(url: &str) -> ClientBuilder {
    Client::builder().url(url).ttl(ms(300_000))
}

fn client(url: &str) -> Client {
    builder(url).backstop(NO_BACKSTOP).build().unwrap()
}

/// Totals with these numbers, and zeros.
fn totals(set: impl FnOnce(&mut Totals)) -> Totals {
    let mut totals = Totals::default();
    set(&mut totals);
    totals
}

/// Sees to it that the client hears the releases of a name that somebody else holds: from then on a waiter looks once
/// and sleeps.
fn hear(client: &Client, name: &str) {
    eventually(PATIENCE, || {
        let before = client.stats().totals.attempts;
        assert!(client.mutex(name).try_lock_for(ms(300)).unwrap().is_none());
        client.stats().totals.attempts == before + 1
    });
}

/// Starts a call that waits, and returns when it sleeps.
fn waiting<'scope>(
    scope: &'scope Scope<'scope, '_>,
    client: &'scope Client,
    name: &'scope str,
    attempts: u64,
) -> ScopedJoinHandle<'scope, ()> {
    let before = client.stats();
    let call = scope.spawn(move || {
        // A test that fails must not wait for a lock that nobody releases.
        let guard = client.mutex(name).try_lock_for(ms(30_000)).unwrap();
        let guard = guard.expect("it is released");
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    });
    eventually(PATIENCE, || {
        let now = client.stats();
        now.waiting == before.waiting + 1
            && now.totals.attempts == before.totals.attempts + attempts
    });
    call
}

fn calls_are_counted_by_how_they_ended() {
    let server = Server::start();
    let (client, other) = (client(&server.url()), client(&server.url()));
    assert_eq!(client.stats().totals, Totals::default());
    let _held = other.mutex("held").lock().unwrap();

    for _ in 0..3 {
        let guard = client.mutex("free").lock().unwrap();
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    }
    drop(client.mutex("free").try_lock().unwrap().unwrap());
    client.mutex("free").with(|_| ()).unwrap();
    let mut expected = totals(|totals| {
        totals.attempts = 5;
        totals.acquired_at_once = 5;
        totals.released = 5;
    });
    assert_eq!(client.stats().totals, expected);

    assert!(client.mutex("held").try_lock().unwrap().is_none());
    let twice = Backoff::new(ms(1), ms(1)).attempts(2);
    let impatient = client.mutex("held").wait(WaitPolicy::Backoff(twice));
    let error = impatient.lock().unwrap_err();
    assert!(matches!(error, Error::AttemptsUsedUp { .. }), "{error:?}");
    assert!(impatient.try_lock_for(PATIENCE).unwrap().is_none());
    expected.attempts += 5;
    expected.refused += 3;
    // One pause between two attempts, twice.
    expected.wakes_backstop += 2;
    expected.spurious_wakes += 2;
    assert_eq!(client.stats().totals, expected);

    // Known here to be held: no trip.
    let guard = client.mutex("free").lock().unwrap();
    assert!(client.mutex("free").try_lock().unwrap().is_none());
    drop(guard);
    expected.attempts += 1;
    expected.acquired_at_once += 1;
    expected.released += 1;
    expected.refused += 1;
    assert_eq!(client.stats().totals, expected);

    let error = client.mutex("free").ttl(ms(1)).lock().unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error:?}");
    expected.failed += 1;
    assert_eq!(client.stats().totals, expected);
    assert_eq!(client.stats().contention_rate(), 0.0);

    let asleep = client
        .mutex("held")
        .wait(WaitPolicy::Backoff(Backoff::new(ms(50_000), ms(50_000))));
    assert!(asleep.try_lock_for(ms(300)).unwrap().is_none());
    expected.attempts += 1;
    expected.timed_out += 1;
    assert_eq!(client.stats().totals, expected);
    assert_eq!(client.stats().wait.count, 6);
}

fn a_server_that_is_away_makes_failures() {
    let mut server = Server::start();
    let client = builder(&server.url())
        .command_timeout(ms(200))
        .build()
        .unwrap();
    drop(client.mutex("a").lock().unwrap());
    let guard = client.mutex("a").auto_renew(false).lock().unwrap();
    server.kill();
    assert!(client.mutex("b").try_lock().is_err());
    assert!(guard.renew().is_err());
    assert!(guard.unlock().is_err());
    let now = client.stats().totals;
    assert_eq!((now.failed, now.acquired_at_once), (1, 2));
    assert!(now.attempts > 2, "{now}");
    assert_eq!((now.renewals_ok, now.renewals_failed), (0, 1));
    // It was held until then; the release is repeated.
    assert_eq!((now.released, now.released_too_late, now.lost()), (2, 0, 0));
}

fn a_release_elsewhere_and_one_here() {
    let server = Server::start();
    let (client, other) = (client(&server.url()), client(&server.url()));
    let guard = other.mutex("a").lock().unwrap();
    hear(&client, "a");
    let before = client.stats().totals;
    thread::scope(|scope| {
        let call = waiting(scope, &client, "a", 1);
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
        call.join().unwrap();
    });
    let mut expected = before;
    expected.attempts += 2;
    expected.acquired_after_waiting += 1;
    expected.released += 1;
    expected.wakes_message += 1;
    assert_eq!(client.stats().totals, expected);
    assert_eq!(client.stats().contention_rate(), 1.0);

    let guard = client.mutex("a").lock().unwrap();
    expected.attempts += 1;
    expected.acquired_at_once += 1;
    thread::scope(|scope| {
        let call = waiting(scope, &client, "a", 0);
        // It moves up when the first of them leaves, which is no wake.
        let second = waiting(scope, &client, "a", 0);
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
        call.join().unwrap();
        second.join().unwrap();
    });
    let now = client.stats().totals;
    expected.attempts += 1;
    expected.acquired_after_waiting += 2;
    expected.released += 3;
    expected.wakes_local += 1;
    expected.wakes_hand_off += 1;
    assert_eq!(now, expected);
    assert_eq!(now.contention_rate(), 0.75);
}

fn a_message_without_a_release_is_a_spurious_wake() {
    let server = Server::start();
    let (client, other) = (client(&server.url()), client(&server.url()));
    let guard = other.mutex("a").lock().unwrap();
    hear(&client, "a");
    let before = client.stats().totals;
    thread::scope(|scope| {
        let call = waiting(scope, &client, "a", 1);
        server.run("PUBLISH", &["lock_release:a", "anything"]);
        eventually(PATIENCE, || {
            client.stats().totals.spurious_wakes == before.spurious_wakes + 1
        });
        drop(guard);
        call.join().unwrap();
    });
    let mut expected = before;
    expected.attempts += 3;
    expected.acquired_after_waiting += 1;
    expected.released += 1;
    expected.wakes_message += 2;
    expected.spurious_wakes += 1;
    assert_eq!(client.stats().totals, expected);
}

fn a_ttl_that_runs_out() {
    let server = Server::start();
    let client = client(&server.url());
    server.run("SET", &["lock:a", "foreign"]);
    hear(&client, "a");
    let before = client.stats().totals;
    server.run("SET", &["lock:a", "foreign", "PX", "1000"]);
    drop(client.mutex("a").lock().unwrap());
    let now = client.stats().totals;
    let wakes = now.wakes_ttl - before.wakes_ttl;
    assert!(wakes > 0, "{now:?}");
    let mut expected = before;
    // Redis may need a moment more.
    expected.attempts += 1 + wakes;
    expected.wakes_ttl += wakes;
    expected.spurious_wakes += wakes - 1;
    expected.acquired_after_waiting += 1;
    expected.released += 1;
    assert_eq!(now, expected);
}

fn the_backstop() {
    let server = Server::start();
    let client = builder(&server.url()).backstop(ms(50)).build().unwrap();
    server.run("SET", &["lock:a", "foreign"]);
    thread::scope(|scope| {
        let call = scope.spawn(|| drop(client.mutex("a").lock().unwrap()));
        eventually(PATIENCE, || client.stats().totals.wakes_backstop >= 5);
        server.run("DEL", &["lock:a"]);
        call.join().unwrap();
    });
    let now = client.stats().totals;
    assert_eq!(now.wakes(), now.wakes_backstop);
    assert_eq!(now.spurious_wakes, now.wakes_backstop - 1);
    assert_eq!(now.acquired_after_waiting, 1);
}

fn a_subscription_that_came_back() {
    let server = Server::start();
    let client = client(&server.url());
    server.run("SET", &["lock:a", "foreign"]);
    hear(&client, "a");
    let before = client.stats().totals;
    thread::scope(|scope| {
        let call = waiting(scope, &client, "a", 1);
        for times in 1..=2 {
            server.run("CLIENT", &["KILL", "TYPE", "pubsub"]);
            eventually(PATIENCE, || {
                client.stats().totals.spurious_wakes == before.spurious_wakes + times
            });
        }
        server.run("DEL", &["lock:a"]);
        server.run("PUBLISH", &["lock_release:a", "foreign"]);
        call.join().unwrap();
    });
    let mut expected = before;
    expected.attempts += 4;
    expected.wakes_reconnect += 2;
    expected.wakes_message += 1;
    expected.spurious_wakes += 2;
    expected.acquired_after_waiting += 1;
    expected.released += 1;
    assert_eq!(client.stats().totals, expected);
}

fn losses_by_reason() {
    let server = Server::start();
    let client = client(&server.url());
    let mutex = |name: &str| client.mutex(name).auto_renew(false);
    let late = |guard: leasehold::MutexGuard, lost| {
        assert_eq!(guard.unlock().unwrap(), Unlocked::AlreadyLost(lost));
    };

    let guard = mutex("expired").ttl(ms(100)).lock().unwrap();
    assert_eq!(guard.lost().recv_timeout(PATIENCE), Ok(Lost::Expired));
    late(guard, Lost::Expired);

    let guard = mutex("taken").lock().unwrap();
    server.run("SET", &["lock:taken", "another"]);
    assert!(guard.renew().is_err());
    assert_eq!(client.stats().totals.lost_taken, 1);
    late(guard, Lost::Taken);

    let guard = mutex("deleted").lock().unwrap();
    server.run("DEL", &["lock:deleted"]);
    late(guard, Lost::Deleted);

    let guard = mutex("max_hold").max_hold(ms(100)).lock().unwrap();
    assert_eq!(guard.lost().recv_timeout(PATIENCE), Ok(Lost::MaxHold));
    eventually(PATIENCE, || client.stats().totals.lost_max_hold == 1);
    assert_eq!(client.stats().totals.released_too_late, 3);
    late(guard, Lost::MaxHold);

    let guard = mutex("shut_down").lock().unwrap();
    let _ = client.shutdown(PATIENCE).unwrap();
    late(guard, Lost::ShutDown);
    assert!(client.mutex("closed").lock().is_err());

    let expected = totals(|totals| {
        totals.attempts = 5;
        totals.acquired_at_once = 5;
        totals.failed = 1;
        totals.released_too_late = 5;
        totals.lost_expired = 1;
        totals.lost_taken = 1;
        totals.lost_deleted = 1;
        totals.lost_max_hold = 1;
        totals.lost_shut_down = 1;
    });
    assert_eq!(client.stats().totals, expected);
    assert_eq!(expected.lost(), 5);
    assert_eq!(client.stats().hold.count, 5);
}

fn renewals_and_how_late_they_were() {
    let server = Server::start();
    let client = builder(&server.url())
        .command_timeout(ms(250))
        .build()
        .unwrap();
    assert_eq!(client.stats().renewal_lag, None);
    let guard = client.mutex("by hand").auto_renew(false).lock().unwrap();
    guard.renew().unwrap();
    guard.extend(ms(10_000)).unwrap();
    let now = client.stats();
    assert_eq!((now.totals.renewals_ok, now.totals.renewals_failed), (2, 0));
    assert_eq!(now.renewal_lag, Some(Duration::ZERO));
    drop(guard);

    let guard = client.mutex("a").renew_every(ms(1_000)).lock().unwrap();
    server.pause();
    eventually(PATIENCE, || client.stats().totals.renewals_failed > 0);
    assert_eq!(client.stats().renewal_lag, Some(Duration::ZERO));
    server.resume();
    eventually(PATIENCE, || client.stats().totals.renewals_ok > 2);
    // It was due before the first of its tries, which took the whole timeout.
    let lag = client.stats().renewal_lag.unwrap();
    assert!(lag > ms(240), "{lag:?}");
    assert!(guard.is_held());
}

fn what_is_held_and_open_now() {
    let server = Server::start();
    let (client, other) = (client(&server.url()), client(&server.url()));
    assert_eq!(client.stats().connections, 0);
    client.ping().unwrap();
    assert_eq!(client.stats().connections, 1);
    let guards: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .map(|name| client.mutex(name).lock().unwrap())
        .collect();
    let foreign = other.mutex("d").lock().unwrap();
    thread::scope(|scope| {
        hear(&client, "d");
        // The second of them waits behind the first.
        let calls = [("d", 1), ("a", 1), ("a", 0)];
        let calls = calls.map(|(name, attempts)| waiting(scope, &client, name, attempts));
        let now = client.stats();
        assert_eq!((now.held, now.waiting), (3, 3));
        let theirs = other.stats().connections;
        eventually(PATIENCE, || {
            let ours = client.stats().connections;
            // In use, or idle, and that of the subscriber.
            ours >= 2 && ours + theirs == server.client_list().len() as u64
        });
        drop(guards);
        drop(foreign);
        calls.into_iter().for_each(|call| call.join().unwrap());
    });
    let now = client.stats();
    assert_eq!((now.held, now.waiting), (0, 0));
    assert!(client.shutdown(PATIENCE).unwrap().is_clean());
    eventually(PATIENCE, || client.stats().connections == 0);
}

fn how_long_things_took() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    drop(client.mutex("a").lock().unwrap());
    let before = client.stats();
    assert_eq!(before.command.count, 2);
    proxy.delay(Duration::ZERO, ms(60));

    let asked = Instant::now();
    let guard = client.mutex("a").lock().unwrap();
    let had = Instant::now();
    let_pass(ms(100));
    let held = had.elapsed();
    drop(guard);
    let over = asked.elapsed();

    let now = client.stats();
    assert_eq!((now.wait.count, now.hold.count), (2, 2));
    assert_eq!(now.command.count, 4);
    assert!(now.wait.max >= ms(60) && now.wait.max <= had - asked);
    assert!(now.hold.max >= held && now.hold.max <= over);
    assert!(now.command.max >= ms(60) && now.command.max <= over);
    assert!(now.hold.p50 < ms(60) && now.hold.p99 == now.hold.max);
    assert!(now.command.p99 >= ms(60));
}

fn counts_of_many_threads_add_up() {
    const THREADS: u64 = 8;
    const TIMES: u64 = 250;
    let server = Server::start();
    let client = client(&server.url());
    let barrier = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for n in 0..THREADS {
            let (client, barrier) = (&client, &barrier);
            scope.spawn(move || {
                let mutex = client.mutex(format!("{}", n % 3));
                barrier.wait();
                for _ in 0..TIMES {
                    assert_eq!(mutex.lock().unwrap().unlock().unwrap(), Unlocked::Released);
                }
            });
        }
    });
    let now = client.stats();
    assert_eq!(now.totals.acquired(), THREADS * TIMES);
    assert_eq!(now.totals.released, THREADS * TIMES);
    assert_eq!(now.wait.count, THREADS * TIMES);
    assert_eq!(now.hold.count, THREADS * TIMES);
    assert!(now.totals.attempts + now.totals.wakes_hand_off >= THREADS * TIMES);
    assert!(now.totals.acquired_after_waiting > 0);
    assert_eq!((now.held, now.waiting), (0, 0));
    assert_eq!((now.totals.lost(), now.totals.failed), (0, 0));
}

fn sharing(url: &str) -> Client {
    builder(url)
        .command_timeout(ms(250))
        .shared_stats(true)
        .build()
        .unwrap()
}

/// Locks a few times, and says so.
fn lock(client: &Client, times: usize) {
    for _ in 0..times {
        drop(client.mutex("a").lock().unwrap());
    }
}

fn sum(one: &Totals, two: &Totals) -> Totals {
    totals(|sum| {
        sum.attempts = one.attempts + two.attempts;
        sum.acquired_at_once = one.acquired_at_once + two.acquired_at_once;
        sum.released = one.released + two.released;
        sum.failed = one.failed + two.failed;
    })
}

/// Nobody needs a thread there for locks that are let go at once, but what is counted is told.
fn short_locks_in_a_cluster_are_shared_too() {
    let cluster = Cluster::with(ClusterSetup::steady(3, 0));
    let client = sharing(&cluster.url());
    lock(&client, 3);
    eventually(PATIENCE, || client.shared_stats().unwrap().released == 3);
}

fn two_clients_share_one_hash() {
    let server = Server::start();
    let (one, two) = (
        sharing(&server.url()),
        sharing(&(server.url() + "?protocol=resp3")),
    );
    // Its own are not among them.
    let reader = client(&server.url());
    lock(&reader, 1);
    assert_eq!(reader.shared_stats().unwrap(), Totals::default());
    lock(&one, 3);
    lock(&two, 5);
    let expected = sum(&one.stats().totals, &two.stats().totals);
    assert_eq!(expected.released, 8);
    eventually(PATIENCE, || reader.shared_stats().unwrap() == expected);
    assert_eq!(two.shared_stats().unwrap(), expected);

    // Where nothing is counted nothing is written.
    let writes = server.calls(&["hincrby"]);
    lock(&one, 1);
    let expected = sum(&one.stats().totals, &two.stats().totals);
    eventually(PATIENCE, || one.shared_stats().unwrap() == expected);
    assert!(server.calls(&["hincrby"]) <= writes + 6);
    let key: Vec<String> = redis::cmd("KEYS")
        .arg("*stats*")
        .query(&mut server.connection())
        .unwrap();
    assert_eq!(key.iter().filter(|key| *key == "lock_stats").count(), 1);
}

fn what_redis_missed_is_added_later_and_once() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let (client, reader) = (sharing(&proxy.url()), client(&server.url()));
    lock(&client, 1);
    eventually(PATIENCE, || {
        reader.shared_stats().unwrap() == client.stats().totals
    });

    // The next addition runs and nobody hears of it. It is sent again before anything else is.
    let before = server.calls(&["hincrby"]);
    proxy.set_open(Traffic::DropReplies);
    lock(&client, 2);
    eventually(PATIENCE, || server.calls(&["hincrby"]) > before);
    lock(&client, 1);
    eventually(PATIENCE, || {
        reader.shared_stats().unwrap() == client.stats().totals
    });

    proxy.set_all(Traffic::Cut);
    assert!(client.mutex("a").try_lock().is_err());
    assert_eq!(client.stats().totals.failed, 1);
    proxy.set_all(Traffic::Pass);
    lock(&client, 2);
    eventually(PATIENCE, || {
        reader.shared_stats().unwrap() == client.stats().totals
    });
}

fn what_could_not_be_sent_is_added_when_it_can() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let (client, reader) = (sharing(&proxy.url()), client(&server.url()));
    lock(&client, 2);
    // Before its first addition, which then finds no connection.
    proxy.set_all(Traffic::Cut);
    // What was idle is known to be dead by then.
    assert!(client.mutex("a").try_lock().is_err());
    let_pass(ms(1_500));
    proxy.set_all(Traffic::Pass);
    eventually(PATIENCE, || {
        reader.shared_stats().unwrap() == client.stats().totals
    });
}

fn the_last_of_it_is_added_at_the_end() {
    let server = Server::start();
    let reader = client(&server.url());
    let client = sharing(&server.url());
    let guard = client.mutex("a").lock().unwrap();
    assert!(client.shutdown(PATIENCE).unwrap().is_clean());
    let told = reader.shared_stats().unwrap();
    assert_eq!((told.acquired_at_once, told.lost_shut_down), (1, 1));
    drop(guard);

    let dropped = sharing(&server.url());
    lock(&dropped, 4);
    drop(dropped);
    assert_eq!(reader.shared_stats().unwrap().released, 4);
}

fn the_hash_has_the_name_that_it_was_given() {
    let server = Server::start();
    let named = |key: &str| {
        builder(&server.url())
            .shared_stats(true)
            .shared_stats_key(key)
    };
    let client = named("booking:{stats}").build().unwrap();
    lock(&client, 1);
    eventually(PATIENCE, || {
        client.shared_stats().unwrap() == client.stats().totals
    });
    let released: u64 = redis::cmd("HGET")
        .arg(&["booking:{stats}", "released"])
        .query(&mut server.connection())
        .unwrap();
    assert_eq!(released, 1);
    for key in ["", "leasehold:fence:{lock:a}"] {
        assert!(matches!(named(key).build(), Err(Error::Config(_))), "{key}");
    }
}

fn a_key_that_is_no_hash_is_an_error_and_loses_nothing() {
    let server = Server::start();
    server.run("SET", &["lock_stats", "of somebody else"]);
    let client = sharing(&server.url());
    lock(&client, 2);
    let error = client.shared_stats().unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let before = server.calls(&["hincrby"]);
    eventually(PATIENCE, || server.calls(&["hincrby"]) > before);
    server.run("DEL", &["lock_stats"]);
    // A field that is no number keeps none of the others back.
    server.run("HSET", &["lock_stats", "attempts", "many"]);
    eventually(PATIENCE, || client.shared_stats().unwrap().released == 2);
    assert_eq!(client.shared_stats().unwrap().acquired_at_once, 2);
}
