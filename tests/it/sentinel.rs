//! Promise: through Sentinel a lock keeps the promises of a single server and follows the master.

use std::sync::OnceLock;
use std::thread;
use std::time::Instant;

use crossbeam_channel::unbounded;
use leasehold::{Error, Lost};
use support::fair::wait_for_refresh;
use support::{
    BlackHole, COMMAND_TIMEOUT, Child, Contention, Control, FakeSentinel, MasterFailure,
    OwnSentinel, PROCESSES, Proxy, RESUME_WITHIN, SLACK, Sentinels, Server, Setup, Traffic,
    assert_message_wakes, builder, builder_within, client, eventually, expect_unreachable,
    free_port, ms, parameter, sentinel_url, start_shared, thread_count, time_until_acquired,
};

support::roles![threads_in_child];

support::tests![
    contenders_go_on_when_the_master_is_stopped,
    a_sentinel_with_an_old_configuration_lets_no_second_holder_in,
    a_failover_is_noticed_although_no_subscription_carries_anything,
    contenders_go_on_after_a_manual_failover,
    contenders_go_on_when_the_master_is_killed,
    silent_sentinels_are_reported_in_time,
    leases_survive_or_are_reported_lost_when_the_master_is_killed,
    sentinels_that_refuse_connections_are_reported_in_time,
    a_demoted_master_is_no_longer_used,
    a_lease_is_renewed_on_the_master,
    leases_survive_or_are_reported_lost_when_the_master_is_stopped,
    leases_survive_or_are_reported_lost_after_a_manual_failover,
    a_waiter_is_woken_on_the_new_master,
    a_waiter_is_woken_by_the_release,
    one_dead_sentinel_delays_no_call_past_its_deadline,
    one_stopped_sentinel_delays_no_call_past_its_deadline,
    new_clients_lock_although_the_first_answer_is_wrong,
    a_wrong_sentinel_closes_no_connection_to_the_master,
    the_highest_epoch_wins_even_if_one_sentinel_names_it,
    an_epoch_is_never_taken_for_an_older_address,
    sentinels_that_always_answer_late_are_heard,
    an_outdated_sentinel_alone_keeps_no_client_from_its_master,
    without_epochs_the_majority_names_the_master,
    an_unknown_master_name_is_reported_at_once,
    basic_calls_work_through_sentinel,
    the_database_and_passwords_of_the_url_are_used,
    locks_work_without_sentinels_once_the_master_is_known,
    the_thread_that_listens_to_the_sentinels_ends_with_the_client
];

const FENCE: &str = "leasehold:fence:{lock:a}";

/// Returns the group of tests that only use their own names and harm no server.
fn shared() -> &'static Sentinels {
    static SHARED: OnceLock<Sentinels> = OnceLock::new();
    SHARED.get_or_init(|| start_shared(|| Sentinels::start(Setup::steady()).long_lived()))
}

fn basic_calls_work_through_sentinel() {
    let sentinels = shared();
    let (one, two) = (client(&sentinels.url()), client(&sentinels.url()));
    assert!(one.ping().is_ok());
    let guard = one.mutex("basic").lock().unwrap();
    assert!(sentinels.first_master().get("lock:basic").is_some());
    assert!(two.mutex("basic").try_lock().unwrap().is_err());
    guard.renew().unwrap();
    guard.unlock().unwrap();
    let again = two
        .mutex("basic")
        .try_lock()
        .unwrap()
        .expect("the lock is free");
    again.unlock().unwrap();
}

/// Without the message, a refresh of the waiter's place would find the lock free within 0.9 s.
fn a_waiter_is_woken_by_the_release() {
    let sentinels = shared();
    let one = client(&sentinels.url());
    let two = client(&sentinels.url());
    let guard = one.mutex("woken").ttl(ms(60_000)).lock().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| two.mutex("woken").lock().unwrap());
        sentinels
            .first_master()
            .wait_until_waiter_sleeps("lock_release:woken");
        assert_message_wakes(&two, || {
            guard.unlock().unwrap();
            drop(waiting.join().unwrap());
        });
    });
}

