//! The end of a holding, and of a lease: what that means for its name.
//!
//! ```text
//! begin_unlock ──a call waits in the line, and the lease fits it──▶ HandedOff
//!      │ ├──it must be renewed for that──▶ RenewFirst ──once──▶ begin_unlock
//!      │ ├──nobody wants the name, and the lease may linger──▶ Lingers
//!      │ └──it was lost──▶ AlreadyLost
//!      ├──▶ Send ──unlocked: the reply, or none──▶ Released, Lost, or a pending release
//!      │      └──its thread stands still: the engine ends it
//!      └──the engine sends the release──▶ Wait ──its end──▶ the same
//! ```

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::kernel::context::Context;
use crate::kernel::effects::Discard;
use crate::kernel::entry::LockEntry;
use crate::kernel::failure::Failure;
use crate::kernel::fault::Fault;
use crate::kernel::held::{HeldLease, HoldingEnd};
use crate::kernel::lease::{Unlock, Unlocked};
use crate::kernel::line::FREE_FOR;
use crate::kernel::operation::{Operation, OperationCell, Wanted};
use crate::kernel::undo::Counts;
use crate::kernel::waiter::CallTerms;
use crate::lease::handoff::NoHandoff;
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::Answer;
use crate::token::FencingToken;

/// The pause of a line without a queue after a run of hand-offs: other clients get a chance.
const YIELDS_FOR: Duration = Duration::from_millis(1);

/// A holder ends or changes its holding.
impl LockEntry {
    /// Ends the holding of `token`: the lease is handed off, lingers, or is released.
    pub(super) fn begin_unlock(
        &mut self,
        lease: &Arc<HeldLease>,
        token: FencingToken,
        has_renewed: bool,
        cx: &mut Context<'_>,
    ) -> Unlock {
        match self.hand_off(lease, token, has_renewed, cx) {
            Ok(()) => return Unlock::HandedOff,
            Err(NoHandoff::RenewFirst) => {
                if let Some(cell) = want(lease, token, Wanted::Renew, cx) {
                    return Unlock::RenewFirst(cell);
                }
            }
            Err(NoHandoff::Release) => {}
        }
        let may_linger =
            !self.is_wanted() && !cx.shared.is_closed() && self.leases.holds(&lease.id);
        self.end_holding(lease, (token, may_linger), cx)
    }

    /// Passes a lease to the first call in the line, without Redis.
    fn hand_off(
        &mut self,
        lease: &Arc<HeldLease>,
        token: FencingToken,
        has_renewed: bool,
        cx: &mut Context<'_>,
    ) -> Result<(), NoHandoff> {
        let front = self.line.waiters.front();
        let Some(front) = front.filter(|_| !cx.shared.is_closed()) else {
            return Err(NoHandoff::Release);
        };
        if front.terms.handoffs == 0 || !self.leases.holds(&lease.id) {
            return Err(NoHandoff::Release);
        }
        let (no, terms) = (front.no, front.terms);
        let next = lease.pass_to(token, &terms, has_renewed, cx.now, cx.fx)?;
        #[cfg(sim)]
        cx.fx.began.push((lease.clone(), next));
        self.at_line(cx, |line, ev| line.handed_off(no, (lease, next), ev));
        Ok(())
    }

    /// Ends the holding of `token`: the lease lingers if it may, and its release begins otherwise.
    fn end_holding(
        &mut self,
        lease: &Arc<HeldLease>,
        (token, may_linger): (FencingToken, bool),
        cx: &mut Context<'_>,
    ) -> Unlock {
        let by_engine = cx.shared.limits.engine_sends;
        let (end, dropped) = cx.change(lease, |it, now| {
            it.end(&lease.run, (token, may_linger), by_engine, now)
        });
        cx.drop_operations(dropped);
        match end {
            HoldingEnd::Lingers(lasts, before) => {
                cx.fx.discard.push(Discard::Holder(before));
                let until = cx.now.after(lasts);
                self.leases.lingers_until = Some(until);
                self.line.touch(until, until);
                cx.shared.note_lingered();
                Unlock::Lingers
            }
            HoldingEnd::Over => Unlock::Over,
            HoldingEnd::Lost(lost) => {
                self.lease_left(lease, cx.now, cx);
                if lost != Lost::ShutDown {
                    // The key can still exist: the server counts an expiry later.
                    self.release_later(lease, Counts::Lease, cx);
                }
                Unlock::AlreadyLost(lost)
            }
            HoldingEnd::Releases(Some(cell)) => Unlock::Wait(cell),
            HoldingEnd::Releases(None) => Unlock::Send(lease.release_command()),
        }
    }

