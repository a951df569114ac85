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
//! While the lease is held, at most one of its commands is in flight. The engine sends all of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::clock::Instant;
use crate::config::{LeaseTerms, OnLost, OnRenew};
use crate::holder_id::HolderId;
use crate::kernel::answers::unexpected;
use crate::kernel::command::{Command, What};
use crate::kernel::context::Context;
use crate::kernel::effects::{Confirmed, Discard, Effects, Renewal, Told};
use crate::kernel::fault::Fault;
use crate::kernel::lease::{
    Due, HandoffRun, LeaseState, LeaseStatus, LeaseWork, NoHandoff, Operation, OperationCell,
    RenewalRequest, Wanted, WorkKind,
};
use crate::kernel::mutant::{Mutant, is_on};
use crate::kernel::round::AtServers;
use crate::kernel::schedule::{Item, ItemKey};
use crate::kernel::waiter::Failure;
use crate::lost::Lost;
use crate::name::Name;
use crate::protocol::answer::{Answer, KeyState};
use crate::protocol::one_or_many::OneOrMany;
use crate::protocol::primitive::Primitive;
use crate::replicas::Replicas;
use crate::sync::Mutex;
use crate::token::FencingToken;

pub(crate) struct HeldLease {
    pub(crate) lock: Arc<dyn Primitive>,
    pub(crate) id: HolderId,
    /// The granted tokens: one for each name, or one for all names.
    pub(crate) tokens: OneOrMany<FencingToken>,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) run: HandoffRun,
    /// What the acquiring command has taken at each server of a quorum.
    pub(crate) at: Option<Arc<AtServers>>,
    /// Distinguishes leases in the schedule.
    pub(crate) serial: u64,
    pub(super) inner: Mutex<Inner>,
}

/// What a holder brings to a lease: it is installed when its thread takes the lease.
#[derive(Clone, Default)]
pub(crate) struct Holder {
    /// The most hand-offs in a row that this holder allows.
    pub(crate) handoffs: u32,
    pub(crate) trace_id: Option<Arc<str>>,
    /// The thread that acquires it, for warnings in debug builds.
    pub(crate) thread: Option<ThreadId>,
    /// Its losses are told to nobody: it is a part of a set that is not complete.
    pub(crate) is_silent: bool,
    pub(crate) on_lost: Option<Arc<OnLost>>,
    pub(crate) on_renew: Option<Arc<OnRenew>>,
}

pub(super) struct Inner {
    pub(super) lease: LeaseState,
    /// The token of the current holder: identifies it among those of the same lease.
    pub(super) token: FencingToken,
    pub(super) holder: Holder,
    /// When the current holder took the lease; `None` until then.
    pub(super) since: Option<Instant>,
    listeners: Vec<Sender<Lost>>,
    announced: bool,
    /// The holder has released the lease, whether it was held or lost.
    pub(super) released_by_holder: bool,
    operations: VecDeque<Operation>,
    /// The readers' side of the lock, after a downgrade: renewals repeat it.
    reader: Option<Arc<dyn Primitive>>,
    /// When the release was sent, until its end is known.
    pub(super) releasing_since: Option<Instant>,
    /// The release that the engine must begin, over a quorum.
    release: Option<Arc<OperationCell>>,
    /// It has left its entry: no call waits for its end any more.
    has_left: bool,
}

impl HeldLease {
    pub(crate) fn new(
        lock: &Arc<dyn Primitive>,
        id: HolderId,
        lease: LeaseState,
        run: HandoffRun,
        replicas: Option<Replicas>,
        serial: u64,
    ) -> Self {
        let token = run.first();
        Self {
            lock: Arc::clone(lock),
            id,
            tokens: OneOrMany::One(token),
            replicas,
            run,
            at: None,
            serial,
            inner: Mutex::new(Inner {
                lease,
                token,
                holder: Holder::default(),
                since: None,
                listeners: Vec::new(),
                announced: false,
                released_by_holder: false,
                operations: VecDeque::new(),
                reader: None,
                releasing_since: None,
                release: None,
                has_left: false,
            }),
        }
    }

    /// The lease of a set has a token for each name.
    pub(super) fn of_set(self, tokens: Option<Vec<FencingToken>>) -> Self {
        match tokens.filter(|tokens| tokens.len() > 1) {
            Some(tokens) => Self {
                tokens: tokens.into_iter().collect(),
                ..self
            },
            None => self,
        }
    }

