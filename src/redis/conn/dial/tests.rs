//! Tests of dialing.

use super::*;

const LIMIT: Duration = Duration::from_secs(2);

fn at(seconds: u64) -> Instant {
    Instant::START.after(Duration::from_secs(seconds))
}

fn refused() -> ConnectError {
    ConnectError {
        cause: Cause::text("refused"),
        is_final: false,
        is_servers_fault: true,
    }
}

#[test]
fn one_dialer_works_at_a_time() {
    let mut dialing = Dialing::default();
    assert!(dialing.needs_dialer(at(0), LIMIT));
    let number = dialing.start(at(0));
    assert!(!dialing.needs_dialer(at(1), LIMIT));
    assert!(dialing.begin(number, at(0)));
    dialing.succeeded();
    dialing.stop();
    assert!(dialing.needs_dialer(at(1), LIMIT));
}

#[test]
fn hanging_dialers_are_abandoned_up_to_a_limit() {
    let mut dialing = Dialing::default();
    let first = dialing.start(at(0));
    let mut now = 0;
    for _ in 0..MOST_ABANDONED {
        now += 3;
        assert!(dialing.needs_dialer(at(now), LIMIT));
        dialing.start(at(now));
    }
    assert!(
        !dialing.needs_dialer(at(now + 3), LIMIT),
        "the limit of abandoned dialers is reached"
    );
    assert!(!dialing.begin(first, at(now + 3)));
    assert!(dialing.needs_dialer(at(now + 3), LIMIT));
}

#[test]
fn a_dialer_that_pauses_does_not_hang() {
    let mut dialing = Dialing::default();
    let number = dialing.start(at(0));
    for _ in 0..10 {
        dialing.failed(at(0), refused());
    }
    assert!(dialing.begin(number, at(0)));
    let pause = dialing.pause(at(0));
    let limit = pause / 4;
    assert!(!dialing.needs_dialer(at(0).after(pause), limit));
    assert!(dialing.needs_dialer(at(0).after(pause * 2), limit));
}

#[test]
fn after_a_takeover_a_new_dialer_starts_without_a_pause() {
    let mut dialing = Dialing::default();
    let before = dialing.start(at(0));
    dialing.failed(at(0), refused());
    dialing.abandon_current();
    assert!(dialing.needs_dialer(at(0), LIMIT));
    assert_eq!(dialing.pause(at(0)), Duration::ZERO);
    let after = dialing.start(at(0));
    assert!(!dialing.begin(before, at(0)));
    assert!(dialing.begin(after, at(0)));
}

#[test]
fn abandoned_dialer_counts_until_it_returns() {
    let mut dialing = Dialing::default();
    for _ in 0..2 * MOST_ABANDONED {
        let number = dialing.start(at(0));
        dialing.abandon_current();
        assert!(!dialing.begin(number, at(0)));
        assert!(dialing.needs_dialer(at(0), LIMIT));
    }
    let hanging = dialing.start(at(0));
    assert!(dialing.needs_dialer(at(3), LIMIT));
    assert!(dialing.begin(hanging, at(3)) && dialing.is_current(hanging));
}

#[test]
fn failures_are_followed_by_growing_pauses() {
    let mut dialing = Dialing::default();
    dialing.failed(at(0), refused());
    let first = dialing.pause(at(0));
    assert!(first > Duration::ZERO && first <= Duration::from_millis(50));
    for _ in 0..10 {
        dialing.failed(at(0), refused());
    }
    assert!(dialing.pause(at(0)) > first && dialing.pause(at(0)) <= Duration::from_millis(500));
    assert!(dialing.failure.is_some());
    dialing.succeeded();
    assert_eq!(dialing.pause(at(0)), Duration::ZERO);
    assert!(dialing.failure.is_none());
}
