//! Promise: in a cluster, locks work as on one server, while slots move and masters are replaced.

use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crossbeam_channel::{Receiver, unbounded};
use leasehold::{Client, Error, Lost, MutexGuard};
use redis::{RedisResult, Value};
use support::fair::{places_in, wait_for_refresh};
use support::{
    BlackHole, COMMAND_TIMEOUT, Cluster, ClusterSetup, Contention, Control, FakeServer,
    MasterFailure, Outcome, PROCESSES, Proxy, RESUME_WITHIN, SLACK, Server, Traffic, WAKE_UPS,
    assert_message_wakes, assert_released, builder, builder_within, client, contend_and_then,
    encode, eventually, expect_unreachable, fake_node, free_port, let_pass, ms, one_owner,
    parameter, thread_count, time_until_acquired,
};

support::roles![tidy_contender];

support::tests![
    contenders_resume_after_the_master_is_killed,
    contenders_resume_after_the_master_is_paused,
    contenders_resume_after_a_manual_failover,
    moved_slot_costs_one_redirect,
    a_failover_is_followed_although_an_outdated_node_reports_at_once,
    health_leaves_out_the_threads_of_a_replaced_master,
    hanging_node_delays_no_renewal_and_no_loss_at_others,
    contenders_resume_after_the_slot_moves,
    calls_to_an_unreachable_cluster_return_in_time,
    leases_are_renewed_on_every_master,
    basic_calls_work_on_every_master,
    lease_is_kept_while_its_slot_migrates,
    acquire_waits_until_both_keys_are_on_one_node,
    lock_waits_as_long_as_its_slot_moves,
    call_goes_on_while_each_node_names_another,
    unreachable_seeds_are_skipped,
    an_owner_that_cannot_be_reached_is_not_taken_from_the_same_node_again,
    an_outdated_node_moves_no_slot_of_a_master_that_works,
    wrong_url_scheme_is_named_in_the_error,
    statistics_count_masters_on_which_locks_were_only_acquired_and_released,
    name_whose_keys_would_have_different_slots_is_an_error,
    call_that_waits_before_the_owner_is_known_is_subscribed_at_the_owner,
    queries_follow_a_moved_slot,
    queries_find_what_a_migration_has_moved,
    place_that_a_call_leaves_goes_beside_that_of_a_set_in_several_slots,
    unanswered_acquire_is_undone,
    password_is_sent_to_every_node
];

fn steady() -> Cluster {
    Cluster::with(ClusterSetup::steady(3, 0))
}

/// Returns the cluster of tests that only use their own names and harm no node.
pub(crate) fn shared() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| support::start_shared(|| steady().long_lived()))
}

fn lock(name: &str) -> String {
    format!("lock:{name}")
}

/// Returns a client that waits for a slow reply instead of repeating the call.
fn patient(cluster: &Cluster) -> Client {
    let patient = builder(&cluster.url()).command_timeout(ms(10_000));
    patient.build().unwrap()
}

/// Waits for the lock for at most 30 s.
fn lock_within_30_s(client: &Client, name: &str) -> MutexGuard {
    let guard = client.mutex(name).try_lock_for(ms(30_000)).unwrap();
    guard.expect("it is released")
}

/// Returns how many script calls a node has executed.
fn script_calls(cluster: &Cluster, node: usize) -> u64 {
    cluster.node(node).script_calls()
}

fn statistics_count_masters_on_which_locks_were_only_acquired_and_released() {
    let cluster = shared();
    let client = client(&cluster.url());
    for node in 0..3 {
        let name = cluster.name_owned_by("counted", node);
        assert_released(client.mutex(name).lock().unwrap().unlock());
    }
    let stats = client.stats();
    assert!(stats.connections >= 3, "{stats:?}");
    assert!(stats.command.count >= 6, "{stats:?}");
}