fn a_lease_is_renewed_on_the_master() {
    let sentinels = shared();
    let (one, two) = (client(&sentinels.url()), client(&sentinels.url()));
    let (renewed, renewals) = unbounded();
    let mutex = one.mutex("renewed").ttl(ms(3_000)).renew_every(ms(200));
    let mutex = mutex.on_renew(move |_| {
        let _ = renewed.send(());
    });
    let guard = mutex.lock().unwrap();
    for _ in 0..20 {
        renewals
            .recv_timeout(ms(10_000))
            .expect("the lease is renewed");
    }
    assert!(guard.is_held());
    assert!(two.mutex("renewed").try_lock().unwrap().is_err());
    guard.unlock().unwrap();
}

fn the_database_and_passwords_of_the_url_are_used() {
    let sentinels = Sentinels::start(Setup {
        password: Some("data@pw"),
        sentinel_password: Some("watch@pw"),
        ..Setup::steady()
    });
    let client = client(&sentinels.url_of("mymaster", "/2"));
    let guard = client.mutex("a").lock().unwrap();
    let keys = |db: &str| -> i64 {
        let script = "redis.call('SELECT', ARGV[1]); return redis.call('EXISTS', KEYS[1])";
        let command = ["EVAL", script, "1", "lock:a", db];
        sentinels
            .ask_data(sentinels.first_master(), &command)
            .unwrap()
    };
    assert_eq!((keys("2"), keys("0")), (1, 0));
    guard.unlock().unwrap();

    let right = sentinels.url();
    for (wrong, with) in [("data%40pw", "wr0ng"), ("watch%40pw", "wr0ng")] {
        let client = builder(&right.replace(wrong, with)).build().unwrap();
        match client.mutex("a").lock() {
            Err(error @ Error::Refused { .. }) => {
                assert!(error.to_string().contains("password"), "{error}");
                assert!(!error.to_string().contains(with), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Asserts that new clients get the lock in time although one sentinel does not reply.
#[track_caller]
fn assert_new_clients_lock_in_time(url: &str) {
    // Less than the time after which a client stops waiting for the sentinel.
    let limit = ms(2_500);
    for _ in 0..10 {
        let client = builder_within(url, 4 * limit).build().unwrap();
        let timed = Control::run(limit, || client.mutex("a").try_lock_for(limit));
        let guard = timed.no_later_than(SLACK).unwrap();
        let guard = guard.expect("the lock is free");
        guard.unlock().unwrap();
    }
}

fn one_dead_sentinel_delays_no_call_past_its_deadline() {
    let mut sentinels = Sentinels::start(Setup::steady());
    sentinels.kill_sentinel(0);
    assert_new_clients_lock_in_time(&sentinels.url());
}

fn one_stopped_sentinel_delays_no_call_past_its_deadline() {
    let sentinels = Sentinels::start(Setup::steady());
    sentinels.pause_sentinel(0);
    assert_new_clients_lock_in_time(&sentinels.url());
}

fn locks_work_without_sentinels_once_the_master_is_known() {
    let mut sentinels = Sentinels::start(Setup::steady());
    let (one, two) = (client(&sentinels.url()), client(&sentinels.url()));
    for client in [&one, &two] {
        assert!(client.mutex("a").try_lock().unwrap().is_ok());
    }
    for n in 0..sentinels.count() {
        sentinels.kill_sentinel(n);
    }
    let lock_and_wait = || {
        let guard = one.mutex("a").lock().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| two.mutex("a").lock());
            sentinels
                .first_master()
                .wait_until_waiter_sleeps("lock_release:a");
            guard.unlock().unwrap();
            let guard = waiting.join().unwrap().unwrap();
            guard.unlock().unwrap();
        });
    };
    lock_and_wait();
    // Reconnecting to the master needs no sentinel either.
    sentinels.first_master().kill_clients();
    lock_and_wait();
}

/// Asserts that calls of new clients fail as unreachable in time.
#[track_caller]
fn assert_unreachable_in_time(url: &str) {
    for _ in 0..5 {
        let fresh = client(url);
        let limit = ms(300);
        let timed = Control::run(limit, || fresh.mutex("a").try_lock_for(limit));
        expect_unreachable(timed.no_later_than(SLACK));
        let fresh = client(url);
        let timed = Control::run(COMMAND_TIMEOUT, || fresh.mutex("a").try_lock());
        expect_unreachable(timed.no_later_than(SLACK));
    }
    let fresh = builder(url).unreachable_for(ms(1_000)).build().unwrap();
    // The limit includes an attempt in flight and the pause between two attempts.
    let limit = ms(1_000) + COMMAND_TIMEOUT + ms(500);
    let timed = Control::run(limit, || fresh.mutex("a").lock());
    expect_unreachable(timed.no_later_than(SLACK));
}

fn sentinels_that_refuse_connections_are_reported_in_time() {
    let hosts: Vec<String> = (0..3)
        .map(|_| format!("127.0.0.1:{}", free_port()))
        .collect();
    assert_unreachable_in_time(&format!("redis+sentinel://{}/mymaster", hosts.join(",")));
}

fn silent_sentinels_are_reported_in_time() {
    let holes: Vec<_> = (0..3).map(|_| BlackHole::start()).collect();
    let hosts: Vec<String> = holes
        .iter()
        .map(|hole| format!("127.0.0.1:{}", hole.port()))
        .collect();
    assert_unreachable_in_time(&format!("redis+sentinel://{}/mymaster", hosts.join(",")));
}

fn an_unknown_master_name_is_reported_at_once() {
    let mut sentinels = Sentinels::start(Setup::steady());
    for is_one_dead in [false, true] {
        let client = client(&sentinels.url_of("nobody", ""));
        let limit = COMMAND_TIMEOUT;
        let timed = Control::run(limit, || client.mutex("a").lock());
        match timed.no_later_than(SLACK) {
            Err(error @ Error::Refused { .. }) => {
                let text = error.to_string();
                assert!(text.contains("no master with this name"), "{text}");
                assert!(text.contains("nobody"), "{text}");
            }
            other => panic!("{other:?}"),
        }
        if !is_one_dead {
            sentinels.kill_sentinel(2);
        }
    }
}

fn disturb_master(failure: MasterFailure, sentinels: &mut Sentinels) {
    match failure {
        MasterFailure::Killed => sentinels.kill_first_master(),
        MasterFailure::Stopped => sentinels.first_master().pause(),
        MasterFailure::SwitchedByCommand => sentinels.failover(),
    }
}

/// Asserts that contending processes go on, and that no call is late, while the master is replaced.
fn assert_contenders_go_on(failure: MasterFailure) {
    let mut sentinels = Sentinels::start(Setup::fast_failover());
    let contention = Contention::start(&sentinels.url(), "a", PROCESSES, 0);
    disturb_master(failure, &mut sentinels);
    let successor = sentinels.successor();
    let timed = time_until_acquired(Instant::now(), || {
        sentinels.ask_data(successor, &["GET", FENCE])
    });
    let took = timed.took;
    timed.no_later_than(SLACK);

    // The processes acquire on the new master.
    contention.wait_for_progress(30);
    match failure {
        MasterFailure::Killed => {}
        MasterFailure::Stopped => sentinels.first_master().resume(),
        MasterFailure::SwitchedByCommand => {}
    }
    if failure != MasterFailure::Killed {
        wait_until_first_master_is_demoted(&sentinels);
        contention.wait_for_progress(30);
    }
    let outcome = contention.finish();
    println!("{failure:?}: went on after {took:?}; {outcome:?}");
    outcome.assert_promises(SLACK);
}

/// Waits until the first master reports the role of a replica.
fn wait_until_first_master_is_demoted(sentinels: &Sentinels) {
    eventually(ms(60_000), || {
        let role: Vec<redis::Value> = sentinels
            .ask_data(sentinels.first_master(), &["ROLE"])
            .unwrap_or_default();
        role.first() == Some(&redis::Value::BulkString(b"slave".into()))
    });
}

fn contenders_go_on_when_the_master_is_killed() {
    assert_contenders_go_on(MasterFailure::Killed);
}

fn contenders_go_on_when_the_master_is_stopped() {
    assert_contenders_go_on(MasterFailure::Stopped);
}

fn contenders_go_on_after_a_manual_failover() {
    assert_contenders_go_on(MasterFailure::SwitchedByCommand);
}

/// Asserts that a lease on the replicas survives and a lease that they lack is reported lost.
fn assert_leases_survive_or_are_reported_lost(failure: MasterFailure) {
    let mut sentinels = Sentinels::start(Setup::fast_failover());
    let client = client(&sentinels.url());
    let lock = |name: &str| {
        let mutex = client.mutex(name).ttl(ms(40_000)).renew_every(ms(500));
        mutex.lock().unwrap()
    };
    let (survives, dies) = (lock("survives"), lock("dies"));
    for replica in &sentinels.data()[1..] {
        let has = |name: &str| replica.get(name).is_some();
        eventually(ms(10_000), || has("lock:survives") && has("lock:dies"));
        // As if the key had never been replicated; renewals do not create it.
        let set = |value: &str| {
            let command = ["CONFIG", "SET", "replica-read-only", value];
            sentinels.ask_data::<String>(replica, &command).unwrap();
        };
        set("no");
        sentinels
            .ask_data::<u32>(replica, &["DEL", "lock:dies"])
            .unwrap();
        set("yes");
    }
    assert!(survives.is_held() && dies.is_held());
    let lost = dies.lost();
    disturb_master(failure, &mut sentinels);
    let successor = sentinels.successor();
    let timed = Control::run(RESUME_WITHIN + ms(500), || lost.recv_timeout(ms(20_000)));
    assert_eq!(timed.no_later_than(SLACK), Ok(Lost::Deleted));
    assert!(!dies.is_held());
    assert_eq!(dies.unlock().unwrap_err().lost(), Some(Lost::Deleted));
    assert!(survives.is_held());
    survives.renew().unwrap();
    assert!(successor.get("lock:survives").is_some());
    survives.unlock().unwrap();
    assert!(successor.get("lock:survives").is_none());
}

fn leases_survive_or_are_reported_lost_when_the_master_is_killed() {
    assert_leases_survive_or_are_reported_lost(MasterFailure::Killed);
}

fn leases_survive_or_are_reported_lost_when_the_master_is_stopped() {
    assert_leases_survive_or_are_reported_lost(MasterFailure::Stopped);
}

fn leases_survive_or_are_reported_lost_after_a_manual_failover() {
    assert_leases_survive_or_are_reported_lost(MasterFailure::SwitchedByCommand);
}

/// Without the message, a refresh of the waiter's place would find the lock free within 0.9 s.
fn a_waiter_is_woken_on_the_new_master() {
    let sentinels = Sentinels::start(Setup::fast_failover());
    let holder = client(&sentinels.url());
    let waiter = client(&sentinels.url());
    let guard = holder.mutex("a").ttl(ms(60_000)).lock().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.mutex("a").lock());
        sentinels
            .first_master()
            .wait_until_waiter_sleeps("lock_release:a");
        sentinels.failover();
        let successor = sentinels.successor();
        let listens = || {
            let command = ["PUBSUB", "NUMSUB", "lock_release:a"];
            let subscribers = sentinels.ask_data::<(String, u32)>(successor, &command);
            subscribers.is_ok_and(|(_, count)| count > 0)
        };
        let timed = Control::run(RESUME_WITHIN, || eventually(ms(30_000), listens));
        timed.no_later_than(SLACK);
        wait_for_refresh(&waiter);
        assert_message_wakes(&waiter, || {
            guard.unlock().unwrap();
            drop(waiting.join().unwrap().unwrap());
        });
    });
}

