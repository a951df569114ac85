//! The leases of a name: how many it has room for, which exclude which, and the one that lingers.

use std::sync::Arc;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::event::Own;
use crate::kernel::few::Few;
use crate::kernel::held::HeldLease;
use crate::mutant::{Mutant, is_on};

#[derive(Debug)]
pub(crate) struct OwnLeases {
    pub(crate) held: Few<Held>,
    pub(super) capacity: usize,
    /// Until when the only lease lingers; `None` if somebody holds it.
    pub(crate) lingers_until: Option<Instant>,
    /// The last lease that ended here by a confirmed release: its message wakes no line.
    pub(super) released: Option<HolderId>,
}

/// A lease of this client.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) lease: Arc<HeldLease>,
    pub(super) is_shared: bool,
}

impl OwnLeases {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            held: Few::default(),
            capacity,
            lingers_until: None,
            released: None,
        }
    }

    /// Returns the lease that makes Redis refuse a further one, `is_shared` or not.
    pub(super) fn excludes(&self, is_shared: bool) -> Option<&Arc<HeldLease>> {
        if self.held.len() < self.capacity {
            return None;
        }
        let mut held = self.held.iter();
        let found = held.find(|held| !is_shared || !held.is_shared)?;
        Some(&found.lease)
    }

    /// Returns whether a lease makes Redis refuse a further one at `now`, as far as is known.
    pub(super) fn is_excluded(&self, is_shared: bool, now: Instant) -> bool {
        let own = self.excludes(is_shared);
        own.is_some_and(|lease| lease.covers(now))
    }

    /// Returns what the leases mean for the calls of the name.
    ///
    /// The line waits for the end of a lease that can be handed to it. Beside any other it asks
    /// Redis, and takes its place there: otherwise the next call for a part, or for a fair lock,
    /// would go first each time.
    pub(crate) fn own(&self) -> Own {
        let alone = self.excludes(true);
        let fits = |it: &Arc<HeldLease>| it.fits_line() || is_on(Mutant::LineWaitsForParts);
        Own {
            alone: alone.is_some(),
            full: self.held.len() >= self.capacity,
            line_waits: alone.is_some_and(fits),
        }
    }

    pub(super) fn position(&self, id: &HolderId) -> Option<usize> {
        self.held.iter().position(|held| held.lease.id == *id)
    }

    pub(crate) fn holds(&self, id: &HolderId) -> bool {
        self.position(id).is_some()
    }

    /// Returns the lease with this value, if it is one of this client.
    pub(super) fn find(&self, value: &[u8]) -> Option<&Arc<HeldLease>> {
        let mut held = self.held.iter().map(|held| &held.lease);
        held.find(|lease| lease.id.as_str().as_bytes() == value)
    }

    /// Returns whether the lease with this value has ended here last, by a confirmed release.
    pub(super) fn was_released(&self, value: &[u8]) -> bool {
        let released = self.released.as_ref();
        released.is_some_and(|id| id.as_str().as_bytes() == value)
    }

    /// Adds a lease.
    pub(super) fn add(&mut self, lease: Arc<HeldLease>) {
        let is_shared = lease.lock.is_shared();
        self.held.push(Held { lease, is_shared });
    }

    pub(super) fn remove(&mut self, n: usize) -> Arc<HeldLease> {
        self.lingers_until
            .take_if(|_| !is_on(Mutant::LostLeaseLingers));
        self.held.remove(n).lease
    }

    /// Takes all leases out.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Arc<HeldLease>> + use<> {
        self.lingers_until = None;
        let held = std::mem::take(&mut self.held);
        held.into_items().map(|held| held.lease)
    }

    /// Returns a lease that Redis never grants together with a new one, `is_shared` or not: it is
    /// lost, or its release has no recorded outcome yet.
    pub(super) fn evicted_by(&self, is_shared: bool) -> Option<usize> {
        if is_shared {
            self.held.iter().position(|held| !held.is_shared)
        } else {
            (self.held.len() >= self.capacity).then_some(0)
        }
    }

    pub(crate) fn lingering(&self) -> Option<&Arc<HeldLease>> {
        self.lingers_until?;
        self.held.first().map(|held| &held.lease)
    }

    /// Returns when the engine releases the lease that lingers.
    pub(super) fn linger_ends(&self) -> Option<Instant> {
        self.lingers_until
            .filter(|_| !is_on(Mutant::LingerNeverEnds))
    }
}
