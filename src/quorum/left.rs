//! The ids that members may still have and nobody wants: their pending releases at each member, and
//! the kernel's commands that wait for these.
//!
//! ```text
//! a command of the kernel for k ids ──▶ a pending release at each member that may have one
//!    open ──each member of an id: released it, or had nothing──▶ decided? ──all ids──▶ over
//!      └──the releases have ended, and too few were answered──▶ over: the kernel sends it again
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::clock::Instant;
use crate::error::Cause;
use crate::holder_id::HolderId;
use crate::kernel::batch::Batch;
use crate::kernel::bounds::{Bound, at_most};
use crate::kernel::command::Command;
use crate::kernel::engine::Ticket;
use crate::kernel::fault::Fault;
use crate::kernel::pending::PendingReleases;
use crate::kernel::undo::PendingRelease;
use crate::majority::{Majority, Member};
use crate::mutant::{Mutant, is_on};
use crate::name::{Name, NameTable};
use crate::protocol::answer::{Answer, Undone};
use crate::protocol::primitive::Primitive;

/// The most ids of a name about which a member has not answered. Beyond that, no call asks it for
/// the name: each call would leave one more id there, and the others decide without it.
const MOST_LEFT: usize = 1_000;

/// A command of the kernel that releases ids.
#[derive(Debug)]
pub(super) struct Undoing {
    pub(super) ticket: Ticket,
    pub(super) began: Instant,
    pub(super) ids: Vec<(HolderId, OfId)>,
}

/// The answers of the members about an id.
#[derive(Debug)]
pub(super) struct OfId {
    /// The members that have not answered, and the numbers of the ids there.
    pub(super) open: Vec<(Member, u16)>,
    /// How many have released it.
    pub(super) released: usize,
    /// How many never answered.
    pub(super) unheard: usize,
}

/// The ids about which a member has not answered.
#[derive(Debug, Default)]
struct Unanswered {
    names: HashMap<HolderId, Name>,
    /// How many ids a name has.
    of_name: NameTable<usize>,
}

impl Unanswered {
    fn add(&mut self, id: &HolderId, name: &Name) {
        if self.names.insert(id.clone(), name.clone()).is_none() {
            *self.of_name.entry(name.clone()).or_default() += 1;
        }
    }

    fn remove(&mut self, id: &HolderId) {
        let Some(name) = self.names.remove(id) else {
            return;
        };
        if let Some(count) = self.of_name.get_mut(&name) {
            *count -= 1;
            if *count == 0 {
                self.of_name.remove(&name);
            }
        }
    }
}

/// The pending releases, by member.
#[derive(Debug)]
pub(super) struct Left {
    at: Box<[PendingReleases]>,
    unanswered: Box<[Unanswered]>,
    undoings: BTreeMap<u64, Undoing>,
    last: u64,
    /// The command that waits for an id.
    by_id: HashMap<HolderId, u64>,
}

impl Left {
    pub(super) fn new(size: Majority) -> Self {
        Self {
            at: (0..size.all)
                .map(|_| PendingReleases::of_member())
                .collect(),
            unanswered: (0..size.all).map(|_| Unanswered::default()).collect(),
            undoings: BTreeMap::new(),
            last: 0,
            by_id: HashMap::new(),
        }
    }

    /// Adds a release at a member.
    pub(super) fn push(&mut self, member: Member, release: PendingRelease, now: Instant) {
        self.note(member, &release);
        self.at[member].push(release, now);
    }

    /// Adds the release of what a lease has left at a member.
    pub(super) fn push_ended(&mut self, member: Member, release: PendingRelease, now: Instant) {
        self.note(member, &release);
        self.at[member].push_ended(release, now);
    }

    /// Adds a release and returns its command, to be sent behind its acquiring command.
    pub(super) fn push_now(
        &mut self,
        member: Member,
        release: PendingRelease,
        now: Instant,
    ) -> Option<(Command, Batch)> {
        self.note(member, &release);
        self.at[member].push_now(release, now)
    }

    /// Counts the id of a release that is not pending yet.
    fn note(&mut self, member: Member, release: &PendingRelease) {
        if !self.has(member, &release.id) {
            self.unanswered[member].add(&release.id, release.lock.key(0).name);
        }
    }

    /// Returns whether no call asks a member for a name: it has not answered about too many ids.
    pub(super) fn is_full(&self, member: Member, name: &Name) -> bool {
        let of_name = self.unanswered[member].of_name.get(name);
        of_name.is_some_and(|of| *of > at_most(Bound::Left, MOST_LEFT))
    }

    /// The pipeline of an acquiring command ended before its reply: it may still run. Its release
    /// ends once the key was seen, also if it is pending already.
    pub(super) fn push_unknown(&mut self, member: Member, release: PendingRelease, now: Instant) {
        let (lock, id) = (Arc::clone(&release.lock), release.id.clone());
        self.push(member, release, now);
        self.doubt(member, &lock, &id);
    }

