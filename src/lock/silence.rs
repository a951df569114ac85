//! A call's commands without a reply: the pauses after them, and the error when the call gives up.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::{Cause, Error};
use crate::protocol::primitive::Primitive;
use crate::redis::{Fault, OpenCircuit};
use crate::runtime::Runtime;
use crate::wait_policy::RECONNECT;

/// The interval at which a waiting call checks whether an open breaker has closed.
const RETRY_CHECK_EVERY: Duration = Duration::from_millis(250);

/// After this many malformed replies in a row, the peer is not a Redis server.
const MAX_MALFORMED: u32 = 3;

/// After this many refusals, a server that has never run a script of this client never will.
const MAX_REFUSALS: u32 = 3;

/// A call's record of its commands without a reply.
pub(crate) struct Silence<'a> {
    runtime: &'a Arc<Runtime>,
    keys: &'a Arc<dyn Primitive>,
    /// When the call ends.
    deadline: Instant,
    /// The silence of Redis counts from this instant at the earliest.
    counts_from: Cell<Instant>,
    /// When the first of the commands without a reply, in a row, failed. The servers may answer
    /// other calls meanwhile, or each other command of this call.
    failing_since: Cell<Option<Instant>>,
    /// Commands without a reply, in a row.
    failures: Cell<u32>,
    /// The last cause reported by Redis or the system: more telling than "timed out".
    last_cause: RefCell<Option<Cause>>,
    /// Why a command of this call last failed; `None` if none has failed since the last reply.
    failure: RefCell<Option<Cause>>,
    /// Malformed replies in a row.
    malformed: Cell<u32>,
    /// Refusals of a server that has never run a script of this client.
    refusals: Cell<u32>,
    /// This call sent a command that has run, or may yet run.
    has_sent: Cell<bool>,
}

impl<'a> Silence<'a> {
    /// Returns the record of a call from `start` to `deadline`.
    pub(crate) fn new(
        runtime: &'a Arc<Runtime>,
        keys: &'a Arc<dyn Primitive>,
        start: Instant,
        deadline: Instant,
    ) -> Self {
        Self {
            runtime,
            keys,
            deadline,
            counts_from: Cell::new(start),
            failing_since: Cell::default(),
            failures: Cell::new(0),
            last_cause: RefCell::default(),
            failure: RefCell::default(),
            malformed: Cell::new(0),
            refusals: Cell::new(0),
            has_sent: Cell::new(false),
        }
    }

    /// Returns the deadline for the reply to a command that is sent now.
    pub(crate) fn reply_deadline(&self) -> Instant {
        let now = Instant::now();
        let timeout = self.runtime.deployment.command_timeout();
        now.after(timeout).min(self.end(now))
    }

    /// Returns why the last command failed, if Redis has now been silent for too long.
    ///
    /// A further command would have no time for a reply, and its failure would hide this cause.
    pub(crate) fn final_failure(&self) -> Option<Cause> {
        let failure = self.failure.borrow();
        let cause = failure.as_ref()?;
        self.is_too_long(Instant::now()).then(|| cause.clone())
    }

    /// Records whether the command with this outcome has run, or may yet run. A valid reply resets
    /// the count of malformed ones.
    pub(crate) fn note_sent<T>(&self, answer: &Result<T, Fault>) {
        let was_sent = answer.as_ref().err().is_none_or(Fault::may_have_run);
        self.has_sent.set(self.has_sent.get() || was_sent);
        if answer.is_ok() {
            self.malformed.set(0);
        }
    }

    /// Records a reply to an attempt or a refresh: the next fault is the first in a row, and no
    /// earlier failure is its cause.
    pub(crate) fn note_reply(&self) {
        self.failures.set(0);
        self.failing_since.take();
        self.last_cause.take();
        self.failure.take();
    }

