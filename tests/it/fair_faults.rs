//! Promise: what dies, stops or gets lost costs those who wait for a fair lock a bounded time, and never their turn to two.

use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use leasehold::{Client, Error, FairMutex, MutexGuard};
use support::fair::{
    PATIENCE, PLACES, QUEUE, holder, lock_in_turn, only_fences_remain, queue_length, refresh_count,
    spawn_subscribed_waiter, subscription_connection, unlock, wait_for_queue_length,
    wait_for_refresh, wait_until_only_fences_remain, warmed_up,
};
use support::{
    COMMAND_TIMEOUT, Child, Control, Proxy, Server, Traffic, client, eventually,
    expect_unreachable, let_pass, ms, parameter, tell_parent,
};

support::roles![waiter, member];

support::tests![
    a_queue_of_the_dead_is_no_queue_and_goes,
    a_subscription_that_comes_back_is_a_reason_to_ask,
    a_message_that_comes_late_makes_no_second_holder,
    a_queue_that_is_deleted_is_entered_again,
    a_server_that_forgets_is_entered_again,
    enters_whose_replies_vanish_leave_nothing_behind,
    enters_whose_replies_stall_leave_nothing_behind,
    enters_on_connections_that_end_leave_nothing_behind,
    an_enter_without_an_answer_is_tried_again,
    a_first_renewal_without_an_answer_is_sent_again,
    a_grant_that_is_never_renewed_is_known_to_be_lost,
    leaving_without_an_answer_is_repeated,
    a_server_that_is_away_for_too_long_ends_the_wait,
    a_fleet_goes_on_in_order_whatever_befalls_its_members
];

support::roughly_timed![
    basic_fair_release_wakes_the_next_waiter_promptly,
    one_that_is_killed_while_it_waits_costs_its_provisional_time,
    the_long_dead_cost_nothing,
    one_that_is_stopped_is_passed_over_and_granted_nothing_twice,
    a_message_that_is_lost_costs_a_refresh,
    a_subscriber_that_is_killed_costs_no_more,
    a_foreign_deletion_is_found_by_the_refresh,
    an_expiry_is_found_by_the_refresh,
    a_server_that_hangs_delays_nobody_who_gives_up
];

/// What a refresh may cost, and whatever it finds.
const REFRESH: Duration = ms(1_000);

/// What a waiter that has died may cost: its provisional time, and the refresh that finds the lock free.
const DEATH: Duration = ms(4_000);

/// What a call may be later than a plain wait of the same length.
const SLACK: Duration = ms(300);

/// Takes the lock when its turn comes, and gives it back when told to by its key.
fn waiter() {
    let mutex = Client::open(&parameter("URL")).unwrap().fair_mutex("a");
    tell_parent("asks");
    let guard = lock_in_turn(&mutex);
    assert!(guard.is_held());
    tell_parent(guard.holder_id().as_str());
    unlock(guard);
}

fn fair(server: &Server) -> FairMutex {
    client(&server.url()).fair_mutex("a")
}

fn child_waits(server: &Server) -> Child {
    let before = queue_length(server);
    let child = Child::spawn("fair_faults::waiter", &[("URL", &server.url())]);
    wait_for_queue_length(server, before + 1);
    child
}

/// How long it takes from `act` on until the waiter has the lock.
#[track_caller]
fn has_it_within(
    limit: Duration,
    waiting: ScopedJoinHandle<'_, MutexGuard>,
    act: impl FnOnce(),
) -> MutexGuard {
    let timed = Control::run(limit, || {
        act();
        waiting.join().unwrap()
    });
    timed.no_later_than(SLACK)
}

fn basic_fair_release_wakes_the_next_waiter_promptly() {
    let server = Server::start();
    let guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, fair(&server));
        unlock(has_it_within(ms(0), waiting, || unlock(guard)));
    });
    wait_until_only_fences_remain(&server);
}