    /// Returns whether one server has all its keys, in one slot.
    fn has_one_place(&self) -> bool {
        self.at.is_none() && self.lock.slots().is_empty()
    }

    pub(super) fn at(self, at: Option<Arc<AtServers>>) -> Self {
        Self { at, ..self }
    }

    /// Runs `act` on the state. If the lease is lost afterwards, tells the listeners, still under
    /// the lock: a stopped thread cannot delay that. The callback is an effect.
    fn with<T>(self: &Arc<Self>, fx: &mut Effects, act: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.inner.lock();
        let result = act(&mut inner);
        if let Some(lost) = inner.lease.lost() {
            for listener in inner.listeners.drain(..) {
                // Fails only if the receiver was dropped: each channel has room for one message.
                let _ = listener.try_send(lost);
            }
            for operation in inner.operations.drain(..) {
                fx.operation_ended(&operation.cell, Ok(()));
            }
            let is_told = inner.since.is_some() && !inner.holder.is_silent;
            if is_told && !std::mem::replace(&mut inner.announced, true) {
                fx.lost.push(Told {
                    lease: Arc::clone(self),
                    lost,
                    token: inner.token,
                    trace_id: inner.holder.trace_id.clone(),
                    on_lost: inner.holder.on_lost.clone(),
                });
            }
        }
        result
    }

    /// Returns the status at `now` for the holder of `token`; an earlier holder has released it.
    pub(crate) fn status_for(
        self: &Arc<Self>,
        token: FencingToken,
        now: Instant,
        fx: &mut Effects,
    ) -> LeaseStatus {
        self.with(fx, |inner| match inner.token == token {
            true => inner.lease.status(now),
            false => LeaseStatus::Released,
        })
    }

    pub(crate) fn status(self: &Arc<Self>, now: Instant, fx: &mut Effects) -> LeaseStatus {
        self.with(fx, |inner| inner.lease.status(now))
    }

    /// Returns whether the key belongs to this lease at `now`, as far as is known.
    pub(crate) fn covers(&self, now: Instant) -> bool {
        self.inner.lock().lease.covers(now)
    }

    /// Returns whether no release has begun and no loss was noticed.
    pub(super) fn is_open(&self) -> bool {
        self.inner.lock().lease.is_open()
    }

    /// Returns whether a guard reports at `now` that it holds the lease.
    #[cfg(sim)]
    pub(super) fn is_held_at(&self, now: Instant) -> bool {
        let inner = self.inner.lock();
        inner.lease.is_open() && inner.lease.covers(now)
    }

    /// Returns for how long the lease of a holder has been over at `now`.
    #[cfg(sim)]
    pub(super) fn overdue(&self, now: Instant) -> Duration {
        let inner = self.inner.lock();
        match inner.since {
            Some(_) => inner.lease.overdue(now),
            None => Duration::ZERO,
        }
    }

    pub(crate) fn token(&self) -> FencingToken {
        self.inner.lock().token
    }

    /// Returns the token of `name` for the holder of `token`; `None` if the lease does not include
    /// it.
    pub(crate) fn token_of(&self, name: &Name, token: FencingToken) -> Option<FencingToken> {
        let n = self.lock.names.iter().position(|held| held == name)?;
        // Only a lease of one name is handed off.
        Some(match &*self.tokens {
            [_] => token,
            each => each.get(n).copied().unwrap_or(token),
        })
    }

