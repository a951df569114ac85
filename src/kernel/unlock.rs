//! The calls of the kernel for holders, and for the ends of leases that the engine finds.

use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::effects::Effects;
use crate::kernel::failure::Failure;
use crate::kernel::fault::Fault;
use crate::kernel::held::HeldLease;
pub(crate) use crate::kernel::lease::{Unlock, Unlocked};
use crate::kernel::operation::{OperationCell, Wanted};
use crate::kernel::waiter::CallTerms;
use crate::lease::status::LeaseStatus;
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::primitive::Primitive;
use crate::token::FencingToken;

impl Kernel {
    /// Ends the holding of `token`. Pass `has_renewed` after [`Unlock::RenewFirst`].
    pub(crate) fn begin_unlock(
        &self,
        lease: &Arc<HeldLease>,
        token: FencingToken,
        has_renewed: bool,
        now: Instant,
        fx: &mut Effects,
    ) -> Unlock {
        self.with_entry(&lease.lock, now, fx, |entry, cx| {
            entry.begin_unlock(lease, token, has_renewed, cx)
        })
    }

    /// Ends the holding of `token` without a release: the key expires. Returns the status before;
    /// `None` if this holder has ended it before.
    pub(crate) fn keep(
        &self,
        lease: &Arc<HeldLease>,
        token: FencingToken,
        now: Instant,
        fx: &mut Effects,
    ) -> Option<LeaseStatus> {
        self.with_entry(&lease.lock, now, fx, |entry, cx| {
            entry.keep(lease, token, cx)
        })
    }

    /// Returns the lease of this client that keeps a lock from a call.
    pub(crate) fn holder_of(
        &self,
        lock: &dyn Primitive,
        now: Instant,
        fx: &mut Effects,
    ) -> Option<Arc<HeldLease>> {
        let name = lock.keys().key(0).name;
        let held = self.with_existing(name, now, fx, |entry, cx| {
            let lease = entry.leases.excludes(lock.is_shared());
            lease.filter(|lease| lease.covers(cx.now)).cloned()
        });
        held.flatten()
    }

    /// Returns whether `thread` holds a lease of the lock's name, and Redis may refuse it another;
    /// also returns whether a call for the lock must wait for this client. For warnings.
    pub(crate) fn is_held_by(
        &self,
        lock: &dyn Primitive,
        thread: ThreadId,
        now: Instant,
        fx: &mut Effects,
    ) -> (bool, bool) {
        let held = self.with_existing(lock.keys().key(0).name, now, fx, |entry, _| {
            let mut held = entry.leases.held.iter();
            let is_its = held.any(|held| held.lease.thread() == Some(thread));
            let is_full = entry.leases.held.len() >= entry.leases.capacity;
            (
                is_its && is_full,
                entry.leases.excludes(lock.is_shared()).is_some(),
            )
        });
        held.unwrap_or_default()
    }

    /// Returns the status of a lease for the holder of `token`. If it is in doubt, the engine asks
    /// Redis at once.
    pub(crate) fn status_of(
        &self,
        lease: &Arc<HeldLease>,
        token: FencingToken,
        at_start: Duration,
        now: Instant,
        fx: &mut Effects,
    ) -> LeaseStatus {
        let status = lease.status_for(token, now, fx);
        match status {
            LeaseStatus::Held(_) if self.shared.is_in_doubt(lease, at_start, now) => {
                if lease.distrust(self.shared.ran_ahead(lease, at_start), now) {
                    self.shared.at(now, fx).rearm(lease);
                }
                LeaseStatus::InDoubt
            }
            status => status,
        }
    }

    #[cfg(sim)]
    pub(crate) fn is_in_doubt(&self, lease: &HeldLease, at_start: Duration, now: Instant) -> bool {
        self.shared.is_in_doubt(lease, at_start, now)
    }

    /// Returns whether this client has any lease.
    pub(crate) fn has_leases(&self) -> bool {
        let [held, lingering, _] = self.counts();
        held + lingering > 0
    }

    /// Leaves the release to the engine, for a thread that must not wait.
    pub(crate) fn unlock_later(
        &self,
        lease: &Arc<HeldLease>,
        token: FencingToken,
        now: Instant,
        fx: &mut Effects,
    ) {
        self.with_entry(&lease.lock, now, fx, |entry, cx| {
            entry.unlock_later(lease, token, cx);
        });
    }

    /// Applies the end of the release that `begin_unlock` returned. `may_have_run`: an earlier try
    /// got no reply.
    pub(crate) fn unlocked(
        &self,
        lease: &Arc<HeldLease>,
        end: Result<Answer, Fault>,
        may_have_run: bool,
        now: Instant,
        fx: &mut Effects,
    ) -> Unlocked {
        self.with_entry(&lease.lock, now, fx, |entry, cx| {
            entry.unlocked(lease, &end, may_have_run, cx)
        })
    }

