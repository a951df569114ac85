//! Promise: a waiter sleeps until the release wakes it. If the wake-up is lost, it sleeps until the
//! next refresh of its place in the queue at most, or for 1 s if it has no place.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use leasehold::{Backoff, Client, ClientBuilder, FencingToken, WaitPolicy};
use parking_lot::{Condvar, Mutex};
use support::fair::queue_length;
use support::{
    BlackHole, Child, Control, Proxy, SLACK, Server, SetOnDrop, Traffic, WAKE_UPS, eventually,
    let_pass, ms, own_thread_waits, own_threads, parameter, tell_parent,
};
#[cfg(feature = "tls")]
use support::{free_port, read_pem, tls_server};

support::roles![waiter, idle_clients];

support::tests![
    a_subscriber_killed_repeatedly_costs_at_most_a_refresh,
    a_release_wakes_a_waiter_of_another_client,
    messages_that_arrive_together_wake_all_waiters,
    #[cfg(feature = "tls")]
    messages_that_arrive_together_over_tls_wake_all_waiters,
    waiter_over_a_quorum_is_woken_although_a_server_hangs,
    any_message_on_the_channel_wakes_the_waiter,
    a_waiter_without_a_place_asks_every_second,
    a_waiter_that_times_out_as_it_is_woken_passes_the_wake_up_on,
    a_subscriber_that_reconnects_wakes_waiters_to_retry,
    a_subscriber_that_hangs_is_detected,
    a_waiter_without_any_message_refreshes_its_place_within_a_second,
    waiters_that_may_not_subscribe_poll,
    clients_that_may_not_publish_are_woken_and_release,
    a_subscription_is_kept_for_the_next_waiter_and_then_dropped,
    a_name_whose_subscription_was_dropped_is_subscribed_to_again,
    subscription_follows_an_endpoint_to_a_promoted_server,
    a_release_wakes_a_waiter_of_another_process,
    waiters_of_one_client_get_the_lock_in_fifo_order,
    waiter_behind_backoff_is_woken,
    waiter_in_backoff_takes_over_the_place_that_another_leaves,
    a_local_release_wakes_a_waiter_in_backoff,
    a_waiter_in_backoff_is_handed_the_lease_in_its_turn,
    a_release_sends_one_waiter_of_a_client_to_redis,
    a_hundred_waiters_send_fewer_than_twenty_requests_in_a_second,
    idle_waiters_send_a_probe_and_one_refresh_for_each_name,
    a_client_that_may_not_subscribe_does_not_keep_reconnecting,
    idle_client_has_two_threads_that_do_not_wake,
    name_waited_for_in_an_outage_is_subscribed_to_after_it,
    idle_subscriptions_beyond_the_limit_are_dropped_sooner
];

/// The limit for events that must happen: generous for a slow machine, short for a failing test.
const WAIT_LIMIT: Duration = ms(20_000);

/// How long a woken waiter may take to get the lock. With [`SLACK`], still less than [`REFRESH`].
const PROMPTLY: Duration = ms(200);

/// The time after which a waiter that nothing wakes refreshes its place in the queue.
const REFRESH: Duration = ms(900);

fn client(url: &str) -> Client {
    Client::builder().url(url).ttl(ms(300_000)).build().unwrap()
}

/// Waits until a waiter sleeps: it has tried once and, after it subscribed, once more.
fn wait_until_asleep(server: &Server, name: &str, scripts_before: u64) {
    eventually(WAIT_LIMIT, || {
        server.subscribers(format!("lock_release:{name}")) > 0
            && server.script_calls() >= scripts_before + 2
    });
}

fn a_release_wakes_a_waiter_of_another_client() {
    let server = Server::start();
    let (holder, other) = (client(&server.url()), client(&server.url()));
    for _ in 0..10 {
        let guard = holder.mutex("a").lock().unwrap();
        // A client that was refused a moment ago enters at once, with one script, not two.
        let before = server.script_calls() - u64::from(server.subscribers("lock_release:a") > 0);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| other.mutex("a").lock().unwrap());
            wait_until_asleep(&server, "a", before);
            let timed = Control::run(PROMPTLY, || {
                guard.unlock().unwrap();
                waiting.join().unwrap()
            });
            timed.no_later_than(SLACK).unlock().unwrap();
        });
    }
}

/// In a child process: waits for the lock and reports that it has acquired it.
fn waiter() {
    let guard = client(&parameter("URL")).mutex("a").lock().unwrap();
    tell_parent("woken");
    guard.unlock().unwrap();
}

