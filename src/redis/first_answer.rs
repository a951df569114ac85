//! Asks several servers the same question at once; the first good answer wins.

use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};
use redis::{RedisError, RedisResult};

use crate::clock::Instant;
use crate::thread_group::ThreadGroup;

/// Why there was no good answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// Most refused; this is one of the errors. A single server may be misconfigured or not set up
    /// yet, so a minority of refusals does not count.
    Refused(RedisError),
    /// Too few refused. The last other error and the index of its server; `None` if there was none
    /// in time.
    Silent(Option<(usize, RedisError)>),
}

/// Runs all `asks` at once, each on its own thread, so that a dead server costs no time. An error
/// for which `is_final` returns true is a refusal.
pub(super) fn first_answer<T, A>(
    dialers: &ThreadGroup,
    asks: impl IntoIterator<Item = A>,
    timeout: Duration,
    is_final: impl Fn(&RedisError) -> bool,
) -> Result<T, NoAnswer>
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
            Ok((_, Ok(good))) => return Ok(good),
            Ok((_, Err(error))) if is_final(&error) => refusals.push(error),
            Ok((n, Err(error))) => silence = Some((n, error)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    match refusals.pop() {
        Some(refusal) if (refusals.len() + 1) * 2 > asked => Err(NoAnswer::Refused(refusal)),
        _ => Err(NoAnswer::Silent(silence)),
    }
}

#[cfg(test)]
mod tests;