/// The promises of one server hold on each master, with one subscribed connection to each.
fn basic_calls_work_on_every_master() {
    let cluster = shared();
    let one = client(&cluster.url());
    let two = builder(&cluster.url());
    let two = two.owner("two").build().unwrap();
    assert!(one.ping().is_ok());
    for node in 0..3 {
        let name = cluster.name_owned_by("every-master", node);
        let guard = one.mutex(&*name).ttl(ms(60_000)).lock().unwrap();
        assert!(cluster.node(node).get(lock(&name)).is_some());
        assert!(two.mutex(&*name).try_lock().unwrap().is_err());
        let holder = two
            .mutex(&*name)
            .inspect()
            .unwrap()
            .expect("the lock is held");
        assert_eq!(holder.fencing_token(), Some(guard.fencing_token()));
        guard.renew().unwrap();
        guard.set_ttl(ms(50_000)).unwrap();
        let before = guard.fencing_token();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| two.mutex(&*name).lock().unwrap());
            let channel = format!("lock_release:{name}");
            cluster.node(node).wait_until_waiter_sleeps(&channel);
            let guard = assert_message_wakes(&two, || {
                assert_released(guard.unlock());
                waiting.join().unwrap()
            });
            assert!(guard.fencing_token() > before);
            assert!(two.mutex(&*name).force_unlock().unwrap());
            eventually(ms(10_000), || !guard.is_held());
        });
        let clients = cluster.node(node).client_list();
        let clients = clients.iter();
        let subscribed =
            clients.filter(|client| client["name"] == "leasehold:two" && client["sub"] != "0");
        assert_eq!(subscribed.count(), 1, "one subscribed connection");
    }
    assert!(one.shutdown(ms(5_000)).is_clean());
    assert!(two.shutdown(ms(5_000)).is_clean());
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
    guards
        .into_iter()
        .for_each(|guard| assert_released(guard.unlock()));
}

/// The hash tag of a name with braces may differ from that of the name's other keys.
fn name_whose_keys_would_have_different_slots_is_an_error() {
    let cluster = shared();
    let client = client(&cluster.url());
    for name in ["{u1}:a", "a{b", "{", "{{a}", "{a}}", "é{ü}", "a{b}c{d}"] {
        let guard = client.mutex(name).lock().unwrap();
        assert!(client.mutex(name).inspect().unwrap().is_some());
        assert_released(guard.unlock());
    }
    for name in ["a}b", "{}x", "}", "a{}{b}"] {
        for error in [
            client.mutex(name).try_lock().map(drop).unwrap_err(),
            client.mutex(name).inspect().map(drop).unwrap_err(),
            client.mutex(name).last_fencing_token().unwrap_err(),
        ] {
            assert!(matches!(error, Error::Config(_)), "{error:?}");
            assert!(error.to_string().contains("slots"), "{error}");
        }
    }
    // A single server accepts any name.
    let server = Server::start();
    let plain = server.client();
    assert_released(plain.mutex("a}b").lock().unwrap().unlock());
}

/// One MOVED redirect updates the client's slot map.
fn moved_slot_costs_one_redirect() {
    let cluster = steady();
    let name = cluster.name_owned_by("a", 0);
    let slot = cluster.slot(&lock(&name));
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        // A call without a reply in time would be sent, and redirected, once more.
        let client = patient(&cluster);
        let mutex = client.mutex(&*name);
        assert_released(mutex.lock().unwrap().unlock());
        cluster.move_slot(slot, from, to);
        let before = script_calls(&cluster, from);
        let before_there = script_calls(&cluster, to);
        assert_released(mutex.lock().unwrap().unlock());
        assert_released(mutex.lock().unwrap().unlock());
        // The server does not count redirected calls.
        assert_eq!(script_calls(&cluster, from), before);
        let refused = cluster.node(from).info("errorstats", "errorstat_MOVED");
        assert_eq!(refused.as_deref(), Some("count=1"), "one redirect");
        // The client also repeats its recent releases on the new owner.
        eventually(ms(30_000), || {
            script_calls(&cluster, to) >= before_there + 5
        });
        // It may do so once more. After the next move that would be redirected, too.
        assert!(client.shutdown(ms(30_000)).is_clean());
    }
}

fn queries_follow_a_moved_slot() {
    let cluster = shared();
    let client = patient(cluster);
    let name = cluster.name_owned_by("queried", 0);
    let slot = cluster.slot(&lock(&name));
    let mutex = client.fair_mutex(&*name);
    assert_eq!(mutex.waiting().unwrap(), 0);
    cluster.move_slot(slot, 0, 1);
    assert_eq!(mutex.waiting().unwrap(), 0);
    cluster.move_slot(slot, 1, 0);
    assert_eq!(mutex.longest_wait().unwrap(), None);
}

