//! Ends a holding: hands the lease off, or releases it; the engine repeats what got no reply.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use crate::client::end_record::EndRecord;
use crate::client::renew::Holding;
use crate::clock::{Instant, sleep};
use crate::config::SHORTEST_TTL;
use crate::error::{Cause, Error};
use crate::kernel::command::Command;
use crate::kernel::effects::Effects;
use crate::kernel::held::HeldLease;
use crate::kernel::lease::{LeaseStatus, OperationCell};
use crate::kernel::release_tries::{NextTry, ReleaseTries};
use crate::kernel::unlock::{Unlock, Unlocked};
use crate::lost::Lost;
use crate::protocol::answer::Answer;
use crate::redis::{Fault, IgnoredRelease};
use crate::runtime::Runtime;

/// A holding that ends.
struct Ending<'a> {
    of: Holding<'a>,
    record: EndRecord<'a>,
    deadline: Instant,
}

impl Holding<'_> {
    /// Ends the holding at `now`: hands the lease off, or releases it by `deadline`.
    ///
    /// The first waiter of this client gets a hand-off. If no reply arrives in time, the release is
    /// repeated in the background. Fails with [`Error::Lost`] if the lease was over.
    pub(crate) fn release(self, now: Instant, deadline: Instant) -> Result<(), Error> {
        let ending = Ending::new(self, deadline);
        match ending.begin(now) {
            Unlock::HandedOff => {
                ending.count(true, now);
                ending.log("handed off", None);
                Ok(())
            }
            Unlock::Lingers => {
                ending.count(true, now);
                ending.log("lingering", None);
                Ok(())
            }
            Unlock::Send(command) => ending.send(&command, now),
            Unlock::Wait(cell) => ending.wait(&cell, now),
            Unlock::AlreadyLost(lost) => {
                ending.count(false, now);
                ending.log_lost(lost);
                Err(Error::Lost(lost))
            }
            // This holder has ended it before.
            Unlock::RenewFirst(_) | Unlock::Over => match self.status() {
                LeaseStatus::Lost(lost) => Err(Error::Lost(lost)),
                LeaseStatus::Held(_) | LeaseStatus::InDoubt | LeaseStatus::Released => Ok(()),
            },
        }
    }

    /// Ends the holding, and leaves the key to expire without renewals, at `end` or later.
    ///
    /// The holding goes on if `end` is too far away for a ttl, or the lease was found lost.
    pub(crate) fn keep_until(self, end: Instant) -> Result<(), Error> {
        let left = ttl_until(self.runtime, end);
        let mut outcome = self.set_ttl(left);
        if let Err(Error::Config(_) | Error::Lost(_)) = outcome {
            return outcome;
        }
        if outcome.is_ok() && self.lease.may_be_shortened(left) {
            outcome = Err(may_be_shortened(self.runtime));
        }
        let (lease, token, now) = (self.lease, self.token, Instant::now());
        let ending = Ending::new(self, now);
        let status = (self.runtime).decide(|kernel, fx| kernel.keep(lease, token, now, fx));
        if let Some(LeaseStatus::Lost(lost)) = status {
            ending.count(false, now);
            ending.log_lost(lost);
            return Err(Error::Lost(lost));
        }
        ending.count(true, now);
        ending.log("kept until it expires", outcome.as_ref().err());
        outcome
    }
}

/// Returns the ttl of a key that must not expire before `end`.
pub(super) fn ttl_until(runtime: &Runtime, end: Instant) -> Duration {
    // Redis counts whole milliseconds: rounded up, the key does not expire before `end`.
    let left = match end {
        // The time was too long for a sum of instants: it is too long for a ttl, too.
        Instant::NEVER => Duration::MAX,
        end => (Instant::now().until(end)).saturating_add(Duration::from_millis(1)),
    };
    // The lease must not end before the reply arrives, which would look like a loss.
    let reply = runtime.deployment.command_timeout().saturating_mul(2);
    left.max(reply).max(SHORTEST_TTL)
}

/// Returns the error of a change of a ttl beside a shorter one that may run later.
pub(super) fn may_be_shortened(runtime: &Runtime) -> Error {
    runtime.deployment.unreachable(Cause::text(
        "an earlier change of this ttl is still without a reply, and may run later",
    ))
}

/// Ends a lease that lingered, whose release has begun.
pub(super) fn release_unheld(
    runtime: &Runtime,
    lease: &Arc<HeldLease>,
    release: Unlock,
    deadline: Instant,
) -> Result<(), Error> {
    let token = lease.token();
    let holding = Holding {
        runtime,
        lease,
        token,
    };
    let ending = Ending::new(holding, deadline);
    match release {
        Unlock::Send(command) => ending.send(&command, Instant::now()),
        _ => Ok(()),
    }
}

/// Releases all leases that linger. Returns the first error.
pub(crate) fn release_lingering(runtime: &Runtime) -> Result<(), Error> {
    let releases = runtime.decide(|kernel, fx| kernel.release_lingering(Instant::now(), fx));
    let mut outcome = Ok(());
    for (lease, release) in releases {
        let deadline = Instant::now().after(runtime.deployment.command_timeout());
        let end = release_unheld(runtime, &lease, release, deadline);
        outcome = outcome.and(end);
    }
    outcome
}

