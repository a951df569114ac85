//! Promise: a cancelled call returns at once, whatever it waits for. It leaves nothing behind and
//! ends no other call.

use std::collections::HashMap;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use leasehold::{CancelToken, Client, Error, Mutex};
use support::fair::{PATIENCE, wait_until_only_fences_remain};
use support::{
    BlackHole, Cluster, ClusterSetup, Control, Proxy, SLACK, Server, Traffic, assert_released,
    builder, client, eventually, ms, result_of, spawn_call,
};

support::tests![
    call_is_cancelled_while_a_reply_is_missing,
    call_is_cancelled_while_it_connects,
    basic_call_is_cancelled_while_it_waits,
    call_of_every_kind_is_cancelled_while_it_is_queued,
    call_behind_others_of_its_client_is_cancelled_alone,
    call_over_a_quorum_is_cancelled_while_it_waits,
    call_that_begins_cancelled_sends_nothing,
    cancelled_call_for_several_slots_sends_nothing_to_later_slots,
    lock_that_is_granted_to_a_cancelled_call_is_released,
    lock_that_is_granted_to_a_cancelled_call_is_released_before_its_callbacks_are_dropped,
    calls_cancelled_at_the_moment_of_their_grant_leave_nothing_behind,
    cancelled_token_ends_the_calls_of_all_its_locks_and_no_guard,
    shutdown_ends_calls_that_could_be_cancelled,
    shutdown_waits_for_the_undo_of_a_cancelled_call,
    last_drop_waits_for_the_undo_of_a_cancelled_call,
    shutdown_reports_an_undo_that_no_server_confirmed,
    set_that_is_partly_granted_after_the_shutdown_is_released
];

support::timed![the_shortest_of_several_cancels_takes_less_than_50_ms];

/// Longer than any test.
const HOUR: Duration = ms(3_600_000);

/// Acquires a lock with the token, and releases it.
type Call = fn(&Client, &CancelToken) -> Result<(), Error>;

type Attempt = fn(&Mutex) -> Result<(), Error>;

const KINDS: [(&str, Call); 6] = [
    ("Mutex", |client, token| {
        client.mutex("a").cancel_on(token).lock().map(drop)
    }),
    ("FairMutex", |client, token| {
        client.fair_mutex("a").cancel_on(token).lock().map(drop)
    }),
    ("MutexAll", |client, token| {
        let set = client.mutex_all(["a", "b"]);
        set.cancel_on(token).lock().map(drop)
    }),
    ("Semaphore", |client, token| {
        let semaphore = client.semaphore("a", 1);
        semaphore.cancel_on(token).acquire().map(drop)
    }),
    ("read", |client, token| {
        client.rw_lock("a").cancel_on(token).read().map(drop)
    }),
    ("write", |client, token| {
        client.rw_lock("a").cancel_on(token).write().map(drop)
    }),
];

/// Returns a client whose timeouts are longer than any test.
fn patient(url: &str) -> Client {
    let builder = builder(url).command_timeout(HOUR).connect_timeout(HOUR);
    builder.unreachable_for(HOUR).build().unwrap()
}

fn spawn_waiter(mutex: &Mutex) -> Receiver<Result<(), Error>> {
    let mutex = mutex.clone();
    spawn_call(move || mutex.lock().map(|guard| assert_released(guard.unlock())))
}

#[track_caller]
fn assert_cancelled(outcome: Result<(), Error>) {
    assert!(matches!(outcome, Err(Error::Cancelled)), "{outcome:?}");
}

fn wait_until_waiting(client: &Client, count: u64) {
    eventually(PATIENCE, || client.stats().waiting == count);
}

fn basic_call_is_cancelled_while_it_waits() {
    let server = Server::start();
    let (client, other) = (client(&server.url()), client(&server.url()));
    let guard = other.mutex("a").lock().unwrap();
    let token = CancelToken::new();
    let waiting = spawn_waiter(&client.mutex("a").cancel_on(&token));
    wait_until_waiting(&client, 1);
    token.cancel();
    assert_cancelled(result_of(&waiting));
    let totals = client.stats().totals;
    assert_eq!((totals.cancelled, totals.failed), (1, 0));
    wait_until_waiting(&client, 0);
    assert_released(guard.unlock());
    assert_released(client.mutex("a").lock().unwrap().unlock());
    wait_until_only_fences_remain(&server);
}

