//! Promise: in a cluster a lock keeps what it promises on one server, while slots move and masters are replaced.

use std::sync::OnceLock;
use std::thread;
use std::time::Instant;

use crossbeam_channel::unbounded;
use leasehold::{Client, Error, Lost, MutexGuard, Unlocked};
use redis::RedisResult;
use support::{
    BlackHole, COMMAND_TIMEOUT, Cluster, ClusterSetup, Contention, Control, MasterFailure, Outcome,
    PROCESSES, RESUME_WITHIN, SLACK, Server, builder, client, contend_and_then, eventually,
    expect_unreachable, free_port, ms, parameter, thread_count, time_until_taken,
};

support::roles![tidy_contender];

support::tests![
    leases_are_renewed_on_every_master,
    names_with_braces,
    a_slot_that_has_moved_is_followed,
    an_acquire_without_an_answer_is_undone,
    passwords
];

support::roughly_timed![
    basic_calls_work_on_every_master,
    a_slot_that_moves_while_held,
    keys_that_are_apart_are_waited_for,
    seeds_that_are_away,
    a_cluster_that_is_away,
    what_is_no_cluster_says_so,
    contention_when_the_slot_moves,
    contention_when_the_master_is_killed,
    contention_when_the_master_is_stopped,
    contention_when_the_master_is_switched_by_command
];

fn steady() -> Cluster {
    Cluster::with(ClusterSetup::steady(3, 0))
}

/// One for the tests that leave all nodes alone, each with names of its own.
fn shared() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| support::start_shared(|| steady().long_lived()))
}

fn lock(name: &str) -> String {
    format!("lock:{name}")
}

#[track_caller]
fn released(guard: MutexGuard) {
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
}

/// Waits for the lock, but not for ever if the test has failed.
fn in_time(client: &Client, name: &str) -> MutexGuard {
    let guard = client.mutex(name).try_lock_for(ms(30_000)).unwrap();
    guard.expect("it is released")
}

/// The scripts that a node was sent.
fn scripts(cluster: &Cluster, node: usize) -> u64 {
    cluster.node(node).calls(&["evalsha", "eval"])
}

/// All that one server promises, on each master, and with one connection that hears on each.
fn basic_calls_work_on_every_master() {
    let cluster = shared();
    let one = client(&cluster.url());
    let two = builder(&cluster.url()).backstop(ms(60_000));
    let two = two.connection_name("two").build().unwrap();
    assert!(one.ping().is_ok());
    for node in 0..3 {
        let name = cluster.name_owned_by("every-master", node);
        let guard = one.mutex(&*name).ttl(ms(60_000)).lock().unwrap();
        assert!(cluster.node(node).get(lock(&name)).is_some());
        assert!(two.mutex(&*name).try_lock().unwrap().is_none());
        let holder = two
            .mutex(&*name)
            .inspect()
            .unwrap()
            .expect("the lock is held");
        assert_eq!(holder.fencing_token(), Some(guard.fencing_token()));
        guard.renew().unwrap();
        guard.extend(ms(50_000)).unwrap();
        let before = guard.fencing_token();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let guard = two.mutex(&*name).lock().unwrap();
                (guard, Instant::now())
            });
            let channel = format!("lock_release:{name}");
            cluster.node(node).wait_until_waiter_sleeps(&channel);
            let at = Instant::now();
            released(guard);
            let (guard, got) = waiting.join().unwrap();
            // Longer than any look around: it is the release that wakes.
            assert!(got - at < ms(5_000), "{:?}", got - at);
            assert!(guard.fencing_token() > before);
            assert!(two.mutex(&*name).force_unlock().unwrap());
            eventually(ms(10_000), || !guard.is_held());
        });
        let hearing = cluster.node(node).client_list();
        let hearing = hearing.iter();
        let hearing = hearing.filter(|client| client["name"] == "two" && client["sub"] != "0");
        assert_eq!(hearing.count(), 1, "one connection that hears");
    }
    assert!(one.shutdown(ms(5_000)).unwrap().is_clean());
    assert!(two.shutdown(ms(5_000)).unwrap().is_clean());
}

