//! Promise: a set of names gets its turn in the queue of each name, and waits for no other set.
//!
//! A waiting set has a place in the queue of one name. If that is not its first place, the set
//! keeps the names below that one.

use std::collections::HashSet;
use std::thread;

use leasehold::{
    Backoff, Client, Error, FairMutex, MutexAll, MutexAllGuard, MutexGuard, WaitPolicy,
};
use support::fair::{PATIENCE, lock_in_turn, wait_until_only_fences_remain, warmed_up};
use support::{
    Child, Cluster, ClusterSetup, Proxy, Server, Traffic, assert_released, client, eventually, ms,
    parameter, tell_parent, while_others_repeat,
};

support::roles![set_waiter];

support::tests![
    sets_fair_and_plain_locks_count_exactly_together,
    set_that_gives_up_leaves_its_place_and_its_kept_names,
    set_keeps_its_lower_names_while_it_waits_for_a_higher_one,
    set_is_granted_although_fair_locks_are_busy,
    set_is_granted_although_plain_locks_are_busy,
    set_of_one_name_is_granted_although_plain_locks_are_busy,
    release_of_a_set_grants_a_name_to_a_reader,
    set_takes_free_names_despite_a_reader_that_no_grant_reaches,
    set_keeps_the_lower_names_while_it_waits,
    release_of_a_set_grants_each_name_to_its_queue,
    set_is_released_although_a_queue_is_damaged,
    damaged_fence_that_a_grant_finds_is_named,
    waiting_set_is_refreshed_on_a_full_server,
    shutdown_ends_the_places_and_the_kept_names_of_waiting_sets,
    names_that_a_killed_set_kept_are_free_long_before_its_ttl_ends,
    set_that_loses_a_kept_name_begins_again,
    set_that_loses_its_place_begins_again,
    lost_replies_end_no_wait,
    set_under_backoff_waits_without_a_subscription,
    set_of_one_slot_waits_in_the_queues_of_a_cluster
];

/// Returns a client whose ttl is longer than any test. A lock key that disappears earlier was
/// released, or was only kept for a waiting set.
fn long_client(url: &str) -> Client {
    warmed_up(Client::builder().url(url).ttl(ms(300_000)).build().unwrap())
}

fn fair(server: &Server, name: &str) -> FairMutex {
    long_client(&server.url()).fair_mutex(name)
}

fn set(server: &Server) -> MutexAll {
    long_client(&server.url()).mutex_all(["b", "a"])
}

#[track_caller]
fn lock_set(set: &MutexAll) -> MutexAllGuard {
    let guard = set.try_lock_for(PATIENCE).unwrap();
    guard.expect("the set gets its turn")
}

fn holder(server: &Server, name: &str) -> Option<String> {
    let value = server.get(format!("lock:{name}"))?;
    Some(String::from_utf8(value).unwrap())
}

/// Returns the holder ids in the queue of a name.
fn queued(server: &Server, name: &str) -> Vec<String> {
    redis::cmd("LRANGE")
        .arg(&[&*format!("leasehold:queue:{{lock:{name}}}"), "0", "-1"])
        .query(&mut server.connection())
        .unwrap()
}

#[track_caller]
fn wait_for_queue(server: &Server, name: &str, length: usize) {
    eventually(PATIENCE, || queued(server, name).len() == length);
}

/// Makes a set keep `a` while it waits for `b`, which the caller holds. `begin_to_wait` starts the
/// call of the set.
///
/// Returns the holder id of the set for `a`, that of its place for `b`, and what `begin_to_wait`
/// returned.
#[track_caller]
fn wait_until_set_keeps_a<T>(
    server: &Server,
    begin_to_wait: impl FnOnce() -> T,
) -> ([String; 2], T) {
    let a = lock_in_turn(&fair(server, "a"));
    let waiting = begin_to_wait();
    wait_for_queue(server, "a", 1);
    assert_released(a.unlock());
    wait_for_queue(server, "b", 1);
    let kept = holder(server, "a").expect("the set keeps a");
    ([kept, queued(server, "b").remove(0)], waiting)
}

fn set_is_granted_although_fair_locks_are_busy() {
    assert_set_is_granted(&["a", "b"], |client, name| {
        lock_in_turn(&client.fair_mutex(name))
    });
}

