//! Promise: every field of `stats()` counts what its documentation says, and the shared totals are
//! the sum over all clients.

use std::sync::Barrier;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use leasehold::{Backoff, Client, ClientBuilder, Error, Lost, Totals, WaitPolicy};
use support::fair::{QUEUE, spawn_in_queue};
use support::permits::PERMITS_QUEUE;
use support::{Proxy, Server, Traffic, eventually, let_pass, ms};

use crate::cluster;

support::tests![
    an_addition_without_a_reply_is_not_added_twice,
    a_key_of_another_type_is_an_error_until_it_is_deleted,
    two_clients_add_to_one_hash,
    unsent_additions_are_added_after_the_outage,
    calls_are_counted_by_outcome,
    calls_to_a_dead_server_count_as_failed,
    releases_of_any_client_count_as_wakes,
    permits_readers_and_writers_are_counted_as_locks,
    a_message_without_a_release_is_a_spurious_wake,
    attempts_of_a_call_that_nobody_wakes_count_as_no_wakes,
    wake_up_counts_once_although_its_refresh_is_repeated,
    attempt_near_the_deadline_counts_as_no_wake,
    reconnections_of_the_subscriber_count_as_wakes,
    losses_are_counted_by_reason,
    release_of_a_replaced_key_is_counted_as_too_late,
    held_locks_waiters_and_connections_are_counted,
    counts_of_many_threads_add_up,
    short_locks_in_a_cluster_are_added_to_the_shared_totals,
    shared_totals_are_the_first_call_of_a_client_of_a_cluster,
    the_last_counts_are_added_at_shutdown_and_drop
];

support::timed![
    renewals_and_their_lag_are_measured,
    wait_hold_and_command_times_are_measured
];

/// The limit for events that must happen: generous for a slow machine, short for a failing test.
const WAIT_LIMIT: Duration = ms(20_000);

fn builder(url: &str) -> ClientBuilder {
    Client::builder().url(url).ttl(ms(300_000))
}

fn client(url: &str) -> Client {
    builder(url).build().unwrap()
}

/// Returns zero totals, changed by `set`.
fn totals(set: impl FnOnce(&mut Totals)) -> Totals {
    let mut totals = Totals::default();
    set(&mut totals);
    totals
}

/// Returns the totals `before` after a call that waited, acquired and released. If it got a
/// provisional lease and has renewed that before the release, `now` says so. The caller checks the
/// wake-ups.
fn after_one_wait(before: Totals, now: Totals) -> Totals {
    let mut expected = before;
    expected.acquired_after_waiting += 1;
    expected.released += 1;
    expected.renewals_ok += (now.renewals_ok - before.renewals_ok).min(1);
    (expected.wakes, expected.spurious_wakes) = (now.wakes, now.spurious_wakes);
    expected
}

/// Returns how many wake-ups since `before` led to the lock, and how many were in vain.
fn wakes_since(before: Totals, now: Totals) -> (u64, u64) {
    let spurious = now.spurious_wakes - before.spurious_wakes;
    (now.wakes - before.wakes - spurious, spurious)
}

/// Asserts that a call which began to wait at `began` was woken once to the lock.
///
/// On a machine that stands still, the refresh 0.9 s later may find the grant before its message.
#[track_caller]
fn assert_woken_once(began: Instant, before: Totals, now: Totals) {
    let (useful, _) = wakes_since(before, now);
    assert!(
        useful == 1 || useful == 0 && began.elapsed() > ms(800),
        "{before}, then {now}"
    );
}

/// Waits for a lock for at most 30 s, and releases it.
fn lock_and_unlock(client: &Client, name: &str) {
    let guard = client.mutex(name).try_lock_for(ms(30_000)).unwrap();
    let guard = guard.expect("the lock is released");
    guard.unlock().unwrap();
}

/// Starts a call that waits for a lock of the same client, or behind another of its calls.
fn start_waiter<'scope>(
    scope: &'scope Scope<'scope, '_>,
    client: &'scope Client,
    name: &'scope str,
) -> ScopedJoinHandle<'scope, ()> {
    let before = client.stats().waiting;
    let call = scope.spawn(move || lock_and_unlock(client, name));
    eventually(WAIT_LIMIT, || client.stats().waiting == before + 1);
    call
}