fn a_demoted_master_is_no_longer_used() {
    let sentinels = Sentinels::start(Setup::fast_failover());
    let client = client(&sentinels.url());
    let mutex = client.mutex("a");
    // Leaves several idle connections.
    let guards: Vec<_> = thread::scope(|scope| {
        let locks: Vec<_> = (0..8)
            .map(|n| client.mutex(format!("{n}")))
            .map(|mutex| scope.spawn(move || mutex.lock().unwrap()))
            .collect();
        locks.into_iter().map(|lock| lock.join().unwrap()).collect()
    });
    drop(guards);
    sentinels.failover();
    let successor = sentinels.successor();
    let lock = || {
        let guard = mutex.try_lock_for(ms(1_000)).unwrap();
        guard.expect("no other call holds the lock")
    };
    let is_there = || {
        let _guard = lock();
        sentinels
            .ask_data::<bool>(successor, &["EXISTS", "lock:a"])
            .is_ok_and(|exists| exists)
    };
    let timed = Control::run(RESUME_WITHIN, || eventually(ms(30_000), is_there));
    timed.no_later_than(SLACK);
    let calls = || sentinels.first_master().script_calls();
    let before = calls();
    for _ in 0..50 {
        lock().unlock().unwrap();
    }
    assert_eq!(calls(), before, "no call goes to the old master");
    wait_until_first_master_is_demoted(&sentinels);
    for _ in 0..50 {
        lock().unlock().unwrap();
    }
}

