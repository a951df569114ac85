//! Promise: threads of one client hand a lock over without a round trip, each with the rights of a
//! holder, and other clients still get the lock.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, TryRecvError, bounded, unbounded};
use leasehold::{Client, ClientBuilder, HolderId, Lost, Mutex, MutexGuard, Taken};
use parking_lot::Mutex as Local;
use support::{
    Counters, Fenced, Proxy, Server, Traffic, assert_released, connect_to_all, eventually,
    let_pass, ms, while_others_repeat,
};

support::tests![
    basic_handoff_sends_no_command,
    without_other_waiters_no_tokens_are_reserved,
    each_holder_is_told_only_of_its_own_loss,
    a_suspected_lease_is_checked_before_the_next_hand_off,
    zero_local_handoffs_disables_hand_offs,
    a_waiter_with_other_settings_is_not_handed_the_lease,
    a_run_of_hand_offs_ends_at_the_configured_length,
    another_client_gets_the_lock_after_a_few_runs,
    contending_threads_of_one_client_send_few_requests,
    contending_processes_and_threads_count_exactly,
    tokens_rise_across_clients_and_hand_offs,
    an_extended_lease_goes_to_a_waiter_with_that_ttl,
    lease_extended_and_set_back_is_handed_off,
    renewals_are_reported_to_the_current_holder,
    a_lease_with_little_time_left_is_renewed_before_the_hand_off,
    without_auto_renew_each_hand_off_renews,
    max_hold_is_counted_from_the_hand_off,
    every_quorum_server_reserves_the_block_of_tokens,
    a_key_that_may_outlast_its_ttl_is_released_not_handed_off
];

support::timed![a_waiter_whose_logger_panics_takes_the_lease_handed_to_it,];

/// The limit for events that must happen: generous for a slow machine, short for a failing test.
const WAIT_LIMIT: Duration = ms(20_000);

/// So long that no lease is renewed during a test.
const LONG: Duration = ms(300_000);

/// The tokens that an acquire reserves by default while other threads wait.
const BLOCK: u64 = 33;

fn builder(url: &str) -> ClientBuilder {
    Client::builder().url(url).ttl(LONG)
}

fn client(server: &Server) -> Client {
    builder(&server.url()).build().unwrap()
}

fn fence(server: &Server) -> u64 {
    let fence = server.get("leasehold:fence:{lock:a}").unwrap();
    String::from_utf8(fence).unwrap().parse().unwrap()
}

/// Publishes a release, as a client does that deletes a key.
fn announce(server: &Server, id: &HolderId) {
    server.run("PUBLISH", &["lock_release:a", id.as_str()]);
}

/// Starts a call that queues behind earlier ones, and returns when it waits.
fn start_waiter<'scope>(
    scope: &'scope Scope<'scope, '_>,
    client: &Client,
    mutex: Mutex,
) -> ScopedJoinHandle<'scope, Result<MutexGuard, Taken>> {
    let before = client.stats().waiting;
    let call = scope.spawn(move || mutex.try_lock_for(WAIT_LIMIT).unwrap());
    eventually(WAIT_LIMIT, || client.stats().waiting == before + 1);
    call
}

/// Returns the guard that a waiting call acquired.
fn guard_of(call: ScopedJoinHandle<'_, Result<MutexGuard, Taken>>) -> MutexGuard {
    call.join().unwrap().expect("the lock")
}

/// Queues these calls behind a holder, in this order, and releases the lock.
///
/// The first call acquires it from Redis; the others can be handed it.
fn queue_behind_a_holder<'scope, const N: usize>(
    scope: &'scope Scope<'scope, '_>,
    server: &Server,
    client: &Client,
    mutexes: [Mutex; N],
) -> [ScopedJoinHandle<'scope, Result<MutexGuard, Taken>>; N] {
    let first = client.mutex("a").lock().unwrap();
    let before = (client.stats().totals.attempts, server.script_calls());
    let calls = mutexes.map(|mutex| start_waiter(scope, client, mutex));
    wait_until_attempts_are_answered(server, client, before);
    assert_released(first.unlock());
    calls
}

