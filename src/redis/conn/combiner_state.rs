//! The part of a pool that concerns combined calls, which share a write. No I/O.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock::Instant;
use crate::redis::conn::call_queue::CallQueue;
use crate::redis::conn::combined_call::CombinedCall;

/// Calls are combined if the shortest round trip takes no longer than this: then the network takes
/// about as long as the work of a call. With a more distant server, combined calls would only wait
/// for each other, so each gets a connection while there are any.
const NEAR: Duration = Duration::from_micros(200);

/// The part of the combiner's state that is read without the pool's lock.
pub(in crate::redis) struct Combiner {
    /// How many calls are in progress.
    pub(in crate::redis) calls: AtomicUsize,
    /// Whether a batch is in flight, as a hint.
    pub(in crate::redis) is_on: AtomicBool,
    /// The shortest round trip to the server so far, in nanoseconds.
    shortest: AtomicU64,
}

/// The part of the combiner's state that the pool's lock protects.
#[derive(Default)]
pub(in crate::redis) struct CombinerState {
    /// When the last batch was sent whose replies are not all read.
    pub(in crate::redis) batch_sent: Option<Instant>,
    pub(in crate::redis) queue: CallQueue<Arc<CombinedCall>>,
    /// Whether the next returned connection goes to a call that waits for its own.
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
    /// Forgets the round trips: connections now lead to another server.
    pub(in crate::redis) fn forget_trips(&self) {
        self.shortest.store(u64::MAX, Ordering::Relaxed);
    }

    pub(in crate::redis) fn is_near(&self) -> bool {
        Duration::from_nanos(self.shortest.load(Ordering::Relaxed)) <= NEAR
    }

    /// Records the duration of a round trip.
    pub(in crate::redis) fn took(&self, trip: Duration) {
        let nanos = u64::try_from(trip.as_nanos()).unwrap_or(u64::MAX);
        if nanos < self.shortest.load(Ordering::Relaxed) {
            self.shortest.store(nanos, Ordering::Relaxed);
        }
    }
}
