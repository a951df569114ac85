//! The lease of a set: held only while each of its parts is valid, lost once and for good.
//!
//! ```text
//! Building ──all parts are valid──▶ Held ──begin_unlock──▶ Ending ──unlocked──▶ Over
//!    │                               │ a part is lost, a part or max_hold is over
//!    └──not all, or too late──▶ Over └──▶ Lost: told; the other parts are given up
//! ```

use std::ops::RangeFrom;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::effects::{AnyLease, Effects, MayOwnClosure, Told, WholeRenewed};
use crate::kernel::held::HeldLease;
use crate::kernel::holder::{Facts, Holder};
use crate::kernel::part::{Part, PartListener, PartState, Whole};
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::mutant::{Mutant, is_on};
use crate::set::names::SetNames;
use crate::sync::LastMutex;
use crate::token::FencingToken;

/// A lease of the kernel for one name, and the token that it was granted.
pub(crate) type PartLease = (Arc<HeldLease>, FencingToken);

#[derive(Debug)]
pub(crate) struct SetLease {
    names: Arc<SetNames>,
    inner: LastMutex<SetInner>,
}

struct SetInner {
    phase: Phase,
    parts: Box<[PartSlot]>,
    /// The end of `max_hold`.
    ends_at: Instant,
    /// Its holder has unlocked it, or keeps it.
    is_ended: bool,
    /// Since when it is held.
    since: Option<Instant>,
    holder: Holder,
    listeners: Vec<Sender<Lost>>,
    /// How often each part was renewed since it is held.
    renewals: u32,
}

/// The state of one part in its set.
#[derive(Clone, Debug)]
struct PartSlot {
    /// How often it was asked for: an earlier lease of the name changes nothing.
    turn: usize,
    /// `None` until it is granted.
    lease: Option<PartLease>,
    is: PartState,
    /// The ttl that its renewals set.
    ttl: Duration,
    /// How often it had been renewed when the set was held.
    before: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its call has not got all parts. Until then, unless its thread says that it goes on.
    Building(Instant),
    Held,
    /// Its holder releases it: a loss that is found now is the outcome of that.
    Ending,
    Lost(Lost),
    Over,
}

impl SetLease {
    /// Returns the lease of a set, which its call must have by `until`.
    pub(crate) fn new(names: &Arc<SetNames>, until: Instant) -> Arc<Self> {
        Arc::new(Self {
            names: Arc::clone(names),
            inner: LastMutex::new(SetInner {
                phase: Phase::Building(until),
                parts: vec![PartSlot::default(); names.names().len()].into(),
                ends_at: Instant::NEVER,
                is_ended: false,
                since: None,
                holder: Holder::default(),
                listeners: Vec::new(),
                renewals: 0,
            }),
        })
    }

    /// The name with this index is asked for. Returns whom its lease must tell.
    pub(super) fn part(self: &Arc<Self>, n: usize) -> Part {
        let listener: Weak<Self> = Arc::downgrade(self);
        let mut inner = self.inner.lock();
        let turn = inner.parts[n].turn + 1;
        inner.parts[n] = PartSlot {
            turn,
            ..PartSlot::default()
        };
        let number = turn * inner.parts.len() + n;
        Part { listener, number }
    }

    /// The name was granted. Its lease has reported before: it may be lost already.
    pub(super) fn add(&self, n: usize, part: PartLease) {
        self.inner.lock().parts[n].lease = Some(part);
    }

    /// The thread of its call goes on: it keeps its names until then.
    pub(super) fn build(&self, until: Instant) {
        let phase = &mut self.inner.lock().phase;
        // A set is held once.
        debug_assert!(matches!(phase, Phase::Building(_)));
        *phase = Phase::Building(until);
    }

    /// Its call ends without it.
    pub(super) fn end(&self) {
        self.inner.lock().phase = Phase::Over;
    }

    /// Returns the first of the names below `n` that is lost at `now`.
    pub(super) fn first_lost(&self, n: usize, now: Instant) -> Option<usize> {
        let inner = self.inner.lock();
        let mut parts = inner.parts[..n].iter();
        parts.position(|slot| slot.is.end() <= now)
    }

    /// Takes out the parts in a range of names.
    pub(super) fn take(&self, range: RangeFrom<usize>) -> Vec<PartLease> {
        let mut inner = self.inner.lock();
        let slots = inner.parts[range].iter_mut();
        slots.filter_map(|slot| slot.lease.take()).collect()
    }

