//! Promise: a dead, paused or disconnected process delays the waiters in a lock's queue by a
//! bounded time, and no turn is given to two waiters.
//!
//! The tests that kill or stop whole processes run for plain locks, too.

use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use leasehold::{Client, Error, FairMutex, MutexGuard};
use support::fair::{
    PATIENCE, PLACES, QUEUE, holder, lock_in_turn, only_fences_remain, push_place, queue_length,
    refresh_count, spawn_in_queue, spawn_subscribed_waiter, spawn_waiter, subscription_connection,
    wait_for_queue_length, wait_for_refresh, wait_until_only_fences_remain, warmed_up,
};
use support::{
    COMMAND_TIMEOUT, Child, Control, Proxy, SLACK, Server, Traffic, assert_released, builder,
    client, eventually, let_pass, ms, parameter, tell_parent, useful_wakes,
};

support::roles![waiter, contender];

support::tests![
    contenders_progress_in_order_while_some_are_killed_or_paused,
    plain_contenders_progress_in_order_while_some_are_killed_or_paused,
    killed_waiters_delay_nobody,
    waiter_killed_at_the_release_costs_at_most_its_grant,
    queue_of_dead_waiters_is_removed,
    unanswered_leave_is_repeated,
    paused_waiter_is_skipped_and_granted_under_a_new_id,
    survivors_are_granted_in_order_among_killed_and_paused_waiters,
    hanging_server_delays_no_call_beyond_its_deadline,
    basic_fair_release_wakes_the_next_waiter_promptly,
    expiry_is_noticed_when_it_happens,
    waiters_dead_for_long_cost_nothing,
    lost_grant_message_costs_at_most_a_refresh,
    killed_subscription_costs_at_most_a_refresh,
    refresh_finds_a_foreign_deletion,
    refresh_finds_an_expiry,
    restored_subscription_triggers_a_refresh,
    late_grant_message_makes_no_second_holder,
    waiters_reenter_a_deleted_queue,
    waiters_reenter_the_queue_of_a_server_that_lost_its_data,
    enters_with_dropped_replies_leave_nothing_behind,
    enters_with_stalled_replies_leave_nothing_behind,
    enters_on_closed_connections_leave_nothing_behind,
    unanswered_enter_is_retried,
    enter_that_fails_by_a_grant_to_another_leaves_no_place,
    unanswered_first_renewal_is_repeated,
    grant_that_cannot_be_renewed_is_reported_lost,
    long_outage_ends_the_wait,
    waiter_without_a_subscription_refreshes_more_often
];

/// The longest time until the next refresh of a place.
const REFRESH: Duration = ms(1_000);

/// The longest delay by a dead waiter: the provisional lease of a grant to it, and a refresh.
const DEATH: Duration = ms(4_000);

/// A child's role: waits for the lock, reports its holder id and token, and releases the lock.
fn waiter() {
    let kind = Kind::of_this_child();
    let client = Client::open(parameter("URL")).unwrap();
    tell_parent("waiting");
    let guard = kind.lock(&client);
    assert!(guard.is_held());
    tell_parent(guard.holder_id().as_str());
    tell_parent(&guard.fencing_token().to_string());
    assert_released(guard.unlock());
}

/// The kinds of lock whose clients wait in the queue.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Plain,
    Fair,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Plain, Self::Fair];

    fn of_this_child() -> Self {
        let name = parameter("KIND");
        let mut kinds = Self::ALL.into_iter();
        let kind = kinds.find(|kind| kind.name() == name);
        kind.expect("the name of a kind")
    }

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Fair => "fair",
        }
    }

    /// Waits for the lock of a client for at most [`PATIENCE`].
    #[track_caller]
    fn lock(self, client: &Client) -> MutexGuard {
        match self {
            Self::Plain => {
                let guard = client.mutex("a").try_lock_for(PATIENCE).unwrap();
                guard.expect("the waiter gets its turn")
            }
            Self::Fair => lock_in_turn(&client.fair_mutex("a")),
        }
    }

    /// Locks with its own client.
    #[track_caller]
    fn lock_anew(self, server: &Server) -> MutexGuard {
        self.lock(&client(&server.url()))
    }

    fn spawn(self, server: &Server, role: &str) -> Child {
        Child::spawn(role, &[("URL", &server.url()), ("KIND", self.name())])
    }

    /// Starts a process that waits, and returns once it has a place.
    fn spawn_waiting_child(self, server: &Server) -> Child {
        let before = queue_length(server);
        let child = self.spawn(server, "fair_faults::waiter");
        wait_for_queue_length(server, before + 1);
        child
    }

    /// Starts a thread that waits, and returns once it has a place and its client is subscribed.
    fn spawn_waiter<'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        server: &Server,
    ) -> ScopedJoinHandle<'scope, MutexGuard> {
        let client = client(&server.url());
        let waiting = spawn_in_queue(scope, server, QUEUE, move || self.lock(&client));
        server.wait_until_waiter_sleeps("lock_release:a");
        waiting
    }
}