/// The owner of a migrating slot redirects queries about keys that it does not have.
fn queries_find_what_a_migration_has_moved() {
    let cluster = shared();
    let client = patient(cluster);
    let name = cluster.name_owned_by("sought", 0);
    let slot = cluster.slot(&lock(&name));
    let mutex = client.fair_mutex(&*name);
    let guard = mutex.lock().unwrap();
    let token = guard.fencing_token();
    assert_released(guard.unlock());
    let [queue, places] =
        ["queue", "places"].map(|what| format!("leasehold:{what}:{{lock:{name}}}"));
    let old = cluster.node(0);
    old.run("RPUSH", &[&queue, "waiter"]);
    old.run("HSET", &[&places, "waiter", "1 1 1 1000 w inbox"]);
    cluster.begin_migration(slot, 0, 1);
    let without_keys = client.semaphore(&*name, 1);
    assert_eq!(without_keys.waiting().unwrap(), 0);
    assert_eq!(without_keys.longest_wait().unwrap(), None);
    for key in [&places, &queue] {
        cluster.move_key(key, 0, 1);
        assert!(mutex.longest_wait().unwrap().is_some());
    }
    assert_eq!(mutex.waiting().unwrap(), 1);
    cluster.move_keys(slot, 0, 1);
    assert_eq!(mutex.last_fencing_token().unwrap(), Some(token));
    cluster.end_migration(slot, 0, 1);
    cluster.move_slot(slot, 1, 0);
}

/// While the slot of a held name migrates, the lease is renewed and a waiter stays queued.
fn lease_is_kept_while_its_slot_migrates() {
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
            let waiting = scope.spawn(|| lock_within_30_s(&two, &name));
            let channel = format!("lock_release:{name}");
            cluster.node(0).wait_until_waiter_sleeps(&channel);
            // On a busy machine, the call may enter the queue only now.
            let queue = format!("leasehold:queue:{{lock:{name}}}");
            eventually(ms(10_000), || places_in(cluster.node(0), &queue) == 1);
            cluster.begin_migration(slot, 0, 1);
            is_renewed();
            assert!(two.mutex(&*name).inspect().unwrap().is_some());
            cluster.move_keys(slot, 0, 1);
            let count = ["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()];
            // The lock, its fence, the queue and the place in it.
            assert_eq!(cluster.ask::<u32>(1, &count).unwrap(), 4);
            is_renewed();
            guard.renew().unwrap();
            let holder = two
                .mutex(&*name)
                .inspect()
                .unwrap()
                .expect("the lock is held");
            assert_eq!(holder.fencing_token(), Some(token));
            assert!(two.mutex("other").try_lock().unwrap().is_ok());
            assert!(!waiting.is_finished());
            if is_released_on_the_way {
                assert_released(guard.unlock());
                cluster.end_migration(slot, 0, 1);
            } else {
                cluster.end_migration(slot, 0, 1);
                is_renewed();
                assert_released(guard.unlock());
            }
            let at = Instant::now();
            let guard = waiting.join().unwrap();
            assert!(at.elapsed() < RESUME_WITHIN, "{:?}", at.elapsed());
            assert!(guard.fencing_token() > token);
            assert_released(guard.unlock());
        });
        cluster.move_slot(slot, 1, 0);
    }
}

/// Redis answers all the time, so a call waits for longer than it waits for a silent server.
fn lock_waits_as_long_as_its_slot_moves() {
    let cluster = shared();
    let limit = ms(400);
    let builder = builder(&cluster.url()).unreachable_for(limit);
    let client = builder.build().unwrap();
    let name = cluster.name_owned_by("slowly", 0);
    let slot = cluster.slot(&lock(&name));
    assert_released(client.mutex(&*name).lock().unwrap().unlock());
    cluster.begin_migration(slot, 0, 1);
    let fence = format!("leasehold:fence:{{lock:{name}}}");
    cluster.move_key(&fence, 0, 1);
    thread::scope(|scope| {
        // Each releases what it gets: either can be first.
        let waiting = scope.spawn(|| client.mutex(&*name).lock().unwrap().unlock());
        let patient = scope.spawn(|| {
            let patient = client.fair_mutex(&*name).try_lock_for(ms(30_000));
            patient.unwrap().expect("the lock is free").unlock()
        });
        let_pass(2 * limit);
        cluster.end_migration(slot, 0, 1);
        assert_released(waiting.join().unwrap());
        assert_released(patient.join().unwrap());
    });
    cluster.move_slot(slot, 1, 0);
}

