//! How an id is released that may hold something in Redis, and that nobody here wants.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::RUNS_WITHIN;
use crate::kernel::context::Context;
use crate::kernel::held::HeldLease;
use crate::kernel::pending::PendingReleases;
use crate::protocol::primitive::Primitive;

/// The reply that ends a release before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Any reply of the script: the acquiring command was answered, or has certainly ended.
    AnyAnswer,
    /// Only the reply that it removed something: the acquiring command may still run.
    KeySeen,
}

/// How a release without a reply is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    /// A lease that may exist.
    Lease,
    /// A lease that a shutdown has ended, which counts the outcome.
    AtShutdown,
    /// Nothing: it removes only a place in a queue, or the lease is counted elsewhere.
    Nothing,
}

/// A release to be sent until it has certainly run.
#[derive(Clone, Debug)]
pub(crate) struct PendingRelease {
    pub(crate) lock: Arc<dyn Primitive>,
    pub(crate) id: HolderId,
    /// When the key has expired, or the acquiring command can run no more.
    pub(crate) until: Instant,
    pub(crate) ends_by: Proof,
    pub(crate) counts: Counts,
}

impl PendingRelease {
    pub(crate) fn new(
        lock: &Arc<dyn Primitive>,
        id: &HolderId,
        until: Instant,
        ends_by: Proof,
    ) -> Self {
        Self {
            lock: Arc::clone(lock),
            id: id.clone(),
            until,
            ends_by,
            counts: Counts::Lease,
        }
    }

    pub(crate) fn counting(self, counts: Counts) -> Self {
        Self { counts, ..self }
    }
}

impl Context<'_> {
    /// Adds a pending release in this way. The caller has the lock of the shard, and the id has no
    /// lease.
    fn pend(
        &mut self,
        release: PendingRelease,
        push: fn(&mut PendingReleases, PendingRelease, Instant),
    ) {
        self.kernel.table.forget_id(&release.id);
        let now = self.now;
        self.with_pending(|pending, fx| {
            if pending.is_unsent() {
                fx.orphan(&release);
            }
            push(pending, release, now);
        });
    }

    /// Adds the release of what an acquiring command may have taken.
    pub(super) fn undo(
        &mut self,
        lock: &Arc<dyn Primitive>,
        id: &HolderId,
        ttl: Duration,
        (ends_by, counts): (Proof, Counts),
    ) {
        let until = may_run_until(ttl, self.now);
        let release = PendingRelease::new(lock, id, until, ends_by).counting(counts);
        self.pend(release, PendingReleases::push);
    }

    /// Adds the release of an ended lease.
    pub(super) fn release_later(&mut self, lease: &HeldLease, counts: Counts) {
        let until = self.now.after(lease.key_may_last().max(RUNS_WITHIN));
        let release = PendingRelease::new(&lease.lock, &lease.id, until, Proof::AnyAnswer);
        self.pend(release.counting(counts), PendingReleases::push_ended);
    }

    /// An attempt took nothing, as far as is known. What answers the engine's commands may still
    /// give something back that it had taken: it refuses nobody.
    pub(super) fn forget_attempt(&mut self, id: &HolderId) {
        self.kernel.table.forget_id(id);
        if self.kernel.limits.engine_sends {
            self.kernel.pending.lock().ended.note(id, self.now);
        }
    }

    /// Keeps a confirmed release, if a replica may take over.
    pub(super) fn note_released(&mut self, lease: &HeldLease) {
        if !self.kernel.limits.may_fail_over {
            return;
        }
        let until = self.now.after(lease.key_may_last());
        let release = PendingRelease::new(&lease.lock, &lease.id, until, Proof::AnyAnswer);
        // Sent before this client learnt of another master, it may have run at the last one.
        let sent = self.now.before(self.kernel.limits.command_timeout);
        let mut pending = self.kernel.pending.lock();
        if pending.has_moved_since(sent) {
            drop(pending);
            self.pend(release, PendingReleases::push);
        } else {
            pending.note_recent(release, self.now);
        }
    }
}

/// Returns until when an acquiring command for a lease of this ttl can run, and its key can last.
pub(crate) fn may_run_until(ttl: Duration, now: Instant) -> Instant {
    now.after(ttl.saturating_mul(2).max(RUNS_WITHIN))
}
