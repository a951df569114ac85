//! The pending releases: every id that may hold something in Redis and has no holder here.
//!
//! ```text
//! waiting ──due: with the other ids of its lock, at most 256, in one command──▶ in flight
//!    ▲                                                                              │
//!    ├── no reply, or not found and KeySeen: pause 50 ms … 0.8 s, then age × 2/17 ──┤
//!    └── its time is over: ended       removed; or a reply of the script and AnyAnswer: ended
//! ```

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::bounds::{Bound, at_most};
use crate::kernel::ended::{Ended, Tally};
use crate::kernel::groups::{GroupNo, Groups, UNANSWERED};
use crate::kernel::undo::{Counts, PendingRelease, Proof, RUNS_WITHIN};
use crate::mutant::{Mutant, is_on};
use crate::name::{Name, NameTable};
use crate::protocol::primitive::Primitive;

/// The most releases of one lock whose acquiring commands may still run. Beyond that,
/// the oldest is forgotten: if its command runs after all, what it takes stays for its ttl.
const MOST_KEY_SEEN: usize = 16_384;

/// The pending releases, in groups of one lock each. Adding, taking and ending one costs O(log n).
#[derive(Debug, Default)]
pub(crate) struct PendingReleases {
    pub(super) pending: HashMap<u64, Pending>,
    pub(super) groups: Groups,
    /// The releases of each id: one for each lock.
    ids: HashMap<HolderId, Vec<u64>>,
    /// The releases of a name that no reply has answered yet.
    pub(super) unanswered: NameTable<usize>,
    /// When each release ends.
    ends: BTreeSet<(Instant, u64)>,
    serial: u64,
    pub(super) tally: Tally,
    /// The undos that a shutdown waits for: no reply has answered them.
    pub(super) awaited: usize,
    pub(super) is_closing: bool,
    /// A shutdown waits for the releases of before, too.
    pub(crate) awaits_open: bool,
    /// The ids of releases that have ended without an answer, if somebody waits for them.
    unheard: Option<Vec<HolderId>>,
    /// The engine has ended: nobody sends releases any more.
    nobody_sends: bool,
    /// When the client last learnt that another server is the master.
    moved_at: Option<Instant>,
    pub(crate) ended: Ended,
    /// The ids of the releases that were too many.
    #[cfg(sim)]
    pub(crate) forgotten: std::collections::HashSet<HolderId>,
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) release: PendingRelease,
    group: GroupNo,
    pub(super) began: Instant,
    pub(super) tried: Instant,
    /// `None` while it is in flight.
    pub(super) due: Option<Instant>,
    /// A try without a reply may have removed the key.
    pub(super) may_have_run: bool,
    /// A try has ended without an answer.
    pub(super) has_failed: bool,
    pub(super) was_answered: bool,
    /// It undoes a command that ended after the client was closed.
    pub(super) is_awaited: bool,
    /// What was learnt while it was in flight: a command that was sent before may have run before.
    pub(super) news: Option<IdNews>,
}

/// What the client has learnt about an id whose release is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum IdNews {
    /// Redis holds something under it.
    Seen,
    /// Its acquiring command has ended.
    HasEnded,
}

impl PendingReleases {
    pub(crate) fn new(keeps_recent: Option<Duration>) -> Self {
        let mut pending = Self::default();
        pending.ended.keeps_recent = keeps_recent;
        pending
    }

    /// Returns the pending releases of a member: somebody waits for their ends.
    pub(crate) fn of_member() -> Self {
        Self {
            unheard: Some(Vec::new()),
            ..Self::default()
        }
    }