    /// The set has all parts: it is held from now on, for at most `max_hold`. Returns false if one
    /// of them is not valid any more.
    pub(crate) fn hold(
        &self,
        holder: &Holder,
        max_hold: Duration,
        kernel: &Kernel,
        now: Instant,
        fx: &mut Effects,
    ) -> bool {
        let (ends_at, first) = {
            let mut inner = self.inner.lock();
            let is_building = matches!(inner.phase, Phase::Building(until) if now < until);
            let are_granted = inner.parts.iter().all(|slot| slot.lease.is_some());
            if !is_building || !are_granted || now >= inner.valid_until() {
                return false;
            }
            inner.phase = Phase::Held;
            inner.ends_at = now.after(max_hold);
            inner.since = Some(now);
            for slot in &mut inner.parts {
                slot.before = slot.renewals();
            }
            inner.holder = holder.clone();
            (
                inner.ends_at,
                inner.parts.first().and_then(|slot| slot.lease.clone()),
            )
        };
        if let Some((first, _)) = first.filter(|_| ends_at < Instant::NEVER) {
            // The parts have no `max_hold`: one of them asks when that of the set is over.
            kernel.look_at_part(&first, ends_at, now, fx);
        }
        true
    }

    pub(crate) fn names(&self) -> &Arc<SetNames> {
        &self.names
    }

    /// Returns the status at `now`. A set that has run out is lost, and one with a part in doubt is
    /// in doubt. `at_start` is what the wall clock showed at [`Instant::START`].
    pub(crate) fn status(
        &self,
        at_start: Duration,
        kernel: &Kernel,
        now: Instant,
        fx: &mut Effects,
    ) -> LeaseStatus {
        let status = self.status_by_clock(now, fx);
        let LeaseStatus::Held(_) = status else {
            return status;
        };
        let mut is_in_doubt = false;
        for (lease, token) in self.parts() {
            let of_part = kernel.status_of(&lease, token, at_start, now, fx);
            is_in_doubt |= of_part == LeaseStatus::InDoubt;
        }
        if is_in_doubt {
            LeaseStatus::InDoubt
        } else {
            status
        }
    }

    /// Returns the status at `now` by the clock that counts.
    fn status_by_clock(&self, now: Instant, fx: &mut Effects) -> LeaseStatus {
        let mut inner = self.inner.lock();
        inner.look(&self.names, now, fx);
        match inner.phase {
            Phase::Held => LeaseStatus::Held(now.until(inner.end())),
            Phase::Lost(lost) => LeaseStatus::Lost(lost),
            Phase::Building(_) | Phase::Ending | Phase::Over => LeaseStatus::Released,
        }
    }

    /// Returns for how long the set is certainly held at `now`; `None` if it is not.
    #[cfg(sim)]
    pub(crate) fn remaining(&self, now: Instant) -> Option<Duration> {
        let inner = self.inner.lock();
        let is_held = inner.phase == Phase::Held && now < inner.end();
        is_held.then(|| now.until(inner.end()))
    }

