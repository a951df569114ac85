//! Promise: a set of names is acquired entirely or not at all, without deadlocks.
//!
//! Each name has its own lease; the set is held while all are, and lost as a whole.

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::unbounded;
use leasehold::{
    Backoff, Client, ClientBuilder, Error, FencingToken, Lost, MutexAllGuard, Name, WaitPolicy,
};
use support::fair::granted;
use support::{
    Child, Cluster, ClusterSetup, Control, Proxy, SLACK, Sentinels, Server, Setup, Traffic,
    assert_message_wakes, assert_released, connect_to_all, eventually, ms, parameter, tell_parent,
};

support::roles![locker];

support::tests![
    set_across_slots_is_acquired_or_rolled_back,
    overlapping_sets_in_any_order_do_not_deadlock,
    calls_return_by_their_deadline,
    set_survives_a_failover,
    waiter_is_woken_only_by_the_name_that_blocked_it,
    basic_calls_work_on_a_set,
    empty_set_is_an_error_and_single_name_is_a_plain_lock,
    refused_set_has_its_lower_names_for_a_round_trip,
    one_of_overlapping_sets_gets_all_its_names,
    release_that_overtakes_the_refusal_is_not_missed,
    waiters_of_one_client_wake_each_other,
    loss_of_one_name_loses_and_releases_the_set,
    release_reports_a_lost_name_and_releases_the_others,
    set_without_renewal_expires_entirely,
    set_of_a_thousand_names_is_held_renewed_and_released,
    unreadable_key_is_an_error_and_nothing_stays_held,
    key_that_became_unreadable_is_a_loss_and_the_others_are_released,
    unanswered_acquire_is_undone_and_release_repeated,
    acquire_with_too_few_replicas_is_undone,
    server_that_became_a_replica_reports_a_set_neither_held_nor_lost,
    shutdown_releases_the_set,
    quorum_counts_only_votes_for_the_whole_set
];

const PROCESSES: usize = 3;
const THREADS: usize = 4;
const ROUNDS: usize = 60;

/// Longer than any test: a key that disappears earlier was released or undone.
const LONG: Duration = ms(300_000);

fn builder(url: &str) -> ClientBuilder {
    Client::builder().url(url).ttl(LONG)
}

fn client(url: &str) -> Client {
    builder(url).build().unwrap()
}

fn lock_keys(server: &Server) -> Vec<String> {
    let mut keys: Vec<String> = redis::cmd("KEYS")
        .arg("lock:*")
        .query(&mut server.connection())
        .unwrap();
    keys.sort();
    keys
}

fn token(guard: &MutexAllGuard, name: &str) -> FencingToken {
    guard
        .fencing_token_of(name)
        .expect("the name is in the set")
}

/// Overlapping sets in different orders.
const SETS: [&[&str]; 6] = [
    &["a", "b"],
    &["b", "a"],
    &["c", "b", "a"],
    &["a", "c"],
    &["c", "b"],
    &["b"],
];

/// A child's role: locks sets and single names in turn and records each name's tokens.
///
/// It increments a counter for each name by a read and a write: two holders at once would lose a
/// count.
fn locker() {
    let client = Client::open(parameter("URL")).unwrap();
    let plain = redis::Client::open(parameter("URL")).unwrap();
    let ready = Barrier::new(THREADS + 1);
    let first: usize = parameter("FIRST").parse().unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (client, plain, ready) = (&client, &plain, &ready);
            scope.spawn(move || {
                let mut redis = plain.get_connection().unwrap();
                ready.wait();
                for round in 0..ROUNDS {
                    let names = SETS[(first + thread + round) % SETS.len()];
                    if let [name] = names {
                        let guard = client.mutex(*name).lock().unwrap();
                        visit(&mut redis, name, guard.fencing_token());
                        guard.unlock().unwrap();
                        continue;
                    }
                    let guard = client.mutex_all(names.iter().copied()).lock().unwrap();
                    for name in names {
                        visit(&mut redis, name, token(&guard, name));
                    }
                    assert_released(guard.unlock());
                }
            });
        }
        ready.wait();
        tell_parent("ready");
    });
}

fn visit(redis: &mut redis::Connection, name: &str, token: FencingToken) {
    let key = format!("visits:{name}");
    let visits: Option<u64> = redis::cmd("GET").arg(&key).query(redis).unwrap();
    redis::cmd("RPUSH")
        .arg(format!("tokens:{name}"))
        .arg(token.value())
        .exec(redis)
        .unwrap();
    redis::cmd("SET")
        .arg(&key)
        .arg(visits.unwrap_or(0) + 1)
        .exec(redis)
        .unwrap();
}

