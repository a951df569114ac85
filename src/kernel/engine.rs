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
use crate::kernel::Kernel;
use crate::kernel::command::Command;
use crate::kernel::effects::Effects;
use crate::kernel::entry::LockEntry;
use crate::kernel::fault::{Fault, end_for_lease};
use crate::kernel::held::HeldLease;
use crate::kernel::lease::LeaseWork;
use crate::kernel::part::Whole;
use crate::kernel::pending::PendingReleases;
use crate::kernel::purpose::Purpose;
pub(crate) use crate::kernel::renewals::Route;
use crate::kernel::renewals::{JointEnd, Renewals, renewed};
use crate::kernel::request::Serves;
use crate::kernel::schedule::Item;
use crate::kernel::steps::{count_step, decided};
use crate::lease::status::LeaseStatus;
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

/// The commands in flight. Owned by the engine's thread.
#[derive(Debug, Default)]
pub(crate) struct Engine {
    in_flight: HashMap<Ticket, Purpose>,
    last_ticket: Ticket,
}

/// One turn of the engine, and the commands that it has made.
struct EngineTurn<'a> {
    kernel: &'a Kernel,
    now: Instant,
    fx: &'a mut Effects,
    route: &'a dyn Route,
    /// The commands that its thread must send.
    out: Vec<Outgoing>,
}

