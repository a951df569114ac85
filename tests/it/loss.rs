//! Promise: a holder learns of a loss at once, with its reason, through every method and channel.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvError, RecvTimeoutError, TryRecvError, unbounded};
use leasehold::{Client, Error, Lease, Lost, Mutex, MutexGuard};
use support::{Child, SLACK, Server, assert_released, eventually, ms, parameter, tell_parent};

support::roles![holder, waits_for_a_loss];

support::tests![
    a_deleted_key_is_reported_as_deleted,
    an_overwritten_key_is_reported_as_taken,
    a_flushed_server_is_reported_as_deleted,
    a_server_restarted_without_data_is_reported_as_deleted,
    a_stopped_server_is_reported_as_expired,
    a_killed_server_is_reported_as_expired,
    a_lease_without_renewal_is_reported_as_expired,
    a_lease_past_max_hold_is_reported_as_max_hold,
    a_client_shut_down_is_reported_as_shut_down,
    a_lost_lease_stays_lost_if_its_key_comes_back,
    a_released_lock_is_not_reported_lost,
    unlock_reports_a_loss_that_no_renewal_has_found,
    a_holder_paused_past_its_ttl_knows_of_the_loss_as_it_resumes,
    a_foreign_release_of_our_lease_is_reported_at_once,
    a_foreign_takeover_of_our_lease_is_reported_at_once,
    a_second_grant_to_the_client_reports_the_first_lease_taken,
    a_false_release_message_is_not_a_loss,
    a_key_replaced_by_another_type_is_reported_as_taken,
    a_loss_during_a_stop_is_told_within_a_second
];

support::timed![past_max_hold_the_key_expires_by_itself];

/// The limit for events that must happen: generous for a slow machine, short for a failing test.
const WAIT_LIMIT: Duration = ms(10_000);

/// The limit for a loss that an immediate check finds; the next renewal is 10 s away.
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
fn assert_held(guard: &MutexGuard) {
    assert!(guard.is_held());
    assert!(guard.remaining().is_some());
    guard.ensure_held().unwrap();
}

/// Checks every method of a guard and a channel created after the loss.
#[track_caller]
fn assert_lost(guard: &MutexGuard, why: Lost) {
    assert!(!guard.is_held());
    assert_eq!(guard.remaining(), None);
    for answer in [
        guard.ensure_held(),
        guard.renew(),
        guard.set_ttl(ms(60_000)),
    ] {
        match answer {
            Err(Error::Lost(lost)) => assert_eq!(lost, why),
            other => panic!("{other:?}"),
        }
    }
    assert_one_message(&guard.lost(), why);
}

#[track_caller]
fn assert_one_message(lost: &Receiver<Lost>, why: Lost) {
    assert_eq!(lost.recv_timeout(WAIT_LIMIT), Ok(why));
    assert_eq!(
        lost.recv_timeout(WAIT_LIMIT),
        Err(RecvTimeoutError::Disconnected)
    );
}

/// Configures a mutex with `set`, applies `harm` to its lease, and checks that every method,
/// channel and callback reports the loss with its reason.
#[track_caller]
fn assert_loss_is_reported(
    why: Lost,
    set: impl FnOnce(Mutex) -> Mutex,
    harm: impl FnOnce(&mut Server, &Client),
) -> Server {
    let mut server = Server::start();
    let client = client(&server);
    let (report, calls) = unbounded();
    let mutex = client
        .mutex("a")
        .ttl(TTL)
        .on_lost(move |lost| report.send(*lost).unwrap());
    let guard = set(mutex).lock().unwrap();
    let channels = [guard.lost(), guard.lost()];
    assert_held(&guard);
    harm(&mut server, &client);
    for channel in &channels {
        assert_one_message(channel, why);
    }
    assert_lost(&guard, why);
    assert_eq!(calls.recv_timeout(WAIT_LIMIT), Ok(why));
    assert_eq!(guard.unlock().unwrap_err().lost(), Some(why));
    drop(client);
    assert_eq!(
        calls.recv_timeout(WAIT_LIMIT),
        Err(RecvTimeoutError::Disconnected),
        "the callback ran once"
    );
    server
}

fn a_deleted_key_is_reported_as_deleted() {
    assert_loss_is_reported(
        Lost::Deleted,
        |mutex| mutex,
        |server, _| server.run("DEL", &["lock:a"]),
    );
}