    /// The same for a release that is pending already, if it is.
    pub(super) fn doubt(&mut self, member: Member, lock: &Arc<dyn Primitive>, id: &HolderId) {
        self.at[member].doubt(lock, id);
    }

    /// Returns whether the release of an id is pending at a member.
    pub(super) fn has(&self, member: Member, id: &HolderId) -> bool {
        self.at[member].has(id.as_str().as_bytes())
    }

    /// Returns the same if no reply has answered it.
    pub(super) fn awaits(&self, member: Member, id: &HolderId) -> bool {
        self.at[member].awaits(id)
    }

    /// Returns whether this is the id of a release at a member that is pending, or has ended since
    /// `sent`: it refuses nobody.
    pub(super) fn had_since(&self, member: Member, id: &[u8], sent: Instant) -> bool {
        self.at[member].had_since(id, sent)
    }

    /// Adds a command of the kernel, whose releases are pending. Returns its end if it is decided.
    pub(super) fn wait_for(
        &mut self,
        undoing: Undoing,
        size: Majority,
    ) -> Option<(Undoing, Result<Answer, Fault>)> {
        self.last += 1;
        for (id, _) in &undoing.ids {
            self.by_id.insert(id.clone(), self.last);
        }
        self.undoings.insert(self.last, undoing);
        self.decide(self.last, size)
    }

    /// Returns the commands for a member that are due.
    pub(super) fn take_due(&mut self, member: Member, now: Instant) -> Vec<(Command, Batch)> {
        self.at[member].take_due(now)
    }

    /// Applies the end of a command at a member. Returns the ids about which it is the first
    /// answer, with whether the member has released them, or may have before.
    pub(super) fn settle(
        &mut self,
        member: Member,
        batch: &Batch,
        end: Result<Answer, Fault>,
        now: Instant,
    ) -> Vec<(HolderId, bool)> {
        let answered = self.at[member].settle(batch, end, now).answered;
        for (id, _) in &answered {
            self.unanswered[member].remove(id);
        }
        answered
    }

    /// Returns the ids whose releases at a member have ended without an answer.
    pub(super) fn take_unheard(&mut self, member: Member) -> Vec<HolderId> {
        let unheard = self.at[member].take_unheard();
        for id in &unheard {
            self.unanswered[member].remove(id);
        }
        if is_on(Mutant::LeftForgetsTheId) {
            return Vec::new();
        }
        unheard
    }

    /// A member has answered about an id, or never will. Returns the command of the kernel that is
    /// decided with that, and its end.
    pub(super) fn answered(
        &mut self,
        member: Member,
        (id, was_there): (&HolderId, Option<bool>),
        size: Majority,
    ) -> Option<(Undoing, Result<Answer, Fault>)> {
        let (base, number) = (id.base(), id.number());
        let no = *self.by_id.get(&base)?;
        let undoing = self.undoings.get_mut(&no)?;
        let (_, of) = undoing.ids.iter_mut().find(|(it, _)| *it == base)?;
        let asked = of.open.iter().position(|it| *it == (member, number))?;
        of.open.swap_remove(asked);
        match was_there {
            Some(true) => of.released += 1,
            Some(false) => {}
            None => of.unheard += 1,
        }
        self.decide(no, size)
    }

    /// Ends a command if each of its ids is decided: enough members have released it, or too few
    /// may have.
    fn decide(&mut self, no: u64, size: Majority) -> Option<(Undoing, Result<Answer, Fault>)> {
        let ids = &self.undoings.get(&no)?.ids;
        let is_open = |of: &OfId| {
            let most = of.released + of.open.len();
            of.released < size.needed && most >= size.needed && !of.open.is_empty()
        };
        if ids.iter().any(|(_, of)| is_open(of)) {
            return None;
        }
        let is_unknown =
            |of: &OfId| of.released < size.needed && of.released + of.unheard >= size.needed;
        let end = if ids.iter().any(|(_, of)| is_unknown(of)) {
            Err(Fault::Unknown(Cause::text("too few servers answered")))
        } else {
            let ids = ids.iter().enumerate();
            let removed = ids.filter(|(_, (_, of))| of.released >= size.needed);
            Ok(Answer::Undone(Undone {
                removed: removed.map(|(n, _)| n).collect(),
                other: None,
            }))
        };
        Some((self.remove(no)?, end))
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

    /// Returns when something must be done.
    pub(super) fn next(&self) -> Instant {
        let pending = self.at.iter().map(PendingReleases::next);
        pending.fold(Instant::NEVER, Instant::min)
    }

    /// Returns the commands of the kernel that wait for the members.
    pub(super) fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.undoings.values().map(|it| it.ticket)
    }

    /// All releases are sent without pauses, and those that no reply has answered once more. If
    /// the end `awaits` those that nobody counts elsewhere, it waits for their replies.
    pub(super) fn close(&mut self, awaits: bool) {
        for pending in &mut self.at {
            pending.close();
            pending.send_unanswered();
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

    /// Returns how many ids may exist at a blocking number of members: no other holder could have
    /// the lock.
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
