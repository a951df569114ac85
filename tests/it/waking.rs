//! Promise: a waiter sleeps until the release wakes it; a wake that gets lost costs at most the backstop.

use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use leasehold::{Backoff, Client, FencingToken, WaitPolicy};
use parking_lot::{Condvar, Mutex};
use support::{
    Child, Control, Proxy, Server, Traffic, eventually, let_pass, ms, parameter, tell_parent,
};

support::roles![waiter];

support::tests![
    a_release_wakes_a_waiter_of_another_process,
    waiters_of_one_client_come_in_their_order,
    a_waiter_behind_one_that_pauses_is_woken,
    a_release_within_the_client_wakes_the_one_that_pauses,
    what_pauses_is_handed_the_lease_in_its_turn,
    a_release_sends_one_waiter_of_a_client_to_redis,
    a_hundred_waiters_for_a_second_send_fewer_than_twenty_requests,
    idle_waiting_sends_the_probe_and_nothing_else,
    those_who_may_not_subscribe_do_not_connect_over_and_over,
    a_subscription_lingers_for_the_next_waiter_and_goes,
    more_subscriptions_than_can_linger_go_sooner
];

support::timed![
    a_release_wakes_a_waiter_of_another_client,
    any_message_on_the_channel_wakes,
    a_subscriber_killed_again_and_again_costs_at_most_the_backstop,
    a_contender_that_times_out_as_it_is_woken_passes_it_on,
    a_subscriber_that_connects_again_wakes_the_waiters_to_look,
    a_subscriber_that_hangs_is_found_out,
    without_any_message_the_backstop_is_the_limit,
    those_who_may_not_subscribe_look_by_themselves,
    those_who_may_not_publish_hear_and_release_all_the_same
];

/// Long enough for anything that is to come, and short enough for a test that fails.
const PATIENCE: Duration = ms(20_000);

/// So long that whoever gets the lock before was woken.
const NO_BACKSTOP: Duration = ms(40_000);

/// How soon a waiter that is woken has the lock: far sooner than it would look around by itself.
const PROMPTLY: Duration = ms(700);

fn client(url: &str) -> Client {
    Client::builder()
        .url(url)
        .ttl(ms(300_000))
        .backstop(NO_BACKSTOP)
        .build()
        .unwrap()
}

/// Calls of scripts: acquires, releases and renewals.
fn scripts(server: &Server) -> u64 {
    server.calls(&["evalsha", "eval"])
}

/// Waits until a waiter sleeps: it has looked `before` and once more since it hears.
fn sleeps(server: &Server, name: &str, scripts_before: u64) {
    eventually(PATIENCE, || {
        server.subscribers(format!("lock_release:{name}")) > 0
            && scripts(server) >= scripts_before + 2
    });
}

fn a_release_wakes_a_waiter_of_another_client() {
    let server = Server::start();
    let (holder, other) = (client(&server.url()), client(&server.url()));
    for _ in 0..10 {
        let guard = holder.mutex("a").lock().unwrap();
        let before = scripts(&server);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let guard = other.mutex("a").lock().unwrap();
                (guard, Instant::now())
            });
            sleeps(
                &server,
                "a",
                before - u64::from(server.subscribers("lock_release:a") > 0),
            );
            let released = Instant::now();
            let _ = guard.unlock().unwrap();
            let (next, woken) = waiting.join().unwrap();
            let took = woken - released;
            assert!(took < PROMPTLY, "{took:?}");
            let _ = next.unlock().unwrap();
        });
    }
}

/// In a child: waits for the lock and says that it has it.
fn waiter() {
    let guard = client(&parameter("URL")).mutex("a").lock().unwrap();
    tell_parent("woken");
    let _ = guard.unlock().unwrap();
}

fn a_release_wakes_a_waiter_of_another_process() {
    let server = Server::start();
    let holder = client(&server.url());
    let guard = holder.mutex("a").lock().unwrap();
    let before = scripts(&server);
    let child = Child::spawn("waking::waiter", &[("URL", &server.url())]);
    sleeps(&server, "a", before);
    let _ = guard.unlock().unwrap();
    assert_eq!(child.next_line_within(PROMPTLY).as_deref(), Some("woken"));
    child.wait().succeeded();
}