fn one_that_is_killed_while_it_waits_costs_its_provisional_time() {
    let server = Server::start();
    let guard = fair(&server).lock().unwrap();
    let mut child = child_waits(&server);
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, fair(&server));
        child.kill();
        let guard = has_it_within(DEATH, waiting, || {
            unlock(guard);
            assert_eq!(queue_length(&server), 1, "it was its turn");
        });
        unlock(guard);
    });
    wait_until_only_fences_remain(&server);
}

fn the_long_dead_cost_nothing() {
    let server = Server::start();
    let guard = fair(&server).lock().unwrap();
    let mut children: Vec<_> = (0..3).map(|_| child_waits(&server)).collect();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, fair(&server));
        children.iter_mut().for_each(Child::kill);
        // They have been dead for longer than a grant to them would last.
        let_pass(ms(3_200));
        assert_eq!(queue_length(&server), 4);
        unlock(has_it_within(ms(0), waiting, || unlock(guard)));
    });
    wait_until_only_fences_remain(&server);
}

fn a_queue_of_the_dead_is_no_queue_and_goes() {
    let server = Server::start();
    let guard = fair(&server).lock().unwrap();
    let mut child = child_waits(&server);
    child.kill();
    eventually(ms(10_000), || queue_length(&server) == 0);
    unlock(guard);
    wait_until_only_fences_remain(&server);
}

/// Its turn comes while it stands still, and goes: it waits again under another id, at the end.
fn one_that_is_stopped_is_passed_over_and_granted_nothing_twice() {
    let server = Server::start();
    let guard = fair(&server).lock().unwrap();
    let child = child_waits(&server);
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, fair(&server));
        child.pause();
        let mut granted = None;
        let guard = has_it_within(DEATH, waiting, || {
            unlock(guard);
            granted = holder(&server);
        });
        assert_ne!(granted, holder(&server));
        child.resume();
        wait_for_queue_length(&server, 1);
        assert_eq!(child.next_line(), "asks");
        assert_eq!(
            child.next_line_within(ms(300)),
            None,
            "the grant has lapsed"
        );
        assert!(guard.is_held());
        unlock(guard);
        assert_ne!(Some(child.next_line()), granted);
    });
    child.wait().succeeded();
    wait_until_only_fences_remain(&server);
}

fn a_message_that_is_lost_costs_a_refresh() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, client(&proxy.url()).fair_mutex("a"));
        proxy.set_nth(subscription_connection(&proxy), Traffic::DropReplies);
        unlock(has_it_within(REFRESH, waiting, || unlock(guard)));
    });
    wait_until_only_fences_remain(&server);
}

/// What was not heard is asked about as soon as messages are heard again, and not by the next refresh.
fn a_subscription_that_comes_back_is_a_reason_to_ask() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = fair(&server).lock().unwrap();
    let waiter = client(&proxy.url());
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, waiter.fair_mutex("a"));
        let subscription = subscription_connection(&proxy);
        proxy.set_nth(subscription, Traffic::DropReplies);
        let before = wait_for_refresh(&waiter);
        unlock(guard);
        proxy.set_nth(subscription, Traffic::Cut);
        unlock(waiting.join().unwrap());
        assert_eq!(refresh_count(&waiter), before);
        assert_eq!(waiter.stats().totals.wakes_reconnect, 1);
    });
    wait_until_only_fences_remain(&server);
}

/// The message comes when the grant has lapsed, and there is nobody to ask: it is not believed.
fn a_message_that_comes_late_makes_no_second_holder() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, client(&proxy.url()).fair_mutex("a"));
        let subscription = subscription_connection(&proxy);
        proxy.set_all(Traffic::StallReplies);
        let mine = holder(&server);
        unlock(guard);
        let granted = holder(&server);
        assert!(granted.is_some() && granted != mine);
        let other = fair(&server).try_lock_for(PATIENCE).unwrap();
        let other = other.expect("it lapses");
        proxy.set_nth(subscription, Traffic::Pass);
        // That nothing comes of it, only time shows.
        let_pass(ms(400));
        assert!(other.is_held() && !waiting.is_finished());
        proxy.set_all(Traffic::Pass);
        wait_for_queue_length(&server, 1);
        unlock(other);
        let guard = waiting.join().unwrap();
        assert_ne!(
            Some(guard.holder_id().to_string()),
            granted,
            "an id is granted once"
        );
        unlock(guard);
    });
    wait_until_only_fences_remain(&server);
}