fn fair(server: &Server) -> FairMutex {
    client(&server.url()).fair_mutex("a")
}

/// Calls `act` and asserts that the waiter has the lock within `limit`.
#[track_caller]
fn time_until_granted(
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
        assert_released(
            time_until_granted(ms(0), waiting, || assert_released(guard.unlock())).unlock(),
        );
    });
    wait_until_only_fences_remain(&server);
}

/// The server may grant the lock to the killed waiter before it notices the closed connection.
fn waiter_killed_at_the_release_costs_at_most_its_grant() {
    let server = Server::start();
    for kind in Kind::ALL {
        let guard = kind.lock_anew(&server);
        let mut child = kind.spawn_waiting_child(&server);
        thread::scope(|scope| {
            let waiting = kind.spawn_waiter(scope, &server);
            child.kill();
            let guard = time_until_granted(DEATH, waiting, || {
                assert_released(guard.unlock());
                assert_eq!(queue_length(&server), 1, "one waiter has the grant");
            });
            assert_released(guard.unlock());
        });
        wait_until_only_fences_remain(&server);
    }
}

/// Asserts that a waiter behind three killed ones is granted the lock at its release.
#[track_caller]
fn assert_granted_behind_killed_waiters(
    kind: Kind,
    server: &Server,
    before_release: impl FnOnce(),
) {
    let guard = kind.lock_anew(server);
    let mut children: Vec<_> = (0..3).map(|_| kind.spawn_waiting_child(server)).collect();
    thread::scope(|scope| {
        let waiting = kind.spawn_waiter(scope, server);
        children.iter_mut().for_each(Child::kill);
        before_release();
        assert_released(
            time_until_granted(ms(0), waiting, || assert_released(guard.unlock())).unlock(),
        );
    });
}

/// The server knows that nobody listens to their inboxes any more, and grants to the next waiter.
fn killed_waiters_delay_nobody() {
    for kind in Kind::ALL {
        let server = Server::start();
        assert_granted_behind_killed_waiters(kind, &server, || {
            let inboxes = || {
                let mut channels = redis::cmd("PUBSUB");
                let channels: Vec<String> = channels
                    .arg(&["CHANNELS", "leasehold:*"])
                    .query(&mut server.connection())
                    .unwrap();
                channels.len()
            };
            eventually(PATIENCE, || inboxes() == 1);
        });
        // The places of the killed waiters expire.
        eventually(ms(10_000), || only_fences_remain(&server));
    }
}

/// The lease of a killed holder ends without a message. A waiter refreshes its place when the key
/// expires, not at the next regular refresh.
fn expiry_is_noticed_when_it_happens() {
    let server = Server::start();
    server.run("SET", &["lock:a", "another program", "PX", "2000"]);
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, fair(&server));
        assert_released(time_until_granted(ms(2_000), waiting, || {}).unlock());
    });
    wait_until_only_fences_remain(&server);
}

