//! Promise: several names are taken all or none, without deadlocks, and are one lease: lost, renewed and released as one.

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use leasehold::{
    Backoff, Client, ClientBuilder, Error, FencingToken, Lost, MutexAllGuard, Name, Unlocked,
    WaitPolicy,
};
use support::{
    Child, Cluster, ClusterSetup, Control, Proxy, Sentinels, Server, Setup, Traffic, eventually,
    ms, parameter, tell_parent,
};

support::roles![mover];

support::tests![
    basic_calls_work_on_a_set,
    no_name_is_an_error_and_one_is_a_plain_lock,
    sets_in_opposite_orders_get_through,
    half_a_set_is_never_seen,
    a_release_that_overtakes_the_refusal_is_not_missed,
    waiters_of_one_client_pass_names_to_each_other,
    losing_one_is_losing_all,
    a_release_finds_the_loss,
    without_renewal_all_of_them_expire,
    a_thousand_names,
    what_cannot_be_read_leaves_nothing_held,
    what_gets_no_answer_is_undone,
    what_too_few_replicas_have_is_undone,
    a_replica_says_nothing_of_a_set,
    a_shutdown_releases_all,
    a_cluster_takes_slot_by_slot_and_gives_back,
    a_quorum_votes_for_the_set,
    a_set_outlives_its_master
];

support::timed![
    a_waiter_is_woken_by_the_name_that_it_waits_for,
    deadlines_are_kept
];

const PROCESSES: usize = 3;
const THREADS: usize = 4;
const ROUNDS: usize = 60;

/// Longer than a test takes: what is gone before then was released or undone.
const LONG: Duration = ms(300_000);

/// What a call may be later than a plain wait of the same length.
const SLACK: Duration = ms(250);

fn builder(url: &str) -> ClientBuilder {
    Client::builder().url(url).ttl(LONG)
}

fn client(url: &str) -> Client {
    builder(url).build().unwrap()
}

/// One whose waiters are woken by a message or not at all.
fn patient(url: &str) -> Client {
    builder(url).backstop(ms(60_000)).build().unwrap()
}

fn lock_keys(server: &Server) -> Vec<String> {
    let mut keys: Vec<String> = redis::cmd("KEYS")
        .arg("lock:*")
        .query(&mut server.connection())
        .unwrap();
    keys.sort();
    keys
}

#[track_caller]
fn released(guard: MutexAllGuard) {
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
}

fn token(guard: &MutexAllGuard, name: &str) -> FencingToken {
    guard.fencing_token_of(name).expect("it is held")
}

/// The sets that are wanted, in every order.
const SETS: [&[&str]; 6] = [
    &["a", "b"],
    &["b", "a"],
    &["c", "b", "a"],
    &["a", "c"],
    &["c", "b"],
    &["b"],
];

/// Takes sets and single names in turns, and writes down for each name under which token it was there. The key that
/// counts a name's holders is read and written back, so that two of them would be seen.
fn mover() {
    let client = Client::open(&parameter("URL")).unwrap();
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
                        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
                        continue;
                    }
                    let guard = client.mutex_all(names.iter().copied()).lock().unwrap();
                    for name in names {
                        visit(&mut redis, name, token(&guard, name));
                    }
                    released(guard);
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

