//! Exercises every kind of lock of one name.

use std::thread;

use crossbeam_channel::unbounded;
use leasehold::{Client, ClientBuilder, Error, FairMutex, Mutex, MutexGuard, RwLock, Semaphore};

use super::call::assert_message_wakes;
use super::server::Server;
use super::time::{eventually, ms};

/// Uses every kind of lock of one name, over every kind of connection: those for commands, for
/// renewals and for the subscription.
///
/// `owners` are the servers that store the name. Returns the clients, still connected.
#[track_caller]
pub fn exercise_every_call(
    builder: impl Fn() -> ClientBuilder,
    name: &str,
    owners: &[&Server],
) -> [Client; 2] {
    let one = builder().build().unwrap();
    one.ping().unwrap();
    let guard = lock_and_renew(&one.mutex(name));
    let two = builder().build().unwrap();
    pass_on(guard, name, [&one, &two], owners);
    if owners.len() == 1 {
        take_turns([&one, &two].map(|client| client.fair_mutex(name)), &two);
        share_permits([&one, &two].map(|client| client.semaphore(name, 2)), &two);
        read_and_write([&one, &two].map(|client| client.rw_lock(name)), &two);
    } else {
        // A quorum has no locks of these kinds.
        assert_config_error(one.fair_mutex(name).lock());
        assert_config_error(one.semaphore(name, 2).acquire());
        assert_config_error(one.rw_lock(name).write());
    }
    [one, two]
}

#[track_caller]
fn assert_config_error<T>(answer: Result<T, Error>) {
    let error = answer.err();
    assert!(matches!(error, Some(Error::Config(_))), "{error:?}");
}

/// Locks a name, and renews its lease in the background and by the guard's own calls.
fn lock_and_renew(mutex: &Mutex) -> MutexGuard {
    let (renewed, renewals) = unbounded();
    let mutex = mutex.clone().ttl(ms(60_000)).renew_every(ms(400));
    let mutex = mutex.on_renew(move |_| {
        let _ = renewed.send(());
    });
    let guard = mutex.lock().unwrap();
    renewals
        .recv_timeout(ms(10_000))
        .expect("the lease is renewed");
    guard.renew().unwrap();
    guard.set_ttl(ms(30_000)).unwrap();
    guard
}

/// Releases a lock of the first client, for which the second waits, and then the second client's
/// lock by force.
fn pass_on(guard: MutexGuard, name: &str, [one, two]: [&Client; 2], owners: &[&Server]) {
    assert!(two.mutex(name).try_lock().unwrap().is_err());
    let held = two
        .mutex(name)
        .inspect()
        .unwrap()
        .expect("the lock is held");
    assert_eq!(held.fencing_token(), Some(guard.fencing_token()));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| two.mutex(name).try_lock_for(ms(30_000)).unwrap());
        for server in owners {
            server.wait_until_waiter_sleeps(format!("lock_release:{name}"));
        }
        let guard = assert_message_wakes(two, || {
            guard.unlock().unwrap();
            waiting.join().unwrap().expect("the lock is released")
        });
        assert!(one.mutex(name).force_unlock().unwrap());
        assert!(guard.unlock().unwrap_err().lost().is_some());
    });
}

/// Uses a fair lock. `two` is the client of `second`, which waits.
fn take_turns([first, second]: [FairMutex; 2], two: &Client) {
    let guard = first.lock().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| second.try_lock_for(ms(30_000)).unwrap());
        eventually(ms(10_000), || two.stats().waiting == 1);
        guard.unlock().unwrap();
        let guard = waiting.join().unwrap().expect("the waiter gets its turn");
        guard.unlock().unwrap();
        assert!(second.try_lock().unwrap().is_ok());
    });
}

/// Uses a semaphore of two permits. `two` is the client of `second`, which waits.
fn share_permits([first, second]: [Semaphore; 2], two: &Client) {
    let permit = first.clone().many(2).acquire().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| second.try_acquire_for(ms(30_000)).unwrap());
        eventually(ms(10_000), || two.stats().waiting == 1);
        permit.set_ttl(ms(20_000)).unwrap();
        permit.release().unwrap();
        let permit = waiting.join().unwrap().expect("the waiter gets its turn");
        assert_eq!(first.available().unwrap(), 1);
        let id = permit.holder_id();
        let held = first.inspect().unwrap().expect("a permit is out");
        assert_eq!(held.holders()[0].holder_id(), Some(id));
        assert!(first.force_release(id).unwrap());
        assert!(permit.release().unwrap_err().lost().is_some());
    });
}

/// Uses a read-write lock, with a downgrade. `two` is the client of `second`, which waits.
fn read_and_write([first, second]: [RwLock; 2], two: &Client) {
    let guard = first.write().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| second.try_read_for(ms(30_000)).unwrap());
        eventually(ms(10_000), || two.stats().waiting == 1);
        let guard = guard.downgrade();
        guard.renew().unwrap();
        let reading = waiting.join().unwrap().expect("readers share");
        guard.unlock().unwrap();
        reading.unlock().unwrap();
    });
}