fn call_of_every_kind_is_cancelled_while_it_is_queued() {
    let server = Server::start();
    let other = client(&server.url());
    let guard = other.mutex("a").ttl(HOUR).lock().unwrap();
    let permit = other.semaphore("a", 1).ttl(HOUR).acquire().unwrap();
    let in_queue = || other.rw_lock("a").waiting().unwrap() + permits_queue(&other);
    for (kind, call) in KINDS {
        let client = client(&server.url());
        let token = CancelToken::new();
        let waiting = {
            let (client, token) = (client.clone(), token.clone());
            spawn_call(move || call(&client, &token))
        };
        eventually(PATIENCE, || in_queue() == 1);
        token.cancel();
        let outcome = result_of(&waiting);
        assert!(
            matches!(outcome, Err(Error::Cancelled)),
            "{kind}: {outcome:?}"
        );
        eventually(PATIENCE, || in_queue() == 0);
        guard.ensure_held().unwrap();
    }
    assert_released(guard.unlock());
    permit.release().unwrap();
    let is_fence = |key: &Vec<u8>| String::from_utf8_lossy(key).contains("fence:{lock:");
    eventually(PATIENCE, || server.keys().iter().all(is_fence));
}

fn permits_queue(client: &Client) -> u64 {
    client.semaphore("a", 1).waiting().unwrap()
}

/// The lock is held first by a guard of the same client, then by one of another client.
fn call_behind_others_of_its_client_is_cancelled_alone() {
    for same_client in [true, false] {
        let server = Server::start();
        let (one, two) = (client(&server.url()), client(&server.url()));
        let holder = if same_client { &one } else { &two };
        let guard = holder.mutex("a").ttl(HOUR).lock().unwrap();
        let token = CancelToken::new();
        let mutex = one.mutex("a");
        let cancellable = mutex.clone().cancel_on(&token);
        let first = spawn_waiter(&cancellable);
        wait_until_waiting(&one, 1);
        let second = spawn_waiter(&mutex);
        wait_until_waiting(&one, 2);
        let third = spawn_waiter(&cancellable);
        wait_until_waiting(&one, 3);
        token.cancel();
        assert_cancelled(result_of(&first));
        assert_cancelled(result_of(&third));
        wait_until_waiting(&one, 1);
        assert_released(guard.unlock());
        result_of(&second).unwrap();
        wait_until_only_fences_remain(&server);
    }
}

fn call_over_a_quorum_is_cancelled_while_it_waits() {
    let servers = [(); 3].map(|()| Server::start());
    let quorum = || Client::quorum(servers.each_ref().map(Server::url)).unwrap();
    let (client, other) = (quorum(), quorum());
    let guard = other.mutex("a").ttl(HOUR).lock().unwrap();
    let token = CancelToken::new();
    let waiting = spawn_waiter(&client.mutex("a").cancel_on(&token));
    wait_until_waiting(&client, 1);
    token.cancel();
    assert_cancelled(result_of(&waiting));
    wait_until_waiting(&client, 0);
    assert_released(guard.unlock());
    for server in &servers {
        wait_until_only_fences_remain(server);
    }
}

fn call_that_begins_cancelled_sends_nothing() {
    let nowhere = BlackHole::start();
    let client = patient(&nowhere.url());
    let token = CancelToken::default();
    token.cancel();
    for (kind, call) in KINDS {
        let (client, token) = (client.clone(), token.clone());
        let outcome = result_of(&spawn_call(move || call(&client, &token)));
        assert!(
            matches!(outcome, Err(Error::Cancelled)),
            "{kind}: {outcome:?}"
        );
    }
    assert_eq!(nowhere.connections(), 0);
    assert_eq!(client.stats().totals.cancelled, KINDS.len() as u64);
}

fn cancelled_call_for_several_slots_sends_nothing_to_later_slots() {
    let cluster = Cluster::with(ClusterSetup::steady(3, 0));
    let client = patient(&cluster.url());
    // The client asks the slots one after the other, in ascending order.
    let names = [0, 1].map(|master| cluster.name_owned_by("slot", master));
    let fence = |n: usize| {
        cluster
            .node(n)
            .get(format!("leasehold:fence:{{lock:{}}}", names[n]))
    };
    let token = CancelToken::new();
    let set = client.mutex_all(&names).ttl(HOUR).cancel_on(&token);
    // The servers know the script.
    assert_released(set.try_lock().unwrap().unwrap().unlock());
    let (fences, attempts) = ([fence(0), fence(1)], client.stats().totals.attempts);
    cluster.pause(0);
    let waiting = spawn_call(move || set.try_lock().map(drop));
    eventually(PATIENCE, || client.stats().totals.attempts > attempts);
    token.cancel();
    assert_cancelled(result_of(&waiting));
    cluster.resume(0);
    // Node 0 grants its part when it resumes, and the client then releases that part.
    let key = format!("lock:{}", names[0]);
    eventually(PATIENCE, || {
        fence(0) != fences[0] && cluster.node(0).get(&key).is_none()
    });
    assert_eq!(fence(1), fences[1]);
}

