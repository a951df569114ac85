//! The engine: what its thread sends, when, and what becomes of the replies.
//!
//! ```text
//! due:    the schedule's items ──losses first──▶ renewals, commands of entries, pending releases
//! ticket: written ─▶ answered | redirected (sent again) | NotRun | Unknown ─▶ ended, once
//! ```
//!
//! Work is stored by name: the sender chooses the server when it writes a command.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::error::Cause;
use crate::holder_id::HolderId;
use crate::kernel::command::Command;
use crate::kernel::due::EntryWork;
use crate::kernel::fault::Fault;
use crate::kernel::held::HeldLease;
use crate::kernel::lease::{LeaseStatus, LeaseWork, RENEWAL_WINDOW};
use crate::kernel::mutant::{Mutant, is_on};
use crate::kernel::pending::Batch;
use crate::kernel::request::{Asked, How, RequestNo, Serves};
use crate::kernel::round::{Round, RoundKind, RoundNo, Undecided};
use crate::kernel::table::entry_name;
use crate::kernel::unlock::release_command;
use crate::kernel::{Discard, Effects, Kernel};
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::primitive::Primitive;

/// Something that the engine must look at.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Lease(Arc<HeldLease>),
    Entry(Name),
    Pending,
    /// The time of a round may be over.
    Rounds,
}

/// Identifies an item. At one instant, leases come first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ItemKey {
    Lease(u64),
    Entry(Name),
    Pending,
    Rounds,
}

/// When the engine must look at what.
#[derive(Debug)]
pub(crate) struct Schedule {
    due: BTreeMap<(Instant, ItemKey), Item>,
    at: HashMap<ItemKey, Instant>,
    /// Until when the engine sleeps; `START` while it is awake. Changed with the reading of the
    /// first key in one critical section.
    sleeps_until: Instant,
    /// The next sleep may be long if there is still nothing to look at.
    is_idle: bool,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            due: BTreeMap::new(),
            at: HashMap::new(),
            sleeps_until: Instant::NEVER,
            is_idle: false,
        }
    }
}

impl Schedule {
    /// Puts an item, in place of its earlier entry. Returns whether the engine must be woken, and
    /// the earlier item.
    pub(super) fn put(
        &mut self,
        key: ItemKey,
        item: Item,
        at: Instant,
        latest: Instant,
    ) -> (bool, Option<Item>) {
        let before = self.remove(&key);
        if at < Instant::NEVER {
            self.at.insert(key.clone(), at);
            self.due.insert((at, key), item);
        }
        (self.must_wake(latest), before)
    }

    pub(super) fn must_wake(&self, latest: Instant) -> bool {
        latest < self.sleeps_until
    }

    pub(super) fn remove(&mut self, key: &ItemKey) -> Option<Item> {
        let at = self.at.remove(key)?;
        self.due.remove(&(at, key.clone()))
    }

    pub(super) fn next(&self) -> Instant {
        let first = self.due.first_key_value();
        first.map_or(Instant::NEVER, |((at, _), _)| *at)
    }

    fn take(&mut self, now: Instant) -> Vec<Item> {
        let mut items = Vec::new();
        while let Some(first) = self.due.first_entry()
            && first.key().0 <= now
        {
            let ((_, key), item) = first.remove_entry();
            self.at.remove(&key);
            items.push(item);
        }
        if items.iter().any(|item| matches!(item, Item::Lease(_))) {
            // Leases that are due soon are renewed together.
            let soon = now.after(RENEWAL_WINDOW);
            let due = self.due.range(..(soon, ItemKey::Lease(0)));
            let leases = due.filter(|(_, item)| matches!(item, Item::Lease(_)));
            let keys: Vec<(Instant, ItemKey)> = leases.map(|(key, _)| key.clone()).collect();
            for key in keys {
                self.at.remove(&key.1);
                items.extend(self.due.remove(&key));
            }
        }
        items
    }
}

pub(crate) type Ticket = u64;

/// The number of a server of a quorum; 0 elsewhere.
pub(crate) type ServerNo = usize;

/// The state of the engine's pipeline to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Up,
    /// It may soon be up: a round waits for it.
    Connecting,
    /// It was lost, or could not be opened: a round goes on without it.
    Down,
}

/// A command that the engine's thread must send.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) server: ServerNo,
    pub(crate) ticket: Ticket,
    pub(crate) command: Command,
}

