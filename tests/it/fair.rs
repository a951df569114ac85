//! Promise: a fair lock goes to the call that has waited longest, in whichever process, and has one
//! holder at a time.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{TryRecvError, bounded};
use leasehold::{Backoff, Client, Error, Lost, WaitPolicy};
use support::fair::{
    PATIENCE, PLACES, QUEUE, fair_mutex, holder, lock_in_turn, queue_length,
    spawn_subscribed_waiter, spawn_waiter, subscription_connection, wait_for_queue_length,
    wait_for_refresh, wait_until_only_fences_remain, warmed_up,
};
use support::{
    Child, Cluster, ClusterSetup, Control, Counters, Proxy, Replicas, SLACK, Sentinels, Server,
    Setup, Traffic, assert_gives_up, assert_message_wakes, assert_released, counter_with,
    eventually, ms, parameter, tell_parent,
};

support::roles![waiter, fair_counter, mixed_counter];

support::tests![
    fair_release_wakes_a_plain_waiter,
    waiter_that_gives_up_leaves_the_queue,
    fair_lock_is_granted_in_a_cluster,
    basic_calls_work_on_a_fair_lock,
    lock_is_granted_in_order_across_processes_and_threads,
    free_lock_takes_one_command_and_its_release_another,
    grant_needs_no_command_of_the_waiter,
    first_renewal_after_a_grant_is_sent_even_without_auto_renew,
    first_renewal_after_a_grant_is_sent_however_long_the_wait_was,
    lease_without_auto_renew_is_renewed_once_after_a_grant,
    grant_publishes_no_release,
    plain_and_fair_locks_exclude_each_other,
    plain_release_wakes_the_first_in_the_queue,
    free_lock_is_reserved_for_the_first_in_the_queue,
    place_of_a_dead_client_refuses_try_lock_but_does_not_delay_lock,
    waiter_that_gives_up_at_its_turn_passes_the_grant_on,
    shutdown_removes_waiters_from_the_queue,
    processes_and_threads_count_exactly,
    plain_and_fair_locks_count_exactly_together,
    one_command_refreshes_all_places_of_a_client,
    statistics_count_fair_locks,
    backoff_waits_without_a_subscription,
    waiters_without_pubsub_permissions_get_the_lock_by_refreshing,
    granted_lease_is_replicated_before_lock_returns,
    fair_lock_over_a_quorum_is_an_error,
    broken_fence_fails_acquires_but_not_releases,
    broken_queue_fails_acquires_but_not_releases,
    fair_lock_with_any_name_of_up_to_64_kib_is_granted,
    foreign_message_grants_nothing,
    fair_lock_is_granted_with_sentinel,
    fair_lease_is_not_handed_off_to_a_plain_waiter_of_its_client
];

const FENCE: &str = "leasehold:fence:{lock:a}";

/// How soon a waiter that is woken must have the lock: well before its next refresh, which is sent
/// 0.9 s after its last command.
const PROMPTLY: Duration = ms(500);

fn fair_counter() {
    counter_with(|client| Box::new(client.fair_mutex("a")));
}

fn mixed_counter() {
    counter_with(|client| match std::process::id() % 2 {
        0 => Box::new(client.fair_mutex("a")),
        _ => Box::new(client.mutex("a")),
    });
}

fn basic_calls_work_on_a_fair_lock() {
    let server = Server::start();
    let (one, two) = (fair_mutex(&server), fair_mutex(&server));
    let guard = one.lock().unwrap();
    assert!(two.try_lock().unwrap().is_err());
    assert_gives_up(|limit| two.try_lock_for(limit));
    // The call that gave up leaves the queue in the background.
    wait_for_queue_length(&server, 0);
    assert_eq!(holder(&server).unwrap(), guard.holder_id().as_str());
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, two.clone());
        assert_eq!(two.waiting().unwrap(), 1);
        let token = guard.fencing_token();
        assert_released(guard.unlock());
        let guard = waiting.join().unwrap();
        assert!(guard.is_held() && guard.fencing_token() > token);
        assert_eq!(
            one.last_fencing_token().unwrap(),
            Some(guard.fencing_token())
        );
        assert_eq!(holder(&server).unwrap(), guard.holder_id().as_str());
        assert_released(guard.unlock());
    });
    wait_until_only_fences_remain(&server);
}

