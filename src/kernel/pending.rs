//! The pending releases: every id that may hold something in Redis and has no holder here.
//!
//! ```text
//! waiting ──due: with the other ids of its lock, at most 256, in one command──▶ in flight
//!    ▲                                                                              │
//!    ├── no reply, or not found and KeySeen: pause 50 ms … 0.8 s, then age × 2/17 ──┤
//!    └── its time is over: ended       removed; or a reply of the script and AnyAnswer: ended
//! ```

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::RUNS_WITHIN;
use crate::kernel::command::{Command, What};
use crate::kernel::engine::ServerNo;
use crate::kernel::fault::Fault;
use crate::kernel::mutant::{Mutant, is_on};
use crate::kernel::votes::Majority;
use crate::name::{Name, NameTable};
use crate::protocol::answer::{Answer, Undone};
use crate::protocol::primitive::{AtRelease, Primitive};

/// The most holder ids in one command: about 16 KiB of them.
const MOST_IDS: usize = 256;

/// The most ids of one name that may still be acquired. Beyond that, nobody asks for the name.
const MOST_KEY_SEEN: usize = 1000;

/// The most recent releases that are kept: enough for the seconds in which two servers are masters.
const MOST_RECENT: usize = 4096;

/// How many ended releases are remembered, and for how long: replies to commands that were sent
/// before are read by then.
const MOST_ENDED: usize = 1000;
const ENDED_FOR: Duration = Duration::from_secs(10);

/// The pause between the first tries of a release.
const SHORTEST: Duration = Duration::from_millis(50);

/// The pause between tries of a release that is between 0.8 and 6.8 s old.
const YOUNG: Duration = Duration::from_millis(800);

/// The longest pause after a try without a reply, so that the recovery of Redis is noticed soon.
const UNANSWERED: Duration = Duration::from_secs(1);

/// What ends a release before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Any reply of the script: the acquiring command was answered, or has certainly ended.
    AnyAnswer,
    /// Only the reply that it removed something: the acquiring command may still run.
    KeySeen,
}

/// A release to be sent until it has certainly run.
#[derive(Clone, Debug)]
pub(crate) struct PendingRelease {
    /// The server of a quorum; 0 elsewhere.
    pub(crate) server: ServerNo,
    pub(crate) lock: Arc<dyn Primitive>,
    pub(crate) id: HolderId,
    /// When the key has expired, or the acquiring command can run no more.
    pub(crate) until: Instant,
    pub(crate) ends_by: Proof,
    /// It ends a lease at a shutdown, which counts the outcome: how many releases of the lease must
    /// find it.
    pub(crate) counts: Option<usize>,
    /// It removes only a place in a queue.
    pub(crate) is_place: bool,
}

impl PendingRelease {
    pub(crate) fn new(
        (server, lock): (ServerNo, &Arc<dyn Primitive>),
        id: &HolderId,
        until: Instant,
        ends_by: Proof,
    ) -> Self {
        Self {
            server,
            lock: Arc::clone(lock),
            id: id.clone(),
            until,
            ends_by,
            counts: None,
            is_place: false,
        }
    }
}

/// What the releases of a shutdown found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) released: usize,
    pub(crate) already_lost: usize,
    pub(crate) unreleased: usize,
}

/// The pending releases, in groups of one lock each. Adding, taking and ending one costs O(log n).
#[derive(Debug, Default)]
pub(crate) struct PendingReleases {
    pending: HashMap<u64, Pending>,
    groups: HashMap<u64, Group>,
    by_lock: HashMap<(ServerNo, SameKeys), u64>,
    /// The releases of each id: several over a quorum, and for a set.
    ids: HashMap<HolderId, Vec<u64>>,
    counts: NameTable<Counts>,
    /// When each group is due.
    due: BTreeSet<(Instant, u64)>,
    /// When each release ends.
    ends: BTreeSet<(Instant, u64)>,
    serial: u64,
    tally: Tally,
    /// The leases that a shutdown counts, until enough servers have answered.
    counted: HashMap<HolderId, Counted>,
    /// The undos that a shutdown waits for: no reply has answered them.
    awaited: usize,
    is_closing: bool,
    has_ended: bool,
    /// A replica may become the master.
    keeps_recent: bool,
    /// Recent releases that were answered, to be repeated if another server becomes the master.
    recent: VecDeque<PendingRelease>,
    /// Releases that have ended, and when: a reply that was sent before may still name their ids.
    ended: VecDeque<(Instant, ServerNo, HolderId)>,
}

