//! A lease in use, shared by its guards, the lock table and the engine.
//!
//! ```text
//! acquired, granted ─▶ Held ──begin_release──▶ Releasing ──answered, or pending──▶ Released
//!                       │ expired, max_hold, lose    │ the release found it gone
//!                       └──────────────▶ Lost ◀──────┘
//!
//! a holder:   granted, or handed off ─▶ untaken ──take──▶ holds ──hand-off──▶ the next: untaken
//!             lost before it is taken: nobody is told, and its call waits again
//! ```
//!
//! A call whose own thread reads the grant holds the lease from its beginning.
//!
//! `lease.rs` has its commands.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::holder_id::HolderId;
use crate::kernel::effects::{Discard, Effects, MayOwnClosure, Told};
use crate::kernel::holder::{Facts, Holder, Taker};
use crate::kernel::operation::{Operation, OperationCell};
use crate::kernel::part::{Part, PartOfLease, Whole};
use crate::lease::handoff::{HandoffRun, NoHandoff};
use crate::lease::state::LeaseState;
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::mutant::{Mutant, is_on};
use crate::protocol::place::TokenBlock;
use crate::protocol::primitive::Primitive;
use crate::replicas::Replicas;
use crate::sync::Mutex;
use crate::token::FencingToken;

pub(crate) struct HeldLease {
    pub(crate) lock: Arc<dyn Primitive>,
    pub(crate) id: HolderId,
    /// Boxed: most leases have none.
    replicas: Option<Box<Replicas>>,
    pub(crate) run: HandoffRun,
    /// It is one of several parts.
    is_part: bool,
    /// Distinguishes leases in the schedule.
    pub(crate) serial: u64,
    pub(super) scheduled: Scheduled,
    pub(crate) inner: Mutex<LeaseInner>,
}

pub(crate) struct LeaseInner {
    pub(crate) lease: LeaseState,
    /// The token of the current holder: identifies it among those of the same lease.
    pub(super) token: FencingToken,
    pub(super) holder: Holder,
    /// When the current holder took the lease; `None` until then.
    pub(crate) since: Option<Instant>,
    announced: bool,
    /// Nobody holds the lease, and the client keeps it for a moment.
    pub(super) lingers: bool,
    /// The holder has released the lease, whether it was held or lost.
    pub(super) released_by_holder: bool,
    /// Made when it is first needed: most holders use none of it.
    pub(super) extras: Option<Box<LeaseExtras>>,
    /// When the release was sent, until its end is known.
    pub(super) releasing_since: Option<Instant>,
    /// It has left its entry: no call waits for its end any more.
    pub(super) has_left: bool,
    /// Boxed: most leases are no part of anything.
    pub(super) part: Option<Box<PartOfLease>>,
}

/// The parts that few leases have.
#[derive(Default)]
pub(super) struct LeaseExtras {
    listeners: Vec<Sender<Lost>>,
    pub(super) operations: VecDeque<Operation>,
    /// The readers' side of the lock, after a downgrade: renewals repeat it.
    pub(super) reader: Option<Arc<dyn Primitive>>,
    /// The release that the engine must begin.
    pub(super) release: Option<Arc<OperationCell>>,
}

/// What Redis has granted.
pub(super) struct Grant<'a> {
    pub(super) id: HolderId,
    pub(super) tokens: TokenBlock,
    pub(super) lease: LeaseState,
    pub(super) terms: LeaseTerms,
    /// It was granted to a place in the queue.
    pub(super) in_queue: bool,
    pub(super) part: Option<Part>,
    /// The call that takes it at once, if its thread reads the reply.
    pub(super) taker: Option<Taker<'a>>,
}

/// The operations of a lease that are not sent any more.
pub(super) type Dropped = Option<VecDeque<Operation>>;

/// The status before a release, and the operations that it ends.
type Begun = (LeaseStatus, Dropped);