fn a_release_wakes_a_waiter_of_another_process() {
    let server = Server::start();
    let holder = client(&server.url());
    let guard = holder.mutex("a").lock().unwrap();
    let before = server.script_calls();
    let child = Child::spawn("waking::waiter", &[("URL", &server.url())]);
    wait_until_asleep(&server, "a", before);
    let timed = Control::run(PROMPTLY, || {
        guard.unlock().unwrap();
        child.next_line()
    });
    assert_eq!(timed.no_later_than(SLACK), "woken");
    child.wait().succeeded();
}

fn any_message_on_the_channel_wakes_the_waiter() {
    let server = Server::start();
    let client = client(&server.url());
    for payload in ["", "anything", "lock_release:a"] {
        server.run("SET", &["lock:a", "foreign"]);
        // A client that was refused a moment ago enters at once, with one script, not two.
        let before = server.script_calls() - u64::from(server.subscribers("lock_release:a") > 0);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| client.mutex("a").lock().map(drop));
            wait_until_asleep(&server, "a", before);
            let timed = Control::run(PROMPTLY, || {
                server.run("DEL", &["lock:a"]);
                server.run("PUBLISH", &["lock_release:a", payload]);
                waiting.join().unwrap()
            });
            timed.no_later_than(SLACK).unwrap();
        });
    }
}

/// Starts a thread that waits, and returns once it sleeps, or has ended. No other call of its
/// client may end meanwhile.
#[track_caller]
fn spawn_and_wait_until_asleep<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    client: &Client,
    call: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    let before = client.stats().waiting;
    let thread = scope.spawn(call);
    eventually(WAIT_LIMIT, || {
        client.stats().waiting == before + 1 || thread.is_finished()
    });
    thread
}

fn waiters_of_one_client_get_the_lock_in_fifo_order() {
    let server = Server::start();
    let (client, other) = (client(&server.url()), client(&server.url()));
    for holder in [&client, &other] {
        let guard = holder.mutex("a").lock().unwrap();
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for n in 0..10 {
                let (client, order) = (&client, &order);
                scope.spawn(move || {
                    let guard = client.mutex("a").lock().unwrap();
                    order.lock().push(n);
                    guard.unlock().unwrap();
                });
                eventually(WAIT_LIMIT, || client.stats().waiting == n + 1);
            }
            guard.unlock().unwrap();
        });
        assert_eq!(order.into_inner(), (0..10).collect::<Vec<_>>());
    }
}

/// A backoff longer than any test.
const LONG_BACKOFF: WaitPolicy = WaitPolicy::Backoff(Backoff::new(ms(300_000), ms(300_000)));

fn waiter_in_backoff_takes_over_the_place_that_another_leaves() {
    let server = Server::start();
    let (holder, other) = (client(&server.url()), client(&server.url()));
    let guard = holder.mutex("a").lock().unwrap();
    thread::scope(|scope| {
        let in_backoff = spawn_and_wait_until_asleep(scope, &other, || {
            let mutex = other.mutex("a").wait_policy(LONG_BACKOFF);
            mutex.try_lock_for(WAIT_LIMIT * 2)
        });
        let leaving = scope.spawn(|| other.mutex("a").try_lock_for(ms(1_500)));
        eventually(WAIT_LIMIT, || {
            queue_length(&server) == 1 || leaving.is_finished()
        });
        assert!(leaving.join().unwrap().unwrap().is_err());
        assert_eq!(
            queue_length(&server),
            1,
            "the place is left to the other call"
        );
        guard.unlock().unwrap();
        eventually(WAIT_LIMIT, || in_backoff.is_finished());
        assert!(in_backoff.join().unwrap().unwrap().is_ok());
    });
}

fn waiter_behind_backoff_is_woken() {
    let server = Server::start();
    let (holder, other) = (client(&server.url()), client(&server.url()));
    let guard = holder.mutex("a").lock().unwrap();
    thread::scope(|scope| {
        let in_backoff: Vec<_> = (0..2)
            .map(|_| {
                spawn_and_wait_until_asleep(scope, &other, || {
                    let mutex = other.mutex("a").wait_policy(LONG_BACKOFF);
                    mutex.try_lock_for(WAIT_LIMIT * 2)
                })
            })
            .collect();
        let before = server.script_calls();
        let woken = spawn_and_wait_until_asleep(scope, &other, || {
            other.mutex("a").try_lock_for(WAIT_LIMIT)
        });
        wait_until_asleep(&server, "a", before);
        guard.unlock().unwrap();
        let woken = woken.join().unwrap().unwrap();
        woken
            .expect("the release wakes the waiter")
            .unlock()
            .unwrap();
        for waiter in in_backoff {
            // Shortly before its deadline, a call would try again by itself.
            eventually(WAIT_LIMIT, || waiter.is_finished());
            let guard = waiter.join().unwrap().unwrap();
            guard
                .expect("the lease is handed to the waiter")
                .unlock()
                .unwrap();
        }
    });
}