fn the_thread_that_listens_to_the_sentinels_ends_with_the_client() {
    let sentinels = shared();
    Child::spawn("sentinel::threads_in_child", &[("URL", &sentinels.url())])
        .wait()
        .succeeded();
}

fn threads_in_child() {
    let listening = || thread_count("leasehold-subsc");
    for _ in 0..3 {
        let client = client(&parameter("URL"));
        assert_eq!(listening(), 0);
        let guard = client.mutex("a").lock().unwrap();
        // One for all sentinels. A dialer that it starts has its name for a moment.
        eventually(ms(10_000), || listening() == 1);
        drop(client);
        eventually(ms(10_000), || listening() == 1);
        drop(guard);
        eventually(ms(10_000), || listening() == 0);
    }
    let client = client(&parameter("URL"));
    drop(client.mutex("a").lock().unwrap());
    assert!(client.shutdown(ms(5_000)).is_clean());
    // The kernel lists a thread for a moment after it has ended.
    eventually(ms(10_000), || listening() == 0);
}

/// Two sentinels name the good master. A third one, which only some processes can reach, comes back
/// with the configuration from before a failover, and names an old master that is still writable.
fn a_sentinel_with_an_old_configuration_lets_no_second_holder_in() {
    let (good, old) = (Server::start(), Server::start());
    let [one, two, third] = [(); 3].map(|()| free_port());
    let _current = [one, two].map(|port| OwnSentinel::start(port, good.port(), 5));
    let (all, reachable) = (sentinel_url([third, one, two]), sentinel_url([one, two]));

    let holder = client(&all);
    let held = holder.mutex("held").ttl(ms(3_000)).lock().unwrap();
    let mut contention = Contention::start(&all, "a", 3, 0);
    contention.join("contender", &reachable, "a", 2, 0);
    let outdated = OwnSentinel::start(third, old.port(), 1);
    eventually(ms(20_000), || outdated.subscriptions() == 4);
    // A process that starts now hears of both masters.
    contention.join("contender", &all, "a", 1, 0);
    eventually(ms(20_000), || outdated.subscriptions() == 5);
    contention.wait_for_progress(100);

    let outcome = contention.finish();
    assert_eq!((outcome.overlaps, outcome.rejected), (0, 0), "{outcome:?}");
    outcome.assert_promises(SLACK);
    assert_eq!(old.script_calls(), 0, "no lock is taken at the old master");
    assert!(held.is_held());
    held.renew().unwrap();
    held.unlock().unwrap();
    drop(outdated);
}