fn basic_calls_work_on_a_set() {
    let server = Server::start();
    let (one, two) = (client(&server.url()), client(&server.url()));
    let both = one.mutex_all(["b", "a", "b"]);
    assert_eq!(both.names(), ["a", "b"].map(Name::from));
    let guard = both.lock().unwrap();
    assert_eq!(guard.names(), ["a", "b"].map(Name::from));
    assert_eq!(lock_keys(&server), ["lock:a", "lock:b"]);
    for name in ["a", "b"] {
        let id = guard.holder_id_of(name).map(|id| id.as_str().into());
        assert_eq!(server.get(format!("lock:{name}")), id);
        for client in [&one, &two] {
            assert!(client.mutex(name).try_lock().unwrap().is_err());
            assert!(client.mutex_all([name, "c"]).try_lock().unwrap().is_err());
        }
        let seen = two
            .mutex(name)
            .inspect()
            .unwrap()
            .expect("the lock is held");
        assert_eq!(seen.fencing_token(), guard.fencing_token_of(name));
    }
    assert_eq!(guard.fencing_token_of("c"), None);
    assert_eq!(guard.holder_id_of("c"), None);
    assert_eq!(guard.holder_id_of("a"), Some(guard.holder_id()));
    assert_ne!(guard.holder_id_of("b"), guard.holder_id_of("a"));
    assert!(guard.is_held() && guard.remaining().is_some() && guard.ensure_held().is_ok());
    guard.renew().unwrap();
    guard.set_ttl(ms(60_000)).unwrap();
    for name in ["a", "b"] {
        let left: u64 = redis::cmd("PTTL")
            .arg(format!("lock:{name}"))
            .query(&mut server.connection())
            .unwrap();
        assert!((50_000..=60_000).contains(&left), "{left}");
    }
    let before = ["a", "b"].map(|name| token(&guard, name));
    assert_released(guard.unlock());
    assert_eq!(lock_keys(&server), [""; 0]);

    let plain = two.mutex("b").lock().unwrap();
    assert!(one.mutex_all(["a", "b"]).try_lock().unwrap().is_err());
    assert!(plain.fencing_token() > before[1]);
    assert_eq!(lock_keys(&server), ["lock:b"]);
    drop(plain);
    let again = one
        .mutex_all(["a", "b"])
        .with(|guard| ["a", "b"].map(|name| token(guard, name)));
    let again = again.unwrap();
    assert!(again[0] > before[0] && again[1] > before[1]);
    assert_eq!(both.try_with(|guard| guard.is_held()).unwrap(), Ok(true));
    assert_eq!(lock_keys(&server), [""; 0]);
}

fn empty_set_is_an_error_and_single_name_is_a_plain_lock() {
    let server = Server::start();
    let client = client(&server.url());
    let nothing = client.mutex_all([""; 0]);
    for answer in [
        nothing.lock().map(Ok),
        nothing.try_lock(),
        nothing.try_lock_for(ms(10)),
    ] {
        match answer {
            Err(Error::Config(what)) => assert!(what.contains("no name"), "{what}"),
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(
        client.mutex_all(["a", ""]).try_lock(),
        Err(Error::Config(_))
    ));
    let one = client.mutex_all(["a", "a"]);
    let guard = one.lock().unwrap();
    assert_eq!(guard.names(), ["a"].map(Name::from));
    assert!(client.mutex("a").try_lock().unwrap().is_err());
    // Names are compared byte by byte.
    assert!(client.mutex_all(["A", "a "]).try_lock().unwrap().is_ok());
    assert_released(guard.unlock());
}

/// Threads and processes lock sets and single names in every order. Each name has one holder at a
/// time, and its tokens rise in the order of its holders.
fn overlapping_sets_in_any_order_do_not_deadlock() {
    let server = Server::start();
    let start = client(&server.url())
        .mutex_all(["a", "b", "c"])
        .lock()
        .unwrap();
    let children: Vec<_> = (0..PROCESSES)
        .map(|n| {
            let first = (n * 2).to_string();
            Child::spawn("all::locker", &[("URL", &server.url()), ("FIRST", &first)])
        })
        .collect();
    for child in &children {
        child.wait_for_line("ready");
    }
    let firsts = ["a", "b", "c"].map(|name| token(&start, name).value());
    assert_released(start.unlock());
    for child in children {
        child.wait().succeeded();
    }
    for (name, first) in ["a", "b", "c"].into_iter().zip(firsts) {
        let tokens: Vec<u64> = redis::cmd("LRANGE")
            .arg(&[&*format!("tokens:{name}"), "0", "-1"])
            .query(&mut server.connection())
            .unwrap();
        let wanted = SETS.iter().filter(|set| set.contains(&name)).count();
        assert_eq!(
            tokens.len(),
            PROCESSES * THREADS * ROUNDS / SETS.len() * wanted
        );
        let visits = tokens.len().to_string().into_bytes();
        assert_eq!(server.get(format!("visits:{name}")), Some(visits));
        assert!(tokens[0] > first);
        assert!(tokens.is_sorted_by(|earlier, later| earlier < later));
    }
    assert_eq!(lock_keys(&server), [""; 0]);
}

/// The set has its lower name until the reply has come that refuses the other one.
fn refused_set_has_its_lower_names_for_a_round_trip() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let (one, two) = (client(&proxy.url()), client(&server.url()));
    let set = one.mutex_all(["a", "b"]);
    drop(set.lock().unwrap());
    let held = two.mutex("b").lock().unwrap();
    proxy.set_open(Traffic::StallReplies);
    thread::scope(|scope| {
        let refused = scope.spawn(|| set.try_lock().unwrap());
        eventually(ms(10_000), || lock_keys(&server) == ["lock:a", "lock:b"]);
        assert!(two.mutex("a").try_lock().unwrap().is_err());
        proxy.set_open(Traffic::Pass);
        assert_eq!(refused.join().unwrap().unwrap_err().name(), "b");
    });
    assert_eq!(lock_keys(&server), ["lock:b"]);
    drop(held);
}