fn leases_are_renewed_on_every_master() {
    let cluster = shared();
    let client = client(&cluster.url());
    let (renewed, renewals) = unbounded();
    let hold = |node| {
        let renewed = renewed.clone();
        let mutex = client.mutex(cluster.name_owned_by("renewed", node));
        let mutex = mutex.ttl(ms(3_000));
        let mutex = mutex.renew_every(ms(200)).on_renew(move |_| {
            let _ = renewed.send(node);
        });
        mutex.lock().unwrap()
    };
    let guards: Vec<_> = (0..3).map(hold).collect();
    let mut counts = [0; 3];
    while counts.iter().any(|count| *count < 20) {
        counts[renewals.recv_timeout(ms(10_000)).expect("all are renewed")] += 1;
    }
    guards.into_iter().for_each(released);
}

/// Names on which a cluster must not disagree with itself.
fn names_with_braces() {
    let cluster = shared();
    let client = client(&cluster.url());
    for name in ["{u1}:a", "a{b", "{", "{{a}", "{a}}", "é{ü}", "a{b}c{d}"] {
        let guard = client.mutex(name).lock().unwrap();
        assert!(client.mutex(name).inspect().unwrap().is_some());
        released(guard);
    }
    for name in ["a}b", "{}x", "}", "a{}{b}"] {
        for error in [
            client.mutex(name).try_lock().map(drop).unwrap_err(),
            client.mutex(name).inspect().map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Config(_)), "{error:?}");
            assert!(error.to_string().contains("slots"), "{error}");
        }
    }
    // One server keeps them all.
    let server = Server::start();
    let plain = Client::open(&server.url()).unwrap();
    released(plain.mutex("a}b").lock().unwrap());
}

/// What was known of a slot is wrong: one trip more, and then it is known.
fn a_slot_that_has_moved_is_followed() {
    let cluster = steady();
    let client = client(&cluster.url());
    let name = cluster.name_owned_by("a", 0);
    let slot = cluster.slot(&lock(&name));
    let mutex = client.mutex(&*name);
    released(mutex.lock().unwrap());
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        cluster.move_slot(slot, from, to);
        let before = scripts(&cluster, from);
        released(mutex.lock().unwrap());
        released(mutex.lock().unwrap());
        // What is turned away is not counted as called.
        assert_eq!(scripts(&cluster, from), before);
        let refused = cluster.node(from).info("errorstats", "errorstat_MOVED");
        assert_eq!(refused.as_deref(), Some("count=1"), "asked there once");
    }
}

/// The slot of a held name moves under it. All along it is held, renewed and waited for.
fn a_slot_that_moves_while_held() {
    let cluster = shared();
    let (one, two) = (client(&cluster.url()), client(&cluster.url()));
    for is_released_on_the_way in [true, false] {
        let name = cluster.name_owned_by("moves", 0);
        let slot = cluster.slot(&lock(&name));
        let (renewed, renewals) = unbounded();
        let mutex = one.mutex(&*name).ttl(ms(4_000)).renew_every(ms(100));
        let mutex = mutex.on_renew(move |_| {
            let _ = renewed.send(());
        });
        let is_renewed = || {
            while renewals.try_recv().is_ok() {}
            for _ in 0..3 {
                renewals
                    .recv_timeout(ms(10_000))
                    .expect("the lease is renewed");
            }
        };
        let guard = mutex.lock().unwrap();
        let token = guard.fencing_token();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| in_time(&two, &name));
            let channel = format!("lock_release:{name}");
            cluster.node(0).wait_until_waiter_sleeps(&channel);
            cluster.begin_migration(slot, 0, 1);
            is_renewed();
            assert!(two.mutex(&*name).inspect().unwrap().is_some());
            cluster.move_keys(slot, 0, 1);
            let count = ["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()];
            assert_eq!(cluster.ask::<u32>(1, &count).unwrap(), 2);
            is_renewed();
            guard.renew().unwrap();
            let holder = two
                .mutex(&*name)
                .inspect()
                .unwrap()
                .expect("the lock is held");
            assert_eq!(holder.fencing_token(), Some(token));
            assert!(two.mutex("other").try_lock().unwrap().is_some());
            assert!(!waiting.is_finished());
            if is_released_on_the_way {
                released(guard);
                cluster.end_migration(slot, 0, 1);
            } else {
                cluster.end_migration(slot, 0, 1);
                is_renewed();
                released(guard);
            }
            let at = Instant::now();
            let guard = waiting.join().unwrap();
            assert!(at.elapsed() < RESUME_WITHIN, "{:?}", at.elapsed());
            assert!(guard.fencing_token() > token);
            released(guard);
        });
        cluster.move_slot(slot, 1, 0);
    }
}

