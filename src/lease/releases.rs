//! The pending releases of a client, or of one server of its quorum: which of them one command
//! carries, and when. No I/O.
//!
//! The states of a release:
//!
//! ```text
//!                due, or close to it                  it removed the key, or the
//! +---------+ -------------------------> +-------+    acquire has certainly run     +-------+
//! | waiting |                            | tried | -------------------------------> | ended |
//! +---------+ <------------------------- +-------+                                  +-------+
//!      |         no reply, or no key: the acquire may still run                         ^
//!      +--------------------------------------------------------------------------------+
//!                                       the key has expired
//! ```

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::lease::release::Release;
use crate::protocol::answer::{Answer, KeyState};
use crate::protocol::primitive::{AtRelease, Primitive};
use crate::protocol::script::Call;
use crate::protocol::verb::Verb;
use crate::redis::Fault;

/// The most holder ids in one command: about 16 KiB of them.
const MOST_IDS: usize = 256;

/// The pause between the first tries of a release.
const SHORTEST: Duration = Duration::from_millis(50);

/// The pause between tries of a release that is between 0.8 and 6.8 s old.
const YOUNG: Duration = Duration::from_millis(800);

/// The longest pause after a try without a reply, so that the recovery of Redis is noticed soon.
const UNANSWERED: Duration = Duration::from_secs(1);

/// Returns the pause after a try that found nothing, for a release of this age.
///
/// A command for a lock also carries the releases that are due within 15/16 of their pause. The
/// next command follows after 15/16 of the newest release's pause at the earliest, unless the reply
/// names the release to send next. So few commands carry all releases, and none is repeated late,
/// except if more than [`MOST_IDS`] are pending. A late acquire is removed within a second, or
/// within 1/8 of the release's age if that is longer. If the newest release is ten seconds old, two
/// commands for a name are at least a second apart: 15/16 of 2/17 of 10 s.
fn pause(age: Duration) -> Duration {
    age.clamp(SHORTEST, YOUNG).max(age * 2 / 17)
}

/// How early a release with this pause can join a command, and the least time between two commands
/// if the newest release has this pause.
fn joins_after(pause: Duration) -> Duration {
    pause * 15 / 16
}

/// The pending releases, in groups of one lock each. Adding, taking and ending one costs O(log n).
#[derive(Debug, Default)]
pub(crate) struct Releases {
    pending: HashMap<u64, Pending>,
    groups: HashMap<u64, Group>,
    by_lock: HashMap<SameLock, u64>,
    /// When each group is due.
    due: BTreeSet<(Instant, u64)>,
    /// When each release expires.
    ends: BTreeSet<(Instant, u64)>,
    /// Each release is tried once more, without a pause.
    is_hastened: bool,
    serial: u64,
}

#[derive(Debug)]
struct Pending {
    release: Release,
    group: u64,
    began: Instant,
    tried: Instant,
    due: Instant,
    /// A try got a reply.
    was_answered: bool,
}

/// The releases of one lock.
#[derive(Debug)]
struct Group {
    keys: Arc<dyn Primitive>,
    /// The releases by due time.
    order: BTreeSet<(Instant, u64)>,
    ids: HashMap<HolderId, u64>,
    /// When the newest release was added.
    newest: Instant,
    /// When the last command was sent.
    last: Option<Instant>,
    /// A command has not ended: there is never a second one.
    is_in_flight: bool,
    next: Instant,
}

/// Locks are the same if their releases take the same keys.
#[derive(Debug)]
struct SameLock(Arc<dyn Primitive>);

impl PartialEq for SameLock {
    fn eq(&self, other: &Self) -> bool {
        self.0.release(&[], AtRelease::Usual).keys == other.0.release(&[], AtRelease::Usual).keys
    }
}

impl Eq for SameLock {}

impl Hash for SameLock {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.names.hash(state);
    }
}

/// The releases that one command carries.
#[derive(Debug)]
pub(crate) struct ReleaseBatch {
    pub(crate) keys: Arc<dyn Primitive>,
    group: u64,
    releases: Vec<(u64, HolderId)>,
    /// The arguments of the script for several ids; empty for one id.
    arguments: Vec<Vec<u8>>,
}

impl ReleaseBatch {
    pub(crate) fn call(&self) -> Call<'_> {
        match &*self.releases {
            [(_, id)] => Call {
                verb: Verb::Undo(1),
                ..self.keys.release(id.as_str().as_bytes(), AtRelease::Usual)
            },
            _ => self.keys.undo(&self.arguments),
        }
    }
}

