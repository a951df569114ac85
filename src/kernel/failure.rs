//! Why a call has no lock: it failed, or was refused.

use std::sync::Arc;

use crate::clock::Instant;
use crate::error::{Cause, Error};
use crate::kernel::fault::OpenCircuit;
use crate::protocol::refusal::RefusedName;

/// Why a call failed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    Closed,
    Cancelled,
    /// The breaker of the server is open. If a command of the call was sent before, the lock may
    /// be held for it.
    Open {
        open: Box<OpenCircuit>,
        since: Option<Instant>,
        has_sent: bool,
    },
    /// Nobody refused it, and it has nothing: what it belongs to begins again.
    Restart,
    /// Redis has not answered since then, for this reason.
    Unreachable {
        since: Option<Instant>,
        cause: Option<Cause>,
    },
    Rejected(Error),
}

impl Failure {
    pub(crate) fn unreachable(cause: Option<Cause>) -> Self {
        Self::Unreachable { since: None, cause }
    }

    /// Returns the failure of a call that has waited for a long time: the breaker, which may be
    /// open, is not the reason.
    pub(crate) fn after_long(self) -> Self {
        match self {
            Self::Open { open, since, .. } => Self::Open {
                open,
                since,
                has_sent: true,
            },
            other => other,
        }
    }
}

/// A refusal.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) sent: Instant,
    pub(crate) arrived: Instant,
    /// When the lock was last known to be taken: by the reply, or by a release message since.
    pub(crate) confirmed: Instant,
    /// When the lock ends, by the reply.
    pub(crate) until: Instant,
    pub(crate) by: Arc<RefusedName>,
    /// `by` tells what Redis said. Otherwise nobody knows the holder.
    pub(crate) is_said: bool,
}
