//! What a pool knows of the calls that share a write. No I/O.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock::Instant;
use crate::redis::conn::call_queue::CallQueue;
use crate::redis::conn::combined_call::CombinedCall;

/// A trip to a server that is no farther away takes about as long as the work for it. Where it takes
/// longer, calls wait for the network, and would only wait for one another too: each gets a
/// connection as long as there are any.
const NEAR: Duration = Duration::from_micros(200);

/// What counts for whether calls share a connection, and is known without the lock of their pool.
pub(in crate::redis) struct Combiner {
    /// How many calls are in progress.
    pub(in crate::redis) calls: AtomicUsize,
    /// Whether one connection carries several calls, for those who only want a hint.
    pub(in crate::redis) is_on: AtomicBool,
    /// The shortest trip to the server so far, in nanoseconds.
    shortest: AtomicU64,
}

/// Who shares a connection, and who is to.
#[derive(Default)]
pub(in crate::redis) struct CombinerState {
    /// When the last of the writes of several calls was sent whose answers are still missing.
    pub(in crate::redis) in_flight: Option<Instant>,
    pub(in crate::redis) queue: CallQueue<Arc<CombinedCall>>,
    /// Who waits for a connection of its own goes first when the next comes back.
    pub(in crate::redis) is_turn_of_own: bool,
}

impl Default for Combiner {
    fn default() -> Self {
        Self {
            calls: AtomicUsize::new(0),
            is_on: AtomicBool::new(false),
            shortest: AtomicU64::new(u64::MAX),
        }
    }
}

impl Combiner {
    /// From now on the way leads to another server.
    pub(in crate::redis) fn forget_trips(&self) {
        self.shortest.store(u64::MAX, Ordering::Relaxed);
    }

    pub(in crate::redis) fn is_near(&self) -> bool {
        Duration::from_nanos(self.shortest.load(Ordering::Relaxed)) <= NEAR
    }

    /// A trip took so long.
    pub(in crate::redis) fn took(&self, trip: Duration) {
        let nanos = u64::try_from(trip.as_nanos()).unwrap_or(u64::MAX);
        if nanos < self.shortest.load(Ordering::Relaxed) {
            self.shortest.store(nanos, Ordering::Relaxed);
        }
    }
}