fn any_message_on_the_channel_wakes() {
    let server = Server::start();
    let client = client(&server.url());
    for payload in ["", "anything", "lock_release:a"] {
        server.run("SET", &["lock:a", "foreign"]);
        let before = scripts(&server);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| client.mutex("a").lock().map(drop));
            sleeps(
                &server,
                "a",
                before - u64::from(server.subscribers("lock_release:a") > 0),
            );
            server.run("DEL", &["lock:a"]);
            server.run("PUBLISH", &["lock_release:a", payload]);
            let free = Instant::now();
            waiting.join().unwrap().unwrap();
            assert!(free.elapsed() < PROMPTLY, "{:?}", free.elapsed());
        });
    }
}

/// Starts a thread, and waits until it sleeps in its call: those who come after it wait behind it.
fn lined_up<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    call: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    let (sender, task) = unbounded();
    let thread = scope.spawn(move || {
        sender
            .send(fs::read_link("/proc/thread-self").unwrap())
            .unwrap();
        call()
    });
    let stat = Path::new("/proc").join(task.recv().unwrap()).join("stat");
    // It may sleep for a moment on its way there, too.
    let mut times = 0;
    eventually(PATIENCE, || {
        let Ok(stat) = fs::read_to_string(&stat) else {
            // It is through already.
            return true;
        };
        let is_asleep = stat.rsplit(") ").next().unwrap().starts_with('S');
        times = if is_asleep { times + 1 } else { 0 };
        times >= 4
    });
    thread
}

fn waiters_of_one_client_come_in_their_order() {
    let server = Server::start();
    let (client, other) = (client(&server.url()), client(&server.url()));
    for holder in [&client, &other] {
        let guard = holder.mutex("a").lock().unwrap();
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for n in 0..10 {
                let (client, order) = (&client, &order);
                lined_up(scope, move || {
                    let guard = client.mutex("a").lock().unwrap();
                    order.lock().push(n);
                    let _ = guard.unlock().unwrap();
                });
            }
            let _ = guard.unlock().unwrap();
        });
        assert_eq!(order.into_inner(), (0..10).collect::<Vec<_>>());
    }
}

/// Pauses that no test outlasts.
const PAUSES: WaitPolicy = WaitPolicy::Backoff(Backoff::new(ms(300_000), ms(300_000)));

fn a_waiter_behind_one_that_pauses_is_woken() {
    let server = Server::start();
    let (holder, other) = (client(&server.url()), client(&server.url()));
    let guard = holder.mutex("a").lock().unwrap();
    thread::scope(|scope| {
        let pauses: Vec<_> = (0..2)
            .map(|_| {
                lined_up(scope, || {
                    other.mutex("a").wait(PAUSES).try_lock_for(PATIENCE)
                })
            })
            .collect();
        let before = scripts(&server);
        let woken = lined_up(scope, || other.mutex("a").try_lock_for(PATIENCE));
        sleeps(&server, "a", before);
        let _ = guard.unlock().unwrap();
        let woken = woken.join().unwrap().unwrap();
        let _ = woken.expect("it was woken").unlock().unwrap();
        for pauses in pauses {
            let guard = pauses.join().unwrap().unwrap();
            let _ = guard.expect("it was handed the lease").unlock().unwrap();
        }
    });
}

fn a_release_within_the_client_wakes_the_one_that_pauses() {
    let server = Server::start();
    let client = client(&server.url());
    let mutex = || client.mutex("a").local_handoffs(0);
    let takes_and_lets_go = |policy| {
        let guard = mutex().wait(policy).try_lock_for(PATIENCE).unwrap();
        let _ = guard.expect("it was woken").unlock().unwrap();
    };
    let guard = mutex().lock().unwrap();
    thread::scope(|scope| {
        for policy in [PAUSES, WaitPolicy::Wake] {
            lined_up(scope, move || takes_and_lets_go(policy));
        }
        let _ = guard.unlock().unwrap();
    });
}

