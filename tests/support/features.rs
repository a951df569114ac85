//! Exercises every call of a client once.

use std::thread;
use std::time::Instant;

use crossbeam_channel::unbounded;
use leasehold::{Client, ClientBuilder, Error, Unlocked};

use super::server::Server;
use super::time::{eventually, ms};

/// Makes every call that opens a connection: commands, renewals and the subscription.
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
    let (renewed, renewals) = unbounded();
    let mutex = one.mutex(name).ttl(ms(60_000)).renew_every(ms(400));
    let mutex = mutex.on_renew(move |_| {
        let _ = renewed.send(());
    });
    let guard = mutex.lock().unwrap();
    renewals
        .recv_timeout(ms(10_000))
        .expect("the lease is renewed");
    guard.renew().unwrap();
    guard.set_ttl(ms(30_000)).unwrap();

    // With this backstop, only the release can wake the waiter in time.
    let two = builder().backstop(ms(60_000)).build().unwrap();
    assert!(two.mutex(name).try_lock().unwrap().is_none());
    let held = two
        .mutex(name)
        .inspect()
        .unwrap()
        .expect("the lock is held");
    assert_eq!(held.fencing_token(), Some(guard.fencing_token()));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let guard = two.mutex(name).try_lock_for(ms(30_000)).unwrap();
            (guard.expect("the lock is released"), Instant::now())
        });
        for server in owners {
            server.wait_until_waiter_sleeps(format!("lock_release:{name}"));
        }
        let released = Instant::now();
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
        let (guard, got) = waiting.join().unwrap();
        assert!(got - released < ms(5_000), "{:?}", got - released);
        assert!(one.mutex(name).force_unlock().unwrap());
        assert!(matches!(guard.unlock().unwrap(), Unlocked::AlreadyLost(_)));
    });
    let fair = |client: &Client| client.fair_mutex(name);
    match fair(&one).lock() {
        // A quorum has no fair locks.
        Err(error) => assert!(matches!(error, Error::Config(_)), "{error}"),
        Ok(guard) => thread::scope(|scope| {
            let waiting = scope.spawn(|| fair(&two).try_lock_for(ms(30_000)).unwrap());
            eventually(ms(10_000), || two.stats().waiting == 1);
            assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
            let guard = waiting.join().unwrap().expect("the waiter gets its turn");
            assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
            assert!(fair(&two).try_lock().unwrap().is_some());
        }),
    }
    let semaphore = |client: &Client| client.semaphore(name, 2);
    match semaphore(&one).many(2).acquire() {
        // A quorum has no semaphores.
        Err(error) => assert!(matches!(error, Error::Config(_)), "{error}"),
        Ok(permit) => thread::scope(|scope| {
            let waiting = scope.spawn(|| semaphore(&two).try_acquire_for(ms(30_000)).unwrap());
            eventually(ms(10_000), || two.stats().waiting == 1);
            permit.set_ttl(ms(20_000)).unwrap();
            assert_eq!(permit.release().unwrap(), Unlocked::Released);
            let permit = waiting.join().unwrap().expect("the waiter gets its turn");
            assert_eq!(semaphore(&one).available().unwrap(), 1);
            let id = permit.holder_id();
            assert_eq!(semaphore(&one).holders().unwrap()[0].holder_id(), id);
            assert!(semaphore(&one).force_release(id).unwrap());
            let lost = permit.release().unwrap();
            assert!(matches!(lost, Unlocked::AlreadyLost(_)));
        }),
    }
    read_and_write(name, &one, &two);
    [one, two]
}

/// Makes every call of a read-write lock, unless the clients are those of a quorum.
#[track_caller]
fn read_and_write(name: &str, one: &Client, two: &Client) {
    let (one, two) = (one.rw_lock(name), two.rw_lock(name));
    let guard = match one.write() {
        Err(error) => return assert!(matches!(error, Error::Config(_)), "{error}"),
        Ok(guard) => guard,
    };
    thread::scope(|scope| {
        let waiting = scope.spawn(|| two.try_read_for(ms(30_000)).unwrap());
        eventually(ms(10_000), || one.inspect().unwrap().is_some());
        let guard = guard.downgrade();
        guard.renew().unwrap();
        let reading = waiting.join().unwrap().expect("readers share");
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
        assert_eq!(reading.unlock().unwrap(), Unlocked::Released);
    });
}
