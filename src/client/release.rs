//! Ends a holding: hands the lease off, or releases it; the engine repeats what got no reply.

use std::slice;
use std::sync::Arc;

use crate::client::end_record::EndRecord;
use crate::client::renew::Holding;
use crate::clock::{Instant, sleep};
use crate::error::Error;
use crate::kernel::command::Command;
use crate::kernel::effects::Effects;
use crate::kernel::held::HeldLease;
use crate::kernel::operation::OperationCell;
use crate::kernel::release_tries::{NextTry, ReleaseTries};
use crate::kernel::unlock::{Unlock, Unlocked};
use crate::lease::status::LeaseStatus;
use crate::protocol::answer::Answer;
use crate::redis::{Fault, IgnoredRelease};
use crate::runtime::Runtime;

/// A holding that ends.
struct Ending<'a> {
    of: Holding<'a>,
    record: EndRecord<'a>,
    deadline: Instant,
}

impl<'a> Holding<'a> {
    /// Ends the holding at `now`: hands the lease off, or releases it by `deadline`.
    ///
    /// The first waiter of this client gets a hand-off. If no reply arrives in time, the release is
    /// repeated in the background. Fails with [`Error::Lost`] if the lease was over.
    pub(crate) fn release(self, now: Instant, deadline: Instant) -> Result<(), Error> {
        let ending = Ending::new(self, deadline);
        match ending.begin(now) {
            Unlock::HandedOff => ending.without_release("handed off", now),
            Unlock::Lingers => ending.without_release("lingering", now),
            Unlock::Send(command) => ending.send(&command, now),
            Unlock::Wait(cell) => ending.wait(&cell, now),
            Unlock::AlreadyLost(lost) => ending.record.was_lost(lost, now),
            // This holder has ended it before.
            Unlock::RenewFirst(_) | Unlock::Over => match self.status() {
                LeaseStatus::Lost(lost) => Err(Error::Lost(lost)),
                LeaseStatus::Held(_) | LeaseStatus::InDoubt | LeaseStatus::Released => Ok(()),
            },
        }
    }

    /// Ends the holding at `now`, and leaves the key to expire. Also returns the status before;
    /// `None` if this holder has ended it before.
    pub(super) fn keep(self, now: Instant) -> (EndRecord<'a>, Option<LeaseStatus>) {
        let record = self.record();
        let (lease, token) = (self.lease, self.token);
        let status = (self.runtime).decide(|kernel, fx| kernel.keep(lease, token, now, fx));
        (record, status)
    }

    fn record(self) -> EndRecord<'a> {
        let lease = self.lease;
        EndRecord {
            runtime: self.runtime,
            lease: &**lease,
            locks: slice::from_ref(&lease.lock),
            what: &lease.lock,
            id: &lease.id,
            token: self.token,
            facts: lease.facts(),
        }
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
        let record = of.record();
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
            return self.record.left_to_the_engine(start, &ignored.cause);
        }
        let (end, may_have_run, failure) = self.send_until_answered(command, tries_once);
        let error = match (&end, failure) {
            (Ok(_), _) => None,
            (Err(_), Some(ignored)) => Some(self.record.not_released(start, ignored)),
            (Err(fault), None) => Some(self.of.runtime.deployment.error(fault.clone())),
        };
        let unlocked = self.unlocked(end, may_have_run);
        self.record.ended(unlocked, error, start)
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
        self.record.note_unanswered(start, &outcome);
        let unlocked = match self.of.status() {
            LeaseStatus::Lost(lost) => Unlocked::Lost(lost),
            LeaseStatus::Held(_) | LeaseStatus::InDoubt | LeaseStatus::Released => {
                Unlocked::Released
            }
        };
        let is_lost = matches!(unlocked, Unlocked::Lost(_));
        self.record.count(!is_lost, start);
        self.record.conclude(unlocked, outcome.err())
    }

    /// The lease goes on without this holder.
    fn without_release(&self, outcome: &str, now: Instant) -> Result<(), Error> {
        self.record.count(true, now);
        self.record.log(outcome, None);
        Ok(())
    }
}