/// Waits until every attempt sent so far was answered.
///
/// An attempt sent before others waited reserves no tokens for them, and could be the one granted.
fn wait_until_attempts_are_answered(server: &Server, client: &Client, before: (u64, u64)) {
    let mut is_quiet = false;
    eventually(WAIT_LIMIT, || {
        let sent = client.stats().totals.attempts - before.0;
        let is_subscribed = server.subscribers("lock_release:a") > 0;
        // Waiters that poll do not subscribe.
        let polls = sent > 4;
        let now = (is_subscribed || polls) && server.script_calls() - before.1 >= sent;
        std::mem::replace(&mut is_quiet, now) && now
    });
}

fn basic_handoff_sends_no_command() {
    let server = Server::start();
    let client = client(&server);
    let a = || client.mutex("a");
    thread::scope(|scope| {
        let [one, two, three] = queue_behind_a_holder(scope, &server, &client, [a(), a(), a()]);
        let one = guard_of(one);
        let token = one.fencing_token().value();
        let id = one.holder_id().clone();
        assert_eq!(
            fence(&server),
            token + BLOCK - 1,
            "the whole block is reserved"
        );
        let before = (server.script_calls(), server.calls(&["publish"]));
        assert_released(one.unlock());
        let two = guard_of(two);
        assert_released(two.unlock());
        let three = guard_of(three);
        assert_eq!(three.fencing_token().value(), token + 2);
        assert_eq!(*three.holder_id(), id, "a hand-off keeps the holder id");
        let after = (server.script_calls(), server.calls(&["publish"]));
        assert_eq!(before, after, "nothing was sent");
        assert!(a().try_lock().unwrap().is_err(), "this client holds it");
        assert_eq!(
            server.script_calls(),
            after.0,
            "the client knows this without a request"
        );
        assert_released(three.unlock());
    });
    let stats = client.stats();
    assert_eq!((stats.held, stats.waiting), (0, 0));
    assert_eq!(stats.totals.acquired_after_waiting, 3);
    assert_eq!(stats.totals.released, 4);
    assert_eq!(stats.wait.count, 4);
    assert_eq!(stats.hold.count, 4);
    assert_eq!(server.get("lock:a"), None);
}

fn without_other_waiters_no_tokens_are_reserved() {
    let server = Server::start();
    let guard = client(&server).mutex("a").lock().unwrap();
    assert_eq!(fence(&server), guard.fencing_token().value());
}

fn each_holder_is_told_only_of_its_own_loss() {
    let server = Server::start();
    let client = client(&server);
    let (report, losses) = unbounded();
    let a = |who: &'static str| {
        let report = report.clone();
        client
            .mutex("a")
            .on_lost(move |why| report.send((who, *why)).unwrap())
    };
    thread::scope(|scope| {
        let [one, two, three] =
            queue_behind_a_holder(scope, &server, &client, [a("one"), a("two"), a("three")]);
        let one = guard_of(one);
        let lost_by_one = one.lost();
        let id = one.holder_id().clone();
        assert_released(one.unlock());
        assert_eq!(lost_by_one.try_recv(), Err(TryRecvError::Disconnected));

        let two = guard_of(two);
        let lost_by_two = two.lost();
        assert_eq!(lost_by_two.try_recv(), Err(TryRecvError::Empty));
        server.run("DEL", &["lock:a"]);
        announce(&server, &id);
        assert_eq!(lost_by_two.recv_timeout(WAIT_LIMIT), Ok(Lost::Deleted));
        assert_eq!(losses.recv_timeout(WAIT_LIMIT), Ok(("two", Lost::Deleted)));
        // A lost lease is not handed off: the next holder acquires from Redis.
        let three = guard_of(three);
        assert_ne!(*three.holder_id(), id);
        assert!(three.fencing_token() > two.fencing_token());
        assert_eq!(two.unlock().unwrap_err().lost(), Some(Lost::Deleted));
        assert!(three.is_held());
        assert_released(three.unlock());
    });
    drop(client);
    drop(report);
    assert!(losses.try_recv().is_err(), "no other holder was told");
}