    /// Returns how long to pause after a fault before the next attempt.
    ///
    /// Fails with the error of the call if it must give up.
    pub(crate) fn pause_after(&self, fault: Fault) -> Result<Duration, Error> {
        self.runtime.check_open()?;
        let failures = self.failures.get();
        self.failures.set(failures.saturating_add(1));
        if self.failing_since.get().is_none() {
            self.failing_since.set(Some(Instant::now()));
        }
        let cause = match fault {
            Fault::NotReplicated(error) | Fault::Rejected(error) => return Err(error),
            Fault::NotRun(cause) if Instant::now() >= self.deadline => {
                cause.or_refusal_before(self.last_cause.borrow().as_ref())
            }
            Fault::NotRun(cause) | Fault::Unknown(cause) => cause,
            Fault::Open(open) => return self.pause_while_open(*open),
        };
        self.check_is_redis(&cause)?;
        self.check_runs_scripts(&cause)?;
        let cause = cause.or_said_before(&mut self.last_cause.borrow_mut());
        self.failure.replace(Some(cause.clone()));
        let now = Instant::now();
        if cause.shortage().is_some() || cause.is_of_moving_slot() {
            // Says nothing about Redis, or that it serves the client: the call goes on.
            self.failing_since.take();
            self.counts_from.set(now);
        }
        if now >= self.deadline || self.is_too_long(now) {
            return Err(self.unreachable(cause, now));
        }
        // A pooled connection that had died unnoticed costs one attempt and no pause.
        let pause = match failures {
            0 => Duration::ZERO,
            _ => RECONNECT.pause(failures - 1),
        };
        Ok(pause.min(now.until(self.end(now))))
    }

    /// Fails if the peer is not a Redis server.
    ///
    /// It fails at once if the peer speaks another protocol, otherwise after several malformed
    /// replies in a row.
    fn check_is_redis(&self, cause: &Cause) -> Result<(), Error> {
        let malformed = self.malformed.get() + u32::from(cause.is_malformed());
        self.malformed.set(malformed);
        let cause = match cause {
            cause if cause.is_not_redis() => cause.clone(),
            cause if malformed >= MAX_MALFORMED => cause.last_malformed(malformed),
            _ => return Ok(()),
        };
        Err(self.runtime.deployment.unreachable(cause))
    }

    /// Fails if the server refuses each command of this call, and has never run a script.
    fn check_runs_scripts(&self, cause: &Cause) -> Result<(), Error> {
        let Some(refusal) = cause.refusal().filter(|refusal| refusal.may_last) else {
            return Ok(());
        };
        self.refusals.set(self.refusals.get() + 1);
        match self.refusals.get() {
            ..MAX_REFUSALS => Ok(()),
            _ => Err(Error::Refused {
                server: refusal.server.clone(),
                command: refusal.command,
                answer: refusal.answer.clone(),
                retried_for: None,
            }),
        }
    }

    /// Returns how long a waiting call pauses while the breaker is open.
    ///
    /// An answer to another call wakes no waiter, so the waiting call checks for one.
    fn pause_while_open(&self, open: OpenCircuit) -> Result<Duration, Error> {
        let now = Instant::now();
        if self.is_too_long(now) {
            let last = open.last_at(self.runtime.deployment.label());
            let cause = self.failure.take().unwrap_or(last);
            return Err(self.unreachable(cause, now));
        }
        if now >= self.deadline {
            return Err(self.open_circuit_error(open, now));
        }
        let left = now.until(self.end(now));
        Ok(open.retry_in.min(RETRY_CHECK_EVERY).min(left))
    }

    /// Returns the error of a call that gives up while the breaker is open.
    ///
    /// If the call has sent a command, the error must not claim that nothing was sent: the lock may
    /// be held for it.
    pub(crate) fn open_circuit_error(&self, open: OpenCircuit, now: Instant) -> Error {
        match self.failure.take() {
            Some(cause) => self.unreachable(cause, now),
            None if self.has_sent.get() => {
                let last = open.last_at(self.runtime.deployment.label());
                self.unreachable(last, now)
            }
            None => open.into(),
        }
    }

    /// Fails if the votes on the commands of this call have been split since `since`, and that is
    /// too long: a vote is split for a moment while several calls compete.
    pub(crate) fn check_split(&self, since: Instant) -> Result<(), Error> {
        let now = Instant::now();
        if since.until(now) < self.runtime.config.unreachable_for {
            return Ok(());
        }
        let cause = "the servers keep keys of several holders, none of them on a majority: \
                     look for keys without an expiry";
        let cause = Cause::text(cause).unserved_for(since.until(now));
        Err(self.runtime.deployment.unreachable(cause))
    }

