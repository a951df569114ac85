//! The leases of an entry: how they begin, pass on and end.

use std::sync::Arc;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::context::Context;
use crate::kernel::entry::{Held, LockEntry};
use crate::kernel::failure::Failure;
use crate::kernel::held::{Grant, HeldLease};
use crate::kernel::request::{Request, RequestNo, RequestState, Serves};
use crate::kernel::requests::Receiver;
use crate::kernel::undo::{Counts, Proof};
use crate::kernel::waiter::{Outcome, WaiterNo};
use crate::lease::handoff::NoHandoff;
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::mutant::{Mutant, is_on};
use crate::protocol::primitive::Primitive;
use crate::token::FencingToken;

impl LockEntry {
    /// Adds the release of what a request may have taken under `id`.
    pub(super) fn undo(
        &self,
        request: &Request,
        id: &HolderId,
        proof: Proof,
        cx: &mut Context<'_>,
    ) {
        assert!(!self.holds(id), "a lease is never undone");
        let is_place = matches!(request.state, RequestState::Queued(_));
        let counts = if is_place {
            Counts::Nothing
        } else {
            Counts::Lease
        };
        cx.undo(&request.lock, id, request.key_may_get(), (proof, counts));
    }

    /// Holds what was granted. This client's other leases that exclude it are lost.
    pub(super) fn hold(
        &mut self,
        lock: &Arc<dyn Primitive>,
        mut grant: Grant<'_>,
        cx: &mut Context<'_>,
    ) -> Arc<HeldLease> {
        cx.shared.forget_id(&grant.id);
        // The machine may have stood still since the command was sent.
        let ahead = cx.shared.wall_clock.noticed(grant.lease.confirmed_at());
        if !ahead.is_zero() {
            grant.lease.distrust(ahead, cx.now);
        }
        let serial = cx.shared.next_serial();
        let lease = Arc::new(HeldLease::new(lock, grant, serial, cx.now));
        let is_shared = lock.is_shared();
        self.evict(is_shared, cx);
        self.held.push(Held {
            lease: Arc::clone(&lease),
            is_shared,
        });
        self.last.silent_since = None;
        #[cfg(sim)]
        cx.fx.began.push((lease.clone(), lease.run.first()));
        cx.rearm(&lease);
        if !is_on(Mutant::EvictionMakesNobodyAsk) {
            // The line may have waited for the end of an evicted lease.
            self.serve(cx.now, cx);
        }
        lease
    }

    /// Removes the leases that Redis never grants together with a new one. Each of them is lost, or
    /// its release has no recorded outcome yet.
    fn evict(&mut self, is_shared: bool, cx: &mut Context<'_>) {
        while let Some(n) = if is_shared {
            self.held.iter().position(|held| !held.is_shared)
        } else {
            (self.held.len() >= self.capacity).then_some(0)
        } {
            let lease = self.remove_held(n);
            cx.change(&lease, |it, now| it.evict(now));
            cx.fx.discard(lease);
        }
    }

    fn remove_held(&mut self, n: usize) -> Arc<HeldLease> {
        self.lingers_until
            .take_if(|_| !is_on(Mutant::LostLeaseLingers));
        self.held.remove(n).lease
    }

    /// A request was granted the lock, for `receiver`.
    pub(super) fn count_wake(&mut self, n: RequestNo, receiver: Receiver, cx: &mut Context<'_>) {
        let woken = std::mem::take(&mut self.requests.change(n).woken);
        if woken && matches!(receiver, Receiver::Waiter(_)) {
            cx.fx.wakes += 1;
        }
    }

    /// Gives a new lease to a parked call.
    pub(super) fn give(&mut self, lease: Arc<HeldLease>, no: WaiterNo, cx: &mut Context<'_>) {
        let token = lease.run.first();
        self.end_waiter(no, Outcome::Lease(lease, token), cx);
        self.retire_of(no, cx);
    }

    /// Passes a lease to the first call in the line, without Redis.
    pub(super) fn hand_off(
        &mut self,
        lease: &Arc<HeldLease>,
        token: FencingToken,
        has_renewed: bool,
        cx: &mut Context<'_>,
    ) -> Result<(), NoHandoff> {
        let Some(front) = self.waiters.front().filter(|_| !cx.shared.is_closed()) else {
            return Err(NoHandoff::Release);
        };
        if front.terms.handoffs == 0 || !self.holds(&lease.id) {
            return Err(NoHandoff::Release);
        }
        let (no, terms) = (front.no, front.terms);
        let next = lease.pass_to(token, &terms, has_renewed, cx.now, cx.fx)?;
        #[cfg(sim)]
        cx.fx.began.push((lease.clone(), next));
        cx.fx.wakes += 1;
        self.waiters.change(no, |waiter| waiter.note_waited());
        let lease = Arc::clone(lease);
        self.end_waiter(no, Outcome::Lease(lease, next), cx);
        self.retire_of(no, cx);
        Ok(())
    }