fn an_overwritten_key_is_reported_as_taken() {
    let server = assert_loss_is_reported(
        Lost::Taken,
        |mutex| mutex,
        |server, _| server.run("SET", &["lock:a", "another"]),
    );
    assert_eq!(server.get("lock:a").as_deref(), Some(&b"another"[..]));
    assert_eq!(server.pttl("lock:a"), -1);
}

fn a_flushed_server_is_reported_as_deleted() {
    assert_loss_is_reported(
        Lost::Deleted,
        |mutex| mutex,
        |server, _| server.run("FLUSHALL", &[]),
    );
}

fn a_server_restarted_without_data_is_reported_as_deleted() {
    assert_loss_is_reported(
        Lost::Deleted,
        // A long ttl, so that the downtime itself does not expire the lease.
        |mutex| mutex.ttl(ms(20_000)).renew_every(ms(100)),
        |server, _| server.restart(),
    );
}

fn a_stopped_server_is_reported_as_expired() {
    assert_loss_is_reported(Lost::Expired, |mutex| mutex, |server, _| server.pause());
}

fn a_killed_server_is_reported_as_expired() {
    assert_loss_is_reported(Lost::Expired, |mutex| mutex, |server, _| server.kill());
}

fn a_lease_without_renewal_is_reported_as_expired() {
    assert_loss_is_reported(Lost::Expired, |mutex| mutex.auto_renew(false), |_, _| {});
}

fn a_lease_past_max_hold_is_reported_as_max_hold() {
    assert_loss_is_reported(Lost::MaxHold, |mutex| mutex.max_hold(ms(500)), |_, _| {});
}

fn a_client_shut_down_is_reported_as_shut_down() {
    let server = assert_loss_is_reported(
        Lost::ShutDown,
        |mutex| mutex,
        |_, client| {
            assert!(client.shutdown(WAIT_LIMIT).is_clean());
        },
    );
    assert_eq!(server.get("lock:a"), None);
}

fn a_lost_lease_stays_lost_if_its_key_comes_back() {
    let server = Server::start();
    let client = client(&server);
    let guard = client.mutex("a").ttl(TTL).lock().unwrap();
    let id = guard.holder_id().as_str().to_owned();
    server.run("DEL", &["lock:a"]);
    assert_one_message(&guard.lost(), Lost::Deleted);
    server.run("SET", &["lock:a", &id, "PX", "1200"]);
    eventually(WAIT_LIMIT, || {
        assert_lost(&guard, Lost::Deleted);
        // The key is not renewed either.
        server.get("lock:a").is_none()
    });
}

fn a_released_lock_is_not_reported_lost() {
    let server = Server::start();
    let client = server.client();
    let (report, calls) = unbounded();
    let mutex = client
        .mutex("a")
        .on_lost(move |lost| report.send(*lost).unwrap());
    let guard = mutex.lock().unwrap();
    let channels = [guard.lost(), guard.lost()];
    assert_eq!(channels[0].try_recv(), Err(TryRecvError::Empty));
    guard.unlock().unwrap();
    for channel in channels {
        assert_eq!(channel.recv(), Err(RecvError));
    }
    let guard = mutex.lock().unwrap();
    let channel = guard.lost();
    drop(guard);
    assert_eq!(channel.recv(), Err(RecvError));
    drop((client, mutex));
    assert_eq!(
        calls.recv_timeout(WAIT_LIMIT),
        Err(RecvTimeoutError::Disconnected)
    );
}

fn unlock_reports_a_loss_that_no_renewal_has_found() {
    let server = Server::start();
    let client = client(&server);
    for (taken, why) in [(false, Lost::Deleted), (true, Lost::Taken)] {
        let (report, calls) = unbounded();
        let guard = client
            .mutex("a")
            .on_lost(move |lost| report.send(*lost).unwrap())
            .lock()
            .unwrap();
        server.run("DEL", &["lock:a"]);
        if taken {
            server.run("SET", &["lock:a", "another"]);
        }
        assert_eq!(guard.unlock().unwrap_err().lost(), Some(why));
        assert_eq!(calls.recv_timeout(WAIT_LIMIT), Ok(why));
        assert_eq!(server.get("lock:a").is_some(), taken);
    }
}

