//! How an id is released that may hold something in Redis, and that nobody here wants.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::protocol::primitive::Primitive;

/// A command without a reply runs within this time after its sender gave up, or never; longer if
/// twice its ttl is longer.
pub(crate) const RUNS_WITHIN: Duration = Duration::from_secs(5);

/// The reply that ends a release before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Any reply of the script: the acquiring command was answered, or has certainly ended.
    AnyAnswer,
    /// Only the reply that it removed something: the acquiring command may still run.
    KeySeen,
}

/// How a release without a reply is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    /// A lease that may exist.
    Lease,
    /// A lease that a shutdown has ended, which counts the outcome.
    AtShutdown,
    /// Nothing: it removes only a place in a queue, or the lease is counted elsewhere.
    Nothing,
}

/// A release to be sent until it has certainly run.
#[derive(Clone, Debug)]
pub(crate) struct PendingRelease {
    pub(crate) lock: Arc<dyn Primitive>,
    pub(crate) id: HolderId,
    /// When the key has expired, or the acquiring command can run no more.
    pub(crate) until: Instant,
    pub(crate) ends_by: Proof,
    pub(crate) counts: Counts,
}

impl PendingRelease {
    pub(crate) fn new(
        lock: &Arc<dyn Primitive>,
        id: &HolderId,
        until: Instant,
        ends_by: Proof,
    ) -> Self {
        Self {
            lock: Arc::clone(lock),
            id: id.clone(),
            until,
            ends_by,
            counts: Counts::Lease,
        }
    }

    pub(crate) fn counting(self, counts: Counts) -> Self {
        Self { counts, ..self }
    }
}

/// Returns until when an acquiring command for a lease of this ttl can run, and its key can last.
pub(crate) fn may_run_until(ttl: Duration, now: Instant) -> Instant {
    now.after(ttl.saturating_mul(2).max(RUNS_WITHIN))
}