    /// Returns the ids of the releases that have ended without an answer since the last time.
    pub(crate) fn take_unheard(&mut self) -> Vec<HolderId> {
        self.unheard
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Returns whether a release of an id is pending, and no reply has answered it.
    pub(crate) fn awaits(&self, id: &HolderId) -> bool {
        let mut found = self.serials(id).filter_map(|it| self.pending.get(&it));
        found.any(|it| !it.was_answered)
    }

    /// Returns whether this is the id of a release that is pending, or has ended since `sent`: it
    /// refuses nobody.
    pub(crate) fn had_since(&self, id: &[u8], sent: Instant) -> bool {
        let has_ended = self.ended.has_since(id, sent);
        self.has(id) || has_ended && !is_on(Mutant::EndedUndoRefuses)
    }

    /// Returns whether this is the id of a release that has ended.
    pub(crate) fn has_ended(&self, id: &[u8]) -> bool {
        let id = HolderId::parse(id).filter(|id| !self.ids.contains_key(id));
        id.is_some_and(|id| self.ended.has(&id))
    }

    /// Returns whether a release of this id is pending, or has ended.
    pub(super) fn has_had(&self, id: &HolderId) -> bool {
        self.ids.contains_key(id) || self.ended.has(id)
    }

    /// Returns whether this is the id of a pending release.
    pub(crate) fn has(&self, id: &[u8]) -> bool {
        HolderId::parse(id).is_some_and(|id| self.ids.contains_key(&id))
    }

    /// Returns whether an id has a pending release for this lock.
    #[cfg(sim)]
    pub(crate) fn has_for(&self, lock: &Arc<dyn Primitive>, id: &HolderId) -> bool {
        self.serial_of(lock, id).is_some()
    }

    /// Returns the releases of an id.
    fn serials(&self, id: &HolderId) -> impl Iterator<Item = u64> {
        self.ids.get(id).into_iter().flatten().copied()
    }

    /// Returns the release of an id for a lock.
    fn serial_of(&self, lock: &Arc<dyn Primitive>, id: &HolderId) -> Option<u64> {
        self.serial(id, self.groups.find(lock)?)
    }

    /// Returns the release of an id in a group.
    pub(super) fn serial(&self, id: &HolderId, group: GroupNo) -> Option<u64> {
        let is_it = |it: &u64| self.pending.get(it).is_some_and(|it| it.group == group);
        self.serials(id).find(is_it)
    }

    /// Returns whether a release of the name has no answer yet.
    pub(crate) fn has_unanswered(&self, name: &Name) -> bool {
        self.unanswered.contains_key(name)
    }

    #[cfg(sim)]
    pub(crate) fn ids(&self) -> impl Iterator<Item = &HolderId> {
        self.ids.keys()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the ids of the leases that may exist because their release has no reply, except
    /// those that the shutdown counts. Walks all releases.
    pub(crate) fn unconfirmed(&self) -> impl Iterator<Item = &HolderId> {
        let open = self.pending.values().filter(|it| it.is_open());
        open.map(|it| &it.release.id)
    }

    /// Returns whether a shutdown waits for no reply any more: about the leases that it counts, and
    /// about commands that ended after it began.
    pub(crate) fn has_counted(&self) -> bool {
        self.tally.unreleased == 0 && self.awaited == 0
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// Returns whether no reply is awaited, and nothing is due at `now`.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        self.next() > now && self.awaited == 0
    }

    /// From now on all releases are sent without pauses before their first try, and those of leases
    /// that no reply has answered once more.
    pub(crate) fn close(&mut self) {
        self.is_closing = true;
        self.groups.close();
        for serial in self.open() {
            self.send_next(serial);
        }
    }

    /// Sends all releases that no reply has answered once more, whatever they count as.
    pub(crate) fn send_unanswered(&mut self) {
        let open = self.pending.iter().filter(|(_, it)| !it.was_answered);
        let open: Vec<u64> = open.map(|(serial, _)| *serial).collect();
        for serial in open {
            self.send_next(serial);
        }
    }

    /// A shutdown waits for a reply to the releases of leases that no reply has answered.
    pub(crate) fn await_open(&mut self) {
        self.awaits_open = true;
        for serial in self.open() {
            if let Some(pending) = self.pending.get_mut(&serial)
                && !std::mem::replace(&mut pending.is_awaited, true)
            {
                self.awaited += 1;
            }
            self.send_next(serial);
        }
    }

    /// Returns the releases of leases that no reply has answered, but for those that are counted.
    fn open(&self) -> Vec<u64> {
        let open = self.pending.iter().filter(|(_, it)| it.is_open());
        open.map(|(serial, _)| *serial).collect()
    }

    /// Returns when something must be done.
    pub(crate) fn next(&self) -> Instant {
        let (due, ends) = (self.groups.first(), self.ends.first().copied());
        let at = due.into_iter().chain(ends).map(|(at, _)| at).min();
        at.unwrap_or(Instant::NEVER)
    }

    /// Adds a release, which is due at once, or after the pause since the last command for its
    /// lock. A second one of an id sharpens the first, and prolongs it.
    pub(crate) fn push(&mut self, release: PendingRelease, now: Instant) {
        if let Some(serial) = self.serial_of(&release.lock, &release.id) {
            self.prolong(serial, release.until);
            if release.ends_by == Proof::AnyAnswer {
                self.learn(serial, IdNews::HasEnded);
            }
            return;
        }
        self.serial += 1;
        let serial = self.serial;
        let group = self.groups.add(serial, &release.lock, now);
        *self.unanswered.entry(name_of(&release)).or_default() += 1;
        self.tally.unreleased += usize::from(release.counts == Counts::AtShutdown);
        let is_awaited = self.is_closing && release.counts == Counts::Lease;
        self.awaited += usize::from(is_awaited);
        self.ids.entry(release.id.clone()).or_default().push(serial);
        self.ends.insert((release.until, serial));
        self.pending.insert(
            serial,
            Pending {
                release,
                group,
                began: now,
                tried: now,
                due: Some(now),
                may_have_run: false,
                has_failed: false,
                was_answered: false,
                is_awaited,
                news: None,
            },
        );
        self.bound(serial);
    }

    /// Adds the release of an ended lease. The lock is taken until it runs: it waits for no pause.
    pub(crate) fn push_ended(&mut self, release: PendingRelease, now: Instant) {
        let id = release.id.clone();
        self.push(release, now);
        self.seen(&id);
    }

    /// Counts a release whose acquiring command may still run, or counts it no more. Forgets the
    /// oldest one of its lock if those are too many.
    fn bound(&mut self, serial: u64) {
        let Some(pending) = self.pending.get(&serial) else {
            return;
        };
        let (group, release) = (pending.group, &pending.release);
        // A shutdown waits for those that it counts.
        let may_run = release.ends_by == Proof::KeySeen && release.counts != Counts::AtShutdown;
        let most = at_most(Bound::KeySeen, MOST_KEY_SEEN);
        if let Some(oldest) = self.groups.note_may_run(group, serial, may_run, most) {
            #[cfg(sim)]
            (self.forgotten).extend(self.pending.get(&oldest).map(|it| it.release.id.clone()));
            self.remove(oldest);
            self.groups.plan(group);
        }
    }

    fn prolong(&mut self, serial: u64, until: Instant) {
        let pending = self.pending.get_mut(&serial);
        if let Some(pending) = pending.filter(|it| it.release.until < until) {
            self.ends.remove(&(pending.release.until, serial));
            pending.release.until = until;
            self.ends.insert((until, serial));
        }
    }

    /// Records that Redis holds something under this id: its release is due now.
    pub(crate) fn seen(&mut self, id: &HolderId) {
        let serials: Vec<u64> = self.serials(id).collect();
        for serial in serials {
            self.learn(serial, IdNews::Seen);
        }
    }

    /// The pipeline of an acquiring command ended before its reply: it may still run.
    pub(crate) fn doubt(&mut self, lock: &Arc<dyn Primitive>, id: &HolderId) {
        if let Some(serial) = self.serial_of(lock, id)
            && !is_on(Mutant::DeadPipelineIsAnyAnswer)
        {
            self.needs(serial, Proof::KeySeen);
        }
    }

    /// Applies news about an id. A release that is in flight learns them when its command ends:
    /// that may have run before what the client has just learnt.
    pub(super) fn learn(&mut self, serial: u64, news: IdNews) {
        if let Some(pending) = self.pending.get_mut(&serial)
            && pending.due.is_none()
            && !is_on(Mutant::NewsEndTheReleaseInFlight)
        {
            pending.news = pending.news.max(Some(news));
            return;
        }
        if news == IdNews::HasEnded {
            self.needs(serial, Proof::AnyAnswer);
        }
        self.send_next(serial);
    }

    /// Changes what ends a release: its acquiring command has certainly ended, or may still run.
    pub(super) fn needs(&mut self, serial: u64, proof: Proof) {
        if let Some(pending) = self.pending.get_mut(&serial) {
            pending.release.ends_by = proof;
            self.bound(serial);
        }
    }

    /// Keeps a release that was answered.
    pub(crate) fn note_recent(&mut self, release: PendingRelease, now: Instant) {
        self.ended.note_recent(release, now);
    }

    /// Returns whether what was sent at that time may have run at a server that was the master.
    pub(super) fn has_moved_since(&self, sent: Instant) -> bool {
        self.moved_at.is_some_and(|at| sent <= at)
    }

    /// Repeats the recent releases.
    pub(crate) fn repeat_recent(
        &mut self,
        is_moved: &dyn Fn(&dyn Primitive) -> bool,
        now: Instant,
    ) {
        self.moved_at = Some(now);
        for (at, release) in std::mem::take(&mut self.ended.recent) {
            if !is_moved(&*release.lock) {
                self.ended.recent.push_back((at, release));
            } else if release.until > now {
                self.push(release, now);
            }
        }
    }

    /// Nobody sends releases from now on, unless one is due. Returns whether that is so.
    pub(super) fn end(&mut self, now: Instant) -> bool {
        self.nobody_sends |= self.is_idle(now);
        self.nobody_sends
    }

    pub(super) fn end_now(&mut self) {
        self.nobody_sends = true;
    }

    pub(super) fn is_unsent(&self) -> bool {
        self.nobody_sends
    }

    /// Removes the releases whose time is over. One is sent once more if the engine stood still: a
    /// command that was decided earlier may have been sent since the last try.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some((until, serial)) = self.ends.first().copied()
            && until <= now
        {
            let Some(pending) = self.pending.get_mut(&serial) else {
                self.ends.pop_first();
                continue;
            };
            if pending.is_late(now) {
                self.ends.pop_first();
                pending.release.until = now.after(UNANSWERED);
                self.ends.insert((pending.release.until, serial));
                continue;
            }
            let group = pending.group;
            self.remove(serial);
            self.groups.plan(group);
        }
    }

    pub(super) fn schedule(&mut self, serial: u64, due: Option<Instant>) {
        if let Some(pending) = self.pending.get_mut(&serial) {
            let before = std::mem::replace(&mut pending.due, due);
            (self.groups).move_to(pending.group, serial, [before, due]);
        }
    }

    /// Sends this release next: it was found to hold the lock.
    pub(super) fn send_next(&mut self, serial: u64) {
        let Some(pending) = self.pending.get(&serial).filter(|it| it.due.is_some()) else {
            return;
        };
        let group = pending.group;
        self.schedule(serial, Some(Instant::START));
        self.groups.set_last(group, None);
    }

    pub(super) fn remove(&mut self, serial: u64) {
        self.schedule(serial, None);
        let Some(pending) = self.pending.remove(&serial) else {
            return;
        };
        self.ends.remove(&(pending.release.until, serial));
        self.awaited -= usize::from(pending.is_awaited && !pending.was_answered);
        if let Some(serials) = self.ids.get_mut(&pending.release.id) {
            serials.retain(|it| *it != serial);
            if serials.is_empty() {
                self.ids.remove(&pending.release.id);
            }
        }
        self.groups.remove(pending.group, serial);
        if !pending.was_answered {
            note_answered(&mut self.unanswered, &name_of(&pending.release));
            if let Some(unheard) = &mut self.unheard {
                unheard.push(pending.release.id);
            }
        }
    }
}

impl Pending {
    /// Returns whether it is that of a lease which no reply has answered, and which no shutdown
    /// counts.
    fn is_open(&self) -> bool {
        !self.was_answered && self.release.counts == Counts::Lease
    }

    /// Returns whether a try was due that the engine has not made or whose end it has not read.
    fn is_late(&self, now: Instant) -> bool {
        match self.due {
            Some(due) => self.tried == self.began || due < self.release.until,
            None => self.tried.after(RUNS_WITHIN) < now,
        }
    }
}

/// A release of the name has its first answer, or needs none.
pub(super) fn note_answered(unanswered: &mut NameTable<usize>, name: &Name) {
    if let Some(count) = unanswered.get_mut(name) {
        *count -= 1;
        if *count == 0 {
            unanswered.remove(name);
        }
    }
}

/// Returns the name of the entry that a release is counted for.
pub(super) fn name_of(release: &PendingRelease) -> Name {
    release.lock.key(0).name.clone()
}
