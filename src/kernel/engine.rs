//! The engine: what its thread sends, when, and what becomes of the replies.
//!
//! ```text
//! due:    the schedule's items ──losses first──▶ renewals, commands of entries, pending releases
//! ticket: written ─▶ answered | redirected (sent again) | NotRun | Unknown ─▶ ended, once
//! ```
//!
//! Work is stored by name: the sender chooses the server when it writes a command.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::batch::Batch;
use crate::kernel::command::Command;
use crate::kernel::context::Context;
use crate::kernel::effects::{Discard, Effects};
use crate::kernel::entry::LockEntry;
use crate::kernel::fault::Fault;
use crate::kernel::held::HeldLease;
use crate::kernel::lease::{LeaseStatus, LeaseWork, OperationCell};
use crate::kernel::renewals::Renewals;
use crate::kernel::request::{Asked, RequestNo, Serves};
use crate::kernel::schedule::Item;
use crate::kernel::steps::{count_step, decided};
use crate::kernel::table::entry_name;
use crate::kernel::unlock::release_command;
use crate::mutant::{Mutant, is_on};
use crate::name::Name;
use crate::protocol::answer::Answer;

pub(crate) type Ticket = u64;

/// A command that the engine's thread must send.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) ticket: Ticket,
    pub(crate) command: Command,
}

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

/// Why a command was sent.
#[derive(Debug)]
pub(crate) enum Purpose {
    Ask(Asked),
    Refresh(Name, Vec<(RequestNo, HolderId)>),
    Confirm(Name, RequestNo, HolderId, LeaseTerms),
    Lease(LeaseWork),
    Renewals(Vec<LeaseWork>),
    /// The holder of the lease waits for the end.
    Release(Arc<HeldLease>, Arc<OperationCell>),
    Undo(Batch),
}

impl Purpose {
    /// Returns what is left of a purpose that is over: it may own a user's closure.
    fn into_leases(self) -> Vec<Arc<HeldLease>> {
        match self {
            Self::Lease(work) => vec![work.lease],
            Self::Renewals(works) => works.into_iter().map(|work| work.lease).collect(),
            Self::Release(lease, _) => vec![lease],
            _ => Vec::new(),
        }
    }
}

/// The commands in flight. Owned by the engine's thread.
#[derive(Debug, Default)]
pub(crate) struct Engine {
    in_flight: HashMap<Ticket, Purpose>,
    last_ticket: Ticket,
}

/// One turn of the engine: its context, its route, and the commands that it has made.
pub(super) struct Turn<'a> {
    pub(super) cx: Context<'a>,
    pub(super) route: &'a dyn Route,
    /// The commands that its thread must send.
    pub(super) out: Vec<Outgoing>,
}

impl Context<'_> {
    /// Applies the end of a renewal, a change of ttl or a downgrade.
    pub(super) fn lease_answered(
        &mut self,
        work: &LeaseWork,
        end: Result<Answer, Fault>,
        sent: Instant,
    ) {
        let lease = &work.lease;
        let limits = &self.kernel.limits;
        let copies = (limits.replies_are_final, limits.engine_sends);
        lease.answered(work, end, [sent, self.now], copies, self.fx);
        self.distrust(lease);
        lease.rearm(self);
        if let LeaseStatus::Lost(_) = lease.status(self.now, self.fx) {
            self.lease_ended(lease);
        }
    }
}

impl Engine {
    /// Returns the commands that are due. Losses are told before anything else.
    pub(crate) fn due(
        &mut self,
        kernel: &Kernel,
        now: Instant,
        route: &dyn Route,
        fx: &mut Effects,
    ) -> Vec<Outgoing> {
        let mut turn = Turn {
            cx: kernel.at(now, fx),
            route,
            out: Vec::new(),
        };
        loop {
            count_step();
            let taken = kernel.schedule.lock().take(now);
            if taken.leases.is_empty() && taken.items.is_empty() {
                return turn.out;
            }
            tell_losses(&taken.leases, &mut turn.cx);
            let mut renewals = Renewals::default();
            for lease in taken.leases {
                self.renew(lease, &mut renewals, &mut turn);
            }
            self.send_renewals(renewals, &mut turn);
            for item in taken.items {
                match item {
                    Item::Entry(name) => self.ask(&name, &mut turn),
                    Item::Pending => self.undo(&mut turn),
                    // It is looked at after this.
                    Item::Sender => {}
                }
            }
            // The end of a lease makes its entry due at once.
        }
    }

    fn renew(&mut self, lease: Arc<HeldLease>, renewals: &mut Renewals, turn: &mut Turn<'_>) {
        let (kernel, now) = (turn.cx.kernel, turn.cx.now);
        if lease.is_release_overdue(now, kernel.limits.command_timeout) {
            turn.cx.end_overdue_release(&lease);
        }
        if let Some(cell) = lease.take_release() {
            let command = release_command(&lease);
            let purpose = Purpose::Release(Arc::clone(&lease), cell);
            self.send(command, purpose, turn);
        }
        if turn.cx.look_at_whole(&lease)
            && let Some((command, work)) = lease.begin_work(now, turn.cx.fx)
            && let Some((command, work)) = renewals.add(command, work, turn.route)
        {
            self.send(command, Purpose::Lease(work), turn);
        }
        lease.rearm(&mut turn.cx);
        turn.cx.fx.discard.push(Discard::Lease(lease));
    }

