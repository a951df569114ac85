//! The wait for the lock, during which signals are handled.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::{Receiver, bounded, never, select};
use leasehold::{Client, Error, Taken};
use signal_hook::consts::{SIGCHLD, SIGTSTP};

use crate::ancestors::{Ancestors, Lookout};
use crate::args::Run;
use crate::background;
use crate::children::reap_others;
use crate::exit::{self, Failure};
use crate::guard::Guard;
use crate::lock::{LockWait, Take};
use crate::refusal::not_acquired;
use crate::signals::ends;
use crate::stops::suspend;

/// The time limit of the client's shutdown. Nothing waits for it after that.
const LEAVING: Duration = Duration::from_secs(1);

/// The pause between attempts while Redis is unreachable.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// How many refusals do not count after an attempt without a reply. It may have acquired the lock,
/// and is undone as soon as Redis replies.
const UNDONE_AFTER: u32 = 4;

/// Waits for the lock, and handles signals during the wait.
///
/// A run that does not wait for the lock may wait for Redis, for `unreachable_for`.
pub(crate) fn wait(
    client: &Client,
    take: Take,
    args: &Run,
    unreachable_for: Option<Duration>,
    signals: &Receiver<i32>,
) -> Result<Box<dyn Guard>, Failure> {
    let (answer, answered) = bounded(1);
    let (asking, asked) = (client.clone(), args.clone());
    let waiting = move || {
        let taken = acquire(&asking, &take, &asked, unreachable_for.unwrap_or_default());
        // Fails only if a signal has ended the wait. The shutdown of the client releases the lock
        // if this call has acquired it.
        let _ = answer.send(taken);
    };
    thread::Builder::new()
        .name("leasehold-wait".into())
        .spawn(waiting)
        .map_err(|error| Failure::system("cannot start a thread", &error))?;
    let lookout = Lookout::start(client, args)?;
    let refusal = lookout.as_ref().map(|lookout| lookout.refusal.clone());
    let mut refusal = refusal.unwrap_or_else(never);
    loop {
        select! {
            recv(answered) -> taken => {
                // The thread always sends a result, unless it has panicked and printed why.
                let taken = taken.unwrap_or_else(|_| Err(Error::Closed.into()))?;
                return taken.map_err(|taken| not_acquired(client, args, &taken));
            }
            recv(refusal) -> refused => match refused {
                Ok(failure) => {
                    leave(client, signals, None);
                    return Err(failure);
                }
                // The thread has panicked and printed why.
                Err(_) => refusal = never(),
            },
            recv(signals) -> signal => match signal {
                Ok(signal) if ends(signal) => {
                    leave(client, signals, Some(Instant::now()));
                    return Err(Failure::new(exit::by_signal(signal), ""));
                }
                Ok(SIGTSTP) => suspend(),
                Ok(SIGCHLD) => reap_others(&[]),
                // USR1 and USR2 are meant for the command, which does not run yet.
                _ => {}
            }
        }
    }
}

/// Wakes the waiting thread, and undoes its attempt or releases its lock, while signals permit.
fn leave(client: &Client, signals: &Receiver<i32>, signal: Option<Instant>) {
    let client = client.clone();
    let shutdown = background::start("leasehold-leave", move || client.shutdown(LEAVING));
    background::wait_for(&shutdown, signals, signal);
}

/// Acquires the lock; returns [`Taken`] if it is not granted in time.
fn acquire(
    client: &Client,
    take: &Take,
    args: &Run,
    unreachable_for: Duration,
) -> Result<Result<Box<dyn Guard>, Taken>, Failure> {
    let limit = LockWait::of(args);
    if let LockWait::None = limit {
        return try_while_unreachable(take, unreachable_for);
    }
    let ancestors = Ancestors::of_environment();
    if !ancestors.is_empty() {
        // A call that waits has a place in the queue. So the first attempt does not wait. If Redis
        // does not reply now, the call below waits, and the lookout asks again.
        match take(LockWait::None) {
            Ok(Err(_)) => {
                if let Ok(Some(refusal)) = ancestors.refusal(client, args) {
                    return Err(refusal);
                }
            }
            Ok(granted) => return Ok(granted),
            Err(_) => {}
        }
    }
    Ok(take(limit)?)
}

/// Tries once, and again if Redis is unreachable, for at most this time.
fn try_while_unreachable(
    take: &Take,
    limit: Duration,
) -> Result<Result<Box<dyn Guard>, Taken>, Failure> {
    let began = Instant::now();
    let mut uncounted = 0;
    loop {
        match take(LockWait::None) {
            Err(error) if error.is_retryable() && began.elapsed() < limit => {
                if error.may_be_held() {
                    uncounted = UNDONE_AFTER;
                }
            }
            Ok(Err(_)) if uncounted > 0 => uncounted -= 1,
            // The error tells only how long the last attempt has waited.
            Err(error) if error.is_retryable() && !limit.is_zero() => {
                return Err(Failure::from(error).of_attempts_for(began.elapsed()));
            }
            outcome => return Ok(outcome?),
        }
        thread::sleep(TRY_AGAIN);
    }
}