/// What the engine must know about the servers.
pub(crate) trait Route {
    /// Returns how many more commands may be sent now.
    fn room(&self) -> usize;
    /// Returns whether the server that answers has the only copy of the keys.
    fn is_final(&self) -> bool;
    /// Returns the state of the pipeline to a server of a quorum.
    fn link(&self, _: ServerNo) -> Link {
        Link::Up
    }

    /// Returns why there is no pipeline to a server of a quorum.
    fn not_connected(&self, _: ServerNo) -> Fault {
        Fault::NotRun(Cause::text("not connected"))
    }

    /// Returns a fault if no proposal may be sent to a quorum now.
    fn admit(&self, _: &Arc<dyn Primitive>) -> Result<(), Fault> {
        Ok(())
    }

    /// A server of a quorum has refused a proposal because of its own id, which is a fresh one.
    fn ran_twice(&self, _: &Arc<dyn Primitive>) {}

    /// Returns why a round has no outcome.
    fn undecided(&self, round: &Undecided<'_>) -> Fault {
        round.first_fault()
    }

    /// A round has ended; `is_cut_short` if its call has left.
    fn round_ended(&self, _: &Undecided<'_>, _: &Result<Answer, Fault>, _is_cut_short: bool) {}
}

/// Why a command was sent.
#[derive(Debug)]
pub(super) enum Purpose {
    Vote { round: RoundNo, server: ServerNo },
    Ask(Asked),
    Refresh(Name, Vec<(RequestNo, HolderId)>),
    Confirm(Name, RequestNo, HolderId, LeaseTerms),
    Lease(LeaseWork),
    Undo(Batch),
}

/// The commands in flight. Owned by the engine's thread.
#[derive(Debug, Default)]
pub(crate) struct Engine {
    in_flight: HashMap<Ticket, Purpose>,
    next_ticket: Ticket,
    pub(super) rounds: BTreeMap<RoundNo, Round>,
    pub(super) next_round: RoundNo,
}

impl Kernel {
    pub(super) fn put_pending(&self, at: Instant, fx: &mut Effects) {
        self.put(ItemKey::Pending, Item::Pending, [at, at], fx);
    }

    /// The engine begins a turn: until it sleeps again, nobody needs to wake it.
    pub(crate) fn engine_awake(&self) {
        self.schedule.lock().sleeps_until = Instant::START;
    }

