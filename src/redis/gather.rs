//! Asks several members the same question at once, and waits a limited time for the slow ones.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError, bounded};
use redis::{RedisError, RedisResult};

use crate::clock::Instant;
use crate::parker::Parker;
use crate::thread_group::ThreadGroup;

/// How long the slower members are waited for once the answers would do.
pub(super) const GRACE: Duration = Duration::from_millis(300);

/// When answers count as late, unless half of the time is shorter: a client without a master waits
/// for most members until then.
const LATE_AFTER: Duration = Duration::from_millis(500);

/// Why there was no good answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// Most refused; this is one of the errors. A single member may be misconfigured or not set up
    /// yet, so a minority of refusals does not count.
    Refused(RedisError),
    /// Too few refused. The last other error and the index of its member; `None` if there was none
    /// in time.
    Silent(Option<(usize, RedisError)>),
}

/// Whether the answers so far are enough.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Enough {
    No,
    /// They would do. The slower members are waited for during [`GRACE`].
    Nearly,
    /// No further answer is waited for.
    Yes,
}

/// The answers so far.
pub(super) struct Answers<T> {
    /// The good answers, each with the index of its member.
    pub(super) good: Vec<(usize, T)>,
    /// How many members have answered or failed.
    pub(super) done: usize,
    /// How many were asked.
    pub(super) asked: usize,
    /// [`LATE_AFTER`] or half of the time is over.
    pub(super) is_late: bool,
}

/// Wakes the thread that gathers when dropped: an answer was sent, or none will be.
struct Woken(Arc<Parker>);

impl Drop for Woken {
    fn drop(&mut self) {
        self.0.unpark();
    }
}

/// Returns the next answer; `Empty` if there is none until `until`, and `Disconnected` if there
/// will be none.
fn receive<T>(answers: &Receiver<T>, parker: &Parker, until: Instant) -> Result<T, TryRecvError> {
    loop {
        match answers.try_recv() {
            Err(TryRecvError::Empty) if Instant::now() < until => parker.park(until),
            received => return received,
        }
    }
}

/// Runs all `asks` at once, each on its own thread, so that a dead member costs no time. Returns
/// the good answers, in the order of the members, once all members have answered, when `enough`
/// says so, or when `timeout` ends. An error for which `is_final` returns true is a refusal.
pub(super) fn gather<T, A>(
    dialers: &ThreadGroup,
    asks: impl IntoIterator<Item = A>,
    timeout: Duration,
    is_final: impl Fn(&RedisError) -> bool,
    enough: impl Fn(&Answers<T>) -> Enough,
) -> Result<Answers<T>, NoAnswer>
where
    T: Send + 'static,
    A: FnOnce() -> RedisResult<T> + Send + 'static,
{
    let asks: Vec<A> = asks.into_iter().collect();
    let (answer, answers) = bounded(asks.len());
    let parker = Arc::new(Parker::new());
    let (mut refusals, mut silence) = (Vec::new(), None);
    let mut state = Answers {
        good: Vec::new(),
        done: 0,
        asked: 0,
        is_late: false,
    };
    for (n, ask) in asks.into_iter().enumerate() {
        let (answer, woken) = (answer.clone(), Woken(Arc::clone(&parker)));
        let ask = move || {
            // Dropped after the sender: a thread that panics sends nothing.
            let _woken = woken;
            let answer = answer;
            // Nobody receives an answer that comes too late.
            let _ = answer.send((n, ask()));
        };
        match dialers.spawn(ask) {
            Ok(()) => state.asked += 1,
            Err(shortage) => silence = Some((n, shortage.into())),
        }
    }
    drop(answer);
    let start = Instant::now();
    let late = start.after(LATE_AFTER.min(timeout / 2));
    let mut end = start.after(timeout);
    let mut was_enough = false;
    loop {
        let now = Instant::now();
        state.is_late = now >= late;
        match enough(&state) {
            Enough::Yes => break,
            Enough::Nearly if !was_enough => {
                was_enough = true;
                end = end.min(now.after(GRACE));
            }
            Enough::Nearly | Enough::No => {}
        }
        let next = if state.is_late { end } else { late.min(end) };
        match receive(&answers, &parker, next) {
            Ok((n, answer)) => {
                state.done += 1;
                match answer {
                    Ok(good) => state.good.push((n, good)),
                    Err(error) if is_final(&error) => refusals.push(error),
                    Err(error) => silence = Some((n, error)),
                }
            }
            Err(TryRecvError::Empty) if Instant::now() < end => {}
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
        }
    }
    if !state.good.is_empty() {
        state.good.sort_by_key(|(n, _)| *n);
        return Ok(state);
    }
    match refusals.pop() {
        Some(refusal) if (refusals.len() + 1) * 2 > state.asked => Err(NoAnswer::Refused(refusal)),
        _ => Err(NoAnswer::Silent(silence)),
    }
}

#[cfg(test)]
mod tests {
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
}
