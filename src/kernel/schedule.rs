//! The schedule: when the engine must look at what, and until when it sleeps.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::clock::Instant;
use crate::kernel::bounds::{Bound, at_most};
use crate::kernel::held::HeldLease;
use crate::lease::status::RENEWAL_WINDOW;
use crate::name::Name;

/// How many leases are renewed early, together with those that are due: three commands of most
/// kinds.
const MOST_TOGETHER: usize = 300;

/// Something that the engine must look at, besides leases.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Item {
    Entry(Name),
    Pending,
    /// The sender of the engine's commands looks at them.
    Sender,
}

/// The items that are due.
#[derive(Debug, Default)]
pub(super) struct DueNow {
    pub(super) leases: Vec<Arc<HeldLease>>,
    pub(super) items: Vec<Item>,
}

/// When the engine must look at what.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// The leases by their serial numbers. Each knows when it is here: a client can have many of
    /// them, and nothing else in the schedule.
    leases: BTreeMap<(Instant, u64), Arc<HeldLease>>,
    due: BTreeSet<(Instant, Item)>,
    at: HashMap<Item, Instant>,
    /// Until when the engine sleeps; `START` while it is awake. Changed with the reading of the
    /// first key in one critical section.
    pub(super) sleeps_until: Instant,
    /// The next sleep may be long if there is still nothing to look at.
    pub(super) is_idle: bool,
    /// The earliest instant for which the engine was woken since it slept; `NEVER` if none.
    pub(super) woken_for: Instant,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            leases: BTreeMap::new(),
            due: BTreeSet::new(),
            at: HashMap::new(),
            sleeps_until: Instant::NEVER,
            is_idle: false,
            woken_for: Instant::NEVER,
        }
    }
}

impl Schedule {
    /// Puts an item, in place of its earlier entry. Returns whether the engine must be woken.
    pub(super) fn put(&mut self, item: Item, at: Instant, latest: Instant) -> bool {
        if self.at.get(&item) != Some(&at) {
            self.remove(&item);
            if at < Instant::NEVER {
                self.at.insert(item.clone(), at);
                self.due.insert((at, item));
            }
        }
        self.must_wake(latest)
    }

    /// Puts an item, unless it has an earlier entry. Returns whether the engine must be woken.
    pub(super) fn put_earlier(&mut self, item: Item, at: Instant) -> bool {
        let before = self.at.get(&item).copied().unwrap_or(Instant::NEVER);
        self.put(item, at.min(before), at)
    }

    /// Puts a lease, in place of its earlier entry. Returns whether the engine must be woken.
    pub(super) fn put_lease(
        &mut self,
        lease: &Arc<HeldLease>,
        at: Instant,
        latest: Instant,
    ) -> bool {
        if lease.scheduled.get() != at {
            self.remove_lease(lease);
            if at < Instant::NEVER {
                lease.scheduled.set(at);
                self.leases.insert((at, lease.serial), Arc::clone(lease));
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

    pub(super) fn remove(&mut self, item: &Item) {
        if let Some(at) = self.at.remove(item) {
            self.due.remove(&(at, item.clone()));
        }
    }

    /// Takes a lease out. The caller has it, too: this never drops the last one.
    pub(super) fn remove_lease(&mut self, lease: &HeldLease) {
        self.leases.remove(&(lease.scheduled.get(), lease.serial));
        lease.scheduled.set(Instant::NEVER);
    }

    /// Returns whether the engine will look at a lease with this id.
    #[cfg(sim)]
    pub(crate) fn has_lease(&self, id: &str) -> bool {
        self.leases.values().any(|lease| lease.id.as_str() == id)
    }

    pub(crate) fn next(&self) -> Instant {
        let lease = self.leases.first_key_value().map(|((at, _), _)| *at);
        let item = self.due.first().map(|(at, _)| *at);
        lease
            .into_iter()
            .chain(item)
            .min()
            .unwrap_or(Instant::NEVER)
    }

    pub(super) fn take(&mut self, now: Instant) -> DueNow {
        let mut taken = DueNow::default();
        // Leases that are due soon are renewed together with those that are due.
        let soon = now.after(RENEWAL_WINDOW);
        let most = at_most(Bound::Together, MOST_TOGETHER);
        let mut early = 0;
        while let Some(first) = self.leases.first_entry() {
            let (at, _) = *first.key();
            early += usize::from(at > now);
            if at > now && (taken.leases.is_empty() || at >= soon || early > most) {
                break;
            }
            let lease = first.remove();
            lease.scheduled.set(Instant::NEVER);
            taken.leases.push(lease);
        }
        while let Some((_, item)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.at.remove(item);
            taken
                .items
                .extend(self.due.pop_first().map(|(_, item)| item));
        }
        taken
    }
}