/// Watches three names that are only ever taken together. How often they were.
fn watch(server: &Server, is_over: &AtomicBool) -> usize {
    let mut looks = 0;
    let mut redis = server.connection();
    while !is_over.load(Ordering::SeqCst) {
        let seen: Vec<Option<String>> = redis::cmd("MGET")
            .arg(&["lock:x", "lock:y", "lock:z"])
            .query(&mut redis)
            .unwrap();
        assert!(
            seen.iter().all(|value| *value == seen[0]),
            "half a set: {seen:?}"
        );
        looks += usize::from(seen[0].is_some());
    }
    looks
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
        let holder = guard.holder_id().as_str().as_bytes().to_vec();
        assert_eq!(server.get(format!("lock:{name}")), Some(holder));
        for client in [&one, &two] {
            assert!(client.mutex(name).try_lock().unwrap().is_none());
            assert!(client.mutex_all([name, "c"]).try_lock().unwrap().is_none());
        }
        let seen = two.mutex(name).inspect().unwrap().expect("it is held");
        assert_eq!(seen.fencing_token(), guard.fencing_token_of(name));
    }
    assert_eq!(guard.fencing_token_of("c"), None);
    assert!(guard.is_held() && guard.remaining().is_some() && guard.ensure_held().is_ok());
    guard.renew().unwrap();
    guard.extend(ms(60_000)).unwrap();
    for name in ["a", "b"] {
        let left: u64 = redis::cmd("PTTL")
            .arg(format!("lock:{name}"))
            .query(&mut server.connection())
            .unwrap();
        assert!((50_000..=60_000).contains(&left), "{left}");
    }
    let before = ["a", "b"].map(|name| token(&guard, name));
    released(guard);
    assert_eq!(lock_keys(&server), [""; 0]);

    let plain = two.mutex("b").lock().unwrap();
    assert!(one.mutex_all(["a", "b"]).try_lock().unwrap().is_none());
    assert!(plain.fencing_token() > before[1]);
    assert_eq!(lock_keys(&server), ["lock:b"]);
    drop(plain);
    let again = one
        .mutex_all(["a", "b"])
        .with(|guard| ["a", "b"].map(|name| token(guard, name)));
    let again = again.unwrap();
    assert!(again[0] > before[0] && again[1] > before[1]);
    assert_eq!(both.try_with(|guard| guard.is_held()).unwrap(), Some(true));
    assert_eq!(lock_keys(&server), [""; 0]);
}

fn no_name_is_an_error_and_one_is_a_plain_lock() {
    let server = Server::start();
    let client = client(&server.url());
    let nothing = client.mutex_all([""; 0]);
    for answer in [
        nothing.lock().map(Some),
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
    assert!(client.mutex("a").try_lock().unwrap().is_none());
    // Same bytes only: no spelling is like another.
    assert!(client.mutex_all(["A", "a "]).try_lock().unwrap().is_some());
    released(guard);
}

/// Sets and single names, in every order, in threads and processes: all get through, one at a time for each name, and
/// the tokens of a name rise in the order of those who held it.
fn sets_in_opposite_orders_get_through() {
    let server = Server::start();
    let start = client(&server.url())
        .mutex_all(["a", "b", "c"])
        .lock()
        .unwrap();
    let children: Vec<_> = (0..PROCESSES)
        .map(|n| {
            let first = (n * 2).to_string();
            Child::spawn("all::mover", &[("URL", &server.url()), ("FIRST", &first)])
        })
        .collect();
    for child in &children {
        child.wait_for_line("ready");
    }
    let firsts = ["a", "b", "c"].map(|name| token(&start, name).value());
    released(start);
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

fn half_a_set_is_never_seen() {
    let server = Server::start();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watching = scope.spawn(|| watch(&server, &is_over));
        let orders = [["x", "y", "z"], ["z", "y", "x"], ["y", "z", "x"]];
        let movers = orders.map(|names| {
            let client = client(&server.url());
            scope.spawn(move || {
                for _ in 0..150 {
                    released(client.mutex_all(names).lock().unwrap());
                }
            })
        });
        for mover in movers {
            mover.join().unwrap();
        }
        is_over.store(true, Ordering::SeqCst);
        assert!(watching.join().unwrap() > 0);
    });
}