/// Three sets, each pair of which shares a name, are asked for at the same time by three clients.
fn one_of_overlapping_sets_gets_all_its_names() {
    let server = Server::start();
    let sets = [["x", "y"], ["z", "x"], ["y", "z"]];
    let sets = sets.map(|names| client(&server.url()).mutex_all(names));
    for set in &sets {
        drop(set.lock().unwrap());
    }
    let start = Barrier::new(sets.len());
    let ended = Barrier::new(sets.len());
    let wins = AtomicUsize::new(0);
    thread::scope(|scope| {
        for set in &sets {
            let (start, ended, wins, server) = (&start, &ended, &wins, &server);
            scope.spawn(move || {
                for round in 1..=150 {
                    start.wait();
                    let guard = set.try_lock().unwrap();
                    wins.fetch_add(usize::from(guard.is_ok()), Ordering::SeqCst);
                    ended.wait();
                    assert_eq!(wins.load(Ordering::SeqCst), round);
                    if let Ok(guard) = guard {
                        let held = guard.names().iter().map(|name| format!("lock:{name}"));
                        assert_eq!(lock_keys(server), held.collect::<Vec<_>>());
                        assert_released(guard.unlock());
                    }
                    // Nobody begins the next round before the set is free.
                    ended.wait();
                }
            });
        }
    });
    assert_eq!(lock_keys(&server), [""; 0]);
}

/// A blocked call holds none of its names. Only the release of the name that blocked it wakes it.
fn waiter_is_woken_only_by_the_name_that_blocked_it() {
    let server = Server::start();
    let (one, two) = (client(&server.url()), client(&server.url()));
    // Connects the client and loads the script.
    drop(one.mutex("a").lock().unwrap());
    for is_in_a_set in [false, true] {
        let held = if is_in_a_set {
            one.mutex_all(["b", "d"]).lock().map(Ok).unwrap()
        } else {
            Err(one.mutex("b").lock().unwrap())
        };
        let plain = client(&server.url());
        thread::scope(|scope| {
            let waiting = scope.spawn(|| two.mutex_all(["c", "b", "a"]).try_lock_for(ms(20_000)));
            server.wait_until_waiter_sleeps("lock_release:b");
            let before = two.stats().totals;
            // The set keeps the names below the one that it waits for.
            assert!(one.mutex("a").try_lock().unwrap().is_err());
            let other = one.mutex("c").try_lock().unwrap();
            other.expect("the set has not come to it").unlock().unwrap();
            let guard = assert_message_wakes(&two, || {
                match held {
                    Ok(all) => assert_released(all.unlock()),
                    Err(one) => assert_released(one.unlock()),
                }
                granted(waiting.join().unwrap())
            });
            // On a busy machine the waiter may ask again on its own, just before the message.
            let after = two.stats().totals;
            assert!(after.wakes <= before.wakes + 1, "{before} {after}");
            let spurious = [before, after].map(|totals| totals.spurious_wakes);
            assert_eq!(spurious[0], spurious[1], "other releases wake nobody");
            // The release of the set wakes a plain waiter for any of its names.
            let waiting = scope.spawn(|| plain.mutex("c").try_lock_for(ms(20_000)));
            server.wait_until_waiter_sleeps("lock_release:c");
            assert_message_wakes(&plain, || {
                assert_released(guard.unlock());
                drop(granted(waiting.join().unwrap()));
            });
        });
        eventually(ms(10_000), || lock_keys(&server).is_empty());
    }
}

