//! Promise: a hold that is lost is known to be lost, at once, by every way of asking and with the reason.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvError, RecvTimeoutError, TryRecvError, unbounded};
use leasehold::{Client, Error, Lost, Mutex, MutexGuard, Unlocked};
use support::{Child, Server, eventually, ms, parameter, tell_parent};

support::roles![holder];

support::tests![
    a_key_deleted,
    a_key_taken_by_another,
    everything_flushed,
    a_server_restarted_from_nothing,
    a_server_stopped,
    a_server_killed,
    a_lease_without_renewal,
    a_lease_held_for_as_long_as_it_may,
    a_client_shut_down,
    a_loss_is_for_good,
    a_lock_that_is_released_is_not_lost,
    a_release_finds_out_what_no_renewal_has,
    a_holder_paused_past_its_ttl_knows_before_it_does_anything,
    a_foreign_release_of_our_lease_is_a_loss_at_once,
    a_foreign_release_of_our_lease_to_another_is_a_loss_at_once,
    a_lease_that_we_are_granted_again_is_lost,
    a_release_that_was_only_announced_is_no_loss
];

support::timed![past_max_hold_the_key_runs_out_by_itself];

/// Long enough for anything that is to come, and short enough for a test that fails.
const PATIENCE: Duration = ms(10_000);

/// How soon a loss is told that Redis is asked about out of turn; the next renewal is ten seconds away.
const PROMPTLY: Duration = ms(2_000);

const COMMAND_TIMEOUT: Duration = ms(200);

const TTL: Duration = ms(900);

fn client(server: &Server) -> Client {
    Client::builder()
        .url(server.url())
        .connect_timeout(COMMAND_TIMEOUT)
        .command_timeout(COMMAND_TIMEOUT)
        .build()
        .unwrap()
}

#[track_caller]
fn says_held(guard: &MutexGuard) {
    assert!(guard.is_held());
    assert!(guard.remaining().is_some());
    guard.ensure_held().unwrap();
}

/// All that a guard can say, but for the channels that were there before.
#[track_caller]
fn says_lost(guard: &MutexGuard, why: Lost) {
    assert!(!guard.is_held());
    assert_eq!(guard.remaining(), None);
    for answer in [guard.ensure_held(), guard.renew(), guard.extend(ms(60_000))] {
        match answer {
            Err(Error::Lost(lost)) => assert_eq!(lost, why),
            other => panic!("{other:?}"),
        }
    }
    has_one_message(&guard.lost(), why);
}

#[track_caller]
fn has_one_message(lost: &Receiver<Lost>, why: Lost) {
    assert_eq!(lost.recv_timeout(PATIENCE), Ok(why));
    assert_eq!(
        lost.recv_timeout(PATIENCE),
        Err(RecvTimeoutError::Disconnected)
    );
}

/// A lease on `a`, its mutex set up further by `set`, comes to `harm`: everybody who asks or listens is told why.
#[track_caller]
fn is_told(
    why: Lost,
    set: impl FnOnce(Mutex) -> Mutex,
    harm: impl FnOnce(&mut Server, &Client),
) -> Server {
    let mut server = Server::start();
    let client = client(&server);
    let (told, calls) = unbounded();
    let mutex = client
        .mutex("a")
        .ttl(TTL)
        .on_lost(move |lost| told.send(*lost).unwrap());
    let guard = set(mutex).lock().unwrap();
    let channels = [guard.lost(), guard.lost()];
    says_held(&guard);
    harm(&mut server, &client);
    for channel in &channels {
        has_one_message(channel, why);
    }
    says_lost(&guard, why);
    assert_eq!(calls.recv_timeout(PATIENCE), Ok(why));
    assert_eq!(guard.unlock().unwrap(), Unlocked::AlreadyLost(why));
    drop(client);
    assert_eq!(
        calls.recv_timeout(PATIENCE),
        Err(RecvTimeoutError::Disconnected),
        "once is enough"
    );
    server
}

fn a_key_deleted() {
    is_told(
        Lost::Deleted,
        |mutex| mutex,
        |server, _| server.run("DEL", &["lock:a"]),
    );
}

fn a_key_taken_by_another() {
    let server = is_told(
        Lost::Taken,
        |mutex| mutex,
        |server, _| server.run("SET", &["lock:a", "another"]),
    );
    assert_eq!(server.get("lock:a").as_deref(), Some(&b"another"[..]));
    assert_eq!(server.pttl("lock:a"), -1);
}

fn everything_flushed() {
    is_told(
        Lost::Deleted,
        |mutex| mutex,
        |server, _| server.run("FLUSHALL", &[]),
    );
}

fn a_server_restarted_from_nothing() {
    is_told(
        Lost::Deleted,
        // It is gone for a moment, and that is not to be the reason.
        |mutex| mutex.ttl(ms(20_000)).renew_every(ms(100)),
        |server, _| server.restart(),
    );
}

