//! Calls that share a write: when they do, and which connection of the pool carries it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock::Instant;
use crate::redis::combine::call::{Entry, News};
use crate::redis::combine::queue::{Gather, Ticket};
use crate::redis::conn::callers::Cap;
use crate::redis::conn::connection::Connection;
use crate::redis::conn::pool::{Pool, PooledConnection, State};

/// This many calls at a time get a connection each. From the next one on, calls share writes, until the queue is empty.
///
/// Beside a connection for each thread by hand, in turns, on two cores that other programs used too
/// (`--bench threads` prints the table for this machine):
///
/// | threads | pairs of lock and unlock a second | client CPU a pair |
/// |---|---|---|
/// | 8, a connection each | 1.0 | 1.05 |
/// | 10 | 1.4 | 0.9 |
/// | 12 | 1.1 to 1.5 | 0.85 |
/// | 16 | 1.5 | 0.8 |
/// | 24 | 1.5 | 0.75 |
/// | 32 | 1.7 | 0.75 |
///
/// So sharing pays at every count from here on, in time and in CPU. With a lower threshold, 6 threads gained nothing
/// that could be told from noise: few calls gather too little to pay for waking one another.
const OWN: usize = 8;

/// A trip to a server that is no farther away takes about as long as the work for it. Where it takes
/// longer, calls wait for the network, and would only wait for one another too: each gets a
/// connection as long as there are any.
const NEAR: Duration = Duration::from_micros(200);

/// Calls gather behind a write for at most this long while another connection is free: most writes are answered
/// sooner.
const STUCK: Duration = Duration::from_millis(2);

/// A call that has waited in the queue so long takes any free connection, whatever is in flight. Longer than
/// [`STUCK`], so that few calls need a timer.
pub(in crate::redis) const PATIENCE: Duration = Duration::from_millis(5);

/// What counts for whether calls share a connection, and is known without the lock of their pool.
pub(in crate::redis) struct Sharing {
    /// How many calls are in progress.
    calls: AtomicUsize,
    /// Whether one connection carries several calls, for those who only want a hint.
    is_on: AtomicBool,
    /// The shortest trip to the server so far, in nanoseconds.
    shortest: AtomicU64,
}

/// Who shares a connection, and who is to.
#[derive(Default)]
pub(in crate::redis) struct Sharers {
    /// When the last of the writes of several calls was sent whose answers are still missing.
    in_flight: Option<Instant>,
    gather: Gather<Arc<Entry>>,
    /// Who waits for a connection of its own goes first when the next comes back.
    is_turn_of_own: bool,
}

/// A call in progress.
pub(crate) struct Entered<'a> {
    pool: &'a Pool,
    before: usize,
}

/// Calls that go in one write, and the connection for it.
#[must_use]
pub(crate) struct Batch<'a> {
    pub(crate) pooled: PooledConnection<'a>,
    /// The call whose thread reads the answers to all.
    pub(crate) reader: Arc<Entry>,
    pub(crate) others: Vec<Arc<Entry>>,
    /// None of them had run out of time by then.
    pub(crate) now: Instant,
}

/// The next step of a call that has waited in the queue for [`PATIENCE`].
pub(crate) enum Look<'a> {
    /// It waits on: for a connection, or for its answer if it was sent meanwhile.
    Waits,
    /// It sends this batch, which most likely contains its own command.
    Sends(Box<Batch<'a>>),
    /// It has left the queue, and asks the pool for a connection.
    Alone,
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
    pub(in crate::redis) fn forget_trips(&self) {
        self.shortest.store(u64::MAX, Ordering::Relaxed);
    }

    fn is_near(&self) -> bool {
        Duration::from_nanos(self.shortest.load(Ordering::Relaxed)) <= NEAR
    }
}

impl State {
    /// Whether the next free connection goes to the queue: it alternates with calls that go alone.
    fn is_turn_of_queue(&mut self) -> bool {
        if self.sharers.gather.is_empty() {
            return false;
        }
        if self.is_awaited() {
            self.sharers.is_turn_of_own = !self.sharers.is_turn_of_own;
            return !self.sharers.is_turn_of_own;
        }
        true
    }

