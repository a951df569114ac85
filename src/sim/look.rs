//! Questions about calls, leases and releases of the kernel, for the checks of the simulation.

use std::time::Duration;

use crate::clock::Instant;
use crate::error::Cause;
use crate::holder_id::HolderId;
use crate::kernel::command::{Command, What};
use crate::kernel::entry::LockEntry;
use crate::kernel::fault::OpenCircuit;
use crate::kernel::held::HeldLease;
use crate::kernel::pending::PendingReleases;

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

impl Command {
    /// Returns the id of the lease that the command releases.
    pub(super) fn releases(&self) -> Option<&HolderId> {
        match &self.what {
            What::Leave { id, .. } => Some(id),
            _ => None,
        }
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
    pub(crate) fn has_forgotten(&self, id: &str) -> bool {
        let mut forgotten = self.forgotten.iter().chain(&self.ended.forgotten);
        forgotten.any(|it| it.as_str() == id)
    }
}

impl LockEntry {
    /// Returns whether the calls in the line wait for something that will happen.
    pub(super) fn line_is_busy_without_line(&self) -> bool {
        self.leases.own().line_waits || self.line.line_request().is_some()
    }
}