/// Starts a call that waits for another client's lock. Returns the totals once it is in the queue
/// and receives messages.
fn start_queued_waiter<'scope>(
    scope: &'scope Scope<'scope, '_>,
    server: &Server,
    client: &'scope Client,
    name: &'scope str,
) -> (ScopedJoinHandle<'scope, ()>, Totals) {
    let queue = format!("leasehold:queue:{{lock:{name}}}");
    let call = spawn_in_queue(scope, server, &queue, || lock_and_unlock(client, name));
    server.wait_until_waiter_sleeps(format!("lock_release:{name}"));
    (call, client.stats().totals)
}

fn calls_are_counted_by_outcome() {
    let server = Server::start();
    let (client, other) = (client(&server.url()), client(&server.url()));
    assert_eq!(client.stats().totals, Totals::default());
    let _held = other.mutex("held").lock().unwrap();

    for _ in 0..3 {
        let guard = client.mutex("free").lock().unwrap();
        guard.unlock().unwrap();
    }
    drop(client.mutex("free").try_lock().unwrap().unwrap());
    client.mutex("free").with(|_| ()).unwrap();
    let mut expected = totals(|totals| {
        totals.attempts = 5;
        totals.acquired_at_once = 5;
        totals.released = 5;
    });
    assert_eq!(client.stats().totals, expected);

    assert!(client.mutex("held").try_lock().unwrap().is_err());
    let twice = Backoff::new(ms(1), ms(1)).attempts(2);
    let impatient = client.mutex("held").wait_policy(WaitPolicy::Backoff(twice));
    let error = impatient.lock().unwrap_err();
    assert!(matches!(error, Error::AttemptsUsedUp { .. }), "{error:?}");
    assert!(impatient.try_lock_for(WAIT_LIMIT).unwrap().is_err());
    expected.attempts += 5;
    expected.refused += 3;
    assert_eq!(client.stats().totals, expected);

    // This client holds the lock, so the refusal needs no request.
    let guard = client.mutex("free").lock().unwrap();
    assert!(client.mutex("free").try_lock().unwrap().is_err());
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
    assert_eq!(client.stats().totals.contention_rate(), 0.0);

    let asleep = client
        .mutex("held")
        .wait_policy(WaitPolicy::Backoff(Backoff::new(ms(50_000), ms(50_000))));
    assert!(asleep.try_lock_for(ms(300)).unwrap().is_err());
    expected.attempts += 1;
    expected.timed_out += 1;
    assert_eq!(client.stats().totals, expected);
    assert_eq!(client.stats().wait.count, 6);
}

fn calls_to_a_dead_server_count_as_failed() {
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
    // The lease was held until then; its release is repeated in the background.
    assert_eq!((now.released, now.released_too_late, now.lost()), (2, 0, 0));
}

fn releases_of_any_client_count_as_wakes() {
    let server = Server::start();
    let (client, other) = (client(&server.url()), client(&server.url()));
    let guard = other.mutex("a").lock().unwrap();
    let began = Instant::now();
    let before = thread::scope(|scope| {
        let (call, before) = start_queued_waiter(scope, &server, &client, "a");
        guard.unlock().unwrap();
        call.join().unwrap();
        before
    });
    let now = client.stats().totals;
    let mut expected = after_one_wait(before, now);
    assert_eq!(now, expected);
    assert_woken_once(began, before, now);
    assert_eq!(client.stats().totals.contention_rate(), 1.0);

    let guard = client.mutex("a").lock().unwrap();
    expected.attempts += 1;
    expected.acquired_at_once += 1;
    thread::scope(|scope| {
        let call = start_waiter(scope, &client, "a");
        let second = start_waiter(scope, &client, "a");
        guard.unlock().unwrap();
        call.join().unwrap();
        second.join().unwrap();
    });
    let now = client.stats().totals;
    expected.attempts += 1;
    expected.acquired_after_waiting += 2;
    expected.released += 3;
    // The first by the release, the second by the hand-off.
    expected.wakes += 2;
    assert_eq!(now, expected);
    assert_eq!(now.contention_rate(), 0.75);
}