/// Makes the client open this many connections, which are then idle.
fn open_connections(server: &Server, proxy: &Proxy, client: &Client, count: usize) {
    let lock = |name: usize| drop(client.mutex(name as u64).lock().unwrap());
    lock(0);
    thread::scope(|scope| {
        for n in 1..count {
            // This call has the idle connection until the end; the next one needs another.
            proxy.set_open(Traffic::StallReplies);
            let before = server.script_calls();
            scope.spawn(move || lock(2 * n));
            eventually(WAIT_LIMIT, || server.script_calls() > before);
            lock(2 * n + 1);
        }
        proxy.set_all(Traffic::Pass);
    });
}

fn a_suspected_lease_is_checked_before_the_next_hand_off() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = builder(&proxy.url()).build().unwrap();
    let a = || client.mutex("a");
    // The check, the next call and the release each use a connection. A new one would not be
    // stalled.
    open_connections(&server, &proxy, &client, 3);
    thread::scope(|scope| {
        let [one, two, three] = queue_behind_a_holder(scope, &server, &client, [a(), a(), a()]);
        let one = guard_of(one);
        let id = one.holder_id().clone();
        // From now on the server knows the script of the check.
        one.renew().unwrap();
        server.run("DEL", &["lock:a"]);
        // The client receives the message and checks the lease; the reply is stalled.
        let subscribers = proxy.connections_that_sent("SUBSCRIBE");
        for link in (0..proxy.connections()).filter(|link| !subscribers.contains(link)) {
            proxy.set_nth(link, Traffic::StallReplies);
        }
        // The check asks for the ttl. The next call, which the message wakes too, does not: its
        // attempt acquires the lock.
        let before = server.calls(&["pttl"]);
        announce(&server, &id);
        eventually(WAIT_LIMIT, || server.calls(&["pttl"]) > before);
        let unlock = scope.spawn(move || one.unlock());
        // Time for the release, which must wait for the reply.
        let_pass(ms(100));
        assert!(!unlock.is_finished() && !two.is_finished());
        proxy.set_all(Traffic::Pass);
        assert_eq!(
            unlock.join().unwrap().unwrap_err().lost(),
            Some(Lost::Deleted)
        );
        for next in [two, three] {
            let next = guard_of(next);
            assert_ne!(*next.holder_id(), id);
            assert_released(next.unlock());
        }
    });
}

fn zero_local_handoffs_disables_hand_offs() {
    let server = Server::start();
    let client = client(&server);
    let a = || client.mutex("a").local_handoffs(0);
    thread::scope(|scope| {
        let calls = queue_behind_a_holder(scope, &server, &client, [a(), a(), a()]);
        let mut ids = Vec::new();
        for call in calls {
            let guard = guard_of(call);
            assert_eq!(fence(&server), guard.fencing_token().value());
            ids.push(guard.holder_id().clone());
            assert_released(guard.unlock());
        }
        assert!(ids[0] != ids[1] && ids[1] != ids[2]);
    });
}

fn a_waiter_with_other_settings_is_not_handed_the_lease() {
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
            let [one, two, three] =
                queue_behind_a_holder(scope, &server, &client, [a(), other, a()]);
            let one = guard_of(one);
            let first = one.holder_id().clone();
            assert_released(one.unlock());
            // The lock is released in Redis, and the first waiter acquires it there.
            let two = guard_of(two);
            assert_ne!(*two.holder_id(), first);
            assert!(!three.is_finished());
            let second = two.holder_id().clone();
            assert_released(two.unlock());
            let three = guard_of(three);
            assert_ne!(*three.holder_id(), second);
            assert_released(three.unlock());
        });
    }
}

fn a_run_of_hand_offs_ends_at_the_configured_length() {
    let server = Server::start();
    let client = client(&server);
    let a = || client.mutex("a").local_handoffs(2);
    thread::scope(|scope| {
        let calls = queue_behind_a_holder(scope, &server, &client, [(); 7].map(|()| a()));
        let mut ids = Vec::new();
        for call in calls {
            let guard = guard_of(call);
            ids.push(guard.holder_id().clone());
            assert_released(guard.unlock());
        }
        let runs: Vec<_> = ids.chunk_by(|a, b| a == b).map(<[_]>::len).collect();
        // The last call has no waiter behind it.
        assert_eq!(runs, [3, 3, 1]);
    });
}

