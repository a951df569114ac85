//! A lease that is one of several parts: all are needed, and what they make up is lost with the
//! first of them. The kernel knows no more of that than the terms of a call for a part, and whom
//! its lease tells.
//!
//! ```text
//! a call for a part ──granted──▶ lease ──valid until then, lost──▶ listener
//!    └──anything else: it ends        └──before a renewal: does it go on?──▶ listener
//! ```

use std::fmt::Debug;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::context::Context;
use crate::kernel::effects::{Discard, Effects};
use crate::kernel::held::HeldLease;
use crate::kernel::lease::{LeaseState, OperationCell, RenewalRequest, Wanted};
use crate::kernel::unlock::named;
use crate::kernel::waiter::Refused;
use crate::lost::Lost;
use crate::mutant::{Mutant, is_on};
use crate::parker::Parker;
use crate::protocol::primitive::Primitive;
use crate::protocol::refusal::RefusedName;
use crate::token::FencingToken;

/// How long a part waits for the thread of its call to take it.
const TAKEN_WITHIN: Duration = Duration::from_millis(50);

/// The terms of a call for a part, besides those of a lease. The first command of a call that does
/// not wait ends it.
#[derive(Clone, Debug)]
pub(crate) struct PartTerms {
    pub(crate) part: Part,
    /// The call before, by its lock and its holder id: the part is granted only while it holds.
    pub(crate) after: Option<(Arc<dyn Primitive>, HolderId)>,
    /// The parker of a thread that waits for several parts.
    pub(crate) signal: Option<Arc<Parker>>,
    /// The whole waits: it asks Redis although another call of this client waits for the lock.
    pub(crate) competes: bool,
}

/// The listener that the lease of a part informs, and the number of the part there.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) listener: Weak<dyn PartListener>,
    pub(crate) number: usize,
}

/// The state of a part, as its lease reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartState {
    Valid {
        until: Instant,
        /// How often it was renewed.
        renewals: u32,
        /// How long the last renewal took.
        took: Duration,
    },
    Lost(Lost),
}

impl PartState {
    /// The state before the first report.
    pub(crate) const UNKNOWN: Self = Self::Valid {
        until: Instant::START,
        renewals: 0,
        took: Duration::ZERO,
    };

    /// Returns until when the part is valid; `START` if it is lost.
    pub(crate) fn end(self) -> Instant {
        match self {
            Self::Valid { until, .. } => until,
            Self::Lost(_) => Instant::START,
        }
    }
}

/// The state of the whole that the parts make up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    GoesOn,
    /// Its parts are released.
    IsOver,
    /// Its time is over, but the critical section may still run: its parts stay until they are
    /// released or expire.
    MayStillRun,
}

pub(crate) trait PartListener: Debug + Send + Sync {
    /// A part has changed. Called under the lock of its lease. Returns true if this ends the whole.
    fn part_is(&self, number: usize, is: PartState, fx: &mut Effects) -> bool;

    /// Returns how the whole is at `now`. A lease asks before its renewal, and at `look_at`.
    fn whole(&self, now: Instant, fx: &mut Effects) -> Whole;

    /// Returns whether it may own a user's closure.
    fn has_callbacks(&self) -> bool;

    /// Gives up the parts of a whole that has ended. Called without any lock, by the thread that
    /// has found the end.
    fn give_up(&self, kernel: &Kernel, now: Instant, fx: &mut Effects);
}

/// The part of a lease.
#[derive(Debug)]
pub(super) struct PartOfLease {
    part: Part,
    /// The state that the listener knows.
    told: PartState,
    renewals: u32,
    took: Duration,
    /// Until when a thread must have taken it.
    taken_by: Instant,
    /// When it asks its listener, besides each renewal.
    look_at: Instant,
}

impl PartOfLease {
    pub(super) fn new(part: Part, now: Instant) -> Self {
        Self {
            part,
            told: PartState::UNKNOWN,
            renewals: 0,
            took: Duration::ZERO,
            taken_by: now.after(TAKEN_WITHIN),
            look_at: Instant::NEVER,
        }
    }

    /// Tells the listener what has changed.
    pub(super) fn tell(&mut self, lease: &LeaseState, fx: &mut Effects) {
        let is = match lease.lost() {
            Some(lost) => PartState::Lost(lost),
            // Given up, or being released: another holder may have the name at once.
            None if !lease.is_open() => PartState::Valid {
                until: Instant::START,
                renewals: self.renewals,
                took: self.took,
            },
            None => PartState::Valid {
                until: lease.end(),
                renewals: self.renewals,
                took: self.took,
            },
        };
        if std::mem::replace(&mut self.told, is) == is {
            return;
        }
        if let Some(listener) = self.part.listener.upgrade() {
            if listener.part_is(self.part.number, is, fx) {
                fx.over.push(Arc::clone(&listener));
            }
            fx.discard.push(Discard::Listener(listener));
        }
    }