    /// The engine is about to sleep: returns until when at most, and records that.
    pub(crate) fn engine_sleeps(&self, now: Instant, longest: std::time::Duration) -> Instant {
        let mut schedule = self.schedule.lock();
        let next = schedule.next();
        // The first sleep with nothing to look at is short, so that somebody who locks and unlocks
        // in a loop does not wake the engine each time.
        let was_idle = schedule.is_idle;
        schedule.is_idle = next == Instant::NEVER && !was_idle;
        let until = match next {
            Instant::NEVER if was_idle => Instant::NEVER,
            Instant::NEVER => now.after(longest),
            next if is_on(Mutant::SleepIsLong) => next,
            next => next.min(now.after(longest)),
        };
        if !is_on(Mutant::SleepIsNotRecorded) {
            schedule.sleeps_until = until;
        }
        until
    }
}

impl Kernel {
    /// Applies the end of a renewal, a change of ttl or a downgrade.
    pub(super) fn lease_answered(
        &self,
        work: &LeaseWork,
        end: Result<Answer, Fault>,
        [sent, now]: [Instant; 2],
        is_final: bool,
        fx: &mut Effects,
    ) {
        let lease = &work.lease;
        lease.answered(work, end, [sent, now], is_final, fx);
        lease.rearm(self, now, fx);
        if let LeaseStatus::Lost(_) = lease.status(now, fx) {
            self.lease_ended(lease, now, fx);
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
        let mut out = Vec::new();
        loop {
            #[cfg(sim)]
            crate::kernel::sim::count_step();
            let items = kernel.schedule.lock().take(now);
            let has_ended = self.advance(kernel, now, route, &mut out, fx);
            if items.is_empty() && !has_ended {
                return out;
            }
            tell_losses(kernel, &items, now, fx);
            for item in items {
                if out.len() >= route.room() {
                    put_back(kernel, item, now, fx);
                    continue;
                }
                match item {
                    Item::Lease(lease) => self.renew(kernel, lease, now, &mut out, fx),
                    Item::Entry(name) => self.ask(kernel, &name, (now, route), &mut out, fx),
                    Item::Pending => self.undo(kernel, now, &mut out, fx),
                    // `advance` ends them.
                    Item::Rounds => {}
                }
            }
            if out.len() >= route.room() {
                return out;
            }
            // The end of a lease makes its entry due at once.
        }
    }

    fn renew(
        &mut self,
        kernel: &Kernel,
        lease: Arc<HeldLease>,
        now: Instant,
        out: &mut Vec<Outgoing>,
        fx: &mut Effects,
    ) {
        if lease.is_release_overdue(now, kernel.limits.command_timeout) {
            kernel.end_overdue_release(&lease, now, fx);
        }
        if let Some(cell) = lease.take_release() {
            let command = release_command(&lease);
            let kind = RoundKind::Release(Arc::clone(&lease), cell);
            self.begin_round(kernel, kind, command, now);
        }
        if let Some((command, work)) = lease.begin_work(now, fx) {
            match kernel.has_rounds(&*work.lease.lock) {
                true => self.begin_round(kernel, RoundKind::Lease(work), command, now),
                false => self.send(0, command, Purpose::Lease(work), out),
            }
        }
        lease.rearm(kernel, now, fx);
        fx.discard.push(Discard::Lease(lease));
    }

    fn ask(
        &mut self,
        kernel: &Kernel,
        name: &Name,
        (now, route): (Instant, &dyn Route),
        out: &mut Vec<Outgoing>,
        fx: &mut Effects,
    ) {
        let work = kernel.with_existing(name, now, fx, |entry, cx| entry.due(cx));
        for (command, work) in work.into_iter().flatten() {
            let work = match work {
                EntryWork::Ask(asked) if asked.how == How::Round => {
                    if let Err(fault) = route.admit(&asked.lock) {
                        let lock = Arc::clone(&asked.lock);
                        kernel.with_entry(&lock, now, fx, |entry, cx| {
                            entry.answered(&asked, Err(fault), now, cx);
                        });
                        continue;
                    }
                    self.begin_round(kernel, RoundKind::Propose(asked), command, now);
                    continue;
                }
                EntryWork::Confirm(no, id, terms) if !command.lock.slots().is_empty() => {
                    let kind = RoundKind::Confirm(name.clone(), no, id, terms);
                    self.begin_round(kernel, kind, command, now);
                    continue;
                }
                work => work,
            };
            let purpose = match work {
                EntryWork::Ask(asked) => Purpose::Ask(asked),
                EntryWork::Refresh(of) => Purpose::Refresh(name.clone(), of),
                EntryWork::Confirm(no, id, terms) => Purpose::Confirm(name.clone(), no, id, terms),
            };
            self.send(0, command, purpose, out);
        }
    }

    fn undo(&mut self, kernel: &Kernel, now: Instant, out: &mut Vec<Outgoing>, fx: &mut Effects) {
        let mut pending = kernel.pending.lock();
        for (command, batch) in pending.take_due(now) {
            self.send(batch.server, command, Purpose::Undo(batch), out);
        }
        kernel.put_pending(pending.next(), fx);
    }

    pub(super) fn send(
        &mut self,
        server: ServerNo,
        command: Command,
        purpose: Purpose,
        out: &mut Vec<Outgoing>,
    ) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.in_flight.insert(ticket, purpose);
        out.push(Outgoing {
            server,
            ticket,
            command,
        });
    }

    /// Returns whether a command may be sent now: for the first time, to another server, or with
    /// its script's text. Otherwise it must end as `NotRun`: the command of an acquiring request
    /// that serves nobody, or of a lease that has ended.
    pub(crate) fn may_resend(&self, kernel: &Kernel, ticket: Ticket, now: Instant) -> bool {
        match self.in_flight.get(&ticket) {
            Some(Purpose::Ask(asked)) => {
                let (name, no) = (&*entry_name(&*asked.lock), asked.no);
                let mut fx = Effects::default();
                let serves = kernel.with_existing(name, now, &mut fx, |entry, _| {
                    let n = entry.index_of(no)?;
                    Some(entry.requests[n].serves != Serves::Nobody)
                });
                serves.flatten().unwrap_or(false)
            }
            Some(Purpose::Vote { round, .. }) => self.may_resend_vote(kernel, *round, now),
            Some(Purpose::Lease(work)) => work.lease.remaining(now).is_some(),
            found => found.is_some(),
        }
    }

