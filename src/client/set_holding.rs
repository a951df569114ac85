//! What the holder of a set does with it: asks, renews, keeps and releases it.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::client::end_record::EndRecord;
use crate::client::failure;
use crate::client::release::{may_be_shortened, ttl_until};
use crate::client::renew::check_held;
use crate::clock::{Instant, nap, sleep, wall_at_start};
use crate::config::check_ttl;
use crate::error::{Cause, Error};
use crate::holder_id::HolderId;
use crate::kernel::command::Command;
use crate::kernel::effects::Effects;
use crate::kernel::lease::{LeaseStatus, Wanted};
use crate::kernel::release_tries::{NextTry, ReleaseTries};
use crate::kernel::unlock::Unlocked;
use crate::kernel::waiter::Failure;
use crate::lost::Lost;
use crate::protocol::answer::Answer;
use crate::redis::{Fault, IgnoredRelease};
use crate::runtime::Runtime;
use crate::set::holder::{SetEnd, SetUnlock};
use crate::set::lease::SetLease;
use crate::set::operation::SetOperation;
use crate::token::FencingToken;

/// The lease of a set, with the id and the token of its first name.
#[derive(Clone, Copy)]
pub(crate) struct SetHolding<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) lease: &'a Arc<SetLease>,
    pub(crate) id: &'a HolderId,
    pub(crate) token: FencingToken,
}

impl SetHolding<'_> {
    /// Returns the status of the set, and tells a loss that it finds.
    pub(crate) fn status(self) -> LeaseStatus {
        let (wall, now) = (wall_at_start(), Instant::now());
        (self.runtime).decide(|kernel, fx| self.lease.status(wall, kernel, now, fx))
    }

    /// Returns a channel that receives one message on loss.
    pub(crate) fn listen(self) -> Receiver<Lost> {
        (self.runtime).decide(|_, fx| self.lease.listen(Instant::now(), fx))
    }

    /// Sets another ttl, which can be shorter.
    pub(crate) fn set_ttl(self, ttl: Duration) -> Result<(), Error> {
        check_ttl(ttl)?;
        let until = Instant::now().after(self.runtime.deployment.command_timeout());
        self.operate(&Wanted::SetTtl(ttl), until)
    }

    /// Has the engine send for each name what is wanted, and waits for the replies until `until`.
    pub(crate) fn operate(self, what: &Wanted, until: Instant) -> Result<(), Error> {
        let now = Instant::now();
        let operation =
            (self.runtime).decide(|kernel, fx| self.lease.operate(what, kernel, now, fx));
        let Some(operation) = operation else {
            return check_held(self.status());
        };
        let result = self.wait_for(&operation, until);
        check_held(self.status())?;
        result
    }

    fn wait_for(self, operation: &SetOperation, until: Instant) -> Result<(), Error> {
        let first = &*self.lease.names().at_once()[0];
        let error = |why, now| failure::error(self.runtime, first, why, now);
        let start = Instant::now();
        loop {
            let now = Instant::now();
            if let Some(result) = operation.result() {
                return result.map_err(|why| error(why, now));
            }
            if now >= until {
                operation.cancel();
                let why = Failure::Unreachable {
                    since: Some(start),
                    cause: Some(Cause::no_reply(start.until(now))),
                };
                return Err(error(why, now));
            }
            operation.parker().park(now.after(nap(now, until)));
        }
    }

    /// Ends the holding, and leaves the keys to expire without renewals, at `end` or later.
    ///
    /// The holding goes on if `end` is too far away for a ttl, or the set was found lost.
    pub(crate) fn keep_until(self, end: Instant) -> Result<(), Error> {
        let left = ttl_until(self.runtime, end);
        let mut outcome = self.set_ttl(left);
        if let Err(Error::Config(_) | Error::Lost(_)) = outcome {
            return outcome;
        }
        if outcome.is_ok() && self.lease.may_be_shortened(left) {
            outcome = Err(may_be_shortened(self.runtime));
        }
        let now = Instant::now();
        let ending = self.ending();
        let status = (self.runtime).decide(|kernel, fx| self.lease.keep(kernel, now, fx));
        if let Some(LeaseStatus::Lost(lost)) = status {
            return ending.was_lost(lost, now);
        }
        ending.record.count(true, now);
        ending.log("kept until it expires", outcome.as_ref().err());
        outcome
    }

    /// Releases the set by `deadline`. If no reply arrives in time, the releases are repeated in
    /// the background. Fails with [`Error::Lost`] if the set was lost.
    pub(crate) fn release(self, now: Instant, deadline: Instant) -> Result<(), Error> {
        let ending = self.ending();
        let unlock = (self.runtime).decide(|kernel, fx| self.lease.begin_unlock(kernel, now, fx));
        match unlock {
            SetUnlock::Send(commands) => ending.send(&commands, now, deadline),
            SetUnlock::Wait(operation) => ending.wait(&operation, now, deadline),
            SetUnlock::AlreadyLost(lost) => ending.was_lost(lost, now),
            SetUnlock::Over => match self.status() {
                LeaseStatus::Lost(lost) => Err(Error::Lost(lost)),
                LeaseStatus::Held(_) | LeaseStatus::InDoubt | LeaseStatus::Released => Ok(()),
            },
        }
    }
}

