//! Promise: a lock goes from thread to thread of one client without a trip, and each holder has all that a holder has; the
//! others of the fleet have their turn.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, TryRecvError, bounded, unbounded};
use leasehold::{Client, ClientBuilder, HolderId, Lost, Mutex, MutexGuard, Unlocked};
use parking_lot::Mutex as Local;
use support::{Counters, Fenced, Proxy, Server, Traffic, eventually, ms};

support::tests![
    basic_handoff_sends_no_command,
    nobody_else_waits_so_no_tokens_are_reserved,
    each_holder_hears_of_its_own_end_only,
    a_doubt_is_cleared_before_the_next_hand_off,
    zero_turns_it_off,
    a_waiter_that_wants_none_is_handed_none,
    a_run_is_as_long_as_it_was_set,
    another_client_has_its_turn,
    requests_are_few,
    processes_and_threads_count_exactly,
    tokens_rise_over_clients_and_hand_offs,
    a_lease_that_was_extended_goes_to_who_wants_that,
    renewals_are_those_of_whoever_holds_it,
    a_lease_that_has_run_down_is_renewed_first,
    without_renewal_in_the_background_each_hand_off_renews,
    max_hold_begins_with_the_holder,
    over_a_quorum_each_server_keeps_the_block,
    a_key_that_may_outlast_its_ttl_is_released_and_not_handed_on
];

support::timed![
    who_is_refused_meanwhile_takes_what_was_handed_to_it,
    who_is_granted_meanwhile_has_found_the_lease_lost,
    at_its_deadline_a_call_takes_what_it_was_handed,
    who_is_handed_a_lease_while_its_logger_panics_takes_it,
    a_shutdown_releases_what_nobody_has_taken
];

/// Long enough for anything that is to come, and short enough for a test that fails.
const PATIENCE: Duration = ms(20_000);

/// So long that nothing is renewed by itself and nobody looks without being woken.
const LONG: Duration = ms(300_000);

/// What an acquire reserves where others wait, unless the lock is set otherwise.
const BLOCK: u64 = 33;

fn builder(url: &str) -> ClientBuilder {
    Client::builder().url(url).ttl(LONG).backstop(LONG)
}

fn client(server: &Server) -> Client {
    builder(&server.url()).build().unwrap()
}

fn fence(server: &Server) -> u64 {
    let fence = server.get("leasehold:fence:{lock:a}").unwrap();
    String::from_utf8(fence).unwrap().parse().unwrap()
}

fn requests(server: &Server) -> u64 {
    server.calls(&["evalsha", "eval"])
}

/// As whoever deletes a key does who wants the waiters to know.
fn announce(server: &Server, id: &HolderId) {
    server.run("PUBLISH", &["lock_release:a", id.as_str()]);
}

fn let_go(guard: MutexGuard) {
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
}

/// Starts a call that waits behind those before it, and returns when it sleeps.
fn waits<'scope>(
    scope: &'scope Scope<'scope, '_>,
    client: &Client,
    mutex: Mutex,
) -> ScopedJoinHandle<'scope, Option<MutexGuard>> {
    let before = client.stats().waiting;
    let call = scope.spawn(move || mutex.try_lock_for(PATIENCE).unwrap());
    eventually(PATIENCE, || client.stats().waiting == before + 1);
    call
}

/// What a call that was waiting got.
fn got(call: ScopedJoinHandle<'_, Option<MutexGuard>>) -> MutexGuard {
    call.join().unwrap().expect("the lock")
}

/// These calls wait, in this order, and the lock is released: the first of them asks Redis, the others are handed it.
fn behind<'scope, const N: usize>(
    scope: &'scope Scope<'scope, '_>,
    server: &Server,
    client: &Client,
    mutexes: [Mutex; N],
) -> [ScopedJoinHandle<'scope, Option<MutexGuard>>; N] {
    let first = client.mutex("a").lock().unwrap();
    let before = (client.stats().totals.attempts, requests(server));
    let calls = mutexes.map(|mutex| waits(scope, client, mutex));
    until_none_looks(server, client, before);
    let_go(first);
    calls
}