/// One that is refused for a name takes nothing of the others, sleeps, and is woken by the release of that name alone.
fn a_waiter_is_woken_by_the_name_that_it_waits_for() {
    let server = Server::start();
    let (one, two) = (client(&server.url()), patient(&server.url()));
    // So that no script is sent twice below.
    drop(one.mutex("a").lock().unwrap());
    for is_in_a_set in [false, true] {
        let held = if is_in_a_set {
            one.mutex_all(["b", "d"]).lock().map(Ok).unwrap()
        } else {
            Err(one.mutex("b").lock().unwrap())
        };
        thread::scope(|scope| {
            let waiting = scope.spawn(|| two.mutex_all(["c", "b", "a"]).try_lock_for(ms(20_000)));
            server.wait_until_waiter_sleeps("lock_release:b");
            // It looks once more when it hears of releases, and then sleeps.
            let calls = || server.calls(&["evalsha", "eval"]);
            let mut before = calls();
            eventually(ms(10_000), || {
                std::mem::replace(&mut before, calls()) == before
            });
            for name in ["a", "c"] {
                let other = one
                    .mutex(name)
                    .try_lock()
                    .unwrap()
                    .expect("it takes nothing");
                assert_eq!(other.unlock().unwrap(), Unlocked::Released);
            }
            assert_eq!(calls(), before + 4, "it looks for nobody else's release");
            let at = Instant::now();
            match held {
                Ok(all) => released(all),
                Err(one) => assert_eq!(one.unlock().unwrap(), Unlocked::Released),
            }
            let guard = waiting.join().unwrap().unwrap().expect("it is woken");
            assert!(at.elapsed() < ms(10_000), "{:?}", at.elapsed());
            // A plain waiter for any of them is woken by the release of all.
            let plain = patient(&server.url());
            let waiting = scope.spawn(move || plain.mutex("c").try_lock_for(ms(20_000)));
            server.wait_until_waiter_sleeps("lock_release:c");
            released(guard);
            assert!(waiting.join().unwrap().unwrap().is_some(), "it is woken");
        });
        eventually(ms(10_000), || lock_keys(&server).is_empty());
    }
}

/// A name that is released before its refusal has arrived is looked at once more: its waiters had nobody among them whom
/// the message could wake.
fn a_release_that_overtakes_the_refusal_is_not_missed() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let one = client(&server.url());
    let two = builder(&proxy.url()).backstop(ms(60_000));
    let two = two.command_timeout(ms(10_000)).build().unwrap();
    let calls = || server.calls(&["evalsha", "eval"]);
    let [z, b] = ["z", "b"].map(|name| one.mutex(name).lock().unwrap());
    thread::scope(|scope| {
        // From now on it hears of `b`, for a while.
        let waiting = scope.spawn(|| two.mutex("b").try_lock_for(ms(20_000)));
        server.wait_until_waiter_sleeps("lock_release:b");
        assert_eq!(b.unlock().unwrap(), Unlocked::Released);
        drop(waiting.join().unwrap().unwrap().expect("it is woken"));
        let b = one.mutex("b").lock().unwrap();
        let last = scope.spawn(|| two.mutex("z").try_lock_for(ms(20_000)));
        server.wait_until_waiter_sleeps("lock_release:z");
        let mut before = calls();
        eventually(ms(10_000), || {
            std::mem::replace(&mut before, calls()) == before
        });

        let hearing = proxy.connections_that_sent("SUBSCRIBE");
        let asking = (0..proxy.connections()).filter(|link| !hearing.contains(link));
        asking.for_each(|link| proxy.set_nth(link, Traffic::StallReplies));
        let waiting = scope.spawn(|| two.mutex_all(["B", "b"]).try_lock_for(ms(20_000)));
        eventually(ms(10_000), || calls() > before);
        let before = calls();
        assert_eq!(b.unlock().unwrap(), Unlocked::Released);
        assert_eq!(z.unlock().unwrap(), Unlocked::Released);
        // Whoever waits for `z` asks: so the message about `b` has been heard.
        eventually(ms(10_000), || calls() > before + 2);
        proxy.set_all(Traffic::Pass);
        assert!(waiting.join().unwrap().unwrap().is_some(), "it looks again");
        assert!(last.join().unwrap().unwrap().is_some());
    });
}

/// In one client: those who wait for sets and for single names are woken by each other, and nobody asks Redis while all
/// wait.
fn waiters_of_one_client_pass_names_to_each_other() {
    let server = Server::start();
    let client = patient(&server.url());
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
                let _ = got.send(guard.unwrap().expect("it is woken"));
            });
        }
        // `c` alone: the set with it waits for `b`.
        released(client.mutex_all(["c"]).lock().unwrap());
        // This client holds one of them, so it costs no call; those who wait make none once they hear.
        let calls = || server.calls(&["evalsha", "eval"]);
        eventually(ms(10_000), || {
            let before = calls();
            assert!(client.mutex_all(["B", "b"]).try_lock().unwrap().is_none());
            calls() == before
        });
        released(held);
        for _ in sets {
            released(
                guards
                    .recv_timeout(ms(20_000))
                    .expect("all of them are woken"),
            );
        }
    });
    assert_eq!(lock_keys(&server), [""; 0]);
}

