//! Promise: a client without queues locks with few permissions and waits for releases. A client
//! with queues says which of the permissions for them is missing.

use std::fmt::Debug;
use std::thread;

use leasehold::{Backoff, Client, ClientBuilder, Error, WaitPolicy};
use support::fair::{
    PATIENCE, QUEUE, places_in, wait_for_queue_length, wait_until_only_fences_remain,
};
use support::{Server, assert_message_wakes, assert_released, eventually, ms};

support::tests![
    lock_is_released_without_the_permissions_for_queues,
    waiters_are_woken_by_releases,
    client_with_a_queue_and_one_without_wait_for_each_other,
    kinds_that_need_queues_are_a_wrong_configuration,
    missing_permission_for_queues_is_refused_with_a_hint,
    set_whose_attempts_are_used_up_is_refused
];

fn builder(url: &str) -> ClientBuilder {
    Client::builder().url(url).ttl(ms(300_000))
}

fn without_queues(server: &Server) -> Client {
    let builder = builder(&server.url_without_queues());
    builder.queues(false).build().unwrap()
}

fn waiters_are_woken_by_releases() {
    let server = Server::start();
    let [one, other] = [(); 2].map(|()| without_queues(&server));
    for _ in 0..3 {
        let (mutex, set) = (other.mutex("a"), other.mutex_all(["a", "b"]));
        let lock_and_unlock: [&(dyn Fn() -> Result<(), Error> + Sync); 2] =
            [&|| mutex.lock()?.unlock(), &|| set.lock()?.unlock()];
        for lock_and_unlock in lock_and_unlock {
            let guard = one.mutex("a").lock().unwrap();
            thread::scope(|scope| {
                let waiting = scope.spawn(lock_and_unlock);
                server.wait_until_waiter_sleeps("lock_release:a");
                assert_message_wakes(&other, || {
                    assert_released(guard.unlock());
                    waiting.join().unwrap().unwrap();
                });
            });
        }
    }
    wait_until_only_fences_remain(&server);
}

fn set_whose_attempts_are_used_up_is_refused() {
    let servers = [(); 3].map(|()| Server::start());
    let urls = servers.each_ref().map(Server::url);
    let quorum = || Client::builder().quorum(&urls).build().unwrap();
    for [one, other] in [
        [(); 2].map(|()| without_queues(&servers[0])),
        [(); 2].map(|()| quorum()),
    ] {
        let guard = one.mutex("b").lock().unwrap();
        let twice = WaitPolicy::Backoff(Backoff::new(ms(1), ms(5)).attempts(2));
        let refused = other.mutex_all(["a", "b"]).wait_policy(twice).lock();
        assert!(
            matches!(refused, Err(Error::AttemptsUsedUp { attempts: 2, .. })),
            "{refused:?}"
        );
        assert_released(guard.unlock());
    }
}

fn client_with_a_queue_and_one_without_wait_for_each_other() {
    let server = Server::start();
    let (with, without) = (
        builder(&server.url()).build().unwrap(),
        without_queues(&server),
    );
    let guard = without.mutex("a").lock().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| with.mutex("a").lock().unwrap());
        wait_for_queue_length(&server, 1);
        assert_eq!(with.mutex("a").waiting().unwrap(), 1);
        assert_message_wakes(&with, || {
            assert_released(guard.unlock());
            let guard = waiting.join().unwrap();
            let waiting = scope.spawn(|| without.mutex("a").lock().unwrap());
            eventually(PATIENCE, || server.subscribers("lock_release:a") > 0);
            assert_released(guard.unlock());
            assert_released(waiting.join().unwrap().unlock());
        });
    });
    wait_until_only_fences_remain(&server);
}

#[track_caller]
fn assert_needs_queues<T: Debug>(answer: Result<T, Error>, kind: &str) {
    match answer.unwrap_err() {
        Error::Config(what) => {
            let begins = format!("a {kind} needs queues in Redis");
            assert!(
                what.starts_with(&begins) && what.contains("use a Mutex"),
                "{what}"
            );
        }
        other => panic!("{other:?}"),
    }
}

fn kinds_that_need_queues_are_a_wrong_configuration() {
    let server = Server::start();
    let client = builder(&server.url()).queues(false).build().unwrap();
    assert_needs_queues(client.fair_mutex("a").try_lock(), "fair lock");
    assert_needs_queues(client.fair_mutex("a").lock(), "fair lock");
    assert_needs_queues(client.rw_lock("a").read(), "read-write lock");
    assert_needs_queues(client.rw_lock("a").try_write(), "read-write lock");
    assert_needs_queues(client.semaphore("a", 2).acquire(), "semaphore");
    assert_needs_queues(client.semaphore("a", 2).available(), "semaphore");
    assert_eq!(server.script_calls(), 0);
    let waiting = client.mutex("a").waiting();
    assert!(matches!(waiting, Err(Error::Config(_))), "{waiting:?}");
}

/// Returns the text of the refusal.
#[track_caller]
fn refusal<T: Debug>(answer: Result<T, Error>) -> String {
    match answer.unwrap_err() {
        error @ Error::Refused { .. } => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// The same for a set, which enters the queue by another script.
fn missing_permission_for_queues_is_refused_with_a_hint() {
    const HINT: &str = "ClientBuilder::queues(false)";
    let server = Server::start();
    let holder = builder(&server.url()).build().unwrap();
    let _held = holder.mutex("a").lock().unwrap();
    let rules: [(&[&str], &str, bool); 4] = [
        (&["resetkeys", "~lock:*", "~leasehold:fence:*"], QUEUE, true),
        (&["-rpush"], "+rpush", true),
        (&["-hset"], "+hset", true),
        (&["-pexpire"], "+pexpire", false),
    ];
    for (rules, named, has_hint) in rules {
        let client = builder(&server.url_with_rules(rules)).build().unwrap();
        let mutex = client.mutex("a").try_lock_for(PATIENCE);
        let set = client.mutex_all(["a", "b"]).try_lock_for(PATIENCE);
        for text in [refusal(mutex.map(drop)), refusal(set.map(drop))] {
            assert!(text.contains(named), "{text}");
            assert_eq!(text.contains(HINT), has_hint, "{text}");
        }
    }
}

/// Otherwise the lock would stay held for its ttl.
fn lock_is_released_without_the_permissions_for_queues() {
    let server = Server::start();
    let waiter = builder(&server.url()).build().unwrap();
    for right in ["-lindex", "-lpop", "-hget", "-hdel", "-hset"] {
        let url = server.url_with_rules(&[right]);
        let holder = builder(&url).build().unwrap();
        let name = right.trim_start_matches('-');
        let guard = holder.mutex(name).lock().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.mutex(name).lock().unwrap());
            let queue = format!("leasehold:queue:{{lock:{name}}}");
            eventually(PATIENCE, || places_in(&server, &queue) == 1);
            assert_released(guard.unlock());
            assert_released(waiting.join().unwrap().unlock());
        });
    }
}