    /// Returns the error of a call that gives up at `now`.
    fn unreachable(&self, cause: Cause, now: Instant) -> Error {
        let cause = cause.unserved_for(self.since(now).until(now));
        self.runtime.deployment.unreachable(cause)
    }

    /// Returns the error of a call that gives up at `now` while others await a reply on its behalf.
    pub(crate) fn error_for_others(&self, now: Instant) -> Error {
        let silence = self.since(now).until(now);
        if silence.is_zero() {
            // Nothing has failed since the last reply: an earlier failure is not the reason.
            let cause = "another call of this client got no reply before the deadline";
            return self.unreachable(Cause::silence(cause), now);
        }
        let part = (self.keys.parts().iter()).min_by_key(|part| self.part_since(part, now));
        let cause = part.and_then(|part| self.runtime.deployment.last_failure(part.key(0)));
        self.unreachable(cause.unwrap_or_else(|| Cause::no_reply(silence)), now)
    }

    /// Returns whether Redis has been silent for too long to keep waiting.
    pub(crate) fn is_too_long(&self, now: Instant) -> bool {
        now >= self.gives_up_at(now)
    }

    /// Restarts the measure of silence if it became too long while this call slept.
    ///
    /// Other commands have failed in that time, and only a reply ends the silence. So this call
    /// tries Redis itself before it gives up.
    pub(crate) fn restart(&self) {
        let now = Instant::now();
        if self.is_too_long(now) {
            self.counts_from.set(now);
        }
    }

    /// Returns when this call gives up if Redis stays silent.
    pub(crate) fn gives_up_at(&self, now: Instant) -> Instant {
        self.since(now).after(self.runtime.config.unreachable_for)
    }

    /// Returns when this call ends if Redis stays silent: at its deadline at the latest.
    fn end(&self, now: Instant) -> Instant {
        self.deadline.min(self.gives_up_at(now))
    }

    /// Returns when the silence of Redis began for this call; `now` if Redis is not silent. For
    /// this call Redis is silent as long as its own commands fail.
    fn since(&self, now: Instant) -> Instant {
        let parts = self.keys.parts().iter();
        let first = parts.map(|part| self.part_since(part, now)).min();
        let failing = self.failing_since.get();
        let failing = failing.map(|since| since.max(self.counts_from.get()));
        first.into_iter().chain(failing).min().unwrap_or(now)
    }

    fn part_since(&self, part: &Arc<dyn Primitive>, now: Instant) -> Instant {
        let deployment = &self.runtime.deployment;
        deployment.silent_since(part.key(0), now, self.counts_from.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::keys::Keys;
    use crate::protocol::mutex::MutexKeys;
    use crate::runtime::tests::runtime_of;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn error_does_not_claim_a_silence_of_no_time() {
        let runtime = runtime_of("redis://127.0.0.1:1");
        let keys = MutexKeys::of(Keys::new("a".into(), "lock:", "lock_release:"));
        let now = Instant::now();
        let silence = Silence::new(&runtime, &keys, now, now);
        let error = silence.error_for_others(now).to_string();
        assert!(error.contains("another call of this client"), "{error}");
    }

    #[test]
    fn error_names_no_failure_before_the_last_reply() {
        let runtime = runtime_of("redis://127.0.0.1:1");
        let keys = MutexKeys::of(Keys::new("a".into(), "lock:", "lock_release:"));
        let now = Instant::now();
        let silence = Silence::new(&runtime, &keys, now, now);
        let fail = |cause| silence.pause_after(Fault::Unknown(cause)).unwrap_err();
        fail(Cause::text("the server loads its data"));
        let error = fail(Cause::no_reply(SECOND)).to_string();
        assert!(error.contains("loads its data"), "{error}");
        silence.note_reply();
        let error = fail(Cause::no_reply(SECOND)).to_string();
        assert!(!error.contains("loads its data"), "{error}");
    }
}