fn set_is_granted_although_plain_locks_are_busy() {
    assert_set_is_granted(&["a", "b"], lock_plain);
}

fn set_of_one_name_is_granted_although_plain_locks_are_busy() {
    assert_set_is_granted(&["a"], lock_plain);
}

fn lock_plain(client: &Client, name: &str) -> MutexGuard {
    let guard = client.mutex(name).try_lock_for(PATIENCE).unwrap();
    guard.expect("the call gets its turn")
}

/// Asserts that a set of names is granted its locks although three other clients lock each of `a`
/// and `b` without a pause.
#[track_caller]
fn assert_set_is_granted(names: &[&str], lock: fn(&Client, &str) -> MutexGuard) {
    let server = Server::start();
    let others = ["a", "b", "a", "b", "a", "b"].map(|name| {
        let client = long_client(&server.url());
        move || assert_released(lock(&client, name).unlock())
    });
    while_others_repeat(others, || {
        for name in ["a", "b"] {
            eventually(PATIENCE, || !queued(&server, name).is_empty());
        }
        let set = long_client(&server.url()).mutex_all(names.iter().copied());
        let tokens: HashSet<_> = (0..10)
            .map(|_| {
                let guard = lock_set(&set);
                assert!(guard.is_held());
                let token = guard.fencing_token_of("a");
                assert_released(guard.unlock());
                token
            })
            .collect();
        assert_eq!(tokens.len(), 10);
    });
    wait_until_only_fences_remain(&server);
}

/// Each thread increments a counter for each of its names by a read and a write: two holders at
/// once would lose a count.
fn sets_fair_and_plain_locks_count_exactly_together() {
    const ROUNDS: usize = 60;
    let server = Server::start();
    let count = |name: &str| {
        let (mut redis, key) = (server.connection(), format!("count:{name}"));
        let before: Option<usize> = redis::cmd("GET").arg(&key).query(&mut redis).unwrap();
        let after = (before.unwrap_or(0) + 1).to_string();
        server.run("SET", &[&key, &after]);
    };
    let count = &count;
    thread::scope(|scope| {
        for names in [["a", "b"], ["b", "a"], ["c", "a"], ["b", "c"]] {
            let set = client(&server.url()).mutex_all(names);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let guard = lock_set(&set);
                    names.iter().copied().for_each(count);
                    assert_released(guard.unlock());
                }
            });
        }
        for name in ["a", "b", "c"] {
            let (fair, plain) = (fair(&server, name), client(&server.url()).mutex(name));
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let guard = lock_in_turn(&fair);
                    count(name);
                    assert_released(guard.unlock());
                }
            });
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let guard = plain.try_lock_for(PATIENCE).unwrap().unwrap();
                    count(name);
                    assert_released(guard.unlock());
                }
            });
        }
    });
    for (name, sets) in [("a", 3), ("b", 3), ("c", 2)] {
        let counted = server.get(format!("count:{name}")).unwrap();
        let wanted = (sets + 2) * ROUNDS;
        assert_eq!(String::from_utf8(counted).unwrap(), wanted.to_string());
        server.run("DEL", &[&format!("count:{name}")]);
    }
    wait_until_only_fences_remain(&server);
}

fn set_keeps_its_lower_names_while_it_waits_for_a_higher_one() {
    let server = Server::start();
    let b = lock_in_turn(&fair(&server, "b"));
    thread::scope(|scope| {
        let set = set(&server);
        let (ids, waiting) =
            wait_until_set_keeps_a(&server, || scope.spawn(move || lock_set(&set)));
        // The client renews what the set keeps.
        let left = server.pttl("lock:a");
        assert!(left <= 3_000, "{left} ms: no longer than a place");
        let mut before = left;
        eventually(PATIENCE, || {
            let left = server.pttl("lock:a");
            std::mem::replace(&mut before, left) < left
        });
        assert_eq!(holder(&server, "a").as_ref(), Some(&ids[0]));
        assert!(fair(&server, "a").try_lock().unwrap().is_err());
        assert_released(b.unlock());
        let guard = waiting.join().unwrap();
        for (name, id) in ["a", "b"].into_iter().zip(&ids) {
            assert_eq!(guard.holder_id_of(name).map(|id| id.as_str()), Some(&**id));
            assert_eq!(holder(&server, name).as_ref(), Some(id));
            assert!(server.pttl(format!("lock:{name}")) > 200_000, "its ttl");
        }
        assert_released(guard.unlock());
    });
    wait_until_only_fences_remain(&server);
}