fn a_local_release_wakes_a_waiter_in_backoff() {
    let server = Server::start();
    let client = client(&server.url());
    let mutex = || client.mutex("a").local_handoffs(0);
    let lock_and_unlock = |policy| {
        let guard = mutex()
            .wait_policy(policy)
            .try_lock_for(WAIT_LIMIT * 2)
            .unwrap();
        guard
            .expect("the release wakes the waiter")
            .unlock()
            .unwrap();
    };
    let guard = mutex().lock().unwrap();
    thread::scope(|scope| {
        let waiting = [LONG_BACKOFF, WaitPolicy::Wake].map(|policy| {
            spawn_and_wait_until_asleep(scope, &client, move || lock_and_unlock(policy))
        });
        guard.unlock().unwrap();
        // Shortly before its deadline, a call would try again by itself.
        for waiter in waiting {
            eventually(WAIT_LIMIT, || waiter.is_finished());
        }
    });
}

fn a_waiter_in_backoff_is_handed_the_lease_in_its_turn() {
    let server = Server::start();
    let client = client(&server.url());
    let guard = client.mutex("a").lock().unwrap();
    let order = Mutex::new(Vec::new());
    let (client, order) = (&client, &order);
    thread::scope(|scope| {
        for (n, policy) in [LONG_BACKOFF, WaitPolicy::Wake, LONG_BACKOFF]
            .into_iter()
            .enumerate()
        {
            spawn_and_wait_until_asleep(scope, client, move || {
                let guard = client.mutex("a").wait_policy(policy).lock().unwrap();
                order
                    .lock()
                    .push((n, guard.fencing_token(), guard.holder_id().clone()));
                guard.unlock().unwrap();
            });
        }
        guard.unlock().unwrap();
        eventually(WAIT_LIMIT, || order.lock().len() == 3);
        // The release wakes the first waiter, which is in backoff, and the one behind it. One of
        // them acquires from Redis. From then on the lease is handed off.
        let order = order.lock();
        assert!(order[1..].is_sorted_by_key(|(n, ..)| *n), "{order:?}");
        assert!(order.is_sorted_by_key(|(_, token, _)| *token), "{order:?}");
        // A hand-off keeps the holder id.
        assert!(order.iter().all(|(.., id)| *id == order[0].2), "{order:?}");
    });
}

fn a_release_sends_one_waiter_of_a_client_to_redis() {
    let server = Server::start();
    let (client, other) = (client(&server.url()), client(&server.url()));
    for holder in [&client, &other] {
        let guard = holder.mutex("a").lock().unwrap();
        let (entered, entries) = unbounded();
        let leaving = Barrier::new(2);
        thread::scope(|scope| {
            for n in 0..20 {
                let (client, entered, leaving) = (&client, entered.clone(), &leaving);
                spawn_and_wait_until_asleep(scope, client, move || {
                    let guard = client.mutex("a").lock().unwrap();
                    entered.send(()).unwrap();
                    if n == 0 {
                        leaving.wait();
                    }
                    guard.unlock().unwrap();
                });
            }
            let before = server.script_calls();
            guard.unlock().unwrap();
            entries.recv_timeout(WAIT_LIMIT).unwrap();
            let_pass(ms(200));
            // The release, and the first renewal of the lease that it granted. Each is sent twice,
            // because the server does not know its script yet.
            let sent = server.script_calls() - before;
            assert!(sent <= 4, "{sent} calls");
            leaving.wait();
        });
    }
}

