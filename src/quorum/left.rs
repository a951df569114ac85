//! The ids that members may still have and nobody wants: their pending releases at each member, and
//! the kernel's commands that wait for these.
//!
//! ```text
//! a command of the kernel for k ids ──▶ a pending release at each member that may have one
//!    open ──each member of an id: released it, or had nothing──▶ decided? ──all ids──▶ over
//!      └──its time is over──▶ over, without an answer: the kernel sends it again
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::batch::Batch;
use crate::kernel::command::Command;
use crate::kernel::engine::Ticket;
use crate::kernel::fault::Fault;
use crate::kernel::pending::PendingReleases;
use crate::kernel::undo::{PendingRelease, Proof};
use crate::majority::{Majority, Member};
use crate::protocol::answer::{Answer, Undone};
use crate::protocol::primitive::Primitive;

/// A command of the kernel that releases ids.
#[derive(Debug)]
pub(super) struct Undoing {
    pub(super) ticket: Ticket,
    pub(super) began: Instant,
    pub(super) until: Instant,
    pub(super) ids: Vec<(HolderId, OfId)>,
}

/// The answers of the members about an id.
#[derive(Debug)]
pub(super) struct OfId {
    /// The members that have not answered. A bit for each: there are at most 63.
    pub(super) open: u64,
    /// How many have released it.
    pub(super) released: usize,
}

/// The pending releases, by member.
#[derive(Debug)]
pub(super) struct Left {
    at: Box<[PendingReleases]>,
    undoings: BTreeMap<u64, Undoing>,
    last: u64,
    /// The command that waits for an id.
    by_id: HashMap<HolderId, u64>,
}

impl Left {
    pub(super) fn new(size: Majority) -> Self {
        Self {
            at: (0..size.all).map(|_| PendingReleases::new(None)).collect(),
            undoings: BTreeMap::new(),
            last: 0,
            by_id: HashMap::new(),
        }
    }

    /// Adds a release at a member.
    pub(super) fn push(&mut self, member: Member, release: PendingRelease, now: Instant) {
        self.at[member].push(release, now);
    }

    /// Adds the release of what a lease has left at a member.
    pub(super) fn push_ended(&mut self, member: Member, release: PendingRelease, now: Instant) {
        let seen = (release.ends_by == Proof::AnyAnswer).then(|| release.id.clone());
        self.push(member, release, now);
        if let Some(id) = seen {
            // The lock is taken until this release runs: it waits for no pause.
            self.at[member].seen(&id);
        }
    }

    /// Adds a release and returns its command, to be sent behind its acquiring command.
    pub(super) fn push_now(
        &mut self,
        member: Member,
        release: PendingRelease,
        now: Instant,
    ) -> Option<(Command, Batch)> {
        self.at[member].push_now(release, now)
    }

    /// The pipeline of an acquiring command ended before its reply: it may still run.
    pub(super) fn doubt(&mut self, member: Member, lock: &Arc<dyn Primitive>, id: &HolderId) {
        self.at[member].doubt(lock, id);
    }

    /// Returns whether this is the id of a release at a member that is pending, or has ended since
    /// `sent`: it refuses nobody.
    pub(super) fn had_since(&self, member: Member, id: &[u8], sent: Instant) -> bool {
        self.at[member].had_since(id, sent)
    }

    /// Adds a command of the kernel, whose releases are pending. Returns its end if it is decided.
    pub(super) fn wait_for(&mut self, undoing: Undoing, size: Majority) -> Option<Answer> {
        self.last += 1;
        for (id, _) in &undoing.ids {
            self.by_id.insert(id.clone(), self.last);
        }
        self.undoings.insert(self.last, undoing);
        self.decide(self.last, size).map(|(_, answer)| answer)
    }

    /// Returns the commands for a member that are due.
    pub(super) fn take_due(&mut self, member: Member, now: Instant) -> Vec<(Command, Batch)> {
        self.at[member].take_due(now)
    }

