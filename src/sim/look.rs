//! Questions about calls, leases and releases of the kernel, for the checks of the simulation.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::Cause;
use crate::kernel::acquiring::Acquiring;
use crate::kernel::call::Call;
use crate::kernel::entry::LockEntry;
use crate::kernel::fault::OpenCircuit;
use crate::kernel::held::HeldLease;
use crate::kernel::pending::PendingReleases;
use crate::kernel::set::{SetAcquire, Stage};
use crate::name::Name;
use crate::protocol::primitive::Primitive;

impl OpenCircuit {
    pub(crate) fn of_test(retry_in: Duration) -> Self {
        Self {
            server: "redis:6379".into(),
            failures: 5,
            last: Cause::text("reset"),
            retry_in,
        }
    }
}

impl SetAcquire {
    pub(super) fn names_of_set(&self) -> &[Name] {
        &self.wants.lock.keys().names
    }

    /// Returns the name that it waits for outside of a queue.
    pub(super) fn watched_lock(&self) -> Option<&Arc<dyn Primitive>> {
        let watch = self.watch.as_ref().filter(|_| self.stage == Stage::Watch)?;
        (watch.wakes && !watch.has_news()).then_some(&watch.lock)
    }
}

impl HeldLease {
    /// Returns whether the lease is held at `now`, by the clock that counts.
    pub(super) fn is_held_at(&self, now: Instant) -> bool {
        let inner = self.inner.lock();
        inner.lease.is_open() && inner.lease.covers(now)
    }

    /// Returns for how long the lease of a holder has been over at `now`.
    pub(super) fn overdue(&self, now: Instant) -> Duration {
        let inner = self.inner.lock();
        match inner.since {
            Some(_) => inner.lease.overdue(now),
            None => Duration::ZERO,
        }
    }
}

impl PendingReleases {
    /// Returns whether this is the id of a release that was forgotten because there were too many.
    pub(super) fn has_forgotten(&self, id: &str) -> bool {
        self.forgotten.iter().any(|it| it.as_str() == id)
    }
}

impl LockEntry {
    /// Returns whether the calls in the line wait for something that will happen.
    pub(super) fn line_is_busy_without_line(&self) -> bool {
        self.holds_alone() || self.line_request().is_some()
    }
}

impl Acquiring {
    /// The call that it waits for now.
    pub(in crate::sim) fn call(&self) -> &Call {
        match self {
            Self::One(call) => call,
            Self::Set(set) => set.call(),
        }
    }

    /// The name that a set waits for outside of a queue.
    pub(in crate::sim) fn watched(&self) -> Option<&Arc<dyn Primitive>> {
        match self {
            Self::One(_) => None,
            Self::Set(set) => set.watched_lock(),
        }
    }

    /// The names of a set.
    pub(in crate::sim) fn names_of_set(&self) -> &[Name] {
        match self {
            Self::One(_) => &[],
            Self::Set(set) => set.names_of_set(),
        }
    }

    pub(in crate::sim) fn keeps(&self, id: &str) -> bool {
        match self {
            Self::One(_) => false,
            Self::Set(set) => set.keeps(id),
        }
    }
}