fn a_server_stopped() {
    is_told(Lost::Expired, |mutex| mutex, |server, _| server.pause());
}

fn a_server_killed() {
    is_told(Lost::Expired, |mutex| mutex, |server, _| server.kill());
}

fn a_lease_without_renewal() {
    is_told(Lost::Expired, |mutex| mutex.auto_renew(false), |_, _| {});
}

fn a_lease_held_for_as_long_as_it_may() {
    is_told(Lost::MaxHold, |mutex| mutex.max_hold(ms(500)), |_, _| {});
}

fn a_client_shut_down() {
    let server = is_told(
        Lost::ShutDown,
        |mutex| mutex,
        |_, client| {
            assert!(client.shutdown(PATIENCE).unwrap().is_clean());
        },
    );
    assert_eq!(server.get("lock:a"), None);
}

fn a_loss_is_for_good() {
    let server = Server::start();
    let client = client(&server);
    let guard = client.mutex("a").ttl(TTL).lock().unwrap();
    let id = guard.holder_id().as_str().to_owned();
    server.run("DEL", &["lock:a"]);
    has_one_message(&guard.lost(), Lost::Deleted);
    server.run("SET", &["lock:a", &id, "PX", "1200"]);
    eventually(PATIENCE, || {
        says_lost(&guard, Lost::Deleted);
        // Nor is it renewed.
        server.get("lock:a").is_none()
    });
}

fn a_lock_that_is_released_is_not_lost() {
    let server = Server::start();
    let client = client(&server);
    let (told, calls) = unbounded();
    let mutex = client
        .mutex("a")
        .on_lost(move |lost| told.send(*lost).unwrap());
    let guard = mutex.lock().unwrap();
    let channels = [guard.lost(), guard.lost()];
    assert_eq!(channels[0].try_recv(), Err(TryRecvError::Empty));
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    for channel in channels {
        assert_eq!(channel.recv(), Err(RecvError));
    }
    let guard = mutex.lock().unwrap();
    let channel = guard.lost();
    drop(guard);
    assert_eq!(channel.recv(), Err(RecvError));
    drop((client, mutex));
    assert_eq!(
        calls.recv_timeout(PATIENCE),
        Err(RecvTimeoutError::Disconnected)
    );
}

fn a_release_finds_out_what_no_renewal_has() {
    let server = Server::start();
    let client = client(&server);
    for (taken, why) in [(false, Lost::Deleted), (true, Lost::Taken)] {
        let (told, calls) = unbounded();
        let guard = client
            .mutex("a")
            .on_lost(move |lost| told.send(*lost).unwrap())
            .lock()
            .unwrap();
        server.run("DEL", &["lock:a"]);
        if taken {
            server.run("SET", &["lock:a", "another"]);
        }
        assert_eq!(guard.unlock().unwrap(), Unlocked::AlreadyLost(why));
        assert_eq!(calls.recv_timeout(PATIENCE), Ok(why));
        assert_eq!(server.get("lock:a").is_some(), taken);
    }
}

/// The section that has held the lock for too long may still be running.
fn past_max_hold_the_key_runs_out_by_itself() {
    let server = Server::start();
    let (client, other) = (client(&server), client(&server));
    let ttl = ms(1_200);
    let guard = client
        .mutex("a")
        .ttl(ttl)
        .renew_every(ms(200))
        .max_hold(ms(1_300))
        .lock()
        .unwrap();
    assert!(guard.remaining().unwrap() <= ttl);
    has_one_message(&guard.lost(), Lost::MaxHold);
    let seen = Instant::now();
    let left = server.pttl("lock:a");
    assert!(left > 100, "it was renewed up to now");
    let left = Duration::from_millis(left.unsigned_abs());
    assert!(left <= ttl);
    assert!(other.mutex("a").try_lock().unwrap().is_none());
    let next = other.mutex("a").lock().unwrap();
    // Redis rounds down, and its clock is another one.
    assert!(seen.elapsed() + ms(5) >= left, "after {:?}", seen.elapsed());
    assert!(server.pttl("lock:a") > 5_000, "it is the other's own lease");
    drop(guard);
    assert_eq!(next.unlock().unwrap(), Unlocked::Released);
}