    fn ask(&mut self, name: &Name, turn: &mut Turn<'_>) {
        let work = turn.cx.with_existing(name, LockEntry::due);
        for (command, purpose) in work.into_iter().flatten() {
            self.send(command, purpose, turn);
        }
    }

    fn undo(&mut self, turn: &mut Turn<'_>) {
        let now = turn.cx.now;
        for (command, batch) in turn.cx.with_pending(|pending, _| pending.take_due(now)) {
            self.send(command, Purpose::Undo(batch), turn);
        }
    }

    pub(super) fn send(&mut self, command: Command, purpose: Purpose, turn: &mut Turn<'_>) {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        self.in_flight.insert(ticket, purpose);
        turn.out.push(Outgoing { ticket, command });
    }

    /// Returns whether a command may be sent now: for the first time, to another server, or with
    /// its script's text. Otherwise it must end as `NotRun`: the command of an acquiring request
    /// that serves nobody, or of a lease that has ended.
    pub(crate) fn may_resend(&self, kernel: &Kernel, ticket: Ticket, now: Instant) -> bool {
        match self.in_flight.get(&ticket) {
            Some(Purpose::Ask(asked)) => {
                let (name, no) = (entry_name(&*asked.lock), asked.no);
                let mut fx = Effects::default();
                let serves = kernel.at(now, &mut fx).with_existing(name, |entry, _| {
                    Some(entry.requests.get(no)?.serves != Serves::Nobody)
                });
                serves.flatten().unwrap_or(false)
            }
            Some(Purpose::Lease(work)) => work.lease.remaining(now).is_some(),
            Some(Purpose::Renewals(works)) => {
                works.iter().any(|it| it.lease.remaining(now).is_some())
            }
            found => found.is_some(),
        }
    }

    /// Ends the engine: its thread must not drop what may own a user's closure.
    pub(crate) fn end(&mut self, fx: &mut Effects) {
        for purpose in mem::take(&mut self.in_flight).into_values() {
            fx.discard
                .extend(purpose.into_leases().into_iter().map(Discard::Lease));
        }
    }

    /// Applies the end of a command, exactly once for each ticket. Returns the commands to send
    /// then: for leases that could not be renewed together.
    pub(crate) fn ended(
        &mut self,
        kernel: &Kernel,
        ticket: Ticket,
        end: Result<Answer, Fault>,
        [sent, now]: [Instant; 2],
        route: &dyn Route,
        fx: &mut Effects,
    ) -> Vec<Outgoing> {
        let mut turn = Turn {
            cx: kernel.at(now, fx),
            route,
            out: Vec::new(),
        };
        decided(1);
        match self.in_flight.remove(&ticket) {
            None => {}
            Some(purpose) => self.apply(purpose, end, sent, &mut turn),
        }
        turn.out
    }

    /// Applies the end of a command of the kernel.
    pub(super) fn apply(
        &mut self,
        purpose: Purpose,
        end: Result<Answer, Fault>,
        sent: Instant,
        turn: &mut Turn<'_>,
    ) {
        let cx = &mut turn.cx;
        match purpose {
            Purpose::Ask(asked) => cx.with_entry(&asked.lock, |entry, cx| {
                entry.answered(&asked, end, sent, None, cx);
            }),
            Purpose::Refresh(name, of) => {
                cx.with_existing(&name, |entry, cx| entry.refreshed(&of, end, sent, cx));
            }
            Purpose::Confirm(name, no, id, terms) => {
                cx.with_existing(&name, |entry, cx| {
                    entry.confirmed((no, &id), &terms, end, sent, cx);
                });
            }
            Purpose::Lease(work) => turn.lease_ended(work, end, sent),
            Purpose::Renewals(works) => self.renewed(works, end, sent, turn),
            Purpose::Release(lease, cell) => cx.release_ended(lease, &cell, end, sent),
            Purpose::Undo(batch) => {
                let now = cx.now;
                let settled = cx.with_pending(|pending, _| pending.settle(&batch, end, now));
                let wrong = is_on(Mutant::UndoneUnderPending);
                let _wrong = wrong.then(|| cx.kernel.pending.lock());
                if let Some(lock) = settled.freed {
                    cx.with_existing(lock.key(0).name, LockEntry::undone);
                }
            }
        }
    }

    /// Returns whether a command in flight may acquire something.
    pub(crate) fn may_acquire(&self) -> bool {
        let mut purposes = self.in_flight.values();
        purposes.any(|purpose| matches!(purpose, Purpose::Ask(_)))
    }

    /// Returns whether each command has ended, or is one that was not sent; no holder waits for its
    /// release then.
    pub(crate) fn is_idle(&self, is_unsent: impl Fn(Ticket) -> bool) -> bool {
        self.in_flight
            .iter()
            .all(|(ticket, purpose)| !matches!(purpose, Purpose::Release(..)) && is_unsent(*ticket))
    }

    /// Returns the commands that have not ended.
    #[cfg(sim)]
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}

fn tell_losses(leases: &[Arc<HeldLease>], cx: &mut Context<'_>) {
    for lease in leases {
        if let LeaseStatus::Lost(_) = lease.status(cx.now, cx.fx) {
            cx.lease_ended(lease);
        }
    }
}
