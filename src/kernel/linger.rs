//! A lease that nobody holds, which the client keeps for a moment: the next call has it without
//! Redis.
//!
//! ```text
//! unlock ──nobody asks, and the run goes on──▶ lingers ──a call that fits──▶ held, the next token
//!    └──otherwise──▶ released                     ├──its time, any other call, the end──▶ released
//!                                                 └──lost──▶ the client logs it
//! ```

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::call::CallTerms;
use crate::kernel::context::Context;
use crate::kernel::effects::Effects;
use crate::kernel::entry::LockEntry;
use crate::kernel::held::{HeldLease, Inner};
use crate::kernel::holder::Holder;
use crate::kernel::lease::{HandoffRun, LeaseStatus};
use crate::kernel::unlock::{Unlock, begin_release};
use crate::mutant::{Mutant, is_on};
use crate::name::Name;
use crate::protocol::primitive::Primitive;
use crate::token::FencingToken;

impl LockEntry {
    /// Returns whether a lease may linger after its holding: nobody asks for it.
    pub(super) fn may_linger(&self, lease: &HeldLease, cx: &Context<'_>) -> bool {
        !self.is_wanted() && !cx.kernel.is_closed() && self.holds(&lease.id)
    }

    /// The only lease of the entry lingers for this long.
    pub(super) fn lingers_for(&mut self, lasts: Duration, cx: &Context<'_>) {
        let until = cx.now.after(lasts);
        self.lingers_until = Some(until);
        self.touch(until, until);
        cx.kernel.note_lingered();
    }

    /// Gives a lease that lingers to a call, if it could be handed off to that now.
    pub(super) fn relock(
        &mut self,
        wants: &CallTerms,
        cx: &mut Context<'_>,
    ) -> Option<(Arc<HeldLease>, FencingToken)> {
        let lease = Arc::clone(self.lingering()?);
        let token = lease.relock(wants, cx)?;
        self.lingers_until = None;
        #[cfg(sim)]
        cx.fx.began.push((Arc::clone(&lease), token));
        Some((lease, token))
    }

    pub(crate) fn lingering(&self) -> Option<&Arc<HeldLease>> {
        self.lingers_until?;
        self.held.first().map(|held| &held.lease)
    }

    /// Returns when the engine releases the lease that lingers.
    pub(super) fn linger_ends(&self) -> Option<Instant> {
        self.lingers_until
            .filter(|_| !is_on(Mutant::LingerNeverEnds))
    }

    /// Nobody takes the lease that lingers: the engine releases it.
    pub(super) fn end_linger(&mut self, cx: &mut Context<'_>) {
        if let Some(lease) = self.lingering().cloned() {
            self.lingers_until = None;
            self.give_up(&lease, lease.token(), cx);
        }
    }

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

impl HeldLease {
    pub(super) fn lingers(&self) -> bool {
        self.inner.lock().lingers
    }

    /// Returns the token under which a call could take the lease at `now`.
    fn next_token(&self, inner: &Inner, wants: &CallTerms, now: Instant) -> Option<FencingToken> {
        let is_of_kind = wants.lock.has_local_queue();
        if is_taken_blindly(is_of_kind, inner.lease.covers(now)) {
            return Some(FencingToken::new(inner.token.value() + 1));
        }
        let terms = &wants.terms;
        let handoffs = inner.holder.handoffs.min(terms.handoffs);
        let next = (self.run).relock(&inner.lease, inner.token, terms, handoffs, now);
        next.filter(|_| is_of_kind && self.replicas() == terms.replicas)
    }

    fn may_relock(&self, wants: &CallTerms, now: Instant) -> bool {
        let inner = self.inner.lock();
        self.next_token(&inner, wants, now).is_some()
    }

    /// A call takes the lease; returns its token.
    fn relock(self: &Arc<Self>, wants: &CallTerms, cx: &mut Context<'_>) -> Option<FencingToken> {
        let now = cx.now;
        self.change(cx, |inner| {
            let next = self.next_token(inner, wants, now)?;
            inner.begin_holding(wants.taker(), now);
            let last = std::mem::replace(&mut inner.token, next);
            Some(if is_on(Mutant::RelockKeepsTheToken) {
                last
            } else {
                next
            })
        })
    }
}

impl Inner {
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

impl Kernel {
    /// Returns whether the lease with this id lingers under a name.
    pub(crate) fn lingers(&self, name: &Name, id: &HolderId) -> bool {
        let shard = self.table.shard(name).lock();
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
        if !self.has_lingered() {
            return Vec::new();
        }
        let names = wants.lock.keys().names.iter();
        let release = |name: &Name| {
            let mut cx = self.at(now, fx);
            cx.with_existing(name, |entry, cx| entry.release_lingering(Some(wants), cx))
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
        if !self.has_lingered() {
            return Vec::new();
        }
        let mut cx = self.at(now, fx);
        let mut release = |lock: &Arc<dyn Primitive>| {
            let name = lock.key(0).name;
            cx.with_existing(name, |entry, cx| entry.release_lingering(None, cx))
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
        self.at(now, fx).for_each(|entry, cx| {
            releases.extend(entry.release_lingering(None, cx));
        });
        releases
    }
}