/// A client without a subscription learns of a grant only from a refresh.
fn waiter_without_a_subscription_refreshes_more_often() {
    let server = Server::start();
    let rules = "SETUSER default resetchannels";
    let guard = fair(&server).lock().unwrap();
    server.run("ACL", &rules.split(' ').collect::<Vec<_>>());
    let client = client(&server.url());
    thread::scope(|scope| {
        let mutex = client.fair_mutex("a");
        let waiting = scope.spawn(move || lock_in_turn(&mutex));
        wait_for_refresh(&client);
        let before = refresh_count(&client);
        // Six regular refreshes take more than 5 s.
        eventually(ms(4_500), || refresh_count(&client) >= before + 6);
        assert_released(guard.unlock());
        assert_released(waiting.join().unwrap().unlock());
    });
}

/// Sets the last refresh of the first places in the queue to an earlier time.
fn make_older(server: &Server, places: isize, by_ms: u64) {
    let mut connection = server.connection();
    let mut ids = redis::cmd("LRANGE");
    let ids: Vec<String> = ids
        .arg(QUEUE)
        .arg(&[0, places - 1])
        .query(&mut connection)
        .unwrap();
    for id in ids {
        let mut get = redis::cmd("HGET");
        let place: String = get.arg(&[PLACES, &id]).query(&mut connection).unwrap();
        let (refreshed, rest) = place.split_once(' ').unwrap();
        let refreshed = refreshed.parse::<u64>().unwrap() - by_ms;
        server.run("HSET", &[PLACES, &id, &format!("{refreshed} {rest}")]);
    }
}

fn waiters_dead_for_long_cost_nothing() {
    for kind in Kind::ALL {
        let server = Server::start();
        assert_granted_behind_killed_waiters(kind, &server, || {
            // As if the waiters had been dead for longer than a provisional lease.
            make_older(&server, 3, 3_200);
            assert_eq!(queue_length(&server), 4);
        });
        wait_until_only_fences_remain(&server);
    }
}

fn queue_of_dead_waiters_is_removed() {
    let server = Server::start();
    for kind in Kind::ALL {
        let guard = kind.lock_anew(&server);
        let mut child = kind.spawn_waiting_child(&server);
        child.kill();
        eventually(ms(10_000), || queue_length(&server) == 0);
        assert_released(guard.unlock());
        wait_until_only_fences_remain(&server);
    }
}

/// The grant to a paused waiter expires. Once resumed, it rejoins at the back under a new holder
/// id.
fn paused_waiter_is_skipped_and_granted_under_a_new_id() {
    Kind::ALL
        .into_iter()
        .for_each(assert_paused_waiter_is_skipped);
}

#[track_caller]
fn assert_paused_waiter_is_skipped(kind: Kind) {
    let server = Server::start();
    let guard = kind.lock_anew(&server);
    let child = kind.spawn_waiting_child(&server);
    thread::scope(|scope| {
        let waiting = kind.spawn_waiter(scope, &server);
        child.pause();
        let mut granted = None;
        let guard = time_until_granted(DEATH, waiting, || {
            assert_released(guard.unlock());
            granted = holder(&server);
        });
        assert!(granted.is_some() && granted != holder(&server));
        child.resume();
        wait_for_queue_length(&server, 1);
        assert_eq!(child.next_line(), "waiting");
        assert_eq!(
            child.next_line_within(ms(300)),
            None,
            "the grant has expired"
        );
        assert!(guard.is_held());
        assert_released(guard.unlock());
        assert_ne!(Some(child.next_line()), granted);
    });
    child.wait().succeeded();
    wait_until_only_fences_remain(&server);
}

/// Only the first dead or paused waiter delays the others: when the grant to it expires, the places
/// of all dead and paused waiters have expired, too.
fn survivors_are_granted_in_order_among_killed_and_paused_waiters() {
    for kind in Kind::ALL {
        let server = Server::start();
        let guard = kind.lock_anew(&server);
        let mut waiters: Vec<_> = (0..8).map(|_| kind.spawn_waiting_child(&server)).collect();
        let paused = [0, 3];
        paused.iter().for_each(|n| waiters[*n].pause());
        for n in [2, 5] {
            waiters[n].kill();
        }
        let token_of = |n: usize| -> u64 {
            assert_eq!(waiters[n].next_line(), "waiting");
            waiters[n].next_line();
            waiters[n].next_line().parse().unwrap()
        };
        // The four survivors are other processes, each of which must be woken.
        let in_turn = Control::run(DEATH + 4 * ms(250), || {
            assert_released(guard.unlock());
            [1, 4, 6, 7].map(token_of)
        });
        let tokens = in_turn.no_later_than(SLACK);
        assert!(tokens.is_sorted(), "{kind:?}: {tokens:?}");
        paused.iter().for_each(|n| waiters[*n].resume());
        for n in paused {
            assert!(token_of(n) > tokens[3], "{kind:?}: it rejoins at the back");
        }
        wait_until_only_fences_remain(&server);
    }
}