/// The server grants the lock; the call is cancelled before the reply arrives.
fn lock_that_is_granted_to_a_cancelled_call_is_released() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = patient(&proxy.url());
    assert_released(client.mutex("warm").lock().unwrap().unlock());
    let token = CancelToken::new();
    proxy.set_all(Traffic::StallReplies);
    let waiting = spawn_waiter(&client.mutex("a").ttl(HOUR).cancel_on(&token));
    eventually(PATIENCE, || server.get("lock:a").is_some());
    token.cancel();
    assert_cancelled(result_of(&waiting));
    proxy.set_all(Traffic::Pass);
    wait_until_only_fences_remain(&server);
    let totals = client.stats().totals;
    assert_eq!((totals.cancelled, totals.acquired_at_once), (1, 1));
    assert_eq!(totals.released, 1, "the cancelled call returned no guard");
}

/// A value that a user's callback owns: its drop drops the client, and then panics.
struct PanicsOnDrop(Option<Client>);

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        drop(self.0.take());
        panic!("a user's destructor");
    }
}

/// A callback of the lock owns the caller's last handle of the client.
fn lock_that_is_granted_to_a_cancelled_call_is_released_before_its_callbacks_are_dropped() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = patient(&proxy.url());
    assert_released(client.mutex("warm").lock().unwrap().unlock());
    let token = CancelToken::new();
    let mutex = client.mutex("a").ttl(HOUR).cancel_on(&token);
    let owned = PanicsOnDrop(Some(client));
    let mutex = mutex.on_lost(move |_| {
        let _ = &owned;
    });
    proxy.set_all(Traffic::StallReplies);
    let (sender, waiting) = bounded(1);
    // The callback is dropped after the call: its thread waits for the undo, and panics.
    thread::spawn(move || {
        let outcome = mutex.lock().map(|guard| assert_released(guard.unlock()));
        let _ = sender.send(outcome);
    });
    eventually(PATIENCE, || server.get("lock:a").is_some());
    token.cancel();
    assert_cancelled(result_of(&waiting));
    proxy.set_all(Traffic::Pass);
    wait_until_only_fences_remain(&server);
    // The callback, and with it the last handle, was dropped: no thread keeps a connection.
    eventually(PATIENCE, || server.client_list().is_empty());
}

fn calls_cancelled_at_the_moment_of_their_grant_leave_nothing_behind() {
    const ROUNDS: u32 = 60;
    let server = Server::start();
    let (one, two) = (client(&server.url()), client(&server.url()));
    for (n, waiter) in (0..ROUNDS).map(|n| (n, if n % 2 == 0 { &one } else { &two })) {
        // The holder's client is that of the waiter in even rounds, and another one in odd rounds.
        let guard = one.mutex("a").ttl(HOUR).try_lock_for(PATIENCE).unwrap();
        let guard = guard.expect("the lock becomes free");
        let token = CancelToken::new();
        let mutex = waiter.mutex("a").ttl(HOUR).cancel_on(&token);
        let waiting = spawn_waiter(&mutex);
        wait_until_waiting(waiter, 1);
        let together = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                together.wait();
                token.cancel();
            });
            together.wait();
            assert_released(guard.unlock());
        });
        let outcome = result_of(&waiting);
        let is_expected = matches!(outcome, Ok(()) | Err(Error::Cancelled));
        assert!(is_expected, "round {n}: {outcome:?}");
    }
    // A lock that nobody released would be held for an hour.
    wait_until_only_fences_remain(&server);
}