/// A look that was sent before others waited reserves no tokens for them, and may be what is granted.
fn until_none_looks(server: &Server, client: &Client, before: (u64, u64)) {
    let mut is_quiet = false;
    eventually(PATIENCE, || {
        let sent = client.stats().totals.attempts - before.0;
        let hears = server.subscribers("lock_release:a") > 0;
        let now = hears && requests(server) - before.1 >= sent;
        std::mem::replace(&mut is_quiet, now) && now
    });
}

fn basic_handoff_sends_no_command() {
    let server = Server::start();
    let client = client(&server);
    let a = || client.mutex("a");
    thread::scope(|scope| {
        let [one, two, three] = behind(scope, &server, &client, [a(), a(), a()]);
        let one = got(one);
        let token = one.fencing_token().value();
        let id = one.holder_id().clone();
        assert_eq!(fence(&server), token + BLOCK - 1, "the block is kept whole");
        let before = (requests(&server), server.calls(&["publish"]));
        let_go(one);
        let two = got(two);
        let_go(two);
        let three = got(three);
        assert_eq!(three.fencing_token().value(), token + 2);
        assert_eq!(*three.holder_id(), id, "the lease's");
        let after = (requests(&server), server.calls(&["publish"]));
        assert_eq!(before, after, "nothing was sent");
        assert!(a().try_lock().unwrap().is_none(), "it is held here");
        assert_eq!(requests(&server), after.0, "and that is known");
        let_go(three);
    });
    let stats = client.stats();
    assert_eq!((stats.held, stats.waiting), (0, 0));
    assert_eq!(stats.totals.wakes_hand_off, 2);
    assert_eq!(stats.totals.acquired_after_waiting, 3);
    assert_eq!(stats.totals.released, 4);
    assert_eq!(stats.wait.count, 4);
    assert_eq!(stats.hold.count, 4);
    assert_eq!(server.get("lock:a"), None);
}

fn nobody_else_waits_so_no_tokens_are_reserved() {
    let server = Server::start();
    let guard = client(&server).mutex("a").lock().unwrap();
    assert_eq!(fence(&server), guard.fencing_token().value());
}

fn each_holder_hears_of_its_own_end_only() {
    let server = Server::start();
    let client = client(&server);
    let (told, losses) = unbounded();
    let a = |who: &'static str| {
        let told = told.clone();
        client
            .mutex("a")
            .on_lost(move |why| told.send((who, *why)).unwrap())
    };
    thread::scope(|scope| {
        let [one, two, three] = behind(scope, &server, &client, [a("one"), a("two"), a("three")]);
        let one = got(one);
        let lost_by_one = one.lost();
        let id = one.holder_id().clone();
        let_go(one);
        assert_eq!(lost_by_one.try_recv(), Err(TryRecvError::Disconnected));

        let two = got(two);
        let lost_by_two = two.lost();
        assert_eq!(lost_by_two.try_recv(), Err(TryRecvError::Empty));
        server.run("DEL", &["lock:a"]);
        announce(&server, &id);
        assert_eq!(lost_by_two.recv_timeout(PATIENCE), Ok(Lost::Deleted));
        assert_eq!(losses.recv_timeout(PATIENCE), Ok(("two", Lost::Deleted)));
        // What was lost is not handed on: the next holder has asked Redis.
        let three = got(three);
        assert_ne!(*three.holder_id(), id);
        assert!(three.fencing_token() > two.fencing_token());
        assert_eq!(two.unlock().unwrap(), Unlocked::AlreadyLost(Lost::Deleted));
        assert!(three.is_held());
        let_go(three);
    });
    drop(client);
    drop(told);
    assert!(losses.try_recv().is_err(), "nobody else was told");
}