/// How a holding ends.
pub(super) enum HoldingEnd {
    /// The lease lingers for this long, without this holder.
    Lingers(Duration, Holder),
    /// Its release has begun; the cell if the engine sends it.
    Releases(Option<Arc<OperationCell>>),
    /// It was lost, and leaves its entry.
    Lost(Lost),
    /// It has ended before, or has another holder.
    Over,
}

/// When a lease is in the schedule; `NEVER` if it is not. Changed under the lock of the schedule
/// alone.
pub(crate) struct Scheduled(AtomicU64);

impl HeldLease {
    pub(super) fn new(lock: &Arc<dyn Primitive>, grant: Grant, serial: u64, now: Instant) -> Self {
        let token = grant.tokens.first;
        let run = HandoffRun::new(token, grant.tokens.count, now);
        let mut inner = LeaseInner {
            lease: grant.lease,
            token,
            holder: Holder::default(),
            since: None,
            announced: false,
            lingers: false,
            released_by_holder: false,
            extras: None,
            releasing_since: None,
            has_left: false,
            part: grant.part.map(|part| Box::new(PartOfLease::new(part, now))),
        };
        let is_part = inner.part.is_some();
        if let Some(taker) = grant.taker {
            inner.begin_holding(taker, now);
        }
        Self {
            lock: Arc::clone(lock),
            id: grant.id,
            replicas: grant.terms.replicas.map(Box::new),
            run: if grant.in_queue {
                run.granted_in_queue()
            } else {
                run
            },
            is_part,
            serial,
            scheduled: Scheduled::not_yet(),
            inner: Mutex::new(inner),
        }
    }

    /// Runs `act` on the state. If the lease is lost afterwards, tells the listeners, still under
    /// the lock: a stopped thread cannot delay that. The callback is an effect.
    pub(super) fn with<T>(&self, fx: &mut Effects, act: impl FnOnce(&mut LeaseInner) -> T) -> T {
        let mut inner = self.inner.lock();
        let result = act(&mut inner);
        self.tell(&mut inner, fx);
        result
    }

    /// Tells a loss that was just found.
    pub(super) fn tell(&self, inner: &mut LeaseInner, fx: &mut Effects) {
        if let Some(lost) = inner.lease.lost() {
            if let Some(extras) = &mut inner.extras {
                for listener in extras.listeners.drain(..) {
                    // Fails only if the receiver was dropped: each channel has room for one
                    // message.
                    let _ = listener.try_send(lost);
                }
                for operation in extras.operations.drain(..) {
                    fx.operation_ended(&operation.cell, Ok(()));
                }
            }
            if std::mem::take(&mut inner.lingers) {
                let lock = Arc::clone(&self.lock);
                fx.lingering_lost.push((lock, self.id.clone(), lost));
            }
            let is_told = inner.since.is_some() && inner.part.is_none();
            if is_told && !std::mem::replace(&mut inner.announced, true) {
                fx.lost.push(Told {
                    lock: Arc::clone(&self.lock),
                    whole: None,
                    id: self.id.clone(),
                    token: inner.token,
                    lost,
                    ttl_ms: inner.lease.ttl.as_millis() as u64,
                    trace_id: inner.holder.trace_id().cloned(),
                    on_lost: inner.holder.on_lost().cloned(),
                });
            }
        }
        if let Some(part) = &mut inner.part {
            part.tell(&inner.lease, fx);
        }
    }

    /// Returns the status at `now` for the holder of `token`; an earlier holder has released it.
    pub(super) fn status_for(
        &self,
        token: FencingToken,
        now: Instant,
        fx: &mut Effects,
    ) -> LeaseStatus {
        self.with(fx, |inner| {
            if inner.token == token {
                inner.lease.status(now)
            } else {
                LeaseStatus::Released
            }
        })
    }

    /// Returns for how long the lease is valid at `now`.
    pub(super) fn validity(&self, now: Instant) -> Duration {
        self.inner.lock().lease.validity(now)
    }

