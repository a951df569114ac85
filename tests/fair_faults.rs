//! Promise: what dies, stops or gets lost costs those who wait for a fair lock a bounded time, and never their turn to two.

mod support;

use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::never;
use leasehold::{Client, Error, FairMutex, MutexGuard, Unlocked};
use support::{Child, Control, Proxy, Server, Timed, Traffic, eventually, given, ms, say};

const QUEUE: &str = "leasehold:queue:{lock:a}";

/// Long enough for anything that is to come, and short enough for a test that fails.
const PATIENCE: Duration = ms(30_000);

/// What a refresh may cost, and whatever it finds.
const REFRESH: Duration = ms(1_000);

/// What a waiter that has died may cost: its provisional time, and the refresh that finds the lock free.
const DEATH: Duration = ms(4_000);

/// What a call may be later than a plain wait of the same length.
const SLACK: Duration = ms(300);

const COMMAND_TIMEOUT: Duration = ms(200);

#[test]
fn child() {
    support::role(&[("waiter", waiter)]);
}

/// Takes the lock when its turn comes, and gives it back when told to by its key.
fn waiter() {
    let mutex = Client::open(&given("URL")).unwrap().fair_mutex("a");
    say("asks");
    let guard = mutex
        .try_lock_for(PATIENCE)
        .unwrap()
        .expect("its turn comes");
    assert!(guard.is_held());
    say(guard.holder_id().as_str());
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
}

fn client(url: &str) -> Client {
    Client::builder()
        .url(url)
        .command_timeout(COMMAND_TIMEOUT)
        .connect_timeout(COMMAND_TIMEOUT)
        .build()
        .unwrap()
}

fn fair(server: &Server) -> FairMutex {
    client(&server.url()).fair_mutex("a")
}

fn run(server: &Server, words: &[&str]) {
    redis::cmd(words[0])
        .arg(&words[1..])
        .exec(&mut server.connection())
        .unwrap();
}

fn queued(server: &Server) -> usize {
    let mut llen = redis::cmd("LLEN");
    llen.arg(QUEUE).query(&mut server.connection()).unwrap()
}

fn holder(server: &Server) -> Option<String> {
    Some(String::from_utf8(server.get("lock:a")?).unwrap())
}

#[track_caller]
fn released(guard: MutexGuard) {
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
}

#[track_caller]
fn nothing_stays(server: &Server) {
    eventually(ms(5_000), || {
        server
            .keys()
            .iter()
            .all(|key| key.starts_with(b"leasehold:fence:"))
    });
}

fn child_waits(server: &Server) -> Child {
    let before = queued(server);
    let child = Child::spawn("waiter", &[("URL", &server.url())]);
    eventually(PATIENCE, || queued(server) == before + 1);
    child
}

/// Waits in a thread of its own, and hears when this returns.
fn waits<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    server: &Server,
    mutex: FairMutex,
) -> ScopedJoinHandle<'scope, (MutexGuard, Instant)> {
    let before = queued(server);
    let waiting = scope.spawn(move || {
        let guard = mutex
            .try_lock_for(PATIENCE)
            .unwrap()
            .expect("its turn comes");
        (guard, Instant::now())
    });
    eventually(PATIENCE, || queued(server) == before + 1);
    server.wait_for_a_waiter("lock_release:a");
    waiting
}

/// How long it takes from `act` on until the waiter has the lock.
#[track_caller]
fn has_it_within(
    limit: Duration,
    waiting: ScopedJoinHandle<'_, (MutexGuard, Instant)>,
    act: impl FnOnce(),
) -> MutexGuard {
    let control = Control::start(limit);
    let began = Instant::now();
    act();
    let (guard, at) = waiting.join().unwrap();
    let timed = Timed {
        value: guard,
        took: at - began,
        limit,
        overshoot: control.overshoot(),
    };
    timed.no_later_than(SLACK)
}

#[test]
fn smoke() {
    let server = Server::start();
    let guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = waits(scope, &server, fair(&server));
        released(has_it_within(ms(0), waiting, || released(guard)));
    });
    nothing_stays(&server);
}