    /// Sends the first call of the queue away to ask for a connection, since none may come back.
    pub(in crate::redis) fn dismiss_one(&mut self) {
        if self.is_turn_of_queue()
            && let Some(entry) = self.sharers.gather.first(Instant::now())
        {
            // A call that waits no longer needs no connection.
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

    /// The answers to what was sent at `sent` are in, or will never be.
    pub(in crate::redis) fn is_answered(&self, state: &mut State, sent: Option<Instant>) {
        if sent.is_some() && state.sharers.in_flight == sent {
            state.sharers.in_flight = None;
            self.sharing.is_on.store(false, Ordering::Relaxed);
        }
    }

    /// Whether calls gather behind a write that is in flight. A server farther away has no shared work to save.
    fn gathers(&self, state: &State, now: Instant) -> bool {
        let is_late = |sent: Instant| sent.until(now) > STUCK;
        state.sharers.in_flight.is_some_and(|sent| !is_late(sent)) && self.sharing.is_near()
    }

    /// Puts a call into the queue; what can be sent at once comes back. `None` if nobody would come for it.
    pub(crate) fn join(
        &self,
        now: Instant,
        until: Instant,
        cap_rule: Cap,
        entry: &Arc<Entry>,
    ) -> Option<(Ticket, Option<Batch<'_>>)> {
        let mut state = self.state.lock();
        let ticket = state.sharers.gather.join(now, until, Arc::clone(entry));
        let batch = if self.gathers(&state, now) {
            None
        } else {
            self.take_batch(&mut state, cap_rule, now)
        };
        if batch.is_none() && (state.out == 0 || self.is_closed() || self.is_retired()) {
            state.sharers.gather.leave(ticket);
            return None;
        }
        Some((ticket, batch))
    }

    /// The next step of a call that has waited for [`PATIENCE`], or until its deadline if that `is_over`.
    pub(crate) fn look(&self, ticket: Ticket, cap_rule: Cap, is_over: bool) -> Look<'_> {
        let mut state = self.state.lock();
        if !state.sharers.gather.contains(ticket) {
            return Look::Waits;
        }
        if !is_over && let Some(batch) = self.take_batch(&mut state, cap_rule, Instant::now()) {
            return Look::Sends(Box::new(batch));
        }
        if is_over || cap_rule == Cap::Exempt || state.has_room(self.cap) {
            state.sharers.gather.leave(ticket);
            return Look::Alone;
        }
        Look::Waits
    }

    /// Takes an idle connection for the calls in the queue.
    fn take_batch(&self, state: &mut State, cap_rule: Cap, now: Instant) -> Option<Batch<'_>> {
        let connection = state.take(cap_rule, self.cap, None)?;
        let Some(calls) = state.sharers.gather.take(now) else {
            state.put_back(connection);
            return None;
        };
        Some(self.batch(state, connection, calls, now))
    }

    fn batch(
        &self,
        state: &mut State,
        connection: Connection,
        (reader, others): (Arc<Entry>, Vec<Arc<Entry>>),
        now: Instant,
    ) -> Batch<'_> {
        state.sharers.in_flight = Some(now);
        self.sharing.is_on.store(true, Ordering::Relaxed);
        Batch {
            pooled: self.pooled(connection, Some(now)),
            reader,
            others,
            now,
        }
    }

    /// Nobody waits any longer to go along with others.
    pub(in crate::redis) fn dismiss(&self) {
        let all = self.state.lock().sharers.gather.dismiss();
        for entry in all {
            // Who waits no longer needs no connection.
            let _ = entry.tell(News::Alone);
        }
    }
}

impl<'a> PooledConnection<'a> {
    /// Gives the connection back, after an exchange that left nothing unread. Returns what must be sent over it, if it
    /// goes on to those in the queue.
    pub(crate) fn give_on(mut self) -> Option<Batch<'a>> {
        let connection = self.connection.take()?;
        let pool = self.pool;
        let mut state = pool.state.lock();
        pool.is_answered(&mut state, self.sent);
        if !pool.has_room_for(&state, &connection) {
            pool.vacated(&mut state);
            // Closing takes a system call: not under the lock.
            drop(state);
            drop(connection);
            return None;
        }
        if !state.sharers.gather.is_empty() {
            let now = Instant::now();
            let has_waited = |waited| waited >= PATIENCE;
            let is_due = || state.sharers.gather.waited(now).is_some_and(has_waited);
            if (!pool.gathers(&state, now) || is_due())
                && state.is_turn_of_queue()
                && let Some(calls) = state.sharers.gather.take(now)
            {
                return Some(pool.batch(&mut state, connection, calls, now));
            }
        }
        pool.put_back(&mut state, connection);
        None
    }
}

impl Entered<'_> {
    /// Whether no other call was in progress.
    pub(crate) fn is_alone(&self) -> bool {
        self.before == 0
    }

    /// Whether so many others were there that it goes along with them.
    pub(crate) fn is_one_of_many(&self, cap_rule: Cap) -> bool {
        let Pool { cap, sharing, .. } = self.pool;
        if sharing.is_near() {
            self.before >= OWN.min(*cap) || sharing.is_on.load(Ordering::Relaxed)
        } else {
            cap_rule == Cap::Counted && self.before >= *cap
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.pool.sharing.calls.fetch_sub(1, Ordering::Relaxed);
    }
}