    /// Ends the engine: its thread must not drop what may own a user's closure.
    pub(crate) fn end(&mut self, fx: &mut Effects) {
        self.end_rounds(fx);
        for purpose in mem::take(&mut self.in_flight).into_values() {
            if let Purpose::Lease(work) = purpose {
                fx.discard.push(Discard::Lease(work.lease));
            }
        }
    }

    /// Applies the end of a command, exactly once for each ticket. Over a quorum, that can add
    /// commands to send.
    pub(crate) fn ended(
        &mut self,
        kernel: &Kernel,
        ticket: Ticket,
        end: Result<Answer, Fault>,
        [sent, now]: [Instant; 2],
        route: &dyn Route,
        fx: &mut Effects,
    ) -> Vec<Outgoing> {
        let mut out = Vec::new();
        let Some(purpose) = self.in_flight.remove(&ticket) else {
            return out;
        };
        match purpose {
            Purpose::Vote { round, server } => {
                self.voted(kernel, (round, server), end, (now, route), &mut out, fx);
            }
            Purpose::Ask(asked) => {
                let lock = Arc::clone(&asked.lock);
                kernel.with_entry(&lock, now, fx, |entry, cx| {
                    entry.answered(&asked, end, sent, cx);
                });
            }
            Purpose::Refresh(name, of) => {
                kernel.with_existing(&name, now, fx, |entry, cx| {
                    entry.refreshed(&of, end, sent, cx);
                });
            }
            Purpose::Confirm(name, no, id, terms) => {
                kernel.with_existing(&name, now, fx, |entry, cx| {
                    entry.confirmed((no, &id), &terms, end, sent, cx);
                });
            }
            Purpose::Lease(work) => {
                kernel.lease_answered(&work, end, [sent, now], route.is_final(), fx);
                fx.discard.push(Discard::Lease(work.lease));
            }
            Purpose::Undo(batch) => {
                let mut pending = kernel.pending.lock();
                let undone = pending.settle(&batch, end, now);
                let at = pending.next();
                kernel.put_pending(at, fx);
                drop(pending);
                // Over a quorum, each attempt that fails is undone at some servers.
                if let Some(name) = undone.filter(|_| !kernel.is_quorum()) {
                    kernel.with_existing(&name, now, fx, |entry, cx| entry.undone(cx));
                }
            }
        }
        out
    }

    /// Returns the name whose refusal the reply to a command can be, and the id that it acquires
    /// for.
    #[cfg(sim)]
    pub(super) fn asks_for(&self, ticket: Ticket) -> Option<(Name, Option<HolderId>)> {
        match self.in_flight.get(&ticket)? {
            Purpose::Ask(asked) => Some((
                entry_name(&*asked.lock).into_owned(),
                Some(asked.id.clone()),
            )),
            Purpose::Refresh(name, _) => Some((name.clone(), None)),
            _ => None,
        }
    }

    /// Returns whether a command in flight may acquire something.
    pub(crate) fn may_acquire(&self) -> bool {
        self.in_flight.values().any(|purpose| match purpose {
            Purpose::Ask(_) => true,
            Purpose::Vote { round, .. } => self.proposes(*round),
            _ => false,
        })
    }

    /// Returns the commands in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}

fn tell_losses(kernel: &Kernel, items: &[Item], now: Instant, fx: &mut Effects) {
    let mut ended = Vec::new();
    for item in items {
        if let Item::Lease(lease) = item
            && let LeaseStatus::Lost(_) = lease.status(now, fx)
        {
            ended.push(Arc::clone(lease));
        }
    }
    for lease in ended {
        kernel.lease_ended(&lease, now, fx);
        fx.discard.push(Discard::Lease(lease));
    }
}

fn put_back(kernel: &Kernel, item: Item, now: Instant, fx: &mut Effects) {
    let key = match &item {
        Item::Lease(lease) => ItemKey::Lease(lease.serial),
        Item::Entry(name) => ItemKey::Entry(name.clone()),
        Item::Pending => ItemKey::Pending,
        Item::Rounds => ItemKey::Rounds,
    };
    kernel.put(key, item, [now, Instant::NEVER], fx);
}