/// A child's role: waits for the lock, appends its number to `order`, and tells its parent the
/// token.
fn waiter() {
    let guard = lock_in_turn(&Client::open(parameter("URL")).unwrap().fair_mutex("a"));
    redis::cmd("RPUSH")
        .arg("order")
        .arg(parameter("NUMBER"))
        .exec(
            &mut redis::Client::open(parameter("URL"))
                .unwrap()
                .get_connection()
                .unwrap(),
        )
        .unwrap();
    tell_parent(&guard.fencing_token().to_string());
    assert_released(guard.unlock());
}

fn lock_is_granted_in_order_across_processes_and_threads() {
    let server = Server::start();
    let (holder, other) = (fair_mutex(&server), fair_mutex(&server));
    let guard = holder.lock().unwrap();
    let mut tokens = vec![guard.fencing_token().value()];
    let mut children = Vec::new();
    thread::scope(|scope| {
        let mut waiting = Vec::new();
        for n in 0..8_usize {
            let number = n.to_string();
            if n % 2 == 0 {
                children.push(Child::spawn(
                    "fair::waiter",
                    &[("URL", &server.url()), ("NUMBER", &number)],
                ));
            } else {
                let (mutex, mut order) = (other.clone(), server.connection());
                waiting.push(scope.spawn(move || {
                    let guard = lock_in_turn(&mutex);
                    redis::cmd("RPUSH")
                        .arg("order")
                        .arg(number)
                        .exec(&mut order)
                        .unwrap();
                    guard.fencing_token().value()
                }));
            }
            wait_for_queue_length(&server, n + 1);
        }
        assert_released(guard.unlock());
        for (child, waiting) in children.iter().zip(waiting) {
            tokens.push(child.next_line().parse().unwrap());
            tokens.push(waiting.join().unwrap());
        }
    });
    let mut order = redis::cmd("LRANGE");
    let order: Vec<usize> = order
        .arg(&["order", "0", "-1"])
        .query(&mut server.connection())
        .unwrap();
    assert!(order.into_iter().eq(0..8));
    assert!(
        tokens.is_sorted_by(|earlier, later| earlier < later),
        "{tokens:?}"
    );
    children
        .into_iter()
        .for_each(|child| drop(child.wait().succeeded()));
    server.run("DEL", &["order"]);
    wait_until_only_fences_remain(&server);
}

fn free_lock_takes_one_command_and_its_release_another() {
    let server = Server::start();
    let mutex = warmed_up(server.client()).fair_mutex("a");
    let before = server.script_calls();
    let guard = mutex.lock().unwrap();
    assert_eq!(server.script_calls(), before + 1);
    let publishes = server.calls(&["publish"]);
    assert_released(guard.unlock());
    assert_eq!(server.script_calls(), before + 2);
    assert_eq!(
        server.calls(&["publish"]),
        publishes + 1,
        "programs outside the queue may be subscribed"
    );
    assert_eq!(server.calls(&["subscribe"]), 0);
}

/// Asserts that a waiter gets the lock although no command of its client reaches the server, and
/// that its first renewal is sent afterwards.
fn assert_granted_without_a_command(auto_renew: bool) {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = fair_mutex(&server).lock().unwrap();
    let waiter = Client::open(proxy.url())
        .unwrap()
        .fair_mutex("a")
        .auto_renew(auto_renew);
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, waiter);
        proxy.set_all(Traffic::StallRequests);
        assert_released(guard.unlock());
        let guard = waiting.join().unwrap();
        let left = server.pttl("lock:a");
        assert!((1..=3_000).contains(&left), "{left}");
        let remaining = guard.remaining().unwrap();
        assert!(remaining <= ms(3_000), "{remaining:?}");
        proxy.set_all(Traffic::Pass);
        eventually(ms(5_000), || {
            server.pttl("lock:a") > 3_000 && guard.remaining().unwrap() > ms(8_000)
        });
        assert!(guard.is_held());
        assert_released(guard.unlock());
    });
}

