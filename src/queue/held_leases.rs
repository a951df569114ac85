//! The leases under which this client holds a name. No I/O.

use std::sync::Weak;

use crate::holder::HolderId;
use crate::lease::held::HeldLease;

/// The leases under which this client holds a name, at most as many as the kind of lock allows.
#[derive(Debug)]
pub(super) struct HeldLeases {
    /// The oldest lease. It is kept apart from the others, because most names have a single lease,
    /// which then needs no allocation.
    first: Option<NamedLease>,
    others: Vec<NamedLease>,
    capacity: usize,
}

#[derive(Debug)]
struct NamedLease {
    id: HolderId,
    /// Weak: the lease may own a user's closure, which must not be dropped under a lock.
    hold: Weak<HeldLease>,
}

/// The set of a mutex.
impl Default for HeldLeases {
    fn default() -> Self {
        Self {
            first: None,
            others: Vec::new(),
            capacity: 1,
        }
    }
}

impl HeldLeases {
    /// Returns the set of a lock that this many holders share.
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self {
            capacity,
            ..Self::default()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Returns whether Redis would refuse a further lease to this client.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    fn iter(&self) -> impl Iterator<Item = &NamedLease> {
        self.first.iter().chain(&self.others)
    }

    pub(super) fn contains(&self, hold: &HeldLease) -> bool {
        let mut leases = self.iter();
        leases.any(|lease| std::ptr::eq(lease.hold.as_ptr(), hold))
    }

    /// Returns the lease with a holder id of this text.
    pub(super) fn find(&self, id: &[u8]) -> Option<&Weak<HeldLease>> {
        let mut leases = self.iter();
        let found = leases.find(|lease| lease.id.as_str().as_bytes() == id)?;
        Some(&found.hold)
    }

    /// Returns the oldest lease.
    pub(super) fn first(&self) -> Option<&Weak<HeldLease>> {
        self.first.as_ref().map(|lease| &lease.hold)
    }

    /// Adds a lease. If the set was full, removes and returns the oldest.
    ///
    /// Redis grants at most as many leases as the set may have, so the oldest must have been lost.
    pub(super) fn insert(
        &mut self,
        id: HolderId,
        hold: Weak<HeldLease>,
    ) -> Option<Weak<HeldLease>> {
        let evicted = if self.is_full() {
            self.take_first()
        } else {
            None
        };
        let lease = NamedLease { id, hold };
        match self.first {
            None => self.first = Some(lease),
            Some(_) => self.others.push(lease),
        }
        evicted.map(|lease| lease.hold)
    }

    fn take_first(&mut self) -> Option<NamedLease> {
        let next = (!self.others.is_empty()).then(|| self.others.remove(0));
        std::mem::replace(&mut self.first, next)
    }

    /// Removes the lease with this holder id; returns whether it was in the set.
    pub(super) fn remove(&mut self, id: &HolderId) -> bool {
        if self.first.as_ref().is_some_and(|lease| lease.id == *id) {
            return self.take_first().is_some();
        }
        let before = self.others.len();
        self.others.retain(|lease| lease.id != *id);
        self.others.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids<const N: usize>() -> [HolderId; N] {
        std::array::from_fn(|_| HolderId::fresh("o"))
    }

    #[test]
    fn a_mutex_is_held_under_one_lease_at_a_time() {
        let mut held = HeldLeases::default();
        let [first, second] = ids();
        assert!(held.insert(first.clone(), Weak::new()).is_none());
        assert!(held.is_full());
        assert!(held.insert(second.clone(), Weak::new()).is_some(), "lost");
        assert!(!held.remove(&first));
        assert!(held.remove(&second) && held.is_empty());
    }

    #[test]
    fn a_set_holds_as_many_leases_as_it_has_room_for() {
        let mut held = HeldLeases::with_capacity(3);
        let [a, b, c, d] = ids();
        for id in [&a, &b, &c] {
            assert!(!held.is_full());
            assert!(held.insert(id.clone(), Weak::new()).is_none());
        }
        assert!(held.insert(d.clone(), Weak::new()).is_some());
        let is_there =
            |held: &HeldLeases, id: &HolderId| held.find(id.as_str().as_bytes()).is_some();
        let there = [&a, &b, &c, &d].map(|id| is_there(&held, id));
        assert_eq!(there, [false, true, true, true], "the oldest is lost");
        assert!(held.remove(&c) && !held.is_full() && !held.is_empty());
        assert!(held.remove(&b) && held.remove(&d) && held.is_empty());
    }
}