/// Puts a reader into the queue of `b`, with this mark and inbox. Returns the keys of the queue.
fn enqueue_reader_for_b(server: &Server, mark_and_inbox: &str) -> [String; 2] {
    let now = server.micros() / 1_000;
    let [queue, places] = ["queue", "places"].map(|kind| format!("leasehold:{kind}:{{lock:b}}"));
    server.run("RPUSH", &[&queue, "reader"]);
    let place = format!("{now} 60000 r {now} {mark_and_inbox}");
    server.run("HSET", &[&places, "reader", &place]);
    [queue, places]
}

fn release_of_a_set_grants_a_name_to_a_reader() {
    let server = Server::start();
    let set = set(&server);
    let guard = lock_set(&set);
    let [queue, places] = enqueue_reader_for_b(&server, "a ");
    assert_released(guard.unlock());
    assert_eq!(holder(&server, "b").as_deref(), Some("leasehold:readers"));
    assert!(set.try_lock_for(ms(300)).unwrap().is_err());
    server.run(
        "DEL",
        &["lock:b", &queue, &places, "leasehold:readers:{lock:b}"],
    );
    assert_released(lock_set(&set).unlock());
    wait_until_only_fences_remain(&server);
}

/// The client of the reader was killed. A release passes over such a place, so a set can, too.
fn set_takes_free_names_despite_a_reader_that_no_grant_reaches() {
    let server = Server::start();
    let single_attempt = WaitPolicy::Backoff(Backoff::new(ms(5), ms(50)).attempts(1));
    let set = set(&server).wait_policy(single_attempt);
    let guard = lock_set(&set);
    let [queue, places] = enqueue_reader_for_b(&server, "l nobody-listens");
    assert_released(guard.unlock());
    assert_released(lock_set(&set).unlock());
    server.run("DEL", &[&queue, &places]);
    wait_until_only_fences_remain(&server);
}

fn set_keeps_the_lower_names_while_it_waits() {
    let server = Server::start();
    let b = lock_in_turn(&fair(&server, "b"));
    thread::scope(|scope| {
        let set = set(&server);
        let waiting = scope.spawn(move || lock_set(&set));
        wait_for_queue(&server, "b", 1);
        assert!(holder(&server, "a").is_some(), "the set keeps a");
        assert_released(b.unlock());
        assert_released(waiting.join().unwrap().unlock());
    });
    wait_until_only_fences_remain(&server);
}

/// The release grants the names to the waiters directly. No message announces that they are free.
fn release_of_a_set_grants_each_name_to_its_queue() {
    let server = Server::start();
    let set = set(&server);
    let guard = lock_set(&set);
    thread::scope(|scope| {
        let waiting = ["a", "b"].map(|name| {
            let mutex = fair(&server, name);
            let waiting = scope.spawn(move || lock_in_turn(&mutex));
            wait_for_queue(&server, name, 1);
            server.wait_until_waiter_sleeps(format!("lock_release:{name}"));
            waiting
        });
        let mut redis = server.connection();
        let mut announced = redis.as_pubsub();
        let channels = ["lock_release:a", "lock_release:b"];
        announced.subscribe(&channels).unwrap();
        assert_released(guard.unlock());
        for channel in channels {
            server.run("PUBLISH", &[channel, "later"]);
            let first: String = announced.get_message().unwrap().get_payload().unwrap();
            assert_eq!(first, "later");
        }
        drop(announced);
        for waiting in waiting {
            assert_released(waiting.join().unwrap().unlock());
        }
    });
    wait_until_only_fences_remain(&server);
}