fn grant_needs_no_command_of_the_waiter() {
    assert_granted_without_a_command(true);
}

fn first_renewal_after_a_grant_is_sent_even_without_auto_renew() {
    assert_granted_without_a_command(false);
}

fn first_renewal_after_a_grant_is_sent_however_long_the_wait_was() {
    let server = Server::start();
    let guard = fair_mutex(&server).lock().unwrap();
    let client = server.client();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, client.fair_mutex("a"));
        // Since then, no thread of the waiter's client has had anything to do for most of a second.
        wait_for_refresh(&client);
        wait_for_refresh(&client);
        assert_released(guard.unlock());
        let guard = waiting.join().unwrap();
        eventually(PATIENCE, || server.pttl("lock:a") > 3_000);
        assert_released(guard.unlock());
    });
}

fn lease_without_auto_renew_is_renewed_once_after_a_grant() {
    let server = Server::start();
    let guard = fair_mutex(&server).lock().unwrap();
    let waiter = fair_mutex(&server).ttl(ms(400)).auto_renew(false);
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, waiter);
        assert_released(guard.unlock());
        let guard = waiting.join().unwrap();
        let lost = guard.lost().recv_timeout(PATIENCE);
        assert_eq!(lost, Ok(Lost::Expired));
        eventually(ms(5_000), || server.get("lock:a").is_none());
    });
}

/// A release that grants the lock publishes nothing on the release channel.
fn grant_publishes_no_release() {
    let server = Server::start();
    let (holder, plain) = (fair_mutex(&server), server.client().mutex("a"));
    let guard = holder.lock().unwrap();
    let mut listener = server.connection();
    let mut channel = listener.as_pubsub();
    channel.subscribe("lock_release:a").unwrap();
    channel.set_read_timeout(Some(PATIENCE)).unwrap();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, fair_mutex(&server));
        assert_released(guard.unlock());
        let guard = waiting.join().unwrap();
        assert!(plain.try_lock().unwrap().is_err());
        let id = guard.holder_id().to_string();
        assert_released(guard.unlock());
        let first: String = channel.get_message().unwrap().get_payload().unwrap();
        assert_eq!(first, id, "only the last release publishes a message");
    });
}

fn plain_and_fair_locks_exclude_each_other() {
    let server = Server::start();
    let (fair, plain) = (fair_mutex(&server), server.client().mutex("a"));
    let guard = plain.lock().unwrap();
    assert!(fair.try_lock().unwrap().is_err());
    let mut last = guard.fencing_token();
    assert_released(guard.unlock());
    for _ in 0..3 {
        let guard = fair.lock().unwrap();
        assert!(plain.try_lock().unwrap().is_err() && guard.fencing_token() > last);
        last = guard.fencing_token();
        assert_released(guard.unlock());
        let guard = plain.lock().unwrap();
        assert!(fair.try_lock().unwrap().is_err() && guard.fencing_token() > last);
        last = guard.fencing_token();
        assert_released(guard.unlock());
    }
    wait_until_only_fences_remain(&server);
}

fn plain_release_wakes_the_first_in_the_queue() {
    let server = Server::start();
    let guard = server.client().mutex("a").lock().unwrap();
    let waiter = server.client();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, waiter.fair_mutex("a"));
        wait_for_refresh(&waiter);
        let guard = assert_message_wakes(&waiter, || {
            assert_released(guard.unlock());
            waiting.join().unwrap()
        });
        assert_released(guard.unlock());
    });
}

/// The plain waiter has a place in the queue, and the release grants the lock to that place.
fn fair_release_wakes_a_plain_waiter() {
    let server = Server::start();
    let guard = fair_mutex(&server).ttl(ms(300_000)).lock().unwrap();
    let plain = Client::builder().url(server.url()).build().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| plain.mutex("a").try_lock_for(PATIENCE).unwrap());
        server.wait_until_waiter_sleeps("lock_release:a");
        let timed = Control::run(ms(0), || {
            assert_released(guard.unlock());
            waiting.join().unwrap()
        });
        assert_released(
            timed
                .no_later_than(PROMPTLY)
                .expect("the lock is free")
                .unlock(),
        );
    });
}

