//! Acquires a lock: checks the call, tries or waits, and counts the outcome.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Instant, sleep};
use crate::config::Settings;
use crate::error::Error;
use crate::lease::held::HeldLease;
use crate::lock::attempt::{Attempt, Attempted, SPLIT_VOTE_BACKOFF};
use crate::lock::cancellable::{CallOutcome, until_cancelled};
use crate::lock::silence::Silence;
use crate::lock::waiting_call::WaitingCall;
use crate::protocol::primitive::{Primitive, Queueing};
use crate::queue::answers::LastRefusal;
use crate::redis::Fault;
use crate::runtime::Runtime;
use crate::taken::Taken;
use crate::wait_policy::RECONNECT;

/// How long a call waits for a lock that is held.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitLimit {
    /// Does not wait.
    None,
    Until(Instant),
    /// Waits without a deadline.
    Endless,
}

/// Acquires the lock, waiting within `limit`.
///
/// Returns [`Taken`] in these cases:
///
/// * with [`WaitLimit::None`]: those of [`at_once`];
/// * with [`WaitLimit::Until`], at the deadline: this client holds the lock, or the replies of
///   Redis show that it is taken: [`Answers::is_taken`](crate::queue::answers::Answers::is_taken);
/// * with [`WaitLimit::Until`], before the deadline: the policy allows no more attempts.
pub(crate) fn acquire(
    runtime: &Arc<Runtime>,
    keys: &Arc<dyn Primitive>,
    settings: &Settings,
    limit: WaitLimit,
) -> Result<Result<Arc<HeldLease>, Taken>, Error> {
    runtime.process.check()?;
    if let Some(token) = &settings.cancel {
        token.process().check()?;
    }
    let start = Instant::now();
    let (outcome, has_waited) = match &settings.cancel {
        None => take(runtime, keys, settings, limit, start),
        Some(token) => {
            let on_its_thread = || {
                let (its_runtime, keys, settings) =
                    (Arc::clone(runtime), keys.clone(), settings.clone());
                let call = move || take(&its_runtime, &keys, &settings, limit, start);
                let (outcome, has_waited) = until_cancelled(runtime, token, call);
                outcome.map(|hold| (hold, has_waited))
            };
            let check = || match token.is_cancelled() {
                true => Err(Error::Cancelled),
                false => runtime.check_open(),
            };
            match with_threads(limit, check, on_its_thread) {
                Ok((hold, has_waited)) => (Ok(hold), has_waited),
                Err(error) => (Err(error), false),
            }
        }
    };
    let counters = &runtime.meters.counters;
    match (&outcome, limit) {
        (Ok(Ok(hold)), _) => {
            let since = hold.since().unwrap_or(start);
            runtime.meters.acquired(has_waited, start.until(since));
        }
        (Ok(Err(_)), WaitLimit::Until(deadline)) if Instant::now() >= deadline => {
            counters.timed_out.up();
        }
        (Ok(Err(_)) | Err(Error::AttemptsUsedUp { .. }), _) => counters.refused.up(),
        (Err(Error::Cancelled), _) => counters.cancelled.up(),
        (Err(_), _) => counters.failed.up(),
    }
    outcome
}

/// Acquires the lock without counting the outcome.
fn take(
    runtime: &Arc<Runtime>,
    keys: &Arc<dyn Primitive>,
    settings: &Settings,
    limit: WaitLimit,
    start: Instant,
) -> CallOutcome {
    let mut has_waited = false;
    let outcome = take_or_fail(runtime, keys, settings, limit, start, &mut has_waited);
    (outcome, has_waited)
}

/// Starts the threads that a lease needs.
fn start_threads(attempt: &Attempt<'_>) -> Result<(), Error> {
    attempt.runtime.start()?;
    let settings = attempt.settings;
    match settings.on_lost.is_some() || settings.on_renew.is_some() {
        true => attempt.runtime.callbacks.start(),
        false => Ok(()),
    }
}