/// Releases what a call has acquired, which must still be held.
type Release = Box<dyn FnOnce()>;

fn permits(client: &Client) -> Release {
    let semaphore = client.semaphore("a", 3).many(3);
    let permits = semaphore.try_acquire_for(ms(30_000)).unwrap();
    let permits = permits.expect("the permits are released");
    Box::new(|| permits.release().unwrap())
}

fn reader(client: &Client) -> Release {
    let guard = client.rw_lock("a").try_read_for(ms(30_000)).unwrap();
    let guard = guard.expect("the lock is released");
    Box::new(|| guard.unlock().unwrap())
}

fn writer(client: &Client) -> Release {
    let guard = client.rw_lock("a").try_write_for(ms(30_000)).unwrap();
    let guard = guard.expect("the lock is released");
    Box::new(|| guard.unlock().unwrap())
}

fn permits_readers_and_writers_are_counted_as_locks() {
    type Acquire = fn(&Client) -> Release;
    let kinds: [(_, _, Acquire, Acquire); 3] = [
        (PERMITS_QUEUE, "leasehold:grants", permits, permits),
        (QUEUE, "lock_release:a", writer, reader),
        (QUEUE, "lock_release:a", writer, writer),
    ];
    for (queue, channel, acquire_before, acquire) in kinds {
        let server = Server::start();
        let (client, other) = (client(&server.url()), client(&server.url()));
        let release = acquire(&client);
        assert_eq!(client.stats().held, 1, "several permits count as one lock");
        release();
        let stats = client.stats();
        let at_once = totals(|totals| {
            totals.attempts = 1;
            totals.acquired_at_once = 1;
            totals.released = 1;
        });
        assert_eq!((stats.totals, stats.held), (at_once, 0));
        assert_eq!((stats.wait.count, stats.hold.count), (1, 1));

        let release = acquire_before(&other);
        let began = Instant::now();
        let before = thread::scope(|scope| {
            let call = spawn_in_queue(scope, &server, queue, || acquire(&client)());
            server.wait_until_waiter_sleeps(channel);
            let before = client.stats();
            release();
            call.join().unwrap();
            before
        });
        assert!(before.totals.attempts > at_once.attempts);
        let stats = client.stats();
        assert_eq!(stats.totals, after_one_wait(before.totals, stats.totals));
        assert_woken_once(began, before.totals, stats.totals);
        assert_eq!((stats.wait.count, stats.hold.count), (2, 2));
    }
}

fn a_message_without_a_release_is_a_spurious_wake() {
    let server = Server::start();
    let (client, other) = (client(&server.url()), client(&server.url()));
    let guard = other.mutex("a").lock().unwrap();
    let began = Instant::now();
    let before = thread::scope(|scope| {
        let (call, before) = start_queued_waiter(scope, &server, &client, "a");
        server.run("PUBLISH", &["lock_release:a", "anything"]);
        eventually(WAIT_LIMIT, || {
            client.stats().totals.spurious_wakes > before.spurious_wakes
        });
        drop(guard);
        call.join().unwrap();
        before
    });
    let now = client.stats().totals;
    assert_eq!(now, after_one_wait(before, now));
    assert_woken_once(began, before, now);
    assert!(wakes_since(before, now).1 >= 1);
}

fn attempts_of_a_call_that_nobody_wakes_count_as_no_wakes() {
    let server = Server::start();
    let client = client(&server.url());
    server.run("SET", &["lock:a", "foreign", "PX", "300"]);
    let pauses = WaitPolicy::Backoff(Backoff::new(ms(10), ms(10)));
    drop(client.mutex("a").wait_policy(pauses).lock().unwrap());
    let totals = client.stats().totals;
    assert_eq!((totals.acquired_after_waiting, totals.wakes), (1, 0));
}

fn attempt_near_the_deadline_counts_as_no_wake() {
    let server = Server::start();
    let _guard = server.client().mutex("a").lock().unwrap();
    let client = server.client();
    let pauses = Backoff::new(WAIT_LIMIT * 10, WAIT_LIMIT * 10);
    let mutex = client.mutex("a").wait_policy(WaitPolicy::Backoff(pauses));
    assert!(mutex.try_lock_for(ms(1_000)).unwrap().is_err());
    assert_eq!(client.stats().totals.wakes, 0);
}

