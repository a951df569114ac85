//! Sleeps of a thread of the system.

use std::time::Duration;

use super::*;

#[test]
fn wake_up_before_the_sleep_ends_it() {
    let parker = Parker::new();
    parker.unpark();
    parker.unpark();
    parker.park(Instant::NEVER);
    // The second call woke nobody.
    parker.park(Instant::now());
    assert!(!parker.is_woken.load(Ordering::SeqCst));
}

/// The program may park a thread of its own, too.
#[test]
fn wake_up_by_another_thread_does_not_end_the_sleep() {
    let parker = Parker::new();
    current_thread().unpark();
    let until = Instant::now().after(Duration::from_millis(20));
    parker.park(until);
    assert!(Instant::now() >= until);
}

#[test]
fn wake_up_that_another_sleep_has_used_up_is_noticed() {
    let parker = Parker::new();
    parker.unpark();
    park_timeout(Duration::from_secs(60));
    parker.park(Instant::NEVER);
}