    /// Leaves the release to the engine, for a thread that must not wait.
    pub(super) fn unlock_later(
        &mut self,
        lease: &Arc<HeldLease>,
        token: FencingToken,
        cx: &mut Context<'_>,
    ) {
        if self.hand_off(lease, token, false, cx).is_ok() {
            return;
        }
        if let Unlock::Send(_) = self.end_holding(lease, (token, false), cx) {
            self.end_unsent_release(lease, cx);
        }
    }

    /// The end of a release.
    pub(super) fn unlocked(
        &mut self,
        lease: &Arc<HeldLease>,
        end: &Result<Answer, Fault>,
        may_have_run: bool,
        cx: &mut Context<'_>,
    ) -> Unlocked {
        let unlocked = lease.unlocked(end, may_have_run, cx.now);
        let lost = match unlocked {
            Unlocked::Lost(lost) => Some(lost),
            Unlocked::Released | Unlocked::Unconfirmed => None,
        };
        // The engine, or a shutdown, may have ended it.
        if !cx.change(lease, |it, _| it.end_release(lost)) {
            return unlocked;
        }
        let mut at = cx.now;
        match end {
            Ok(Answer::PlainRelease) => {
                // Free for a moment, for programs outside the queue.
                at = cx.now.after(FREE_FOR);
                self.line.note_contended(at);
            }
            _ if lease.lock.queue().is_none() && lease.run.was_handed(lease.token()) => {
                at = cx.now.after(YIELDS_FOR);
            }
            _ => {}
        }
        if unlocked == Unlocked::Released {
            self.leases.released = Some(lease.id.clone());
        }
        self.lease_left(lease, at, cx);
        let is_proof = unlocked == Unlocked::Released && self.line.is_asked_for();
        if is_proof && !is_on(Mutant::OwnLeaseProvesNothing) {
            // A call whose deadline comes now has waited for this lease.
            let by = Arc::new(lease.named());
            self.line.last.held_until(cx.now, by);
        }
        match unlocked {
            Unlocked::Unconfirmed => self.release_later(lease, Counts::Lease, cx),
            _ => cx.note_released(lease),
        }
        unlocked
    }

    /// The holder's thread does not send the release that has begun, or stands still: the engine
    /// releases the lease.
    pub(super) fn end_unsent_release(&mut self, lease: &Arc<HeldLease>, cx: &mut Context<'_>) {
        if cx.change(lease, |it, _| it.end_release(None)) {
            self.lease_left(lease, cx.now, cx);
            self.release_later(lease, Counts::Lease, cx);
        }
    }

    /// A holder keeps its lease without a release: the key expires.
    pub(super) fn keep(
        &mut self,
        lease: &Arc<HeldLease>,
        token: FencingToken,
        cx: &mut Context<'_>,
    ) -> Option<LeaseStatus> {
        let status = cx.end_unreleased(lease, token)?;
        self.lease_left(lease, cx.now, cx);
        if let LeaseStatus::Lost(lost) = status
            && lost != Lost::ShutDown
        {
            self.release_later(lease, Counts::Lease, cx);
        }
        Some(status)
    }

    /// A holder wants a renewal, a change of ttl or a downgrade.
    pub(super) fn operate(
        &mut self,
        lease: &Arc<HeldLease>,
        token: FencingToken,
        what: Wanted,
        cx: &mut Context<'_>,
    ) -> Option<Arc<OperationCell>> {
        let is_downgrade = matches!(what, Wanted::Downgrade(_));
        let cell = want(lease, token, what, cx)?;
        if is_downgrade && let Some(n) = self.leases.position(&lease.id) {
            self.leases.held[n].is_shared = true;
            // Calls that waited for the end of the writer can have a place now.
            self.at_line(cx, |line, ev| line.serve(ev.now, ev));
        }
        Some(cell)
    }
}