#[test]
fn one_that_is_killed_while_it_waits_costs_its_provisional_time() {
    let server = Server::start();
    let guard = fair(&server).lock().unwrap();
    let mut child = child_waits(&server);
    thread::scope(|scope| {
        let waiting = waits(scope, &server, fair(&server));
        child.kill();
        let guard = has_it_within(DEATH, waiting, || {
            released(guard);
            assert_eq!(queued(&server), 1, "it was its turn");
        });
        released(guard);
    });
    nothing_stays(&server);
}

#[test]
fn the_long_dead_cost_nothing() {
    let server = Server::start();
    let guard = fair(&server).lock().unwrap();
    let mut children: Vec<_> = (0..3).map(|_| child_waits(&server)).collect();
    thread::scope(|scope| {
        let waiting = waits(scope, &server, fair(&server));
        children.iter_mut().for_each(Child::kill);
        assert!(never::<()>().recv_timeout(ms(3_200)).is_err());
        assert_eq!(queued(&server), 4);
        released(has_it_within(ms(0), waiting, || released(guard)));
    });
    nothing_stays(&server);
}

#[test]
fn a_queue_of_the_dead_is_no_queue_and_goes() {
    let server = Server::start();
    let guard = fair(&server).lock().unwrap();
    let mut child = child_waits(&server);
    child.kill();
    eventually(ms(10_000), || queued(&server) == 0);
    released(guard);
    nothing_stays(&server);
}

/// Its turn comes while it stands still, and goes: it waits again under another id, at the end.
#[test]
fn one_that_is_stopped_is_passed_over_and_granted_nothing_twice() {
    let server = Server::start();
    let guard = fair(&server).lock().unwrap();
    let child = child_waits(&server);
    thread::scope(|scope| {
        let waiting = waits(scope, &server, fair(&server));
        child.pause();
        let mut granted = None;
        let guard = has_it_within(DEATH, waiting, || {
            released(guard);
            granted = holder(&server);
        });
        assert_ne!(granted, holder(&server));
        child.resume();
        eventually(PATIENCE, || queued(&server) == 1);
        assert_eq!(child.line(), "asks");
        assert_eq!(child.line_within(ms(300)), None, "the grant has lapsed");
        assert!(guard.is_held());
        released(guard);
        assert_ne!(Some(child.line()), granted);
    });
    child.wait().succeeded();
    nothing_stays(&server);
}

#[test]
fn a_message_that_is_lost_costs_a_refresh() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = waits(scope, &server, client(&proxy.url()).fair_mutex("a"));
        let hears = proxy.that_said("SUBSCRIBE");
        assert_eq!(hears.len(), 1);
        proxy.nth(hears[0], Traffic::DropReplies);
        released(has_it_within(REFRESH, waiting, || released(guard)));
    });
    nothing_stays(&server);
}

#[test]
fn a_subscriber_that_is_killed_costs_no_more() {
    let server = Server::start();
    let guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = waits(scope, &server, fair(&server));
        let guard = has_it_within(REFRESH, waiting, || {
            run(&server, &["CLIENT", "KILL", "TYPE", "pubsub"]);
            released(guard);
        });
        released(guard);
    });
    nothing_stays(&server);
}

#[test]
fn a_foreign_deletion_is_found_by_the_refresh() {
    let server = Server::start();
    let _guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = waits(scope, &server, fair(&server));
        let guard = has_it_within(REFRESH, waiting, || run(&server, &["DEL", "lock:a"]));
        assert!(guard.is_held());
        released(guard);
    });
    nothing_stays(&server);
}

#[test]
fn an_expiry_is_found_by_the_refresh() {
    let server = Server::start();
    run(&server, &["SET", "lock:a", "somebody", "PX", "60000"]);
    thread::scope(|scope| {
        let waiting = waits(scope, &server, fair(&server));
        let guard = has_it_within(REFRESH + ms(200), waiting, || {
            run(&server, &["PEXPIRE", "lock:a", "200"])
        });
        released(guard);
    });
    nothing_stays(&server);
}