fn set_is_released_although_a_queue_is_damaged() {
    let server = Server::start();
    let set = set(&server);
    for damaged in ["queue", "places"] {
        let key = format!("leasehold:{damaged}:{{lock:a}}");
        let guard = lock_set(&set);
        server.run("SET", &[&key, "neither a list nor a hash"]);
        assert_released(guard.unlock());
        assert_eq!((holder(&server, "a"), holder(&server, "b")), (None, None));
        server.run("DEL", &[&key]);
    }
}

fn damaged_fence_that_a_grant_finds_is_named() {
    let server = Server::start();
    let fence = "leasehold:fence:{lock:b}";
    let _b = lock_in_turn(&fair(&server, "b"));
    let set = set(&server);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| set.try_lock_for(PATIENCE));
        wait_for_queue(&server, "b", 1);
        server.run("SET", &[fence, "no number"]);
        // Without a message: the next refresh of the set grants the lock to it.
        server.run("DEL", &["lock:b"]);
        match waiting.join().unwrap() {
            Err(Error::BadFence { key, .. }) => assert_eq!(key, fence),
            other => panic!("{other:?}"),
        }
    });
}

fn waiting_set_is_refreshed_on_a_full_server() {
    let server = Server::start();
    let b = lock_in_turn(&fair(&server, "b"));
    let set = set(&server);
    thread::scope(|scope| {
        let ([_, id], waiting) = wait_until_set_keeps_a(&server, || scope.spawn(|| lock_set(&set)));
        server.run("CONFIG", &["SET", "maxmemory", "1"]);
        let place = || -> String {
            redis::cmd("HGET")
                .arg(&["leasehold:places:{lock:b}", &id])
                .query(&mut server.connection())
                .unwrap()
        };
        let before = place();
        // A refresh writes its time into the place.
        eventually(PATIENCE, || place() != before);
        server.run("CONFIG", &["SET", "maxmemory", "0"]);
        assert_released(b.unlock());
        let guard = waiting.join().unwrap();
        assert_eq!(guard.holder_id_of("b").unwrap().as_str(), id);
        assert_released(guard.unlock());
    });
}

fn set_that_gives_up_leaves_its_place_and_its_kept_names() {
    let server = Server::start();
    let b = lock_in_turn(&fair(&server, "b"));
    thread::scope(|scope| {
        let set = set(&server);
        let (_, waiting) = wait_until_set_keeps_a(&server, || {
            scope.spawn(move || set.try_lock_for(ms(4_000)).unwrap())
        });
        assert!(waiting.join().unwrap().is_err());
        wait_for_queue(&server, "b", 0);
        eventually(PATIENCE, || holder(&server, "a").is_none());
    });
    assert_released(b.unlock());
    wait_until_only_fences_remain(&server);
}

fn shutdown_ends_the_places_and_the_kept_names_of_waiting_sets() {
    let server = Server::start();
    let b = lock_in_turn(&fair(&server, "b"));
    let client = long_client(&server.url());
    thread::scope(|scope| {
        let set = client.mutex_all(["a", "b"]);
        wait_until_set_keeps_a(&server, || {
            scope.spawn(move || assert!(set.lock().is_err()))
        });
        assert!(client.shutdown(PATIENCE).is_clean());
        wait_for_queue(&server, "b", 0);
        eventually(PATIENCE, || holder(&server, "a").is_none());
    });
    assert_released(b.unlock());
    wait_until_only_fences_remain(&server);
}

/// A child's role: waits for the set.
fn set_waiter() {
    let set = long_client(&parameter("URL")).mutex_all(["a", "b"]);
    tell_parent("ready");
    let _ = set.lock();
}

/// A kept name lasts at most 3 s without a refresh. The ttl of the set is 300 s.
fn names_that_a_killed_set_kept_are_free_long_before_its_ttl_ends() {
    let server = Server::start();
    let b = lock_in_turn(&fair(&server, "b"));
    let (_, mut waiting) = wait_until_set_keeps_a(&server, || {
        Child::spawn("set_queues::set_waiter", &[("URL", &server.url())])
    });
    waiting.kill();
    assert_released(lock_in_turn(&fair(&server, "a")).unlock());
    assert_released(b.unlock());
    assert_released(lock_in_turn(&fair(&server, "b")).unlock());
    wait_until_only_fences_remain(&server);
}