fn losing_one_is_losing_all() {
    let server = Server::start();
    let (one, two) = (client(&server.url()), patient(&server.url()));
    let (told, losses) = unbounded();
    let all = one
        .mutex_all(["a", "b", "c"])
        .renew_every(ms(100))
        .on_lost(move |lost| {
            let _ = told.send(*lost);
        });
    // Deleted behind our back, taken over, and by an operator.
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
            // The guard is still there: the others are released all the same.
            let woken = waiting.join().unwrap().unwrap().expect("it is woken");
            assert_eq!(woken.unlock().unwrap(), Unlocked::Released);
        });
        eventually(ms(10_000), || server.get("lock:a").is_none());
        assert_eq!(guard.unlock().unwrap(), Unlocked::AlreadyLost(why));
        eventually(ms(10_000), || lock_keys(&server).is_empty());
    }
    assert!(losses.is_empty(), "told once");
}

/// A release that finds one of them gone says so, and lets go of the others.
fn a_release_finds_the_loss() {
    let server = Server::start();
    let client = client(&server.url());
    let guard = client.mutex_all(["a", "b", "c"]).lock().unwrap();
    server.run("SET", &["lock:b", "foreign"]);
    let lost = Unlocked::AlreadyLost(Lost::Taken);
    assert_eq!(guard.unlock().unwrap(), lost);
    assert_eq!(lock_keys(&server), ["lock:b"]);
    assert_eq!(server.get("lock:b"), Some(b"foreign".to_vec()));
}

fn without_renewal_all_of_them_expire() {
    let server = Server::start();
    let (one, two) = (client(&server.url()), patient(&server.url()));
    let all = one.mutex_all(["a", "b"]).ttl(ms(400)).auto_renew(false);
    let guard = all.lock().unwrap();
    thread::scope(|scope| {
        // Nobody tells of a key that runs out.
        let waiting = scope.spawn(|| two.mutex_all(["b", "a"]).try_lock_for(ms(20_000)));
        assert_eq!(guard.lost().recv_timeout(ms(10_000)), Ok(Lost::Expired));
        let next = waiting.join().unwrap().unwrap().expect("it has run out");
        assert!(token(&next, "a") > token(&guard, "a"));
        let lost = Unlocked::AlreadyLost(Lost::Expired);
        assert_eq!(guard.unlock().unwrap(), lost);
        assert!(next.is_held());
        released(next);
    });
}

fn a_thousand_names() {
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
    renewals.recv_timeout(ms(10_000)).expect("it is renewed");
    guard.renew().unwrap();
    guard.extend(ms(60_000)).unwrap();
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
    assert!(two.mutex("account:777").try_lock().unwrap().is_none());
    let before = token(&guard, "account:777");
    assert!(format!("{all:?}").contains("account:777"));
    released(guard);
    assert_eq!(lock_keys(&server), [""; 0]);
    let again = two
        .mutex_all(&names)
        .try_lock()
        .unwrap()
        .expect("it is free");
    assert!(token(&again, "account:777") > before);
    drop(again);
    assert_eq!(lock_keys(&server), [""; 0]);
}