/// The releases of a lease that a shutdown counts.
#[derive(Debug, Default)]
struct Counted {
    /// The servers without an answer.
    open: usize,
    /// Those at which the lease was released.
    released: usize,
    needed: usize,
}

/// The pending releases of a name.
#[derive(Debug, Default)]
struct Counts {
    /// Releases that no reply has answered yet.
    unanswered: usize,
    key_seen: usize,
}

#[derive(Debug)]
struct Pending {
    release: PendingRelease,
    group: u64,
    began: Instant,
    tried: Instant,
    /// `None` while it is in flight.
    due: Option<Instant>,
    /// A try without a reply may have removed the key.
    may_have_run: bool,
    was_answered: bool,
    /// It undoes a command that ended after the client was closed.
    is_awaited: bool,
    /// What was learnt while it was in flight: a command that was sent before may have run before.
    news: Option<News>,
}

/// What the client has learnt about an id whose release is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct News {
    /// Its acquiring command has ended.
    has_ended: bool,
}

/// The releases of one lock.
#[derive(Debug)]
struct Group {
    server: ServerNo,
    lock: Arc<dyn Primitive>,
    /// The releases that are not in flight, by due time.
    order: BTreeSet<(Instant, u64)>,
    /// How many releases it has, those in flight included.
    size: usize,
    /// When the newest release was added.
    newest: Instant,
    /// When the last command was sent.
    last: Option<Instant>,
    next: Instant,
}

/// Locks are the same if their releases take the same keys.
#[derive(Debug)]
struct SameKeys(Arc<dyn Primitive>);

impl PartialEq for SameKeys {
    fn eq(&self, other: &Self) -> bool {
        self.0.release(&[], AtRelease::Usual).keys == other.0.release(&[], AtRelease::Usual).keys
    }
}

impl Eq for SameKeys {}

impl Hash for SameKeys {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.names.hash(state);
    }
}

/// The releases that one command carries.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) server: ServerNo,
    group: u64,
    releases: Vec<(u64, HolderId)>,
}

/// Returns the pause after a try that found nothing, for a release of this age.
fn pause(age: Duration) -> Duration {
    age.clamp(SHORTEST, YOUNG).max(age * 2 / 17)
}

/// How early a release with this pause can join a command, and the least time between two commands
/// if the newest release has this pause.
fn joins_after(pause: Duration) -> Duration {
    pause * 15 / 16
}

impl PendingReleases {
    pub(crate) fn new(keeps_recent: bool) -> Self {
        Self {
            keeps_recent,
            ..Self::default()
        }
    }

    /// Returns whether this is the id of a pending release.
    #[cfg(sim)]
    pub(crate) fn has(&self, id: &[u8]) -> bool {
        HolderId::parse(id).is_some_and(|id| self.ids.contains_key(&id))
    }

    /// Returns whether this is the id of a release at a server that is pending, or has ended since
    /// `sent`: it refuses nobody.
    pub(crate) fn had_since(&self, server: ServerNo, id: &[u8], sent: Instant) -> bool {
        let mut ended = self.ended.iter().rev().take_while(|(at, ..)| *at >= sent);
        let is_it = |(_, of, ended): &(Instant, ServerNo, HolderId)| {
            *of == server && ended.as_str().as_bytes() == id
        };
        self.has_at(server, id) || ended.any(is_it) && !is_on(Mutant::EndedUndoRefuses)
    }

    /// Returns whether this is the id of a release that has ended.
    pub(crate) fn has_ended(&self, id: &[u8]) -> bool {
        let Some(id) = HolderId::parse(id).filter(|id| !self.ids.contains_key(id)) else {
            return false;
        };
        self.ended.iter().any(|(.., ended)| *ended == id)
    }

    /// Returns whether this is the id of a pending release at a server.
    pub(crate) fn has_at(&self, server: ServerNo, id: &[u8]) -> bool {
        HolderId::parse(id).is_some_and(|id| {
            let mut found = self.serials(&id).filter_map(|it| self.pending.get(&it));
            found.any(|it| it.release.server == server)
        })
    }

    /// Returns whether an id has a pending release for this lock.
    #[cfg(sim)]
    pub(super) fn has_for(&self, lock: &Arc<dyn Primitive>, id: &HolderId) -> bool {
        let group = self.group_of(0, lock);
        group.is_some_and(|group| self.serial(id, group).is_some())
    }