fn a_hundred_waiters_send_fewer_than_twenty_requests_in_a_second() {
    let server = Server::start();
    let holder = client(&server.url());
    let client = server.client();
    let guard = holder.mutex("a").lock().unwrap();
    // The commands inside scripts are no requests. `INFO` is sent by this closure.
    let requests = || -> u64 {
        let mut calls = server.command_stats().all_calls();
        for inside in [
            "get",
            "set",
            "time",
            "pttl",
            "info",
            "del",
            "pexpire",
            "pubsub|numsub",
        ]
        .into_iter()
        .chain(["lindex", "rpush", "hget", "hset", "hdel"])
        // The client sends it twice for each new connection, and only to servers that know it.
        .chain(["client|setinfo"])
        {
            calls.remove(inside);
        }
        calls.values().sum()
    };
    let before = requests();
    let barrier = Barrier::new(100);
    thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| {
                barrier.wait();
                client.mutex("a").lock().map(drop).unwrap();
            });
        }
        let_pass(ms(1_000));
        let sent = requests() - before;
        assert!(sent < 20, "{sent} requests");
        guard.unlock().unwrap();
    });
}

fn idle_waiters_send_a_probe_and_one_refresh_for_each_name() {
    let server = Server::start();
    let (holder, client) = (client(&server.url()), client(&server.url()));
    let names = ["a", "b", "c"];
    let guards = names.map(|name| holder.mutex(name).lock().unwrap());
    thread::scope(|scope| {
        for name in names {
            for _ in 0..4 {
                let mutex = client.mutex(name);
                spawn_and_wait_until_asleep(scope, &client, move || {
                    mutex.lock().map(drop).unwrap()
                });
            }
            eventually(WAIT_LIMIT, || {
                server.subscribers(format!("lock_release:{name}")) > 0
            });
        }
        let published = || server.calls(&["publish"]);
        // The first waiter of each name also refreshes its place when it has subscribed.
        let_pass(ms(300));
        let began = Instant::now();
        let (published_before, scripts_before) = (published(), server.script_calls());
        // Longer than the 0.9 s after which each waiter would send a refresh of its own, and long
        // enough for a probe of each subscription.
        let_pass(ms(1_000));
        eventually(WAIT_LIMIT, || {
            published() > published_before && server.script_calls() >= scripts_before + 3
        });
        let refreshes = server.script_calls() - scripts_before;
        let probes = published() - published_before;
        let took = began.elapsed().as_millis() as u64;
        let most = 3 * (took / 900 + 1);
        assert!(refreshes <= most, "{refreshes} refreshes in {took} ms");
        assert!(probes <= took / 1_000 + 1, "{probes} probes in {took} ms");
        for guard in guards {
            guard.unlock().unwrap();
        }
    });
}

/// One period of holding the lock.
struct Turn {
    token: FencingToken,
    taken: Instant,
    released: Instant,
}

/// Threads that hold the lock in turn.
#[derive(Default)]
struct Holders {
    /// Whether the next holder must kill all subscribers.
    kill: AtomicBool,
    over: AtomicBool,
    turns: Mutex<Vec<Turn>>,
    /// The number of the thread that held the lock last.
    latest: Mutex<Option<usize>>,
    changed: Condvar,
}

impl Holders {
    /// Holds the lock repeatedly, each time after another thread.
    fn take_turns(&self, n: usize, mutex: &leasehold::Mutex, connection: &mut redis::Connection) {
        while !self.over.load(Ordering::Relaxed) {
            let guard = mutex.lock().unwrap();
            let taken = Instant::now();
            let token = guard.fencing_token();
            *self.latest.lock() = Some(n);
            self.changed.notify_all();
            // Gives the others time to sleep again.
            let_pass(ms(2));
            if self.kill.swap(false, Ordering::Relaxed) {
                // The release is in one write with the kill, so that no subscriber receives it.
                redis::pipe()
                    .cmd("CLIENT")
                    .arg(&["KILL", "TYPE", "pubsub"])
                    .cmd("DEL")
                    .arg("lock:a")
                    .cmd("PUBLISH")
                    .arg("lock_release:a")
                    .arg(guard.holder_id().as_str())
                    .exec(connection)
                    .unwrap();
            }
            // Fails with `Lost` after the kill.
            let _ = guard.unlock();
            self.turns.lock().push(Turn {
                token,
                taken,
                released: Instant::now(),
            });
            // A thread that locks again at once would acquire without a wake-up.
            let mut latest = self.latest.lock();
            while *latest == Some(n) && !self.over.load(Ordering::Relaxed) {
                self.changed.wait_for(&mut latest, ms(50));
            }
        }
    }
}