/// Whoever waited keeps waiting, if not the place.
#[test]
fn a_queue_that_is_deleted_is_entered_again() {
    let server = Server::start();
    for keys in [
        &["leasehold:queue:{lock:a}"][..],
        &["leasehold:places:{lock:a}"],
        &["leasehold:queue:{lock:a}", "leasehold:places:{lock:a}"],
    ] {
        let guard = fair(&server).lock().unwrap();
        thread::scope(|scope| {
            let waiting: Vec<_> = (0..2)
                .map(|_| waits(scope, &server, fair(&server)))
                .collect();
            run(&server, &[&["DEL"], keys].concat());
            // Not both at once: one of them finds what the other has made of it.
            let all = || {
                let places: usize = redis::cmd("HLEN")
                    .arg("leasehold:places:{lock:a}")
                    .query(&mut server.connection())
                    .unwrap();
                queued(&server) >= 2 && places == 2
            };
            eventually(PATIENCE, all);
            released(guard);
            for waiting in waiting {
                released(waiting.join().unwrap().0);
            }
        });
        nothing_stays(&server);
    }
}

#[test]
fn a_server_that_forgets_is_entered_again() {
    let mut server = Server::start();
    let guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = waits(scope, &server, fair(&server));
        drop(guard);
        released(waiting.join().unwrap().0);
    });
    let guard = fair(&server).lock().unwrap();
    let mutex = fair(&server);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            mutex
                .try_lock_for(PATIENCE)
                .unwrap()
                .expect("its turn comes")
        });
        eventually(PATIENCE, || queued(&server) == 1);
        server.restart();
        released(waiting.join().unwrap());
    });
    drop(guard);
    nothing_stays(&server);
}

/// A client through the proxy, with a connection that has just been used.
fn warm(proxy: &Proxy) -> Client {
    let client = client(&proxy.url());
    let guard = client.fair_mutex("warm").lock().unwrap();
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    client
}

/// An enter without an answer is undone, be it a lock or a place that it made.
#[track_caller]
fn enters_in_vain(traffic: Traffic, is_held: bool) {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = is_held.then(|| fair(&server).lock().unwrap());
    let clients: Vec<_> = (0..5).map(|_| warm(&proxy)).collect();
    let scripts = server.calls(&["rpush", "lindex"]);
    proxy.all(traffic);
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                let answer = client.fair_mutex("a").try_lock_for(COMMAND_TIMEOUT);
                assert!(
                    matches!(answer, Err(Error::Unreachable { .. })),
                    "{answer:?}"
                );
            });
        }
    });
    assert!(server.calls(&["rpush", "lindex"]) > scripts, "they ran");
    proxy.all(Traffic::Pass);
    eventually(ms(1_500), || {
        queued(&server) == 0 && holder(&server).is_some() == is_held
    });
    if let Some(guard) = guard {
        released(guard);
    }
    nothing_stays(&server);
}

#[test]
fn enters_whose_replies_vanish_leave_nothing_behind() {
    for is_held in [false, true] {
        enters_in_vain(Traffic::DropReplies, is_held);
    }
}

#[test]
fn enters_whose_replies_stall_leave_nothing_behind() {
    for is_held in [false, true] {
        enters_in_vain(Traffic::StallReplies, is_held);
    }
}

#[test]
fn enters_on_connections_that_end_leave_nothing_behind() {
    for is_held in [false, true] {
        enters_in_vain(Traffic::CutOnReply, is_held);
    }
}

/// A call that has more patience enters again under another id, and gets the lock.
#[test]
fn an_enter_without_an_answer_is_tried_again() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = fair(&server).lock().unwrap();
    let client = warm(&proxy);
    proxy.present(Traffic::DropReplies);
    thread::scope(|scope| {
        let mutex = client.fair_mutex("a");
        let waiting = scope.spawn(move || {
            mutex
                .try_lock_for(PATIENCE)
                .unwrap()
                .expect("its turn comes")
        });
        eventually(PATIENCE, || server.calls(&["rpush"]) >= 2);
        eventually(PATIENCE, || queued(&server) == 1);
        released(guard);
        released(waiting.join().unwrap());
    });
    nothing_stays(&server);
}

