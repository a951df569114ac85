//! A model of cancellations in thousands of thread schedules.

use shuttle::sync::Arc;
use shuttle::thread::spawn;

use super::*;

/// Threads sleep with a token until another thread cancels it.
fn run(cancel: fn(&CancelToken)) {
    let token = Arc::new(CancelToken::new());
    let sleeping = [(); 2].map(|()| {
        let token = Arc::clone(&token);
        spawn(move || token.park(&Parker::new(), Instant::NEVER))
    });
    cancel(&token);
    for thread in sleeping {
        thread.join().unwrap();
    }
    assert!(token.0.asleep.lock().is_empty());
}

#[test]
fn no_cancellation_is_missed() {
    shuttle::check_random(|| run(CancelToken::cancel), 5_000);
}

/// Shows that the model finds a thread that sleeps on.
#[test]
#[should_panic(expected = "deadlock")]
fn a_flag_that_is_set_after_the_threads_are_woken_is_missed() {
    let wrong = |token: &CancelToken| {
        let asleep = mem::take(&mut *token.0.asleep.lock());
        asleep.values().for_each(Thread::unpark);
        token.0.is_cancelled.store(true, Ordering::SeqCst);
    };
    shuttle::check_random(move || run(wrong), 5_000);
}
