//! The calls of a set's holder: it asks, renews, keeps and releases.

use std::sync::Arc;

use crossbeam_channel::Receiver;

use crate::client::end_record::EndRecord;
use crate::client::renew::{check_held, wait_for};
use crate::clock::{Instant, sleep, wall_at_start};
use crate::error::Error;
use crate::holder_id::HolderId;
use crate::kernel::command::Command;
use crate::kernel::effects::Effects;
use crate::kernel::operation::Wanted;
use crate::kernel::release_tries::NextTry;
use crate::kernel::unlock::Unlocked;
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::redis::{Fault, IgnoredRelease};
use crate::runtime::Runtime;
use crate::set::holder::SetUnlock;
use crate::set::lease::SetLease;
use crate::set::operation::SetOperation;
use crate::set::tries::{SetEnd, SetTries};
use crate::token::FencingToken;

/// The lease of a set, with the id and the token of its first name.
#[derive(Clone, Copy)]
pub(crate) struct SetHolding<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) lease: &'a Arc<SetLease>,
    pub(crate) id: &'a HolderId,
    pub(crate) token: FencingToken,
}

impl<'a> SetHolding<'a> {
    /// Returns the status of the set, and tells a loss that it finds.
    pub(crate) fn status(self) -> LeaseStatus {
        let (wall, now) = (wall_at_start(), Instant::now());
        (self.runtime).decide(|kernel, fx| self.lease.status(wall, kernel, now, fx))
    }

    /// Returns a channel that receives one message on loss.
    pub(crate) fn listen(self) -> Receiver<Lost> {
        (self.runtime).decide(|_, fx| self.lease.listen(Instant::now(), fx))
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
        wait_for(self.runtime, first, operation, until)
    }

    /// Ends the holding at `now`, and leaves the keys to expire. Also returns the status before;
    /// `None` if its holder has ended it before.
    pub(super) fn keep(self, now: Instant) -> (EndRecord<'a>, Option<LeaseStatus>) {
        let record = self.record();
        let status = (self.runtime).decide(|kernel, fx| self.lease.keep(kernel, now, fx));
        (record, status)
    }

    /// Releases the set by `deadline`. If no reply arrives in time, the releases are repeated in
    /// the background. Fails with [`Error::Lost`] if the set was lost.
    pub(crate) fn release(self, now: Instant, deadline: Instant) -> Result<(), Error> {
        let ending = SetEnding {
            of: self,
            record: self.record(),
            deadline,
        };
        let unlock = (self.runtime).decide(|kernel, fx| self.lease.begin_unlock(kernel, now, fx));
        match unlock {
            SetUnlock::Send(commands) => ending.send(commands, now),
            SetUnlock::Wait(operation) => ending.wait(&operation, now),
            SetUnlock::AlreadyLost(lost) => ending.record.was_lost(lost, now),
            SetUnlock::Over => match self.status() {
                LeaseStatus::Lost(lost) => Err(Error::Lost(lost)),
                LeaseStatus::Held(_) | LeaseStatus::InDoubt | LeaseStatus::Released => Ok(()),
            },
        }
    }

    fn record(self) -> EndRecord<'a> {
        let lease = self.lease;
        EndRecord {
            runtime: self.runtime,
            lease: &**lease,
            locks: lease.names().at_once(),
            what: &**lease.names(),
            id: self.id,
            token: self.token,
            facts: lease.facts(),
        }
    }
}

/// A holding of a set that ends.
struct SetEnding<'a> {
    of: SetHolding<'a>,
    record: EndRecord<'a>,
    deadline: Instant,
}

impl SetEnding<'_> {
    /// Sends the releases until replies show what they found, or until the deadline.
    fn send(&self, commands: Vec<Command>, start: Instant) -> Result<(), Error> {
        let ignored = self.record.ignored();
        let tries_once = ignored.is_some();
        if let Some(ignored) = ignored.filter(|ignored| !ignored.was_refused) {
            let not_sent = || Err(Fault::NotRun(ignored.cause.clone()));
            let ends = commands.iter().map(|_| SetEnd::of(not_sent())).collect();
            if let unlocked @ Unlocked::Lost(_) = self.unlocked(&commands, ends) {
                return self.record.ended(unlocked, None, start);
            }
            return self.record.left_to_the_engine(start, &ignored.cause);
        }
        let mut tries = SetTries::new(commands, self.deadline, tries_once);
        let given_up = self.send_until_answered(&mut tries);
        let error = match (tries.fault(), given_up) {
            (None, _) => None,
            (Some(_), Some(ignored)) => Some(self.record.not_released(start, ignored)),
            (Some(fault), None) => Some(self.of.runtime.deployment.error(fault.clone())),
        };
        let (commands, ends) = tries.into_ends();
        let unlocked = self.unlocked(&commands, ends);
        self.record.ended(unlocked, error, start)
    }

    /// Returns why the releases of some were given up.
    fn send_until_answered(&self, tries: &mut SetTries) -> Option<IgnoredRelease> {
        let runtime = self.of.runtime;
        let server = runtime.deployment.label();
        loop {
            let ends = runtime.send_all(&tries.open(), self.deadline);
            let now = Instant::now();
            match tries.ended(ends, server, runtime.is_closed(), now) {
                NextTry::Again(at) => sleep(now.until(at)),
                NextTry::Over => return None,
                NextTry::GivenUp(cause) => {
                    let was_refused = tries.was_refused();
                    return Some(IgnoredRelease { cause, was_refused });
                }
            }
        }
    }

    fn unlocked(&self, commands: &[Command], ends: Vec<SetEnd>) -> Unlocked {
        let (runtime, lease, now) = (self.of.runtime, self.of.lease, Instant::now());
        let mut fx = Effects::default();
        let unlocked = lease.unlocked(commands, ends, &runtime.kernel, now, &mut fx);
        runtime.carry_out_by(fx, self.deadline);
        unlocked
    }

    /// Waits for the ends of releases that the engine sends.
    fn wait(&self, operation: &SetOperation, start: Instant) -> Result<(), Error> {
        let outcome = match self.record.ignored() {
            // The engine sends them in the background.
            Some(ignored) => Err(self.record.sent_in_background(&ignored.cause)),
            None => self.of.wait_for(operation, self.deadline),
        };
        self.record.note_unanswered(start, &outcome);
        let unlocked = self.of.lease.released_late();
        self.record.ended(unlocked, outcome.err(), start)
    }
}
