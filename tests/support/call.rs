//! Calls that run on their own threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use leasehold::{Client, Error};

use super::server::Server;
use super::time::{eventually, ms};

/// Connects a client to every server of its quorum. A first lock may leave out a server that
/// connects late.
#[track_caller]
pub fn connect_to_all(client: &Client, servers: &[Server]) {
    let mutex = client.mutex("connected");
    eventually(ms(20_000), || {
        let _guard = mutex.lock().unwrap();
        servers
            .iter()
            .all(|server| server.get("lock:connected").is_some())
    });
}

/// Runs a call in another thread and returns a channel for its result.
pub fn spawn_call<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (done, outcome) = bounded(1);
    thread::spawn(move || done.send(call()));
    outcome
}

/// Waits for the result of a call that must return now. The limit, 20 s, allows for a busy machine.
#[track_caller]
pub fn result_of<T>(outcome: &Receiver<T>) -> T {
    outcome.recv_timeout(ms(20_000)).expect("the call returns")
}

/// Asserts that a call with a short limit gives up without the lock, which another client holds.
///
/// The call fails if no reply arrives within its limit. On a busy machine that says nothing about
/// the lock: the call is repeated with a longer limit.
#[track_caller]
pub fn assert_gives_up<T, E>(mut call: impl FnMut(Duration) -> Result<Result<T, E>, Error>) {
    for limit in [50, 200, 800, 3_200].map(ms) {
        match call(limit) {
            Err(error) if error.is_unreachable() => {}
            outcome => {
                let acquired = outcome.expect("the servers reply").is_ok();
                assert!(!acquired, "the lock was acquired within {limit:?}");
                return;
            }
        }
    }
    panic!("no server has replied within 3.2 s");
}

/// Sets a flag when it is dropped, also by a panic. Threads of a scope that loop until the flag is
/// set then end in a failing test, too.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Makes a call while other threads repeat theirs without a pause. The call begins after each of
/// the others has returned once. The threads end when the call returns or panics.
#[track_caller]
pub fn while_others_repeat<T, F: FnMut() + Send>(
    others: impl IntoIterator<Item = F>,
    call: impl FnOnce() -> T,
) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = SetOnDrop(&is_over);
        let firsts: Vec<_> = others
            .into_iter()
            .map(|mut repeated| {
                let (is_over, (first, firsts)) = (&is_over, bounded(1));
                scope.spawn(move || {
                    while !is_over.load(Ordering::SeqCst) {
                        repeated();
                        let _ = first.try_send(());
                    }
                });
                firsts
            })
            .collect();
        firsts.iter().for_each(result_of);
        call()
    })
}

/// Asserts that a message wakes a waiter of this client while `release` runs. `release` returns
/// after the waiter has the lock.
///
/// To be called as soon as the waiter sleeps: 0.9 s later it refreshes its place in the queue, and
/// would get the lock without a message. On a busy machine, the attempt that follows the waiter's
/// subscription may run only now, and gets the lock before the waiter sleeps. That is no wake-up
/// and proves nothing about messages, so it is no failure.
#[track_caller]
pub fn assert_message_wakes<T>(waiter: &Client, release: impl FnOnce() -> T) -> T {
    let before = useful_wakes(waiter);
    let released = Instant::now();
    let outcome = release();
    let took = released.elapsed();
    assert!(
        useful_wakes(waiter) > before || took < ms(400),
        "no message woke the waiter in {took:?}: {:?}",
        waiter.stats()
    );
    outcome
}

/// Returns how often a wake-up led a waiter of this client to the lock.
pub fn useful_wakes(client: &Client) -> u64 {
    let totals = client.stats().totals;
    totals.wakes - totals.spurious_wakes
}