fn wake_up_counts_once_although_its_refresh_is_repeated() {
    let server = Server::start();
    let client = client(&server.url());
    server.run("SET", &["lock:a", "foreign"]);
    thread::scope(|scope| {
        let (call, before) = start_queued_waiter(scope, &server, &client, "a");
        let calls = server.script_calls();
        // Scripts fail from the message on. A refresh that fails before could cost the
        // subscription.
        redis::pipe()
            .atomic()
            .cmd("CONFIG")
            .arg(&["SET", "min-replicas-to-write", "1"])
            .cmd("PUBLISH")
            .arg(&["lock_release:a", "message"])
            .exec(&mut server.connection())
            .unwrap();
        eventually(WAIT_LIMIT, || server.script_calls() >= calls + 4);
        server.run("CONFIG", &["SET", "min-replicas-to-write", "0"]);
        server.run("DEL", &["lock:a"]);
        call.join().unwrap();
        let (useful, spurious) = wakes_since(before, client.stats().totals);
        assert_eq!(useful + spurious, 1);
    });
}

fn reconnections_of_the_subscriber_count_as_wakes() {
    let server = Server::start();
    let client = client(&server.url());
    server.run("SET", &["lock:a", "foreign"]);
    let before = thread::scope(|scope| {
        let (call, before) = start_queued_waiter(scope, &server, &client, "a");
        for times in 1..=2 {
            server.run("CLIENT", &["KILL", "TYPE", "pubsub"]);
            eventually(WAIT_LIMIT, || {
                client.stats().totals.spurious_wakes >= before.spurious_wakes + times
            });
        }
        server.run("DEL", &["lock:a"]);
        server.run("PUBLISH", &["lock_release:a", "foreign"]);
        call.join().unwrap();
        before
    });
    let now = client.stats().totals;
    assert_eq!(now, after_one_wait(before, now));
    assert!(wakes_since(before, now).1 >= 2);
}

fn losses_are_counted_by_reason() {
    let server = Server::start();
    let client = client(&server.url());
    let mutex = |name: &str| client.mutex(name).auto_renew(false);
    let late = |guard: leasehold::MutexGuard, lost| {
        assert_eq!(guard.unlock().unwrap_err().lost(), Some(lost));
    };

    let guard = mutex("expired").ttl(ms(1_000)).lock().unwrap();
    assert_eq!(guard.lost().recv_timeout(WAIT_LIMIT), Ok(Lost::Expired));
    late(guard, Lost::Expired);

    let guard = mutex("taken").lock().unwrap();
    server.run("SET", &["lock:taken", "another"]);
    assert!(guard.renew().is_err());
    assert_eq!(client.stats().totals.lost_taken, 1);
    late(guard, Lost::Taken);

    let guard = mutex("deleted").lock().unwrap();
    server.run("DEL", &["lock:deleted"]);
    late(guard, Lost::Deleted);

    let guard = mutex("max_hold").max_hold(ms(1_000)).lock().unwrap();
    assert_eq!(guard.lost().recv_timeout(WAIT_LIMIT), Ok(Lost::MaxHold));
    eventually(WAIT_LIMIT, || client.stats().totals.lost_max_hold == 1);
    assert_eq!(client.stats().totals.released_too_late, 3);
    late(guard, Lost::MaxHold);

    let guard = mutex("shut_down").lock().unwrap();
    client.shutdown(WAIT_LIMIT);
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

fn renewals_and_their_lag_are_measured() {
    let server = Server::start();
    let client = builder(&server.url())
        .command_timeout(ms(250))
        .build()
        .unwrap();
    assert_eq!(client.stats().renewal_lag, None);
    let guard = client.mutex("by hand").auto_renew(false).lock().unwrap();
    guard.renew().unwrap();
    guard.set_ttl(ms(10_000)).unwrap();
    let now = client.stats();
    assert_eq!((now.totals.renewals_ok, now.totals.renewals_failed), (2, 0));
    assert_eq!(now.renewal_lag, Some(Duration::ZERO));
    drop(guard);

    let guard = client.mutex("a").renew_every(ms(1_000)).lock().unwrap();
    server.pause();
    eventually(WAIT_LIMIT, || client.stats().totals.renewals_failed > 0);
    assert_eq!(client.stats().renewal_lag, Some(Duration::ZERO));
    server.resume();
    eventually(WAIT_LIMIT, || client.stats().totals.renewals_ok > 2);
    // The renewal was due before its first attempt, which took the whole timeout.
    let lag = client.stats().renewal_lag.unwrap();
    assert!(lag > ms(240), "{lag:?}");
    assert!(guard.is_held());
}

/// Another program has replaced the key, so the lock was lost, and its release fails.
fn release_of_a_replaced_key_is_counted_as_too_late() {
    let server = Server::start();
    let client = client(&server.url());
    let guard = client.mutex("a").lock().unwrap();
    server.run("DEL", &["lock:a"]);
    server.run("RPUSH", &["lock:a", "x"]);
    assert!(matches!(guard.unlock(), Err(Error::WrongType { .. })));
    let totals = client.stats().totals;
    assert_eq!((totals.released, totals.released_too_late), (0, 1));
}

fn held_locks_waiters_and_connections_are_counted() {
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
        let (call, _) = start_queued_waiter(scope, &server, &client, "d");
        // The second waiter of `a` waits behind the first.
        let behind = ["a", "a"].map(|name| start_waiter(scope, &client, name));
        let now = client.stats();
        assert_eq!((now.held, now.waiting), (3, 3));
        let theirs = other.stats().connections;
        eventually(WAIT_LIMIT, || {
            let ours = client.stats().connections;
            // Busy and idle connections, and the subscriber's.
            ours >= 2 && ours + theirs == server.client_list().len() as u64
        });
        drop(guards);
        drop(foreign);
        call.join().unwrap();
        behind.into_iter().for_each(|call| call.join().unwrap());
    });
    let now = client.stats();
    assert_eq!((now.held, now.waiting), (0, 0));
    assert!(client.shutdown(WAIT_LIMIT).is_clean());
    eventually(WAIT_LIMIT, || client.stats().connections == 0);
}