/// No answer to the first renewal comes: the lease is held as long as its provisional time, and renewed again.
#[test]
fn a_first_renewal_without_an_answer_is_sent_again() {
    let server = Server::start();
    for (traffic, auto_renew) in [
        (Traffic::DropReplies, true),
        (Traffic::StallRequests, false),
    ] {
        let proxy = Proxy::new(&server);
        let guard = fair(&server).lock().unwrap();
        let mutex = client(&proxy.url()).fair_mutex("a").auto_renew(auto_renew);
        thread::scope(|scope| {
            let waiting = waits(scope, &server, mutex);
            let hears = proxy.that_said("SUBSCRIBE");
            let others = (0..proxy.connections()).filter(|n| !hears.contains(n));
            others.for_each(|n| proxy.nth(n, traffic));
            proxy.newcomers(traffic);
            released(guard);
            let (granted, _) = waiting.join().unwrap();
            assert!(never::<()>().recv_timeout(ms(500)).is_err());
            assert!(
                granted.remaining().unwrap() <= ms(2_500),
                "a renewal that fails is no loss"
            );
            proxy.all(Traffic::Pass);
            eventually(ms(3_000), || {
                granted.remaining().is_some_and(|left| left > ms(8_000))
            });
            released(granted);
        });
    }
    nothing_stays(&server);
}

/// Its first renewal never gets through: the lock is lost when its provisional time is over, and said to be.
#[test]
fn a_grant_that_is_never_renewed_is_known_to_be_lost() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = waits(scope, &server, client(&proxy.url()).fair_mutex("a"));
        proxy.all(Traffic::StallRequests);
        released(guard);
        let (granted, _) = waiting.join().unwrap();
        assert!(granted.is_held());
        let lost = granted.lost();
        assert!(lost.recv_timeout(ms(3_500)).is_ok());
        assert!(!granted.is_held());
        proxy.all(Traffic::Pass);
    });
    nothing_stays(&server);
}

#[test]
fn leaving_without_an_answer_is_repeated() {
    for traffic in [
        Traffic::DropReplies,
        Traffic::StallRequests,
        Traffic::CutOnReply,
    ] {
        let server = Server::start();
        let proxy = Proxy::new(&server);
        let guard = fair(&server).lock().unwrap();
        let client = warm(&proxy);
        thread::scope(|scope| {
            let mutex = client.fair_mutex("a");
            let gives_up = scope.spawn(move || mutex.try_lock_for(ms(600)).unwrap());
            eventually(PATIENCE, || queued(&server) == 1);
            server.wait_for_a_waiter("lock_release:a");
            proxy.all(traffic);
            assert!(gives_up.join().unwrap().is_none(), "it was seen to be held");
            proxy.all(Traffic::Pass);
            eventually(ms(1_500), || queued(&server) == 0);
        });
        released(guard);
        nothing_stays(&server);
    }
}

/// Deadlines hold whatever the server does.
#[test]
fn a_server_that_hangs_delays_nobody_who_gives_up() {
    let server = Server::start();
    let guard = fair(&server).lock().unwrap();
    let mutex = fair(&server);
    thread::scope(|scope| {
        let answers: Vec<_> = [ms(700), ms(1_500)]
            .into_iter()
            .map(|limit| {
                let mutex = mutex.clone();
                scope.spawn(move || Control::run(limit, || mutex.try_lock_for(limit)))
            })
            .collect();
        eventually(PATIENCE, || queued(&server) == 2);
        server.pause();
        for answer in answers {
            let answer = answer.join().unwrap().no_later_than(ms(100));
            assert!(
                answer.unwrap().is_none(),
                "it was held when the server last said so"
            );
        }
        server.resume();
    });
    drop(guard);
    nothing_stays(&server);
}

#[test]
fn a_server_that_is_away_for_too_long_ends_the_wait() {
    let server = Server::start();
    let _guard = fair(&server).lock().unwrap();
    let patient = Client::builder()
        .url(server.url())
        .command_timeout(COMMAND_TIMEOUT)
        .unreachable_for(ms(1_500))
        .build()
        .unwrap();
    thread::scope(|scope| {
        let mutex = patient.fair_mutex("a");
        let waiting: Vec<_> = (0..2)
            .map(|_| {
                let mutex = mutex.clone();
                scope.spawn(move || mutex.lock())
            })
            .collect();
        eventually(PATIENCE, || queued(&server) == 2);
        server.pause();
        for waiting in waiting {
            let answer = waiting.join().unwrap();
            assert!(
                matches!(answer, Err(Error::Unreachable { .. })),
                "{answer:?}"
            );
        }
        server.resume();
    });
    eventually(ms(5_000), || queued(&server) == 0);
}
