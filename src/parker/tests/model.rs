//! A model of sleeps in thousands of thread schedules.

use shuttle::sync::Arc;
use shuttle::thread::{park, spawn};

use super::*;

const TIMES: usize = 3;

/// A thread waits for several outcomes, one after the other. It also parks for another reason, and
/// a thread that knows nothing of its outcomes unparks it for that.
fn run(unpark: fn(&Parker)) {
    let other = {
        let waiting = current_thread();
        spawn(move || waiting.unpark())
    };
    let outcomes = [(); TIMES].map(|()| {
        let cell = Arc::new((Parker::new(), AtomicBool::new(false)));
        let waker = {
            let cell = Arc::clone(&cell);
            spawn(move || {
                cell.1.store(true, Ordering::SeqCst);
                unpark(&cell.0);
            })
        };
        (cell, waker)
    });
    park();
    for (cell, waker) in outcomes {
        let (parker, has_outcome) = &*cell;
        while !has_outcome.load(Ordering::SeqCst) {
            parker.park(Instant::NEVER);
        }
        waker.join().unwrap();
    }
    other.join().unwrap();
}

/// A waiter whose outcome is there before the sleep does not look at it: it sleeps once for each.
fn run_blind(unpark: fn(&Parker)) {
    let parkers = [(); TIMES].map(|()| Arc::new(Parker::new()));
    let wakers = parkers.each_ref().map(|parker| {
        let parker = Arc::clone(parker);
        spawn(move || unpark(&parker))
    });
    for parker in &parkers {
        parker.park(Instant::NEVER);
    }
    for waker in wakers {
        waker.join().unwrap();
    }
}

#[test]
fn no_wake_up_is_lost() {
    shuttle::check_random(|| run(Parker::unpark), 5_000);
    shuttle::check_random(|| run_blind(Parker::unpark), 5_000);
}

/// Shows that the model finds a lost wake-up.
#[test]
#[should_panic(expected = "deadlock")]
fn a_flag_that_is_set_after_the_wake_up_loses_it() {
    let wrong = |parker: &Parker| {
        parker.thread.unpark();
        parker.is_woken.store(true, Ordering::SeqCst);
    };
    shuttle::check_random(move || run_blind(wrong), 5_000);
}

/// The token of the thread is used up by whatever parks it.
#[test]
#[should_panic(expected = "deadlock")]
fn a_wake_up_without_a_flag_is_lost() {
    shuttle::check_random(|| run_blind(|parker| parker.thread.unpark()), 5_000);
}