/// The two keys of a name are on two nodes for a while: nothing can be taken then, nor is refused.
fn keys_that_are_apart_are_waited_for() {
    let cluster = shared();
    let client = client(&cluster.url());
    let name = cluster.name_owned_by("apart", 0);
    let slot = cluster.slot(&lock(&name));
    let mutex = client.mutex(&*name);
    let guard = mutex.ttl(ms(60_000)).lock().unwrap();
    let token = guard.fencing_token();
    cluster.begin_migration(slot, 0, 1);
    let fence = format!("leasehold:fence:{{lock:{name}}}");
    cluster.move_key(&fence, 0, 1);
    guard.renew().unwrap();
    released(guard);
    let mutex = client.mutex(&*name);
    let count = || cluster.node(1).info("errorstats", "errorstat_TRYAGAIN");
    let timed = Control::run(COMMAND_TIMEOUT, || mutex.try_lock());
    match timed.no_later_than(SLACK) {
        Err(error @ Error::Unreachable { .. }) => {
            let text = error.to_string();
            assert!(text.contains("TRYAGAIN"), "{text}");
            assert!(text.contains("cluster 127.0.0.1"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    thread::scope(|scope| {
        let waiting = scope.spawn(|| in_time(&client, &name));
        let before = count();
        eventually(ms(10_000), || count() != before);
        cluster.end_migration(slot, 0, 1);
        let guard = waiting.join().unwrap();
        assert!(guard.fencing_token() > token);
        released(guard);
    });
}

/// New clients that are told in time that they are alone.
#[track_caller]
fn nobody_answers(url: &str) {
    thread::scope(|scope| {
        scope.spawn(|| {
            let limit = ms(300);
            let fresh = client(url);
            let timed = Control::run(limit, || fresh.mutex("a").try_lock_for(limit));
            let text = expect_unreachable(timed.no_later_than(SLACK));
            assert!(text.contains("cluster 127.0.0.1:"), "{text}");
        });
        scope.spawn(|| {
            let fresh = client(url);
            let timed = Control::run(COMMAND_TIMEOUT, || fresh.mutex("a").try_lock());
            expect_unreachable(timed.no_later_than(SLACK));
            let timed = Control::run(COMMAND_TIMEOUT, || fresh.ping());
            expect_unreachable(timed.no_later_than(SLACK));
        });
        scope.spawn(|| {
            let fresh = builder(url).unreachable_for(ms(1_000)).build().unwrap();
            // An attempt that is under way is waited for, and so is the pause between two.
            let limit = ms(1_000) + COMMAND_TIMEOUT + ms(500);
            let timed = Control::run(limit, || fresh.mutex("a").lock());
            expect_unreachable(timed.no_later_than(SLACK));
        });
    });
}

fn seeds_that_are_away() {
    let dead = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    nobody_answers(&format!("redis+cluster://{}", dead.join(",")));
    let hole = BlackHole::start();
    nobody_answers(&format!("redis+cluster://127.0.0.1:{}", hole.port()));

    // One of them costs nothing.
    let hole = format!("://127.0.0.1:{},{},", hole.port(), dead[0]);
    let url = shared().url().replace("://", &hole);
    for _ in 0..10 {
        let limit = ms(300);
        let client = client(&url);
        let timed = Control::run(limit, || client.mutex("seeds").try_lock_for(limit));
        released(
            timed
                .no_later_than(SLACK)
                .unwrap()
                .expect("the lock is free"),
        );
    }
}

fn a_cluster_that_is_away() {
    let mut cluster = steady();
    let known = client(&cluster.url());
    let names: Vec<_> = (0..3)
        .map(|node| cluster.name_owned_by("a", node))
        .collect();
    for name in &names {
        released(known.mutex(&**name).lock().unwrap());
    }
    for stop in [true, false] {
        for node in 0..3 {
            if stop {
                cluster.stop(node);
            } else {
                cluster.kill(node);
            }
        }
        thread::scope(|scope| {
            for name in &names {
                scope.spawn(|| {
                    let timed = Control::run(COMMAND_TIMEOUT, || known.mutex(&**name).try_lock());
                    expect_unreachable(timed.no_later_than(SLACK));
                });
            }
            nobody_answers(&cluster.url());
        });
    }
}

/// One hangs while it is asked: the undo ends what it may have granted.
fn an_acquire_without_an_answer_is_undone() {
    let cluster = steady();
    let (one, two) = (client(&cluster.url()), client(&cluster.url()));
    let name = cluster.name_owned_by("a", 1);
    released(one.mutex(&*name).lock().unwrap());
    cluster.stop(1);
    let error = one.mutex(&*name).ttl(ms(60_000)).try_lock().unwrap_err();
    let port = cluster.client_port(1);
    let text = expect_unreachable::<()>(Err(error));
    assert!(text.contains(&format!("127.0.0.1:{port}: ")), "{text}");
    // The others have nothing to do with it.
    for node in [0, 2] {
        released(one.mutex(cluster.name_owned_by("a", node)).lock().unwrap());
    }
    cluster.resume(1);
    let guard = two.mutex(&*name).try_lock_for(ms(10_000)).unwrap();
    released(guard.expect("the acquire was undone"));
}

fn what_is_no_cluster_says_so() {
    let server = Server::start();
    let url = server.url().replace("redis://", "redis+cluster://");
    let limit = COMMAND_TIMEOUT;
    let timed = Control::run(limit, || client(&url).mutex("a").lock());
    let error = timed.no_later_than(SLACK).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("redis://"), "{error}");

    let cluster = shared();
    let port = cluster.client_port(0);
    let client = Client::open(&format!("redis://127.0.0.1:{port}")).unwrap();
    let error = client
        .mutex(cluster.name_owned_by("plain", 1))
        .lock()
        .unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("redis+cluster://"), "{error}");
}

fn passwords() {
    let cluster = Cluster::with(ClusterSetup {
        password: Some("p@ss"),
        ..ClusterSetup::steady(3, 0)
    });
    let right = client(&cluster.url());
    for n in 0..20 {
        released(right.mutex(format!("n{n}")).lock().unwrap());
    }
    let wrong = client(&cluster.url_as(":wr0ng@"));
    match wrong.mutex("a").lock() {
        Err(error @ Error::Refused { .. }) => {
            assert!(error.to_string().contains("password"), "{error}");
            assert!(!error.to_string().contains("wr0ng"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

fn get_into(trouble: MasterFailure, cluster: &mut Cluster, master: usize) {
    match trouble {
        MasterFailure::Killed => cluster.kill(master),
        MasterFailure::Stopped => cluster.stop(master),
        MasterFailure::SwitchedByCommand => {
            let replica = cluster.replicas_of(master).next();
            cluster.failover(replica.expect("it has one"));
        }
    }
}

/// Nothing is left at last of what was for the master before.
fn tidy_contender() {
    contend_and_then(|client| {
        // Whoever was late may never have waited at the new one.
        let mutex = client.mutex(parameter("NAME"));
        let guard = mutex.lock().expect("the new master is there");
        assert!(mutex.try_lock_for(ms(200)).unwrap().is_none(), "it waits");
        released(guard);
        for thread in ["leasehold-io", "leasehold-subsc"] {
            let mut before = None;
            eventually(ms(20_000), || {
                let now = thread_count(thread);
                if before.replace(now) != Some(now) {
                    // Shown where the test fails.
                    println!("{thread}: {now}");
                }
                now == 1
            });
        }
    });
}

fn fence_on(cluster: &Cluster, node: usize, name: &str) -> RedisResult<Option<u64>> {
    let fence = format!("leasehold:fence:{{lock:{name}}}");
    cluster.ask(node, &["GET", &fence])
}

/// Several processes contend while the master of the name is replaced. Besides, a client that only waits for another
/// name there, and one that holds two more: of one the new master has never heard.
fn contention_goes_on(trouble: MasterFailure) {
    let mut cluster = Cluster::start(3, 1);
    let name = cluster.name_owned_by("a", 0);
    let client = client(&cluster.url());
    // Who looks around so seldom must be told, by whatever thread of ours, that the master is another.
    let parked = builder(&cluster.url()).backstop(ms(60_000)).build();
    let parked = parked.unwrap();
    let mutex = |client: &Client, what: &str| client.mutex(beside(&name, what)).ttl(ms(40_000));
    let hold = |what: &str| mutex(&client, what).renew_every(ms(500)).lock().unwrap();
    let replica = cluster.replicas_of(0).next().expect("it has one");
    let dies = hold("dies");
    // The next renewal is far away.
    let sleeps = mutex(&parked, "sleeps").lock().unwrap();
    forget_all(&cluster, replica, &lock(&beside(&name, "sleeps")));
    let survives = hold("survives");
    let (got, parked_got) = unbounded();
    let parked = thread::spawn({
        let name = beside(&name, "dies");
        move || {
            let guard = parked.mutex(name).lock().unwrap();
            got.send(Instant::now()).unwrap();
            released(guard);
        }
    });
    let channel = format!("lock_release:{}", beside(&name, "dies"));
    eventually(ms(10_000), || cluster.node(0).subscribers(&channel) > 0);
    let contention = Contention::start_as(
        "cluster::tidy_contender",
        &cluster.url(),
        &name,
        PROCESSES,
        0,
    );

    let (lost, sleeper_lost) = (dies.lost(), sleeps.lost());
    get_into(trouble, &mut cluster, 0);
    assert_eq!(cluster.wait_for_new_master(0), replica);
    let began = Instant::now();
    let timed = time_until_taken(began, || fence_on(&cluster, replica, &name));
    let (took, overshoot) = (timed.took, timed.overshoot);
    timed.no_later_than(SLACK);
    let lost = lost.recv_timeout(ms(5_000)).expect("the loss is reported");
    assert!(matches!(lost, Lost::Deleted | Lost::Taken), "{lost}");
    assert_eq!(sleeper_lost.recv_timeout(ms(5_000)), Ok(Lost::Deleted));
    let told = began.elapsed();
    let at = parked_got.recv_timeout(ms(60_000)).unwrap();
    let got = at.saturating_duration_since(began);
    assert!(got <= RESUME_WITHIN + SLACK + overshoot, "{got:?}");
    parked.join().unwrap();

    // All of them are there by then, and the old one has nothing more to say.
    contention.wait_for_progress(30);
    if trouble == MasterFailure::Stopped {
        cluster.resume(0);
    }
    if trouble != MasterFailure::Killed {
        cluster.wait_until_settled();
        contention.wait_for_progress(30);
    }
    let outcome = contention.finish();
    println!(
        "{trouble:?}: went on after {took:?}, told of the loss after {told:?}, the parked one got it after {got:?}; {outcome:?}"
    );
    outcome.assert_promises(SLACK);
    assert_eq!(survives.unlock().unwrap(), Unlocked::Released);
    assert_eq!(dies.unlock().unwrap(), Unlocked::AlreadyLost(lost));
}

/// Another name in the same slot.
fn beside(name: &str, what: &str) -> String {
    format!("{{lock:{name}}}:{what}")
}

/// Waits until the replica has the key, and then makes as if nothing had come to it so far.
fn forget_all(cluster: &Cluster, replica: usize, key: &str) {
    let has = |known: &Vec<u8>| known == key.as_bytes();
    eventually(ms(10_000), || cluster.node(replica).keys().iter().any(has));
    for command in [
        &["CONFIG", "SET", "replica-read-only", "no"][..],
        &["FLUSHALL"],
        &["CONFIG", "SET", "replica-read-only", "yes"],
    ] {
        cluster.ask::<String>(replica, command).unwrap();
    }
}

/// The slot of the contended name moves, with both of its keys: while one of ours holds it, and while whoever does.
fn contention_when_the_slot_moves() {
    let cluster = steady();
    let client = client(&cluster.url());
    let name = cluster.name_owned_by("a", 0);
    let slot = cluster.slot(&lock(&name));
    let contention = Contention::start(&cluster.url(), &name, PROCESSES, 0);
    for (from, to, is_ours) in [(0, 1, true), (1, 2, false), (2, 0, true)] {
        let guard = is_ours.then(|| in_time(&client, &name));
        cluster.begin_migration(slot, from, to);
        while cluster.move_keys(slot, from, to) > 0 {}
        if let Some(guard) = &guard {
            guard.renew().unwrap();
        }
        let mut began = Instant::now();
        cluster.end_migration(slot, from, to);
        if let Some(guard) = guard {
            guard.renew().unwrap();
            began = Instant::now();
            released(guard);
        }
        let timed = time_until_taken(began, || fence_on(&cluster, to, &name));
        println!("from {from} to {to}: went on after {:?}", timed.took);
        timed.no_later_than(SLACK);
        contention.wait_for_progress(30);
    }
    let outcome = contention.finish();
    println!("{outcome:?}");
    outcome.assert_promises(SLACK);
    // No lease ends by this.
    let Outcome {
        overlaps,
        rejected,
        known_losses,
        ..
    } = outcome;
    assert_eq!((overlaps, rejected, known_losses), (0, 0, 0));
}

fn contention_when_the_master_is_killed() {
    contention_goes_on(MasterFailure::Killed);
}

fn contention_when_the_master_is_stopped() {
    contention_goes_on(MasterFailure::Stopped);
}

fn contention_when_the_master_is_switched_by_command() {
    contention_goes_on(MasterFailure::SwitchedByCommand);
}
