//! Tests of asking several servers at once.

use redis::ErrorKind;

use super::*;
use crate::error_reply::is_final_at_logon;
use crate::thread_group::DIALER;

/// How a server behaves in the test.
#[derive(Clone, Copy)]
enum Asked {
    Knows,
    Refuses,
    Fails,
    Hangs,
}

/// Longer than any answer takes; a server that hangs answers after it.
const LONG: Duration = Duration::from_secs(20);

fn inquiry(all: &'static [Asked], timeout: Duration) -> Result<usize, NoAnswer> {
    let (over, is_over) = bounded::<()>(0);
    let ask = |(n, asked): (usize, &'static Asked)| {
        let is_over = is_over.clone();
        move || match asked {
            Asked::Knows => Ok(n),
            Asked::Refuses => Err((ErrorKind::AuthenticationFailed, "refused").into()),
            Asked::Fails => Err((ErrorKind::Io, "failed").into()),
            Asked::Hangs => {
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
    use Asked::{Fails, Hangs, Knows, Refuses};
    assert!(matches!(inquiry(&[Knows], LONG), Ok(0)));
    assert!(matches!(inquiry(&[Fails, Hangs, Knows], LONG), Ok(2)));
    assert!(matches!(inquiry(&[Refuses, Refuses, Knows], LONG), Ok(2)));
}

#[test]
fn only_a_majority_of_refusals_is_a_refusal() {
    use Asked::{Fails, Refuses};
    for all in [&[Refuses][..], &[Refuses, Fails, Refuses]] {
        assert!(matches!(inquiry(all, LONG), Err(NoAnswer::Refused(_))));
    }
    match inquiry(&[Refuses, Fails], LONG) {
        Err(NoAnswer::Silent(Some((1, error)))) => assert_eq!(error.kind(), ErrorKind::Io),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_timeout_without_errors_is_silence() {
    for all in [&[][..], &[Asked::Hangs]] {
        let outcome = inquiry(all, Duration::from_millis(1));
        assert!(matches!(outcome, Err(NoAnswer::Silent(None))));
    }
}