    /// Returns since when it is held; `None` if it never was.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.inner.lock().since
    }

    /// Returns the facts that are recorded at the end of the holding.
    pub(crate) fn facts(&self) -> Facts {
        let ttl_ms = (self.parts().first()).map_or(0, |(lease, _)| lease.ttl_ms());
        let inner = self.inner.lock();
        Facts {
            since: inner.since,
            trace_id: inner.holder.trace_id().cloned(),
            ttl_ms,
        }
    }

    /// Returns whether the client renews it.
    pub(crate) fn is_renewed(&self) -> bool {
        let parts = self.parts();
        parts.first().is_some_and(|(lease, _)| lease.is_renewed())
    }

    /// Returns for how long a key may exist at `now` if no release arrives.
    pub(crate) fn key_may_last_at(&self, now: Instant) -> Duration {
        let parts = self.parts();
        let last = parts.iter().map(|(lease, _)| lease.key_may_last_at(now));
        last.max().unwrap_or_default()
    }

    /// Returns a channel that receives one message on loss.
    pub(crate) fn listen(&self, now: Instant, fx: &mut Effects) -> Receiver<Lost> {
        let (sender, receiver) = bounded(1);
        let mut inner = self.inner.lock();
        inner.look(&self.names, now, fx);
        match inner.phase {
            // Fails only if the receiver was dropped: the channel has room for one message.
            Phase::Lost(lost) => _ = sender.try_send(lost),
            Phase::Held => inner.listeners.push(sender),
            Phase::Building(_) | Phase::Ending | Phase::Over => {}
        }
        receiver
    }

    /// Returns the holder ids of the parts that were granted, in the order of the names.
    pub(crate) fn holder_ids(&self) -> Vec<HolderId> {
        let inner = self.inner.lock();
        let granted = inner.parts.iter().filter_map(|slot| slot.lease.as_ref());
        granted.map(|(lease, _)| lease.id.clone()).collect()
    }

    /// Returns the tokens of the parts that were granted, in the order of the names.
    pub(crate) fn tokens(&self) -> Vec<FencingToken> {
        let inner = self.inner.lock();
        let granted = inner.parts.iter().filter_map(|slot| slot.lease.as_ref());
        granted.map(|(_, token)| *token).collect()
    }

    /// Its holder ends it: a loss that is found from now on is the outcome of that. Returns the
    /// status before; `None` if it was ended before.
    pub(super) fn begin_end(&self, now: Instant, fx: &mut Effects) -> Option<LeaseStatus> {
        let mut inner = self.inner.lock();
        inner.look(&self.names, now, fx);
        // A loss that ended it is an outcome once.
        if std::mem::replace(&mut inner.is_ended, true) {
            return None;
        }
        match inner.phase {
            Phase::Held => {
                inner.phase = Phase::Ending;
                if !is_on(Mutant::EndingIsTold) {
                    inner.listeners.clear();
                }
                Some(LeaseStatus::Held(now.until(inner.end())))
            }
            Phase::Lost(lost) => Some(LeaseStatus::Lost(lost)),
            Phase::Building(_) | Phase::Ending | Phase::Over => None,
        }
    }

    /// Its holder has ended it.
    pub(super) fn ended(&self, lost: Option<Lost>) {
        self.inner.lock().phase = lost.map_or(Phase::Over, Phase::Lost);
    }

    /// Returns whether it is held at `now`.
    pub(super) fn is_held(&self, now: Instant, fx: &mut Effects) -> bool {
        matches!(self.status_by_clock(now, fx), LeaseStatus::Held(_))
    }

    /// Returns the loss of the first name that is lost.
    pub(super) fn first_loss(&self) -> Option<Lost> {
        let inner = self.inner.lock();
        inner.parts.iter().find_map(|slot| match slot.is {
            PartState::Lost(lost) => Some(lost),
            PartState::Valid { .. } => None,
        })
    }

    pub(super) fn give_up_parts(&self, kernel: &Kernel, now: Instant, fx: &mut Effects) {
        for (lease, _) in self.parts() {
            kernel.give_up_part(&lease, now, fx);
        }
    }

    pub(super) fn parts(&self) -> Vec<PartLease> {
        let inner = self.inner.lock();
        let slots = inner.parts.iter();
        slots.filter_map(|slot| slot.lease.clone()).collect()
    }
}

impl PartListener for SetLease {
    fn part_is(&self, number: usize, is: PartState, fx: &mut Effects) {
        let mut inner = self.inner.lock();
        let (turn, number) = (number / inner.parts.len(), number % inner.parts.len());
        if inner.parts[number].turn != turn {
            return;
        }
        let is_building = matches!(inner.phase, Phase::Building(_));
        let PartState::Lost(lost) = is else {
            inner.parts[number].note(is);
            return inner.look_at_renewals(is, &self.names, fx);
        };
        if is_building && is_on(Mutant::BuildingForgetsALoss) {
            return;
        }
        // If nobody has looked for so long, the set has ended before the part.
        let is_after_end = lost == Lost::Expired && inner.ends_at <= inner.valid_until();
        inner.parts[number].is = is;
        match inner.phase {
            // Its parts stay: the critical section may still run.
            Phase::Held if is_after_end => inner.lose(Lost::MaxHold, &self.names, fx),
            Phase::Held => inner.lose_parts(lost, &self.names, fx),
            Phase::Ending if is_on(Mutant::EndingIsTold) => {
                inner.lose_parts(lost, &self.names, fx);
            }
            Phase::Lost(_) if is_on(Mutant::EachPartIsTold) => inner.lose(lost, &self.names, fx),
            Phase::Building(_) | Phase::Ending | Phase::Lost(_) | Phase::Over => {}
        }
    }