    /// Returns when the last command was sent that Redis has confirmed, or earlier.
    pub(super) fn confirmed_at(&self) -> Instant {
        self.inner.lock().lease.confirmed_at()
    }

    /// The wall clock has run ahead by this much since the last confirmation. Returns whether the
    /// engine must look at the lease earlier.
    pub(super) fn distrust(&self, ahead: Duration, now: Instant) -> bool {
        self.inner.lock().lease.distrust(ahead, now)
    }

    pub(crate) fn status(&self, now: Instant, fx: &mut Effects) -> LeaseStatus {
        self.with(fx, |inner| inner.lease.status(now))
    }

    /// Returns whether the key belongs to this lease at `now`, as far as is known.
    pub(crate) fn covers(&self, now: Instant) -> bool {
        self.inner.lock().lease.covers(now)
    }

    /// Returns whether no release has begun and no loss was noticed.
    pub(crate) fn is_open(&self) -> bool {
        self.inner.lock().lease.is_open()
    }

    /// Returns whether it can be handed to a call in the line of its name.
    pub(super) fn fits_line(&self) -> bool {
        !self.is_part && self.lock.has_local_queue()
    }

    /// Returns the replicas that must acknowledge its commands.
    pub(super) fn replicas(&self) -> Option<Replicas> {
        self.replicas.as_deref().copied()
    }

    pub(crate) fn token(&self) -> FencingToken {
        self.inner.lock().token
    }