/// Returns a closed port, and a replica of the server, with the replica itself.
fn wrong_addresses(master: &Server) -> ([u16; 2], Server) {
    let replica = master.replica();
    ([free_port(), replica.port()], replica)
}

fn new_clients_lock_although_the_first_answer_is_wrong() {
    let master = Server::start();
    let (wrong, _replica) = wrong_addresses(&master);
    // The good sentinels answer later than the others.
    let good = [(); 2].map(|()| FakeSentinel::naming(master.port(), Some(5)));
    for (address, epoch, late) in [
        (wrong[0], Some(5), ms(0)),
        (wrong[0], None, ms(50)),
        (wrong[0], Some(9), ms(50)),
        (wrong[1], Some(5), ms(50)),
        (wrong[1], Some(9), ms(0)),
    ] {
        let liar = FakeSentinel::naming(address, epoch);
        for sentinel in &good {
            sentinel.set(|says| says.after = Some(late));
        }
        let url = sentinel_url([liar.port(), good[0].port(), good[1].port()]);
        for _ in 0..3 {
            let client = client(&url);
            let limit = ms(1_000);
            let timed = Control::run(ms(0), || client.mutex("a").try_lock_for(limit));
            let guard = timed.no_later_than(limit).unwrap();
            let guard = guard.expect("the lock is free");
            assert!(
                master.get("lock:a").is_some(),
                "{address} {epoch:?} {late:?}"
            );
            guard.unlock().unwrap();
        }
    }
}