fn a_subscriber_killed_repeatedly_costs_at_most_a_refresh() {
    let server = Server::start();
    let holders = Holders::default();
    let control = Control::start();
    thread::scope(|scope| {
        let _end = SetOnDrop(&holders.over);
        // One waiter in each client, so that every wake-up comes through a subscription.
        for n in 0..4 {
            let mut connection = server.connection();
            let client = Client::builder()
                .url(server.url())
                .ttl(ms(60_000))
                .build()
                .unwrap();
            let holders = &holders;
            scope.spawn(move || holders.take_turns(n, &client.mutex("a"), &mut connection));
        }
        for _ in 0..20 {
            let_pass(ms(500));
            holders.kill.store(true, Ordering::Relaxed);
        }
    });
    let mut turns = holders.turns.into_inner();
    turns.sort_by_key(|turn| turn.token);
    assert!(turns.len() > 100, "{} turns", turns.len());
    let gaps = turns
        .windows(2)
        .map(|pair| pair[1].taken.saturating_duration_since(pair[0].released));
    let longest = gaps.max().unwrap();
    let limit = REFRESH + SLACK + WAKE_UPS * control.overshoot();
    assert!(longest <= limit, "{longest:?} without a holder");
}

fn a_waiter_that_times_out_as_it_is_woken_passes_the_wake_up_on() {
    let server = Server::start();
    let (holder, client) = (client(&server.url()), client(&server.url()));
    let limit = ms(50);
    for n in 0..30 {
        let guard = holder.mutex("a").lock().unwrap();
        thread::scope(|scope| {
            let began = Instant::now();
            let first = spawn_and_wait_until_asleep(scope, &client, || {
                // On a busy machine, the call may get no reply within its limit.
                if let Err(error) = client.mutex("a").try_lock_for(limit) {
                    assert!(error.is_unreachable(), "{error}");
                }
            });
            let second = scope.spawn(|| client.mutex("a").lock().unwrap());
            eventually(WAIT_LIMIT, || {
                // Before the number: the call may end in between.
                let others = u64::from(!first.is_finished());
                client.stats().waiting == others + 1
            });
            // The release happens between 1 ms before and 2 ms after the deadline.
            let end = began + limit + Duration::from_micros(100 * n) - ms(1);
            let_pass(end.saturating_duration_since(Instant::now()));
            let timed = Control::run(PROMPTLY, || {
                guard.unlock().unwrap();
                second.join().unwrap()
            });
            timed.no_later_than(SLACK).unlock().unwrap();
            first.join().unwrap();
        });
    }
}

/// Asserts that a subscribed, sleeping waiter acquires within `limit` once `free_lock` is called.
fn assert_acquired_within(
    limit: Duration,
    server: &Server,
    waiting: &Client,
    free_lock: impl FnOnce(),
) {
    let holder = client(&server.url());
    let guard = holder.mutex("a").lock().unwrap();
    let before = server.script_calls();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.mutex("a").lock().unwrap());
        wait_until_asleep(server, "a", before);
        let timed = Control::run(limit, || {
            free_lock();
            waiter.join().unwrap()
        });
        drop(timed.no_later_than(SLACK));
    });
    drop(guard);
}

fn without_queues(url: &str) -> Client {
    let builder = Client::builder().url(url).ttl(ms(300_000));
    builder.queues(false).build().unwrap()
}

fn a_subscriber_that_reconnects_wakes_waiters_to_retry() {
    let server = Server::start();
    // A waiter with a place in the queue would find the lock free at its next refresh.
    let waiting = without_queues(&server.url());
    assert_acquired_within(ms(500), &server, &waiting, || {
        // Deleted without a message.
        server.run("DEL", &["lock:a"]);
        server.run("CLIENT", &["KILL", "TYPE", "pubsub"]);
    });
}

/// Only the subscriber's connection stalls, so only the probe can detect it.
fn a_subscriber_that_hangs_is_detected() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    // A waiter with a place in the queue would find the lock free at its next refresh.
    let waiting = without_queues(&proxy.url());
    assert_acquired_within(ms(6_000), &server, &waiting, || {
        let subscriber = proxy.connections_that_sent("SUBSCRIBE");
        assert_eq!(subscriber.len(), 1);
        proxy.set_nth(subscriber[0], Traffic::Stall);
        server.run("DEL", &["lock:a"]);
        server.run("PUBLISH", &["lock_release:a", ""]);
    });
}

fn a_waiter_without_any_message_refreshes_its_place_within_a_second() {
    let server = Server::start();
    assert_acquired_within(REFRESH, &server, &client(&server.url()), || {
        server.run("DEL", &["lock:a"]);
    });
}

