//! Tests of the circuit breaker.

use super::*;

fn at(ms: u64) -> Instant {
    Instant::START.after(Duration::from_millis(ms))
}

fn failed(times: u32) -> Breaker {
    let mut breaker = Breaker::new(5);
    for _ in 0..times {
        breaker.failed(at(0));
    }
    breaker
}

#[test]
fn five_failures_open_it_and_a_reply_closes_it() {
    let mut breaker = failed(4);
    assert!(breaker.admit(at(0)).is_ok());
    assert!(breaker.failed(at(0)), "the fifth opens it");
    let retry_in = breaker.admit(at(0)).unwrap_err();
    assert!(retry_in >= Duration::from_millis(800) && retry_in <= Duration::from_secs(1));
    assert!(breaker.admit(at(1_000)).is_ok(), "one call probes");
    assert!(breaker.admit(at(1_000)).is_err(), "no other call meanwhile");
    assert!(breaker.succeeded());
    assert!(breaker.admit(at(1_000)).is_ok() && !breaker.is_open());
}

#[test]
fn a_success_resets_the_count() {
    let mut breaker = failed(4);
    assert!(!breaker.succeeded(), "it was not open");
    for _ in 0..4 {
        assert!(!breaker.failed(at(0)));
    }
    assert!(!breaker.is_open());
}

#[test]
fn breaker_stays_open_twice_as_long_each_time_up_to_a_limit() {
    let mut breaker = failed(5);
    let mut now = at(0);
    let mut waits = Vec::new();
    for _ in 0..8 {
        let wait = breaker.admit(now).unwrap_err();
        waits.push(wait.as_millis());
        now = now.after(wait);
        assert!(breaker.admit(now).is_ok());
        breaker.failed(now);
    }
    let doubles = [1, 2, 4, 8, 16, 30, 30, 30].map(|seconds| seconds * 1_000);
    for (wait, double) in waits.iter().zip(doubles) {
        assert!(*wait <= double && *wait >= double * 8 / 10, "{waits:?}");
    }
}

#[test]
fn failures_of_calls_that_bypass_it_do_not_prolong_it() {
    let mut breaker = failed(5);
    let before = breaker.retry_in(at(0));
    for _ in 0..100 {
        assert!(!breaker.failed(at(10)));
    }
    assert_eq!(breaker.retry_in(at(0)), before);
}

#[test]
fn a_probe_without_an_outcome_is_followed_by_another() {
    let mut breaker = failed(5);
    assert!(breaker.admit(at(1_000)).is_ok());
    assert!(breaker.admit(at(2_999)).is_err());
    assert!(breaker.admit(at(3_000)).is_ok());
}

#[test]
fn a_probe_that_was_not_sent_is_followed_by_another_at_once() {
    let mut breaker = failed(5);
    assert!(breaker.admit(at(1_000)).is_ok());
    breaker.withdraw(at(1_001));
    assert!(breaker.is_open(), "nothing was answered");
    assert!(breaker.admit(at(1_001)).is_ok());
    assert!(breaker.admit(at(1_001)).is_err());
    breaker.succeeded();
    breaker.withdraw(at(1_001));
    assert!(!breaker.is_open());
}

#[test]
fn zero_never_opens() {
    let mut breaker = Breaker::new(0);
    for _ in 0..100 {
        assert!(!breaker.failed(at(0)));
    }
    assert!(breaker.admit(at(0)).is_ok());
}
