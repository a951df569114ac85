//! How many connections to a server are open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts a connection as open until it is dropped.
pub(crate) struct Open(Arc<AtomicU64>);

impl Open {
    pub(in crate::redis) fn new(count: &Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