/// Waits until a call waits for the messages of `a` at each of the servers.
#[track_caller]
fn wait_until_subscribed_at(servers: &[Server]) {
    eventually(WAIT_LIMIT, || {
        let mut all = servers.iter();
        all.all(|server| server.subscribers("lock_release:a") > 0)
    });
}

/// A waiter has no place in a client without queues, and over a quorum.
fn a_waiter_without_a_place_asks_every_second() {
    let servers = [(); 3].map(|()| Server::start());
    let alone = Client::builder().url(servers[0].url()).queues(false);
    let quorum = Client::builder().quorum(servers.each_ref().map(Server::url));
    for (builder, servers) in [(alone, &servers[..1]), (quorum, &servers[..])] {
        let waiting = builder.build().unwrap();
        let run = |command, args: &[&str]| servers.iter().for_each(|it| it.run(command, args));
        run("SET", &["lock:a", "foreign"]);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| waiting.mutex("a").lock().map(drop).unwrap());
            wait_until_subscribed_at(servers);
            // Deleted without a message.
            run("DEL", &["lock:a"]);
            let one_sleep = Control::run(ms(1_000), || waiter.join().unwrap());
            one_sleep.no_later_than(ms(1_000));
        });
    }
}

fn waiters_that_may_not_subscribe_poll() {
    for rules in [&["-subscribe"][..], &["resetchannels"]] {
        let server = Server::start();
        let without_subscribe = server.url_with_rules(rules);
        let (waiting, holder) = (client(&without_subscribe), client(&server.url()));
        let guard = holder.mutex("a").lock().unwrap();
        let before = server.script_calls();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| waiting.mutex("a").lock().unwrap());
            eventually(WAIT_LIMIT, || server.script_calls() >= before + 3);
            assert_eq!(server.subscribers("lock_release:a"), 0);
            let timed = Control::run(REFRESH, || {
                guard.unlock().unwrap();
                waiter.join().unwrap()
            });
            timed.no_later_than(SLACK).unlock().unwrap();
        });
    }
}

/// Waiters that poll must not open a connection for each attempt.
fn a_client_that_may_not_subscribe_does_not_keep_reconnecting() {
    let server = Server::start();
    let without_subscribe = server.url_with_rules(&["-subscribe"]);
    let waiting = Client::builder().url(&without_subscribe).build().unwrap();
    let guard = client(&server.url()).mutex("a").lock().unwrap();
    let connections = || -> u64 {
        let connections = server.info("stats", "total_connections_received");
        connections.unwrap().parse().unwrap()
    };
    let before = connections();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.mutex("a").lock().unwrap());
        eventually(WAIT_LIMIT, || waiting.stats().command.count >= 6);
        guard.unlock().unwrap();
        waiter.join().unwrap().unlock().unwrap();
    });
    // The connection of this query does not count. The waiter and the subscriber have one each, and
    // the limit allows one more.
    let made = connections() - before - 1;
    assert!(made <= 3, "{made} connections");
}

fn clients_that_may_not_publish_are_woken_and_release() {
    let server = Server::start();
    let without_publish = server.url_with_rules(&["-publish"]);
    // Such a client receives messages like any other.
    assert_acquired_within(PROMPTLY, &server, &client(&without_publish), || {
        server.run("DEL", &["lock:a"]);
        server.run("PUBLISH", &["lock_release:a", ""]);
    });

    // The release of such a client publishes nothing: the waiter learns of it when it refreshes its
    // place.
    let holder = client(&without_publish);
    let guard = holder.mutex("b").lock().unwrap();
    let waiting = client(&server.url());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.mutex("b").lock().map(drop).unwrap());
        eventually(WAIT_LIMIT, || server.subscribers("lock_release:b") > 0);
        guard.unlock().unwrap();
        Control::run(REFRESH, || waiter.join().unwrap()).no_later_than(SLACK);
    });
}

fn a_subscription_is_kept_for_the_next_waiter_and_then_dropped() {
    let server = Server::start();
    let (holder, client) = (client(&server.url()), client(&server.url()));
    let guard = holder.mutex("a").lock().unwrap();
    assert!(client.mutex("a").try_lock_for(ms(500)).unwrap().is_err());
    // The client remembers the name for a second, and only then does its subscription have no user.
    let_pass(ms(1_100));
    let last = Instant::now();
    assert!(client.mutex("a").try_lock_for(ms(500)).unwrap().is_err());
    // One subscription to the inbox and one to the name.
    assert_eq!(server.calls(&["subscribe"]), 2);
    eventually(ms(14_000), || {
        server.subscribed_channels("lock_release:*") == 0
    });
    // It is kept for ten seconds after its last use.
    assert!(last.elapsed() > ms(10_000), "{:?}", last.elapsed());
    drop(guard);
}