fn a_doubt_is_cleared_before_the_next_hand_off() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = builder(&proxy.url()).build().unwrap();
    let a = || client.mutex("a");
    thread::scope(|scope| {
        let [one, two, three] = behind(scope, &server, &client, [a(), a(), a()]);
        let one = got(one);
        let id = one.holder_id().clone();
        server.run("DEL", &["lock:a"]);
        // The client hears it and asks about the lease; the answer is long under way.
        let hearing = proxy.connections_that_sent("SUBSCRIBE");
        for link in (0..proxy.connections()).filter(|link| !hearing.contains(link)) {
            proxy.set_nth(link, Traffic::StallReplies);
        }
        let before = requests(&server);
        announce(&server, &id);
        eventually(PATIENCE, || requests(&server) > before);
        let unlock = scope.spawn(move || one.unlock());
        assert!(!two.is_finished());
        proxy.set_all(Traffic::Pass);
        assert_eq!(
            unlock.join().unwrap().unwrap(),
            Unlocked::AlreadyLost(Lost::Deleted)
        );
        for next in [two, three] {
            let next = got(next);
            assert_ne!(*next.holder_id(), id);
            let_go(next);
        }
    });
}

fn zero_turns_it_off() {
    let server = Server::start();
    let client = client(&server);
    let a = || client.mutex("a").local_handoffs(0);
    thread::scope(|scope| {
        let calls = behind(scope, &server, &client, [a(), a(), a()]);
        let mut ids = Vec::new();
        for call in calls {
            let guard = got(call);
            assert_eq!(fence(&server), guard.fencing_token().value());
            ids.push(guard.holder_id().clone());
            let_go(guard);
        }
        assert!(ids[0] != ids[1] && ids[1] != ids[2]);
    });
    assert_eq!(client.stats().totals.wakes_hand_off, 0);
}

fn a_waiter_that_wants_none_is_handed_none() {
    let server = Server::start();
    let client = client(&server);
    let a = || client.mutex("a");
    let other = [
        a().local_handoffs(0),
        a().ttl(LONG - ms(1)),
        a().renew_every(ms(50_000)),
        a().auto_renew(false),
    ];
    for other in other {
        thread::scope(|scope| {
            let [one, two, three] = behind(scope, &server, &client, [a(), other, a()]);
            let one = got(one);
            let first = one.holder_id().clone();
            let_go(one);
            // The order stays: it really is released, and the first in the queue asks.
            let two = got(two);
            assert_ne!(*two.holder_id(), first);
            assert!(!three.is_finished());
            let_go(two);
            let_go(got(three));
        });
    }
    assert_eq!(client.stats().totals.wakes_hand_off, 0);
}

fn a_run_is_as_long_as_it_was_set() {
    let server = Server::start();
    let client = client(&server);
    let a = || client.mutex("a").local_handoffs(2);
    thread::scope(|scope| {
        let calls = behind(scope, &server, &client, [(); 7].map(|()| a()));
        let mut ids = Vec::new();
        for call in calls {
            let guard = got(call);
            ids.push(guard.holder_id().clone());
            let_go(guard);
        }
        let runs: Vec<_> = ids.chunk_by(|a, b| a == b).map(<[_]>::len).collect();
        // Before the last there is nobody left to hand on to.
        assert_eq!(runs, [3, 3, 1]);
    });
}

/// Threads of one client that never stop wanting it keep another client out for a few runs at the most.
fn another_client_has_its_turn() {
    let server = Server::start();
    let (many, one) = (client(&server), client(&server));
    let is_over = AtomicBool::new(false);
    let entered = AtomicU64::new(0);
    let waited = thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    let guard = many.mutex("a").lock().unwrap();
                    entered.fetch_add(1, Ordering::SeqCst);
                    let_go(guard);
                }
            });
        }
        let wait = || {
            let before = entered.load(Ordering::SeqCst);
            let guard = one.mutex("a").lock().unwrap();
            let after = entered.load(Ordering::SeqCst);
            let_go(guard);
            after - before
        };
        // The first that has to wait has yet to connect, to start its threads, and to subscribe.
        while wait() == 0 {}
        let waited: Vec<u64> = (0..50).map(|_| wait()).collect();
        is_over.store(true, Ordering::SeqCst);
        waited
    });
    let most = waited.iter().max().unwrap();
    // A few, and room for a machine that has other things to do.
    assert!(*most <= 50 * BLOCK, "{waited:?}");
    assert!(many.stats().totals.wakes_hand_off > 0);
}