fn lost_grant_message_costs_at_most_a_refresh() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, client(&proxy.url()).fair_mutex("a"));
        proxy.set_nth(subscription_connection(&proxy), Traffic::DropReplies);
        assert_released(
            time_until_granted(REFRESH, waiting, || assert_released(guard.unlock())).unlock(),
        );
    });
    wait_until_only_fences_remain(&server);
}

/// A waiter refreshes its place as soon as it is subscribed again, not at the next regular refresh.
fn restored_subscription_triggers_a_refresh() {
    // A round in which the machine took longer than a refresh interval shows nothing.
    assert!((0..5).any(|_| restored_subscription_precedes_the_next_refresh()));
}

fn restored_subscription_precedes_the_next_refresh() -> bool {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = fair(&server).lock().unwrap();
    let waiter = client(&proxy.url());
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, waiter.fair_mutex("a"));
        let subscription = subscription_connection(&proxy);
        proxy.set_nth(subscription, Traffic::DropReplies);
        wait_for_refresh(&waiter);
        let before = useful_wakes(&waiter);
        assert_released(guard.unlock());
        proxy.set_nth(subscription, Traffic::Cut);
        assert_released(waiting.join().unwrap().unlock());
        wait_until_only_fences_remain(&server);
        useful_wakes(&waiter) > before
    })
}

/// The message arrives after the grant has expired, while all other replies are held back. The
/// waiter must ignore the message.
fn late_grant_message_makes_no_second_holder() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, client(&proxy.url()).fair_mutex("a"));
        let subscription = subscription_connection(&proxy);
        proxy.set_all(Traffic::StallReplies);
        let mine = holder(&server);
        assert_released(guard.unlock());
        let granted = holder(&server);
        assert!(granted.is_some() && granted != mine);
        let other = fair(&server).try_lock_for(PATIENCE).unwrap();
        let other = other.expect("the grant expires");
        proxy.set_nth(subscription, Traffic::Pass);
        // Time for the message to arrive and, wrongly, to be believed.
        let_pass(ms(400));
        assert!(other.is_held() && !waiting.is_finished());
        proxy.set_all(Traffic::Pass);
        wait_for_queue_length(&server, 1);
        assert_released(other.unlock());
        let guard = waiting.join().unwrap();
        assert_ne!(
            Some(guard.holder_id().to_string()),
            granted,
            "the expired grant's id is not used again"
        );
        assert_released(guard.unlock());
    });
    wait_until_only_fences_remain(&server);
}

fn killed_subscription_costs_at_most_a_refresh() {
    let server = Server::start();
    let guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, fair(&server));
        let guard = time_until_granted(REFRESH, waiting, || {
            server.run("CLIENT", &["KILL", "TYPE", "pubsub"]);
            assert_released(guard.unlock());
        });
        assert_released(guard.unlock());
    });
    wait_until_only_fences_remain(&server);
}

fn refresh_finds_a_foreign_deletion() {
    let server = Server::start();
    let _guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, fair(&server));
        let guard = time_until_granted(REFRESH, waiting, || server.run("DEL", &["lock:a"]));
        assert!(guard.is_held());
        assert_released(guard.unlock());
    });
    wait_until_only_fences_remain(&server);
}

fn refresh_finds_an_expiry() {
    let server = Server::start();
    server.run("SET", &["lock:a", "another program", "PX", "60000"]);
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, fair(&server));
        let guard = time_until_granted(REFRESH + ms(200), waiting, || {
            server.run("PEXPIRE", &["lock:a", "200"])
        });
        assert_released(guard.unlock());
    });
    wait_until_only_fences_remain(&server);
}