/// A release message that arrives before the refusal finds no waiter to wake. The refused call
/// must therefore try once more.
fn release_that_overtakes_the_refusal_is_not_missed() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let one = client(&server.url());
    let two = builder(&proxy.url()).command_timeout(ms(10_000));
    let two = two.build().unwrap();
    let calls = || server.script_calls();
    let [z, b] = ["z", "b"].map(|name| one.mutex(name).lock().unwrap());
    thread::scope(|scope| {
        // The client subscribes to `b` and stays subscribed for a while.
        let waiting = scope.spawn(|| two.mutex("b").try_lock_for(ms(20_000)));
        server.wait_until_waiter_sleeps("lock_release:b");
        b.unlock().unwrap();
        drop(
            waiting
                .join()
                .unwrap()
                .unwrap()
                .expect("the waiter is woken"),
        );
        let b = one.mutex("b").lock().unwrap();
        let last = scope.spawn(|| two.mutex("z").try_lock_for(ms(20_000)));
        server.wait_until_waiter_sleeps("lock_release:z");
        let mut before = calls();
        eventually(ms(10_000), || {
            std::mem::replace(&mut before, calls()) == before
        });

        let subscribed = proxy.connections_that_sent("SUBSCRIBE");
        let others = (0..proxy.connections()).filter(|link| !subscribed.contains(link));
        others.for_each(|link| proxy.set_nth(link, Traffic::StallReplies));
        let waiting = scope.spawn(|| two.mutex_all(["B", "b"]).try_lock_for(ms(20_000)));
        eventually(ms(10_000), || calls() > before);
        let before = calls();
        b.unlock().unwrap();
        z.unlock().unwrap();
        // The waiter for `z` has tried again, so the client has received the message about `b` too.
        eventually(ms(10_000), || calls() > before + 2);
        proxy.set_all(Traffic::Pass);
        let granted = waiting.join().unwrap().unwrap();
        assert!(granted.is_ok(), "the refused call tries again");
        assert!(last.join().unwrap().unwrap().is_ok());
    });
}

/// Waiters of one client, for sets and for single names, get the names one after the other. An
/// attempt for a name that the client holds sends no command.
fn waiters_of_one_client_wake_each_other() {
    let server = Server::start();
    let client = client(&server.url());
    let held = client.mutex_all(["a", "b"]).lock().unwrap();
    let (got, guards) = unbounded();
    thread::scope(|scope| {
        let sets: [&[&str]; 4] = [&["a", "b"], &["b", "c"], &["c", "b", "a"], &["a"]];
        for names in sets {
            let (client, got) = (&client, got.clone());
            scope.spawn(move || {
                let guard = client
                    .mutex_all(names.iter().copied())
                    .try_lock_for(ms(20_000));
                let _ = got.send(guard.unwrap().expect("the waiter is woken"));
            });
        }
        // `c` is free: the sets that contain it wait for `b`.
        assert_released(client.mutex_all(["c"]).lock().unwrap().unlock());
        // This client holds `b`, so the attempt sends no command. The waiting sets refresh their
        // places, but only every 0.9 s.
        let calls = || server.script_calls();
        eventually(ms(10_000), || {
            let before = calls();
            assert!(client.mutex_all(["B", "b"]).try_lock().unwrap().is_err());
            calls() == before
        });
        eventually(ms(10_000), || client.stats().waiting == 4);
        assert_released(held.unlock());
        for _ in sets {
            assert_released(
                guards
                    .recv_timeout(ms(20_000))
                    .expect("all waiters are woken")
                    .unlock(),
            );
        }
    });
    assert_eq!(lock_keys(&server), [""; 0]);
}

fn loss_of_one_name_loses_and_releases_the_set() {
    let server = Server::start();
    let (one, two) = (client(&server.url()), client(&server.url()));
    let (report, losses) = unbounded();
    let all = one
        .mutex_all(["a", "b", "c"])
        .renew_every(ms(100))
        .on_lost(move |lost| {
            let _ = report.send(*lost);
        });
    // Deleted by another program, overwritten, and force-unlocked by an operator.
    let breaks: [(&dyn Fn(), Lost); 3] = [
        (&|| server.run("DEL", &["lock:b"]), Lost::Deleted),
        (
            &|| server.run("SET", &["lock:b", "foreign", "PX", "1500"]),
            Lost::Taken,
        ),
        (
            &|| assert!(two.mutex("b").force_unlock().unwrap()),
            Lost::Deleted,
        ),
    ];
    for (breaks, why) in breaks {
        let guard = all.lock().unwrap();
        let lost = guard.lost();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| two.mutex("c").try_lock_for(ms(20_000)));
            server.wait_until_waiter_sleeps("lock_release:c");
            breaks();
            assert_eq!(lost.recv_timeout(ms(10_000)), Ok(why));
            assert!(!guard.is_held() && guard.remaining().is_none());
            assert!(matches!(guard.ensure_held(), Err(Error::Lost(_))));
            assert_eq!(losses.recv_timeout(ms(10_000)), Ok(why));
            // The other names are released although the guard still exists.
            let woken = waiting
                .join()
                .unwrap()
                .unwrap()
                .expect("the waiter is woken");
            woken.unlock().unwrap();
        });
        eventually(ms(10_000), || server.get("lock:a").is_none());
        assert_eq!(guard.unlock().unwrap_err().lost(), Some(why));
        eventually(ms(10_000), || lock_keys(&server).is_empty());
    }
    assert!(losses.is_empty(), "each loss is reported once");
}