/// Calls `act` again and again while it cannot start a thread, as long as the call may wait and
/// `check` succeeds.
fn with_threads<T>(
    limit: WaitLimit,
    check: impl Fn() -> Result<(), Error>,
    act: impl Fn() -> Result<T, Error>,
) -> Result<T, Error> {
    let mut failures = 0;
    loop {
        let error = match act() {
            Err(error @ Error::Thread { .. }) => error,
            outcome => return outcome,
        };
        check()?;
        let left = match limit {
            WaitLimit::None => Duration::ZERO,
            WaitLimit::Until(deadline) => Instant::now().until(deadline),
            WaitLimit::Endless => Duration::MAX,
        };
        if left.is_zero() {
            return Err(error);
        }
        sleep(RECONNECT.pause(failures).min(left));
        failures += 1;
    }
}

/// Sets `has_waited` if the call waited for another holder, unless it returns an error.
fn take_or_fail(
    runtime: &Arc<Runtime>,
    keys: &Arc<dyn Primitive>,
    settings: &Settings,
    limit: WaitLimit,
    start: Instant,
    has_waited: &mut bool,
) -> Result<Result<Arc<HeldLease>, Taken>, Error> {
    runtime.check(keys)?;
    let terms = settings.terms(&runtime.config)?;
    runtime.deployment.check_terms(&terms)?;
    runtime.check_open()?;
    let deadline = match limit {
        WaitLimit::None => start.after(runtime.deployment.command_timeout()),
        WaitLimit::Until(deadline) => deadline,
        WaitLimit::Endless => Instant::NEVER,
    };
    let attempt = Attempt {
        runtime,
        keys,
        settings,
        terms,
        start,
        deadline,
        silence: Silence::new(runtime, keys, start, deadline),
    };
    with_threads(
        limit,
        || attempt.check_not_ended(),
        || start_threads(&attempt),
    )?;
    if let WaitLimit::None = limit {
        return at_once(&attempt);
    }
    let mut call = WaitingCall::new(&attempt);
    let hold = call.run()?;
    *has_waited = call.has_waited;
    match (hold, limit) {
        // Without a deadline, only the attempt limit of the policy ends a wait with `None`.
        (None, WaitLimit::Endless) => Err(Error::AttemptsUsedUp {
            attempts: call.refusals(),
        }),
        (hold, _) => Ok(hold.ok_or_else(|| call.taken())),
    }
}

/// Acquires the lock without waiting for another holder.
///
/// Retries until Redis replies, for at most the command timeout, unless the breaker is open.
/// Returns [`Taken`] if
///
/// * this client holds the lock,
/// * another call of this client has the place in the queue in Redis, and Redis has answered since
///   the last failure,
/// * Redis refuses the lock, or
/// * the votes are still split when no time is left for another attempt.
fn at_once(attempt: &Attempt<'_>) -> Result<Result<Arc<HeldLease>, Taken>, Error> {
    let key = attempt.keys.key(0);
    let tokens = attempt.tokens(attempt.runtime.waiters.anybody_for(key.name));
    let mut splits = 0;
    let (name, last) = loop {
        attempt.check_not_ended()?;
        let shared = attempt.shared();
        // If nothing was answered since a failure, the place may be gone and the lock free.
        let is_failing = || attempt.runtime.deployment.is_failing(key);
        let is_taken = || shared.is_some_and(|it| it.is_taken) && !is_failing();
        if attempt.held_here().is_some() || is_taken() {
            break (0, attempt.runtime.waiters.last_refusal(key.name));
        }
        let pause = match attempt.try_once(tokens, Queueing::Barge) {
            Ok((Attempted::Acquired(hold), _)) => return Ok(Ok(hold)),
            Ok((Attempted::Refused(by), sent)) => {
                let last = LastRefusal::new(sent, Instant::now(), &by);
                break (by.name, Some(last));
            }
            Ok((Attempted::SplitVote, _)) => {
                let pause = SPLIT_VOTE_BACKOFF.pause(splits);
                splits += 1;
                if Instant::now().after(pause) >= attempt.deadline {
                    // Other calls each hold the lock on some servers.
                    break (0, None);
                }
                pause
            }
            Err(Fault::Open(open)) => {
                return Err(attempt.silence.open_circuit_error(*open, Instant::now()));
            }
            Err(fault) => attempt.silence.pause_after(fault)?,
        };
        sleep(pause);
    };
    let taken = attempt.taken(name, last.as_ref());
    attempt.log_refused("refused", taken.remaining());
    Ok(Err(taken))
}
