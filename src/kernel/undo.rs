//! How an id is released that may hold something in Redis, and that nobody here wants.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::RUNS_WITHIN;
use crate::kernel::context::Context;
use crate::kernel::engine::ServerNo;
use crate::kernel::held::HeldLease;
use crate::kernel::round::AtServer;
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
        if self.kernel.is_quorum() {
            // The round releases what it has taken.
            return self.kernel.table.forget_id(id);
        }
        let until = self.may_run_until(ttl);
        self.pend(PendingRelease {
            is_place,
            ..PendingRelease::new((0, lock), id, until, ends_by)
        });
    }

    /// Returns until when an acquiring command for a lease of this ttl can run, and its key can
    /// last.
    pub(super) fn may_run_until(&self, ttl: Duration) -> Instant {
        self.now.after(ttl.saturating_mul(2).max(RUNS_WITHIN))
    }

    /// Adds the release of an ended lease: at the servers of a quorum that may have its key. If it
    /// `counts`, the shutdown counts the outcome.
    pub(super) fn release_later(&mut self, lease: &HeldLease, counts: bool) {
        let size = self.kernel.limits.size;
        for server in 0..size.all {
            if let Some(ends_by) = proof_at(lease, server) {
                let counts = counts.then_some(size.needed);
                self.release_in(lease, server, ends_by, counts);
            }
        }
    }

    fn release_in(
        &mut self,
        lease: &HeldLease,
        server: ServerNo,
        ends_by: Proof,
        counts: Option<usize>,
    ) {
        let until = self.now.after(lease.key_may_last().max(RUNS_WITHIN));
        self.pend_ended(PendingRelease {
            counts,
            ..PendingRelease::new((server, &lease.lock), &lease.id, until, ends_by)
        });
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

/// Returns what ends the release of a lease at a server; `None` if it has nothing there.
fn proof_at(lease: &HeldLease, server: ServerNo) -> Option<Proof> {
    match lease.at.as_ref().map(|at| at.of(server)) {
        Some(AtServer::NotSent | AtServer::No) => None,
        Some(AtServer::Unknown) => Some(Proof::KeySeen),
        Some(AtServer::Yes | AtServer::Asked) | None => Some(Proof::AnyAnswer),
    }
}