fn free_lock_is_reserved_for_the_first_in_the_queue() {
    let server = Server::start();
    let (one, two) = (
        warmed_up(server.client()).fair_mutex("a"),
        warmed_up(server.client()).fair_mutex("a"),
    );
    for waiting in [false, true] {
        let _guard = fair_mutex(&server).lock().unwrap();
        thread::scope(|scope| {
            let first = spawn_subscribed_waiter(scope, &server, one.clone());
            server.run("DEL", &["lock:a"]);
            // The lock goes to the first in the queue, whether or not another call waits too.
            let second = waiting.then(|| scope.spawn(|| lock_in_turn(&two)));
            if !waiting {
                assert!(two.try_lock().unwrap().is_err());
            }
            let first = first.join().unwrap();
            let token = first.fencing_token();
            assert_released(first.unlock());
            if let Some(second) = second {
                let guard = second.join().unwrap();
                assert!(guard.fencing_token() > token);
                assert_released(guard.unlock());
            }
        });
    }
    wait_until_only_fences_remain(&server);
}

/// Nobody listens to the inbox of the place, as after the death of its process. The place lasts
/// longer than the test.
fn place_of_a_dead_client_refuses_try_lock_but_does_not_delay_lock() {
    let server = Server::start();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = now.as_millis();
    let place = format!("{now} 3600000 1 {now} l leasehold:nobody");
    server.run("RPUSH", &[QUEUE, "dead"]);
    server.run("HSET", &[PLACES, "dead", &place]);
    assert!(fair_mutex(&server).try_lock().unwrap().is_err());
    assert_eq!(holder(&server), None);
    assert_released(lock_in_turn(&fair_mutex(&server)).unlock());
    assert_eq!(queue_length(&server), 1, "the dead place is still there");
}

fn waiter_that_gives_up_leaves_the_queue() {
    let server = Server::start();
    let guard = fair_mutex(&server).lock().unwrap();
    let mutex = server.client().fair_mutex("a");
    let limit = ms(1_000);
    let answer = Control::run(limit, || mutex.try_lock_for(limit));
    assert!(answer.no_later_than(SLACK).unwrap().is_err());
    eventually(PATIENCE, || queue_length(&server) == 0);
    assert!(!server.keys().contains(&PLACES.into()));
    assert_released(guard.unlock());
    wait_until_only_fences_remain(&server);
}

/// Returns when each place in the queue was last refreshed, in ms of the server's clock.
fn refreshes_ms(server: &Server) -> Vec<u64> {
    let places: Vec<String> = redis::cmd("HVALS")
        .arg(PLACES)
        .query(&mut server.connection())
        .unwrap();
    let refreshed = places.iter().map(|place| place.split_once(' ').unwrap().0);
    refreshed.map(|at| at.parse().unwrap()).collect()
}

/// The grant message stalls, so Redis has already granted the lock to the call when it gives up.
fn waiter_that_gives_up_at_its_turn_passes_the_grant_on() {
    // A round in which the waiter gave up before its turn proves nothing.
    assert!((0..5).any(|_| waiter_gives_up_at_its_turn()));
}