fn what_pauses_is_handed_the_lease_in_its_turn() {
    let server = Server::start();
    let client = client(&server.url());
    let guard = client.mutex("a").lock().unwrap();
    let order = Mutex::new(Vec::new());
    let (client, order) = (&client, &order);
    thread::scope(|scope| {
        for (n, policy) in [PAUSES, WaitPolicy::Wake, PAUSES].into_iter().enumerate() {
            lined_up(scope, move || {
                let guard = client.mutex("a").wait(policy).lock().unwrap();
                order.lock().push((n, guard.fencing_token()));
                let _ = guard.unlock().unwrap();
            });
        }
        let _ = guard.unlock().unwrap();
        eventually(PATIENCE, || order.lock().len() == 3);
        // The first of them gets the lock from Redis: the one that pauses, or the one behind it, which a release wakes too.
        // From then on it is handed on.
        let order = order.lock();
        assert!(order[1..].is_sorted(), "{order:?}");
        assert!(order.is_sorted_by_key(|(_, token)| *token), "{order:?}");
        assert_eq!(client.stats().totals.wakes_hand_off, 2);
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
                lined_up(scope, move || {
                    let guard = client.mutex("a").lock().unwrap();
                    entered.send(()).unwrap();
                    if n == 0 {
                        leaving.wait();
                    }
                    let _ = guard.unlock().unwrap();
                });
            }
            let before = scripts(&server);
            let _ = guard.unlock().unwrap();
            entries.recv_timeout(PATIENCE).unwrap();
            let_pass(ms(200));
            // The release, the acquire, and a look for what a message may have been about.
            let sent = scripts(&server) - before;
            assert!(sent <= 3, "{sent} calls");
            leaving.wait();
        });
    }
}

fn a_hundred_waiters_for_a_second_send_fewer_than_twenty_requests() {
    let server = Server::start();
    let holder = client(&server.url());
    let client = Client::open(&server.url()).unwrap();
    let guard = holder.mutex("a").lock().unwrap();
    // Without what the scripts call, and the asking itself.
    let requests = || -> u64 {
        let mut calls = server.all_calls();
        for inside in ["get", "set", "time", "pttl", "info"] {
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
        let _ = guard.unlock().unwrap();
    });
}

fn idle_waiting_sends_the_probe_and_nothing_else() {
    let server = Server::start();
    let (holder, client) = (client(&server.url()), client(&server.url()));
    let names = ["a", "b", "c"];
    let guards = names.map(|name| holder.mutex(name).lock().unwrap());
    thread::scope(|scope| {
        for name in names {
            for _ in 0..2 {
                let mutex = client.mutex(name);
                lined_up(scope, move || mutex.lock().map(drop).unwrap());
            }
            eventually(PATIENCE, || {
                server.subscribers(format!("lock_release:{name}")) > 0
            });
        }
        let calls = |command| move |server: &Server| server.calls(&[command]);
        // Each name's first waiter looks again when it hears.
        let mut looks = 0;
        while scripts(&server) != looks {
            looks = scripts(&server);
            let_pass(ms(300));
        }
        let (probes, looks) = (calls("publish")(&server), scripts(&server));
        let_pass(ms(2_500));
        assert_eq!(scripts(&server), looks);
        let probes = calls("publish")(&server) - probes;
        assert!((2..=4).contains(&probes), "{probes} probes");
        for guard in guards {
            let _ = guard.unlock().unwrap();
        }
    });
}

/// Who had the lock, from when until when.
struct Turn {
    token: FencingToken,
    taken: Instant,
    released: Instant,
}

