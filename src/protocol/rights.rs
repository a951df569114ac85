//! The rights of a client's user, as far as known.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the user of a client may use queues, as far as known.
///
/// Once a server has refused it, the client locks, waits and releases without them.
#[derive(Debug, Default)]
pub(crate) struct QueueRights {
    are_missing: AtomicBool,
}

impl QueueRights {
    pub(crate) fn refused(&self) {
        self.are_missing.store(true, Ordering::Relaxed);
    }

    pub(super) fn are_missing(&self) -> bool {
        self.are_missing.load(Ordering::Relaxed)
    }
}