    /// Returns when the current holder took the lease; `None` until then.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.inner.lock().since
    }

    pub(crate) fn trace_id(&self) -> Option<Arc<str>> {
        self.inner.lock().holder.trace_id.clone()
    }

    pub(crate) fn on_renew(&self) -> Option<Arc<OnRenew>> {
        self.inner.lock().holder.on_renew.clone()
    }

    pub(super) fn thread(&self) -> Option<ThreadId> {
        self.inner.lock().holder.thread
    }

    /// Returns whether the lease may own a user's closure.
    pub(crate) fn has_callbacks(&self) -> bool {
        let holder = &self.inner.lock().holder;
        holder.on_lost.is_some() || holder.on_renew.is_some()
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
        let reader = self.inner.lock().reader.clone();
        reader.unwrap_or_else(|| Arc::clone(&self.lock))
    }

    /// Returns a channel that receives one message on loss.
    pub(crate) fn listen(
        self: &Arc<Self>,
        token: FencingToken,
        now: Instant,
        fx: &mut Effects,
    ) -> Receiver<Lost> {
        let (sender, receiver) = bounded(1);
        self.with(fx, |inner| {
            if inner.token == token && inner.lease.status(now) != LeaseStatus::Released {
                inner.listeners.push(sender);
            }
        });
        receiver
    }

    /// Ends the lease as lost, unless it has ended or is being released.
    pub(crate) fn lose(self: &Arc<Self>, lost: Lost, now: Instant, fx: &mut Effects) {
        self.with(fx, |inner| inner.lease.lose(lost, now));
    }

    /// Records that a release of the lock was announced: a renewal checks the lease at once.
    pub(crate) fn suspect(self: &Arc<Self>, now: Instant, fx: &mut Effects) {
        self.with(fx, |inner| inner.lease.suspect(now));
    }

    /// Takes the lease that was granted or handed off under `token`. Returns false if it is lost,
    /// or if somebody else has released it.
    pub(crate) fn take(
        self: &Arc<Self>,
        token: FencingToken,
        holder: &Holder,
        now: Instant,
        max_hold: Duration,
        fx: &mut Effects,
    ) -> bool {
        self.with(fx, |inner| {
            if inner.token != token
                || inner.since.is_some()
                || !matches!(inner.lease.status(now), LeaseStatus::Held(_))
            {
                return false;
            }
            inner.lease.hand_off(now, max_hold);
            inner.since = Some(now);
            inner.holder = holder.clone();
            true
        })
    }

    /// Passes the lease from the holder of `token` to a call that wants it on `terms`; returns the
    /// token of the next holder.
    pub(crate) fn pass_to(
        self: &Arc<Self>,
        token: FencingToken,
        terms: &LeaseTerms,
        has_renewed: bool,
        now: Instant,
        fx: &mut Effects,
    ) -> Result<FencingToken, NoHandoff> {
        let passed = self.with(fx, |inner| {
            if inner.token != token
                || inner.released_by_holder
                || self.replicas != terms.replicas
                || !matches!(inner.lease.status(now), LeaseStatus::Held(_))
            {
                return Err(NoHandoff::Release);
            }
            let handoffs = inner.holder.handoffs.min(terms.handoffs);
            let lease = &mut inner.lease;
            let next = (self.run).step(lease, token, terms, handoffs, has_renewed, now)?;
            lease.hand_off(now, Duration::MAX);
            // Disconnects the listeners' channels.
            inner.listeners.clear();
            let next = if is_on(Mutant::TokenIsPassedOn) {
                token
            } else {
                next
            };
            inner.token = next;
            inner.since = None;
            Ok((next, std::mem::take(&mut inner.holder)))
        });
        let (next, before) = passed?;
        fx.discard.push(Discard::Holder(before));
        Ok(next)
    }

    /// Begins the release by the holder of `token`, and returns the status before it; `None` if
    /// this holder has released the lease before.
    pub(crate) fn begin_release(
        self: &Arc<Self>,
        token: FencingToken,
        now: Instant,
        fx: &mut Effects,
    ) -> Option<LeaseStatus> {
        self.with(fx, |inner| {
            if inner.token != token || std::mem::replace(&mut inner.released_by_holder, true) {
                return None;
            }
            let status = inner.lease.release(now);
            if let LeaseStatus::Held(_) = status {
                inner.listeners.clear();
                inner.releasing_since = Some(now);
            }
            Some(status)
        })
    }

    /// Leaves the release, which has begun, to a round of the engine. The holder waits for its end
    /// in the cell.
    pub(super) fn release_by_round(&self) -> Arc<OperationCell> {
        let cell = OperationCell::new();
        self.inner.lock().release = Some(Arc::clone(&cell));
        cell
    }

    /// Returns the release that a round must begin.
    pub(super) fn take_release(&self) -> Option<Arc<OperationCell>> {
        self.inner.lock().release.take()
    }

    /// A change of ttl got no reply from a server of a quorum: it may run there later.
    pub(super) fn limit(&self, ttl: Duration) {
        self.inner.lock().lease.limit(ttl);
    }

    /// Ends the release. Returns false if that was known before: a late end changes nothing.
    pub(crate) fn end_release(self: &Arc<Self>, lost: Option<Lost>, fx: &mut Effects) -> bool {
        self.with(fx, |inner| {
            if inner.releasing_since.take().is_none() {
                return false;
            }
            match lost {
                Some(lost) => inner.lease.was_lost(lost),
                None => inner.lease.released(),
            }
            true
        })
    }

    /// Adds an operation of the holder of `token`. Returns false if it holds the lease no more.
    pub(crate) fn want(
        self: &Arc<Self>,
        token: FencingToken,
        operation: Operation,
        now: Instant,
        fx: &mut Effects,
    ) -> bool {
        self.with(fx, |inner| {
            let is_held = matches!(inner.lease.status(now), LeaseStatus::Held(_));
            if inner.token != token || inner.released_by_holder || !is_held {
                return false;
            }
            if let Wanted::Downgrade(reader) = &operation.what {
                // From before the command is sent: if no reply arrives, it may run later.
                inner.reader = Some(Arc::clone(reader));
            }
            inner.operations.push_back(operation);
            true
        })
    }

    /// Takes back an operation whose holder waits no longer, unless its command was sent.
    pub(crate) fn cancel(&self, cell: &Arc<OperationCell>) {
        let mut inner = self.inner.lock();
        (inner.operations).retain(|operation| !Arc::ptr_eq(&operation.cell, cell));
    }

    /// Begins the holder's next operation, or a renewal that is due; at most one command is in
    /// flight.
    pub(crate) fn begin_work(
        self: &Arc<Self>,
        now: Instant,
        fx: &mut Effects,
    ) -> Option<(Command, LeaseWork)> {
        let (what, kind, cell) = self.with(fx, |inner| {
            let Some(operation) = inner.operations.front() else {
                let request = inner.lease.begin_due_renewal(now)?;
                let what = self.renewal(request, false);
                return Some((what, WorkKind::Renewal(request), None));
            };
            let (what, kind) = match operation.what {
                Wanted::Renew => {
                    let request = inner.lease.begin_full_renewal(now)?;
                    (self.renewal(request, false), WorkKind::Renewal(request))
                }
                Wanted::Downgrade(_) => {
                    let request = inner.lease.begin_full_renewal(now)?;
                    let (id, ttl) = (self.id.clone(), request.ttl);
                    (What::Downgrade { id, ttl }, WorkKind::Renewal(request))
                }
                Wanted::SetTtl(ttl) => {
                    let before = inner.lease.set_ttl(now, ttl)?;
                    let renews = RenewalRequest { ttl, renews: true };
                    (self.renewal(renews, true), WorkKind::SetTtl(ttl, before))
                }
            };
            let cell = inner.operations.pop_front()?.cell;
            Some((what, kind, Some(cell)))
        })?;
        let command = Command::new(&self.renewed_as(), what).acknowledged_by(self.replicas);
        let work = LeaseWork {
            lease: Arc::clone(self),
            kind,
            cell,
        };
        Some((command, work))
    }

    fn renewal(&self, request: RenewalRequest, may_shorten: bool) -> What {
        What::Renew {
            id: self.id.clone(),
            ttl: request.ttl,
            may_shorten,
        }
    }

    /// Applies the end of a command that `begin_work` returned. `is_final`: the server that
    /// confirmed it has the only copy of the key.
    pub(crate) fn answered(
        self: &Arc<Self>,
        work: &LeaseWork,
        end: Result<Answer, Fault>,
        [sent, now]: [Instant; 2],
        is_final: bool,
        fx: &mut Effects,
    ) {
        let found = end.as_ref().ok().and_then(Answer::key_state);
        let (lag, remaining) = self.with(fx, |inner| {
            let lease = &mut inner.lease;
            let lag = lease.lag(now);
            // A lease that expired before the reply arrived is lost as expired.
            lease.status(now);
            match (work.kind, found) {
                (WorkKind::Renewal(request), Some(KeyState::Ours)) => {
                    let from_reply = is_on(Mutant::RenewalCountsFromReply);
                    let sent = if from_reply { now } else { sent };
                    lease.confirmed(sent, now, request);
                }
                (WorkKind::Renewal(_), _) => lease.unconfirmed(now),
                (WorkKind::SetTtl(ttl, _), Some(KeyState::Ours)) => {
                    lease.ttl_set(sent, now, ttl, is_final);
                }
                (WorkKind::SetTtl(ttl, before), _) => match &end {
                    // A minority of a quorum, or a part of a set, may have run it.
                    Err(fault) if !fault.may_have_run() && self.has_one_place() => {
                        lease.ttl_not_set(now, before);
                    }
                    _ if is_on(Mutant::SetTtlIsCertain) => lease.ttl_set(sent, now, ttl, is_final),
                    _ => lease.unanswered(now, ttl),
                },
            }
            match found {
                Some(KeyState::Gone) => lease.lose(Lost::Deleted, now),
                Some(KeyState::Foreign) => lease.lose(Lost::Taken, now),
                Some(KeyState::Ours) | None => {}
            }
            let remaining = match lease.status(now) {
                LeaseStatus::Held(remaining) => Some(remaining),
                LeaseStatus::Lost(_) | LeaseStatus::Released => None,
            };
            (lag, remaining)
        });
        let (counts, is_renewal) = match work.kind {
            WorkKind::Renewal(request) => (request.renews, true),
            WorkKind::SetTtl(..) => (true, false),
        };
        let outcome = match (found, &end) {
            (Some(KeyState::Ours), _) => Some(Ok(Confirmed {
                lag,
                remaining: remaining.filter(|_| is_renewal),
                took: sent.until(now),
            })),
            (Some(KeyState::Gone | KeyState::Foreign), _) => None,
            (None, Err(fault)) => Some(Err(fault.clone())),
            (None, Ok(_)) => Some(Err(Fault::Unknown(unexpected()))),
        };
        if let Some(end) = outcome.filter(|_| counts) {
            let lease = Arc::clone(self);
            fx.renewed.push(Renewal { lease, end });
        }
        if let Some(cell) = &work.cell {
            fx.operation_ended(cell, result(found, end));
        }
    }

    /// Returns whether the thread that releases the lease stands still.
    pub(super) fn is_release_overdue(&self, now: Instant, command_timeout: Duration) -> bool {
        let since = self.inner.lock().releasing_since;
        let since = since.filter(|_| !is_on(Mutant::StoppedReleaseBlocks));
        since.is_some_and(|since| now >= since.after(command_timeout).after(GRACE))
    }

    /// The lease has left its entry: the engine looks for its loss no more.
    pub(super) fn leave(self: &Arc<Self>, cx: &mut Context<'_>) {
        self.inner.lock().has_left = true;
        self.rearm(cx);
    }

    /// Schedules what the lease needs next, under its lock: two threads cannot do so in the wrong
    /// order.
    pub(super) fn rearm(self: &Arc<Self>, cx: &mut Context<'_>) {
        let inner = self.inner.lock();
        let key = ItemKey::Lease(self.serial);
        match inner.due(cx.now, cx.kernel.limits.command_timeout) {
            Some(bounds) => cx.put(key, Item::Lease(Arc::clone(self)), bounds),
            None => cx.unschedule(&key),
        }
    }
}

