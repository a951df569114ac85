//! How an id is released that may hold something in Redis, and that nobody here wants.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::RUNS_WITHIN;
use crate::kernel::context::Context;
use crate::kernel::engine::ServerNo;
use crate::kernel::granted::AtServer;
use crate::kernel::held::HeldLease;
use crate::protocol::primitive::Primitive;

/// The reply that ends a release before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Any reply of the script: the acquiring command was answered, or has certainly ended.
    AnyAnswer,
    /// Only the reply that it removed something: the acquiring command may still run.
    KeySeen,
}

/// A release to be sent until it has certainly run.
#[derive(Clone, Debug)]
pub(crate) struct PendingRelease {
    /// The server of a quorum; 0 elsewhere.
    pub(crate) server: ServerNo,
    pub(crate) lock: Arc<dyn Primitive>,
    pub(crate) id: HolderId,
    /// When the key has expired, or the acquiring command can run no more.
    pub(crate) until: Instant,
    pub(crate) ends_by: Proof,
    /// It ends a lease at a shutdown, which counts the outcome: how many releases of the lease must
    /// find it.
    pub(crate) counts: Option<usize>,
    /// It removes only a place in a queue.
    pub(crate) is_place: bool,
}

impl PendingRelease {
    pub(crate) fn new(
        (server, lock): (ServerNo, &Arc<dyn Primitive>),
        id: &HolderId,
        until: Instant,
        ends_by: Proof,
    ) -> Self {
        Self {
            server,
            lock: Arc::clone(lock),
            id: id.clone(),
            until,
            ends_by,
            counts: None,
            is_place: false,
        }
    }
}

impl Context<'_> {
    /// Adds a pending release. The caller has the lock of the shard, and the id has no lease.
    fn pend(&mut self, release: PendingRelease) {
        self.kernel.table.forget_id(&release.id);
        let now = self.now;
        self.with_pending(|pending, fx| {
            if pending.is_unsent() {
                fx.orphan(&release);
            }
            pending.push(release, now);
        });
    }

    /// Adds the release of what an acquiring command may have taken.
    pub(super) fn undo(
        &mut self,
        lock: &Arc<dyn Primitive>,
        id: &HolderId,
        ttl: Duration,
        (ends_by, is_place): (Proof, bool),
    ) {
        let until = may_run_until(ttl, self.now);
        let release = PendingRelease {
            is_place,
            ..PendingRelease::new((0, lock), id, until, ends_by)
        };
        if self.kernel.is_quorum() {
            self.pend_at_each(release);
        } else {
            self.pend(release);
        }
    }

    /// Adds the release of an ended lease. If it `counts`, the shutdown counts the outcome.
    pub(super) fn release_later(&mut self, lease: &HeldLease, counts: bool) {
        let until = self.now.after(lease.key_may_last().max(RUNS_WITHIN));
        let counts = counts.then_some(self.kernel.limits.size.needed);
        let place = (0, &lease.lock);
        let release = PendingRelease {
            counts,
            ..PendingRelease::new(place, &lease.id, until, Proof::AnyAnswer)
        };
        if self.kernel.is_quorum() {
            self.pend_at_each(release);
        } else {
            self.pend_ended(release);
        }
    }

    /// Adds the release of an id at each server of a quorum that may have it.
    fn pend_at_each(&mut self, release: PendingRelease) {
        // The record stays: a release that is under way looks at it when it ends.
        let pending = self.kernel.pending.lock();
        let granted: Option<Box<[AtServer]>> = pending.granted.of(&release.id).map(Into::into);
        drop(pending);
        for server in 0..self.kernel.limits.size.all {
            // It is not known what one has that was forgotten: its commands have ended.
            let at = granted.as_ref().map_or(AtServer::Yes, |at| at[server]);
            let Some(ends_by) = at.ends_by() else {
                continue;
            };
            self.pend_ended(PendingRelease {
                server,
                ends_by,
                ..release.clone()
            });
        }
    }

    /// Adds the release of what an ended lease has left.
    pub(super) fn pend_ended(&mut self, release: PendingRelease) {
        let seen = (release.ends_by == Proof::AnyAnswer).then(|| release.id.clone());
        self.pend(release);
        if let Some(id) = seen {
            // The lock is taken until this release runs: it waits for no pause.
            self.with_pending(|pending, _| pending.seen(&id));
        }
    }

    /// Keeps a confirmed release, if a replica may take over.
    pub(super) fn note_released(&mut self, lease: &HeldLease) {
        if !self.kernel.limits.may_fail_over {
            return;
        }
        let until = self.now.after(lease.key_may_last());
        let release = PendingRelease::new((0, &lease.lock), &lease.id, until, Proof::AnyAnswer);
        // Sent before this client learnt of another master, it may have run at the last one.
        let sent = self.now.before(self.kernel.limits.command_timeout);
        let mut pending = self.kernel.pending.lock();
        if pending.has_moved_since(sent) {
            drop(pending);
            self.pend(release);
        } else {
            pending.note_recent(release, self.now);
        }
    }
}

/// Returns until when an acquiring command for a lease of this ttl can run, and its key can last.
pub(crate) fn may_run_until(ttl: Duration, now: Instant) -> Instant {
    now.after(ttl.saturating_mul(2).max(RUNS_WITHIN))
}