    /// Returns the releases of an id.
    fn serials(&self, id: &HolderId) -> impl Iterator<Item = u64> {
        self.ids.get(id).into_iter().flatten().copied()
    }

    /// Returns the release of an id in a group.
    fn serial(&self, id: &HolderId, group: u64) -> Option<u64> {
        let is_it = |it: &u64| self.pending.get(it).is_some_and(|it| it.group == group);
        self.serials(id).find(is_it)
    }

    fn group_of(&self, server: ServerNo, lock: &Arc<dyn Primitive>) -> Option<u64> {
        let keys = (server, SameKeys(Arc::clone(lock)));
        self.by_lock.get(&keys).copied()
    }

    /// Returns whether a release of the name has no answer yet.
    pub(crate) fn has_unanswered(&self, name: &Name) -> bool {
        self.counts
            .get(name)
            .is_some_and(|counts| counts.unanswered > 0)
    }

    /// Returns whether so many ids of the name may still be acquired that nobody may ask for it.
    pub(crate) fn is_full(&self, name: &Name) -> bool {
        self.counts
            .get(name)
            .is_some_and(|counts| counts.key_seen >= MOST_KEY_SEEN)
    }

    #[cfg(sim)]
    pub(crate) fn ids(&self) -> impl Iterator<Item = &HolderId> {
        self.ids.keys()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns how many leases may exist because their release has no reply, except those that the
    /// shutdown counts: too few servers of a deployment of this `size` have released them.
    pub(crate) fn unconfirmed(&self, size: Majority) -> usize {
        let mut servers: HashMap<&HolderId, usize> = HashMap::new();
        for pending in self.pending.values() {
            let release = &pending.release;
            if !release.is_place && release.counts.is_none() && !pending.was_answered {
                *servers.entry(&release.id).or_default() += 1;
            }
        }
        let may_exist = servers
            .values()
            .filter(|held| size.all < **held + size.needed);
        may_exist.count()
    }

    /// Returns whether a shutdown waits for no reply any more: about the leases that it counts, and
    /// about commands that ended after it began.
    pub(crate) fn has_counted(&self) -> bool {
        self.counted.is_empty() && self.awaited == 0
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// From now on all releases are sent without pauses before their first try.
    pub(crate) fn close(&mut self) {
        self.is_closing = true;
        let groups: Vec<u64> = self.groups.keys().copied().collect();
        groups.into_iter().for_each(|group| self.plan(group));
    }

    /// Returns when something must be done.
    pub(crate) fn next(&self) -> Instant {
        let due = self.due.first().map(|(at, _)| *at);
        let ends = self.ends.first().map(|(at, _)| *at);
        due.into_iter().chain(ends).min().unwrap_or(Instant::NEVER)
    }

    /// Adds a release, which is due at once, or after the pause since the last command for its
    /// lock. A second one of an id only sharpens the first.
    pub(crate) fn push(&mut self, release: PendingRelease, now: Instant) {
        let group = self.group_of(release.server, &release.lock);
        if let Some(serial) = group.and_then(|group| self.serial(&release.id, group)) {
            if release.ends_by == Proof::AnyAnswer {
                self.learn(serial, News { has_ended: true });
            }
            return;
        }
        self.serial += 1;
        let serial = self.serial;
        let lock = SameKeys(Arc::clone(&release.lock));
        let keys = (release.server, lock);
        let group = *self.by_lock.entry(keys).or_insert(serial);
        let of_lock = self.groups.entry(group).or_insert_with(|| Group {
            server: release.server,
            lock: Arc::clone(&release.lock),
            order: BTreeSet::new(),
            size: 0,
            newest: now,
            last: None,
            next: now,
        });
        of_lock.newest = now;
        of_lock.size += 1;
        of_lock.order.insert((now, serial));
        let counts = self.counts.entry(name_of(&release)).or_default();
        counts.unanswered += 1;
        counts.key_seen += usize::from(release.ends_by == Proof::KeySeen);
        if let Some(needed) = release.counts {
            let counted = self.counted.entry(release.id.clone()).or_default();
            self.tally.unreleased += usize::from(counted.open == 0);
            counted.open += 1;
            counted.needed = needed;
        }
        let is_awaited = self.is_closing && release.counts.is_none() && !release.is_place;
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
                was_answered: false,
                is_awaited,
                news: None,
            },
        );
        self.plan(group);
    }

    /// Records that Redis holds something under this id: its release is due now. That says nothing
    /// of the acquiring command: a set has one id for all its names.
    pub(crate) fn seen(&mut self, id: &HolderId) {
        let serials: Vec<u64> = self.serials(id).collect();
        for serial in serials {
            self.learn(serial, News { has_ended: false });
        }
    }