    /// Returns when the current holder took the lease; `None` until then.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.inner.lock().since
    }

    pub(super) fn thread(&self) -> Option<ThreadId> {
        self.inner.lock().holder.thread
    }

    /// Returns the facts that are recorded at the end of the holding.
    pub(crate) fn facts(&self) -> Facts {
        let inner = self.inner.lock();
        Facts {
            since: inner.since,
            trace_id: inner.holder.trace_id().cloned(),
            ttl_ms: inner.lease.ttl.as_millis() as u64,
        }
    }

    pub(crate) fn ttl_ms(&self) -> u64 {
        self.inner.lock().lease.ttl.as_millis() as u64
    }

    /// Returns for how long the lease is certainly held at `now`; `None` if it is not.
    pub(crate) fn remaining(&self, now: Instant) -> Option<Duration> {
        let inner = self.inner.lock();
        let lease = &inner.lease;
        (lease.is_open() && lease.covers(now)).then(|| now.until(lease.end()))
    }

    /// Returns until when the lease certainly lasts, or lasted.
    pub(crate) fn end(&self) -> Instant {
        self.inner.lock().lease.end()
    }

    /// Returns whether the client renews the lease.
    pub(crate) fn is_renewed(&self) -> bool {
        self.inner.lock().lease.is_renewed()
    }

    /// Returns whether the key may get a shorter ttl than this one by an unanswered command.
    pub(crate) fn may_be_shortened(&self, ttl: Duration) -> bool {
        self.inner.lock().lease.may_be_shortened(ttl)
    }

    /// Returns how long the key may exist if no release arrives.
    pub(crate) fn key_may_last(&self) -> Duration {
        self.inner.lock().lease.key_may_last()
    }

    pub(crate) fn key_may_last_at(&self, now: Instant) -> Duration {
        self.inner.lock().lease.key_may_last_at(now)
    }

    /// Returns the lock by which the lease is renewed.
    pub(crate) fn renewed_as(&self) -> Arc<dyn Primitive> {
        let inner = self.inner.lock();
        let reader = inner.extras.as_ref().and_then(|it| it.reader.clone());
        reader.unwrap_or_else(|| Arc::clone(&self.lock))
    }

    /// Returns a channel that receives one message on loss.
    pub(crate) fn listen(
        &self,
        token: FencingToken,
        now: Instant,
        fx: &mut Effects,
    ) -> Receiver<Lost> {
        let (sender, receiver) = bounded(1);
        self.with(fx, |inner| {
            if inner.token == token && inner.lease.status(now) != LeaseStatus::Released {
                inner.extras().listeners.push(sender);
            }
        });
        receiver
    }

    /// Passes the lease from the holder of `token` to a call that wants it on `terms`; returns the
    /// token of the next holder.
    pub(crate) fn pass_to(
        &self,
        token: FencingToken,
        terms: &LeaseTerms,
        has_renewed: bool,
        now: Instant,
        fx: &mut Effects,
    ) -> Result<FencingToken, NoHandoff> {
        let passed = self.with(fx, |inner| {
            if inner.token != token
                || inner.released_by_holder
                || self.replicas() != terms.replicas
                || !matches!(inner.lease.status(now), LeaseStatus::Held(_))
            {
                return Err(NoHandoff::Release);
            }
            let handoffs = inner.holder.handoffs.min(terms.handoffs);
            let lease = &inner.lease;
            let next = (self.run).step(lease, token, terms, handoffs, has_renewed, now)?;
            inner.end_holding(now);
            let next = if is_on(Mutant::TokenIsPassedOn) {
                token
            } else {
                next
            };
            inner.token = next;
            Ok((next, std::mem::take(&mut inner.holder)))
        });
        let (next, before) = passed?;
        fx.discard.push(Discard::Holder(before));
        Ok(next)
    }

    /// Returns the release that the engine must begin.
    pub(super) fn take_release(&self) -> Option<Arc<OperationCell>> {
        self.inner.lock().extras.as_mut()?.release.take()
    }

    /// Returns the listener of the lease, and its number there.
    #[cfg(sim)]
    pub(crate) fn part_of(&self) -> Option<Part> {
        let inner = self.inner.lock();
        inner.part.as_ref().map(|it| it.part().clone())
    }

    /// Returns how the whole is that the lease is a part of.
    pub(super) fn whole(&self, now: Instant, fx: &mut Effects) -> Whole {
        let listener = {
            let mut inner = self.inner.lock();
            let (is_open, is_taken) = (inner.lease.is_open(), inner.since.is_some());
            let Some(part) = inner.part.as_mut().filter(|_| is_open) else {
                return Whole::GoesOn;
            };
            if !is_taken && part.is_untaken(now) {
                return Whole::IsOver;
            }
            part.ask(now)
        };
        let Some(listener) = listener else {
            return Whole::IsOver;
        };
        let whole = listener.whole(now, fx);
        fx.discard(listener);
        if is_on(Mutant::OverIsRenewed) {
            return Whole::GoesOn;
        }
        whole
    }

    /// The lease is renewed each `every` from its next confirmation on.
    pub(super) fn renew_every(&self, every: Option<Duration>) {
        self.inner.lock().lease.renew_every(every);
    }

    /// The lease is renewed no more.
    pub(super) fn end_renewals(&self) {
        self.inner.lock().lease.end_renewals();
    }
}

impl MayOwnClosure for HeldLease {
    fn has_callbacks(&self) -> bool {
        self.inner.lock().holder.has_callbacks()
    }
}

impl Scheduled {
    pub(super) fn not_yet() -> Self {
        Self(AtomicU64::new(Instant::NEVER.as_nanos()))
    }

    pub(super) fn get(&self) -> Instant {
        Instant::from_nanos(self.0.load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, at: Instant) {
        self.0.store(at.as_nanos(), Ordering::Relaxed);
    }
}

impl std::fmt::Debug for HeldLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldLease")
            .field("name", &self.lock.names)
            .field("id", &self.id)
            .field("token", &self.run.first())
            .finish_non_exhaustive()
    }
}

impl LeaseInner {
    pub(super) fn extras(&mut self) -> &mut LeaseExtras {
        self.extras.get_or_insert_default()
    }

    fn disconnect_listeners(&mut self) {
        if let Some(extras) = &mut self.extras {
            extras.listeners.clear();
        }
    }

