//! Threads of the system that wait for a cancellation.

use std::thread;

use crossbeam_channel::{RecvError, TryRecvError};

use super::*;

#[test]
fn cancel_disconnects_every_receiver_of_the_token() {
    let token = CancelToken::new();
    let others = [token.clone(), token.clone()];
    let receivers = others.map(|other| other.receiver().clone());
    for receiver in &receivers {
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    }
    token.cancel();
    token.cancel();
    for receiver in &receivers {
        assert_eq!(receiver.recv(), Err(RecvError));
    }
    assert!(token.is_cancelled());
}

#[test]
fn cancel_wakes_every_thread_that_sleeps_and_keeps_none() {
    let token = CancelToken::new();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| token.park(&Parker::new(), Instant::NEVER));
        }
        while token.0.asleep.lock().len() < 4 {
            thread::yield_now();
        }
        token.cancel();
    });
    token.park(&Parker::new(), Instant::NEVER);
    assert!(token.0.asleep.lock().is_empty());
}
