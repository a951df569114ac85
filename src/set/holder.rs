//! The calls of the holder of a set: each renews, changes, keeps or releases all parts.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::kernel::Kernel;
use crate::kernel::command::Command;
use crate::kernel::effects::Effects;
use crate::kernel::fault::Fault;
use crate::kernel::operation::Wanted;
use crate::kernel::unlock::{Unlock, Unlocked};
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::protocol::answer::Answer;
use crate::set::lease::{PartLease, SetLease};
use crate::set::operation::{PartCell, SetOperation};
use crate::set::tries::SetEnd;

/// How a set is unlocked.
#[derive(Debug)]
pub(crate) enum SetUnlock {
    /// The caller sends the commands in one write, and reports their ends with `unlocked`.
    Send(Vec<Command>),
    /// The engine releases the parts. The caller waits for it, and then asks with `released_late`.
    Wait(SetOperation),
    AlreadyLost(Lost),
    /// It was unlocked before.
    Over,
}

impl SetLease {
    /// Has the engine send for each name what is wanted. `None` if the set is not held.
    pub(crate) fn operate(
        &self,
        what: &Wanted,
        kernel: &Kernel,
        now: Instant,
        fx: &mut Effects,
    ) -> Option<SetOperation> {
        if !self.is_held(now, fx) {
            return None;
        }
        let mut cells = Vec::new();
        for (lease, token) in self.parts() {
            // One that is lost or given up has no cell, and has ended the set.
            let cell = kernel.operate(&lease, token, what.clone(), now, fx)?;
            cells.push((lease, cell));
        }
        SetOperation::new(cells)
    }

    /// Returns whether a command that sets a shorter ttl than this may run later.
    pub(crate) fn may_be_shortened(&self, ttl: Duration) -> bool {
        let parts = self.parts();
        parts.iter().any(|(lease, _)| lease.may_be_shortened(ttl))
    }

    /// Ends the holding without a release: the keys expire. Returns the status before; `None` if
    /// its holder has ended it before.
    pub(crate) fn keep(
        &self,
        kernel: &Kernel,
        now: Instant,
        fx: &mut Effects,
    ) -> Option<LeaseStatus> {
        let status = self.begin_end(now, fx)?;
        let mut lost = match status {
            LeaseStatus::Lost(lost) => Some(lost),
            LeaseStatus::Held(_) | LeaseStatus::InDoubt | LeaseStatus::Released => None,
        };
        if lost.is_some() {
            self.give_up_parts(kernel, now, fx);
        } else {
            for (lease, token) in self.parts() {
                if let Some(LeaseStatus::Lost(of_part)) = kernel.keep(&lease, token, now, fx) {
                    lost.get_or_insert(of_part);
                }
            }
        }
        self.ended(lost);
        Some(lost.map_or(status, LeaseStatus::Lost))
    }

    /// Returns the commands that release the parts of a set that is not held.
    pub(super) fn give_back(
        &self,
        kernel: &Kernel,
        now: Instant,
        fx: &mut Effects,
    ) -> Vec<Command> {
        self.release_parts(kernel, now, fx).0
    }

    /// Applies the ends of these commands.
    pub(super) fn gave_back(
        &self,
        commands: &[Command],
        ends: Vec<Result<Answer, Fault>>,
        kernel: &Kernel,
        now: Instant,
        fx: &mut Effects,
    ) {
        let ends = ends.into_iter().map(SetEnd::of);
        self.released(commands, ends.collect(), kernel, now, fx);
        // This drops the leases here, outside of all locks.
        drop(self.take(0..));
    }

    /// The holder unlocks.
    pub(crate) fn begin_unlock(
        &self,
        kernel: &Kernel,
        now: Instant,
        fx: &mut Effects,
    ) -> SetUnlock {
        match self.begin_end(now, fx) {
            None => SetUnlock::Over,
            Some(LeaseStatus::Lost(lost)) => {
                self.end();
                self.give_up_parts(kernel, now, fx);
                SetUnlock::AlreadyLost(lost)
            }
            Some(_) => {
                let (commands, cells) = self.release_parts(kernel, now, fx);
                match SetOperation::new(cells) {
                    Some(operation) => SetUnlock::Wait(operation),
                    None => SetUnlock::Send(commands),
                }
            }
        }
    }

    /// Begins the release of each part. The engine releases one that was lost.
    fn release_parts(
        &self,
        kernel: &Kernel,
        now: Instant,
        fx: &mut Effects,
    ) -> (Vec<Command>, Vec<PartCell>) {
        let (mut commands, mut cells) = (Vec::new(), Vec::new());
        for (lease, token) in self.parts() {
            match kernel.begin_unlock(&lease, token, false, now, fx) {
                Unlock::Send(command) => commands.push(command),
                Unlock::Wait(cell) => cells.push((lease, cell)),
                _ => {}
            }
        }
        (commands, cells)
    }

    /// The engine has released the parts, or the caller has waited for long enough.
    pub(crate) fn released_late(&self) -> Unlocked {
        let outcome = match self.first_loss() {
            Some(lost) => Unlocked::Lost(lost),
            None => Unlocked::Released,
        };
        self.ended_by(outcome);
        outcome
    }

    /// Applies the ends of the commands of a release, in their order.
    pub(crate) fn unlocked(
        &self,
        commands: &[Command],
        ends: Vec<SetEnd>,
        kernel: &Kernel,
        now: Instant,
        fx: &mut Effects,
    ) -> Unlocked {
        let parts = self.parts().len();
        let mut outcome = self.released(commands, ends, kernel, now, fx);
        if commands.len() < parts && !matches!(outcome, Unlocked::Lost(_)) {
            // A part was lost before its release began.
            outcome = Unlocked::Lost(self.first_loss().unwrap_or(Lost::Expired));
        }
        self.ended_by(outcome);
        outcome
    }

    fn released(
        &self,
        commands: &[Command],
        ends: Vec<SetEnd>,
        kernel: &Kernel,
        now: Instant,
        fx: &mut Effects,
    ) -> Unlocked {
        // The commands are in the order of the parts.
        let parts = self.parts();
        let mut parts = parts.iter();
        let mut outcome = Unlocked::Released;
        for (command, end) in commands.iter().zip(ends) {
            let is_its = |(lease, _): &&PartLease| Arc::ptr_eq(&lease.lock, &command.lock);
            let Some((lease, _)) = parts.find(is_its) else {
                break;
            };
            let unlocked = kernel.unlocked(lease, end.end, end.may_have_run, now, fx);
            outcome = match (outcome, unlocked) {
                // The first loss counts, and a loss more than a part without a reply.
                (Unlocked::Lost(lost), _) => Unlocked::Lost(lost),
                (before, Unlocked::Released) => before,
                (_, unlocked) => unlocked,
            };
        }
        outcome
    }

    fn ended_by(&self, outcome: Unlocked) {
        self.ended(match outcome {
            Unlocked::Lost(lost) => Some(lost),
            Unlocked::Released | Unlocked::Unconfirmed => None,
        });
    }
}
