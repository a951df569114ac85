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
use crate::holder_id::HolderId;
use crate::kernel::effects::{Effects, MayOwnClosure};
use crate::lease::state::LeaseState;
use crate::lease::status::RenewalRequest;
use crate::lost::Lost;
use crate::mutant::{Mutant, is_on};
use crate::parker::Parker;
use crate::protocol::primitive::Primitive;

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
        /// The ttl that renewals set.
        ttl: Duration,
    },
    Lost(Lost),
}

impl PartState {
    /// The state before the first report.
    pub(crate) const UNKNOWN: Self = Self::Valid {
        until: Instant::START,
        renewals: 0,
        took: Duration::ZERO,
        ttl: Duration::ZERO,
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

/// The whole, as the leases of its parts know it.
pub(crate) trait PartListener: Debug + MayOwnClosure {
    /// A part has changed. Called under the lock of its lease. If this ends the whole, its parts
    /// are given up.
    fn part_is(&self, number: usize, is: PartState, fx: &mut Effects);

    /// Returns how the whole is at `now`. A lease asks before its renewal, and at `look_at`.
    fn whole(&self, now: Instant, fx: &mut Effects) -> Whole;
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
            None => PartState::Valid {
                until: if lease.is_open() {
                    lease.end()
                } else {
                    // Given up, or being released: another holder may have the name at once.
                    Instant::START
                },
                renewals: self.renewals,
                took: self.took,
                ttl: lease.ttl,
            },
        };
        if std::mem::replace(&mut self.told, is) == is {
            return;
        }
        if let Some(listener) = self.part.listener.upgrade() {
            listener.part_is(self.part.number, is, fx);
            fx.discard(listener);
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

    /// A renewal of its lease was confirmed after this time.
    pub(super) fn renewed(&mut self, request: RenewalRequest, took: Duration) {
        if request.renews {
            self.renewals = self.renewals.saturating_add(1);
            self.took = took;
        }
    }

    /// The engine asks the listener at `at`, too.
    pub(super) fn look_at(&mut self, at: Instant) {
        self.look_at = at;
    }

    /// Returns whether no thread has taken it in time.
    pub(super) fn is_untaken(&self, now: Instant) -> bool {
        self.due(false) <= now
    }

    /// The lease asks its listener, which `None` means is gone: nobody is left who could release
    /// it.
    pub(super) fn ask(&mut self, now: Instant) -> Option<Arc<dyn PartListener>> {
        if self.look_at <= now {
            self.look_at = Instant::NEVER;
        }
        self.part.listener.upgrade()
    }

    #[cfg(sim)]
    pub(super) fn part(&self) -> &Part {
        &self.part
    }
}