fn wait_hold_and_command_times_are_measured() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    let first = Instant::now();
    drop(client.mutex("a").lock().unwrap());
    let first = first.elapsed();
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
    assert!(now.wait.max >= ms(60) && now.wait.max <= first.max(had - asked));
    assert!(now.hold.max >= held && now.hold.max <= over);
    assert!(now.command.max >= ms(60) && now.command.max <= over);
    assert!(now.hold.p50 < held && now.hold.p99 == now.hold.max);
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
                    mutex.lock().unwrap().unlock().unwrap();
                }
            });
        }
    });
    let now = client.stats();
    assert_eq!(now.totals.acquired(), THREADS * TIMES);
    assert_eq!(now.totals.released, THREADS * TIMES);
    assert_eq!(now.wait.count, THREADS * TIMES);
    assert_eq!(now.hold.count, THREADS * TIMES);
    assert!(now.totals.acquired_after_waiting > 0);
    assert_eq!((now.held, now.waiting), (0, 0));
    assert_eq!((now.totals.lost(), now.totals.failed), (0, 0));
}

fn client_with_shared_stats(url: &str) -> Client {
    builder(url)
        .command_timeout(ms(250))
        .shared_stats(true)
        .build()
        .unwrap()
}

/// Locks and unlocks `a` a number of times.
fn lock_times(client: &Client, times: usize) {
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

/// In a cluster, locks that are released at once need no thread, but their counts must be sent.
fn short_locks_in_a_cluster_are_added_to_the_shared_totals() {
    let client = client_with_shared_stats(&cluster::shared().url());
    lock_times(&client, 3);
    eventually(WAIT_LIMIT, || {
        client.shared_stats().is_ok_and(|stats| stats.released == 3)
    });
}

/// The client knows no owner of a slot yet.
fn shared_totals_are_the_first_call_of_a_client_of_a_cluster() {
    let client = Client::open(cluster::shared().url()).unwrap();
    client.shared_stats().unwrap();
}

fn two_clients_add_to_one_hash() {
    let server = Server::start();
    let (one, two) = (
        client_with_shared_stats(&server.url()),
        client_with_shared_stats(&(server.url() + "?protocol=resp3")),
    );
    // The reader does not share its own counts.
    let reader = client(&server.url());
    lock_times(&reader, 1);
    assert_eq!(reader.shared_stats().unwrap(), Totals::default());
    lock_times(&one, 3);
    lock_times(&two, 5);
    let expected = sum(&one.stats().totals, &two.stats().totals);
    assert_eq!(expected.released, 8);
    eventually(WAIT_LIMIT, || {
        reader.shared_stats().is_ok_and(|stats| stats == expected)
    });
    assert_eq!(two.shared_stats().unwrap(), expected);

    // Counters that did not change are not written.
    let writes = server.calls(&["hincrby"]);
    lock_times(&one, 1);
    let expected = sum(&one.stats().totals, &two.stats().totals);
    eventually(WAIT_LIMIT, || {
        one.shared_stats().is_ok_and(|stats| stats == expected)
    });
    assert!(server.calls(&["hincrby"]) <= writes + 6);
    let key: Vec<String> = redis::cmd("KEYS")
        .arg("*stats*")
        .query(&mut server.connection())
        .unwrap();
    assert_eq!(key.iter().filter(|key| *key == "lock_stats").count(), 1);
}

/// The hash may miss such an addition, but this one runs.
fn an_addition_without_a_reply_is_not_added_twice() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let (client, reader) = (
        client_with_shared_stats(&proxy.url()),
        client(&server.url()),
    );
    let all_are_added = || {
        reader
            .shared_stats()
            .is_ok_and(|stats| stats == client.stats().totals)
    };
    lock_times(&client, 1);
    eventually(WAIT_LIMIT, all_are_added);

    let before = server.calls(&["hincrby"]);
    proxy.set_open(Traffic::DropReplies);
    lock_times(&client, 2);
    eventually(WAIT_LIMIT, || server.calls(&["hincrby"]) > before);
    lock_times(&client, 1);
    eventually(WAIT_LIMIT, all_are_added);
}

