//! The pending releases of a lock: when one command is sent for many of them.

use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::protocol::primitive::{AtRelease, Primitive};

/// The pause between the first tries of a release.
const SHORTEST: Duration = Duration::from_millis(50);

/// The pause between tries of a release that is between 0.8 and 6.8 s old.
const YOUNG: Duration = Duration::from_millis(800);

/// The longest pause after a try without a reply, so that the recovery of Redis is noticed soon.
pub(super) const UNANSWERED: Duration = Duration::from_secs(1);

/// Identifies a group: the serial of its first release.
pub(super) type GroupNo = u64;

/// The groups, and when each is due.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: HashMap<GroupNo, Group>,
    by_lock: HashMap<SameKeys, GroupNo>,
    due: BTreeSet<(Instant, GroupNo)>,
    /// No pause separates two commands of a group.
    is_closing: bool,
}

/// The releases of one lock.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) lock: Arc<dyn Primitive>,
    /// The releases that are not in flight, by due time.
    pub(super) order: BTreeSet<(Instant, u64)>,
    /// How many releases it has, those in flight included.
    size: usize,
    /// Those of them whose acquiring commands may still run.
    may_run: BTreeSet<u64>,
    /// When the newest release was added.
    newest: Instant,
    /// When the last command was sent.
    pub(super) last: Option<Instant>,
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

/// Returns the pause after a try that found nothing, for a release of this age.
pub(super) fn pause(age: Duration) -> Duration {
    age.clamp(SHORTEST, YOUNG).max(age * 2 / 17)
}

/// How early a release with this pause can join a command, and the least time between two commands
/// if the newest release has this pause.
pub(super) fn joins_after(pause: Duration) -> Duration {
    pause * 15 / 16
}

/// Returns the pause after a try without a reply.
pub(super) fn pause_unanswered(age: Duration) -> Duration {
    pause(age).min(UNANSWERED)
}

impl Groups {
    pub(super) fn find(&self, lock: &Arc<dyn Primitive>) -> Option<GroupNo> {
        self.by_lock.get(&SameKeys(Arc::clone(lock))).copied()
    }

    pub(super) fn get(&self, group: GroupNo) -> Option<&Group> {
        self.groups.get(&group)
    }

    /// Adds a release that is due now to the group of its lock.
    pub(super) fn add(&mut self, serial: u64, lock: &Arc<dyn Primitive>, now: Instant) -> GroupNo {
        let keys = SameKeys(Arc::clone(lock));
        let no = *self.by_lock.entry(keys).or_insert(serial);
        let group = self.groups.entry(no).or_insert_with(|| Group {
            lock: Arc::clone(lock),
            order: BTreeSet::new(),
            size: 0,
            may_run: BTreeSet::new(),
            newest: now,
            last: None,
            next: now,
        });
        group.newest = now;
        group.size += 1;
        group.order.insert((now, serial));
        self.plan(no);
        no
    }

    /// A release of the group has ended. It is in no order.
    pub(super) fn remove(&mut self, no: GroupNo, serial: u64) {
        if let Some(group) = self.groups.get_mut(&no) {
            group.size -= 1;
            group.may_run.remove(&serial);
        }
    }

    /// Records whether the acquiring command of a release may still run. Returns the oldest such
    /// release of the group if they are more than `most`.
    pub(super) fn note_may_run(
        &mut self,
        no: GroupNo,
        serial: u64,
        may_run: bool,
        most: usize,
    ) -> Option<u64> {
        let of = &mut self.groups.get_mut(&no)?.may_run;
        if may_run {
            of.insert(serial)
        } else {
            of.remove(&serial)
        };
        of.first().copied().filter(|_| of.len() > most)
    }

    /// Moves a release within the order of its group; `None` while it is in flight.
    pub(super) fn move_to(
        &mut self,
        no: GroupNo,
        serial: u64,
        [before, due]: [Option<Instant>; 2],
    ) {
        if let Some(group) = self.groups.get_mut(&no) {
            if let Some(before) = before {
                group.order.remove(&(before, serial));
            }
            group.order.extend(due.map(|due| (due, serial)));
        }
    }

    /// Records when the last command of a group was sent; its next one is at least a pause later.
    pub(super) fn set_last(&mut self, no: GroupNo, last: Option<Instant>) {
        if let Some(group) = self.groups.get_mut(&no) {
            group.last = last;
        }
        self.plan(no);
    }

    /// Plans the next command of a group; removes a group without releases.
    pub(super) fn plan(&mut self, no: GroupNo) {
        let Some(group) = self.groups.get_mut(&no) else {
            return;
        };
        self.due.remove(&(group.next, no));
        if group.size == 0 {
            let keys = SameKeys(Arc::clone(&group.lock));
            self.by_lock.remove(&keys);
            self.groups.remove(&no);
            return;
        }
        let Some((first, _)) = group.order.first() else {
            return;
        };
        let not_before = group.last.filter(|_| !self.is_closing);
        let not_before = not_before.map_or(Instant::START, |last| {
            last.after(joins_after(pause(group.newest.until(last))).min(UNANSWERED))
        });
        group.next = not_before.max(*first);
        self.due.insert((group.next, no));
    }

    /// From now on all groups are sent without pauses.
    pub(super) fn close(&mut self) {
        self.is_closing = true;
        let groups: Vec<GroupNo> = self.groups.keys().copied().collect();
        groups.into_iter().for_each(|group| self.plan(group));
    }

    /// Returns the group that is due first, and when.
    pub(super) fn first(&self) -> Option<(Instant, GroupNo)> {
        self.due.first().copied()
    }
}