fn a_subscriber_that_is_killed_costs_no_more() {
    let server = Server::start();
    let guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, fair(&server));
        let guard = has_it_within(REFRESH, waiting, || {
            server.run("CLIENT", &["KILL", "TYPE", "pubsub"]);
            unlock(guard);
        });
        unlock(guard);
    });
    wait_until_only_fences_remain(&server);
}

fn a_foreign_deletion_is_found_by_the_refresh() {
    let server = Server::start();
    let _guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, fair(&server));
        let guard = has_it_within(REFRESH, waiting, || server.run("DEL", &["lock:a"]));
        assert!(guard.is_held());
        unlock(guard);
    });
    wait_until_only_fences_remain(&server);
}

fn an_expiry_is_found_by_the_refresh() {
    let server = Server::start();
    server.run("SET", &["lock:a", "somebody", "PX", "60000"]);
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, fair(&server));
        let guard = has_it_within(REFRESH + ms(200), waiting, || {
            server.run("PEXPIRE", &["lock:a", "200"])
        });
        unlock(guard);
    });
    wait_until_only_fences_remain(&server);
}

/// Whoever waited keeps waiting, if not the place.
fn a_queue_that_is_deleted_is_entered_again() {
    let server = Server::start();
    for keys in [&[QUEUE][..], &[PLACES], &[QUEUE, PLACES]] {
        let guard = fair(&server).lock().unwrap();
        thread::scope(|scope| {
            let waiting: Vec<_> = (0..2)
                .map(|_| spawn_subscribed_waiter(scope, &server, fair(&server)))
                .collect();
            server.run("DEL", keys);
            // Not both at once: one of them finds what the other has made of it.
            let all = || {
                let places: usize = redis::cmd("HLEN")
                    .arg(PLACES)
                    .query(&mut server.connection())
                    .unwrap();
                queue_length(&server) >= 2 && places == 2
            };
            eventually(PATIENCE, all);
            unlock(guard);
            for waiting in waiting {
                unlock(waiting.join().unwrap());
            }
        });
        wait_until_only_fences_remain(&server);
    }
}

fn a_server_that_forgets_is_entered_again() {
    let mut server = Server::start();
    let guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, fair(&server));
        drop(guard);
        unlock(waiting.join().unwrap());
    });
    let guard = fair(&server).lock().unwrap();
    let mutex = fair(&server);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| lock_in_turn(&mutex));
        wait_for_queue_length(&server, 1);
        server.restart();
        unlock(waiting.join().unwrap());
    });
    drop(guard);
    wait_until_only_fences_remain(&server);
}

/// An enter without an answer is undone, be it a lock or a place that it made.
#[track_caller]
fn enters_in_vain(traffic: Traffic, is_held: bool) {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = is_held.then(|| fair(&server).lock().unwrap());
    let clients: Vec<_> = (0..5).map(|_| warmed_up(client(&proxy.url()))).collect();
    let scripts = server.calls(&["rpush", "lindex"]);
    proxy.set_all(traffic);
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
    proxy.set_all(Traffic::Pass);
    eventually(ms(1_500), || {
        queue_length(&server) == 0 && holder(&server).is_some() == is_held
    });
    if let Some(guard) = guard {
        unlock(guard);
    }
    wait_until_only_fences_remain(&server);
}

fn enters_whose_replies_vanish_leave_nothing_behind() {
    for is_held in [false, true] {
        enters_in_vain(Traffic::DropReplies, is_held);
    }
}

fn enters_whose_replies_stall_leave_nothing_behind() {
    for is_held in [false, true] {
        enters_in_vain(Traffic::StallReplies, is_held);
    }
}