/// What is stored by others under one of the names is an error that names it, and nothing is held.
fn what_cannot_be_read_leaves_nothing_held() {
    let server = Server::start();
    let client = client(&server.url());
    let fence = "leasehold:fence:{lock:b}";
    for broken in ["1.5", "9007199254740991", "x"] {
        server.run("SET", &[fence, broken]);
        match client.mutex_all(["a", "b", "c"]).try_lock() {
            Err(Error::BadFence { key }) => assert_eq!(key, fence),
            other => panic!("{other:?}"),
        }
        assert_eq!(lock_keys(&server), [""; 0]);
    }
    server.run("DEL", &[fence]);
    server.run("RPUSH", &["lock:c", "x"]);
    match client.mutex_all(["a", "b", "c"]).try_lock() {
        Err(Error::WrongType { key }) => assert_eq!(key, "lock:c"),
        other => panic!("{other:?}"),
    }
    assert_eq!(lock_keys(&server), ["lock:c"]);
    // A counter that is ahead of the clock goes up from there, for its own name alone.
    server.run("DEL", &["lock:c"]);
    server.run("SET", &[fence, "9007199254740000"]);
    let guard = client.mutex_all(["a", "b"]).try_lock().unwrap().unwrap();
    assert_eq!(token(&guard, "b").value(), 9_007_199_254_740_001);
    assert!(token(&guard, "a") < token(&guard, "b"));
}

fn what_gets_no_answer_is_undone() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = builder(&proxy.url())
        .command_timeout(ms(200))
        .connect_timeout(ms(200))
        .build()
        .unwrap();
    released(client.mutex_all(["a", "b"]).lock().unwrap());
    proxy.set_open(Traffic::DropReplies);
    let answer = client.mutex_all(["a", "b"]).try_lock_for(ms(100));
    assert!(
        matches!(answer, Err(Error::Unreachable { .. })),
        "{answer:?}"
    );
    eventually(ms(10_000), || lock_keys(&server).is_empty());

    // A release that got none is repeated, and was none too late.
    proxy.set_all(Traffic::Pass);
    let guard = client.mutex_all(["a", "b"]).try_lock_for(ms(10_000));
    let guard = guard.unwrap().unwrap();
    proxy.set_all(Traffic::Cut);
    assert!(guard.unlock().is_err());
    assert_eq!(lock_keys(&server), ["lock:a", "lock:b"]);
    proxy.set_all(Traffic::Pass);
    eventually(ms(10_000), || lock_keys(&server).is_empty());
}

fn what_too_few_replicas_have_is_undone() {
    let server = Server::start();
    let client = client(&server.url());
    let all = client.mutex_all(["a", "b"]).min_replicas(1, ms(50));
    let answer = all.try_lock();
    assert!(
        matches!(
            answer,
            Err(Error::NotReplicated {
                acknowledged: 0,
                wanted: 1
            })
        ),
        "{answer:?}"
    );
    eventually(ms(10_000), || lock_keys(&server).is_empty());
}

/// A server that has become a replica knows nothing for sure: it must not say that a set is held, nor that it is lost.
fn a_replica_says_nothing_of_a_set() {
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
    assert!(
        matches!(answer, Err(Error::Unreachable { .. })),
        "{answer:?}"
    );
    for guard in [&deleted, &held] {
        let answer = guard.renew();
        assert!(
            matches!(answer, Err(Error::Unreachable { .. })),
            "{answer:?}"
        );
        assert!(guard.is_held());
    }
    let answer = deleted.unlock();
    assert!(
        matches!(answer, Err(Error::Unreachable { .. })),
        "{answer:?}"
    );
    server.run("REPLICAOF", &["NO", "ONE"]);
    released(held);
}