/// Waiters keep waiting, though in any order.
fn waiters_reenter_a_deleted_queue() {
    let server = Server::start();
    for keys in [&[QUEUE][..], &[PLACES], &[QUEUE, PLACES]] {
        let guard = fair(&server).lock().unwrap();
        thread::scope(|scope| {
            // Each waiter releases the lock itself: either may get it first.
            for _ in 0..2 {
                let waiting = spawn_subscribed_waiter(scope, &server, fair(&server));
                scope.spawn(|| assert_released(waiting.join().unwrap().unlock()));
            }
            server.run("DEL", keys);
            // The waiters re-enter one after the other, so the queue may hold additional places.
            let all = || {
                let places: usize = redis::cmd("HLEN")
                    .arg(PLACES)
                    .query(&mut server.connection())
                    .unwrap();
                queue_length(&server) >= 2 && places == 2
            };
            eventually(PATIENCE, all);
            assert_released(guard.unlock());
        });
        wait_until_only_fences_remain(&server);
    }
}

fn waiters_reenter_the_queue_of_a_server_that_lost_its_data() {
    let mut server = Server::start();
    let guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, fair(&server));
        drop(guard);
        assert_released(waiting.join().unwrap().unlock());
    });
    let guard = fair(&server).lock().unwrap();
    let mutex = fair(&server);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| lock_in_turn(&mutex));
        wait_for_queue_length(&server, 1);
        server.restart();
        assert_released(waiting.join().unwrap().unlock());
    });
    drop(guard);
    wait_until_only_fences_remain(&server);
}

/// An unanswered enter is undone, whether it acquired the lock or a place in the queue.
///
/// Expiry cannot hide a missing undo: a lease lasts longer than the test waits, and the queue lasts
/// while its first waiter refreshes its place.
#[track_caller]
fn assert_unanswered_enters_are_undone(traffic: Traffic, is_held: bool) {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = is_held.then(|| fair(&server).lock().unwrap());
    let client = || builder(&proxy.url()).ttl(10 * PATIENCE).build().unwrap();
    let clients: Vec<_> = (0..5).map(|_| warmed_up(client())).collect();
    thread::scope(|scope| {
        let first = is_held.then(|| spawn_waiter(scope, &server, fair(&server)));
        assert_enters_are_undone(&server, &proxy, &clients, traffic, is_held);
        if let (Some(guard), Some(first)) = (guard, first) {
            assert_released(guard.unlock());
            assert_released(first.join().unwrap().unlock());
        }
    });
    wait_until_only_fences_remain(&server);
}

#[track_caller]
fn assert_enters_are_undone(
    server: &Server,
    proxy: &Proxy,
    clients: &[Client],
    traffic: Traffic,
    is_held: bool,
) {
    let before = server.calls(&["rpush", "lindex"]);
    proxy.set_all(traffic);
    thread::scope(|scope| {
        for client in clients {
            scope.spawn(|| {
                let answer = client.fair_mutex("a").try_lock_for(COMMAND_TIMEOUT);
                assert!(
                    matches!(answer, Err(Error::Unreachable { .. })),
                    "{answer:?}"
                );
            });
        }
    });
    assert!(
        server.calls(&["rpush", "lindex"]) > before,
        "enters have run"
    );
    proxy.set_all(Traffic::Pass);
    // Only the first holder and the first waiter remain, if the lock was held.
    eventually(PATIENCE, || {
        queue_length(server) == usize::from(is_held) && holder(server).is_some() == is_held
    });
}

fn enters_with_dropped_replies_leave_nothing_behind() {
    for is_held in [false, true] {
        assert_unanswered_enters_are_undone(Traffic::DropReplies, is_held);
    }
}

fn enters_with_stalled_replies_leave_nothing_behind() {
    for is_held in [false, true] {
        assert_unanswered_enters_are_undone(Traffic::StallReplies, is_held);
    }
}

fn enters_on_closed_connections_leave_nothing_behind() {
    for is_held in [false, true] {
        assert_unanswered_enters_are_undone(Traffic::CutOnReply, is_held);
    }
}

