//! Tests of asking several servers at once.

use redis::ErrorKind;

use super::*;
use crate::error_reply::is_final_at_logon;
use crate::thread_group::DIALER;

/// How a server behaves in the test.
#[derive(Clone, Copy)]
enum Behavior {
    Knows,
    Refuses,
    Fails,
    Hangs,
}

/// Longer than any answer takes. A server that hangs answers after it, or when `ask_all` ends.
const LONG: Duration = Duration::from_secs(20);

fn ask_all(all: &'static [Behavior], timeout: Duration) -> Result<usize, NoAnswer> {
    let (over, is_over) = bounded::<()>(0);
    let ask = |(n, server): (usize, &'static Behavior)| {
        let is_over = is_over.clone();
        move || match server {
            Behavior::Knows => Ok(n),
            Behavior::Refuses => Err((ErrorKind::AuthenticationFailed, "refused").into()),
            Behavior::Fails => Err((ErrorKind::Io, "failed").into()),
            Behavior::Hangs => {
                let _ = is_over.recv_timeout(LONG);
                Ok(n)
            }
        }
    };
    let asks = all.iter().enumerate().map(ask);
    let outcome = first_answer(&ThreadGroup::new(DIALER), asks, timeout, is_final_at_logon);
    drop(over);
    outcome
}

#[test]
fn the_first_good_answer_wins() {
    use Behavior::{Fails, Hangs, Knows, Refuses};
    assert!(matches!(ask_all(&[Knows], LONG), Ok(0)));
    assert!(matches!(ask_all(&[Fails, Hangs, Knows], LONG), Ok(2)));
    assert!(matches!(ask_all(&[Refuses, Refuses, Knows], LONG), Ok(2)));
}

#[test]
fn only_a_majority_of_refusals_is_a_refusal() {
    use Behavior::{Fails, Refuses};
    for all in [&[Refuses][..], &[Refuses, Fails, Refuses]] {
        assert!(matches!(ask_all(all, LONG), Err(NoAnswer::Refused(_))));
    }
    match ask_all(&[Refuses, Fails], LONG) {
        Err(NoAnswer::Silent(Some((1, error)))) => assert_eq!(error.kind(), ErrorKind::Io),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_timeout_without_errors_is_silence() {
    for all in [&[][..], &[Behavior::Hangs]] {
        let outcome = ask_all(all, Duration::from_millis(1));
        assert!(matches!(outcome, Err(NoAnswer::Silent(None))));
    }
}
