//! Calls that go over one connection of a pool together: when they do, and who of them gets it next.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock::Instant;
use crate::server::entry::{Entry, News};
use crate::server::gather::{Gather, Ticket};
use crate::server::node::Wire;
use crate::server::pool::{Lane, Lent, Pool, State};

/// So many calls at a time get a connection each. When more come, all go along with others over one
/// connection, until nobody waits any more.
///
/// Pairs of lock and unlock a second, and processor time of client and server for each, beside a connection
/// each by hand in the same run, on two cores (`--bench threads`):
///
/// | threads | from the fifth on: pairs | time | from the ninth on: pairs | time |
/// |---|---|---|---|---|
/// | 4 | 0.95 | 1.05 | 0.98 | 1.05 |
/// | 8 | 1.1 to 1.2 | 1.2 | 0.95 | 1.05 |
/// | 16 | 1.45 | 0.8 | 1.45 | 0.8 |
/// | 32 | 1.7 | 0.75 | 1.7 | 0.75 |
///
/// What few threads gather is too little to pay for what they do to one another, and several connections
/// gather less each.
const OWN: usize = 8;

/// A trip to a server that is no farther away takes about as long as the work for it. Where it takes
/// longer, calls wait for the network, and would only wait for one another too: each gets a
/// connection as long as there are any.
const NEAR: Duration = Duration::from_micros(200);

/// A shared connection whose calls are not answered in this time, or in that of eight trips, is not waited
/// for where another lies idle.
const STUCK: Duration = Duration::from_millis(1);

/// What counts for whether calls share a connection, and is known without the lock of their pool.
pub(super) struct Sharing {
    /// How many calls are in progress.
    calls: AtomicUsize,
    /// Whether one connection carries several calls, for those who only want a hint.
    is_on: AtomicBool,
    /// The shortest trip to the server so far, in nanoseconds.
    shortest: AtomicU64,
}

/// Who shares a connection, and who is to.
#[derive(Default)]
pub(super) struct Sharers {
    /// Since when one connection carries the calls of several that it carries now, if one does.
    since: Option<Instant>,
    /// Who waits for one of those that are out, or to be sent along with who gets it.
    gather: Gather<Arc<Entry>>,
    /// Who waits for a connection of its own goes first when the next comes back.
    is_turn_of_own: bool,
}

/// A call in progress.
pub(crate) struct Entered<'a> {
    pool: &'a Pool,
    before: usize,
}

/// What became of a call that was to go along with others.
pub(crate) enum Joined<'a> {
    Waits(Ticket),
    /// It goes alone: over this connection, if one lay idle.
    Alone(Option<Lent<'a>>),
}

/// A connection that goes on to those who wait.
pub(crate) struct Given<'a> {
    pub(crate) lent: Lent<'a>,
    /// Who reads for all of them.
    pub(crate) next: Arc<Entry>,
    pub(crate) others: Vec<Arc<Entry>>,
    /// None of them had run out of time by then.
    pub(crate) now: Instant,
}

impl Default for Sharing {
    fn default() -> Self {
        Self {
            calls: AtomicUsize::new(0),
            is_on: AtomicBool::new(false),
            shortest: AtomicU64::new(u64::MAX),
        }
    }
}

impl Sharing {
    /// From now on the way leads to another server.
    pub(super) fn forget_trips(&self) {
        self.shortest.store(u64::MAX, Ordering::Relaxed);
    }

    fn shortest(&self) -> Duration {
        Duration::from_nanos(self.shortest.load(Ordering::Relaxed))
    }
}

impl State {
    /// Who gets a connection that has come back, of those who go along with others.
    fn next(&mut self) -> Option<(Arc<Entry>, Instant)> {
        if self.sharers.gather.is_empty() {
            return None;
        }
        if self.is_awaited() {
            self.sharers.is_turn_of_own = !self.sharers.is_turn_of_own;
            if self.sharers.is_turn_of_own {
                return None;
            }
        }
        let now = Instant::now();
        self.sharers.gather.next(now).map(|entry| (entry, now))
    }

    /// There is room for a connection that one of those who wait to go along may have.
    pub(super) fn dismiss_one(&mut self) {
        if let Some((entry, _)) = self.next() {
            // Who waits no longer needs no connection.
            let _ = entry.tell(News::Alone);
        }
    }
}