fn release_reports_a_lost_name_and_releases_the_others() {
    let server = Server::start();
    let client = client(&server.url());
    let guard = client.mutex_all(["a", "b", "c"]).lock().unwrap();
    server.run("SET", &["lock:b", "foreign"]);
    let lost = Some(Lost::Taken);
    assert_eq!(guard.unlock().unwrap_err().lost(), lost);
    assert_eq!(lock_keys(&server), ["lock:b"]);
    assert_eq!(server.get("lock:b"), Some(b"foreign".to_vec()));
}

fn set_without_renewal_expires_entirely() {
    let server = Server::start();
    let (one, two) = (client(&server.url()), client(&server.url()));
    let all = one.mutex_all(["a", "b"]).ttl(ms(400)).auto_renew(false);
    let guard = all.lock().unwrap();
    thread::scope(|scope| {
        // No message announces that a key has expired.
        let waiting = scope.spawn(|| two.mutex_all(["b", "a"]).try_lock_for(ms(20_000)));
        assert_eq!(guard.lost().recv_timeout(ms(10_000)), Ok(Lost::Expired));
        let next = waiting
            .join()
            .unwrap()
            .unwrap()
            .expect("the lease has expired");
        assert!(token(&next, "a") > token(&guard, "a"));
        let lost = Some(Lost::Expired);
        assert_eq!(guard.unlock().unwrap_err().lost(), lost);
        assert!(next.is_held());
        assert_released(next.unlock());
    });
}

fn set_of_a_thousand_names_is_held_renewed_and_released() {
    let server = Server::start();
    let (one, two) = (client(&server.url()), client(&server.url()));
    let names: Vec<String> = (0..1_000).map(|n| format!("account:{n}")).collect();
    let (renewed, renewals) = unbounded();
    let all = one
        .mutex_all(names.iter().rev())
        .ttl(ms(20_000))
        .renew_every(ms(200));
    let all = all.on_renew(move |_| {
        let _ = renewed.send(());
    });
    let guard = all.lock().unwrap();
    assert_eq!(lock_keys(&server).len(), 1_000);
    renewals
        .recv_timeout(ms(10_000))
        .expect("the lease is renewed");
    guard.renew().unwrap();
    guard.set_ttl(ms(60_000)).unwrap();
    let ttls: HashSet<bool> = names
        .iter()
        .map(|name| {
            let left: u64 = redis::cmd("PTTL")
                .arg(format!("lock:{name}"))
                .query(&mut server.connection())
                .unwrap();
            left > 20_000
        })
        .collect();
    assert_eq!(ttls, HashSet::from([true]));
    assert!(two.mutex("account:777").try_lock().unwrap().is_err());
    let before = token(&guard, "account:777");
    assert!(format!("{all:?}").contains("account:777"));
    assert_released(guard.unlock());
    assert_eq!(lock_keys(&server), [""; 0]);
    let again = two
        .mutex_all(&names)
        .try_lock()
        .unwrap()
        .expect("the lock is free");
    assert!(token(&again, "account:777") > before);
    drop(again);
    assert_eq!(lock_keys(&server), [""; 0]);
}

/// Another program overwrites the key of one name while the set is held.
fn key_that_became_unreadable_is_a_loss_and_the_others_are_released() {
    let overwrite = |server: &Server| {
        server.run("DEL", &["lock:b"]);
        server.run("RPUSH", &["lock:b", "x"]);
    };
    let server = Server::start();
    let guard = client(&server.url()).mutex_all(["a", "b", "c"]).lock();
    let guard = guard.unwrap();
    overwrite(&server);
    for error in [guard.renew().err(), guard.unlock().err()] {
        assert!(
            matches!(&error, Some(Error::Lost(Lost::Taken))),
            "{error:?}"
        );
    }
    assert_eq!(lock_keys(&server), ["lock:b"]);
    // Over a quorum, sets have no queues, and another script releases them.
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let client = Client::builder().quorum(&urls).ttl(LONG).build().unwrap();
    connect_to_all(&client, &servers);
    let guard = client.mutex_all(["a", "b", "c"]).lock().unwrap();
    eventually(ms(10_000), || {
        servers.iter().all(|server| lock_keys(server).len() == 3)
    });
    overwrite(&servers[0]);
    assert_released(guard.unlock());
    eventually(ms(10_000), || lock_keys(&servers[0]) == ["lock:b"]);
}

