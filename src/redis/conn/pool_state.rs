//! The state of a pool: its connections, the calls that wait for one, and the combined calls, which
//! share a write. No I/O.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;
use std::thread::Thread;
use std::time::Duration;

use crate::clock::Instant;
use crate::redis::conn::call_queue::CallQueue;
use crate::redis::conn::callers::{Callers, Cap, Number};
use crate::redis::conn::combined_call::CombinedCall;
use crate::redis::conn::connection::Connection;
use crate::redis::conn::dial::Dialing;

/// Calls are combined if the shortest round trip takes no longer than this: then the network takes
/// about as long as the work of a call. With a more distant server, combined calls would only wait
/// for each other, so each gets a connection while there are any.
const NEAR: Duration = Duration::from_micros(200);

#[derive(Default)]
pub(in crate::redis) struct PoolState {
    pub(in crate::redis) idle: Vec<Connection>,
    /// How many connections are in use.
    pub(in crate::redis) out: usize,
    pub(super) callers: Callers<Waker>,
    /// The combined calls that wait for a connection.
    pub(in crate::redis) queue: CallQueue<Arc<CombinedCall>>,
    /// Whether the last connection that both `callers` and `queue` waited for went to `callers`.
    is_turn_of_callers: bool,
    /// When the last batch was sent; `None` once its replies are read or lost.
    pub(in crate::redis) batch_sent: Option<Instant>,
    pub(super) dialing: Dialing,
    /// The dialer that pauses, or did.
    pub(super) sleeper: Option<Thread>,
    /// When a new connection was last compared with an older one.
    pub(super) compared: Option<Instant>,
    /// How often the dialer still looks for a connection that was not compared.
    pub(super) comparisons: u32,
    /// Why calls may not lock: two servers behind the address take writes.
    pub(super) two_servers: Option<String>,
    /// The thread that compares their connections.
    pub(super) watcher: Option<Thread>,
    /// The socket of the connection that the dialer makes, once the peer has accepted it.
    pub(super) accepted: Option<OwnedFd>,
    /// When the first call that has begun to wait since the last dial gives up.
    pub(super) soonest: Option<Instant>,
}

impl PoolState {
    /// Takes an idle connection for the queued call `number`, or for one that is not queued yet.
    /// Returns `None` if the cap leaves no room, or if earlier calls need all idle connections.
    pub(in crate::redis) fn take(
        &mut self,
        cap_rule: Cap,
        cap: usize,
        number: Option<Number>,
    ) -> Option<Connection> {
        let room = cap.saturating_sub(self.out);
        let before = self.callers.before(number, cap_rule, room)?;
        if self.idle.len() <= before + self.left_by(cap_rule) {
            return None;
        }
        let connection = self.idle.pop()?;
        self.out += 1;
        Some(connection)
    }

    /// Records when a call that waits for a new connection gives up.
    pub(super) fn note_end(&mut self, until: Instant) {
        self.soonest = Some(self.soonest.map_or(until, |other| other.min(until)));
    }

    /// Wakes the thread that compares the connections to two servers: it may have to end.
    pub(super) fn wake_watcher(&self) {
        self.watcher.iter().for_each(Thread::unpark);
    }

    /// Returns whether there is a connection, idle or in use.
    pub(super) fn has_connection(&self) -> bool {
        self.out > 0 || !self.idle.is_empty()
    }

    pub(in crate::redis) fn put_back(&mut self, connection: Connection) {
        self.out -= 1;
        self.idle.push(connection);
    }

    /// Returns whether another connection may be made in addition to those already requested.
    pub(in crate::redis) fn has_room(&self, cap: usize) -> bool {
        self.out + self.idle.len() + self.callers.count(Cap::Counted) < cap
    }

    /// Returns whether a connection must be made: the queued calls can use more than are idle.
    pub(super) fn wants_connection(&self, cap: usize) -> bool {
        let usable = self.callers.next(cap.saturating_sub(self.out));
        let kept = Cap::Kept { leaves_one: true };
        let left = match self.callers.count(kept) {
            0 => 0,
            _ => self.left_by(kept),
        };
        usable.take(self.idle.len() + 1).count() + left > self.idle.len()
    }

    /// Returns whether a connection in use may come back for a caller: it then waits for that one,
    /// although no new one can be made.
    pub(super) fn gives_back(&self, cap_rule: Cap) -> bool {
        self.out > 0 && !matches!(cap_rule, Cap::Kept { .. })
    }

    /// Returns how many of the idle connections a caller leaves to others.
    fn left_by(&self, cap_rule: Cap) -> usize {
        usize::from(self.out == 0 && cap_rule == Cap::Kept { leaves_one: true })
    }

    /// Takes a turn: returns whether the next free connection goes to the queue of combined calls.
    ///
    /// While other calls wait for their own connection, the queue takes turns with them.
    pub(in crate::redis) fn take_turn_of_queue(&mut self) -> bool {
        if !self.queue.is_empty() && !self.callers.is_empty() {
            self.is_turn_of_callers = !self.is_turn_of_callers;
            return !self.is_turn_of_callers;
        }
        !self.queue.is_empty()
    }

    /// If no caller waits for the connection that has become idle, has a queued combined call ask
    /// for it: that call may be waiting for a connection that is returned.
    pub(super) fn offer_idle(&mut self) {
        if self.callers.is_empty() {
            self.dismiss_one();
        }
    }

    /// If it is the turn of `queue`, has its first combined call ask for its own connection.
    /// Without that, no connection might come back to the queue.
    pub(super) fn dismiss_one(&mut self) {
        if self.take_turn_of_queue()
            && let Some(call) = self.queue.first(Instant::now())
        {
            call.send_alone();
        }
    }
}

/// The state of combined calls that is read without the pool's lock.
pub(in crate::redis) struct Combiner {
    /// How many calls are in progress.
    pub(in crate::redis) calls: AtomicUsize,
    /// Whether a batch is in flight, as a hint.
    pub(in crate::redis) is_on: AtomicBool,
    /// The shortest round trip to the server so far, in nanoseconds.
    shortest: AtomicU64,
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
    pub(super) fn forget_trips(&self) {
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