/// Returns whether the waiter had its turn before its deadline.
fn waiter_gives_up_at_its_turn() -> bool {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = fair_mutex(&server).lock().unwrap();
    let gives_up = Client::open(proxy.url()).unwrap().fair_mutex("a");
    let next = warmed_up(server.client()).fair_mutex("a");
    let limit = ms(1_700);
    let began = Instant::now();
    thread::scope(|scope| {
        let first = scope.spawn(|| gives_up.try_lock_for(limit).unwrap());
        wait_for_queue_length(&server, 1);
        // Waits for the next refresh: refreshes are 900 ms apart, so no other one comes before the
        // deadline.
        let entered = refreshes_ms(&server).pop();
        eventually(PATIENCE, || {
            first.is_finished()
                || refreshes_ms(&server).pop() >= entered.map(|entered| entered + 850)
        });
        proxy.set_nth(subscription_connection(&proxy), Traffic::StallReplies);
        let second = scope.spawn(|| lock_in_turn(&next));
        eventually(PATIENCE, || {
            first.is_finished() || queue_length(&server) == 2
        });
        let previous = guard.holder_id().to_string();
        assert_released(guard.unlock());
        let (granted, places) = (holder(&server), queue_length(&server));
        let is_in_time = began.elapsed() < limit;
        let has_given_up = first.join().unwrap().is_err();
        let second = second.join().unwrap();
        if is_in_time {
            assert!(granted.is_some() && granted.as_deref() != Some(&*previous));
            assert_eq!(places, 1, "the first waiter has the lock");
            assert!(has_given_up);
            assert_ne!(Some(second.holder_id().as_str()), granted.as_deref());
        }
        assert_released(second.unlock());
        wait_until_only_fences_remain(&server);
        is_in_time
    })
}

fn shutdown_removes_waiters_from_the_queue() {
    let server = Server::start();
    let guard = fair_mutex(&server).lock().unwrap();
    // The shutdown removes the places within the command timeout. This timeout is long, because
    // only their expiry would remove them afterwards.
    let client = Client::builder().url(server.url());
    let client = client.command_timeout(PATIENCE).build().unwrap();
    let mutex = client.fair_mutex("a");
    thread::scope(|scope| {
        // While this waiter refreshes its place, the queue does not expire with the other places.
        let other_waiter = spawn_subscribed_waiter(scope, &server, fair_mutex(&server));
        let waiting: Vec<_> = (0..3).map(|_| scope.spawn(|| mutex.lock())).collect();
        wait_for_queue_length(&server, 4);
        eventually(PATIENCE, || server.subscribers("lock_release:a") == 2);
        server.wait_until_waiter_sleeps("lock_release:a");
        let report = client.shutdown(ms(0));
        assert_eq!(report.woken, 3);
        wait_for_queue_length(&server, 1);
        for waiting in waiting {
            assert!(matches!(waiting.join().unwrap(), Err(Error::Closed)));
        }
        assert_released(guard.unlock());
        assert_released(other_waiter.join().unwrap().unlock());
    });
    wait_until_only_fences_remain(&server);
}

fn processes_and_threads_count_exactly() {
    let server = Server::start();
    COUNTERS.count_exactly_as("fair::fair_counter", &[server.url()], &server);
}

fn plain_and_fair_locks_count_exactly_together() {
    let server = Server::start();
    let rounds = COUNTERS.rounds / 2;
    Counters { rounds, ..COUNTERS }.count_exactly_as(
        "fair::mixed_counter",
        &[server.url()],
        &server,
    );
}

const COUNTERS: Counters = Counters {
    processes: 8,
    threads: 4,
    rounds: 60,
};

/// A client refreshes the places of all its threads every 0.9 s, in one command.
fn one_command_refreshes_all_places_of_a_client() {
    let server = Server::start();
    let guard = fair_mutex(&server).lock().unwrap();
    let client = server.client();
    let mutex = client.fair_mutex("a");
    thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| assert_released(lock_in_turn(&mutex).unlock()));
        }
        wait_for_queue_length(&server, 50);
        eventually(ms(5_000), || client.stats().waiting == 50);
        server.wait_until_waiter_sleeps("lock_release:a");
        // The next refresh is sent most of a second later.
        wait_for_refresh(&client);
        let (before, now_ms) = (server.script_calls(), server.micros() / 1_000);
        eventually(PATIENCE, || {
            let refreshed = refreshes_ms(&server).into_iter().filter(|at| *at > now_ms);
            refreshed.count() == 50
        });
        let calls = server.script_calls() - before;
        assert!(
            (1..=3).contains(&calls),
            "{calls} calls, including a renewal by the holder"
        );
        assert_eq!(queue_length(&server), 50);
        assert_released(guard.unlock());
    });
    wait_until_only_fences_remain(&server);
}

