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
fn five_failures_open_it_and_an_answer_closes_it() {
    let mut breaker = failed(4);
    assert_eq!(breaker.admit(at(0)), Ok(false));
    assert!(breaker.failed(at(0)), "the fifth opens it");
    assert_eq!(breaker.admit(at(0)), Err(EVERY));
    assert!(breaker.succeeded());
    assert!(breaker.admit(at(0)) == Ok(false) && !breaker.is_open());
}

#[test]
fn only_failures_in_a_row_open_it() {
    let mut breaker = failed(4);
    assert!(!breaker.succeeded(), "it was not open");
    for _ in 0..4 {
        assert!(!breaker.failed(at(0)));
    }
    assert!(!breaker.is_open());
}

#[test]
fn one_call_starts_in_a_second() {
    let mut breaker = failed(5);
    for second in 1..9 {
        let now = second * 1_000;
        assert_eq!(breaker.admit(at(now)), Ok(true));
        breaker.ended();
        assert!(breaker.admit(at(now + 999)).is_err());
        assert!(!breaker.failed(at(now)), "it was open");
    }
}

#[test]
fn one_call_is_on_its_way_at_a_time() {
    let mut breaker = failed(5);
    assert_eq!(breaker.admit(at(1_000)), Ok(true));
    assert_eq!(breaker.admit(at(9_000)), Err(BUSY));
    breaker.ended();
    assert_eq!(breaker.admit(at(9_000)), Ok(true));
}

#[test]
fn zero_failures_disable_it() {
    let mut breaker = Breaker::new(0);
    for _ in 0..100 {
        assert!(!breaker.failed(at(0)));
    }
    assert_eq!(breaker.admit(at(0)), Ok(false));
}