    /// Adds a release and returns its command, to be sent at once: behind its acquiring command, on
    /// the same pipeline. `None` if its release is in flight already.
    pub(crate) fn push_now(
        &mut self,
        release: PendingRelease,
        now: Instant,
    ) -> Option<(Command, Batch)> {
        let (server, lock, id) = (
            release.server,
            Arc::clone(&release.lock),
            release.id.clone(),
        );
        self.push(release, now);
        let group = self.group_of(server, &lock)?;
        let serial = self.serial(&id, group)?;
        self.pending.get(&serial).filter(|it| it.due.is_some())?;
        // Later releases of the lock need not wait because of this one.
        let last = self.groups.get(&group)?.last;
        let taken = self.take(group, &[serial], now);
        if let Some(of_lock) = self.groups.get_mut(&group) {
            of_lock.last = last;
        }
        self.plan(group);
        taken
    }

    /// The pipeline of an acquiring command ended before its reply: it may still run.
    pub(crate) fn doubt(&mut self, server: ServerNo, lock: &Arc<dyn Primitive>, id: &HolderId) {
        let group = self.group_of(server, lock);
        let Some(serial) = group.and_then(|group| self.serial(id, group)) else {
            return;
        };
        if let Some(pending) = self.pending.get_mut(&serial)
            && pending.release.ends_by == Proof::AnyAnswer
            && !is_on(Mutant::DeadPipelineIsAnyAnswer)
        {
            pending.release.ends_by = Proof::KeySeen;
            if let Some(counts) = self.counts.get_mut(&name_of(&pending.release)) {
                counts.key_seen += 1;
            }
        }
    }

    /// Applies news about an id. A release that is in flight learns them when its command ends:
    /// that may have run before what the client has just learnt.
    fn learn(&mut self, serial: u64, news: News) {
        if let Some(pending) = self.pending.get_mut(&serial)
            && pending.due.is_none()
            && !is_on(Mutant::NewsEndTheReleaseInFlight)
        {
            let before = pending.news.is_some_and(|before| before.has_ended);
            let has_ended = news.has_ended || before;
            pending.news = Some(News { has_ended });
            return;
        }
        if news.has_ended {
            self.settle_proof(serial);
        }
        self.send_next(serial);
    }

    /// The acquiring command has certainly ended: any reply of the script ends the release.
    fn settle_proof(&mut self, serial: u64) {
        if let Some(pending) = self.pending.get_mut(&serial)
            && pending.release.ends_by == Proof::KeySeen
        {
            pending.release.ends_by = Proof::AnyAnswer;
            if let Some(counts) = self.counts.get_mut(&name_of(&pending.release)) {
                counts.key_seen -= 1;
            }
        }
    }

    /// Keeps a release that was answered: a replica that becomes the master may not have it.
    pub(crate) fn note_recent(&mut self, release: PendingRelease) {
        if !self.keeps_recent {
            return;
        }
        self.recent.push_back(release);
        if self.recent.len() > MOST_RECENT {
            self.recent.pop_front();
        }
    }

    /// Repeats the recent releases.
    pub(crate) fn repeat_recent(
        &mut self,
        is_moved: &dyn Fn(&dyn Primitive) -> bool,
        now: Instant,
    ) {
        for release in std::mem::take(&mut self.recent) {
            if !is_moved(&*release.lock) {
                self.recent.push_back(release);
            } else if release.until > now {
                self.push(release, now);
            }
        }
    }

    /// Nobody sends releases from now on, unless one is due. Returns whether that is so.
    pub(super) fn end(&mut self, now: Instant) -> bool {
        self.has_ended |= self.next() > now && self.awaited == 0;
        self.has_ended
    }

    pub(super) fn end_now(&mut self) {
        self.has_ended = true;
    }

    pub(super) fn is_unsent(&self) -> bool {
        self.has_ended
    }