impl<'a> SetHolding<'a> {
    fn ending(self) -> SetEnding<'a> {
        let lease = self.lease;
        SetEnding {
            of: self,
            record: EndRecord {
                runtime: self.runtime,
                locks: lease.names().at_once(),
                what: &**lease.names(),
                id: self.id,
                token: self.token,
                since: lease.since(),
                trace_id: lease.trace_id(),
                ttl_ms: lease.ttl_ms(),
            },
        }
    }
}

/// A holding of a set that ends.
struct SetEnding<'a> {
    of: SetHolding<'a>,
    record: EndRecord<'a>,
}

impl SetEnding<'_> {
    /// Sends the releases until replies show what they found, or until the deadline.
    fn send(&self, commands: &[Command], start: Instant, deadline: Instant) -> Result<(), Error> {
        let ignored = self.record.ignored();
        let tries_once = ignored.is_some();
        if let Some(ignored) = ignored.filter(|ignored| !ignored.was_refused) {
            let not_sent = || SetEnd {
                end: Err(Fault::NotRun(ignored.cause.clone())),
                may_have_run: false,
            };
            let ends = commands.iter().map(|_| not_sent()).collect();
            if let unlocked @ Unlocked::Lost(_) = self.unlocked(commands, ends) {
                return self.ended(unlocked, None, start);
            }
            self.record.count(true, start);
            let error = self.record.sent_in_background(&ignored.cause);
            self.log("release to be repeated", Some(&error));
            return Err(error);
        }
        let (ends, given_up) = self.send_until_answered(commands, deadline, tries_once);
        let fault = ends.iter().find_map(|it| it.end.as_ref().err().cloned());
        let error = match (fault, given_up) {
            (None, _) => None,
            (Some(_), Some(ignored)) => Some(self.record.not_released(start, ignored)),
            (Some(fault), None) => Some(self.of.runtime.deployment.error(fault)),
        };
        let unlocked = self.unlocked(commands, ends);
        self.ended(unlocked, error, start)
    }

    /// Returns the last ends of the commands, and why the releases of some were given up.
    fn send_until_answered(
        &self,
        commands: &[Command],
        deadline: Instant,
        tries_once: bool,
    ) -> (Vec<SetEnd>, Option<IgnoredRelease>) {
        let runtime = self.of.runtime;
        let server = runtime.deployment.label();
        let mut tries = ReleaseTries::new(deadline, tries_once);
        let not_sent = || Err(Fault::NotRun(Cause::text("not sent")));
        let mut ends: Vec<Result<Answer, Fault>> = commands.iter().map(|_| not_sent()).collect();
        let mut may_have_run = vec![false; commands.len()];
        loop {
            let left: Vec<usize> = (0..ends.len()).filter(|n| may_pass(&ends[*n])).collect();
            let again: Vec<Command> = left.iter().map(|n| commands[*n].clone()).collect();
            let mut worst = None;
            for (n, end) in left.into_iter().zip(runtime.send_all(&again, deadline)) {
                may_have_run[n] |= matches!(end, Err(Fault::Unknown(_)));
                if may_pass(&end) {
                    worst.get_or_insert(n);
                }
                ends[n] = end;
            }
            let cause = match worst {
                None => None,
                Some(n) => {
                    let now = Instant::now();
                    match tries.ended(&ends[n], server, runtime.is_closed(), now) {
                        NextTry::Again(at) => {
                            sleep(now.until(at));
                            continue;
                        }
                        NextTry::Over => None,
                        NextTry::GivenUp(cause) => Some(cause),
                    }
                }
            };
            let was_refused = tries.was_refused();
            let ends = ends.into_iter().zip(may_have_run);
            let ends = ends.map(|(end, may_have_run)| SetEnd { end, may_have_run });
            let given_up = cause.map(|cause| IgnoredRelease { cause, was_refused });
            return (ends.collect(), given_up);
        }
    }

    fn unlocked(&self, commands: &[Command], ends: Vec<SetEnd>) -> Unlocked {
        let (runtime, lease, now) = (self.of.runtime, self.of.lease, Instant::now());
        let mut fx = Effects::default();
        let unlocked = lease.unlocked(commands, ends, &runtime.kernel, now, &mut fx);
        runtime.carry_out(fx);
        unlocked
    }

    /// Waits for the ends of releases that the engine sends.
    fn wait(
        &self,
        operation: &SetOperation,
        start: Instant,
        deadline: Instant,
    ) -> Result<(), Error> {
        let outcome = match self.record.ignored() {
            // The engine sends them in the background.
            Some(ignored) => Err(self.record.sent_in_background(&ignored.cause)),
            None => self.of.wait_for(operation, deadline),
        };
        if let Err(Error::Unreachable { cause, .. }) = &outcome {
            let ignored = IgnoredRelease {
                cause: cause.clone(),
                was_refused: false,
            };
            self.record.note_ignored(start, &ignored);
        }
        let unlocked = self.of.lease.released_late();
        self.ended(unlocked, outcome.err(), start)
    }

    fn ended(&self, unlocked: Unlocked, error: Option<Error>, start: Instant) -> Result<(), Error> {
        let is_lost =
            matches!(unlocked, Unlocked::Lost(_)) || matches!(error, Some(Error::WrongType { .. }));
        self.record.count(!is_lost, start);
        match (unlocked, error) {
            (Unlocked::Lost(lost), _) => Err(Error::Lost(lost)),
            (_, Some(error)) => {
                self.log("release to be repeated", Some(&error));
                Err(error)
            }
            (Unlocked::Unconfirmed, None) => Err(self.record.unexpected()),
            (Unlocked::Released, None) => {
                self.log("released", None);
                Ok(())
            }
        }
    }

    fn was_lost(&self, lost: Lost, now: Instant) -> Result<(), Error> {
        self.record.count(false, now);
        self.record.log_lost(lost, self.of.lease.is_renewed());
        Err(Error::Lost(lost))
    }

    fn log(&self, outcome: &str, error: Option<&Error>) {
        let may_last = |now| self.of.lease.key_may_last_at(now);
        self.record.log(outcome, error, may_last);
    }
}

/// Returns whether the release may be answered if it is sent again.
fn may_pass(end: &Result<Answer, Fault>) -> bool {
    matches!(
        end,
        Err(Fault::NotRun(_) | Fault::Unknown(_) | Fault::Open(_))
    )
}
