//! The leases under which this client holds a name. No I/O.

use std::cell::Cell;
use std::sync::Weak;
use std::thread::{self, ThreadId};

use crate::holder_id::HolderId;
use crate::lease::held::HeldLease;

/// The leases under which this client holds a name, at most as many as the kind of lock allows.
#[derive(Debug)]
pub(super) struct HeldLeases {
    /// The oldest lease. It is kept apart from the others, because most names have a single lease,
    /// which then needs no allocation.
    first: Option<NamedLease>,
    others: Vec<NamedLease>,
    /// The number of leases that can hold the name at a time, unless they share it.
    capacity: usize,
}

#[derive(Debug)]
struct NamedLease {
    id: HolderId,
    /// Weak: the lease may own a user's closure, which must not be dropped under a lock.
    hold: Weak<HeldLease>,
    /// The name can have other holders at the same time.
    is_shared: bool,
    /// The thread that acquired it, for a warning in debug builds.
    thread: Option<ThreadId>,
}

/// No leases, for a name that only one lease can hold at a time, unless they share it.
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
    /// Returns an empty list for a name that at most `capacity` leases can hold at a time, unless
    /// they share it.
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self {
            capacity,
            ..Self::default()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Returns whether Redis would refuse this client a further lease that is not shared.
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

    /// Returns the oldest lease that makes Redis refuse a further one, `is_shared` or not.
    pub(super) fn excludes(&self, is_shared: bool) -> Option<&Weak<HeldLease>> {
        let mut leases = self.iter().filter(|_| self.is_full());
        let found = leases.find(|lease| !is_shared || !lease.is_shared)?;
        Some(&found.hold)
    }

    /// Adds a lease that Redis has granted; removes and returns those that it evicts.
    ///
    /// Redis never grants them together: each evicted lease is lost, or its release has no recorded
    /// outcome yet. A shared lease evicts one that is not shared. One that is not shared evicts
    /// the oldest until there is room for it.
    pub(super) fn insert(
        &mut self,
        id: HolderId,
        hold: Weak<HeldLease>,
        is_shared: bool,
    ) -> Vec<Weak<HeldLease>> {
        let mut evicted = Vec::new();
        if is_shared {
            evicted.extend(self.take_if(|lease| !lease.is_shared));
        }
        while !is_shared && self.is_full() {
            evicted.extend(self.take_first());
        }
        let lease = NamedLease {
            id,
            hold,
            is_shared,
            thread: this_thread(),
        };
        match self.first {
            None => self.first = Some(lease),
            Some(_) => self.others.push(lease),
        }
        let evicted = evicted.into_iter();
        evicted.map(|lease| lease.hold).collect()
    }

    /// Records that the lease with this holder id shares the name from now on.
    pub(super) fn share(&mut self, id: &HolderId) {
        let mut leases = self.first.iter_mut().chain(&mut self.others);
        if let Some(lease) = leases.find(|lease| lease.id == *id) {
            lease.is_shared = true;
        }
    }

    /// Records that the calling thread holds the lease with this holder id, in debug builds.
    pub(super) fn note_thread(&mut self, id: &HolderId) {
        let mut leases = self.first.iter_mut().chain(&mut self.others);
        if let Some(lease) = leases.find(|lease| lease.id == *id) {
            lease.thread = this_thread();
        }
    }

    /// Returns whether the calling thread acquired one of the leases, and Redis may refuse another.
    pub(super) fn is_held_by_us(&self) -> bool {
        let this = this_thread();
        this.is_some() && self.is_full() && self.iter().any(|lease| lease.thread == this)
    }

    fn take_first(&mut self) -> Option<NamedLease> {
        let next = (!self.others.is_empty()).then(|| self.others.remove(0));
        std::mem::replace(&mut self.first, next)
    }

    /// Removes and returns the oldest lease that is `wanted`.
    fn take_if(&mut self, wanted: impl Fn(&NamedLease) -> bool) -> Option<NamedLease> {
        if self.first.as_ref().is_some_and(&wanted) {
            return self.take_first();
        }
        let n = self.others.iter().position(wanted)?;
        Some(self.others.remove(n))
    }

    /// Removes the lease with this holder id; returns whether there was one.
    pub(super) fn remove(&mut self, id: &HolderId) -> bool {
        let is_it = |lease: &NamedLease| lease.id == *id;
        if self.first.as_ref().is_some_and(is_it) {
            return self.take_first().is_some();
        }
        // From the end: of many permits, those acquired last are often released first.
        let found = self.others.iter().rposition(is_it);
        found.map(|n| self.others.remove(n)).is_some()
    }
}

thread_local! {
    /// The thread on whose behalf this one makes calls; `None` if it makes its own.
    static CALLER: Cell<Option<ThreadId>> = const { Cell::new(None) };
}

/// Records that the calls of this thread are those of `caller`, which holds what they acquire.
pub(crate) fn act_for(caller: ThreadId) {
    CALLER.set(Some(caller));
}

/// The thread whose call this is in debug builds; `None` in release builds, which warn of nothing.
fn this_thread() -> Option<ThreadId> {
    let this = || CALLER.get().unwrap_or_else(|| thread::current().id());
    cfg!(debug_assertions).then(this)
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
        assert!(held.insert(first.clone(), Weak::new(), false).is_empty());
        assert!(held.is_full());
        let lost = held.insert(second.clone(), Weak::new(), false);
        assert_eq!(lost.len(), 1);
        assert!(!held.remove(&first));
        assert!(held.remove(&second) && held.is_empty());
    }

    #[test]
    fn a_name_is_held_under_at_most_as_many_leases_as_its_capacity() {
        let mut held = HeldLeases::with_capacity(3);
        let [a, b, c, d] = ids();
        for id in [&a, &b, &c] {
            assert!(!held.is_full());
            assert!(held.insert(id.clone(), Weak::new(), false).is_empty());
        }
        assert_eq!(held.insert(d.clone(), Weak::new(), false).len(), 1);
        let is_there =
            |held: &HeldLeases, id: &HolderId| held.find(id.as_str().as_bytes()).is_some();
        let there = [&a, &b, &c, &d].map(|id| is_there(&held, id));
        assert_eq!(there, [false, true, true, true], "the oldest is lost");
        assert!(held.remove(&c) && !held.is_full() && !held.is_empty());
        assert!(held.remove(&b) && held.remove(&d) && held.is_empty());
    }

    #[test]
    fn shared_lease_evicts_a_writer_and_a_writer_evicts_all() {
        let mut held = HeldLeases::default();
        let [writer, a, b, c] = ids();
        held.insert(writer.clone(), Weak::new(), false);
        assert!(held.excludes(true).is_some() && held.is_held_by_us());
        assert_eq!(held.insert(a.clone(), Weak::new(), true).len(), 1);
        assert!(held.insert(b.clone(), Weak::new(), true).is_empty());
        assert!(held.excludes(true).is_none() && held.excludes(false).is_some());
        assert!(held.is_full(), "calls for a mutex wait by a place in Redis");
        assert_eq!(held.insert(writer.clone(), Weak::new(), false).len(), 2);
        held.share(&writer);
        assert!(held.insert(c, Weak::new(), true).is_empty(), "downgraded");
    }
}