/// Threads of one client that always want the lock delay another client by a few runs at most.
fn another_client_gets_the_lock_after_a_few_runs() {
    let server = Server::start();
    let (many, one) = (client(&server), client(&server));
    let entered = AtomicU64::new(0);
    let others = [(); 4].map(|()| {
        || {
            let guard = many.mutex("a").lock().unwrap();
            entered.fetch_add(1, Ordering::SeqCst);
            assert_released(guard.unlock());
        }
    });
    let waited = while_others_repeat(others, || {
        let wait = || {
            let before = entered.load(Ordering::SeqCst);
            let guard = one.mutex("a").lock().unwrap();
            let after = entered.load(Ordering::SeqCst);
            assert_released(guard.unlock());
            after - before
        };
        // The first call that waits also connects, starts threads and subscribes.
        while wait() == 0 {}
        (0..50).map(|_| wait()).collect::<Vec<u64>>()
    });
    let most = waited.iter().max().unwrap();
    // A few runs would do; the bound leaves room for a busy machine.
    assert!(*most <= 50 * BLOCK, "{waited:?}");
    let totals = many.stats().totals;
    assert!(
        totals.acquired() > totals.attempts,
        "hand-offs send nothing"
    );
}

fn contending_threads_of_one_client_send_few_requests() {
    let server = Server::start();
    let client = client(&server);
    let before = server.script_calls();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..250 {
                    assert_released(client.mutex("a").lock().unwrap().unlock());
                }
            });
        }
    });
    let sent = server.script_calls() - before;
    assert!(sent < 2_000 * 15 / 100, "{sent} for 2000 acquisitions");
}

fn contending_processes_and_threads_count_exactly() {
    let server = Server::start();
    let counters = Counters {
        processes: 3,
        threads: 8,
        rounds: 100,
    };
    counters.count_exactly(&[server.url()], &server);
}

fn tokens_rise_across_clients_and_hand_offs() {
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
                        assert_released(guard.unlock());
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
        let totals = client.stats().totals;
        assert!(
            totals.acquired() > totals.attempts,
            "hand-offs send nothing"
        );
    }
}