fn unsent_additions_are_added_after_the_outage() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let (client, reader) = (
        client_with_shared_stats(&proxy.url()),
        client(&server.url()),
    );
    lock_times(&client, 2);
    // Cut before the first addition, which then finds no connection.
    proxy.set_all(Traffic::Cut);
    // This call finds the idle connections dead.
    assert!(client.ping().is_err());
    let connections = proxy.connections();
    // The addition, two seconds after the client's start, tries to connect.
    eventually(WAIT_LIMIT, || proxy.connections() > connections);
    proxy.set_all(Traffic::Pass);
    eventually(WAIT_LIMIT, || {
        reader
            .shared_stats()
            .is_ok_and(|stats| stats == client.stats().totals)
    });
}

fn the_last_counts_are_added_at_shutdown_and_drop() {
    let server = Server::start();
    let reader = client(&server.url());
    let client = client_with_shared_stats(&server.url());
    let guard = client.mutex("a").lock().unwrap();
    assert!(client.shutdown(WAIT_LIMIT).is_clean());
    let shared = reader.shared_stats().unwrap();
    assert_eq!((shared.acquired_at_once, shared.lost_shut_down), (1, 1));
    drop(guard);

    let dropped = client_with_shared_stats(&server.url());
    lock_times(&dropped, 4);
    drop(dropped);
    assert_eq!(reader.shared_stats().unwrap().released, 4);
}

fn a_key_of_another_type_is_an_error_until_it_is_deleted() {
    let server = Server::start();
    server.run("SET", &["lock_stats", "of another program"]);
    let client = client_with_shared_stats(&server.url());
    lock_times(&client, 2);
    let error = client.shared_stats().unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let before = server.calls(&["hincrby"]);
    eventually(WAIT_LIMIT, || server.calls(&["hincrby"]) > before);
    server.run("DEL", &["lock_stats"]);
    // The refused counts are not sent again.
    lock_times(&client, 2);
    // A field that is not a number does not block the other fields.
    server.run("HSET", &["lock_stats", "attempts", "many"]);
    eventually(WAIT_LIMIT, || {
        client.shared_stats().is_ok_and(|stats| stats.released == 2)
    });
    assert_eq!(client.shared_stats().unwrap().acquired_at_once, 2);
}