/// In a child: is stopped with the lock in its hands, round after round. What it is woken by has been there for long
/// when it goes on, so the first thing that it does then is to ask.
fn holder() {
    let client = Client::open(&parameter("URL")).unwrap();
    let mut bell = redis::Client::open(parameter("URL"))
        .unwrap()
        .get_connection()
        .unwrap();
    for _ in 0..parameter("ROUNDS").parse().unwrap() {
        // They run out before it does, and keep everybody busy who might tell.
        let others: Vec<_> = (0..300)
            .map(|n| lock(&client, &format!("other {n}")))
            .collect();
        let guard = lock(&client, "a");
        let lost = guard.lost();
        tell_parent("held");
        redis::cmd("BLPOP")
            .arg("bell")
            .arg(0)
            .exec(&mut bell)
            .unwrap();
        let is_held = guard.is_held();
        assert!(!is_held, "somebody else is at work");
        says_lost(&guard, Lost::Expired);
        has_one_message(&lost, Lost::Expired);
        assert_eq!(
            guard.unlock().unwrap(),
            Unlocked::AlreadyLost(Lost::Expired)
        );
        drop(others);
        tell_parent("lost");
    }
}

fn lock(client: &Client, name: &str) -> MutexGuard {
    client.mutex(name).ttl(TTL).lock().unwrap()
}

fn a_holder_paused_past_its_ttl_knows_before_it_does_anything() {
    let server = Server::start();
    let client = client(&server);
    let rounds = 3;
    let child = Child::spawn(
        "loss::holder",
        &[("URL", &server.url()), ("ROUNDS", &rounds.to_string())],
    );
    for _ in 0..rounds {
        child.wait_for_line("held");
        child.pause();
        let guard = client.mutex("a").lock().unwrap();
        server.run("RPUSH", &["bell", "wake up"]);
        child.resume();
        child.wait_for_line("lost");
        assert_eq!(
            server.get("lock:a").as_deref(),
            Some(guard.holder_id().as_str().as_bytes())
        );
        guard.renew().unwrap();
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    }
    child.wait().succeeded();
}

/// A lease that is not due for a renewal in a while, held where another thread waits for the same name.
fn with_a_waiter(auto_renew: bool, act: impl FnOnce(&Server, &MutexGuard)) {
    let server = Server::start();
    let client = Client::builder()
        .url(server.url())
        .backstop(ms(20_000))
        .build()
        .unwrap();
    let mutex = client.mutex("a").ttl(ms(30_000));
    let guard = mutex.clone().auto_renew(auto_renew).lock().unwrap();
    let calls = server.calls(&["evalsha", "eval"]);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| mutex.lock().map(drop));
        // It looks once it is subscribed, and then sleeps.
        eventually(PATIENCE, || server.calls(&["evalsha", "eval"]) > calls);
        assert!(server.subscribers("lock_release:a") > 0);
        act(&server, &guard);
        // Whoever keeps it from the waiter does so without an end.
        server.run("DEL", &["lock:a"]);
        server.run("PUBLISH", &["lock_release:a", ""]);
        drop(guard);
        waiting.join().unwrap().unwrap();
    });
}

fn a_foreign_release_of_our_lease_is_a_loss_at_once() {
    with_a_waiter(true, |server, guard| {
        server.run("DEL", &["lock:a"]);
        server.run("PUBLISH", &["lock_release:a", guard.holder_id().as_str()]);
        assert_eq!(guard.lost().recv_timeout(PROMPTLY), Ok(Lost::Deleted));
    });
}

fn a_foreign_release_of_our_lease_to_another_is_a_loss_at_once() {
    with_a_waiter(true, |server, guard| {
        server.run("SET", &["lock:a", "another"]);
        server.run("PUBLISH", &["lock_release:a", guard.holder_id().as_str()]);
        assert_eq!(guard.lost().recv_timeout(PROMPTLY), Ok(Lost::Taken));
    });
}

/// Redis grants no lock that is held, so the grant itself is news of the loss.
fn a_lease_that_we_are_granted_again_is_lost() {
    let server = Server::start();
    let client = client(&server);
    let mutex = client.mutex("a").ttl(ms(30_000));
    let guard = mutex.lock().unwrap();
    server.run("DEL", &["lock:a"]);
    let second = mutex.lock().unwrap();
    assert_eq!(guard.lost().recv_timeout(PROMPTLY), Ok(Lost::Taken));
    assert_eq!(guard.unlock().unwrap(), Unlocked::AlreadyLost(Lost::Taken));
    assert_eq!(second.unlock().unwrap(), Unlocked::Released);
}

fn a_release_that_was_only_announced_is_no_loss() {
    for auto_renew in [true, false] {
        with_a_waiter(auto_renew, |server, guard| {
            let (calls, left) = (server.calls(&["evalsha", "eval"]), server.pttl("lock:a"));
            server.run("PUBLISH", &["lock_release:a", guard.holder_id().as_str()]);
            eventually(PROMPTLY, || server.calls(&["evalsha", "eval"]) > calls);
            says_held(guard);
            assert_eq!(guard.lost().try_recv(), Err(TryRecvError::Empty));
            if !auto_renew {
                assert!(server.pttl("lock:a") <= left, "it asks for no more time");
            }
            assert_eq!(
                server.get("lock:a").as_deref(),
                Some(guard.holder_id().as_str().as_bytes())
            );
        });
    }
}
