//! Ends a holding: hands the lease off, or releases it; the engine repeats what got no reply.

use std::sync::Arc;
use std::time::Duration;

use crate::cause::Rounded;
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
use crate::logging;
use crate::lost::Lost;
use crate::protocol::answer::Answer;
use crate::redis::{Fault, IgnoredRelease};
use crate::runtime::Runtime;

/// A holding that ends.
struct Ending<'a> {
    of: Holding<'a>,
    /// When the holding began.
    since: Option<Instant>,
    trace_id: Option<Arc<str>>,
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
        let deployment = &self.runtime.deployment;
        // Redis counts whole milliseconds: rounded up, the key does not expire before `end`.
        let left = match end {
            // The time was too long for a sum of instants: it is too long for a ttl, too.
            Instant::NEVER => Duration::MAX,
            end => (Instant::now().until(end)).saturating_add(Duration::from_millis(1)),
        };
        // The lease must not end before the reply arrives, which would look like a loss.
        let reply = deployment.command_timeout().saturating_mul(2);
        let left = left.max(reply).max(SHORTEST_TTL);
        let mut outcome = self.set_ttl(left);
        if let Err(Error::Config(_) | Error::Lost(_)) = outcome {
            return outcome;
        }
        if outcome.is_ok() && self.lease.may_be_shortened(left) {
            outcome = Err(deployment.unreachable(Cause::text(
                "an earlier change of this ttl is still without a reply, and may run later",
            )));
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
        Self {
            of,
            since: of.lease.since(),
            trace_id: of.lease.trace_id(),
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
        let is_ignored = (self.of.runtime.deployment)
            .ignored_release(&self.of.lease.lock)
            .is_some();
        let until = if is_ignored {
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
        let ignored = self
            .of
            .runtime
            .deployment
            .ignored_release(&self.of.lease.lock);
        let tries_once = ignored.is_some();
        if let Some(ignored) = ignored.filter(|ignored| !ignored.was_refused) {
            let end = Err(Fault::NotRun(ignored.cause.clone()));
            self.unlocked(end, false);
            self.count(true, start);
            let error = self.sent_in_background(&ignored.cause);
            self.log("release to be repeated", Some(&error));
            return Err(error);
        }
        let (end, may_have_run, failure) = self.send_until_answered(command, tries_once);
        let error = match (&end, failure) {
            (Ok(_), _) => None,
            (Err(_), Some(ignored)) => Some(self.not_released(start, ignored)),
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
            (Unlocked::Unconfirmed, None) => Err(self.unexpected()),
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
        let deployment = &self.of.runtime.deployment;
        let outcome = match deployment.ignored_release(&self.of.lease.lock) {
            // The engine sends it in the background.
            Some(ignored) => Err(self.sent_in_background(&ignored.cause)),
            None => self.of.wait_for(cell, self.deadline),
        };
        if let Err(Error::Unreachable { cause, .. }) = &outcome {
            let ignored = IgnoredRelease {
                cause: cause.clone(),
                was_refused: false,
            };
            deployment.note_ignored_release(&self.of.lease.lock, start, &ignored);
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

    /// Counts the end of the holding.
    fn count(&self, in_time: bool, now: Instant) {
        if let Some(since) = self.since {
            self.of.runtime.meters.released(in_time, since.until(now));
        }
    }

    /// Returns the error of a release that is only sent in the background: each of many releases
    /// would wait for a whole command timeout. An earlier one got no answer for this `cause`.
    fn sent_in_background(&self, cause: &Cause) -> Error {
        self.of.runtime.deployment.unreachable(Cause::silence(format!(
            "no answer since an earlier release failed ({cause}); this release is repeated in the \
             background"
        )))
    }

    /// Returns the error of a release that began at `start` and failed. Releases that follow at
    /// once do not wait as long.
    fn not_released(&self, start: Instant, ignored: IgnoredRelease) -> Error {
        let deployment = &self.of.runtime.deployment;
        deployment.note_ignored_release(&self.of.lease.lock, start, &ignored);
        deployment.unreachable(ignored.cause.unserved_for(start.until(Instant::now())))
    }

    fn unexpected(&self) -> Error {
        let cause = Cause::text("unexpected reply to the release script");
        self.of.runtime.deployment.unreachable(cause)
    }

    fn log(&self, outcome: &str, error: Option<&Error>) {
        let lease = self.of.lease;
        let why = error.map_or_else(String::new, |error| {
            let may_last = Rounded(lease.key_may_last_at(Instant::now()));
            format!(": {error}; without a release the key may stay for {may_last}")
        });
        logging::record!(
            if error.is_some() { log::Level::Warn } else { log::Level::Debug },
            name:% = lease.lock, holder:% = lease.id.short(), token = self.of.token.value(),
            outcome = outcome, ttl_ms = lease.ttl_ms(), trace_id = self.trace_id.as_deref();
            "{outcome} {} (holder {}){why}", lease.lock, lease.id.short()
        );
    }

    fn log_lost(&self, lost: Lost) {
        let lease = self.of.lease;
        let why = match lost {
            Lost::Expired if lease.is_renewed() => {
                " (no renewal reached Redis in time, or this process stood still)"
            }
            Lost::Expired => " (it was not renewed: auto_renew is off)",
            _ => "",
        };
        logging::warn!(
            name:% = lease.lock, holder:% = lease.id.short(), outcome:% = lost,
            ttl_ms = lease.ttl_ms(), trace_id = self.trace_id.as_deref();
            "the lease on {} had ended before the release: {lost}{why}", lease.lock
        );
    }
}