    /// Redis has given the lease to somebody else, and it leaves its entry.
    pub(super) fn evict(&mut self, now: Instant) {
        if !is_on(Mutant::EvictedIsNotLost) {
            self.lease.lose(Lost::Taken, now);
        }
        self.has_left = true;
    }

    /// Takes the lease that was granted or handed off under `token`. Returns false if it is lost,
    /// or if somebody else has released it.
    pub(super) fn take(&mut self, token: FencingToken, taker: Taker<'_>, now: Instant) -> bool {
        if self.token != token
            || self.since.is_some()
            || !matches!(self.lease.status(now), LeaseStatus::Held(_))
        {
            return false;
        }
        self.begin_holding(taker, now);
        true
    }

    /// A holding begins.
    pub(super) fn begin_holding(&mut self, taker: Taker<'_>, now: Instant) {
        self.lease.hand_off(now, taker.max_hold);
        self.since = Some(now);
        self.lingers = false;
        self.holder = taker.holder.clone();
    }

    /// Ends the lease of the holder of `token` without a release: returns the status before it, and
    /// the operations that are not sent any more. `None` if this holder has ended it before. It
    /// leaves its entry.
    pub(super) fn end_unreleased(&mut self, token: FencingToken, now: Instant) -> Option<Begun> {
        let began = self.begin_release(token, now)?;
        self.end_release(None);
        Some(began)
    }

    /// Ends the holding of `token`: the lease lingers if it `may_linger`, and its release begins
    /// otherwise. If the engine is to send that, the holder waits in the cell for its end.
    pub(super) fn end(
        &mut self,
        run: &HandoffRun,
        (token, may_linger): (FencingToken, bool),
        by_engine: bool,
        now: Instant,
    ) -> (HoldingEnd, Dropped) {
        let lingers = || self.begin_linger(run, token, now);
        if let Some((lasts, before)) = may_linger.then(lingers).flatten() {
            return (HoldingEnd::Lingers(lasts, before), None);
        }
        let Some((status, operations)) = self.begin_release(token, now) else {
            return (HoldingEnd::Over, None);
        };
        let end = match status {
            LeaseStatus::Released => HoldingEnd::Over,
            LeaseStatus::Lost(lost) => HoldingEnd::Lost(lost),
            _ if by_engine => {
                let cell = OperationCell::new();
                self.extras().release = Some(Arc::clone(&cell));
                HoldingEnd::Releases(Some(cell))
            }
            _ => HoldingEnd::Releases(None),
        };
        (end, operations)
    }

    /// Begins the release by the holder of `token`: returns the status before it, and the
    /// operations that are not sent any more. `None` if this holder has released it before.
    fn begin_release(&mut self, token: FencingToken, now: Instant) -> Option<Begun> {
        if self.token != token || std::mem::replace(&mut self.released_by_holder, true) {
            return None;
        }
        let status = self.lease.release(now);
        self.lingers = false;
        match status {
            LeaseStatus::Held(_) => {
                self.disconnect_listeners();
                self.releasing_since = Some(now);
            }
            // Its entry lets it go now.
            _ => self.has_left = true,
        }
        let extras = self.extras.as_mut();
        let operations = extras.map(|it| std::mem::take(&mut it.operations));
        Some((status, operations))
    }

    /// Ends the release that has begun: the lease leaves its entry. Returns false if none had.
    pub(super) fn end_release(&mut self, lost: Option<Lost>) -> bool {
        self.has_left = true;
        if self.releasing_since.take().is_none() {
            return false;
        }
        match lost {
            Some(lost) => self.lease.was_lost(lost),
            None => self.lease.released(),
        }
        true
    }

    /// A holding ends, and the lease goes on.
    pub(super) fn end_holding(&mut self, now: Instant) {
        self.lease.hand_off(now, Duration::MAX);
        self.disconnect_listeners();
        self.since = None;
    }
}