/// The nodes answer all the time, so a call waits for longer than it waits for a silent server.
fn call_goes_on_while_each_node_names_another() {
    let port = Arc::new(OnceLock::new());
    let node = FakeServer::start({
        let port = Arc::clone(&port);
        move |request| match &*request.name() {
            "CLUSTER" => Some(one_owner(*port.get()?)),
            "ASKING" => Some(b"+OK\r\n".to_vec()),
            name if name.contains('_') || name == "acquire" || name == "release" => {
                Some(format!("-ASK 1 127.0.0.1:{}\r\n", port.get()?).into_bytes())
            }
            _ => None,
        }
    });
    port.set(node.port()).expect("it is set once");
    let url = format!("redis+cluster://127.0.0.1:{}", node.port());
    let client = builder(&url).unreachable_for(ms(400)).build().unwrap();
    let limit = ms(1_000);
    let began = Instant::now();
    let error = client.mutex("a").try_lock_for(limit).unwrap_err();
    assert!(began.elapsed() >= limit, "{:?}: {error}", began.elapsed());
    assert!(error.to_string().contains("ASK 1 127.0.0.1"), "{error}");
}

/// While only one of the two keys of a name has been moved, a call can neither acquire nor be
/// refused.
fn acquire_waits_until_both_keys_are_on_one_node() {
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
    assert_released(guard.unlock());
    let mutex = client.mutex(&*name);
    let count = || cluster.node(1).info("errorstats", "errorstat_TRYAGAIN");
    let timed = Control::run(COMMAND_TIMEOUT, || mutex.try_lock());
    match timed.no_later_than(SLACK) {
        Err(error @ Error::Unreachable { .. }) => {
            let text = error.to_string();
            // The deadline may pass between the two hops of an attempt, or in one of them.
            let is_expected = |text: &str| {
                ["TRYAGAIN", "ASK", "no reply in", "no time was left"]
                    .iter()
                    .any(|why| text.contains(why))
            };
            assert!(is_expected(&text), "{text}");
            assert!(text.contains("cluster 127.0.0.1"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    thread::scope(|scope| {
        let waiting = scope.spawn(|| lock_within_30_s(&client, &name));
        let before = count();
        eventually(ms(10_000), || count() != before);
        cluster.end_migration(slot, 0, 1);
        let guard = waiting.join().unwrap();
        assert!(guard.fencing_token() > token);
        assert_released(guard.unlock());
    });
}

/// Asserts that the calls of new clients fail within their deadlines.
#[track_caller]
fn assert_calls_fail_in_time(url: &str) {
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
            // `lock` finishes the attempt in flight and the pause between two attempts.
            let limit = ms(1_000) + COMMAND_TIMEOUT + ms(500);
            let timed = Control::run(limit, || fresh.mutex("a").lock());
            expect_unreachable(timed.no_later_than(SLACK));
        });
    });
}

fn unreachable_seeds_are_skipped() {
    let dead = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    assert_calls_fail_in_time(&format!("redis+cluster://{}", dead.join(",")));
    let hole = BlackHole::start();
    assert_calls_fail_in_time(&format!("redis+cluster://127.0.0.1:{}", hole.port()));

    // One unreachable seed delays no call.
    let hole = format!("://127.0.0.1:{},{},", hole.port(), dead[0]);
    let url = shared().url().replace("://", &hole);
    for _ in 0..10 {
        // Less than the time after which the client stops waiting for the seed.
        let limit = ms(2_500);
        let client = builder_within(&url, 4 * limit).build().unwrap();
        let timed = Control::run(limit, || client.mutex("seeds").try_lock_for(limit));
        assert_released(
            timed
                .no_later_than(SLACK)
                .unwrap()
                .expect("the lock is free")
                .unlock(),
        );
    }
}

/// Returns the URL of the cluster with these further nodes before the others.
fn with_seed(url: &str, node: &FakeServer) -> String {
    url.replace("://", &format!("://127.0.0.1:{},", node.port()))
}

/// One of the seeds still reports the layout from before a failover, and reports it first.
fn a_failover_is_followed_although_an_outdated_node_reports_at_once() {
    let mut cluster = Cluster::start(3, 1);
    let name = cluster.name_owned_by("a", 0);
    let layout: Value = cluster.ask(0, &["CLUSTER", "SLOTS"]).unwrap();
    let outdated = fake_node(encode(&layout), ms(0));
    let url = with_seed(&cluster.url(), &outdated);
    let early = client(&url);
    drop(early.mutex(name.as_str()).lock().unwrap());
    cluster.kill(0);
    let new = cluster.wait_for_new_master(0);
    for client in [early, client(&url), client(&url)] {
        let timed = Control::run(RESUME_WITHIN, || {
            let mutex = client.mutex(name.as_str());
            mutex.try_lock_for(ms(10_000)).unwrap()
        });
        let guard = timed.no_later_than(SLACK).expect("the lock is free");
        assert!(cluster.node(new).get(lock(&name)).is_some());
        assert_released(guard.unlock());
    }
}