    /// Applies the end of a command at a member. Returns the ids about which it is the first
    /// answer, with whether the member had them.
    pub(super) fn settle(
        &mut self,
        member: Member,
        batch: &Batch,
        end: Result<Answer, Fault>,
        now: Instant,
    ) -> Vec<(HolderId, bool)> {
        self.at[member].settle(batch, end, now).answered
    }

    /// A member has answered about an id. Returns the command of the kernel that is decided with
    /// that, and its end.
    pub(super) fn answered(
        &mut self,
        member: Member,
        (id, was_there): (&HolderId, bool),
        size: Majority,
    ) -> Option<(Undoing, Answer)> {
        let no = *self.by_id.get(id)?;
        let undoing = self.undoings.get_mut(&no)?;
        let (_, of) = undoing.ids.iter_mut().find(|(it, _)| it == id)?;
        if of.open & (1 << member) != 0 {
            of.open &= !(1 << member);
            of.released += usize::from(was_there);
        }
        self.decide(no, size)
    }

    /// Ends a command if each of its ids is decided: enough members have released it, or too few
    /// may have.
    fn decide(&mut self, no: u64, size: Majority) -> Option<(Undoing, Answer)> {
        let ids = &self.undoings.get(&no)?.ids;
        let is_decided = |of: &OfId| {
            let open = of.open.count_ones() as usize;
            of.released >= size.needed || of.released + open < size.needed || open == 0
        };
        if !ids.iter().all(|(_, of)| is_decided(of)) {
            return None;
        }
        let ids = ids.iter().enumerate();
        let removed = ids.filter(|(_, (_, of))| of.released >= size.needed);
        let undone = Undone {
            removed: removed.map(|(n, _)| n).collect(),
            other: None,
        };
        Some((self.remove(no)?, Answer::Undone(undone)))
    }

    fn remove(&mut self, no: u64) -> Option<Undoing> {
        let undoing = self.undoings.remove(&no)?;
        for (id, _) in &undoing.ids {
            if self.by_id.get(id) == Some(&no) {
                self.by_id.remove(id);
            }
        }
        Some(undoing)
    }

    /// Returns a command of the kernel whose time is over.
    pub(super) fn take_late(&mut self, now: Instant) -> Option<Undoing> {
        // Each has as much time: the oldest ends first.
        let (no, _) = self.undoings.iter().find(|(_, it)| it.until <= now)?;
        self.remove(*no)
    }

    /// Returns when something must be done.
    pub(super) fn next(&self) -> Instant {
        let pending = self.at.iter().map(PendingReleases::next);
        let late = self.undoings.values().next().map(|it| it.until);
        pending.chain(late).fold(Instant::NEVER, Instant::min)
    }

    /// Returns whether a command of the kernel waits for the members.
    pub(super) fn decides(&self, ticket: Ticket) -> bool {
        self.undoings.values().any(|it| it.ticket == ticket)
    }

    /// All releases are sent without pauses, and those that no reply has answered once more. If
    /// the end `awaits` these, it waits for their replies.
    pub(super) fn close(&mut self, awaits: bool) {
        for pending in &mut self.at {
            pending.close();
            if awaits {
                pending.await_open();
            }
        }
    }

    /// Returns whether the end of the client waits for no reply.
    pub(super) fn is_answered(&self) -> bool {
        self.at.iter().all(PendingReleases::has_counted)
    }

    /// Returns whether no reply is awaited, and nothing is due at `now`.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.at.iter().all(|pending| pending.is_idle(now))
    }

    /// Returns how many ids may exist at so many members that no other holder can have the lock.
    pub(super) fn may_exist(&self, size: Majority) -> usize {
        let mut members: HashMap<&HolderId, usize> = HashMap::new();
        for id in self.at.iter().flat_map(PendingReleases::unconfirmed) {
            *members.entry(id).or_default() += 1;
        }
        members.values().filter(|of| **of > size.spare()).count()
    }

    #[cfg(sim)]
    pub(super) fn at(&self, member: Member) -> &PendingReleases {
        &self.at[member]
    }

    #[cfg(sim)]
    pub(super) fn len(&self) -> usize {
        let open = self.at.iter().map(|pending| pending.ids().count());
        open.sum::<usize>() + self.undoings.len()
    }
}
