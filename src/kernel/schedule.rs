//! The schedule: when the engine must look at what, and until when it sleeps.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::clock::Instant;
use crate::kernel::Kernel;
use crate::kernel::bounds::{Bound, at_most};
use crate::kernel::held::HeldLease;
use crate::kernel::lease::RENEWAL_WINDOW;
use crate::kernel::mutant::{Mutant, is_on};
use crate::name::Name;

/// How many leases are renewed early, together with those that are due: each renewal that has no
/// reply yet takes half as much memory as its lease.
const MOST_TOGETHER: usize = 256;

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
    /// The earliest instant for which the engine was woken since it slept; `NEVER` if none.
    woken_for: Instant,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            due: BTreeMap::new(),
            at: HashMap::new(),
            sleeps_until: Instant::NEVER,
            is_idle: false,
            woken_for: Instant::NEVER,
        }
    }
}

impl Schedule {
    /// Puts an item, in place of its earlier entry. Returns whether the engine must be woken.
    pub(super) fn put(&mut self, key: ItemKey, item: Item, at: Instant, latest: Instant) -> bool {
        // A key always stands for the same item: put for the same instant, it stays.
        if self.at.get(&key) != Some(&at) {
            self.remove(&key);
            if at < Instant::NEVER {
                self.at.insert(key.clone(), at);
                self.due.insert((at, key), item);
            }
        }
        self.must_wake(latest)
    }

    pub(super) fn must_wake(&mut self, latest: Instant) -> bool {
        let wakes = latest < self.sleeps_until;
        if wakes {
            self.woken_for = self.woken_for.min(latest);
        }
        wakes
    }

    pub(super) fn remove(&mut self, key: &ItemKey) -> Option<Item> {
        let at = self.at.remove(key)?;
        self.due.remove(&(at, key.clone()))
    }

    /// Returns whether the engine will look at a lease with this id.
    #[cfg(sim)]
    pub(super) fn has_lease(&self, id: &str) -> bool {
        let mut items = self.due.values();
        items.any(|item| matches!(item, Item::Lease(lease) if lease.id.as_str() == id))
    }

    pub(super) fn next(&self) -> Instant {
        let first = self.due.first_key_value();
        first.map_or(Instant::NEVER, |((at, _), _)| *at)
    }

    pub(super) fn take(&mut self, now: Instant) -> Vec<Item> {
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
            let keys = leases.map(|(key, _)| key.clone());
            let keys = keys.take(at_most(Bound::Together, MOST_TOGETHER));
            let keys: Vec<(Instant, ItemKey)> = keys.collect();
            for key in keys {
                self.at.remove(&key.1);
                items.extend(self.due.remove(&key));
            }
        }
        items
    }
}

impl Kernel {
    /// The engine begins a turn: until it sleeps again, nobody needs to wake it.
    pub(crate) fn engine_awake(&self) {
        self.schedule.lock().sleeps_until = Instant::START;
    }

    /// The engine is about to sleep: returns until when at most, and records that.
    pub(crate) fn engine_sleeps(&self, now: Instant, longest: std::time::Duration) -> Instant {
        let mut schedule = self.schedule.lock();
        // Somebody who locks and unlocks in a loop must not wake the engine each time. What it was
        // woken for can be gone already: it sleeps until then, and the first sleep with nothing to
        // look at is short.
        let woken_for = std::mem::replace(&mut schedule.woken_for, Instant::NEVER);
        let next = match woken_for > now {
            true => schedule.next().min(woken_for),
            false => schedule.next(),
        };
        if is_on(Mutant::SleepIsReadFirst) {
            drop(schedule);
            schedule = self.schedule.lock();
        }
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
