//! Tests of asking several servers at once.

use redis::ErrorKind;

use super::*;
use crate::error_reply::is_final_at_logon;

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

fn ask_all(all: &'static [Behavior], timeout: Duration) -> Result<Vec<usize>, NoAnswer> {
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
    let enough = |answers: &Answers<usize>| {
        if answers.good.is_empty() {
            Enough::No
        } else {
            Enough::Nearly
        }
    };
    let dialers = ThreadGroup::default();
    let outcome = gather(&dialers, asks, timeout, is_final_at_logon, enough);
    drop(over);
    let answers = outcome?.good.into_iter();
    Ok(answers.map(|(_, answer)| answer).collect())
}

#[test]
fn all_answers_count_that_come_in_time() {
    use Behavior::{Fails, Hangs, Knows, Refuses};
    for (all, expected) in [
        (&[Knows][..], &[0][..]),
        (&[Knows, Fails, Knows], &[0, 2]),
        (&[Refuses, Refuses, Knows], &[2]),
        (&[Fails, Hangs, Knows], &[2]),
    ] {
        assert_eq!(ask_all(all, LONG).unwrap(), expected);
    }
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