impl EngineTurn<'_> {
    /// Tells the losses of the leases that are due.
    fn tell_losses(&mut self, leases: &[Arc<HeldLease>]) {
        for lease in leases {
            if let LeaseStatus::Lost(_) = lease.status(self.now, self.fx) {
                self.kernel.lease_ended(lease, self.now, self.fx);
            }
        }
    }

    /// Asks how the whole is that a lease is a part of. Returns whether the lease goes on.
    fn goes_on(&mut self, lease: &Arc<HeldLease>) -> bool {
        match lease.whole(self.now, self.fx) {
            Whole::GoesOn => true,
            Whole::IsOver => {
                (self.kernel).with_entry(&lease.lock, self.now, self.fx, |entry, cx| {
                    // Its thread may have taken it, or gone on, before this thread got the shard.
                    if lease.whole(cx.now, cx.fx) == Whole::IsOver {
                        entry.give_up(lease, lease.token(), cx);
                    }
                });
                false
            }
            Whole::MayStillRun => {
                lease.end_renewals();
                true
            }
        }
    }

    /// Applies the end of a renewal, a change of ttl or a downgrade.
    fn work_ended(&mut self, work: LeaseWork, end: Result<Answer, Fault>, sent: Instant) {
        let (kernel, now) = (self.kernel, self.now);
        let lease = &work.lease;
        let limits = &kernel.shared.limits;
        let copies = (limits.replies_are_final, limits.engine_sends);
        lease.answered(&work, end_for_lease(end), [sent, now], copies, self.fx);
        let mut cx = kernel.shared.at(now, self.fx);
        cx.distrust(lease);
        cx.rearm(lease);
        if let LeaseStatus::Lost(_) = lease.status(now, self.fx) {
            kernel.lease_ended(lease, now, self.fx);
        }
        self.fx.discard(work.lease);
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
        let mut turn = EngineTurn {
            kernel,
            now,
            fx,
            route,
            out: Vec::new(),
        };
        loop {
            count_step();
            let taken = kernel.shared.schedule.lock().take(now);
            if taken.leases.is_empty() && taken.items.is_empty() {
                return turn.out;
            }
            turn.tell_losses(&taken.leases);
            let mut renewals = Renewals::default();
            for lease in taken.leases {
                self.renew(lease, &mut renewals, &mut turn);
            }
            for (command, purpose) in renewals.into_commands() {
                self.send(command, purpose, &mut turn);
            }
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

    fn renew(&mut self, lease: Arc<HeldLease>, renewals: &mut Renewals, turn: &mut EngineTurn<'_>) {
        let (kernel, now) = (turn.kernel, turn.now);
        if lease.is_release_overdue(now, kernel.shared.limits.command_timeout) {
            kernel.end_overdue_release(&lease, now, turn.fx);
        }
        if let Some(cell) = lease.take_release() {
            let command = lease.release_command();
            let purpose = Purpose::Release(Arc::clone(&lease), cell);
            self.send(command, purpose, turn);
        }
        if turn.goes_on(&lease)
            && let Some((command, work)) = lease.begin_work(now, turn.fx)
            && let Some((command, work)) = renewals.add(command, work, turn.route)
        {
            self.send(command, Purpose::Lease(work), turn);
        }
        kernel.shared.at(now, turn.fx).rearm(&lease);
        turn.fx.discard(lease);
    }

    fn ask(&mut self, name: &Name, turn: &mut EngineTurn<'_>) {
        let work = (turn.kernel).with_existing(name, turn.now, turn.fx, LockEntry::due);
        for (command, purpose) in work.into_iter().flatten() {
            self.send(command, purpose, turn);
        }
    }

    fn undo(&mut self, turn: &mut EngineTurn<'_>) {
        let now = turn.now;
        let due = (turn.kernel).with_pending(now, turn.fx, |pending| pending.take_due(now));
        for (command, batch) in due {
            self.send(command, Purpose::Undo(batch), turn);
        }
    }

    fn send(&mut self, command: Command, purpose: Purpose, turn: &mut EngineTurn<'_>) {
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
                let name = asked.lock.key(0).name;
                let shard = kernel.shard(name).lock();
                let entry = shard.get(name);
                let request = entry.and_then(|entry| entry.line.requests.get(asked.no));
                request.is_some_and(|request| request.serves != Serves::Nobody)
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
            for lease in purpose.into_leases() {
                fx.discard(lease);
            }
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
        let mut turn = EngineTurn {
            kernel,
            now,
            fx,
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
    fn apply(
        &mut self,
        purpose: Purpose,
        end: Result<Answer, Fault>,
        sent: Instant,
        turn: &mut EngineTurn<'_>,
    ) {
        let (kernel, now) = (turn.kernel, turn.now);
        match purpose {
            Purpose::Ask(asked) => kernel.with_entry(&asked.lock, now, turn.fx, |entry, cx| {
                entry.ended(&asked, end, sent, None, cx);
            }),
            Purpose::Refresh(name, of) => {
                kernel.with_existing(&name, now, turn.fx, |entry, cx| {
                    entry.refreshed(&of, end, sent, cx);
                });
            }
            Purpose::Confirm(name, no, id, terms) => {
                kernel.with_existing(&name, now, turn.fx, |entry, cx| {
                    entry.confirmed((no, &id), &terms, (end, sent), cx);
                });
            }
            Purpose::Lease(work) => turn.work_ended(work, end, sent),
            Purpose::Renewals(works) => self.renewed(works, end, sent, turn),
            Purpose::Release(lease, cell) => {
                kernel.release_ended(lease, &cell, end, [sent, now], turn.fx);
            }
            Purpose::Undo(batch) => {
                let settle = |it: &mut PendingReleases| it.settle(&batch, end, now);
                let settled = kernel.with_pending(now, turn.fx, settle);
                let wrong = is_on(Mutant::UndoneUnderPending);
                let _wrong = wrong.then(|| kernel.shared.pending.lock());
                if let Some(lock) = settled.freed {
                    let name = lock.key(0).name;
                    kernel.with_existing(name, now, turn.fx, LockEntry::undone);
                }
            }
        }
    }

    /// Applies the end of a command for many leases.
    fn renewed(
        &mut self,
        works: Vec<LeaseWork>,
        end: Result<Answer, Fault>,
        sent: Instant,
        turn: &mut EngineTurn<'_>,
    ) {
        for end in renewed(works, end) {
            match end {
                JointEnd::Ended(work, end) => turn.work_ended(work, end, sent),
                JointEnd::Alone(work, fault) => match work.renewal() {
                    Some(command) if work.lease.remaining(turn.now).is_some() => {
                        self.send(command, Purpose::Lease(work), turn);
                    }
                    _ => turn.work_ended(work, Err(fault), sent),
                },
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