fn requests_are_few() {
    let server = Server::start();
    let client = client(&server);
    let before = requests(&server);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..250 {
                    let_go(client.mutex("a").lock().unwrap());
                }
            });
        }
    });
    let sent = requests(&server) - before;
    assert!(sent < 2_000 * 15 / 100, "{sent} for 2000 acquisitions");
}

fn processes_and_threads_count_exactly() {
    let server = Server::start();
    let counters = Counters {
        processes: 3,
        threads: 8,
        rounds: 100,
    };
    counters.count_exactly(&[server.url()], &server);
}

fn tokens_rise_over_clients_and_hand_offs() {
    let server = Server::start();
    let clients = [client(&server), client(&server)];
    let resource = Fenced::new(0_u64);
    let tokens = Local::new(Vec::new());
    thread::scope(|scope| {
        for client in &clients {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let guard = client.mutex("a").lock().unwrap();
                        let token = guard.fencing_token().value();
                        let seen = resource.read();
                        thread::yield_now();
                        resource.write(token, seen + 1).unwrap();
                        tokens.lock().push(token);
                        let_go(guard);
                    }
                });
            }
        }
    });
    assert_eq!(resource.read(), 800);
    assert!(
        tokens
            .into_inner()
            .is_sorted_by(|earlier, later| earlier < later)
    );
    for client in &clients {
        assert!(client.stats().totals.wakes_hand_off > 0);
    }
}

/// The connection that a look in flight is on.
fn stall_all_that_ask(proxy: &Proxy) {
    let hearing = proxy.connections_that_sent("SUBSCRIBE");
    for link in (0..proxy.connections()).filter(|link| !hearing.contains(link)) {
        proxy.set_nth(link, Traffic::StallRequests);
    }
}

/// Until the first waiter's look is under way, and stalled: one that comes often comes no more.
fn until_it_looks(client: &Client, proxy: &Proxy) {
    stall_all_that_ask(proxy);
    let attempts = || client.stats().totals.attempts;
    let mut last = (attempts(), Instant::now());
    eventually(PATIENCE, || {
        if attempts() != last.0 {
            last = (attempts(), Instant::now());
        }
        last.1.elapsed() > 4 * BACKSTOP
    });
}

/// So soon a restless waiter looks again.
const BACKSTOP: Duration = ms(50);

/// One whose waiters look around often.
fn restless(proxy: &Proxy) -> Client {
    let builder = Client::builder().url(proxy.url()).ttl(LONG);
    builder
        .backstop(BACKSTOP)
        .command_timeout(PATIENCE)
        .build()
        .unwrap()
}

fn who_is_refused_meanwhile_takes_what_was_handed_to_it() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = restless(&proxy);
    let a = || client.mutex("a");
    thread::scope(|scope| {
        let [one, two] = behind(scope, &server, &client, [a(), a()]);
        let one = got(one);
        let (id, token) = (one.holder_id().clone(), one.fencing_token().value());
        until_it_looks(&client, &proxy);
        let_go(one);
        assert!(!two.is_finished(), "its look is under way");
        proxy.set_all(Traffic::Pass);
        let two = got(two);
        assert_eq!(*two.holder_id(), id);
        assert_eq!(two.fencing_token().value(), token + 1);
        let_go(two);
    });
    assert_eq!(server.get("lock:a"), None);
    assert_eq!(client.stats().totals.lost(), 0);
}