/// Returns the URL of a cluster in which an outdated node names one owner of all slots at once, and
/// three other nodes name another one this late. Also returns the nodes.
fn disagreeing(
    outdated: u16,
    current: u16,
    late: std::time::Duration,
) -> (String, [FakeServer; 4]) {
    let late = || fake_node(one_owner(current), late);
    let nodes = [
        fake_node(one_owner(outdated), ms(0)),
        late(),
        late(),
        late(),
    ];
    let hosts = nodes
        .each_ref()
        .map(|node| format!("127.0.0.1:{}", node.port()));
    (format!("redis+cluster://{}", hosts.join(",")), nodes)
}

fn an_owner_that_cannot_be_reached_is_not_taken_from_the_same_node_again() {
    let server = Server::start();
    let (url, _nodes) = disagreeing(free_port(), server.port(), ms(330));
    for _ in 0..3 {
        let client = builder_within(&url, ms(10_000)).build().unwrap();
        let timed = Control::run(ms(1_000), || client.mutex("a").lock().unwrap());
        let guard = timed.no_later_than(ms(3_000));
        assert!(server.get("lock:a").is_some());
        assert_released(guard.unlock());
        for _ in 0..10 {
            assert_released(client.mutex("a").lock().unwrap().unlock());
        }
    }
}

/// The node names a server that still accepts writes.
fn an_outdated_node_moves_no_slot_of_a_master_that_works() {
    let (old, current) = (Server::start(), Server::start());
    let proxy = Proxy::new(&current);
    let (url, nodes) = disagreeing(old.port(), proxy.port(), ms(50));
    let client = builder_within(&url, ms(10_000)).build().unwrap();
    let held = client.mutex("held").ttl(ms(60_000)).lock().unwrap();
    let asked = || nodes[0].requests("CLUSTER").len();
    for _ in 0..3 {
        let before = asked();
        // A fault, after which the nodes are asked again.
        proxy.cut();
        eventually(ms(10_000), || {
            drop(client.mutex("a").lock().unwrap());
            asked() > before
        });
        held.renew().unwrap();
    }
    assert_eq!(old.script_calls(), 0, "no call goes to the old master");
    assert_released(held.unlock());
}

fn calls_to_an_unreachable_cluster_return_in_time() {
    let mut cluster = steady();
    let known = client(&cluster.url());
    let names: Vec<_> = (0..3)
        .map(|node| cluster.name_owned_by("a", node))
        .collect();
    for name in &names {
        assert_released(known.mutex(&**name).lock().unwrap().unlock());
    }
    for stop in [true, false] {
        for node in 0..3 {
            if stop {
                cluster.pause(node);
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
            assert_calls_fail_in_time(&cluster.url());
        });
    }
}

/// One thread renews the leases of all nodes, and repeats releases there.
fn hanging_node_delays_no_renewal_and_no_loss_at_others() {
    let cluster = steady();
    // Longer than the whole test: whoever waited for the node would still wait at its end.
    let client = patient(&cluster);
    let lock = |name: String| client.mutex(name).ttl(ms(1_500)).lock().unwrap();
    let at = |node: usize, n: usize| cluster.name_owned_by(&format!("at {n} "), node);
    let hanging: Vec<_> = (0..3).map(|n| lock(at(1, n))).collect();
    let others: Vec<_> = [0, 2].map(|node| lock(at(node, 0))).into();
    cluster.pause(1);
    let lost = hanging[0].lost();
    drop(client.mutex(at(1, 9)).try_lock_for(ms(300)));
    assert_eq!(lost.recv_timeout(ms(10_000)), Ok(Lost::Expired));
    let renewals = client.stats().totals.renewals_ok;
    eventually(ms(10_000), || {
        client.stats().totals.renewals_ok >= renewals + 6
    });
    others.iter().for_each(|guard| assert!(guard.is_held()));
    others
        .into_iter()
        .for_each(|guard| assert_released(guard.unlock()));
    cluster.resume(1);
}