fn statistics_count_fair_locks() {
    let server = Server::start();
    let (one, two) = (server.client(), server.client());
    let guard = one.fair_mutex("a").lock().unwrap();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, two.fair_mutex("a"));
        assert_eq!(two.stats().waiting, 1);
        assert_released(guard.unlock());
        assert_released(waiting.join().unwrap().unlock());
    });
    let (one, two) = (one.stats(), two.stats());
    assert_eq!(
        (
            one.totals.attempts,
            one.totals.acquired_at_once,
            one.totals.released
        ),
        (1, 1, 1)
    );
    assert_eq!(
        (
            two.totals.attempts,
            two.totals.acquired_after_waiting,
            two.totals.released
        ),
        (1, 1, 1)
    );
    let useful_wakes = two.totals.wakes - two.totals.spurious_wakes;
    assert_eq!((useful_wakes, two.waiting), (1, 0));
}

fn backoff_waits_without_a_subscription() {
    let server = Server::start();
    let guard = fair_mutex(&server).lock().unwrap();
    let backoff = Backoff::new(ms(20), ms(100));
    let mutex = fair_mutex(&server).wait_policy(WaitPolicy::Backoff(backoff.attempts(3)));
    thread::scope(|scope| {
        // While this waiter refreshes its place, the queue does not expire with the other places.
        let patient = fair_mutex(&server).wait_policy(WaitPolicy::Backoff(backoff));
        let waiting = spawn_waiter(scope, &server, patient);
        assert!(matches!(
            mutex.lock(),
            Err(Error::AttemptsUsedUp { attempts: 3, .. })
        ));
        assert!(mutex.try_lock_for(PATIENCE).unwrap().is_err());
        wait_for_queue_length(&server, 1);
        assert_released(guard.unlock());
        assert_released(waiting.join().unwrap().unlock());
    });
    assert_eq!(server.calls(&["subscribe"]), 0);
    wait_until_only_fences_remain(&server);
}

/// The clients receive no messages about grants and releases.
fn waiters_without_pubsub_permissions_get_the_lock_by_refreshing() {
    let server = Server::start();
    let line = include_str!("../../docs/operations.md").lines();
    let mut rules = line
        .filter(|line| line.starts_with("ACL SETUSER leasehold reset"))
        .collect::<Vec<_>>()[0]
        .split(' ')
        .skip(1)
        .collect::<Vec<_>>();
    rules.retain(|rule| !["+publish", "+subscribe"].contains(rule) && !rule.starts_with('&'));
    server.run("ACL", &rules);
    let url = format!("redis://leasehold:password@127.0.0.1:{}", server.port());
    let guard = Client::open(&*url).unwrap().fair_mutex("a").lock().unwrap();
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..2)
            .map(|_| spawn_waiter(scope, &server, Client::open(&*url).unwrap().fair_mutex("a")))
            .collect();
        assert_released(guard.unlock());
        for waiting in waiting {
            assert_released(waiting.join().unwrap().unlock());
        }
    });
    wait_until_only_fences_remain(&server);
}

fn granted_lease_is_replicated_before_lock_returns() {
    let replicas = Replicas::start(1);
    let server = replicas.master();
    let mutex = || server.client().fair_mutex("a").min_replicas(1, ms(500));
    let guard = mutex().lock().unwrap();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, server, mutex());
        assert_released(guard.unlock());
        let guard = waiting.join().unwrap();
        assert!(server.pttl("lock:a") > 3_000, "the lease was renewed first");
        assert!(guard.remaining().unwrap() > ms(3_000));
        replicas.pause(0);
        let waiting = scope.spawn(|| mutex().try_lock_for(PATIENCE));
        wait_for_queue_length(server, 1);
        assert_released(guard.unlock());
        let outcome = waiting.join().unwrap();
        assert!(
            matches!(outcome, Err(Error::NotReplicated { wanted: 1, .. })),
            "{outcome:?}"
        );
        wait_until_only_fences_remain(server);
        assert!(matches!(
            mutex().try_lock(),
            Err(Error::NotReplicated { .. })
        ));
        replicas.resume(0);
    });
    wait_until_only_fences_remain(server);
}