fn who_is_granted_meanwhile_has_found_the_lease_lost() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = restless(&proxy);
    let a = || client.mutex("a");
    thread::scope(|scope| {
        let [one, two, three] = behind(scope, &server, &client, [a(), a(), a()]);
        let one = got(one);
        let (id, token) = (one.holder_id().clone(), one.fencing_token());
        until_it_looks(&client, &proxy);
        let_go(one);
        server.run("DEL", &["lock:a"]);
        proxy.set_all(Traffic::Pass);
        let two = got(two);
        assert_ne!(*two.holder_id(), id);
        assert!(two.fencing_token().value() >= token.value() + BLOCK);
        assert!(two.is_held());
        // The run goes on with the lease that is.
        let second = two.holder_id().clone();
        let_go(two);
        let three = got(three);
        assert_eq!(*three.holder_id(), second);
        let_go(three);
    });
    assert_eq!(server.get("lock:a"), None);
    let stats = client.stats();
    assert_eq!(stats.totals.lost_taken, 1);
    assert_eq!((stats.held, stats.waiting), (0, 0));
}

fn at_its_deadline_a_call_takes_what_it_was_handed() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = restless(&proxy);
    thread::scope(|scope| {
        let first = client.mutex("a").lock().unwrap();
        let before = (client.stats().totals.attempts, requests(&server));
        let one = waits(scope, &client, client.mutex("a"));
        let two = scope.spawn(|| client.mutex("a").try_lock_for(ms(1_500)).unwrap());
        eventually(PATIENCE, || client.stats().waiting == 2);
        until_none_looks(&server, &client, before);
        let_go(first);
        let one = got(one);
        let id = one.holder_id().clone();
        until_it_looks(&client, &proxy);
        let_go(one);
        // Its look is never answered.
        let two = two.join().unwrap().expect("what was handed to it");
        assert_eq!(*two.holder_id(), id);
        assert!(two.is_held());
        proxy.set_all(Traffic::Pass);
        let_go(two);
    });
    eventually(PATIENCE, || server.get("lock:a").is_none());
}

thread_local! {
    /// What this thread's next word that it waits sets off.
    static HOOK: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

struct Hooks;

impl log::Log for Hooks {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.args().to_string().starts_with("waiting ") {
            let hook = HOOK.with_borrow_mut(Option::take);
            if let Some(hook) = hook {
                hook();
            }
        }
    }

    fn flush(&self) {}
}

fn who_is_handed_a_lease_while_its_logger_panics_takes_it() {
    log::set_logger(&Hooks).unwrap();
    log::set_max_level(log::LevelFilter::Debug);
    let server = Server::start();
    let client = client(&server);
    let a = || client.mutex("a");
    for has_next in [true, false] {
        thread::scope(|scope| {
            let [one, two] = behind(scope, &server, &client, [a(), a()]);
            let one = got(one);
            let (id, token) = (one.holder_id().clone(), one.fencing_token().value());
            let ((says, said), (goes_on, go_on)) = (bounded(1), bounded(1));
            let mutex = a();
            let panics = scope.spawn(move || {
                HOOK.set(Some(Box::new(move || {
                    says.send(()).unwrap();
                    go_on.recv().unwrap();
                    panic!("of a logger");
                })));
                mutex.lock().unwrap()
            });
            said.recv().unwrap();
            let next = has_next.then(|| waits(scope, &client, a()));
            let_go(one);
            let_go(got(two));
            // It has the lease now, and does not know.
            assert!(a().try_lock().unwrap().is_none());
            goes_on.send(()).unwrap();
            let took = panics.join().unwrap();
            assert_eq!(*took.holder_id(), id);
            assert_eq!(took.fencing_token().value(), token + 2);
            let_go(took);
            match next {
                Some(next) => {
                    let next = got(next);
                    assert_eq!(*next.holder_id(), id);
                    assert_eq!(next.fencing_token().value(), token + 3);
                    let_go(next);
                }
                None => assert_eq!(server.get("lock:a"), None),
            }
        });
    }
    let stats = client.stats();
    assert_eq!(stats.totals.acquired(), stats.totals.released);
    assert_eq!((stats.held, stats.waiting), (0, 0));
}

