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
        is_unanswered: false,
    }
}

#[test]
fn one_dialer_works_at_a_time() {
    let mut dialing = Dialing::default();
    assert!(dialing.needs_dialer(at(0), LIMIT));
    let number = dialing.start(at(0));
    assert!(!dialing.needs_dialer(at(1), LIMIT));
    assert!(dialing.begin(number, at(0)));
    dialing.connected(at(0));
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
    dialing.connected(at(0));
    assert_eq!(dialing.pause(at(0)), Duration::ZERO);
    assert!(dialing.failure.is_none());
}

#[test]
fn connections_that_are_closed_soon_are_followed_by_growing_pauses() {
    let mut dialing = Dialing::default();
    let mut made_and_closed = |made, closed| {
        dialing.connected(at(made));
        dialing.closed(at(closed), refused());
        dialing.pause(at(closed))
    };
    assert_eq!(made_and_closed(0, 0), Duration::ZERO, "the first one");
    let first = made_and_closed(0, 0);
    assert!(first > Duration::ZERO && first <= Duration::from_millis(50));
    let longest = (0..10).map(|_| made_and_closed(0, 0)).max().unwrap();
    assert!(longest > Duration::from_secs(3) && longest <= Duration::from_secs(5));
    assert_eq!(
        made_and_closed(1, 7),
        Duration::ZERO,
        "it has lived for 6 s"
    );
    for _ in 0..10 {
        made_and_closed(8, 8);
    }
    dialing.connected(at(9));
    dialing.proven();
    dialing.closed(at(9), refused());
    assert_eq!(dialing.pause(at(9)), Duration::ZERO, "a write was answered");
}

#[test]
fn limit_grows_only_while_the_server_accepts_and_does_not_reply() {
    let mut dialing = Dialing::default();
    let mut fails = |cause, is_unanswered| {
        let failure = ConnectError {
            cause,
            is_unanswered,
            ..refused()
        };
        dialing.failed(at(0), failure);
        (dialing.limit(LIMIT).as_secs(), dialing.pause(at(0)))
    };
    let no_tcp = || Cause::silence("no connection in 1 s");
    let mut silent = |_| fails(no_tcp(), true);
    let grown: Vec<_> = (0..40).map(&mut silent).collect();
    let limits: Vec<_> = grown.iter().map(|(limit, _)| *limit).collect();
    assert_eq!(limits[..3], [16, 30, 30]);
    assert_eq!(limits[39], 30);
    let longest = grown.iter().map(|(_, pause)| *pause).max().unwrap();
    assert!(longest > Duration::from_millis(1_500) && longest <= Duration::from_secs(3));
    let (limit, pause) = fails(no_tcp(), false);
    assert!(
        limit == 30 && pause <= Duration::from_millis(500),
        "{pause:?}"
    );
    let (limit, pause) = fails(Cause::text("refused"), false);
    assert!(
        limit == 2 && pause <= Duration::from_millis(500),
        "{pause:?}"
    );
    let longer = Duration::from_secs(60);
    assert_eq!(Dialing::default().limit(longer), longer);
}