impl Pool {
    /// Counts a call in, for as long as what is returned is there.
    pub(crate) fn enter(&self) -> Entered<'_> {
        let before = self.sharing.calls.fetch_add(1, Ordering::Relaxed);
        Entered { pool: self, before }
    }

    /// A trip took so long.
    pub(crate) fn took(&self, trip: Duration) {
        let nanos = u64::try_from(trip.as_nanos()).unwrap_or(u64::MAX);
        let shortest = &self.sharing.shortest;
        if nanos < shortest.load(Ordering::Relaxed) {
            shortest.store(nanos, Ordering::Relaxed);
        }
    }

    /// From now on one connection carries several calls, or none does.
    pub(super) fn share(&self, state: &mut State, since: Option<Instant>) {
        state.sharers.since = since;
        self.sharing.is_on.store(since.is_some(), Ordering::Relaxed);
    }

    /// Leaves a call to whoever is done with a connection, if somebody will be.
    pub(crate) fn join(
        &self,
        now: Instant,
        until: Instant,
        lane: Lane,
        entry: &Arc<Entry>,
    ) -> Joined<'_> {
        let mut state = self.state.lock();
        let limit = STUCK.max(self.sharing.shortest().saturating_mul(8));
        // After that the connection is stuck, or whoever reads from it has lost the processor.
        let is_in_time = |since: Instant| since.until(now) <= limit;
        let own = if state.sharers.since.is_some_and(is_in_time) {
            None
        } else {
            // At once: a place in the other queue would be a worse one.
            state.take(lane, self.cap)
        };
        match own {
            None if state.out > 0 && !self.is_closed() && !self.is_retired() => {
                Joined::Waits(state.sharers.gather.join(until, Arc::clone(entry)))
            }
            own => Joined::Alone(own.map(|wire| self.lent(wire, false))),
        }
    }

    /// Takes a call back that is to have a connection of its own, unless it would wait for that too
    /// before its deadline `is_over`. False if it stays, or is not there any more.
    pub(crate) fn leave_off(&self, ticket: Ticket, lane: Lane, is_over: bool) -> bool {
        let mut state = self.state.lock();
        let has_room = lane == Lane::Free || state.out < self.cap;
        (has_room || is_over) && state.sharers.gather.leave(ticket)
    }

    /// The connection that carries several calls.
    pub(crate) fn lent_to_several(&self, wire: Wire) -> Lent<'_> {
        self.lent(wire, true)
    }

    /// Nobody waits any longer to go along with others.
    pub(super) fn dismiss(&self) {
        let all = self.state.lock().sharers.gather.dismiss();
        for entry in all {
            // Who waits no longer needs no connection.
            let _ = entry.tell(News::Alone);
        }
    }
}

impl<'a> Lent<'a> {
    /// Gives the connection back, after an exchange that left nothing unread. Or on, to one of those
    /// who wait to go along with others.
    pub(crate) fn give_on(mut self) -> Option<Given<'a>> {
        let wire = self.wire.take()?;
        let (pool, is_shared) = (self.pool, self.is_shared);
        let mut state = pool.state.lock();
        if pool.has_room_for(&state, &wire) {
            if (is_shared || state.sharers.since.is_none())
                && let Some((next, now)) = state.next()
            {
                pool.share(&mut state, Some(now));
                return Some(Given {
                    lent: pool.lent_to_several(wire),
                    next,
                    others: state.sharers.gather.take(now),
                    now,
                });
            }
            pool.lay_by(&mut state, wire, is_shared);
        } else {
            pool.vacated(&mut state, is_shared);
            // Closing takes a system call: not under the lock.
            drop(state);
            drop(wire);
        }
        None
    }
}

impl Entered<'_> {
    /// Whether no other call was in progress.
    pub(crate) fn is_alone(&self) -> bool {
        self.before == 0
    }

    /// Whether so many others were there that it goes along with them.
    pub(crate) fn is_one_of_many(&self, lane: Lane) -> bool {
        let Pool { cap, sharing, .. } = self.pool;
        if sharing.shortest() <= NEAR {
            self.before >= OWN.min(*cap) || sharing.is_on.load(Ordering::Relaxed)
        } else {
            lane == Lane::Capped && self.before >= *cap
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.pool.sharing.calls.fetch_sub(1, Ordering::Relaxed);
    }
}