/// A key that another program has overwritten is an error that names it, and nothing is held.
fn unreadable_key_is_an_error_and_nothing_stays_held() {
    let server = Server::start();
    let client = client(&server.url());
    let fence = "leasehold:fence:{lock:b}";
    for broken in ["1.5", "9007199254740991", "x"] {
        server.run("SET", &[fence, broken]);
        match client.mutex_all(["a", "b", "c"]).try_lock() {
            Err(Error::BadFence { key, .. }) => assert_eq!(key, fence),
            other => panic!("{other:?}"),
        }
        assert_eq!(lock_keys(&server), [""; 0]);
    }
    server.run("DEL", &[fence]);
    server.run("RPUSH", &["lock:c", "x"]);
    match client.mutex_all(["a", "b", "c"]).try_lock() {
        Err(Error::WrongType { key, .. }) => assert_eq!(key, "lock:c"),
        other => panic!("{other:?}"),
    }
    assert_eq!(lock_keys(&server), ["lock:c"]);
    // A token ahead of the clock is incremented, for its own name only.
    server.run("DEL", &["lock:c"]);
    server.run("SET", &[fence, "9007199254740000"]);
    let guard = client.mutex_all(["a", "b"]).try_lock().unwrap().unwrap();
    assert_eq!(token(&guard, "b").value(), 9_007_199_254_740_001);
    assert!(token(&guard, "a") < token(&guard, "b"));
}

fn unanswered_acquire_is_undone_and_release_repeated() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = builder(&proxy.url())
        .command_timeout(ms(200))
        .connect_timeout(ms(200))
        .build()
        .unwrap();
    assert_released(client.mutex_all(["a", "b"]).lock().unwrap().unlock());
    proxy.set_open(Traffic::DropReplies);
    let answer = client.mutex_all(["a", "b"]).try_lock_for(ms(100));
    assert!(
        matches!(answer, Err(Error::Unreachable { .. })),
        "{answer:?}"
    );
    eventually(ms(10_000), || lock_keys(&server).is_empty());

    // A release without a reply is repeated.
    proxy.set_all(Traffic::Pass);
    let guard = client.mutex_all(["a", "b"]).try_lock_for(ms(10_000));
    let guard = guard.unwrap().unwrap();
    proxy.set_all(Traffic::Cut);
    assert!(guard.unlock().is_err());
    assert_eq!(lock_keys(&server), ["lock:a", "lock:b"]);
    proxy.set_all(Traffic::Pass);
    eventually(ms(10_000), || lock_keys(&server).is_empty());
}

fn acquire_with_too_few_replicas_is_undone() {
    let server = Server::start();
    let client = client(&server.url());
    let all = client.mutex_all(["a", "b"]).min_replicas(1, ms(50));
    let answer = all.try_lock();
    assert!(
        matches!(
            answer,
            Err(Error::NotReplicated {
                acknowledged: 0,
                wanted: 1,
                ..
            })
        ),
        "{answer:?}"
    );
    eventually(ms(10_000), || lock_keys(&server).is_empty());
}

/// A server that has become a replica may be outdated: it must not report a set as held or as lost.
fn server_that_became_a_replica_reports_a_set_neither_held_nor_lost() {
    let server = Server::start();
    let short = || {
        builder(&server.url())
            .command_timeout(ms(300))
            .build()
            .unwrap()
    };
    let (one, two) = (short(), short());
    let [deleted, held] = [["a", "b"], ["c", "d"]].map(|names| {
        let all = one.mutex_all(names).auto_renew(false);
        all.lock().unwrap()
    });
    server.run("DEL", &["lock:a", "lock:b"]);
    server.run(
        "REPLICAOF",
        &["127.0.0.1", &support::free_port().to_string()],
    );
    let answer = two.mutex_all(["c", "d"]).try_lock();
    assert!(answer.unwrap_err().is_unreachable());
    for guard in [&deleted, &held] {
        assert!(guard.renew().unwrap_err().is_unreachable());
        assert!(guard.is_held());
    }
    assert!(deleted.unlock().unwrap_err().is_unreachable());
    server.run("REPLICAOF", &["NO", "ONE"]);
    // On a busy machine the short timeout ends some calls.
    eventually(ms(10_000), || held.renew().is_ok());
    drop(held);
    eventually(ms(10_000), || lock_keys(&server).is_empty());
}

fn calls_return_by_their_deadline() {
    let server = Server::start();
    let (one, two) = (client(&server.url()), client(&server.url()));
    let held = [
        one.mutex("b").lock().unwrap(),
        one.mutex("d").lock().unwrap(),
    ];
    let all = two.mutex_all(["a", "b", "c", "d"]);
    for policy in [
        WaitPolicy::Wake,
        WaitPolicy::Backoff(Backoff::new(ms(5), ms(50))),
    ] {
        let all = all.clone().wait_policy(policy);
        let waited = Control::run(ms(1_000), || all.try_lock_for(ms(1_000)));
        assert!(waited.no_later_than(SLACK).unwrap().is_err());
    }
    let mut held = held.into_iter();
    // Blocked by one name first, then by another.
    thread::scope(|scope| {
        let waiting = scope.spawn(|| Control::run(ms(4_000), || all.try_lock_for(ms(4_000))));
        server.wait_until_waiter_sleeps("lock_release:b");
        drop(held.next());
        server.wait_until_waiter_sleeps("lock_release:d");
        assert!(
            waiting
                .join()
                .unwrap()
                .no_later_than(SLACK)
                .unwrap()
                .is_err()
        );
    });
    server.pause();
    let asked = Control::run(ms(300), || all.try_lock_for(ms(300)));
    let answer = asked.no_later_than(SLACK);
    assert!(
        matches!(answer, Err(Error::Unreachable { .. })),
        "{answer:?}"
    );
    server.resume();
}

