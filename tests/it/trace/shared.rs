//! The traffic of the locks that several holders share, with one server.

use std::thread::{self, JoinHandle};

use leasehold::Error;
use support::{Server, assert_released, ms};

use super::recording::{Progress, compare};
use super::{LONGER, SHORT, client, recorded};

pub(super) fn semaphore_calls_are_as_recorded() {
    let server = Server::start();
    let mut trace = recorded(&server);
    let (one, two) = (client(&trace), client(&trace));
    let [semaphore, other] = [&one, &two].map(|client| client.semaphore("a", 3));
    trace.step("available, all", |_| semaphore.available().unwrap());
    let permit = trace.step("try_acquire", |_| semaphore.try_acquire().unwrap().unwrap());
    trace.step("renew", |_| permit.renew().unwrap());
    trace.step("set_ttl", |_| permit.set_ttl(LONGER).unwrap());
    let two_permits = semaphore.clone().many(2);
    let pair = trace.step("try_acquire, two permits", |_| {
        two_permits.try_acquire().unwrap().unwrap()
    });
    trace.step("try_acquire, none is free", |_| {
        assert!(other.try_acquire().unwrap().is_err())
    });
    trace.step("holders", |_| {
        assert_eq!(other.inspect().unwrap().unwrap().holders().len(), 2);
    });
    trace.step("list_permits", |_| one.list_permits("").unwrap());
    let waiter = trace.step("another client waits", |passed| {
        let other = other.clone();
        spawn_in_queue(passed, move || other.acquire().unwrap())
    });
    trace.step("waiting", |_| assert_eq!(semaphore.waiting().unwrap(), 1));
    let permit = trace.step("release grants it a permit", |passed| {
        assert_released(permit.release());
        let permit = waiter.join().unwrap();
        passed.wait_for("permits_renew", 1);
        permit
    });
    trace.meanwhile(&["queue_refresh"]);
    trace.step("a waiter gives up", |passed| {
        assert!(semaphore.try_acquire_for(ms(500)).unwrap().is_err());
        passed.wait_for("queue_release", 1);
    });
    trace.step("its release", |_| assert_released(permit.release()));
    trace.step("force_release", |_| {
        assert!(other.force_release(pair.holder_id()).unwrap());
    });
    trace.step("renew, too late", |_| {
        assert!(matches!(pair.renew(), Err(Error::Lost(_))));
    });
    trace.step("release, too late", |passed| {
        drop(pair);
        // In the background.
        passed.wait_for("queue_release", 1);
    });
    let permit = semaphore.try_acquire().unwrap().unwrap();
    trace.skip();
    trace.step("keep_for", |_| permit.keep_for(SHORT).unwrap());
    compare("semaphore.txt", &[trace.end("Semaphore on one server")]);
}

pub(super) fn rw_lock_calls_are_as_recorded() {
    let server = Server::start();
    let mut trace = recorded(&server);
    let (one, two) = (client(&trace), client(&trace));
    let [lock, other] = [&one, &two].map(|client| client.rw_lock("a"));
    trace.step("inspect, free", |_| lock.inspect().unwrap());
    let reading = trace.step("try_read", |_| lock.try_read().unwrap().unwrap());
    trace.step("renew by a reader", |_| reading.renew().unwrap());
    trace.step("set_ttl by a reader", |_| reading.set_ttl(LONGER).unwrap());
    trace.step("try_write, a reader has it", |_| {
        assert!(other.try_write().unwrap().is_err())
    });
    let also = trace.step("try_read by another client", |_| {
        other.try_read().unwrap().unwrap()
    });
    trace.step("inspect, readers", |_| other.inspect().unwrap());
    trace.step("unlock by a reader", |_| assert_released(also.unlock()));
    let writer = trace.step("a writer waits", |passed| {
        let other = other.clone();
        spawn_in_queue(passed, move || other.write().unwrap())
    });
    trace.step("waiting", |_| assert_eq!(lock.waiting().unwrap(), 1));
    let writing = trace.step("unlock by the last reader grants it the lock", |passed| {
        assert_released(reading.unlock());
        let writing = writer.join().unwrap();
        passed.wait_for("renew", 1);
        writing
    });
    trace.meanwhile(&["queue_refresh"]);
    trace.step("inspect, a writer", |_| lock.inspect().unwrap());
    trace.step("try_read, a writer has it", |_| {
        assert!(lock.try_read().unwrap().is_err())
    });
    let reader = trace.step("a reader waits", |passed| {
        let lock = lock.clone();
        spawn_in_queue(passed, move || lock.read().unwrap())
    });
    let (first, second) = trace.step("downgrade lets it read, too", |passed| {
        let first = writing.downgrade();
        let second = reader.join().unwrap();
        passed.wait_for("renew_shared", 1);
        (first, second)
    });
    trace.step("renew after a downgrade", |_| first.renew().unwrap());
    trace.step("unlock after a downgrade", |_| {
        assert_released(first.unlock())
    });
    trace.step("force_unlock", |passed| {
        assert!(other.force_unlock().unwrap());
        passed.wait_for("message", 2);
    });
    drop(second);
    let reading = other.try_read().unwrap().unwrap();
    trace.skip();
    trace.step("keep_for by a reader", |_| reading.keep_for(SHORT).unwrap());
    compare("rw_lock.txt", &[trace.end("RwLock on one server")]);
}

/// Starts a call that waits in the queue.
fn spawn_in_queue<T: Send + 'static>(
    passed: &Progress<'_>,
    call: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let waiter = thread::spawn(call);
    passed.wait_for("queue_enter", 1);
    passed.wait_for("queue_refresh", 1);
    waiter
}