fn enters_on_connections_that_end_leave_nothing_behind() {
    for is_held in [false, true] {
        enters_in_vain(Traffic::CutOnReply, is_held);
    }
}

/// A call that has more patience enters again under another id, and gets the lock.
fn an_enter_without_an_answer_is_tried_again() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = fair(&server).lock().unwrap();
    let client = warmed_up(client(&proxy.url()));
    proxy.set_open(Traffic::DropReplies);
    thread::scope(|scope| {
        let mutex = client.fair_mutex("a");
        let waiting = scope.spawn(move || lock_in_turn(&mutex));
        eventually(PATIENCE, || server.calls(&["rpush"]) >= 2);
        wait_for_queue_length(&server, 1);
        unlock(guard);
        unlock(waiting.join().unwrap());
    });
    wait_until_only_fences_remain(&server);
}

/// No answer to the first renewal comes: the lease is held as long as its provisional time, and renewed again.
fn a_first_renewal_without_an_answer_is_sent_again() {
    let server = Server::start();
    for (traffic, auto_renew) in [
        (Traffic::DropReplies, true),
        (Traffic::StallRequests, false),
    ] {
        let proxy = Proxy::new(&server);
        let guard = fair(&server).lock().unwrap();
        let client = client(&proxy.url());
        let mutex = client.fair_mutex("a").auto_renew(auto_renew);
        thread::scope(|scope| {
            let waiting = spawn_subscribed_waiter(scope, &server, mutex);
            let hears = proxy.connections_that_sent("SUBSCRIBE");
            // First: one may come while the others are gone through.
            proxy.set_future(traffic);
            let others = (0..proxy.connections()).filter(|n| !hears.contains(n));
            others.for_each(|n| proxy.set_nth(n, traffic));
            unlock(guard);
            let granted = waiting.join().unwrap();
            eventually(PATIENCE, || client.stats().totals.renewals_failed > 0);
            assert!(
                granted.remaining().unwrap() <= ms(2_500),
                "a renewal that fails is no loss"
            );
            proxy.set_all(Traffic::Pass);
            eventually(ms(3_000), || {
                granted.remaining().is_some_and(|left| left > ms(8_000))
            });
            unlock(granted);
        });
    }
    wait_until_only_fences_remain(&server);
}

/// Its first renewal never gets through: the lock is lost when its provisional time is over, and said to be.
fn a_grant_that_is_never_renewed_is_known_to_be_lost() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, client(&proxy.url()).fair_mutex("a"));
        proxy.set_all(Traffic::StallRequests);
        unlock(guard);
        let granted = waiting.join().unwrap();
        assert!(granted.is_held());
        let lost = granted.lost();
        assert!(lost.recv_timeout(ms(3_500)).is_ok());
        assert!(!granted.is_held());
        proxy.set_all(Traffic::Pass);
    });
    wait_until_only_fences_remain(&server);
}

fn leaving_without_an_answer_is_repeated() {
    for traffic in [
        Traffic::DropReplies,
        Traffic::StallRequests,
        Traffic::CutOnReply,
    ] {
        let server = Server::start();
        let proxy = Proxy::new(&server);
        let guard = fair(&server).lock().unwrap();
        let client = warmed_up(client(&proxy.url()));
        thread::scope(|scope| {
            let mutex = client.fair_mutex("a");
            let gives_up = scope.spawn(move || mutex.try_lock_for(ms(600)).unwrap());
            wait_for_queue_length(&server, 1);
            server.wait_until_waiter_sleeps("lock_release:a");
            proxy.set_all(traffic);
            assert!(gives_up.join().unwrap().is_none(), "it was seen to be held");
            proxy.set_all(Traffic::Pass);
            eventually(ms(1_500), || queue_length(&server) == 0);
        });
        unlock(guard);
        wait_until_only_fences_remain(&server);
    }
}