/// Waits until the clients have asked the sentinel again, `times` times.
fn wait_until_asked(sentinel: &FakeSentinel, times: usize) {
    let before = sentinel.times_asked();
    eventually(ms(20_000), || sentinel.times_asked() >= before + times);
}

fn a_wrong_sentinel_closes_no_connection_to_the_master() {
    let master = Server::start();
    let (wrong, _replica) = wrong_addresses(&master);
    let proxy = Proxy::new(&master);
    let sentinels = [(); 3].map(|()| FakeSentinel::naming(proxy.port(), Some(5)));
    let url = sentinel_url(sentinels.each_ref().map(FakeSentinel::port));
    let client = client(&url);
    let held = client.mutex("held").ttl(ms(60_000)).lock().unwrap();
    eventually(ms(10_000), || {
        sentinels
            .iter()
            .all(|sentinel| sentinel.subscriptions().len() == 1)
    });
    drop(client.mutex("a").lock().unwrap());
    let connections = proxy.connections();
    for (address, epoch) in [(wrong[0], Some(5)), (wrong[1], Some(9)), (wrong[0], None)] {
        sentinels[0].set(|says| (says.master, says.epoch) = (address, epoch));
        sentinels[0].announce();
        wait_until_asked(&sentinels[0], 1);
        sentinels[0].announce();
        wait_until_asked(&sentinels[0], 1);
        for _ in 0..20 {
            let guard = client.mutex("a").try_lock().unwrap();
            guard.unwrap().unlock().unwrap();
        }
        assert!(held.is_held());
    }
    assert_eq!(
        proxy.connections(),
        connections,
        "no connection was replaced"
    );
    assert_eq!(proxy.open_connections(), connections);
    held.unlock().unwrap();
}

/// Waits until the client acquires at this server.
#[track_caller]
fn wait_until_locked_at(server: &Server, client: &leasehold::Client, within: std::time::Duration) {
    eventually(within, || match client.mutex("a").try_lock() {
        Ok(Ok(_guard)) => server.get("lock:a").is_some(),
        _ => false,
    });
}

fn the_highest_epoch_wins_even_if_one_sentinel_names_it() {
    let (old, new) = (Server::start(), Server::start());
    let sentinels = [(); 3].map(|()| FakeSentinel::naming(old.port(), Some(5)));
    let url = sentinel_url(sentinels.each_ref().map(FakeSentinel::port));
    let (early, late) = (client(&url), client(&url));
    wait_until_locked_at(&old, &early, ms(5_000));
    eventually(ms(10_000), || !sentinels[0].subscriptions().is_empty());
    sentinels[0].set(|says| (says.master, says.epoch) = (new.port(), Some(6)));
    sentinels[0].announce();
    wait_until_locked_at(&new, &early, ms(5_000));
    wait_until_locked_at(&new, &late, ms(5_000));
}

/// Of three sentinels one answers. A failover ends between two commands of a question to it.
fn an_epoch_is_never_taken_for_an_older_address() {
    let (old, new) = (Server::start(), Server::start());
    let sentinels = [(); 3].map(|()| FakeSentinel::naming(old.port(), Some(5)));
    for sentinel in &sentinels[1..] {
        sentinel.set(|says| says.after = None);
    }
    let url = sentinel_url(sentinels.each_ref().map(FakeSentinel::port));
    let client = client(&url);
    wait_until_locked_at(&old, &client, ms(5_000));
    eventually(ms(10_000), || !sentinels[0].subscriptions().is_empty());
    sentinels[0].set(|says| says.then = Some((new.port(), 6)));
    sentinels[0].announce();
    wait_until_locked_at(&new, &client, ms(10_000));
}

/// Two of three sentinels are so far away that each question ends without them.
fn sentinels_that_always_answer_late_are_heard() {
    let (old, new) = (Server::start(), Server::start());
    let sentinels = [(); 3].map(|()| FakeSentinel::naming(old.port(), Some(5)));
    let url = sentinel_url(sentinels.each_ref().map(FakeSentinel::port));
    let client = client(&url);
    wait_until_locked_at(&old, &client, ms(5_000));
    eventually(ms(10_000), || {
        sentinels
            .iter()
            .all(|sentinel| sentinel.subscriptions().len() == 1)
    });
    for sentinel in &sentinels[1..] {
        sentinel.set(|says| {
            (says.master, says.epoch, says.after) = (new.port(), Some(6), Some(ms(400)));
        });
    }
    sentinels[1].announce();
    wait_until_locked_at(&new, &client, ms(10_000));
}