impl Inner {
    /// Returns when the engine must look at the lease, and until when it may sleep if it sleeps.
    /// `None` if never again.
    fn due(&self, now: Instant, command_timeout: Duration) -> Option<[Instant; 2]> {
        if self.release.is_some() {
            return Some([Instant::START, Instant::START]);
        }
        if let Some(since) = self.releasing_since {
            if is_on(Mutant::StoppedReleaseBlocks) {
                return None;
            }
            let at = since.after(command_timeout).after(GRACE);
            return Some([at, at]);
        }
        if is_on(Mutant::LossesAreLate) && self.lease.is_busy() {
            return None;
        }
        match self.lease.due(now) {
            // An operation may have found the loss: the calls that wait for it still sleep.
            Due::Nothing if self.lease.lost().is_some() && !self.has_left => Some([now, now]),
            Due::Nothing => None,
            Due::Renewal => Some([now, now]),
            // In flight, no operation can begin: the end of the command looks again.
            Due::At { best, latest } => match self.operations.is_empty() || self.lease.is_busy() {
                true => Some([best, latest]),
                false => Some([now, now]),
            },
        }
    }
}

/// How much later than its caller the engine ends a caller's command: the caller's own timeout
/// usually comes first.
pub(super) const GRACE: Duration = Duration::from_millis(50);

fn result(found: Option<KeyState>, end: Result<Answer, Fault>) -> Result<(), Failure> {
    match (found, end) {
        // A loss is reported by the status.
        (Some(_), _) => Ok(()),
        (None, Ok(_)) => Err(Failure::Unreachable {
            since: None,
            cause: None,
        }),
        (None, Err(Fault::NotRun(cause) | Fault::Unknown(cause))) => Err(Failure::Unreachable {
            since: None,
            cause: Some(cause),
        }),
        (None, Err(Fault::NotReplicated(error) | Fault::Rejected(error))) => {
            Err(Failure::Rejected(error))
        }
        (None, Err(Fault::Open(open))) => Err(Failure::Rejected((*open).into())),
    }
}

impl std::fmt::Debug for HeldLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldLease")
            .field("name", &self.lock.names)
            .field("id", &self.id)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}