thread_local! {
    /// Runs when this thread next logs that it is waiting.
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

fn a_waiter_whose_logger_panics_takes_the_lease_handed_to_it() {
    log::set_logger(&Hooks).unwrap();
    log::set_max_level(log::LevelFilter::Debug);
    let server = Server::start();
    let client = client(&server);
    let a = || client.mutex("a");
    for has_next in [true, false] {
        thread::scope(|scope| {
            let [one, two] = queue_behind_a_holder(scope, &server, &client, [a(), a()]);
            let one = guard_of(one);
            let (id, token) = (one.holder_id().clone(), one.fencing_token().value());
            let ((waits, waiting), (resume, resumed)) = (bounded(1), bounded(1));
            let mutex = a();
            let panics = scope.spawn(move || {
                HOOK.set(Some(Box::new(move || {
                    waits.send(()).unwrap();
                    resumed.recv().unwrap();
                    panic!("in the logger");
                })));
                mutex.lock().unwrap()
            });
            waiting.recv().unwrap();
            let next = has_next.then(|| start_waiter(scope, &client, a()));
            assert_released(one.unlock());
            assert_released(guard_of(two).unlock());
            // The panicking thread has been handed the lease but has not taken it yet.
            assert!(a().try_lock().unwrap().is_err());
            resume.send(()).unwrap();
            let took = panics.join().unwrap();
            assert_eq!(*took.holder_id(), id);
            assert_eq!(took.fencing_token().value(), token + 2);
            assert_released(took.unlock());
            match next {
                Some(next) => {
                    let next = guard_of(next);
                    assert_eq!(*next.holder_id(), id);
                    assert_eq!(next.fencing_token().value(), token + 3);
                    assert_released(next.unlock());
                }
                None => assert_eq!(server.get("lock:a"), None),
            }
        });
    }
    let stats = client.stats();
    assert_eq!(stats.totals.acquired(), stats.totals.released);
    assert_eq!((stats.held, stats.waiting), (0, 0));
}

fn an_extended_lease_goes_to_a_waiter_with_that_ttl() {
    let server = Server::start();
    let client = client(&server);
    let a = || client.mutex("a").renew_every(ms(100_000));
    thread::scope(|scope| {
        let [one, two, three] =
            queue_behind_a_holder(scope, &server, &client, [a(), a().ttl(2 * LONG), a()]);
        let one = guard_of(one);
        let first = one.holder_id().clone();
        one.set_ttl(2 * LONG).unwrap();
        assert_released(one.unlock());
        let two = guard_of(two);
        assert_eq!(*two.holder_id(), first);
        assert!(two.remaining().unwrap() > LONG);
        assert_released(two.unlock());
        let three = guard_of(three);
        assert_ne!(*three.holder_id(), first, "the lease has another ttl");
        assert_released(three.unlock());
    });
}

fn renewals_are_reported_to_the_current_holder() {
    let server = Server::start();
    let client = client(&server);
    let (report, renewals) = unbounded();
    let a = |who: &'static str| {
        let report = report.clone();
        let mutex = client.mutex("a").ttl(ms(1_500)).renew_every(ms(200));
        mutex.on_renew(move |renewed| _ = report.send((who, renewed.clone())))
    };
    thread::scope(|scope| {
        let [one, two] = queue_behind_a_holder(scope, &server, &client, [a("one"), a("two")]);
        assert_released(guard_of(one).unlock());
        let two = guard_of(two);
        while renewals.try_recv().is_ok() {}
        for _ in 0..2 {
            let (who, renewed) = renewals.recv_timeout(WAIT_LIMIT).unwrap();
            assert_eq!(who, "two");
            assert_eq!(renewed.fencing_token(), two.fencing_token());
            assert_eq!(renewed.holder_id(), two.holder_id());
        }
        assert!(two.is_held());
        assert_released(two.unlock());
    });
}

/// While the key may outlast the ttl, the lease is not handed off. An answered `set_ttl` replaces
/// the key's expiry.
fn lease_extended_and_set_back_is_handed_off() {
    let server = Server::start();
    let client = client(&server);
    let a = || client.mutex("a").ttl(LONG);
    thread::scope(|scope| {
        let [one, two, three] = queue_behind_a_holder(scope, &server, &client, [a(), a(), a()]);
        let one = guard_of(one);
        one.set_ttl(2 * LONG).unwrap();
        one.set_ttl(LONG).unwrap();
        let id = one.holder_id().clone();
        assert_released(one.unlock());
        for next in [two, three] {
            let guard = guard_of(next);
            assert_eq!(*guard.holder_id(), id);
            assert_released(guard.unlock());
        }
    });
}

fn a_lease_with_little_time_left_is_renewed_before_the_hand_off() {
    let server = Server::start();
    let client = client(&server);
    // A lease can be handed off for 1 s after its grant. With this ttl, it counts as short of time
    // after a third of that second.
    let ttl = ms(1_000);
    let a = || client.mutex("a").ttl(ttl).renew_every(ms(800));
    thread::scope(|scope| {
        let [one, two] = queue_behind_a_holder(scope, &server, &client, [a(), a()]);
        let one = guard_of(one);
        let id = one.holder_id().clone();
        let before = client.stats().totals.renewals_ok;
        eventually(WAIT_LIMIT, || one.remaining().unwrap() < ttl / 2);
        assert_released(one.unlock());
        let two = guard_of(two);
        assert!(two.remaining().unwrap() > ttl / 3);
        assert_eq!(*two.holder_id(), id);
        assert_eq!(client.stats().totals.renewals_ok, before + 1);
        assert_released(two.unlock());
    });
}