fn set_that_loses_a_kept_name_begins_again() {
    let server = Server::start();
    let b = lock_in_turn(&fair(&server, "b"));
    thread::scope(|scope| {
        let set = set(&server);
        let ([id, _], waiting) =
            wait_until_set_keeps_a(&server, || scope.spawn(move || lock_set(&set)));
        server.run("SET", &["lock:a", "a stranger"]);
        assert_released(b.unlock());
        // The set passes b on, and waits for a under another id.
        eventually(PATIENCE, || holder(&server, "b").is_none());
        wait_for_queue(&server, "a", 1);
        assert_ne!(queued(&server, "a")[0], id);
        server.run("DEL", &["lock:a"]);
        let guard = waiting.join().unwrap();
        assert_ne!(guard.holder_id().as_str(), id);
        assert_released(guard.unlock());
    });
    wait_until_only_fences_remain(&server);
}

fn set_that_loses_its_place_begins_again() {
    let server = Server::start();
    let b = lock_in_turn(&fair(&server, "b"));
    thread::scope(|scope| {
        let set = set(&server);
        let ([_, id], waiting) =
            wait_until_set_keeps_a(&server, || scope.spawn(move || lock_set(&set)));
        let keys = ["queue", "places"].map(|kind| format!("leasehold:{kind}:{{lock:b}}"));
        server.run("DEL", &[&keys[0], &keys[1]]);
        eventually(PATIENCE, || {
            queued(&server, "b").iter().any(|other| *other != id)
        });
        assert_released(b.unlock());
        assert_released(waiting.join().unwrap().unlock());
    });
    wait_until_only_fences_remain(&server);
}

/// What the sets keep, and their places, are asked for again on another connection.
fn lost_replies_end_no_wait() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let b = lock_in_turn(&fair(&server, "b"));
    thread::scope(|scope| {
        let set = warmed_up(client(&proxy.url())).mutex_all(["a", "b"]);
        let second = set.clone();
        wait_until_set_keeps_a(&server, || {
            scope.spawn(move || assert_released(lock_set(&set).unlock()))
        });
        scope.spawn(move || assert_released(lock_set(&second).unlock()));
        wait_for_queue(&server, "a", 1);
        proxy.set_open(Traffic::DropReplies);
        assert_released(b.unlock());
    });
    wait_until_only_fences_remain(&server);
}

fn set_under_backoff_waits_without_a_subscription() {
    let server = Server::start();
    let b = lock_in_turn(&fair(&server, "b"));
    thread::scope(|scope| {
        let policy = WaitPolicy::Backoff(Backoff::new(ms(5), ms(50)));
        let set = set(&server).wait_policy(policy);
        let (_, waiting) = wait_until_set_keeps_a(&server, || scope.spawn(move || lock_set(&set)));
        assert_eq!(server.calls(&["subscribe"]), 0);
        assert_released(b.unlock());
        assert_released(waiting.join().unwrap().unlock());
    });
    wait_until_only_fences_remain(&server);
}

fn set_of_one_slot_waits_in_the_queues_of_a_cluster() {
    let cluster = Cluster::with(ClusterSetup::steady(3, 0));
    let client = || Client::builder().url(cluster.url()).build().unwrap();
    let names = ["{s}a", "{s}b"];
    let node = cluster.node(cluster.master_of("lock:{s}a"));
    let queue = |name: &str| -> usize {
        redis::cmd("LLEN")
            .arg(format!("leasehold:queue:lock:{name}"))
            .query(&mut node.connection())
            .unwrap()
    };
    let [a, b] = names.map(|name| client().fair_mutex(name).lock().unwrap());
    thread::scope(|scope| {
        let set = client().mutex_all(names);
        let waiting = scope.spawn(move || lock_set(&set));
        eventually(PATIENCE, || queue(names[0]) == 1);
        assert_released(a.unlock());
        eventually(PATIENCE, || queue(names[1]) == 1);
        assert!(node.get("lock:{s}a").is_some(), "the set keeps a");
        assert_released(b.unlock());
        assert_released(waiting.join().unwrap().unlock());
    });
    eventually(PATIENCE, || {
        names
            .iter()
            .all(|name| node.get(format!("lock:{name}")).is_none() && queue(name) == 0)
    });
}