impl<'a> Ending<'a> {
    fn new(of: Holding<'a>, deadline: Instant) -> Self {
        let lease = of.lease;
        let record = EndRecord {
            runtime: of.runtime,
            locks: slice::from_ref(&lease.lock),
            what: &lease.lock,
            id: &lease.id,
            token: of.token,
            since: lease.since(),
            trace_id: lease.trace_id(),
            ttl_ms: lease.ttl_ms(),
        };
        Self {
            of,
            record,
            deadline,
        }
    }

    /// Begins the end of the holding. Renews the lease first if it must be renewed for a hand-off.
    fn begin(&self, now: Instant) -> Unlock {
        let unlock = self.begin_unlock(false, now);
        let Unlock::RenewFirst(cell) = unlock else {
            return unlock;
        };
        // The other half of the time is for the release. If the renewal fails, the lease is not
        // handed off. It is not tried at a server that has just left a release without an answer.
        let until = if self.record.ignored().is_some() {
            now
        } else {
            now.after(now.until(self.deadline) / 2)
        };
        let _ = self.of.wait_for(&cell, until);
        self.begin_unlock(true, Instant::now())
    }

    fn begin_unlock(&self, has_renewed: bool, now: Instant) -> Unlock {
        let (lease, token) = (self.of.lease, self.of.token);
        (self.of.runtime)
            .decide(|kernel, fx| kernel.begin_unlock(lease, token, has_renewed, now, fx))
    }

    /// Sends the release until a reply shows what it found, or until the deadline.
    fn send(&self, command: &Command, start: Instant) -> Result<(), Error> {
        let ignored = self.record.ignored();
        let tries_once = ignored.is_some();
        if let Some(ignored) = ignored.filter(|ignored| !ignored.was_refused) {
            let end = Err(Fault::NotRun(ignored.cause.clone()));
            self.unlocked(end, false);
            self.count(true, start);
            let error = self.record.sent_in_background(&ignored.cause);
            self.log("release to be repeated", Some(&error));
            return Err(error);
        }
        let (end, may_have_run, failure) = self.send_until_answered(command, tries_once);
        let error = match (&end, failure) {
            (Ok(_), _) => None,
            (Err(_), Some(ignored)) => Some(self.record.not_released(start, ignored)),
            (Err(fault), None) => Some(self.of.runtime.deployment.error(fault.clone())),
        };
        let unlocked = self.unlocked(end, may_have_run);
        let is_lost =
            matches!(unlocked, Unlocked::Lost(_)) || matches!(error, Some(Error::WrongType { .. }));
        self.count(!is_lost, start);
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

    /// Returns the last end of the command, whether an earlier try may have run, and why the
    /// release was given up.
    fn send_until_answered(
        &self,
        command: &Command,
        tries_once: bool,
    ) -> (Result<Answer, Fault>, bool, Option<IgnoredRelease>) {
        let runtime = self.of.runtime;
        let server = runtime.deployment.label();
        let mut tries = ReleaseTries::new(self.deadline, tries_once);
        loop {
            let end = runtime.send(command, self.deadline);
            let now = Instant::now();
            let cause = match tries.ended(&end, server, runtime.is_closed(), now) {
                NextTry::Again(at) => {
                    sleep(now.until(at));
                    continue;
                }
                NextTry::Over => None,
                NextTry::GivenUp(cause) => Some(cause),
            };
            let was_refused = tries.was_refused();
            let ignored = cause.map(|cause| IgnoredRelease { cause, was_refused });
            return (end, tries.may_have_run(), ignored);
        }
    }

    fn unlocked(&self, end: Result<Answer, Fault>, may_have_run: bool) -> Unlocked {
        let (runtime, lease, now) = (self.of.runtime, self.of.lease, Instant::now());
        let mut fx = Effects::default();
        let unlocked = (runtime.kernel).unlocked(lease, end, may_have_run, now, &mut fx);
        runtime.carry_out_by(fx, self.deadline);
        unlocked
    }

    /// Waits for the end of a release that the engine sends.
    fn wait(&self, cell: &Arc<OperationCell>, start: Instant) -> Result<(), Error> {
        let outcome = match self.record.ignored() {
            // The engine sends it in the background.
            Some(ignored) => Err(self.record.sent_in_background(&ignored.cause)),
            None => self.of.wait_for(cell, self.deadline),
        };
        if let Err(Error::Unreachable { cause, .. }) = &outcome {
            let ignored = IgnoredRelease {
                cause: cause.clone(),
                was_refused: false,
            };
            self.record.note_ignored(start, &ignored);
        }
        let lost = match self.of.status() {
            LeaseStatus::Lost(lost) => Some(lost),
            LeaseStatus::Held(_) | LeaseStatus::InDoubt | LeaseStatus::Released => None,
        };
        self.count(lost.is_none(), start);
        match (lost, outcome) {
            (Some(lost), _) => Err(Error::Lost(lost)),
            (None, Ok(())) => {
                self.log("released", None);
                Ok(())
            }
            (None, Err(error)) => {
                self.log("release to be repeated", Some(&error));
                Err(error)
            }
        }
    }

    fn count(&self, in_time: bool, now: Instant) {
        self.record.count(in_time, now);
    }

    fn log(&self, outcome: &str, error: Option<&Error>) {
        let may_last = |now| self.of.lease.key_may_last_at(now);
        self.record.log(outcome, error, may_last);
    }

    fn log_lost(&self, lost: Lost) {
        self.record.log_lost(lost, self.of.lease.is_renewed());
    }
}