    /// A lease of this client was found to be lost: somebody must ask. Returns false if it was not
    /// in this entry any more.
    pub(super) fn lost(&mut self, lease: &Arc<HeldLease>, cx: &mut Context<'_>) -> bool {
        let was_here = self.ended(lease, cx.now, cx);
        if was_here {
            cx.change(lease, |it, _| it.has_left = true);
        }
        was_here
    }

    /// A lease of this client has ended, and knows that it leaves: somebody must ask at `at`.
    /// Returns false if it was not in this entry any more.
    pub(super) fn ended(
        &mut self,
        lease: &Arc<HeldLease>,
        at: Instant,
        cx: &mut Context<'_>,
    ) -> bool {
        let Some(n) = self.held.iter().position(|held| held.lease.id == lease.id) else {
            return false;
        };
        let was_alone = self.holds_alone();
        self.remove_held(n);
        if self.last.cut(cx.now) || was_alone {
            self.plan_last_attempts();
        }
        self.end_watches(&Failure::Restart, cx);
        if is_on(Mutant::NobodyAsksAfterTheEnd) {
            return true;
        }
        self.serve(at, cx);
        let stays_later = is_on(Mutant::LaterAttemptStaysLater);
        for n in self.requests.serving(&[Serves::Line]) {
            let mut request = self.requests.change(n);
            request.woken = true;
            match &mut request.state {
                RequestState::Due(due) if !stays_later => *due = (*due).min(at),
                // That lease may be what refuses it.
                RequestState::Sent => request.again = request.again.min(at),
                _ => {}
            }
        }
        // The end of one of several permits that nobody waits for is no work for the engine.
        if !stays_later && self.is_asked_for() {
            self.touch(at, at);
        }
        true
    }

    /// Returns whether a call waits or asks.
    pub(super) fn is_asked_for(&self) -> bool {
        !(self.requests.is_empty() && self.waiters.is_empty())
    }

    /// Returns whether a call waits, asks, or watches the name from elsewhere.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_asked_for() || !self.watches().is_empty()
    }

    /// Gives up a lease that was given to a call which did not take it in time.
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
        self.ended(lease, cx.now, cx);
        if was_held && matches!(status, LeaseStatus::Held(_)) && self.is_asked_for() {
            // A call whose deadline comes now has waited for this lease.
            self.last.held_until(cx.now, Arc::new(lease.named()));
        }
        if status != LeaseStatus::Lost(Lost::ShutDown) {
            self.release_later(lease, Counts::Lease, cx);
        }
    }

    /// A lease has ended without a release that its holder sends: the engine releases it.
    pub(super) fn release_unsent(&mut self, lease: &Arc<HeldLease>, cx: &mut Context<'_>) {
        self.ended(lease, cx.now, cx);
        self.release_later(lease, Counts::Lease, cx);
    }

    /// Leaves the release of an ended lease to the engine.
    pub(super) fn release_later(
        &self,
        lease: &Arc<HeldLease>,
        counts: Counts,
        cx: &mut Context<'_>,
    ) {
        assert!(!self.holds(&lease.id), "a lease is never undone");
        cx.release_later(lease, counts);
    }

    /// The client is closed: ends all calls and leases.
    pub(super) fn close(&mut self, cx: &mut Context<'_>) {
        let parked = self.waiters.numbers();
        // Calls that wait for a reply end by themselves.
        let asking = self.requests.walk();
        let asking = asking.filter(|it| it.caller().is_some() && !it.once);
        cx.fx.closed += parked.len() + asking.count();
        for no in parked {
            self.end_waiter(no, Outcome::Failed(Failure::Closed), cx);
        }
        self.end_watches(&Failure::Closed, cx);
        if !is_on(Mutant::ClosedKeepsPlaces) {
            for n in self.requests.numbers().into_iter().rev() {
                self.retire(n, cx);
            }
        }
        for held in self.held.take() {
            let lease = held.lease;
            cx.change(&lease, |it, now| it.lease.lose(Lost::ShutDown, now));
            if lease.status(cx.now, cx.fx) == LeaseStatus::Lost(Lost::ShutDown) {
                self.release_later(&lease, Counts::AtShutdown, cx);
            }
            cx.fx.discard(lease);
        }
    }
}