/// The critical section may still be running, so the key must not be deleted at once.
fn past_max_hold_the_key_expires_by_itself() {
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
    assert_one_message(&guard.lost(), Lost::MaxHold);
    let reported_at = Instant::now();
    let left = server.pttl("lock:a");
    assert!(left > 100, "the lease was renewed until the loss");
    let left = Duration::from_millis(left.unsigned_abs());
    assert!(left <= ttl);
    assert!(other.mutex("a").try_lock().unwrap().is_err());
    let next = other.mutex("a").lock().unwrap();
    // Redis rounds down and has a different clock.
    assert!(
        reported_at.elapsed() + ms(5) >= left,
        "after {:?}",
        reported_at.elapsed()
    );
    // The key is the other client's lease, once it has been renewed after the grant.
    eventually(WAIT_LIMIT, || server.pttl("lock:a") > 5_000);
    drop(guard);
    next.unlock().unwrap();
}

/// A child's role: holds the lock once a round, and is paused by its parent meanwhile.
///
/// Its wake-up is already queued when it resumes, so its first action is to query the guard.
fn holder() {
    let client = Client::open(parameter("URL")).unwrap();
    let mut connection = redis::Client::open(parameter("URL"))
        .unwrap()
        .get_connection()
        .unwrap();
    for _ in 0..parameter("ROUNDS").parse().unwrap() {
        // These leases expire first and keep the threads busy that report losses.
        let others: Vec<_> = (0..300)
            .map(|n| lock(&client, &format!("other {n}")))
            .collect();
        let guard = lock(&client, "a");
        let lost = guard.lost();
        tell_parent("held");
        redis::cmd("BLPOP")
            .arg("resume")
            .arg(0)
            .exec(&mut connection)
            .unwrap();
        let is_held = guard.is_held();
        assert!(!is_held, "another client holds the lock");
        assert_lost(&guard, Lost::Expired);
        assert_one_message(&lost, Lost::Expired);
        assert_eq!(guard.unlock().unwrap_err().lost(), Some(Lost::Expired));
        drop(others);
        tell_parent("lost");
    }
}

fn lock(client: &Client, name: &str) -> MutexGuard {
    client.mutex(name).ttl(TTL).lock().unwrap()
}

fn a_holder_paused_past_its_ttl_knows_of_the_loss_as_it_resumes() {
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
        server.run("RPUSH", &["resume", "wake up"]);
        child.resume();
        child.wait_for_line("lost");
        assert_eq!(
            server.get("lock:a").as_deref(),
            Some(guard.holder_id().as_str().as_bytes())
        );
        guard.renew().unwrap();
        guard.unlock().unwrap();
    }
    child.wait().succeeded();
}

/// The sleep of the engine goes on after a stop, for the time that was left.
fn a_loss_during_a_stop_is_told_within_a_second() {
    let server = Server::start();
    let child = Child::spawn("loss::waits_for_a_loss", &[("URL", &server.url())]);
    child.wait_for_line("held");
    child.pause();
    let guard = client(&server).mutex("a").lock().unwrap();
    let resumed = Instant::now();
    child.resume();
    child.wait_for_line("told");
    let late = resumed.elapsed();
    assert!(late <= ms(1_000) + SLACK, "{late:?}");
    assert_released(guard.unlock());
}

/// The engine has nothing else to do before the lease ends.
fn waits_for_a_loss() {
    let client = Client::open(parameter("URL")).unwrap();
    let mutex = client.mutex("a").ttl(ms(4_000)).auto_renew(false);
    let guard = mutex.lock().unwrap();
    tell_parent("held");
    assert_eq!(guard.lost().recv(), Ok(Lost::Expired));
    tell_parent("told");
}

/// Runs `act` on a lease whose renewal is not due soon, while another thread waits for the name.
/// That thread gets the lock afterwards.
fn with_a_waiter(auto_renew: bool, act: impl FnOnce(&Server, MutexGuard)) {
    let server = Server::start();
    let client = Client::builder().url(server.url()).build().unwrap();
    let mutex = client.mutex("a").ttl(ms(30_000));
    let guard = mutex.clone().auto_renew(auto_renew).lock().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| mutex.lock().map(drop));
        // The waiter asks nothing while its own client has the lock.
        eventually(WAIT_LIMIT, || server.subscribers("lock_release:a") > 0);
        act(&server, guard);
        waiting.join().unwrap().unwrap();
    });
}

fn a_foreign_release_of_our_lease_is_reported_at_once() {
    with_a_waiter(true, |server, guard| {
        server.run("DEL", &["lock:a"]);
        server.run("PUBLISH", &["lock_release:a", guard.holder_id().as_str()]);
        assert_eq!(guard.lost().recv_timeout(PROMPTLY), Ok(Lost::Deleted));
    });
}