/// The connections to the good master are cut, and meanwhile only a sentinel with an old
/// configuration answers. It names an old master that is still writable.
fn an_outdated_sentinel_alone_keeps_no_client_from_its_master() {
    for have_others_answered in [true, false] {
        let (good, old) = (Server::start(), Server::start());
        let proxy = Proxy::new(&good);
        let sentinels = [(); 3].map(|()| FakeSentinel::naming(proxy.port(), Some(5)));
        let silence_the_others = || {
            for sentinel in &sentinels[1..] {
                sentinel.set(|says| says.after = None);
            }
        };
        if !have_others_answered {
            silence_the_others();
        }
        let url = sentinel_url(sentinels.each_ref().map(FakeSentinel::port));
        let client = client(&url);
        wait_until_locked_at(&good, &client, ms(5_000));
        silence_the_others();
        sentinels[0].set(|says| (says.master, says.epoch) = (old.port(), Some(1)));

        proxy.set_all(Traffic::Cut);
        let asked = sentinels[0].times_asked();
        eventually(ms(20_000), || {
            // Each call may find that there is no connection, and then asks the sentinels.
            assert!(client.mutex("a").try_lock().is_err());
            sentinels[0].times_asked() > asked + 1
        });
        proxy.set_all(Traffic::Pass);
        wait_until_locked_at(&good, &client, ms(5_000));
        assert_eq!(old.script_calls(), 0, "no lock is taken at the old master");
    }
}

fn without_epochs_the_majority_names_the_master() {
    let (old, new) = (Server::start(), Server::start());
    let sentinels = [(); 3].map(|()| FakeSentinel::naming(old.port(), None));
    let url = sentinel_url(sentinels.each_ref().map(FakeSentinel::port));
    let client = client(&url);
    wait_until_locked_at(&old, &client, ms(5_000));
    eventually(ms(10_000), || !sentinels[0].subscriptions().is_empty());
    sentinels[0].set(|says| says.master = new.port());
    sentinels[0].announce();
    wait_until_asked(&sentinels[0], 1);
    assert!(client.mutex("b").try_lock().unwrap().is_ok());
    assert_eq!(new.script_calls(), 0, "one sentinel of three moves nobody");
    sentinels[1].set(|says| says.master = new.port());
    sentinels[0].announce();
    wait_until_locked_at(&new, &client, ms(5_000));
}

/// The connections of all subscriptions stay open and carry nothing more, as behind a proxy that
/// hangs. Then there is a failover, and the old master stays reachable and writable.
fn a_failover_is_noticed_although_no_subscription_carries_anything() {
    let (old, new) = (Server::start(), Server::start());
    let sentinels = [(); 3].map(|()| FakeSentinel::naming(old.port(), Some(5)));
    // Its subscription lives: a refusal is a sign of life, too.
    let lively = FakeSentinel::naming(old.port(), Some(5));
    lively.set(|says| says.refuses_ping = true);
    let proxies = sentinels
        .each_ref()
        .map(|sentinel| Proxy::to(sentinel.port()));
    let ports = proxies.iter().map(Proxy::port).chain([lively.port()]);
    let client = client(&sentinel_url(ports));
    wait_until_locked_at(&old, &client, ms(5_000));
    let all = || sentinels.iter().chain([&lively]);
    eventually(ms(10_000), || {
        all().all(|sentinel| sentinel.subscriptions().len() == 1)
    });
    let [silent, refusing] = [&sentinels[0], &lively].map(|sentinel| sentinel.subscriptions()[0]);

    proxies
        .iter()
        .for_each(|proxy| proxy.set_open(Traffic::DropBoth));
    for sentinel in all() {
        sentinel.set(|says| (says.master, says.epoch) = (new.port(), Some(6)));
    }
    let timed = Control::run(ms(10_000), || {
        wait_until_locked_at(&new, &client, ms(30_000));
    });
    timed.no_later_than(ms(2_000));
    eventually(ms(10_000), || {
        let subscriptions = sentinels[0].subscriptions();
        subscriptions.iter().any(|n| *n != silent)
    });
    assert_eq!(lively.subscriptions(), [refusing]);
}