    /// Asks the engine for a renewal, a change of ttl or a downgrade. The holder waits for the
    /// result in the cell, and takes the operation back if it gives up. `None` if the lease has
    /// ended.
    pub(crate) fn operate(
        &self,
        lease: &Arc<HeldLease>,
        token: FencingToken,
        what: Wanted,
        now: Instant,
        fx: &mut Effects,
    ) -> Option<Arc<OperationCell>> {
        self.with_entry(&lease.lock, now, fx, |entry, cx| {
            entry.operate(lease, token, what, cx)
        })
    }
}

/// The ends of leases that the engine finds.
impl Kernel {
    /// Applies the end of a release that the engine has sent: its holder waits in the cell.
    pub(super) fn release_ended(
        &self,
        lease: Arc<HeldLease>,
        cell: &Arc<OperationCell>,
        end: Result<Answer, Fault>,
        [sent, now]: [Instant; 2],
        fx: &mut Effects,
    ) {
        let cause = end.as_ref().err().and_then(Fault::cause).cloned();
        let result = match self.unlocked(&lease, end, false, now, fx) {
            Unlocked::Released | Unlocked::Lost(_) => Ok(()),
            Unlocked::Unconfirmed => Err(Failure::Unreachable {
                since: Some(sent),
                cause,
            }),
        };
        fx.operation_ended(cell, result);
        fx.discard(lease);
    }

    /// The engine looks at a lease that is being released: its caller's thread stands still.
    pub(super) fn end_overdue_release(
        &self,
        lease: &Arc<HeldLease>,
        now: Instant,
        fx: &mut Effects,
    ) {
        self.with_entry(&lease.lock, now, fx, |entry, cx| {
            entry.end_unsent_release(lease, cx);
        });
    }

    /// The lease was found to have ended: the calls that waited for that ask now.
    pub(super) fn lease_ended(&self, lease: &Arc<HeldLease>, now: Instant, fx: &mut Effects) {
        let name = lease.lock.key(0).name;
        let has_left = self.with_existing(name, now, fx, |entry, cx| entry.lease_ended(lease, cx));
        // The end of the client has taken all leases out of their entries.
        if has_left != Some(true) {
            let mut cx = self.shared.at(now, fx);
            cx.change(lease, |it, _| it.has_left = true);
        }
    }
}

/// Leases that linger.
impl Kernel {
    /// Returns whether the lease with this id lingers under a name.
    pub(crate) fn lingers(&self, name: &Name, id: &HolderId) -> bool {
        let shard = self.shard(name).lock();
        let lease = shard.get(name).and_then(|entry| entry.leases.lingering());
        lease.is_some_and(|lease| lease.id == *id)
    }

    /// Begins the release of each lease that lingers under a name of a call's lock, and that the
    /// call cannot take. The caller sends it, and reports its end with `unlocked`.
    pub(crate) fn release_for(
        &self,
        wants: &CallTerms,
        now: Instant,
        fx: &mut Effects,
    ) -> Vec<(Arc<HeldLease>, Unlock)> {
        if !self.shared.has_lingered() {
            return Vec::new();
        }
        let names = wants.lock.keys().names.iter();
        let release = |name: &Name| {
            self.with_existing(name, now, fx, |entry, cx| {
                entry.release_lingering(Some(wants), cx)
            })
        };
        names.filter_map(release).flatten().collect()
    }

    /// The same for a call for parts, which takes no lease that lingers.
    pub(crate) fn release_for_parts(
        &self,
        locks: &[Arc<dyn Primitive>],
        now: Instant,
        fx: &mut Effects,
    ) -> Vec<(Arc<HeldLease>, Unlock)> {
        if !self.shared.has_lingered() {
            return Vec::new();
        }
        let mut release = |lock: &Arc<dyn Primitive>| {
            let name = lock.key(0).name;
            self.with_existing(name, now, fx, |entry, cx| entry.release_lingering(None, cx))
        };
        locks.iter().filter_map(&mut release).flatten().collect()
    }

    /// Begins the release of each lease that lingers, in the same way.
    pub(crate) fn release_lingering(
        &self,
        now: Instant,
        fx: &mut Effects,
    ) -> Vec<(Arc<HeldLease>, Unlock)> {
        let mut releases = Vec::new();
        self.for_each(now, fx, |entry, cx| {
            releases.extend(entry.release_lingering(None, cx));
        });
        releases
    }
}