/// The ends of leases.
impl LockEntry {
    /// A lease was found to have ended: the calls that waited for that ask now. Returns false if it
    /// was not in this entry any more.
    pub(super) fn lease_ended(&mut self, lease: &Arc<HeldLease>, cx: &mut Context<'_>) -> bool {
        let status = lease.status(cx.now, cx.fx);
        // It has no holder who would release what is left of it.
        let lingers = self.leases.lingering().is_some();
        let has_left = self.lease_left(lease, cx.now, cx);
        if has_left {
            cx.change(lease, |it, _| it.has_left = true);
        }
        let is_by_clock = matches!(status, LeaseStatus::Lost(Lost::Expired | Lost::MaxHold));
        if is_by_clock && lease.since().is_some() {
            let by = Arc::new(lease.named());
            self.line.last.held_until(lease.end().min(cx.now), by);
        }
        if lingers && has_left {
            self.release_later(lease, Counts::Lease, cx);
        }
        has_left
    }

    /// A lease of this client has ended, and knows that it leaves: somebody must ask at `at`.
    /// Returns false if it was not in this entry any more.
    fn lease_left(&mut self, lease: &Arc<HeldLease>, at: Instant, cx: &mut Context<'_>) -> bool {
        let Some(n) = self.leases.position(&lease.id) else {
            return false;
        };
        let was_alone = self.leases.own().alone;
        self.leases.remove(n);
        if self.line.last.cut(cx.now) || was_alone {
            self.line.plan_last_attempts();
        }
        self.end_watches(&Failure::Restart, cx);
        if !is_on(Mutant::NobodyAsksAfterTheEnd) {
            self.at_line(cx, |line, ev| line.ask_from(at, ev));
        }
        true
    }

    /// Gives up a lease that nobody takes or needs any more: the engine releases it.
    pub(super) fn give_up(
        &mut self,
        lease: &Arc<HeldLease>,
        token: FencingToken,
        cx: &mut Context<'_>,
    ) {
        // Nobody holds one that lingers.
        let was_held = lease.since().is_some();
        let Some(status) = cx.end_unreleased(lease, token) else {
            return;
        };
        self.lease_left(lease, cx.now, cx);
        if was_held && matches!(status, LeaseStatus::Held(_)) && self.line.is_asked_for() {
            // A call whose deadline comes now has waited for this lease.
            let by = Arc::new(lease.named());
            self.line.last.held_until(cx.now, by);
        }
        if status != LeaseStatus::Lost(Lost::ShutDown) {
            self.release_later(lease, Counts::Lease, cx);
        }
    }

    /// Leaves the release of an ended lease to the engine.
    pub(super) fn release_later(
        &self,
        lease: &Arc<HeldLease>,
        counts: Counts,
        cx: &mut Context<'_>,
    ) {
        assert!(!self.leases.holds(&lease.id), "a lease is never undone");
        cx.release_later(lease, counts);
    }

    /// Gives a lease that lingers to a call, if it could be handed off to that now.
    pub(super) fn relock(
        &mut self,
        wants: &CallTerms,
        cx: &mut Context<'_>,
    ) -> Option<(Arc<HeldLease>, FencingToken)> {
        let lease = Arc::clone(self.leases.lingering()?);
        let token = cx.change(&lease, |it, now| it.relock(&lease, wants, now))?;
        self.leases.lingers_until = None;
        #[cfg(sim)]
        cx.fx.began.push((lease.clone(), token));
        Some((lease, token))
    }

    /// Begins the release of a lease that lingers, and that a call which wants it on other terms
    /// cannot take; of any, if `wants` is `None`.
    pub(super) fn release_lingering(
        &mut self,
        wants: Option<&CallTerms>,
        cx: &mut Context<'_>,
    ) -> Option<(Arc<HeldLease>, Unlock)> {
        let lease = Arc::clone(self.leases.lingering()?);
        if wants.is_some_and(|wants| lease.may_relock(wants, cx.now)) {
            return None;
        }
        self.leases.lingers_until = None;
        let release = self.end_holding(&lease, (lease.token(), false), cx);
        Some((lease, release))
    }
}

/// Adds an operation to a lease; returns the cell in which its holder waits.
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
    let is_wanted = cx.change(lease, |it, now| it.want(token, operation, now));
    is_wanted.then_some(cell)
}