fn cancelled_token_ends_the_calls_of_all_its_locks_and_no_guard() {
    let server = Server::start();
    let client = client(&server.url());
    let token = CancelToken::new();
    let held = |name: &str| client.mutex(name).cancel_on(&token).lock().unwrap();
    let guards = ["a", "c"].map(held);
    let waiting = ["a", "a", "c"].map(|name| spawn_waiter(&client.mutex(name).cancel_on(&token)));
    wait_until_waiting(&client, 3);
    token.cancel();
    for waiting in &waiting {
        assert_cancelled(result_of(waiting));
    }
    let mutex = client.mutex("b").cancel_on(&token);
    assert_cancelled(mutex.lock().map(drop));
    assert_cancelled(mutex.try_lock().map(drop));
    assert_cancelled(mutex.try_lock_for(PATIENCE).map(drop));
    assert_cancelled(mutex.with(|_| ()).map_err(Error::from));
    for guard in guards {
        guard.renew().unwrap();
        assert_released(guard.unlock());
    }
}

fn shutdown_ends_calls_that_could_be_cancelled() {
    let server = Server::start();
    let (client, other) = (client(&server.url()), client(&server.url()));
    let guard = other.mutex("a").lock().unwrap();
    let token = CancelToken::new();
    let waiting = spawn_waiter(&client.mutex("a").cancel_on(&token));
    // The start of its subscription wakes the call once; `shutdown` must find it asleep.
    server.wait_until_waiter_sleeps("lock_release:a");
    wait_until_waiting(&client, 1);
    let report = client.shutdown(PATIENCE);
    assert!(report.is_clean() && report.woken == 1, "{report:?}");
    let outcome = result_of(&waiting);
    assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    assert_released(guard.unlock());
}

/// Cancels a call that the server has granted a lock for an hour. The proxy drops the reply.
///
/// The call's own thread still waits for that reply until its connection is cut.
fn cancel_with_a_lost_reply(server: &Server, proxy: &Proxy, client: &Client) {
    assert_released(client.mutex("warm").lock().unwrap().unlock());
    proxy.set_open(Traffic::DropReplies);
    let token = CancelToken::new();
    let waiting = spawn_waiter(&client.mutex("a").ttl(HOUR).cancel_on(&token));
    eventually(PATIENCE, || server.get("lock:a").is_some());
    token.cancel();
    assert_cancelled(result_of(&waiting));
}

fn shutdown_waits_for_the_undo_of_a_cancelled_call() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = patient(&proxy.url());
    cancel_with_a_lost_reply(&server, &proxy, &client);
    let report = spawn_call(move || client.shutdown(PATIENCE));
    assert!(report.recv_timeout(ms(300)).is_err(), "did not wait");
    proxy.cut();
    let report = result_of(&report);
    assert_eq!(server.get("lock:a"), None);
    assert!(report.is_clean(), "{report:?}");
}

fn last_drop_waits_for_the_undo_of_a_cancelled_call() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = patient(&proxy.url());
    cancel_with_a_lost_reply(&server, &proxy, &client);
    let dropped = spawn_call(move || drop(client));
    assert!(dropped.recv_timeout(ms(300)).is_err(), "did not wait");
    proxy.cut();
    result_of(&dropped);
    assert_eq!(server.get("lock:a"), None);
}

fn shutdown_reports_an_undo_that_no_server_confirmed() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    // The engine tries for this long to send the undo.
    let client = builder(&proxy.url()).command_timeout(ms(3_000));
    let client = client.unreachable_for(HOUR).build().unwrap();
    cancel_with_a_lost_reply(&server, &proxy, &client);
    proxy.set_all(Traffic::Cut);
    // The shutdown waits this long for the undo, which cannot be sent.
    let report = client.shutdown(ms(1_000));
    assert!(server.get("lock:a").is_some());
    assert_eq!(report.unreleased, 1);
    assert!(!report.is_clean(), "{report:?}");
}

fn set_that_is_partly_granted_after_the_shutdown_is_released() {
    let cluster = Cluster::with(ClusterSetup::steady(3, 0));
    let client = builder(&cluster.url()).command_timeout(ms(20_000));
    let client = client.build().unwrap();
    let names = [0, 1].map(|master| cluster.name_owned_by("slot", master));
    let [key, fence] =
        ["lock:", "leasehold:fence:{lock:"].map(|prefix| prefix.to_owned() + &names[0]);
    assert!(client.mutex(names[0].as_str()).inspect().unwrap().is_none());
    let node = cluster.node(0);
    node.run("CLIENT", &["PAUSE", "60000", "WRITE"]);
    let set = client.mutex_all(&names).ttl(HOUR);
    let waiting = spawn_call(move || set.try_lock().map(drop));
    let is_blocked = |client: &HashMap<String, String>| client["flags"].contains('b');
    eventually(PATIENCE, || node.client_list().iter().any(is_blocked));
    client.shutdown(Duration::ZERO);
    node.run("CLIENT", &["UNPAUSE"]);
    let outcome = result_of(&waiting);
    assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    assert!(node.get(fence + "}").is_some(), "not granted");
    assert_eq!(node.get(key), None);
}