/// A call with a later deadline enters again under a new holder id and gets the lock.
fn unanswered_enter_is_retried() {
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
        assert_released(guard.unlock());
        assert_released(waiting.join().unwrap().unlock());
    });
    wait_until_only_fences_remain(&server);
}

/// The fence has too few tokens left for the waiter in front, and enough for the call behind it.
/// The waiter keeps its place until its own client gets the error.
fn enter_that_fails_by_a_grant_to_another_leaves_no_place() {
    let server = Server::start();
    server.run("SET", &["leasehold:fence:{lock:a}", "9007199254740980"]);
    push_place(&server, "in front", "33", "a ");
    let before = server.calls(&["lrem"]);
    let failed = client(&server.url()).fair_mutex("a").try_lock_for(PATIENCE);
    assert!(matches!(failed, Err(Error::BadFence { .. })), "{failed:?}");
    eventually(PATIENCE, || server.calls(&["lrem"]) > before);
    let first = redis::cmd("LRANGE")
        .arg((QUEUE, 0, -1))
        .query(&mut server.connection());
    assert_eq!(first, Ok(vec!["in front".to_owned()]));
}

/// If the first renewal gets no reply, it is repeated while the provisional lease lasts.
fn unanswered_first_renewal_is_repeated() {
    for (traffic, auto_renew) in [
        (Traffic::DropReplies, true),
        (Traffic::StallRequests, false),
    ] {
        // A round in which the machine took longer than the provisional lease shows nothing.
        assert!((0..5).any(|_| first_renewal_is_repeated(traffic, auto_renew)));
    }
}

/// Returns whether the lease lasted until it was renewed.
fn first_renewal_is_repeated(traffic: Traffic, auto_renew: bool) -> bool {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = fair(&server).lock().unwrap();
    let client = client(&proxy.url());
    let mutex = client.fair_mutex("a").auto_renew(auto_renew);
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, mutex);
        let subscribed = proxy.connections_that_sent("SUBSCRIBE");
        // Before the loop: a new connection may come during it.
        proxy.set_future(traffic);
        let others = (0..proxy.connections()).filter(|n| !subscribed.contains(n));
        others.for_each(|n| proxy.set_nth(n, traffic));
        assert_released(guard.unlock());
        let granted = waiting.join().unwrap();
        eventually(PATIENCE, || client.stats().totals.renewals_failed > 0);
        let provisional = granted.remaining();
        assert!(provisional.is_none_or(|left| left <= ms(2_500)));
        proxy.set_all(Traffic::Pass);
        eventually(PATIENCE, || {
            granted.remaining().is_none_or(|left| left > ms(8_000))
        });
        let is_renewed = granted.is_held();
        if is_renewed {
            assert_released(granted.unlock());
            wait_until_only_fences_remain(&server);
        }
        is_renewed
    })
}

/// If the first renewal never reaches the server, the loss is reported when the provisional lease
/// expires.
fn grant_that_cannot_be_renewed_is_reported_lost() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let guard = fair(&server).lock().unwrap();
    thread::scope(|scope| {
        let waiting = spawn_subscribed_waiter(scope, &server, client(&proxy.url()).fair_mutex("a"));
        proxy.set_all(Traffic::StallRequests);
        assert_released(guard.unlock());
        let granted = waiting.join().unwrap();
        assert!(granted.is_held());
        let lost = granted.lost();
        assert!(lost.recv_timeout(PATIENCE).is_ok());
        assert!(!granted.is_held());
        proxy.set_all(Traffic::Pass);
    });
    wait_until_only_fences_remain(&server);
}

fn unanswered_leave_is_repeated() {
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
            // While this waiter refreshes its place, the queue does not expire with the others.
            let witness = spawn_subscribed_waiter(scope, &server, fair(&server));
            let mutex = client.fair_mutex("a");
            let gives_up = scope.spawn(move || mutex.try_lock_for(ms(3_000)).unwrap());
            wait_for_queue_length(&server, 2);
            eventually(PATIENCE, || server.subscribers("lock_release:a") == 2);
            server.wait_until_waiter_sleeps("lock_release:a");
            proxy.set_all(traffic);
            let answer = gives_up.join().unwrap();
            assert!(answer.is_err(), "the call has seen the holder");
            proxy.set_all(Traffic::Pass);
            wait_for_queue_length(&server, 1);
            assert_released(guard.unlock());
            assert_released(witness.join().unwrap().unlock());
        });
        wait_until_only_fences_remain(&server);
    }
}