fn shutdown_releases_the_set() {
    let server = Server::start();
    let client = client(&server.url());
    let guard = client.mutex_all(["a", "b"]).lock().unwrap();
    let report = client.shutdown(ms(5_000));
    assert!(report.is_clean() && report.released == 2, "{report:?}");
    assert_eq!(lock_keys(&server), [""; 0]);
    let lost = Some(Lost::ShutDown);
    assert_eq!(guard.unlock().unwrap_err().lost(), lost);
}

fn is_locked(cluster: &Cluster, name: &str) -> bool {
    let key = format!("lock:{name}");
    cluster.node(cluster.master_of(&key)).get(key).is_some()
}

fn set_across_slots_is_acquired_or_rolled_back() {
    let cluster = Cluster::with(ClusterSetup::steady(3, 0));
    let (one, two) = (client(&cluster.url()), client(&cluster.url()));
    let names: Vec<String> = (0..3)
        .map(|node| cluster.name_owned_by("n", node))
        .collect();
    let before = assert_set_is_held(&cluster, &one, &two, &names);
    for held in names.iter().rev() {
        let guard = assert_name_blocks_the_set(&cluster, &one, &two, &names, held);
        for (name, before) in names.iter().zip(&before) {
            assert!(token(&guard, name) > *before);
        }
        assert_released(guard.unlock());
    }

    // The loss of one name loses the set across slots too.
    let guard = two.mutex_all(&names).renew_every(ms(100)).lock().unwrap();
    let key = format!("lock:{}", names[1]);
    cluster.node(cluster.master_of(&key)).run("DEL", &[&key]);
    assert_eq!(guard.lost().recv_timeout(ms(10_000)), Ok(Lost::Deleted));
    wait_until_unlocked(&cluster, &names);
    drop(guard);

    // Names in one slot take a single script.
    let tagged = ["{u1}b", "{u1}a"];
    let guard = one.mutex_all(tagged).lock().unwrap();
    assert!(tagged.iter().all(|name| is_locked(&cluster, name)));
    assert!(matches!(
        one.mutex_all(["a", "a}b"]).lock(),
        Err(Error::Config(_))
    ));
    drop(guard);

    assert_opposite_orders_do_not_deadlock([&one, &two], &names);
    assert!(names.iter().all(|name| !is_locked(&cluster, name)));

    // A renewal that reaches only two of the three slots does not count: the set expires.
    let guard = one.mutex_all(&names).ttl(ms(1_000)).lock().unwrap();
    let node = cluster.master_of(&format!("lock:{}", names[1]));
    cluster.pause(node);
    assert_eq!(guard.lost().recv_timeout(ms(10_000)), Ok(Lost::Expired));
    cluster.resume(node);
    drop(guard);
    wait_until_unlocked(&cluster, &names);
    assert!(one.shutdown(ms(5_000)).is_clean());
}

#[track_caller]
fn wait_until_unlocked(cluster: &Cluster, names: &[String]) {
    eventually(ms(10_000), || {
        names.iter().all(|name| !is_locked(cluster, name))
    });
}

/// Acquires, renews and releases the names as one set; returns the tokens.
fn assert_set_is_held(
    cluster: &Cluster,
    one: &Client,
    two: &Client,
    names: &[String],
) -> Vec<FencingToken> {
    let all = one.mutex_all(names).ttl(ms(20_000)).renew_every(ms(200));
    let (renewed, renewals) = unbounded();
    let all = all.on_renew(move |_| {
        let _ = renewed.send(());
    });
    let guard = all.lock().unwrap();
    assert_eq!(
        guard.names(),
        names.iter().map(Name::from).collect::<Vec<_>>()
    );
    for name in names {
        assert!(is_locked(cluster, name));
        assert!(two.mutex(name).try_lock().unwrap().is_err());
    }
    renewals
        .recv_timeout(ms(10_000))
        .expect("the lease is renewed");
    guard.renew().unwrap();
    guard.set_ttl(ms(60_000)).unwrap();
    let tokens = names.iter().map(|name| token(&guard, name)).collect();
    assert_released(guard.unlock());
    assert!(names.iter().all(|name| !is_locked(cluster, name)));
    tokens
}

