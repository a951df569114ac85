//! The end of a holding: a hand-off, or a release; and what a holder wants from its lease.
//!
//! ```text
//! begin_unlock ──a call waits in the line, and the lease fits it──▶ HandedOff
//!      │ ├──it must be renewed for that──▶ RenewFirst ──once──▶ begin_unlock
//!      │ └──it was lost──▶ AlreadyLost
//!      └──▶ Send ──unlocked: the reply, or none──▶ Released, Lost, or a pending release
//!             └──its thread stands still: the engine ends it
//! ```

use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::command::Command;
use crate::kernel::context::Context;
use crate::kernel::effects::{Discard, Effects};
use crate::kernel::entry::LockEntry;
use crate::kernel::failure::Failure;
use crate::kernel::fault::Fault;
use crate::kernel::held::{HeldLease, HoldingEnd};
use crate::kernel::messages::FREE_FOR;
use crate::kernel::operation::{Operation, OperationCell, Wanted};
use crate::kernel::undo::Counts;
use crate::kernel::waiter::CallTerms;
use crate::lease::handoff::NoHandoff;
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::mutant::{Mutant, is_on};
use crate::name::Name;
use crate::protocol::answer::{Answer, KeyState};
use crate::protocol::primitive::Primitive;
use crate::token::FencingToken;

/// The pause of a line without a queue after a run of hand-offs: other clients get a chance.
const YIELDS_FOR: Duration = Duration::from_millis(1);

/// How a holding ends.
#[derive(Debug)]
pub(crate) enum Unlock {
    HandedOff,
    /// The client keeps the lease for a moment.
    Lingers,
    /// The caller sends it, and reports its end with `unlocked`.
    Send(Command),
    /// The engine sends it. The caller waits for the result in the cell; a loss is the lease's
    /// status then.
    Wait(Arc<OperationCell>),
    /// The engine renews the lease. Then `begin_unlock` is called again.
    RenewFirst(Arc<OperationCell>),
    AlreadyLost(Lost),
    /// This holder has released the lease before.
    Over,
}

/// What a release has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unlocked {
    Released,
    Lost(Lost),
    /// No reply: the engine repeats the release.
    Unconfirmed,
}

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
            match entry.hand_off(lease, token, has_renewed, cx) {
                Ok(()) => return Unlock::HandedOff,
                Err(NoHandoff::RenewFirst) => {
                    if let Some(cell) = want(lease, token, Wanted::Renew, cx) {
                        return Unlock::RenewFirst(cell);
                    }
                }
                Err(NoHandoff::Release) => {}
            }
            let may_linger = entry.may_linger(lease, cx);
            end_holding(entry, lease, (token, may_linger), cx)
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
            let status = cx.end_unreleased(lease, token)?;
            entry.ended(lease, cx.now, cx);
            if let LeaseStatus::Lost(lost) = status
                && lost != Lost::ShutDown
            {
                entry.release_later(lease, Counts::Lease, cx);
            }
            Some(status)
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
            let lease = entry.excludes(lock.is_shared());
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
            let mut held = entry.held.iter();
            let is_its = held.any(|held| held.lease.thread() == Some(thread));
            let is_full = entry.held.len() >= entry.capacity;
            (
                is_its && is_full,
                entry.excludes(lock.is_shared()).is_some(),
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
            if entry.hand_off(lease, token, false, cx).is_ok() {
                return;
            }
            if let Unlock::Send(_) = begin_release(entry, lease, token, cx) {
                cx.change(lease, |it, _| it.end_release(None));
                entry.release_unsent(lease, cx);
            }
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
            let unlocked = found(lease, &end, may_have_run, cx.now);
            let lost = match unlocked {
                Unlocked::Lost(lost) => Some(lost),
                Unlocked::Released | Unlocked::Unconfirmed => None,
            };
            // The engine, or a shutdown, may have ended it.
            if cx.change(lease, |it, _| it.end_release(lost)) {
                end_unlock(entry, lease, &end, unlocked, cx);
            }
            unlocked
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
            let is_downgrade = matches!(what, Wanted::Downgrade(_));
            let cell = want(lease, token, what, cx)?;
            let held = entry.held.iter_mut().find(|held| held.lease.id == lease.id);
            if is_downgrade && let Some(held) = held {
                held.is_shared = true;
                // Calls that waited for the end of the writer can have a place now.
                entry.serve(cx.now, cx);
            }
            Some(cell)
        })
    }
}

/// What the engine finds about leases.
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
            if cx.change(lease, |it, _| it.end_release(None)) {
                entry.release_unsent(lease, cx);
            }
        });
    }

    /// The lease was found to have ended: the calls that waited for that ask now.
    pub(super) fn lease_ended(&self, lease: &Arc<HeldLease>, now: Instant, fx: &mut Effects) {
        let status = lease.status(now, fx);
        let name = lease.lock.key(0).name;
        let has_left = self.with_existing(name, now, fx, |entry, cx| {
            // It has no holder who would release what is left of it.
            let lingers = entry.lingering().is_some();
            let has_left = entry.lost(lease, cx);
            let is_by_clock = matches!(status, LeaseStatus::Lost(Lost::Expired | Lost::MaxHold));
            if is_by_clock && lease.since().is_some() {
                let by = Arc::new(lease.named());
                entry.last.held_until(lease.end().min(cx.now), by);
            }
            if lingers && has_left {
                entry.release_later(lease, Counts::Lease, cx);
            }
            has_left
        });
        // The end of the client has taken all leases out of their entries.
        if has_left != Some(true) {
            let mut cx = self.shared.at(now, fx);
            cx.change(lease, |it, _| it.has_left = true);
        }
    }
}