fn without_auto_renew_each_hand_off_renews() {
    let server = Server::start();
    let client = client(&server);
    let a = || client.mutex("a").auto_renew(false);
    thread::scope(|scope| {
        let calls = queue_behind_a_holder(scope, &server, &client, [a(), a(), a()]);
        let mut ids = Vec::new();
        for call in calls {
            let guard = guard_of(call);
            ids.push(guard.holder_id().clone());
            assert_released(guard.unlock());
        }
        assert!(ids[0] == ids[1] && ids[1] == ids[2]);
        assert_eq!(client.stats().totals.renewals_ok, 2);

        let [one, two, three] = queue_behind_a_holder(scope, &server, &client, [a(), a(), a()]);
        let one = guard_of(one);
        let id = one.holder_id().clone();
        server.run("DEL", &["lock:a"]);
        assert_eq!(
            one.unlock().unwrap_err().lost(),
            Some(Lost::Deleted),
            "the renewal before the hand-off found the loss"
        );
        for next in [two, three] {
            let next = guard_of(next);
            assert_ne!(*next.holder_id(), id);
            assert_released(next.unlock());
        }
    });
}

fn max_hold_is_counted_from_the_hand_off() {
    let server = Server::start();
    let client = client(&server);
    let a = || client.mutex("a");
    thread::scope(|scope| {
        let limited = a().max_hold(ms(2_000));
        let [one, two, three] = queue_behind_a_holder(scope, &server, &client, [a(), limited, a()]);
        assert_released(guard_of(one).unlock());
        let two = guard_of(two);
        let remaining_ttl = two.remaining().unwrap();
        assert!(remaining_ttl <= ms(2_000), "{remaining_ttl:?}");
        assert_eq!(two.lost().recv_timeout(WAIT_LIMIT), Ok(Lost::MaxHold));
        assert_eq!(two.unlock().unwrap_err().lost(), Some(Lost::MaxHold));
        assert!(guard_of(three).is_held());
    });
}

fn every_quorum_server_reserves_the_block_of_tokens() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let urls = servers.each_ref().map(Server::url);
    let client = Client::builder().quorum(urls).ttl(LONG).build().unwrap();
    connect_to_all(&client, &servers);
    let a = || client.mutex("a");
    thread::scope(|scope| {
        let [one, two] = queue_behind_a_holder(scope, &servers[0], &client, [a(), a()]);
        let one = guard_of(one);
        let (id, token) = (one.holder_id().clone(), one.fencing_token().value());
        eventually(WAIT_LIMIT, || {
            servers
                .iter()
                .all(|server| fence(server) == token + BLOCK - 1)
        });
        let before: Vec<_> = servers.iter().map(Server::script_calls).collect();
        assert_released(one.unlock());
        let two = guard_of(two);
        assert_eq!(
            servers.iter().map(Server::script_calls).collect::<Vec<_>>(),
            before
        );
        assert_eq!(*two.holder_id(), id);
        assert_eq!(two.fencing_token().value(), token + 1);
        assert_released(two.unlock());
    });
    let next = a().lock().unwrap();
    assert!(
        servers
            .iter()
            .filter(|server| fence(server) == next.fencing_token().value())
            .count()
            >= 2
    );
    // No message may arrive.
    assert_eq!(
        next.lost().recv_timeout(ms(1)),
        Err(RecvTimeoutError::Timeout)
    );
}

fn a_key_that_may_outlast_its_ttl_is_released_not_handed_off() {
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
        let [one, two] = queue_behind_a_holder(scope, &server, &client, [a(), a()]);
        let one = guard_of(one);
        // Loads the script into the server.
        one.renew().unwrap();
        proxy.set_all(Traffic::DropReplies);
        one.set_ttl(2 * LONG).expect_err("the reply is dropped");
        assert!(remaining_ttl(&server) > LONG, "the script ran");
        proxy.set_all(Traffic::Pass);
        let before = one.holder_id().clone();
        assert_released(one.unlock());
        let two = guard_of(two);
        assert_ne!(*two.holder_id(), before, "a new lease");
        assert!(remaining_ttl(&server) <= LONG);
        assert_released(two.unlock());
    });
}

fn remaining_ttl(server: &Server) -> Duration {
    let remaining_ttl = redis::cmd("PTTL")
        .arg("lock:a")
        .query(&mut server.connection());
    ms(remaining_ttl.unwrap())
}