fn deadlines_are_kept() {
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
        let all = all.clone().wait(policy);
        let waited = Control::run(ms(300), || all.try_lock_for(ms(300)));
        assert!(waited.no_later_than(SLACK).unwrap().is_none());
    }
    let mut held = held.into_iter();
    // Refused for one name first, and for another then.
    thread::scope(|scope| {
        let waiting = scope.spawn(|| Control::run(ms(1_000), || all.try_lock_for(ms(1_000))));
        server.wait_until_waiter_sleeps("lock_release:b");
        drop(held.next());
        server.wait_until_waiter_sleeps("lock_release:d");
        assert!(
            waiting
                .join()
                .unwrap()
                .no_later_than(SLACK)
                .unwrap()
                .is_none()
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

fn a_shutdown_releases_all() {
    let server = Server::start();
    let client = client(&server.url());
    let guard = client.mutex_all(["a", "b"]).lock().unwrap();
    let report = client.shutdown(ms(5_000)).unwrap();
    assert!(report.is_clean() && report.released() == 1, "{report:?}");
    assert_eq!(lock_keys(&server), [""; 0]);
    let lost = Unlocked::AlreadyLost(Lost::ShutDown);
    assert_eq!(guard.unlock().unwrap(), lost);
}

/// Names in slots of all three masters, in the order of the slots.
fn apart(cluster: &Cluster, what: &str) -> Vec<String> {
    let mut names: Vec<String> = (0..3)
        .map(|node| name_owned_by(cluster, what, node))
        .collect();
    names.sort_by_key(|name| cluster.slot(&format!("lock:{name}")));
    names
}

/// A name that begins like this, on this node.
fn name_owned_by(cluster: &Cluster, what: &str, node: usize) -> String {
    (0..)
        .map(|n| format!("{what}{n}"))
        .find(|name| cluster.master_of(&format!("lock:{name}")) == node)
        .expect("there are names for every node")
}

fn is_taken(cluster: &Cluster, name: &str) -> bool {
    let key = format!("lock:{name}");
    cluster.node(cluster.master_of(&key)).get(key).is_some()
}

fn a_cluster_takes_slot_by_slot_and_gives_back() {
    let cluster = Cluster::with(ClusterSetup::steady(3, 0));
    let (one, two) = (client(&cluster.url()), patient(&cluster.url()));
    let names = apart(&cluster, "n");
    let all = one.mutex_all(&names).ttl(ms(20_000)).renew_every(ms(200));
    let (renewed, renewals) = unbounded();
    let all = all.on_renew(move |_| {
        let _ = renewed.send(());
    });
    let guard = all.lock().unwrap();
    assert_eq!(
        guard.names(),
        names.iter().map(Name::from).collect::<Vec<_>>()
    );
    for name in &names {
        assert!(is_taken(&cluster, name));
        assert!(two.mutex(name).try_lock().unwrap().is_none());
    }
    renewals.recv_timeout(ms(10_000)).expect("it is renewed");
    guard.renew().unwrap();
    guard.extend(ms(60_000)).unwrap();
    let before: Vec<_> = names.iter().map(|name| token(&guard, name)).collect();
    released(guard);
    assert!(names.iter().all(|name| !is_taken(&cluster, name)));

    // Refused by the last, the second and the first slot: nothing is left behind, and its release wakes.
    for held in names.iter().rev() {
        let plain = one.mutex(held).lock().unwrap();
        assert!(one.mutex_all(&names).try_lock().unwrap().is_none());
        assert!(two.mutex_all(&names).try_lock().unwrap().is_none());
        let taken = names.iter().filter(|name| is_taken(&cluster, name));
        assert!(taken.eq([held]));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| two.mutex_all(&names).try_lock_for(ms(20_000)));
            let home = cluster.master_of(&format!("lock:{held}"));
            cluster
                .node(home)
                .wait_until_waiter_sleeps(format!("lock_release:{held}"));
            assert_eq!(plain.unlock().unwrap(), Unlocked::Released);
            let guard = waiting.join().unwrap().unwrap().expect("it is woken");
            for (name, before) in names.iter().zip(&before) {
                assert!(token(&guard, name) > *before);
            }
            released(guard);
        });
    }

    // Losing one is losing all, over the slots too.
    let guard = two.mutex_all(&names).renew_every(ms(100)).lock().unwrap();
    let key = format!("lock:{}", names[1]);
    cluster.node(cluster.master_of(&key)).run("DEL", &[&key]);
    assert_eq!(guard.lost().recv_timeout(ms(10_000)), Ok(Lost::Deleted));
    eventually(ms(10_000), || {
        names.iter().all(|name| !is_taken(&cluster, name))
    });
    drop(guard);

    // One slot is one script.
    let tagged = ["{u1}b", "{u1}a"];
    let guard = one.mutex_all(tagged).lock().unwrap();
    assert!(tagged.iter().all(|name| is_taken(&cluster, name)));
    assert!(matches!(
        one.mutex_all(["a", "a}b"]).lock(),
        Err(Error::Config(_))
    ));

    // Opposite orders get through.
    drop(guard);
    thread::scope(|scope| {
        for n in 0..4 {
            let client = if n % 2 == 0 { &one } else { &two };
            let mut names = names.clone();
            names.rotate_left(n % 3);
            names.truncate(2 + n % 2);
            scope.spawn(move || {
                for _ in 0..20 {
                    let guard = client.mutex_all(&names).try_lock_for(ms(20_000)).unwrap();
                    released(guard.expect("it gets through"));
                }
            });
        }
    });
    assert!(names.iter().all(|name| !is_taken(&cluster, name)));

    // What is renewed in two slots of three is not renewed.
    let guard = one.mutex_all(&names).ttl(ms(1_000)).lock().unwrap();
    let node = cluster.master_of(&format!("lock:{}", names[1]));
    cluster.stop(node);
    assert_eq!(guard.lost().recv_timeout(ms(10_000)), Ok(Lost::Expired));
    cluster.resume(node);
    drop(guard);
    eventually(ms(10_000), || {
        names.iter().all(|name| !is_taken(&cluster, name))
    });
    assert!(one.shutdown(ms(5_000)).unwrap().is_clean());
}