fn a_shutdown_releases_what_nobody_has_taken() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = restless(&proxy);
    let a = || client.mutex("a");
    thread::scope(|scope| {
        let first = client.mutex("a").lock().unwrap();
        let before = (client.stats().totals.attempts, requests(&server));
        let one = waits(scope, &client, a());
        let two = scope.spawn(|| a().lock());
        eventually(PATIENCE, || client.stats().waiting == 2);
        until_none_looks(&server, &client, before);
        let_go(first);
        let one = got(one);
        until_it_looks(&client, &proxy);
        let_go(one);
        let ending = scope.spawn(|| client.shutdown(PATIENCE).unwrap());
        eventually(PATIENCE, || client.stats().totals.lost_shut_down == 1);
        proxy.set_all(Traffic::Pass);
        let report = ending.join().unwrap();
        assert_eq!(report.released(), 1, "{report:?}");
        assert!(two.join().unwrap().is_err());
    });
    assert_eq!(server.get("lock:a"), None);
}

fn a_lease_that_was_extended_goes_to_who_wants_that() {
    let server = Server::start();
    let client = client(&server);
    let a = || client.mutex("a").renew_every(ms(100_000));
    thread::scope(|scope| {
        let [one, two, three] = behind(scope, &server, &client, [a(), a().ttl(2 * LONG), a()]);
        let one = got(one);
        let first = one.holder_id().clone();
        one.extend(2 * LONG).unwrap();
        let_go(one);
        let two = got(two);
        assert_eq!(*two.holder_id(), first);
        assert!(two.remaining().unwrap() > LONG);
        let_go(two);
        let three = got(three);
        assert_ne!(*three.holder_id(), first, "it wants another ttl");
        let_go(three);
    });
}

fn renewals_are_those_of_whoever_holds_it() {
    let server = Server::start();
    let client = client(&server);
    let (told, renewals) = unbounded();
    let a = |who: &'static str| {
        let told = told.clone();
        let mutex = client.mutex("a").ttl(ms(1_500)).renew_every(ms(200));
        mutex.on_renew(move |renewed| told.send((who, renewed.clone())).unwrap())
    };
    thread::scope(|scope| {
        let [one, two] = behind(scope, &server, &client, [a("one"), a("two")]);
        let_go(got(one));
        let two = got(two);
        while renewals.try_recv().is_ok() {}
        for _ in 0..2 {
            let (who, renewed) = renewals.recv_timeout(PATIENCE).unwrap();
            assert_eq!(who, "two");
            assert_eq!(renewed.fencing_token(), two.fencing_token());
            assert_eq!(renewed.holder_id(), two.holder_id());
        }
        assert!(two.is_held());
        let_go(two);
    });
}

fn a_lease_that_has_run_down_is_renewed_first() {
    let server = Server::start();
    let client = client(&server);
    let ttl = ms(900);
    let a = || client.mutex("a").ttl(ttl).renew_every(ms(800));
    thread::scope(|scope| {
        let [one, two] = behind(scope, &server, &client, [a(), a()]);
        let one = got(one);
        let id = one.holder_id().clone();
        let before = client.stats().totals.renewals_ok;
        eventually(PATIENCE, || one.remaining().unwrap() < ttl / 2);
        let_go(one);
        let two = got(two);
        assert!(two.remaining().unwrap() > ttl / 3 * 2 - ms(100));
        assert_eq!(*two.holder_id(), id);
        assert_eq!(client.stats().totals.renewals_ok, before + 1);
        let_go(two);
    });
}