fn want(
    lease: &Arc<HeldLease>,
    token: FencingToken,
    what: Wanted,
    cx: &mut Context<'_>,
) -> Option<Arc<OperationCell>> {
    let cell = OperationCell::new();
    let operation = Operation {
        what,
        cell: Arc::clone(&cell),
    };
    cx.change(lease, |it, now| it.want(token, operation, now))
        .then_some(cell)
}

pub(super) fn begin_release(
    entry: &mut LockEntry,
    lease: &Arc<HeldLease>,
    token: FencingToken,
    cx: &mut Context<'_>,
) -> Unlock {
    end_holding(entry, lease, (token, false), cx)
}

/// Ends the holding of `token`: the lease lingers if it may, and its release begins otherwise.
fn end_holding(
    entry: &mut LockEntry,
    lease: &Arc<HeldLease>,
    (token, may_linger): (FencingToken, bool),
    cx: &mut Context<'_>,
) -> Unlock {
    let by_engine = cx.shared.limits.engine_sends;
    let wanted = (token, may_linger);
    let (end, dropped) = cx.change(lease, |it, now| it.end(&lease.run, wanted, by_engine, now));
    cx.drop_operations(dropped);
    match end {
        HoldingEnd::Lingers(lasts, before) => {
            cx.fx.discard.push(Discard::Holder(before));
            entry.lingers_for(lasts, cx);
            Unlock::Lingers
        }
        HoldingEnd::Over => Unlock::Over,
        HoldingEnd::Lost(lost) => {
            entry.ended(lease, cx.now, cx);
            if lost != Lost::ShutDown {
                // The key can still exist: this client counts an expiry earlier than the server.
                entry.release_later(lease, Counts::Lease, cx);
            }
            Unlock::AlreadyLost(lost)
        }
        HoldingEnd::Releases(Some(cell)) => Unlock::Wait(cell),
        HoldingEnd::Releases(None) => Unlock::Send(lease.release_command()),
    }
}

fn found(
    lease: &HeldLease,
    end: &Result<Answer, Fault>,
    may_have_run: bool,
    now: Instant,
) -> Unlocked {
    let Some(found) = end.as_ref().ok().and_then(Answer::key_state) else {
        return Unlocked::Unconfirmed;
    };
    match found {
        KeyState::Ours => Unlocked::Released,
        _ if may_have_run => Unlocked::Released,
        _ if !lease.covers(now) => Unlocked::Lost(Lost::Expired),
        KeyState::Gone => Unlocked::Lost(Lost::Deleted),
        KeyState::Foreign => Unlocked::Lost(Lost::Taken),
    }
}

fn end_unlock(
    entry: &mut LockEntry,
    lease: &Arc<HeldLease>,
    end: &Result<Answer, Fault>,
    unlocked: Unlocked,
    cx: &mut Context<'_>,
) {
    let mut at = cx.now;
    match end {
        Ok(Answer::PlainRelease) => {
            // Free for a moment, for programs outside the queue.
            at = cx.now.after(FREE_FOR);
            entry.note_contended(at);
        }
        _ if lease.lock.queue().is_none() && lease.run.was_handed(lease.token()) => {
            at = cx.now.after(YIELDS_FOR);
        }
        _ => {}
    }
    if unlocked == Unlocked::Released {
        entry.released = Some(lease.id.clone());
    }
    entry.ended(lease, at, cx);
    let is_proof = unlocked == Unlocked::Released && entry.is_asked_for();
    if is_proof && !is_on(Mutant::OwnLeaseProvesNothing) {
        // A call whose deadline comes now has waited for this lease.
        entry.last.held_until(cx.now, Arc::new(lease.named()));
    }
    match unlocked {
        Unlocked::Unconfirmed => entry.release_later(lease, Counts::Lease, cx),
        _ => cx.note_released(lease),
    }
}

impl LockEntry {
    /// Begins the release of a lease that lingers, and that a call which wants it on other terms
    /// cannot take; of any, if `wants` is `None`.
    fn release_lingering(
        &mut self,
        wants: Option<&CallTerms>,
        cx: &mut Context<'_>,
    ) -> Option<(Arc<HeldLease>, Unlock)> {
        let lease = Arc::clone(self.lingering()?);
        if wants.is_some_and(|wants| lease.may_relock(wants, cx.now)) {
            return None;
        }
        self.lingers_until = None;
        let release = begin_release(self, &lease, lease.token(), cx);
        Some((lease, release))
    }
}

/// Leases that linger.
impl Kernel {
    /// Returns whether the lease with this id lingers under a name.
    pub(crate) fn lingers(&self, name: &Name, id: &HolderId) -> bool {
        let shard = self.shard(name).lock();
        let lease = shard.get(name).and_then(|entry| entry.lingering());
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