/// The votes are for whole sets: a majority must have all of it.
fn a_quorum_votes_for_the_set() {
    let mut servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let open = || {
        let builder = Client::builder().quorum(&urls).ttl(LONG);
        builder.backstop(ms(60_000)).build().unwrap()
    };
    let (one, two) = (open(), open());
    // A counter that is ahead on one of them: the second proposal is above it, for all names.
    let ahead = 9_000_000_000_000_000_u64;
    servers[1].run("SET", &["leasehold:fence:{lock:b}", &ahead.to_string()]);
    servers[2].run("SET", &["leasehold:fence:{lock:b}", &ahead.to_string()]);
    let guard = one.mutex_all(["b", "a"]).lock().unwrap();
    for name in ["a", "b"] {
        assert!(token(&guard, name).value() > ahead);
        assert!(two.mutex(name).try_lock().unwrap().is_none());
    }
    assert!(two.mutex_all(["B", "b"]).try_lock().unwrap().is_none());
    guard.renew().unwrap();
    let before = token(&guard, "a");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| two.mutex_all(["B", "b"]).try_lock_for(ms(20_000)));
        for server in &servers {
            server.wait_until_waiter_sleeps("lock_release:b");
        }
        released(guard);
        let guard = waiting.join().unwrap().unwrap().expect("it is woken");
        assert!(token(&guard, "b") > before);
        released(guard);
    });
    for server in &servers {
        eventually(ms(10_000), || lock_keys(server).is_empty());
    }
    // A minority may be gone.
    servers[0].kill();
    let guard = one
        .mutex_all(["a", "b"])
        .renew_every(ms(100))
        .lock()
        .unwrap();
    assert!(token(&guard, "a") > before);
    // Any name that a server does not know any more is its vote against all of them.
    servers[1].run("DEL", &["lock:b"]);
    servers[2].run("DEL", &["lock:a"]);
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

/// What enough replicas have is held on at the next master, where its waiters hear of the release.
fn a_set_outlives_its_master() {
    let mut sentinels = Sentinels::start(Setup::fast_failover());
    let (one, two) = (client(&sentinels.url()), patient(&sentinels.url()));
    // One of the two is promoted, the one that is further; the other acknowledges from then on.
    let all = one.mutex_all(["b", "a"]).min_replicas(1, ms(800));
    let guard = all.lock().unwrap();
    let before = token(&guard, "b");
    sentinels.kill_first_master();
    let successor = sentinels.successor();
    eventually(ms(20_000), || guard.extend(LONG).is_ok());
    assert_eq!(lock_keys(successor), ["lock:a", "lock:b"]);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| two.mutex_all(["c", "b"]).try_lock_for(ms(20_000)));
        successor.wait_until_waiter_sleeps("lock_release:b");
        released(guard);
        let guard = waiting.join().unwrap().unwrap().expect("it is woken");
        assert!(token(&guard, "b") > before);
        assert_eq!(lock_keys(successor), ["lock:b", "lock:c"]);
        released(guard);
    });
    assert!(lock_keys(successor).is_empty());
}