fn without_renewal_in_the_background_each_hand_off_renews() {
    let server = Server::start();
    let client = client(&server);
    let a = || client.mutex("a").auto_renew(false);
    thread::scope(|scope| {
        let calls = behind(scope, &server, &client, [a(), a(), a()]);
        let mut ids = Vec::new();
        for call in calls {
            let guard = got(call);
            ids.push(guard.holder_id().clone());
            let_go(guard);
        }
        assert!(ids[0] == ids[1] && ids[1] == ids[2]);
        assert_eq!(client.stats().totals.renewals_ok, 2);

        let [one, two, three] = behind(scope, &server, &client, [a(), a(), a()]);
        let one = got(one);
        let id = one.holder_id().clone();
        server.run("DEL", &["lock:a"]);
        assert_eq!(
            one.unlock().unwrap(),
            Unlocked::AlreadyLost(Lost::Deleted),
            "it was asked about"
        );
        for next in [two, three] {
            let next = got(next);
            assert_ne!(*next.holder_id(), id);
            let_go(next);
        }
    });
}

fn max_hold_begins_with_the_holder() {
    let server = Server::start();
    let client = client(&server);
    let a = || client.mutex("a");
    thread::scope(|scope| {
        let limited = a().max_hold(ms(400));
        let [one, two, three] = behind(scope, &server, &client, [a(), limited, a()]);
        let_go(got(one));
        let two = got(two);
        let left = two.remaining().unwrap();
        assert!(left <= ms(400), "{left:?}");
        assert_eq!(two.lost().recv_timeout(PATIENCE), Ok(Lost::MaxHold));
        assert_eq!(two.unlock().unwrap(), Unlocked::AlreadyLost(Lost::MaxHold));
        assert!(!three.is_finished() || got(three).is_held());
    });
}

fn over_a_quorum_each_server_keeps_the_block() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let urls = servers.each_ref().map(Server::url);
    let client = Client::builder().quorum(urls).ttl(LONG).build().unwrap();
    let a = || client.mutex("a");
    thread::scope(|scope| {
        let [one, two] = behind(scope, &servers[0], &client, [a(), a()]);
        let one = got(one);
        let (id, token) = (one.holder_id().clone(), one.fencing_token().value());
        eventually(PATIENCE, || {
            servers
                .iter()
                .all(|server| fence(server) == token + BLOCK - 1)
        });
        let before: Vec<_> = servers.iter().map(requests).collect();
        let_go(one);
        let two = got(two);
        assert_eq!(servers.iter().map(requests).collect::<Vec<_>>(), before);
        assert_eq!(*two.holder_id(), id);
        assert_eq!(two.fencing_token().value(), token + 1);
        let_go(two);
    });
    let next = a().lock().unwrap();
    assert!(
        servers
            .iter()
            .filter(|server| fence(server) == next.fencing_token().value())
            .count()
            >= 2
    );
    // Only what nobody hears shows that nothing more comes.
    assert_eq!(
        next.lost().recv_timeout(ms(1)),
        Err(RecvTimeoutError::Timeout)
    );
}

fn a_key_that_may_outlast_its_ttl_is_released_and_not_handed_on() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = Client::builder()
        .url(proxy.url())
        .ttl(LONG)
        .connect_timeout(ms(500))
        .command_timeout(ms(500))
        .build()
        .unwrap();
    let a = || client.mutex("a");
    thread::scope(|scope| {
        let [one, two] = behind(scope, &server, &client, [a(), a()]);
        let one = got(one);
        // From now on the server knows the script.
        one.renew().unwrap();
        proxy.set_all(Traffic::DropReplies);
        one.extend(2 * LONG).expect_err("the reply is dropped");
        assert!(left(&server) > LONG, "it ran");
        proxy.set_all(Traffic::Pass);
        let before = one.holder_id().clone();
        let_go(one);
        let two = got(two);
        assert_ne!(*two.holder_id(), before, "a lease of its own");
        assert!(left(&server) <= LONG);
        let_go(two);
    });
}

fn left(server: &Server) -> Duration {
    let left = redis::cmd("PTTL")
        .arg("lock:a")
        .query(&mut server.connection());
    ms(left.unwrap())
}
