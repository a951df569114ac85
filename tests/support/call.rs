//! Calls in threads of their own.

use std::thread;

use crossbeam_channel::{Receiver, bounded};

use super::time::ms;

/// Runs a call in another thread and returns a channel for its result.
pub fn spawn_call<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (done, outcome) = bounded(1);
    thread::spawn(move || done.send(call()));
    outcome
}

/// Waits for the result of a call that must return now: generous for a busy machine.
#[track_caller]
pub fn result_of<T>(outcome: &Receiver<T>) -> T {
    outcome.recv_timeout(ms(20_000)).expect("the call returns")
}