fn fair_lock_over_a_quorum_is_an_error() {
    let server = Server::start();
    let client = Client::quorum([server.url()]).unwrap();
    for answer in [
        client.fair_mutex("a").lock().map(Ok),
        client.fair_mutex("a").try_lock(),
    ] {
        let error = answer.unwrap_err();
        assert!(
            matches!(&error, Error::Config(why) if why.contains("quorum")),
            "{error:?}"
        );
    }
    assert!(server.keys().is_empty());
}

fn broken_fence_fails_acquires_but_not_releases() {
    let server = Server::start();
    let guard = fair_mutex(&server).lock().unwrap();
    thread::scope(|scope| {
        let mutex = fair_mutex(&server);
        let waiting = scope.spawn(move || mutex.try_lock_for(PATIENCE));
        wait_for_queue_length(&server, 1);
        server.wait_until_waiter_sleeps("lock_release:a");
        for value in ["x", "9007199254740991", "-1"] {
            server.run("SET", &[FENCE, value]);
            let lock = fair_mutex(&server);
            let outcome = lock.try_lock();
            assert!(matches!(outcome, Err(Error::BadFence { key, .. }) if key == FENCE));
            let outcome = lock.try_lock_for(ms(100));
            assert!(matches!(outcome, Err(Error::BadFence { .. })));
        }
        assert_released(guard.unlock());
        assert!(matches!(
            waiting.join().unwrap(),
            Err(Error::BadFence { .. })
        ));
        eventually(ms(5_000), || server.keys() == [FENCE.as_bytes()]);
    });
    server.run("DEL", &[FENCE]);
    assert_released(fair_mutex(&server).lock().unwrap().unlock());
}

fn broken_queue_fails_acquires_but_not_releases() {
    let server = Server::start();
    let guard = fair_mutex(&server).lock().unwrap();
    server.run("SET", &[QUEUE, "x"]);
    let assert_refused = || {
        let error = fair_mutex(&server).try_lock().unwrap_err();
        assert!(
            matches!(&error, Error::WrongType { key, .. } if key == "lock:a"),
            "{error:?}"
        );
        // The lock key itself can be intact, and held.
        let text = error.to_string();
        assert!(
            text.contains("or a key of leasehold for the same lock"),
            "{text}"
        );
        assert!(text.contains("find it with TYPE"), "{text}");
        assert!(!text.contains("delete the key"), "{text}");
    };
    assert_refused();
    assert_released(guard.unlock());
    assert_refused();
    assert!(server.get("lock:a").is_none());
}

fn fair_lock_with_any_name_of_up_to_64_kib_is_granted() {
    let server = Server::start();
    let (one, two) = (server.client(), server.client());
    let huge = vec![b'x'; 64 * 1024];
    let long = vec![b'x'; 64 * 1024 + 1];
    let binary: Vec<u8> = (0..=255).collect();
    for name in [&b""[..], &long] {
        assert!(matches!(one.fair_mutex(name).lock(), Err(Error::Config(_))));
    }
    for name in [&b" "[..], &binary, b"grant 1 a:b\r\n", b"{x}", b"}{", &huge] {
        let guard = one.fair_mutex(name).lock().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| lock_in_turn(&two.fair_mutex(name)));
            eventually(PATIENCE, || one.fair_mutex(name).waiting().unwrap() == 1);
            assert_released(guard.unlock());
            assert_released(waiting.join().unwrap().unlock());
        });
    }
    wait_until_only_fences_remain(&server);
}