fn a_foreign_takeover_of_our_lease_is_reported_at_once() {
    with_a_waiter(true, |server, guard| {
        server.run("SET", &["lock:a", "another"]);
        server.run("PUBLISH", &["lock_release:a", guard.holder_id().as_str()]);
        assert_eq!(guard.lost().recv_timeout(PROMPTLY), Ok(Lost::Taken));
        // It has no expiry, and would keep the waiter out.
        server.run("DEL", &["lock:a"]);
        server.run("PUBLISH", &["lock_release:a", ""]);
    });
}

/// Redis never grants a held lock, so the second grant proves the loss.
fn a_second_grant_to_the_client_reports_the_first_lease_taken() {
    let server = Server::start();
    let client = client(&server);
    // A call of a plain lock asks nothing while its own client has the lock.
    let lock = client.fair_mutex("a").ttl(ms(30_000));
    let guard = lock.lock().unwrap();
    server.run("DEL", &["lock:a"]);
    let second = lock.lock().unwrap();
    assert_eq!(guard.lost().recv_timeout(PROMPTLY), Ok(Lost::Taken));
    assert_eq!(guard.unlock().unwrap_err().lost(), Some(Lost::Taken));
    second.unlock().unwrap();
}

fn a_false_release_message_is_not_a_loss() {
    for auto_renew in [true, false] {
        with_a_waiter(auto_renew, |server, guard| {
            let (calls, left) = (server.script_calls(), server.pttl("lock:a"));
            server.run("PUBLISH", &["lock_release:a", guard.holder_id().as_str()]);
            eventually(PROMPTLY, || server.script_calls() > calls);
            assert_held(&guard);
            assert_eq!(guard.lost().try_recv(), Err(TryRecvError::Empty));
            if !auto_renew {
                assert!(server.pttl("lock:a") <= left, "the check does not renew");
            }
            assert_eq!(
                server.get("lock:a").as_deref(),
                Some(guard.holder_id().as_str().as_bytes())
            );
            assert_released(guard.unlock());
        });
    }
}

/// At the next renewal, long before the ttl ends.
fn a_key_replaced_by_another_type_is_reported_as_taken() {
    let servers = [(); 3].map(|()| Server::start());
    let (ttl, every) = (ms(60_000), ms(100));
    let one = client(&servers[0]);
    let quorum = Client::builder().quorum(servers.each_ref().map(Server::url));
    let quorum = quorum.build().unwrap();
    let mutex = one.mutex("mutex").ttl(ttl).renew_every(every);
    let fair = one.fair_mutex("fair").ttl(ttl).renew_every(every);
    let write = one.rw_lock("write").ttl(ttl).renew_every(every);
    let read = one.rw_lock("read").ttl(ttl).renew_every(every);
    let permit = one.semaphore("permit", 2).ttl(ttl).renew_every(every);
    let set = one
        .mutex_all(["set 1", "set 2"])
        .ttl(ttl)
        .renew_every(every);
    let by_quorum = quorum.mutex("quorum").ttl(ttl).renew_every(every);
    let (mutex, fair) = (mutex.lock().unwrap(), fair.lock().unwrap());
    let (write, read) = (write.write().unwrap(), read.read().unwrap());
    let (permit, set) = (permit.acquire().unwrap(), set.lock().unwrap());
    let by_quorum = by_quorum.lock().unwrap();
    let leases: [(&str, &Lease); 7] = [
        ("lock:mutex", &mutex),
        ("lock:fair", &fair),
        ("lock:write", &write),
        ("lock:read", &read),
        ("leasehold:permits:{lock:permit}", &permit),
        ("lock:set 2", &set),
        ("lock:quorum", &by_quorum),
    ];
    let lost = leases.map(|(_, lease)| lease.lost());
    // In one step: a renewal in between would find the key deleted.
    let replace = "redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[1], 'x')";
    for (key, _) in leases {
        for server in &servers {
            server.run("EVAL", &[replace, "1", key]);
        }
    }
    for ((key, lease), lost) in leases.iter().zip(lost) {
        assert_eq!(lost.recv_timeout(PROMPTLY), Ok(Lost::Taken), "{key}");
        assert!(!lease.is_held(), "{key}");
        assert_eq!(lease.renew().unwrap_err().lost(), Some(Lost::Taken));
    }
    assert_eq!(mutex.unlock().unwrap_err().lost(), Some(Lost::Taken));
}
