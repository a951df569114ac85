//! A lease that nobody holds, which the client keeps for a moment: the next call has it without
//! Redis.
//!
//! ```text
//! unlock ──nobody asks, and the run goes on──▶ lingers ──a call that fits──▶ held, the next token
//!    └──otherwise──▶ released                     ├──its time, any other call, the end──▶ released
//!                                                 └──lost──▶ the client logs it
//! ```

use std::time::Duration;

use crate::clock::Instant;
use crate::kernel::held::{HeldLease, LeaseInner};
use crate::kernel::holder::Holder;
use crate::kernel::waiter::CallTerms;
use crate::lease::handoff::HandoffRun;
use crate::lease::status::LeaseStatus;
use crate::mutant::{Mutant, is_on};
use crate::token::FencingToken;

impl HeldLease {
    pub(super) fn lingers(&self) -> bool {
        self.inner.lock().lingers
    }

    /// Returns the token under which a call could take the lease at `now`.
    fn next_token(
        &self,
        inner: &LeaseInner,
        wants: &CallTerms,
        now: Instant,
    ) -> Option<FencingToken> {
        let is_of_kind = wants.lock.has_local_queue();
        if is_taken_blindly(is_of_kind, inner.lease.covers(now)) {
            return Some(FencingToken::new(inner.token.value() + 1));
        }
        let terms = &wants.terms;
        let handoffs = inner.holder.handoffs.min(terms.handoffs);
        let next = (self.run).relock(&inner.lease, inner.token, terms, handoffs, now);
        next.filter(|_| is_of_kind && self.replicas() == terms.replicas)
    }

    pub(super) fn may_relock(&self, wants: &CallTerms, now: Instant) -> bool {
        let inner = self.inner.lock();
        self.next_token(&inner, wants, now).is_some()
    }
}

impl LeaseInner {
    /// A call takes the lease that lingers; returns its token.
    pub(super) fn relock(
        &mut self,
        lease: &HeldLease,
        wants: &CallTerms,
        now: Instant,
    ) -> Option<FencingToken> {
        let next = lease.next_token(self, wants, now)?;
        self.begin_holding(wants.taker(), now);
        let last = std::mem::replace(&mut self.token, next);
        Some(if is_on(Mutant::RelockKeepsTheToken) {
            last
        } else {
            next
        })
    }

    /// The holder of `token` ends its holding, and the lease lingers: returns for how long, and the
    /// holder. `None` if that is over, or the lease could not be taken again.
    pub(super) fn begin_linger(
        &mut self,
        run: &HandoffRun,
        token: FencingToken,
        now: Instant,
    ) -> Option<(Duration, Holder)> {
        let lasts = self.holder.linger;
        if lasts.is_zero()
            || self.token != token
            || self.released_by_holder
            || !matches!(self.lease.status(now), LeaseStatus::Held(_))
        {
            return None;
        }
        let (terms, handoffs) = (self.lease.own_terms(), self.holder.handoffs);
        run.relock(&self.lease, token, &terms, handoffs, now)?;
        let next = Holder {
            handoffs,
            ..Holder::default()
        };
        self.end_holding(now);
        self.lingers = true;
        Some((lasts, std::mem::replace(&mut self.holder, next)))
    }
}

/// Mistakes, for the simulation: the lease may be of another kind, or over.
fn is_taken_blindly(is_of_kind: bool, lasts: bool) -> bool {
    is_on(Mutant::AnyKindTakesWhatLingers) && !is_of_kind
        || is_on(Mutant::LingerOutlivesItsLease) && !lasts
}