fn a_name_whose_subscription_was_dropped_is_subscribed_to_again() {
    let server = Server::start();
    let (holder, waiter) = (client(&server.url()), client(&server.url()));
    let wait = || {
        let guard = holder.mutex("a").lock().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.mutex("a").lock().unwrap().unlock().unwrap());
            eventually(WAIT_LIMIT, || server.subscribers("lock_release:a") > 0);
            guard.unlock().unwrap();
            waiting.join().unwrap();
        });
    };
    wait();
    eventually(WAIT_LIMIT, || {
        server.subscribed_channels("lock_release:*") == 0
    });
    wait();
}

/// The previous server follows the promoted one, and passes its messages on. Nothing else shows
/// that the subscription is at the wrong server.
fn subscription_follows_an_endpoint_to_a_promoted_server() {
    let old = Server::start();
    let new = old.replica();
    let proxy = Proxy::new(&old);
    let (holder, waiter) = (client(&proxy.url()), client(&proxy.url()));
    let guard = holder.mutex("a").ttl(ms(60_000)).lock().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.mutex("a").lock().unwrap().unlock().unwrap());
        old.wait_until_waiter_sleeps("lock_release:a");
        // The promoted server has all that it would have lost otherwise.
        eventually(WAIT_LIMIT, || new.keys() == old.keys());
        proxy.forward_to(new.port());
        new.run("REPLICAOF", &["NO", "ONE"]);
        old.run("REPLICAOF", &["127.0.0.1", &new.port().to_string()]);
        // As the endpoint does; the subscription stays.
        old.run("CLIENT", &["KILL", "TYPE", "normal"]);
        let is_linked = || old.info("replication", "master_link_status").as_deref() == Some("up");
        eventually(WAIT_LIMIT, is_linked);
        eventually(WAIT_LIMIT, || new.subscribers("lock_release:a") > 0);
        assert_eq!(old.subscribers("lock_release:a"), 0);
        guard.unlock().unwrap();
        waiting.join().unwrap();
    });
}

/// The limit bounds the memory of a process that waits for a million names in turn.
fn idle_subscriptions_beyond_the_limit_are_dropped_sooner() {
    let server = Server::start();
    let client = client(&server.url());
    let names = 1_200;
    let threads = 8;
    thread::scope(|scope| {
        for first in 0..threads {
            let (server, client) = (&server, &client);
            scope.spawn(move || {
                for n in (first..names).step_by(threads) {
                    server.run("SET", &[&format!("lock:{n}"), "foreign"]);
                    let mutex = client.mutex(format!("{n}"));
                    // On a slow machine, a call may end before its client has subscribed.
                    eventually(WAIT_LIMIT, || {
                        match mutex.try_lock_for(ms(10)) {
                            Ok(got) => assert!(got.is_err()),
                            Err(error) => assert!(error.is_unreachable(), "{error:?}"),
                        }
                        server.subscribers(format!("lock_release:{n}")) > 0
                    });
                }
            });
        }
    });
    // Beyond the limit all idle subscriptions were dropped at once. Those that are left were made
    // later. Without the limit, an idle subscription stays for 10 s.
    eventually(ms(8_000), || {
        server.subscribed_channels("lock_release:*") <= 1_024
    });
}

/// In a child process: two clients, one of them over a quorum, in which calls have waited.
fn idle_clients() {
    let urls = parameter("URLS");
    let urls: Vec<&str> = urls.split(' ').collect();
    let one = Client::builder().url(urls[0]);
    let quorum = Client::builder().quorum(urls);
    let clients = [one, quorum].map(|builder| builder.build().unwrap());
    for (client, name) in clients
        .iter()
        .flat_map(|client| [(client, "a"), (client, "b")])
    {
        assert!(client.mutex(name).try_lock_for(ms(300)).unwrap().is_err());
    }
    // Runs the recorder, with the feature `metrics`.
    let is_counting = |name: &str| cfg!(feature = "metrics") && name == "leasehold-callb";
    let mut lasting = own_threads();
    lasting.retain(|name| !is_counting(name));
    let threads = ["leasehold-engin", "leasehold-subsc"].map(|name| [name; 2]);
    assert_eq!(lasting, threads.concat());
    let waits = || {
        let mut waits = own_thread_waits();
        if cfg!(feature = "metrics") {
            // The engine passes counters on.
            waits.retain(|_, (name, _)| name != "leasehold-engin" && !is_counting(name));
        }
        waits
    };
    eventually(WAIT_LIMIT, || {
        let before = waits();
        // Longer than a second: no period of the client's threads is longer.
        let_pass(ms(1_100));
        waits() == before
    });
}

