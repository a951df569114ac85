//! One command for the renewals of many leases: which it carries, and what its end means.
//!
//! ```text
//! renewals that are due ──of one kind, ttl, min_replicas, slot──▶ one command ─┬─ an item for each
//!         └──wanted by the holder, or alone of its kind──▶ one by one ◀── error ┘
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::Cause;
use crate::kernel::command::{Command, What};
use crate::kernel::fault::Fault;
use crate::kernel::lease::LeaseWork;
use crate::kernel::purpose::Purpose;
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::{Answer, KeyState};

/// The most bytes of keys and holder ids in one command, unless those of one lease are longer.
const MOST_BYTES: usize = 32 * 1024;

/// The common part of the renewals of one command: the script, the ttl, `min_replicas`, and the
/// slot in a cluster.
type Common = (&'static str, Duration, Option<(usize, Duration)>, u16);

/// The facts about its sender that the engine must know.
pub(crate) trait Route {
    /// Returns whether the keys of one command must be in one slot of a cluster.
    fn has_slots(&self) -> bool {
        false
    }

    /// Returns whether it takes one command for the renewals of many leases.
    fn joins_renewals(&self) -> bool {
        true
    }
}

/// The end of a renewal that one command for many leases has carried.
pub(super) enum JointEnd {
    Ended(LeaseWork, Result<Answer, Fault>),
    /// It says nothing of this lease: a command of its own renews that, unless the lease has ended,
    /// and this is the end then.
    Alone(LeaseWork, Fault),
}

/// The renewals that are due in one turn of the engine.
#[derive(Default)]
pub(super) struct Renewals {
    together: BTreeMap<Common, Vec<(Command, LeaseWork)>>,
}

/// The renewals that one command carries.
#[derive(Default)]
struct Joint {
    works: Vec<LeaseWork>,
    keys: Vec<Vec<u8>>,
    ids: Vec<Vec<u8>>,
    bytes: usize,
}

impl Renewals {
    /// Adds the command of a lease. Returns it if it must be sent alone: only a renewal that no
    /// holder waits for is sent together with others.
    pub(super) fn add(
        &mut self,
        command: Command,
        work: LeaseWork,
        route: &dyn Route,
    ) -> Option<(Command, LeaseWork)> {
        let many = command.lock.renew_many().filter(|_| route.joins_renewals());
        let (Some(many), What::Renew { ttl, .. }, true) = (many, &command.what, work.is_planned())
        else {
            return Some((command, work));
        };
        let replicas = command.replicas.map(|it| (it.wanted, it.within));
        let slot = if route.has_slots() {
            command.lock.key(0).slot()
        } else {
            0
        };
        let common = (many.script.name, *ttl, replicas, slot);
        self.together
            .entry(common)
            .or_default()
            .push((command, work));
        None
    }

    /// Returns the commands for them.
    pub(super) fn into_commands(self) -> Vec<(Command, Purpose)> {
        let mut commands = Vec::new();
        for group in self.together.into_values() {
            let mut left = group.into_iter().peekable();
            while let Some((first, work)) = left.next() {
                let most = first.lock.renew_many().map_or(1, |many| many.most);
                if left.peek().is_none() {
                    commands.push((first, Purpose::Lease(work)));
                    continue;
                }
                let mut joint = Joint::default();
                joint.add(&first, work);
                while joint.works.len() < most
                    && joint.bytes < MOST_BYTES
                    && let Some((command, work)) = left.next()
                {
                    joint.add(&command, work);
                }
                commands.extend(joint.into_command(&first));
            }
        }
        commands
    }
}

impl Joint {
    fn add(&mut self, command: &Command, work: LeaseWork) {
        let (keys, ids) = (self.keys.len(), self.ids.len());
        if let What::Renew { id, ttl, .. } = &command.what {
            let call = command.lock.renew(id, *ttl, false);
            self.keys.extend(call.keys.into_iter().flatten().cloned());
            self.ids.push(id.as_str().into());
        }
        let added = self.keys[keys..].iter().chain(&self.ids[ids..]);
        self.bytes += added.map(Vec::len).sum::<usize>();
        self.works.push(work);
    }

    /// Returns the command for all of them, in place of the `first` one.
    fn into_command(self, first: &Command) -> Option<(Command, Purpose)> {
        let What::Renew { ttl, .. } = first.what else {
            return None;
        };
        let what = What::RenewMany {
            keys: self.keys,
            ids: self.ids,
            ttl,
        };
        let command = Command::new(&first.lock, what).acknowledged_by(first.replicas);
        Some((command, Purpose::Renewals(self.works)))
    }
}

/// Returns what the end of a command for many leases means for each of them.
///
/// An error reply is about the command, and not about each lease: a key that has another type, or
/// that the user may not write, must not end the others. Each lease is then renewed by a command of
/// its own, at once.
pub(super) fn renewed(works: Vec<LeaseWork>, end: Result<Answer, Fault>) -> Vec<JointEnd> {
    let mut found = match end {
        Ok(Answer::Renewed(found)) if found.len() == works.len() => found,
        Err(fault) if fault.is_of_server() => {
            let alone = |work| JointEnd::Alone(work, fault.clone());
            return works.into_iter().map(alone).collect();
        }
        end => {
            let ended = |work| JointEnd::Ended(work, end.clone());
            return works.into_iter().map(ended).collect();
        }
    };
    if is_on(Mutant::RenewalsAreMixedUp) {
        found.rotate_left(1);
    }
    let are_all_ours = found.iter().all(|state| *state == KeyState::Ours);
    let of_each = works.into_iter().zip(found);
    let end = |(work, state): (LeaseWork, KeyState)| match state {
        // WAIT counts for a command that has renewed all.
        KeyState::Ours if !are_all_ours && work.lease.replicas().is_some() => {
            JointEnd::Alone(work, Fault::NotRun(Cause::text("not acknowledged")))
        }
        KeyState::Ours => JointEnd::Ended(work, Ok(Answer::Ours)),
        KeyState::Gone => JointEnd::Ended(work, Ok(Answer::Gone)),
        KeyState::Foreign => JointEnd::Ended(work, Ok(Answer::Foreign(Vec::new()))),
    };
    of_each.map(end).collect()
}