/// The undo removes what a hanging node may have granted.
fn unanswered_acquire_is_undone() {
    let cluster = steady();
    let (one, two) = (client(&cluster.url()), client(&cluster.url()));
    let name = cluster.name_owned_by("a", 1);
    assert_released(one.mutex(&*name).lock().unwrap().unlock());
    cluster.pause(1);
    let error = one.mutex(&*name).ttl(ms(60_000)).try_lock().unwrap_err();
    let port = cluster.client_port(1);
    let text = expect_unreachable::<()>(Err(error));
    assert!(text.contains(&format!("127.0.0.1:{port}: ")), "{text}");
    // The other masters are not affected.
    for node in [0, 2] {
        assert_released(
            one.mutex(cluster.name_owned_by("a", node))
                .lock()
                .unwrap()
                .unlock(),
        );
    }
    cluster.resume(1);
    let guard = two.mutex(&*name).try_lock_for(ms(10_000)).unwrap();
    assert_released(guard.expect("the acquire was undone").unlock());
}

fn health_leaves_out_the_threads_of_a_replaced_master() {
    let cluster = Cluster::with(ClusterSetup::steady(3, 1));
    let client = client(&cluster.url());
    let mutex = client.mutex(cluster.name_owned_by("a", 0));
    let _guard = mutex.renew_every(ms(200)).lock().unwrap();
    let renews = |node: usize| {
        let health = client.health();
        let label = format!("127.0.0.1:{}", cluster.client_port(node));
        let mut renewers = health.renewers.iter();
        renewers.any(|renewer| renewer.server == label)
    };
    eventually(ms(10_000), || renews(0));
    let replica = cluster.replicas_of(0).next();
    cluster.failover(replica.expect("the master has a replica"));
    let new = cluster.wait_for_new_master(0);
    eventually(ms(30_000), || renews(new) && !renews(0));
}

fn wrong_url_scheme_is_named_in_the_error() {
    let server = Server::start();
    let url = server.url().replace("redis://", "redis+cluster://");
    let limit = COMMAND_TIMEOUT;
    let timed = Control::run(limit, || client(&url).mutex("a").lock());
    let error = timed.no_later_than(SLACK).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("redis://"), "{error}");

    let cluster = shared();
    let port = cluster.client_port(0);
    let client = Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
    let error = client
        .mutex(cluster.name_owned_by("plain", 1))
        .lock()
        .unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("redis+cluster://"), "{error}");
}