impl Releases {
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the leases that may exist because their release has no reply, except those that the
    /// caller of the release counts.
    pub(crate) fn unconfirmed(&self) -> impl Iterator<Item = &HolderId> {
        let pending = self.pending.values().filter(|pending| {
            let release = &pending.release;
            release.may_end_lease && !release.is_counted && !pending.was_answered
        });
        pending.map(|pending| &pending.release.id)
    }

    /// Returns when the next command is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Adds a release. It is due at once, or after the pause since the last command for its lock.
    pub(crate) fn push(&mut self, release: Release, now: Instant) {
        let lock = SameLock(Arc::clone(&release.keys));
        let serial = self.next_serial();
        let group = match self.by_lock.get(&lock) {
            Some(group) => *group,
            None => {
                let keys = Arc::clone(&release.keys);
                self.by_lock.insert(lock, serial);
                self.groups.insert(serial, Group::new(keys, now));
                serial
            }
        };
        let Some(of_lock) = self.groups.get_mut(&group) else {
            return;
        };
        of_lock.newest = now;
        of_lock.order.insert((now, serial));
        of_lock.ids.insert(release.id.clone(), serial);
        self.ends.insert((release.until, serial));
        let pending = Pending {
            release,
            group,
            began: now,
            tried: now,
            due: now,
            was_answered: false,
        };
        self.pending.insert(serial, pending);
        self.plan(group);
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Removes and returns the releases that have expired at `now`.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Vec<Release> {
        let mut over = Vec::new();
        while let Some((until, serial)) = self.ends.first().copied()
            && until <= now
        {
            self.ends.remove(&(until, serial));
            over.extend(self.remove(serial));
        }
        over
    }

    /// Makes all releases due, for a last try.
    pub(crate) fn hasten(&mut self) {
        self.is_hastened = true;
        let serials: Vec<u64> = self.pending.keys().copied().collect();
        for serial in serials {
            self.schedule(serial, Instant::START);
        }
        let groups: Vec<u64> = self.groups.keys().copied().collect();
        for group in groups {
            self.plan(group);
        }
    }

    /// Returns the commands to send at `now`. Each of them must be [settled](Self::settle).
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<ReleaseBatch> {
        let mut batches = Vec::new();
        while let Some((_, group)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            let serials = self.due_together(group, now);
            batches.extend(self.take(group, &serials, now));
        }
        batches
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
        let serials = order
            .into_iter()
            .flatten()
            .take_while(|(due, serial)| joins(*due, serial));
        serials.map(|(_, serial)| *serial).take(MOST_IDS).collect()
    }

    fn take(&mut self, group: u64, serials: &[u64], now: Instant) -> Option<ReleaseBatch> {
        let mut releases = Vec::with_capacity(serials.len());
        for &serial in serials {
            if let Some(pending) = self.pending.get_mut(&serial) {
                pending.tried = now;
                releases.push((serial, pending.release.id.clone()));
                let pause = pause(pending.began.until(now));
                self.schedule_again(serial, now.after(pause.min(UNANSWERED)));
            }
        }
        let of_lock = self.groups.get_mut(&group)?;
        of_lock.last = Some(now);
        of_lock.is_in_flight = true;
        let keys = Arc::clone(&of_lock.keys);
        self.plan(group);
        let ids: Vec<&HolderId> = releases.iter().map(|(_, id)| id).collect();
        let arguments = match &*ids {
            [_] => Vec::new(),
            ids => keys.undo_arguments(ids),
        };
        Some(ReleaseBatch {
            keys,
            group,
            releases,
            arguments,
        })
    }

    /// Schedules the next try of a release for `due`; no further one after the last.
    fn schedule_again(&mut self, serial: u64, due: Instant) {
        let due = if self.is_hastened {
            Instant::NEVER
        } else {
            due
        };
        self.schedule(serial, due);
    }

    fn schedule(&mut self, serial: u64, due: Instant) {
        if let Some(pending) = self.pending.get_mut(&serial)
            && let Some(group) = self.groups.get_mut(&pending.group)
        {
            group.order.remove(&(pending.due, serial));
            group.order.insert((due, serial));
            pending.due = due;
        }
    }

    /// Plans the next command of a group; removes a group without releases.
    fn plan(&mut self, serial: u64) {
        let Some(group) = self.groups.get_mut(&serial) else {
            return;
        };
        self.due.remove(&(group.next, serial));
        let Some((first, _)) = group.order.first() else {
            self.by_lock.remove(&SameLock(Arc::clone(&group.keys)));
            self.groups.remove(&serial);
            return;
        };
        if group.is_in_flight {
            return;
        }
        let last = group.last.filter(|_| !self.is_hastened);
        let not_before = last.map_or(Instant::START, |last| {
            let pause = joins_after(pause(group.newest.until(last)));
            last.after(pause.min(UNANSWERED))
        });
        group.next = not_before.max(*first);
        self.due.insert((group.next, serial));
    }

    /// Records the outcome of a batch. Returns the releases that have ended.
    pub(crate) fn settle(
        &mut self,
        batch: &ReleaseBatch,
        answer: Result<Answer, Fault>,
    ) -> Vec<Release> {
        if let Some(group) = self.groups.get_mut(&batch.group) {
            group.is_in_flight = false;
        }
        let Ok(Answer::Undone(undone)) = &answer else {
            let may_have_run = answer.as_ref().map_or_else(Fault::may_have_run, |_| true);
            for (serial, _) in batch.releases.iter().filter(|_| may_have_run) {
                if let Some(pending) = self.pending.get_mut(serial) {
                    pending.release.may_have_run = true;
                }
            }
            self.plan(batch.group);
            return Vec::new();
        };
        let removed = undone.removed.iter();
        let removed = removed.filter_map(|n| Some(&batch.releases.get(*n)?.1));
        let removed: HashSet<&HolderId> = removed.collect();
        let mut over = Vec::new();
        for (serial, id) in &batch.releases {
            let found = match (removed.contains(id), &undone.other) {
                (true, _) => KeyState::Ours,
                (false, None) => KeyState::Gone,
                (false, Some(_)) => KeyState::Foreign,
            };
            if self.is_over(*serial, found) {
                over.extend(self.remove(*serial));
            }
        }
        if let Some(id) = undone.other.as_deref().and_then(HolderId::parse)
            // A reply that contradicts itself must not send the same ids over and over.
            && batch.releases.iter().all(|(_, sent)| *sent != id)
        {
            self.send_next(batch.group, &id);
        }
        self.plan(batch.group);
        over
    }

    /// Records what a try found; returns whether the release has ended.
    fn is_over(&mut self, serial: u64, found: KeyState) -> bool {
        let Some(pending) = self.pending.get_mut(&serial) else {
            return false;
        };
        let was_ours = found == KeyState::Ours || pending.release.may_have_run;
        pending.was_answered = true;
        pending.release.unanswered = None;
        if let Some(report) = pending.release.report.take() {
            report.found(if was_ours { KeyState::Ours } else { found });
        }
        if found == KeyState::Ours || !pending.release.may_precede_acquire {
            return true;
        }
        let pause = pause(pending.began.until(pending.tried));
        let due = pending.tried.after(pause);
        self.schedule_again(serial, due);
        false
    }

    /// Sends the release of `id` next, if there is one: `id` was found to hold the lock.
    fn send_next(&mut self, group: u64, id: &HolderId) {
        let Some(of_lock) = self.groups.get_mut(&group) else {
            return;
        };
        if let Some(serial) = of_lock.ids.get(id).copied() {
            of_lock.last = None;
            self.schedule_again(serial, Instant::START);
        }
    }

    fn remove(&mut self, serial: u64) -> Option<Release> {
        let pending = self.pending.remove(&serial)?;
        self.ends.remove(&(pending.release.until, serial));
        if let Some(group) = self.groups.get_mut(&pending.group) {
            group.order.remove(&(pending.due, serial));
            if group.ids.get(&pending.release.id) == Some(&serial) {
                group.ids.remove(&pending.release.id);
            }
        }
        self.plan(pending.group);
        if self.pending.is_empty() {
            // Frees the memory that thousands of releases took.
            *self = Self {
                is_hastened: self.is_hastened,
                serial: self.serial,
                ..Self::default()
            };
        }
        Some(pending.release)
    }
}

impl Group {
    fn new(keys: Arc<dyn Primitive>, now: Instant) -> Self {
        Self {
            keys,
            order: BTreeSet::new(),
            ids: HashMap::new(),
            newest: now,
            last: None,
            is_in_flight: false,
            next: Instant::NEVER,
        }
    }
}

#[cfg(test)]
mod tests;
