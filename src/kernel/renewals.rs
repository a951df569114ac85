//! One command for the renewals of many leases: which it carries, and what its end means.
//!
//! ```text
//! renewals that are due ──of one kind, ttl, min_replicas, slot──▶ one command ─┬─ an item for each
//!         └──wanted by the holder, or alone of its kind──▶ one by one ◀── error ┘
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Instant;
use crate::kernel::command::{Command, What};
use crate::kernel::effects::Discard;
use crate::kernel::engine::{Engine, Purpose, Route, Turn};
use crate::kernel::fault::{Fault, end_for_lease};
use crate::kernel::lease::LeaseWork;
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::{Answer, KeyState};

/// The most bytes of keys and holder ids in one command, unless those of one lease are longer.
const MOST_BYTES: usize = 32 * 1024;

/// The common part of the renewals of one command: the script, the ttl, `min_replicas`, and the
/// slot in a cluster.
type Common = (&'static str, Duration, Option<(usize, Duration)>, u16);

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
}

impl Engine {
    /// Sends the renewals of one turn.
    pub(super) fn send_renewals(&mut self, renewals: Renewals, turn: &mut Turn<'_>) {
        for group in renewals.together.into_values() {
            let mut left = group.into_iter().peekable();
            while let Some((first, work)) = left.next() {
                let most = first.lock.renew_many().map_or(1, |many| many.most);
                if left.peek().is_none() {
                    self.send(first, Purpose::Lease(work), turn);
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
                self.send_joint(&first, joint, turn);
            }
        }
    }

    fn send_joint(&mut self, first: &Command, joint: Joint, turn: &mut Turn<'_>) {
        let What::Renew { ttl, .. } = first.what else {
            return;
        };
        let what = What::RenewMany {
            keys: joint.keys,
            ids: joint.ids,
            ttl,
        };
        let command = Command::new(&first.lock, what).acknowledged_by(first.replicas);
        self.send(command, Purpose::Renewals(joint.works), turn);
    }

    /// Applies the end of a command for many leases.
    ///
    /// An error reply is about the command, and not about each lease: a key that has another type,
    /// or that the user may not write, must not end the others. Each lease is then renewed by a
    /// command of its own, at once.
    pub(super) fn renewed(
        &mut self,
        works: Vec<LeaseWork>,
        end: Result<Answer, Fault>,
        sent: Instant,
        turn: &mut Turn<'_>,
    ) {
        let mut found = match end {
            Ok(Answer::Renewed(found)) if found.len() == works.len() => found,
            Err(fault) if fault.is_of_server() => {
                for work in works {
                    self.renew_alone(work, &fault, sent, turn);
                }
                return;
            }
            end => {
                for work in works {
                    turn.lease_ended(work, end.clone(), sent);
                }
                return;
            }
        };
        if is_on(Mutant::RenewalsAreMixedUp) {
            found.rotate_left(1);
        }
        let are_all_ours = found.iter().all(|state| *state == KeyState::Ours);
        for (work, state) in works.into_iter().zip(found) {
            let answer = match state {
                // WAIT counts for a command that has renewed all.
                KeyState::Ours if !are_all_ours && work.lease.replicas().is_some() => {
                    let fault = Fault::NotRun(crate::error::Cause::text("not acknowledged"));
                    self.renew_alone(work, &fault, sent, turn);
                    continue;
                }
                KeyState::Ours => Answer::Ours,
                KeyState::Gone => Answer::Gone,
                KeyState::Foreign => Answer::Foreign(Vec::new()),
            };
            turn.lease_ended(work, Ok(answer), sent);
        }
    }

    /// Sends a renewal again by its own command, unless the lease has ended: then its end is
    /// `fault`.
    fn renew_alone(&mut self, work: LeaseWork, fault: &Fault, sent: Instant, turn: &mut Turn<'_>) {
        match work.renewal() {
            Some(command) if work.lease.remaining(turn.cx.now).is_some() => {
                self.send(command, Purpose::Lease(work), turn);
            }
            _ => turn.lease_ended(work, Err(fault.clone()), sent),
        }
    }
}

impl Turn<'_> {
    /// Applies the end of a command of a lease.
    pub(super) fn lease_ended(
        &mut self,
        work: LeaseWork,
        end: Result<Answer, Fault>,
        sent: Instant,
    ) {
        self.cx.lease_answered(&work, end_for_lease(end), sent);
        self.cx.fx.discard.push(Discard::Lease(work.lease));
    }
}