fn password_is_sent_to_every_node() {
    let cluster = Cluster::with(ClusterSetup {
        password: Some("p@ss"),
        ..ClusterSetup::steady(3, 0)
    });
    let right = client(&cluster.url());
    for n in 0..20 {
        assert_released(right.mutex(format!("n{n}")).lock().unwrap().unlock());
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

fn fail_master(failure: MasterFailure, cluster: &mut Cluster, master: usize) {
    match failure {
        MasterFailure::Killed => cluster.kill(master),
        MasterFailure::Stopped => cluster.pause(master),
        MasterFailure::SwitchedByCommand => {
            let replica = cluster.replicas_of(master).next();
            cluster.failover(replica.expect("the master has a replica"));
        }
    }
}

/// A child's role: contends, and asserts that no thread for the old master remains.
fn tidy_contender() {
    contend_and_then(|client| {
        // Starts the threads for the new master if this process has not waited there yet.
        let mutex = client.mutex(parameter("NAME"));
        let guard = mutex.lock().expect("the new master replies");
        // On a busy machine, no reply may come in such a short time.
        eventually(ms(20_000), || {
            let tried = mutex.try_lock_for(ms(200));
            tried.is_ok_and(|granted| granted.is_err())
        });
        assert_released(guard.unlock());
        for thread in ["leasehold-engin", "leasehold-subsc"] {
            let mut before = None;
            eventually(ms(20_000), || {
                let now = thread_count(thread);
                if before.replace(now) != Some(now) {
                    // The output of a child is shown if the test fails.
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

/// Several processes contend while the master of their name is replaced.
///
/// There are three other names in the same slot. `dies` (renewed often, with a waiter in another
/// client) and `sleeps` (next renewed after many seconds) are missing on the new master. `survives`
/// is there.
fn assert_contenders_resume(failure: MasterFailure) {
    let mut cluster = Cluster::start(3, 1);
    let name = cluster.name_owned_by("a", 0);
    let client = client(&cluster.url());
    let parked = builder(&cluster.url()).build();
    let parked = parked.unwrap();
    let mutex =
        |client: &Client, what: &str| client.mutex(name_in_same_slot(&name, what)).ttl(ms(40_000));
    let hold = |what: &str| mutex(&client, what).renew_every(ms(500)).lock().unwrap();
    let replica = cluster.replicas_of(0).next();
    let replica = replica.expect("the master has a replica");
    let dies = hold("dies");
    // Its next renewal is far away.
    let sleeps = mutex(&parked, "sleeps").lock().unwrap();
    let of_sleeps = lock(&name_in_same_slot(&name, "sleeps"));
    flush_replica(&cluster, replica, &of_sleeps);
    let survives = hold("survives");
    let (parked, parked_got) = park(&cluster, parked, name_in_same_slot(&name, "dies"));
    let contention = Contention::start_as(
        "cluster::tidy_contender",
        &cluster.url(),
        &name,
        PROCESSES,
        0,
    );

    let (lost, sleeper_lost) = (dies.lost(), sleeps.lost());
    fail_master(failure, &mut cluster, 0);
    assert_eq!(cluster.wait_for_new_master(0), replica);
    let began = Instant::now();
    let timed = time_until_acquired(began, || fence_on(&cluster, replica, &name));
    let (took, overshoot) = (timed.took, timed.overshoot);
    timed.no_later_than(SLACK);
    let lost = reported_loss(&cluster, replica, &client, &dies, &lost);
    assert!(matches!(lost, Lost::Deleted | Lost::Taken), "{lost}");
    assert_eq!(sleeper_lost.recv_timeout(ms(5_000)), Ok(Lost::Deleted));
    let reported = began.elapsed();
    let at = parked_got.recv_timeout(ms(60_000)).unwrap();
    let got = at.saturating_duration_since(began);
    assert!(
        got <= RESUME_WITHIN + SLACK + WAKE_UPS * overshoot,
        "{got:?}"
    );
    parked.join().unwrap();

    let_old_master_return(failure, &mut cluster, &contention);
    let outcome = contention.finish();
    println!(
        "{failure:?}: resumed after {took:?}, loss reported after {reported:?}, \
         parked waiter got the lock after {got:?}; {outcome:?}"
    );
    outcome.assert_promises(SLACK);
    survives.unlock().unwrap();
    assert_eq!(dies.unlock().unwrap_err().lost(), Some(lost));
}

/// Returns the loss that `guard` reports on `lost`, after `replica` has become the master.
#[track_caller]
fn reported_loss(
    cluster: &Cluster,
    replica: usize,
    client: &Client,
    guard: &MutexGuard,
    lost: &Receiver<Lost>,
) -> Lost {
    lost.recv_timeout(ms(5_000)).unwrap_or_else(|_| {
        let (health, stats) = (client.health(), client.stats());
        // A value here means that the replica has copied its master once more after the flush.
        let key = lock(&guard.name().to_string());
        let value: RedisResult<Option<String>> = cluster.ask(replica, &["GET", &key]);
        let remaining = guard.remaining();
        panic!("the loss is not reported; {remaining:?}, {value:?}, {health:?}, {stats:?}")
    })
}

/// Waits for the lock in a thread, which sends the time when it has it. Returns once the thread is
/// subscribed on node 0.
fn park(cluster: &Cluster, client: Client, name: String) -> (JoinHandle<()>, Receiver<Instant>) {
    let (got, parked_got) = unbounded();
    let channel = format!("lock_release:{name}");
    let parked = thread::spawn(move || {
        let guard = client.mutex(name).lock().unwrap();
        got.send(Instant::now()).unwrap();
        assert_released(guard.unlock());
    });
    eventually(ms(10_000), || cluster.node(0).subscribers(&channel) > 0);
    (parked, parked_got)
}

/// Waits until the processes use the new master, resumes the old one if it was only paused, and
/// waits until they have made progress after its return.
fn let_old_master_return(failure: MasterFailure, cluster: &mut Cluster, contention: &Contention) {
    contention.wait_for_progress(30);
    if failure == MasterFailure::Stopped {
        cluster.resume(0);
    }
    if failure != MasterFailure::Killed {
        cluster.wait_until_settled();
        contention.wait_for_progress(30);
    }
}

/// Returns another name in the same slot.
fn name_in_same_slot(name: &str, what: &str) -> String {
    format!("{{lock:{name}}}:{what}")
}

/// Waits until the replica has the key, then removes everything that the replica has received.
fn flush_replica(cluster: &Cluster, replica: usize, key: &str) {
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

/// The slot of the contended name migrates while this test or one of the processes holds the lock.
fn contenders_resume_after_the_slot_moves() {
    let cluster = steady();
    let client = client(&cluster.url());
    let name = cluster.name_owned_by("a", 0);
    let slot = cluster.slot(&lock(&name));
    let contention = Contention::start(&cluster.url(), &name, PROCESSES, 0);
    for (from, to, is_ours) in [(0, 1, true), (1, 2, false), (2, 0, true)] {
        let guard = is_ours.then(|| lock_within_30_s(&client, &name));
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
            assert_released(guard.unlock());
        }
        let timed = time_until_acquired(began, || fence_on(&cluster, to, &name));
        println!("from {from} to {to}: resumed after {:?}", timed.took);
        timed.no_later_than(SLACK);
        contention.wait_for_progress(30);
    }
    let outcome = contention.finish();
    println!("{outcome:?}");
    outcome.assert_promises(SLACK);
    // A migration ends no lease.
    let Outcome {
        overlaps,
        rejected,
        known_losses,
        ..
    } = outcome;
    assert_eq!((overlaps, rejected, known_losses), (0, 0, 0));
}

fn contenders_resume_after_the_master_is_killed() {
    assert_contenders_resume(MasterFailure::Killed);
}

fn contenders_resume_after_the_master_is_paused() {
    assert_contenders_resume(MasterFailure::Stopped);
}

fn contenders_resume_after_a_manual_failover() {
    assert_contenders_resume(MasterFailure::SwitchedByCommand);
}

/// The second call joins the queue of the client before the first has learned who owns the slot.
/// Its place names the inbox of the owner.
fn call_that_waits_before_the_owner_is_known_is_subscribed_at_the_owner() {
    let cluster = shared();
    let name = cluster.name_owned_by("early", 1);
    let guard = lock_within_30_s(&client(&cluster.url()), &name);
    let seed = Proxy::to(cluster.client_port(0));
    seed.set_all(Traffic::Stall);
    let url = format!("redis+cluster://127.0.0.1:{}", seed.port());
    let builder = builder(&url).connect_timeout(ms(30_000));
    let waiting = builder
        .command_timeout(ms(30_000))
        .unreachable_for(ms(30_000));
    let waiting = waiting.build().unwrap();
    let owner = cluster.node(1);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_released(lock_within_30_s(&waiting, &name).unlock()));
        }
        eventually(ms(30_000), || waiting.stats().waiting > 0);
        seed.set_all(Traffic::Pass);
        let places = format!("leasehold:places:{{{}}}", lock(&name));
        let inbox = || -> Option<String> {
            let mut values = redis::cmd("HVALS");
            let values = values.arg(&places).query(&mut owner.connection());
            let values: Vec<String> = values.unwrap();
            Some(values.first()?.rsplit(' ').next()?.to_owned())
        };
        eventually(ms(30_000), || inbox().is_some());
        // The first command may have named another inbox.
        wait_for_refresh(&waiting);
        eventually(ms(5_000), || {
            inbox().is_some_and(|inbox| owner.subscribers(inbox) == 1)
        });
        assert_released(guard.unlock());
    });
}

/// A set in several slots waits for the release message, so it could not use the place.
fn place_that_a_call_leaves_goes_beside_that_of_a_set_in_several_slots() {
    let cluster = shared();
    let [one, two] = [(); 2].map(|()| client(&cluster.url()));
    let [first, other] = [0, 1].map(|node| cluster.name_owned_by("left-place", node));
    let queue = format!("leasehold:queue:{{{}}}", lock(&first));
    let places = || places_in(cluster.node(0), &queue);
    let guard = lock_within_30_s(&one, &first);
    thread::scope(|scope| {
        let alone = two.mutex(&*first);
        let alone = scope.spawn(move || alone.try_lock_for(ms(2_000)).unwrap());
        eventually(ms(30_000), || places() == 1 || alone.is_finished());
        let set = two.mutex_all([&*first, &*other]);
        let set = scope.spawn(move || set.try_lock_for(ms(60_000)).unwrap());
        eventually(ms(30_000), || places() == 2 || alone.is_finished());
        assert!(alone.join().unwrap().is_err());
        // Sooner than its place would expire; the set keeps its own.
        eventually(ms(4_000), || places() == 1);
        assert_released(guard.unlock());
        let set = set.join().unwrap().expect("the names are free");
        set.unlock().unwrap();
    });
}