/// Calls are refused at their deadline, although the server hangs.
///
/// The replies to the first command and to a refresh both tell how long the lock's key lasts. If
/// that is longer than the call, a later refresh without a reply does not matter.
fn hanging_server_delays_no_call_beyond_its_deadline() {
    let server = Server::start();
    let guard = fair(&server).lock().unwrap();
    let [patient, hasty] = [(), ()].map(|()| client(&server.url()));
    thread::scope(|scope| {
        let spawn_waiter = |client: &Client, limit| {
            let mutex = client.fair_mutex("a");
            scope.spawn(move || Control::run(limit, || mutex.try_lock_for(limit)))
        };
        let refreshed = spawn_waiter(&patient, ms(4_000));
        // One refresh was answered; the next is due within a second.
        wait_for_queue_length(&server, 1);
        wait_for_refresh(&patient);
        // This call ends before its first refresh is due.
        let entered = spawn_waiter(&hasty, ms(700));
        wait_for_queue_length(&server, 2);
        // The server may write this test's reply before that to the call that entered. Both are
        // written before it reads the next command.
        server.run("PING", &[]);
        server.pause();
        for waiter in [entered, refreshed] {
            let outcome = waiter.join().unwrap().no_later_than(SLACK);
            assert!(outcome.unwrap().is_err());
        }
        server.resume();
    });
    drop(guard);
    wait_until_only_fences_remain(&server);
}

fn long_outage_ends_the_wait() {
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

/// Writes to the protected resource, which rejects an outdated token.
const WRITE: &str = "
if tonumber(ARGV[1]) < tonumber(redis.call('GET', 'newest') or 0) then return 0 end
redis.call('SET', 'newest', ARGV[1])
return redis.call('INCR', 'writes')
";

/// A child's role: writes under the lock in a loop, and counts rejected writes of a held lease.
fn contender() {
    let client = Client::builder()
        .url(parameter("URL"))
        .ttl(TTL)
        .build()
        .unwrap();
    let kind = Kind::of_this_child();
    let mut resource = redis::Client::open(parameter("URL"))
        .unwrap()
        .get_connection()
        .unwrap();
    tell_parent("waiting");
    loop {
        let guard = kind.lock(&client);
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

/// Processes are killed and paused while they hold the lock, wait for it or are granted it.
fn contenders_progress_in_order_while_some_are_killed_or_paused() {
    assert_contenders_progress(Kind::Fair);
}

fn plain_contenders_progress_in_order_while_some_are_killed_or_paused() {
    assert_contenders_progress(Kind::Plain);
}

#[track_caller]
fn assert_contenders_progress(kind: Kind) {
    let server = Server::start();
    let spawn = || kind.spawn(&server, "fair_faults::contender");
    let mut processes: Vec<_> = (0..6).map(|_| spawn()).collect();
    let number = |key: &str| -> u64 {
        let mut get = redis::cmd("GET");
        let number: Option<u64> = get.arg(key).query(&mut server.connection()).unwrap();
        number.unwrap_or(0)
    };
    for round in 0..12_usize {
        // Each round pauses one process and kills another.
        let n = round % processes.len();
        processes[n].pause();
        let dead = (n + 3) % processes.len();
        processes[dead].kill();
        processes[dead] = spawn();
        let before = number("writes");
        // At worst, four leases must expire: of a killed and of a paused holder, and of a killed
        // and of a paused process granted next. A refresh follows. Twice that, for a busy machine.
        eventually(2 * (4 * TTL + REFRESH), || number("writes") > before + 10);
        processes[n].resume();
    }
    assert_eq!(
        number("overtaken"),
        0,
        "writes were rejected although the lock was held"
    );
    processes.iter_mut().for_each(Child::kill);
    for key in ["newest", "writes", "overtaken"] {
        server.run("DEL", &[key]);
    }
    eventually(ms(20_000), || only_fences_remain(&server));
}
