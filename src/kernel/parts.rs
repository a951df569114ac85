//! The calls of the kernel for a call for several locks, besides those for its parts.

use std::sync::Arc;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::kernel::Kernel;
use crate::kernel::effects::{AnyLease, Effects};
use crate::kernel::failure::{Failure, Refused};
use crate::kernel::held::HeldLease;
use crate::kernel::operation::{OperationCell, Wanted};
use crate::kernel::watch::{Watching, watch};
use crate::protocol::primitive::Primitive;
use crate::protocol::refusal::RefusedName;
use crate::token::FencingToken;

/// The leases of the parts.
impl Kernel {
    /// Gives up a part: the engine releases it.
    pub(crate) fn give_up_part(&self, lease: &Arc<HeldLease>, now: Instant, fx: &mut Effects) {
        self.with_entry(&lease.lock, now, fx, |entry, cx| {
            entry.give_up(lease, lease.token(), cx);
        });
    }

    /// Gives up a part of a whole that has ended.
    pub(crate) fn give_up(&self, part: AnyLease, now: Instant, fx: &mut Effects) {
        let lease = part.downcast::<HeldLease>().expect("a part is a lease");
        self.give_up_part(&lease, now, fx);
        fx.discard(lease);
    }

    /// Gives a part the terms of the whole that it belongs to, in place of those for its waiting:
    /// Redis must confirm its ttl. The caller waits for that in the cell; `None` if it is lost.
    pub(crate) fn confirm_part(
        &self,
        (lease, token): &(Arc<HeldLease>, FencingToken),
        terms: &LeaseTerms,
        now: Instant,
        fx: &mut Effects,
    ) -> Option<Arc<OperationCell>> {
        lease.renew_every(terms.renew_every);
        self.operate(lease, *token, Wanted::SetTtl(terms.ttl), now, fx)
    }

    /// Returns the refusal of a call that does not wait, if Redis need not be asked for it.
    pub(crate) fn refuses_once(
        &self,
        lock: &dyn Primitive,
        now: Instant,
        fx: &mut Effects,
    ) -> Option<Option<Refused>> {
        let name = lock.keys().key(0).name;
        let refused = self.with_existing(name, now, fx, |it, cx| it.refuses_once(lock, cx.now));
        refused.flatten()
    }

    /// Returns what last refused a name, as far as this client remembers.
    pub(crate) fn last_refusal(
        &self,
        lock: &dyn Primitive,
        now: Instant,
        fx: &mut Effects,
    ) -> Option<Refused> {
        let name = lock.keys().key(0).name;
        let refused = self.with_existing(name, now, fx, |entry, _| entry.line.last.refusal());
        refused.flatten()
    }

    /// A call elsewhere that was refused the name begins to wait for it here.
    pub(crate) fn note_refusal(
        &self,
        lock: &Arc<dyn Primitive>,
        refused: Refused,
        now: Instant,
        fx: &mut Effects,
    ) {
        self.with_entry(lock, now, fx, |entry, _| entry.line.last.note(refused));
    }

    /// Returns the refusal of a call by a lease of this client, for which Redis was not asked.
    /// Nobody holds one that lingers.
    pub(crate) fn refused_by_own(
        &self,
        lock: &dyn Primitive,
        now: Instant,
        fx: &mut Effects,
    ) -> Option<Refused> {
        let lease = self.holder_of(lock, now, fx)?;
        let by = RefusedName {
            remaining: None,
            ..lease.named()
        };
        let is_held = !lease.lingers();
        fx.discard(lease);
        is_held.then(|| Refused::until_now(now, now, Arc::new(by)))
    }

    /// The engine asks the listener of a part at `at`.
    pub(crate) fn look_at_part(
        &self,
        lease: &Arc<HeldLease>,
        at: Instant,
        now: Instant,
        fx: &mut Effects,
    ) {
        self.shared.at(now, fx).change(lease, |it, _| {
            if let Some(part) = &mut it.part {
                part.look_at(at);
            }
        });
    }
}

/// The names that it watches.
impl Kernel {
    /// Begins to watch a name. Messages wake the call only if it says so; the end of the client
    /// always does.
    pub(crate) fn watch(
        &self,
        lock: &Arc<dyn Primitive>,
        wakes: bool,
        now: Instant,
        fx: &mut Effects,
    ) -> Watching {
        let (watch, watching) = watch(lock, wakes);
        self.with_entry(lock, now, fx, |entry, cx| {
            entry.extras().watches.push(watch);
            if cx.shared.is_closed() {
                entry.end_watches(&Failure::Closed, cx);
            }
        });
        watching
    }

    pub(crate) fn end_watch(&self, watching: Watching, now: Instant, fx: &mut Effects) {
        let name = watching.lock.key(0).name;
        self.with_existing(name, now, fx, |entry, _| {
            let watches = &mut entry.extras().watches;
            watches.retain(|watch| !Arc::ptr_eq(&watch.cell, &watching.cell));
        });
    }

    /// Returns whether the messages of a watched name arrive.
    pub(crate) fn is_live(&self, watching: &Watching) -> bool {
        let name = watching.lock.key(0).name;
        let shard = self.shard(name).lock();
        shard.get(name).is_some_and(|entry| entry.line.is_listening)
    }

    /// Returns why a call that began at `start` fails, as far as a watched name is concerned, and
    /// since when it does: now or earlier, if Redis says nothing for too long.
    pub(crate) fn failure_at(
        &self,
        watching: &Watching,
        start: Instant,
    ) -> Option<(Failure, Instant)> {
        let name = watching.lock.key(0).name;
        let shard = self.shard(name).lock();
        let entry = shard
            .get(name)
            .filter(|entry| entry.line.last.has_failed())?;
        let at = entry.line.gives_up_at(
            start,
            entry.leases.own(),
            self.shared.limits.unreachable_for,
        );
        Some((entry.line.failure(start), at))
    }
}