    /// Returns the commands to send at `now`; removes the releases whose time is over.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<(Command, Batch)> {
        while let Some((until, serial)) = self.ends.first().copied()
            && until <= now
        {
            self.expire(serial, now);
        }
        let mut commands = Vec::new();
        while let Some((_, group)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            let serials = self.due_together(group, now);
            commands.extend(self.take(group, &serials, now));
        }
        commands
    }

    /// The time of a release is over. It is sent once more if the engine stood still: a command
    /// that was decided earlier may have been sent since the last try.
    fn expire(&mut self, serial: u64, now: Instant) {
        let Some(pending) = self.pending.get_mut(&serial) else {
            return;
        };
        if pending.is_late(now) {
            self.ends.remove(&(pending.release.until, serial));
            pending.release.until = now.after(UNANSWERED);
            self.ends.insert((pending.release.until, serial));
            return;
        }
        let group = pending.group;
        self.remove(serial);
        self.plan(group);
    }

    /// Returns the releases of a due group that are due, or close enough to be sent with them.
    fn due_together(&self, group: u64, now: Instant) -> Vec<u64> {
        let order = self.groups.get(&group).map(|group| &group.order);
        let joins = |due: Instant, serial: &u64| {
            self.pending.get(serial).is_some_and(|pending| {
                let pause = pause(pending.began.until(now));
                due <= now.after(joins_after(pause))
            })
        };
        let order = order.into_iter().flatten();
        let serials = order.take_while(|(due, serial)| joins(*due, serial));
        serials.map(|(_, serial)| *serial).take(MOST_IDS).collect()
    }

    fn take(&mut self, group: u64, serials: &[u64], now: Instant) -> Option<(Command, Batch)> {
        let mut releases = Vec::with_capacity(serials.len());
        for &serial in serials {
            if let Some(pending) = self.pending.get_mut(&serial) {
                pending.tried = now;
                releases.push((serial, pending.release.id.clone()));
                self.schedule(serial, None);
            }
        }
        let of_lock = self.groups.get_mut(&group)?;
        of_lock.last = Some(now);
        let ids = releases.iter().map(|(_, id)| id.clone()).collect();
        let command = Command::new(&of_lock.lock, What::Undo { ids });
        let server = of_lock.server;
        self.plan(group);
        let batch = Batch {
            server,
            group,
            releases,
        };
        (!batch.releases.is_empty()).then_some((command, batch))
    }

    fn schedule(&mut self, serial: u64, due: Option<Instant>) {
        if let Some(pending) = self.pending.get_mut(&serial)
            && let Some(group) = self.groups.get_mut(&pending.group)
        {
            if let Some(before) = pending.due {
                group.order.remove(&(before, serial));
            }
            if let Some(due) = due {
                group.order.insert((due, serial));
            }
            pending.due = due;
        }
    }

    /// Plans the next command of a group; removes a group without releases.
    fn plan(&mut self, serial: u64) {
        let Some(group) = self.groups.get_mut(&serial) else {
            return;
        };
        self.due.remove(&(group.next, serial));
        if group.size == 0 {
            let keys = (group.server, SameKeys(Arc::clone(&group.lock)));
            self.by_lock.remove(&keys);
            self.groups.remove(&serial);
            return;
        }
        let Some((first, _)) = group.order.first() else {
            return;
        };
        let not_before = group.last.filter(|_| !self.is_closing);
        let not_before = not_before.map_or(Instant::START, |last| {
            let pause = joins_after(pause(group.newest.until(last)));
            last.after(pause.min(UNANSWERED))
        });
        group.next = not_before.max(*first);
        self.due.insert((group.next, serial));
    }

    /// Records the end of a batch.
    ///
    /// Returns the name if something was removed: the lock may be free.
    pub(crate) fn settle(
        &mut self,
        batch: &Batch,
        end: Result<Answer, Fault>,
        now: Instant,
    ) -> Option<Name> {
        let group = self.groups.get(&batch.group);
        let name = group.map(|group| group.lock.key(0).name.clone());
        let has_removed = matches!(&end, Ok(Answer::Undone(it)) if !it.removed.is_empty());
        match end {
            Ok(Answer::Undone(undone)) => self.settle_undone(batch, &undone, now),
            end => {
                let may_have_run = end.err().is_none_or(|fault| fault.may_have_run());
                for (serial, _) in &batch.releases {
                    let Some(pending) = self.pending.get_mut(serial) else {
                        continue;
                    };
                    pending.may_have_run |= may_have_run;
                    let pause = pause(pending.began.until(now)).min(UNANSWERED);
                    let news = pending.news.take();
                    self.schedule(*serial, Some(now.after(pause)));
                    if news.is_some_and(|news| news.has_ended) {
                        self.settle_proof(*serial);
                    }
                }
            }
        }
        self.plan(batch.group);
        name.filter(|_| has_removed)
    }

    fn note_ended(&mut self, release: &PendingRelease, now: Instant) {
        let old = now.before(ENDED_FOR);
        while let Some((at, ..)) = self.ended.front()
            && (*at < old || self.ended.len() >= MOST_ENDED)
        {
            self.ended.pop_front();
        }
        let id = release.id.clone();
        self.ended.push_back((now, release.server, id));
    }

    fn settle_undone(&mut self, batch: &Batch, undone: &Undone, now: Instant) {
        for (n, (serial, _)) in batch.releases.iter().enumerate() {
            let was_removed = undone.removed.contains(&n);
            let Some(pending) = self.pending.get_mut(serial) else {
                continue;
            };
            let is_first = pending.is_awaited && !pending.was_answered;
            self.awaited -= usize::from(is_first);
            if let Some(was_released) = pending.note_answer(&mut self.counts, was_removed) {
                let id = pending.release.id.clone();
                self.count(&id, was_released);
            }
            let Some(pending) = self.pending.get_mut(serial) else {
                continue;
            };
            if let Some(news) = pending.news.take().filter(|_| !was_removed) {
                self.schedule(*serial, Some(Instant::START));
                self.learn(*serial, news);
                continue;
            }
            let any = is_on(Mutant::KeySeenIsAnyAnswer);
            if was_removed || any || pending.release.ends_by == Proof::AnyAnswer {
                let ends_by = Proof::AnyAnswer;
                let recent = PendingRelease {
                    ends_by,
                    counts: None,
                    ..pending.release.clone()
                };
                self.note_ended(&recent, now);
                self.note_recent(recent);
                self.remove(*serial);
            } else {
                let pause = pause(pending.began.until(pending.tried));
                let due = pending.tried.after(pause);
                self.schedule(*serial, Some(due));
            }
        }
        if let Some(id) = undone.other.as_deref().and_then(HolderId::parse)
            // A reply that contradicts itself must not send the same ids over and over.
            && batch.releases.iter().all(|(_, sent)| *sent != id)
            && let Some(serial) = self.serial(&id, batch.group)
        {
            self.send_next(serial);
        }
    }

    /// Counts the answer of a server about a lease that a shutdown has released.
    fn count(&mut self, id: &HolderId, was_released: bool) {
        let Some(counted) = self.counted.get_mut(id) else {
            return;
        };
        counted.open -= 1;
        counted.released += usize::from(was_released);
        let is_released = counted.released >= counted.needed;
        if is_released || counted.open == 0 {
            self.counted.remove(id);
            self.tally.unreleased -= 1;
            match is_released {
                true => self.tally.released += 1,
                false => self.tally.already_lost += 1,
            }
        }
    }

    /// Sends this release next: it was found to hold the lock.
    fn send_next(&mut self, serial: u64) {
        let Some(pending) = self.pending.get(&serial).filter(|it| it.due.is_some()) else {
            return;
        };
        let group = pending.group;
        self.schedule(serial, Some(Instant::START));
        if let Some(of_lock) = self.groups.get_mut(&group) {
            of_lock.last = None;
        }
        self.plan(group);
    }

    fn remove(&mut self, serial: u64) {
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
        if let Some(group) = self.groups.get_mut(&pending.group) {
            group.size -= 1;
        }
        let name = name_of(&pending.release);
        if let Some(counts) = self.counts.get_mut(&name) {
            counts.unanswered -= usize::from(!pending.was_answered);
            counts.key_seen -= usize::from(pending.release.ends_by == Proof::KeySeen);
            if counts.unanswered == 0 && counts.key_seen == 0 {
                self.counts.remove(&name);
            }
        }
    }
}

impl Pending {
    /// Returns whether a try was due that the engine has not made or whose end it has not read.
    fn is_late(&self, now: Instant) -> bool {
        match self.due {
            Some(due) => self.tried == self.began || due < self.release.until,
            None => self.tried.after(RUNS_WITHIN) < now,
        }
    }

    /// Notes the first answer. Returns whether a lease that a shutdown counts was released by it.
    fn note_answer(&mut self, counts: &mut NameTable<Counts>, removed: bool) -> Option<bool> {
        if std::mem::replace(&mut self.was_answered, true) {
            return None;
        }
        if let Some(counts) = counts.get_mut(&name_of(&self.release)) {
            counts.unanswered -= 1;
        }
        let was_released = removed || self.may_have_run;
        self.release.counts.is_some().then_some(was_released)
    }
}

fn name_of(release: &PendingRelease) -> Name {
    release.lock.key(0).name.clone()
}