fn call_is_cancelled_while_a_reply_is_missing() {
    let attempts: [Attempt; 3] = [
        |mutex| mutex.lock().map(drop),
        |mutex| mutex.try_lock().map(drop),
        |mutex| mutex.try_lock_for(HOUR).map(drop),
    ];
    for attempt in attempts {
        let server = Server::start();
        let proxy = Proxy::new(&server);
        let client = patient(&proxy.url());
        assert_released(client.mutex("warm").lock().unwrap().unlock());
        proxy.set_open(Traffic::DropReplies);
        let token = CancelToken::new();
        let mutex = client.mutex("a").cancel_on(&token);
        let waiting = spawn_call(move || attempt(&mutex));
        eventually(PATIENCE, || server.get("lock:a").is_some());
        let cancelled = Control::run(ms(10), || {
            token.cancel();
            result_of(&waiting)
        });
        assert_cancelled(cancelled.no_later_than(SLACK));
        // The call's own thread learns from this that its reply never arrives.
        proxy.cut();
        wait_until_only_fences_remain(&server);
    }
}

fn call_is_cancelled_while_it_connects() {
    let nowhere = BlackHole::start();
    let client = patient(&nowhere.url());
    let token = CancelToken::new();
    let waiting = spawn_waiter(&client.mutex("a").cancel_on(&token));
    eventually(PATIENCE, || nowhere.connections() == 1);
    let cancelled = Control::run(ms(10), || {
        token.cancel();
        result_of(&waiting)
    });
    assert_cancelled(cancelled.no_later_than(SLACK));
}

/// Cancels five calls, one after the other, as soon as each sleeps. Returns the shortest time from
/// a cancel to the end of its call.
///
/// A busy machine delays some of the calls, but not all of them.
fn shortest_cancel(mut begin: impl FnMut(&CancelToken) -> Receiver<Result<(), Error>>) -> Duration {
    let times = (0..5).map(|_| {
        let token = CancelToken::new();
        let sleeping = begin(&token);
        let began = Instant::now();
        token.cancel();
        assert_cancelled(result_of(&sleeping));
        began.elapsed()
    });
    times.min().expect("there are five")
}

fn the_shortest_of_several_cancels_takes_less_than_50_ms() {
    let server = Server::start();
    let (client, other) = (client(&server.url()), client(&server.url()));
    let _held = other.mutex("held").ttl(HOUR).lock().unwrap();
    let waiting = shortest_cancel(|token| {
        let sleeping = spawn_waiter(&client.mutex("held").cancel_on(token));
        wait_until_waiting(&client, 1);
        sleeping
    });

    let proxy = Proxy::new(&server);
    let mut readers = Vec::new();
    let mut names = ["a", "b", "c", "d", "e"].into_iter();
    let reading = shortest_cancel(|token| {
        // Its own client: others have connections without replies.
        let client = patient(&proxy.url());
        // Leaves an open connection to the call: `set_open` changes only connections that are open.
        let warm = client.mutex("warm").cancel_on(token);
        assert_released(warm.lock().unwrap().unlock());
        proxy.set_open(Traffic::DropReplies);
        let name = names.next().expect("one for each call");
        let sleeping = spawn_waiter(&client.mutex(name).cancel_on(token));
        eventually(PATIENCE, || server.get(format!("lock:{name}")).is_some());
        readers.push(client);
        sleeping
    });
    // The clients learn from this that their replies never arrive.
    proxy.cut();

    let nowhere = BlackHole::start();
    let mut clients = Vec::new();
    let connecting = shortest_cancel(|token| {
        let client = patient(&nowhere.url());
        let sleeping = spawn_waiter(&client.mutex("a").cancel_on(token));
        clients.push(client);
        eventually(PATIENCE, || nowhere.connections() == clients.len());
        sleeping
    });
    let times = [waiting, reading, connecting];
    assert!(times.iter().all(|time| *time < ms(50)), "{times:?}");
}