/// While one name is held, no part of the set stays behind, and the release of the name wakes the
/// waiter for the set.
fn assert_name_blocks_the_set(
    cluster: &Cluster,
    one: &Client,
    two: &Client,
    names: &[String],
    held: &String,
) -> MutexAllGuard {
    let plain = one.mutex(held).lock().unwrap();
    assert!(one.mutex_all(names).try_lock().unwrap().is_err());
    assert!(two.mutex_all(names).try_lock().unwrap().is_err());
    let taken = names.iter().filter(|name| is_locked(cluster, name));
    assert!(taken.eq([held]));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| two.mutex_all(names).try_lock_for(ms(20_000)));
        let owner = cluster.master_of(&format!("lock:{held}"));
        cluster
            .node(owner)
            .wait_until_waiter_sleeps(format!("lock_release:{held}"));
        assert_message_wakes(two, || {
            assert_released(plain.unlock());
            granted(waiting.join().unwrap())
        })
    })
}

fn assert_opposite_orders_do_not_deadlock(clients: [&Client; 2], names: &[String]) {
    thread::scope(|scope| {
        for n in 0..4 {
            let mut names = names.to_vec();
            names.rotate_left(n % 3);
            names.truncate(2 + n % 2);
            scope.spawn(move || {
                for _ in 0..20 {
                    let all = clients[n % 2].mutex_all(&names);
                    let guard = all.try_lock_for(ms(20_000)).unwrap();
                    assert_released(guard.expect("no deadlock").unlock());
                }
            });
        }
    });
}

/// A server votes for the whole set: a majority must have granted all names.
fn quorum_counts_only_votes_for_the_whole_set() {
    let mut servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let open = || {
        let builder = Client::builder().quorum(&urls).ttl(LONG);
        builder.build().unwrap()
    };
    let (one, two) = (open(), open());
    // Two servers have a token far ahead of the clock: the second proposal exceeds it everywhere.
    let ahead = 9_000_000_000_000_000_u64;
    servers[1].run("SET", &["leasehold:fence:{lock:b}", &ahead.to_string()]);
    servers[2].run("SET", &["leasehold:fence:{lock:b}", &ahead.to_string()]);
    let guard = one.mutex_all(["b", "a"]).lock().unwrap();
    assert!(token(&guard, "b").value() > ahead);
    for name in ["a", "b"] {
        assert!(two.mutex(name).try_lock().unwrap().is_err());
    }
    assert!(two.mutex_all(["B", "b"]).try_lock().unwrap().is_err());
    guard.renew().unwrap();
    let before = token(&guard, "a");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| two.mutex_all(["B", "b"]).try_lock_for(ms(20_000)));
        for server in &servers {
            server.wait_until_waiter_sleeps("lock_release:b");
        }
        let guard = assert_message_wakes(&two, || {
            assert_released(guard.unlock());
            granted(waiting.join().unwrap())
        });
        assert!(token(&guard, "b") > before);
        assert_released(guard.unlock());
    });
    for server in &servers {
        eventually(ms(10_000), || lock_keys(server).is_empty());
    }
    // A minority may be down.
    servers[0].kill();
    let guard = one
        .mutex_all(["a", "b"])
        .renew_every(ms(100))
        .lock()
        .unwrap();
    assert!(token(&guard, "a") > before);
    // A set is lost with each of its names.
    for server in &servers[1..] {
        server.run("DEL", &["lock:b"]);
    }
    assert_eq!(guard.lost().recv_timeout(ms(10_000)), Ok(Lost::Deleted));
    for server in &servers[1..] {
        eventually(ms(10_000), || lock_keys(server).is_empty());
    }
    drop(guard);
    servers[1].kill();
    let answer = two.mutex_all(["a", "b"]).try_lock_for(ms(1_000));
    assert!(
        matches!(answer, Err(Error::Unreachable { .. })),
        "{answer:?}"
    );
    eventually(ms(10_000), || lock_keys(&servers[2]).is_empty());
}

/// A set with enough acknowledged replicas stays held on the new master, and its waiters are woken
/// there.
fn set_survives_a_failover() {
    let mut sentinels = Sentinels::start(Setup::fast_failover());
    let (one, two) = (client(&sentinels.url()), client(&sentinels.url()));
    // The more recent of the two replicas is promoted; the other one acknowledges from then on.
    let all = one.mutex_all(["b", "a"]).min_replicas(1, ms(800));
    let guard = all.lock().unwrap();
    let before = token(&guard, "b");
    sentinels.kill_first_master();
    let successor = sentinels.successor();
    eventually(ms(20_000), || guard.set_ttl(LONG).is_ok());
    assert_eq!(lock_keys(successor), ["lock:a", "lock:b"]);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| two.mutex_all(["c", "b"]).try_lock_for(ms(20_000)));
        successor.wait_until_waiter_sleeps("lock_release:b");
        let guard = assert_message_wakes(&two, || {
            assert_released(guard.unlock());
            granted(waiting.join().unwrap())
        });
        assert!(token(&guard, "b") > before);
        assert_eq!(lock_keys(successor), ["lock:b", "lock:c"]);
        assert_released(guard.unlock());
    });
    assert!(lock_keys(successor).is_empty());
}
