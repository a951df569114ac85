//! Asks several servers the same question at once; the first good answer wins.

use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};
use redis::{RedisError, RedisResult};

use crate::clock::Instant;
use crate::dialers::Dialers;

/// Why there was no good answer.
#[derive(Debug)]
pub(in crate::redis) enum Failure {
    /// Most refused; this is one of the errors. A single server may be misconfigured or not set up
    /// yet, so a minority of refusals does not count.
    Refused(RedisError),
    /// Too few refused. The last other error and the index of its server; `None` if there was none
    /// in time.
    Silent(Option<(usize, RedisError)>),
}

/// Runs all `asks` at once, each on its own thread, so that a dead server costs no time. An error
/// for which `is_final` returns true is a refusal.
pub(in crate::redis) fn inquire<T, A>(
    dialers: &Dialers,
    asks: impl IntoIterator<Item = A>,
    timeout: Duration,
    is_final: impl Fn(&RedisError) -> bool,
) -> Result<T, Failure>
where
    T: Send + 'static,
    A: FnOnce() -> RedisResult<T> + Send + 'static,
{
    let asks: Vec<A> = asks.into_iter().collect();
    let (answer, answers) = bounded(asks.len());
    let (mut asked, mut refusals, mut silence) = (0, Vec::new(), None);
    for (n, ask) in asks.into_iter().enumerate() {
        let answer = answer.clone();
        let ask = move || {
            // Nobody receives any more once another server has answered.
            let _ = answer.send((n, ask()));
        };
        match dialers.spawn(ask) {
            Ok(()) => asked += 1,
            Err(error) => silence = Some((n, error.into())),
        }
    }
    drop(answer);
    let deadline = Instant::now().after(timeout);
    loop {
        match answers.recv_timeout(Instant::now().until(deadline)) {
            Ok((_, Ok(told))) => return Ok(told),
            Ok((_, Err(error))) if is_final(&error) => refusals.push(error),
            Ok((n, Err(error))) => silence = Some((n, error)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    match refusals.pop() {
        Some(refusal) if (refusals.len() + 1) * 2 > asked => Err(Failure::Refused(refusal)),
        _ => Err(Failure::Silent(silence)),
    }
}

#[cfg(test)]
mod tests {
    use redis::ErrorKind;

    use super::*;
    use crate::error_reply::is_final_at_logon;

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

    fn inquiry(all: &'static [Asked], timeout: Duration) -> Result<usize, Failure> {
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
        let outcome = inquire(&Dialers::default(), asks, timeout, is_final_at_logon);
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
            assert!(matches!(inquiry(all, LONG), Err(Failure::Refused(_))));
        }
        match inquiry(&[Refuses, Fails], LONG) {
            Err(Failure::Silent(Some((1, error)))) => assert_eq!(error.kind(), ErrorKind::Io),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_timeout_without_errors_is_silence() {
        for all in [&[][..], &[Asked::Hangs]] {
            let outcome = inquiry(all, Duration::from_millis(1));
            assert!(matches!(outcome, Err(Failure::Silent(None))));
        }
    }
}