/// Deadlines hold whatever the server does. A refresh of a place does not say for how long the lock will be held, so one
/// without an answer leaves nothing to say `None` on.
fn a_server_that_hangs_delays_nobody_who_gives_up() {
    let server = Server::start();
    let guard = fair(&server).lock().unwrap();
    let [patient, hasty] = [(), ()].map(|()| client(&server.url()));
    thread::scope(|scope| {
        let spawn_waiter = |client: &Client, limit| {
            let mutex = client.fair_mutex("a");
            scope.spawn(move || Control::run(limit, || mutex.try_lock_for(limit)))
        };
        let unknown = spawn_waiter(&patient, ms(3_000));
        // A refresh was answered, and the next is due within a second.
        eventually(ms(2_500), || patient.stats().totals.spurious_wakes > 0);
        // This call is over before its first refresh is due.
        let held = spawn_waiter(&hasty, ms(700));
        wait_for_queue_length(&server, 2);
        server.pause();
        let [held, unknown] =
            [held, unknown].map(|waits| waits.join().unwrap().no_later_than(ms(100)));
        assert!(
            held.unwrap().is_none(),
            "it was held when the server last said so"
        );
        expect_unreachable(unknown);
        server.resume();
    });
    drop(guard);
    wait_until_only_fences_remain(&server);
}

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
        wait_for_queue_length(&server, 2);
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
    eventually(ms(5_000), || queue_length(&server) == 0);
}

/// What the lock protects: turns away whoever was overtaken.
const WRITE: &str = "
if tonumber(ARGV[1]) < tonumber(redis.call('GET', 'newest') or 0) then return 0 end
redis.call('SET', 'newest', ARGV[1])
return redis.call('INCR', 'writes')
";

/// Writes under the lock over and over. One that surely holds it is never turned away.
fn member() {
    let client = Client::builder()
        .url(parameter("URL"))
        .ttl(TTL)
        .build()
        .unwrap();
    let mutex = client.fair_mutex("a");
    let mut resource = redis::Client::open(parameter("URL"))
        .unwrap()
        .get_connection()
        .unwrap();
    tell_parent("asks");
    loop {
        let guard = mutex.lock().unwrap();
        let token = guard.fencing_token().value();
        let mut write = redis::cmd("EVAL");
        let written: u64 = write
            .arg(WRITE)
            .arg(0)
            .arg(token)
            .query(&mut resource)
            .unwrap();
        if written == 0 && guard.is_held() {
            redis::cmd("INCR")
                .arg("overtaken")
                .exec(&mut resource)
                .unwrap();
        }
        drop(guard);
    }
}

const TTL: Duration = ms(800);

/// Processes that are killed and stopped, holding, waiting or as their turn comes.
fn a_fleet_goes_on_in_order_whatever_befalls_its_members() {
    let server = Server::start();
    let url = server.url();
    let given = [("URL", &*url)];
    let mut members: Vec<_> = (0..6)
        .map(|_| Child::spawn("fair_faults::member", &given))
        .collect();
    let number = |key: &str| -> u64 {
        let mut get = redis::cmd("GET");
        let number: Option<u64> = get.arg(key).query(&mut server.connection()).unwrap();
        number.unwrap_or(0)
    };
    for round in 0..12_usize {
        // One of each, and the next ones in every round.
        let n = round % members.len();
        members[n].pause();
        let dead = (n + 3) % members.len();
        members[dead].kill();
        members[dead] = Child::spawn("fair_faults::member", &given);
        let before = number("writes");
        // A holder that was killed, one that was stopped, one that had just got it of each kind; and a refresh.
        eventually(4 * TTL + REFRESH + SLACK, || number("writes") > before + 10);
        members[n].resume();
    }
    assert_eq!(
        number("overtaken"),
        0,
        "by somebody, while it held the lock"
    );
    members.iter_mut().for_each(Child::kill);
    for key in ["newest", "writes", "overtaken"] {
        server.run("DEL", &[key]);
    }
    eventually(ms(20_000), || only_fences_remain(&server));
}
