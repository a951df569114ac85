//! The lease that a guard holds: of one name, or of a set of names.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::client::renew::{Holding, check_held};
use crate::client::set_holding::SetHolding;
use crate::clock::Instant;
use crate::config::{SHORTEST_TTL, check_ttl};
use crate::error::{Cause, Error};
use crate::holder_id::HolderId;
use crate::kernel::held::HeldLease;
use crate::kernel::operation::Wanted;
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::name::Name;
use crate::runtime::Runtime;
use crate::set::lease::SetLease;
use crate::token::FencingToken;

/// The lease that a guard holds.
#[derive(Clone)]
pub(crate) enum Hold {
    /// The token identifies this holder: local hand-offs give a lease several holders, one after
    /// another.
    One(Arc<HeldLease>, FencingToken),
    Set(SetHold),
}

/// A set, with the id and the token of each name.
#[derive(Clone)]
pub(crate) struct SetHold {
    lease: Arc<SetLease>,
    ids: Box<[HolderId]>,
    tokens: Box<[FencingToken]>,
}

impl SetHold {
    pub(super) fn new(lease: Arc<SetLease>) -> Self {
        Self {
            ids: lease.holder_ids().into(),
            tokens: lease.tokens().into(),
            lease,
        }
    }

    /// The holder id of the first name. A set has a name.
    pub(super) fn id(&self) -> &HolderId {
        &self.ids[0]
    }

    /// The token of the first name.
    pub(super) fn token(&self) -> FencingToken {
        self.tokens[0]
    }

    pub(super) fn since(&self) -> Option<Instant> {
        self.lease.since()
    }
}

impl Hold {
    pub(crate) fn names(&self) -> &[Name] {
        match self {
            Self::One(lease, _) => &lease.lock.names,
            Self::Set(set) => set.lease.names().names(),
        }
    }

    /// The token, of a set that of the first name.
    pub(crate) fn token(&self) -> FencingToken {
        match self {
            Self::One(_, token) => *token,
            Self::Set(set) => set.token(),
        }
    }

    /// The holder id, of a set that of the first name.
    pub(crate) fn id(&self) -> &HolderId {
        match self {
            Self::One(lease, _) => &lease.id,
            Self::Set(set) => set.id(),
        }
    }

    /// Returns the token of a name.
    pub(crate) fn token_of(&self, name: &Name) -> Option<FencingToken> {
        match self {
            Self::One(..) => self.names().contains(name).then(|| self.token()),
            Self::Set(set) => Some(set.tokens[self.index_of(name)?]),
        }
    }

    /// Returns the holder id of a name.
    pub(crate) fn id_of(&self, name: &Name) -> Option<&HolderId> {
        match self {
            Self::One(lease, _) => self.names().contains(name).then_some(&lease.id),
            Self::Set(set) => Some(&set.ids[self.index_of(name)?]),
        }
    }

    fn index_of(&self, name: &Name) -> Option<usize> {
        self.names().iter().position(|it| it == name)
    }

    /// Returns since when it is held.
    pub(crate) fn since(&self) -> Option<Instant> {
        match self {
            Self::One(lease, _) => lease.since(),
            Self::Set(set) => set.since(),
        }
    }

    pub(crate) fn with<'a>(&'a self, runtime: &'a Runtime) -> AnyHolding<'a> {
        match self {
            Self::One(lease, token) => AnyHolding::One(Holding {
                runtime,
                lease,
                token: *token,
            }),
            Self::Set(set) => AnyHolding::Set(SetHolding {
                runtime,
                lease: &set.lease,
                id: self.id(),
                token: self.token(),
            }),
        }
    }
}

/// A holder's calls, for one name or for a set.
#[derive(Clone, Copy)]
pub(crate) enum AnyHolding<'a> {
    One(Holding<'a>),
    Set(SetHolding<'a>),
}

impl AnyHolding<'_> {
    /// Returns the status for this holder, and tells a loss that it finds.
    pub(crate) fn status(self) -> LeaseStatus {
        match self {
            Self::One(one) => one.status(),
            Self::Set(set) => set.status(),
        }
    }

    /// Returns an error unless it is certainly held now by this holder.
    pub(crate) fn ensure_held(self) -> Result<(), Error> {
        check_held(self.status())
    }

    /// Returns a channel that receives one message on loss.
    pub(crate) fn listen(self) -> Receiver<Lost> {
        match self {
            Self::One(one) => one.listen(),
            Self::Set(set) => set.listen(),
        }
    }

    /// Renews it by `until`.
    pub(crate) fn renew(self, until: Instant) -> Result<(), Error> {
        self.operate(Wanted::Renew, until)
    }

    /// Sets another ttl, which can be shorter.
    pub(crate) fn set_ttl(self, ttl: Duration) -> Result<(), Error> {
        check_ttl(ttl)?;
        let until = Instant::now().after(self.runtime().deployment.command_timeout());
        self.operate(Wanted::SetTtl(ttl), until)
    }

    fn operate(self, what: Wanted, until: Instant) -> Result<(), Error> {
        match self {
            Self::One(one) => one.operate(what, until),
            Self::Set(set) => set.operate(&what, until),
        }
    }

    fn runtime(&self) -> &Runtime {
        match self {
            Self::One(one) => one.runtime,
            Self::Set(set) => set.runtime,
        }
    }

    /// Ends the holding, and leaves the keys to expire without renewals, at `end` or later.
    ///
    /// The holding goes on if `end` is too far away for a ttl, or the lease was found lost.
    pub(crate) fn keep_until(self, end: Instant) -> Result<(), Error> {
        let left = ttl_until(self.runtime(), end);
        let mut outcome = self.set_ttl(left);
        if let Err(Error::Config(_) | Error::Lost(_)) = outcome {
            return outcome;
        }
        let may_be_shortened = match self {
            Self::One(one) => one.lease.may_be_shortened(left),
            Self::Set(set) => set.lease.may_be_shortened(left),
        };
        if outcome.is_ok() && may_be_shortened {
            outcome = Err(self.runtime().deployment.unreachable(Cause::text(
                "an earlier change of this ttl is still without a reply, and may run later",
            )));
        }
        let now = Instant::now();
        let (record, status) = match self {
            Self::One(one) => one.keep(now),
            Self::Set(set) => set.keep(now),
        };
        if let Some(LeaseStatus::Lost(lost)) = status {
            return record.was_lost(lost, now);
        }
        record.count(true, now);
        record.log("kept until it expires", outcome.as_ref().err());
        outcome
    }

    /// Ends the holding at `now`, by `deadline`.
    pub(crate) fn release(self, now: Instant, deadline: Instant) -> Result<(), Error> {
        match self {
            Self::One(one) => one.release(now, deadline),
            Self::Set(set) => set.release(now, deadline),
        }
    }
}

/// Returns the ttl of a key that must not expire before `end`.
fn ttl_until(runtime: &Runtime, end: Instant) -> Duration {
    // Redis counts whole milliseconds: rounded up, the key does not expire before `end`.
    let left = match end {
        // The time was too long for a sum of instants: it is too long for a ttl, too.
        Instant::NEVER => Duration::MAX,
        end => (Instant::now().until(end)).saturating_add(Duration::from_millis(1)),
    };
    // The lease must not end before the reply arrives, which would look like a loss.
    let reply = runtime.deployment.command_timeout().saturating_mul(2);
    left.max(reply).max(SHORTEST_TTL)
}