    /// Returns when the engine must look at the part.
    pub(super) fn due(&self, is_taken: bool) -> Instant {
        if is_taken || is_on(Mutant::UntakenIsRenewed) {
            self.look_at
        } else {
            self.taken_by
        }
    }
}

/// A renewal of a lease was confirmed after this time, which counts if it is a part.
pub(super) fn renewed(
    part: &mut Option<Box<PartOfLease>>,
    request: RenewalRequest,
    took: Duration,
) {
    if let Some(part) = part.as_mut().filter(|_| request.renews) {
        part.renewals = part.renewals.saturating_add(1);
        part.took = took;
    }
}

impl HeldLease {
    /// Returns the listener of the lease, and its number there.
    #[cfg(sim)]
    pub(crate) fn part_of(&self) -> Option<Part> {
        let inner = self.inner.lock();
        inner.part.as_ref().map(|it| it.part.clone())
    }

    /// The engine asks the listener at `at`, too.
    fn look_at(self: &Arc<Self>, at: Instant, cx: &mut Context<'_>) {
        self.change(cx, |inner| {
            if let Some(part) = &mut inner.part {
                part.look_at = at;
            }
        });
    }

    /// Returns how the whole is that the lease is a part of.
    pub(super) fn whole(&self, now: Instant, fx: &mut Effects) -> Whole {
        let listener = {
            let mut inner = self.inner.lock();
            let (is_open, is_taken) = (inner.lease.is_open(), inner.since.is_some());
            let Some(part) = inner.part.as_mut().filter(|_| is_open) else {
                return Whole::GoesOn;
            };
            if !is_taken && part.due(is_taken) <= now {
                return Whole::IsOver;
            }
            if part.look_at <= now {
                part.look_at = Instant::NEVER;
            }
            part.part.listener.upgrade()
        };
        // Nobody is left who could release it.
        let Some(listener) = listener else {
            return Whole::IsOver;
        };
        let whole = listener.whole(now, fx);
        fx.discard.push(Discard::Listener(listener));
        if is_on(Mutant::OverIsRenewed) {
            return Whole::GoesOn;
        }
        whole
    }

    /// The lease is renewed each `every` from its next confirmation on.
    fn renew_every(&self, every: Option<Duration>) {
        self.inner.lock().lease.renew_every(every);
    }

    /// The lease is renewed no more.
    pub(super) fn end_renewals(&self) {
        self.inner.lock().lease.end_renewals();
    }
}

impl Context<'_> {
    /// Asks how the whole is that a lease is a part of. Returns whether the lease goes on.
    pub(super) fn look_at_whole(&mut self, lease: &Arc<HeldLease>) -> bool {
        match lease.whole(self.now, self.fx) {
            Whole::GoesOn => true,
            Whole::IsOver => {
                self.with_entry(&lease.lock, |entry, cx| {
                    // Its thread may have taken it, or gone on, before this thread got the shard.
                    if lease.whole(cx.now, cx.fx) == Whole::IsOver {
                        entry.give_up(lease, lease.token(), cx);
                    }
                });
                false
            }
            Whole::MayStillRun => {
                lease.end_renewals();
                true
            }
        }
    }

    fn give_up_part(&mut self, lease: &Arc<HeldLease>) {
        self.with_entry(&lease.lock, |entry, cx| {
            entry.give_up(lease, lease.token(), cx);
        });
    }
}

impl Kernel {
    /// Gives up a part: the engine releases it.
    pub(crate) fn give_up_part(&self, lease: &Arc<HeldLease>, now: Instant, fx: &mut Effects) {
        self.at(now, fx).give_up_part(lease);
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
        let mut cx = self.at(now, fx);
        let refused = cx.with_existing(lock.keys().key(0).name, |it, cx| {
            it.refuses_once(lock, cx.now)
        });
        refused.flatten()
    }

    /// Returns what last refused a name, as far as this client remembers.
    pub(crate) fn last_refusal(
        &self,
        lock: &dyn Primitive,
        now: Instant,
        fx: &mut Effects,
    ) -> Option<Refused> {
        let mut cx = self.at(now, fx);
        let refused = cx.with_existing(lock.keys().key(0).name, |entry, _| entry.last.refusal());
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
        self.at(now, fx)
            .with_entry(lock, |entry, _| entry.last.note(refused));
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
            ..named(&lease)
        };
        let is_held = !lease.lingers();
        fx.discard.push(Discard::Lease(lease));
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
        lease.look_at(at, &mut self.at(now, fx));
    }
}