fn a_subscriber_killed_again_and_again_costs_at_most_the_backstop() {
    let server = Server::start();
    let backstop = ms(500);
    let (kill, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let turns: Mutex<Vec<Turn>> = Mutex::new(Vec::new());
    let (latest, changed) = (Mutex::new(usize::MAX), Condvar::new());
    let mut overshoot = ms(0);
    thread::scope(|scope| {
        // One waiter in each client, so that every wake has to come over its subscription.
        for n in 0..4 {
            let (kill, over) = (&kill, &over);
            let (turns, latest, changed) = (&turns, &latest, &changed);
            let mut connection = server.connection();
            let client = Client::builder()
                .url(server.url())
                .ttl(ms(60_000))
                .backstop(backstop)
                .build()
                .unwrap();
            scope.spawn(move || {
                let mutex = client.mutex("a");
                while !over.load(Ordering::Relaxed) {
                    let guard = mutex.lock().unwrap();
                    let taken = Instant::now();
                    let token = guard.fencing_token();
                    *latest.lock() = n;
                    changed.notify_all();
                    // By then the others sleep again.
                    let_pass(ms(2));
                    if kill.swap(false, Ordering::Relaxed) {
                        // By hand and in one write with the kill: nobody can hear this release.
                        redis::pipe()
                            .cmd("CLIENT")
                            .arg(&["KILL", "TYPE", "pubsub"])
                            .cmd("DEL")
                            .arg("lock:a")
                            .cmd("PUBLISH")
                            .arg("lock_release:a")
                            .arg(guard.holder_id().as_str())
                            .exec(&mut connection)
                            .unwrap();
                    }
                    let _ = guard.unlock().unwrap();
                    turns.lock().push(Turn {
                        token,
                        taken,
                        released: Instant::now(),
                    });
                    // Whoever comes back at once would take it without being woken.
                    let mut latest = latest.lock();
                    while *latest == n && !over.load(Ordering::Relaxed) {
                        changed.wait_for(&mut latest, ms(50));
                    }
                }
            });
        }
        for _ in 0..20 {
            overshoot = overshoot.max(Control::run(ms(500), || let_pass(ms(500))).overshoot);
            kill.store(true, Ordering::Relaxed);
        }
        over.store(true, Ordering::Relaxed);
        changed.notify_all();
    });
    let mut turns = turns.into_inner();
    turns.sort_by_key(|turn| turn.token);
    assert!(turns.len() > 100, "{} turns", turns.len());
    let gaps = turns
        .windows(2)
        .map(|pair| pair[1].taken.saturating_duration_since(pair[0].released));
    let longest = gaps.max().unwrap();
    let limit = backstop + ms(150) + 3 * overshoot;
    assert!(longest <= limit, "{longest:?} without a holder");
}

fn a_contender_that_times_out_as_it_is_woken_passes_it_on() {
    let server = Server::start();
    let (holder, client) = (client(&server.url()), client(&server.url()));
    let limit = ms(50);
    for n in 0..30 {
        let guard = holder.mutex("a").lock().unwrap();
        thread::scope(|scope| {
            let began = Instant::now();
            let first = lined_up(scope, || {
                // On a busy machine its only look may go unanswered in that time.
                if let Err(error) = client.mutex("a").try_lock_for(limit) {
                    assert!(error.is_unreachable(), "{error}");
                }
            });
            let second = lined_up(scope, || {
                let guard = client.mutex("a").lock().unwrap();
                (guard, Instant::now())
            });
            // From shortly before the end until shortly after it.
            let end = began + limit + Duration::from_micros(100 * n) - ms(1);
            let_pass(end.saturating_duration_since(Instant::now()));
            let released = Instant::now();
            let _ = guard.unlock().unwrap();
            let (guard, taken) = second.join().unwrap();
            let took = taken.saturating_duration_since(released);
            assert!(took < PROMPTLY, "{took:?}");
            let _ = guard.unlock().unwrap();
            first.join().unwrap();
        });
    }
}

/// The name's waiter is asleep, and hears: `loses` lets the wake get lost, and says when the lock was free.
fn waiter_gets_it_within(
    limit: Duration,
    server: &Server,
    waiting: &Client,
    loses: impl FnOnce() -> Instant,
) {
    let holder = client(&server.url());
    let guard = holder.mutex("a").lock().unwrap();
    let before = scripts(server);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = waiting.mutex("a").lock().unwrap();
            (guard, Instant::now())
        });
        sleeps(server, "a", before);
        let free = loses();
        let (_guard, taken) = waiter.join().unwrap();
        let took = taken.saturating_duration_since(free);
        assert!(took < limit, "{took:?}");
    });
    drop(guard);
}

fn a_subscriber_that_connects_again_wakes_the_waiters_to_look() {
    let server = Server::start();
    waiter_gets_it_within(ms(1_500), &server, &client(&server.url()), || {
        // Nobody tells of this.
        server.run("DEL", &["lock:a"]);
        let free = Instant::now();
        server.run("CLIENT", &["KILL", "TYPE", "pubsub"]);
        free
    });
}

/// Everything else passes: only the probe can tell.
fn a_subscriber_that_hangs_is_found_out() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    waiter_gets_it_within(ms(6_000), &server, &client(&proxy.url()), || {
        let hung = proxy.connections_that_sent("SUBSCRIBE");
        assert_eq!(hung.len(), 1);
        proxy.set_nth(hung[0], Traffic::Stall);
        server.run("DEL", &["lock:a"]);
        server.run("PUBLISH", &["lock_release:a", ""]);
        Instant::now()
    });
}

fn without_any_message_the_backstop_is_the_limit() {
    let server = Server::start();
    let backstop = ms(400);
    let client = Client::builder()
        .url(server.url())
        .backstop(backstop)
        .build()
        .unwrap();
    waiter_gets_it_within(backstop + ms(400), &server, &client, || {
        server.run("DEL", &["lock:a"]);
        Instant::now()
    });
}

/// A user of the server who may do everything but what `rules` take away.
fn user(server: &Server, rules: &[&str]) -> String {
    let all = ["SETUSER", "some", "on", ">secret", "~*", "&*", "+@all"];
    server.run("ACL", &[&all[..], rules].concat());
    format!("redis://some:secret@127.0.0.1:{}", server.port())
}