    fn whole(&self, now: Instant, fx: &mut Effects) -> Whole {
        let mut inner = self.inner.lock();
        inner.look(&self.names, now, fx);
        match inner.phase {
            Phase::Building(until) if now < until => Whole::GoesOn,
            Phase::Held | Phase::Ending => Whole::GoesOn,
            Phase::Lost(Lost::MaxHold) if !is_on(Mutant::MaxHoldReleasesParts) => {
                Whole::MayStillRun
            }
            Phase::Building(_) | Phase::Lost(_) | Phase::Over => Whole::IsOver,
        }
    }
}

impl MayOwnClosure for SetLease {
    fn has_callbacks(&self) -> bool {
        self.inner.lock().holder.has_callbacks()
    }
}

impl PartSlot {
    fn note(&mut self, is: PartState) {
        if let PartState::Valid { ttl, .. } = is {
            self.ttl = ttl;
        }
        self.is = is;
    }

    fn renewals(&self) -> u32 {
        match self.is {
            PartState::Valid { renewals, .. } => renewals,
            PartState::Lost(_) => 0,
        }
    }
}

impl Default for PartSlot {
    fn default() -> Self {
        Self {
            turn: 0,
            lease: None,
            is: PartState::UNKNOWN,
            ttl: Duration::ZERO,
            before: 0,
        }
    }
}

impl SetInner {
    /// Returns until when all parts are valid; `START` if one of them is lost.
    fn valid_until(&self) -> Instant {
        let parts = if is_on(Mutant::EndIsOfTheFirstPart) {
            &self.parts[..1]
        } else {
            &self.parts
        };
        let ends = parts.iter().map(|slot| slot.is.end());
        ends.fold(Instant::NEVER, Instant::min)
    }

    fn end(&self) -> Instant {
        self.valid_until().min(self.ends_at)
    }

    /// A held set that has run out at `now` is lost.
    fn look(&mut self, names: &SetNames, now: Instant, fx: &mut Effects) {
        if self.phase == Phase::Held && now >= self.end() {
            let lost = if self.ends_at <= self.valid_until() {
                Lost::MaxHold
            } else {
                Lost::Expired
            };
            self.lose(lost, names, fx);
        }
    }

    /// A part has changed. If it was the last one to be renewed, the set was.
    fn look_at_renewals(&mut self, is: PartState, names: &SetNames, fx: &mut Effects) {
        let PartState::Valid { took, .. } = is else {
            return;
        };
        let Some(on_renew) = self.holder.on_renew().filter(|_| self.phase == Phase::Held) else {
            return;
        };
        let counts = self.parts.iter().map(|slot| slot.renewals() - slot.before);
        let renewals = if is_on(Mutant::EachPartIsRenewed) {
            counts.sum()
        } else {
            counts.min().unwrap_or_default()
        };
        if renewals <= self.renewals {
            return;
        }
        self.renewals = renewals;
        if let Some((first, token)) = &self.parts[0].lease {
            fx.wholes_renewed.push(WholeRenewed {
                names: Arc::clone(names.names()),
                id: first.id.clone(),
                token: *token,
                until: self.end(),
                took,
                on_renew: Arc::clone(on_renew),
            });
        }
    }

    /// A part is lost, and the set with it: the other parts are given up.
    fn lose_parts(&mut self, lost: Lost, names: &SetNames, fx: &mut Effects) {
        self.lose(lost, names, fx);
        let granted = self.parts.iter().filter_map(|slot| slot.lease.as_ref());
        let parts = granted.map(|(lease, _)| -> AnyLease { lease.clone() });
        fx.over.extend(parts);
    }

    /// The set is lost. Its holder learns that at once: a stopped thread cannot delay it.
    fn lose(&mut self, lost: Lost, names: &SetNames, fx: &mut Effects) {
        self.phase = Phase::Lost(lost);
        for listener in self.listeners.drain(..) {
            // Fails only if the receiver was dropped.
            let _ = listener.try_send(lost);
        }
        let Some((first, token)) = &self.parts[0].lease else {
            return;
        };
        fx.lost.push(Told {
            lock: Arc::clone(&first.lock),
            whole: Some(Arc::clone(names.names())),
            id: first.id.clone(),
            token: *token,
            lost,
            ttl_ms: self.parts[0].ttl.as_millis() as u64,
            trace_id: self.holder.trace_id().cloned(),
            on_lost: self.holder.on_lost().cloned(),
        });
    }
}

impl std::fmt::Debug for SetInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SetInner")
            .field("phase", &self.phase)
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

#[cfg(sim)]
mod look;