fn idle_client_has_two_threads_that_do_not_wake() {
    let servers = [(); 3].map(|()| Server::start());
    for server in &servers {
        for key in ["lock:a", "lock:b"] {
            server.run("SET", &[key, "foreign"]);
        }
    }
    let urls = servers.each_ref().map(Server::url).join(" ");
    let child = Child::spawn("waking::idle_clients", &[("URLS", &urls)]);
    child.wait().succeeded();
}

/// One thread receives the messages of all servers. It must not wait for the one that hangs.
fn waiter_over_a_quorum_is_woken_although_a_server_hangs() {
    let (hanging, servers) = (BlackHole::start(), [(); 2].map(|()| Server::start()));
    let urls = servers.iter().map(Server::url).chain([hanging.url()]);
    let waiting = Client::builder().quorum(urls).build().unwrap();
    let run = |command, args: &[&str]| servers.iter().for_each(|it| it.run(command, args));
    run("SET", &["lock:a", "foreign"]);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.mutex("a").lock().map(drop).unwrap());
        wait_until_subscribed_at(&servers);
        // No proposal is under way: one that finds the lock on one server only waits for the third.
        eventually(WAIT_LIMIT, || {
            let mut asked = servers.iter().map(|it| it.calls(&["evalsha", "eval"]));
            asked.all(|calls| calls >= 3)
        });
        let timed = Control::run(PROMPTLY, || {
            run("DEL", &["lock:a"]);
            run("PUBLISH", &["lock_release:a", ""]);
            waiter.join().unwrap();
        });
        timed.no_later_than(SLACK);
    });
}

/// The messages arrive in one read of the subscriber.
fn messages_that_arrive_together_wake_all_waiters() {
    let server = Server::start();
    wake_together(&server, Client::builder().url(server.url()));
}

/// The messages arrive in one record.
#[cfg(feature = "tls")]
fn messages_that_arrive_together_over_tls_wake_all_waiters() {
    if Server::lacks_tls() {
        return;
    }
    let port = free_port();
    let server = tls_server(port, "server");
    let builder = Client::builder().url(format!("rediss://localhost:{port}"));
    let builder = builder.tls_root(read_pem("ca.pem"));
    let builder = builder.tls_client_cert(read_pem("client.pem"), read_pem("client.key"));
    wake_together(&server, builder);
}

fn wake_together(server: &Server, builder: ClientBuilder) {
    let client = builder.queues(false).build().unwrap();
    let names = ["a", "b", "c", "d"];
    let mut release = redis::pipe();
    for name in names {
        let key = format!("lock:{name}");
        server.run("SET", &[&key, "foreign"]);
        (release.del(key)).publish(format!("lock_release:{name}"), "");
    }
    let mut redis = server.connection();
    thread::scope(|scope| {
        let waiting = names.map(|name| {
            let mutex = client.mutex(name);
            scope.spawn(move || mutex.lock().map(drop).unwrap())
        });
        for name in names {
            server.wait_until_waiter_sleeps(format!("lock_release:{name}"));
        }
        let timed = Control::run(PROMPTLY, || {
            release.exec(&mut redis).unwrap();
            waiting.into_iter().for_each(|one| one.join().unwrap());
        });
        timed.no_later_than(SLACK);
    });
}

/// While no call waits, the client does not connect again. The next call makes it do so, although
/// its name is known.
fn name_waited_for_in_an_outage_is_subscribed_to_after_it() {
    let mut server = Server::start();
    let client = without_queues(&server.url());
    server.run("SET", &["lock:a", "foreign"]);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.mutex("a").try_lock_for(ms(1_000)).map(drop));
        eventually(WAIT_LIMIT, || server.subscribers("lock_release:a") > 0);
        server.kill();
        drop(waiting.join().unwrap());
    });
    // The pause between two attempts to connect ends.
    let_pass(ms(1_000));
    server.restart();
    server.run("SET", &["lock:a", "foreign"]);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.mutex("a").lock().map(drop));
        eventually(WAIT_LIMIT, || server.subscribers("lock_release:a") > 0);
        server.run("DEL", &["lock:a"]);
        waiting.join().unwrap().unwrap();
    });
}