fn those_who_may_not_subscribe_look_by_themselves() {
    for rules in [&["-subscribe"][..], &["resetchannels"]] {
        let server = Server::start();
        let deaf = user(&server, rules);
        let (waiting, holder) = (client(&deaf), client(&server.url()));
        let guard = holder.mutex("a").lock().unwrap();
        let before = scripts(&server);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let guard = waiting.mutex("a").lock().unwrap();
                (guard, Instant::now())
            });
            eventually(PATIENCE, || scripts(&server) >= before + 3);
            assert_eq!(server.subscribers("lock_release:a"), 0);
            let free = Instant::now();
            let _ = guard.unlock().unwrap();
            let (guard, taken) = waiter.join().unwrap();
            let took = taken.saturating_duration_since(free);
            assert!(took < ms(1_000) + ms(500), "{took:?}");
            let _ = guard.unlock().unwrap();
        });
    }
}

/// They poll, and that is no storm of connections either.
fn those_who_may_not_subscribe_do_not_connect_over_and_over() {
    let server = Server::start();
    let deaf = user(&server, &["-subscribe"]);
    let waiting = Client::builder().url(&deaf).build().unwrap();
    let _guard = client(&server.url()).mutex("a").lock().unwrap();
    let connections = || -> u64 {
        let connections = server.info("stats", "total_connections_received");
        connections.unwrap().parse().unwrap()
    };
    let before = connections();
    assert!(
        waiting
            .mutex("a")
            .try_lock_for(ms(5_000))
            .unwrap()
            .is_none()
    );
    // One asked; the waiter has one, and the subscriber.
    let made = connections() - before - 1;
    assert!(made <= 3, "{made} connections");
}

fn those_who_may_not_publish_hear_and_release_all_the_same() {
    let server = Server::start();
    let mute = user(&server, &["-publish"]);
    // It cannot wake its subscriber, which looks around by itself; then it hears like everybody.
    waiter_gets_it_within(PROMPTLY, &server, &client(&mute), || {
        server.run("DEL", &["lock:a"]);
        server.run("PUBLISH", &["lock_release:a", ""]);
        Instant::now()
    });

    // Nobody hears of its own release, which the backstop makes up for.
    let holder = client(&mute);
    let guard = holder.mutex("b").lock().unwrap();
    let backstop = ms(400);
    let waiting = Client::builder()
        .url(server.url())
        .backstop(backstop)
        .build()
        .unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.mutex("b").lock().map(drop).unwrap());
        eventually(PATIENCE, || server.subscribers("lock_release:b") > 0);
        let _ = guard.unlock().unwrap();
        Control::run(backstop, || waiter.join().unwrap()).no_later_than(ms(400));
    });
}

fn a_subscription_lingers_for_the_next_waiter_and_goes() {
    let server = Server::start();
    let (holder, client) = (client(&server.url()), client(&server.url()));
    let guard = holder.mutex("a").lock().unwrap();
    for _ in 0..3 {
        assert!(client.mutex("a").try_lock_for(ms(50)).unwrap().is_none());
        let_pass(ms(1_200));
        assert_eq!(server.subscribed_channels("lock_release:*"), 1);
    }
    // One for the control channel and one for the name.
    assert_eq!(server.calls(&["subscribe"]), 2);
    eventually(ms(14_000), || {
        server.subscribed_channels("lock_release:*") == 0
    });
    drop(guard);
}

/// So that a process that waits for a million names in turn stays small.
fn more_subscriptions_than_can_linger_go_sooner() {
    let server = Server::start();
    let client = client(&server.url());
    let names = 1_200;
    let lanes = 8;
    thread::scope(|scope| {
        for lane in 0..lanes {
            let (server, client) = (&server, &client);
            scope.spawn(move || {
                let mut connection = server.connection();
                for n in (lane..names).step_by(lanes) {
                    redis::cmd("SET")
                        .arg(format!("lock:{n}"))
                        .arg("foreign")
                        .exec(&mut connection)
                        .unwrap();
                    let mutex = client.mutex(format!("{n}"));
                    match mutex.try_lock_for(ms(10)) {
                        Ok(got) => assert!(got.is_none()),
                        Err(error) => assert!(error.is_unreachable(), "{error:?}"),
                    }
                }
            });
        }
    });
    // Unlike the few that came after those went.
    eventually(ms(3_000), || {
        server.subscribed_channels("lock_release:*") <= 1_024
    });
    assert!(server.calls(&["subscribe"]) > 1_024);
}