/// Messages on a client's inbox that are malformed, or name a holder id of another client, grant
/// nothing.
fn foreign_message_grants_nothing() {
    let server = Server::start();
    let guard = fair_mutex(&server).lock().unwrap();
    thread::scope(|scope| {
        let (done, is_done) = bounded(1);
        let mutex = fair_mutex(&server);
        scope.spawn(move || {
            assert_released(lock_in_turn(&mutex).unlock());
            done.send(()).unwrap();
        });
        wait_for_queue_length(&server, 1);
        server.wait_until_waiter_sleeps("lock_release:a");
        let mut channels = redis::cmd("PUBSUB");
        let inboxes: Vec<String> = channels
            .arg(&["CHANNELS", "leasehold:*"])
            .query(&mut server.connection())
            .unwrap();
        let [inbox] = &inboxes[..] else {
            panic!("{inboxes:?}")
        };
        let id = guard.holder_id().to_string();
        for payload in [
            &*format!("grant 7 1 {id}"),
            &format!("grant 7 {id}"),
            "grant 7 1 x",
            "grant",
            "grant 7 1 ",
            "\u{0}",
        ] {
            let mut publish = redis::cmd("PUBLISH");
            let receivers: u32 = publish
                .arg(inbox)
                .arg(payload)
                .query(&mut server.connection())
                .unwrap();
            assert_eq!(receivers, 1);
        }
        // The client publishes a probe to its inbox every second. By the second one it has received
        // the first, and these messages before it.
        let probes = server.calls(&["publish"]);
        eventually(PATIENCE, || server.calls(&["publish"]) > probes + 1);
        assert_eq!(is_done.try_recv(), Err(TryRecvError::Empty));
        assert_released(guard.unlock());
        is_done.recv_timeout(PATIENCE).unwrap();
    });
}

fn fair_lock_is_granted_with_sentinel() {
    let sentinels = Sentinels::start(Setup::steady());
    let server = sentinels.first_master();
    let mutex = || Client::open(sentinels.url()).unwrap().fair_mutex("a");
    let guard = mutex().lock().unwrap();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, server, mutex());
        assert_released(guard.unlock());
        assert_released(waiting.join().unwrap().unlock());
    });
    wait_until_only_fences_remain(server);
}

fn fair_lock_is_granted_in_a_cluster() {
    let cluster = Cluster::with(ClusterSetup::steady(3, 0));
    let (one, two) = (
        Client::open(cluster.url()).unwrap(),
        Client::open(cluster.url()).unwrap(),
    );
    for node in 0..3 {
        let name = cluster.name_owned_by("fair", node);
        let server = cluster.node(node);
        let guard = one.fair_mutex(&*name).lock().unwrap();
        assert!(two.fair_mutex(&*name).try_lock().unwrap().is_err());
        thread::scope(|scope| {
            let waiting = scope.spawn(|| lock_in_turn(&two.fair_mutex(&*name)));
            eventually(PATIENCE, || one.fair_mutex(&*name).waiting().unwrap() == 1);
            server.wait_until_waiter_sleeps(format!("lock_release:{name}"));
            assert_message_wakes(&two, || {
                assert_released(guard.unlock());
                assert_released(waiting.join().unwrap().unlock());
            });
        });
        wait_until_only_fences_remain(server);
    }
    assert!(matches!(
        one.fair_mutex("a}b").lock(),
        Err(Error::Config(_))
    ));
}

/// A fair lease has no reserved tokens for hand-offs within the client, so a plain waiter of the
/// same client must acquire the lock in Redis.
fn fair_lease_is_not_handed_off_to_a_plain_waiter_of_its_client() {
    let server = Server::start();
    let client = server.client();
    // The waiter tries again after 30 to 60 s, or when this client releases the lock.
    let seldom = WaitPolicy::Backoff(Backoff::new(ms(60_000), ms(60_000)));
    let fair = client.fair_mutex("a").try_lock().unwrap();
    let fair = fair.expect("the lock is free");
    thread::scope(|scope| {
        let plain = scope.spawn(|| client.mutex("a").wait_policy(seldom).lock().unwrap());
        eventually(PATIENCE, || client.stats().waiting == 1);
        let before = fair.fencing_token();
        assert_released(fair.unlock());
        let plain = plain.join().unwrap();
        assert!(plain.fencing_token() > before);
        let fence = String::from_utf8(server.get(FENCE).unwrap()).unwrap();
        let fence: u64 = fence.parse().unwrap();
        assert!(fence >= plain.fencing_token().value(), "drawn from Redis");
    });
}
