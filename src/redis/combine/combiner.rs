//! Calls that share a write: when they do, and which connection of the pool carries it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock::Instant;
use crate::redis::conn::call_queue::Ticket;
use crate::redis::conn::callers::Cap;
use crate::redis::conn::combined_call::CombinedCall;
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

/// Calls gather behind a write for at most this long while another connection is free: most writes are answered
/// sooner.
const STUCK: Duration = Duration::from_millis(2);

/// A call that has waited in the queue so long takes any free connection, whatever is in flight. Longer than
/// [`STUCK`], so that few calls need a timer.
pub(in crate::redis) const PATIENCE: Duration = Duration::from_millis(5);

/// A call in progress.
pub(crate) struct InFlight<'a> {
    pool: &'a Pool,
    before: usize,
}

/// Calls that go in one write, and the connection for it.
#[must_use]
pub(crate) struct Batch<'a> {
    pub(crate) pooled: PooledConnection<'a>,
    /// The call whose thread reads the answers to all.
    pub(crate) reader: Arc<CombinedCall>,
    pub(crate) others: Vec<Arc<CombinedCall>>,
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

impl Pool {
    /// Counts a call in, for as long as what is returned is there.
    pub(crate) fn enter(&self) -> InFlight<'_> {
        let before = self.combiner.calls.fetch_add(1, Ordering::Relaxed);
        InFlight { pool: self, before }
    }

    /// Whether calls gather behind a write that is in flight. A server farther away has no shared work to save.
    fn gathers(&self, state: &State, now: Instant) -> bool {
        let is_late = |sent: Instant| sent.until(now) > STUCK;
        state.combiner.in_flight.is_some_and(|sent| !is_late(sent)) && self.combiner.is_near()
    }

    /// Puts a call into the queue; what can be sent at once comes back. `None` if nobody would come for it.
    pub(crate) fn join(
        &self,
        now: Instant,
        until: Instant,
        cap_rule: Cap,
        entry: &Arc<CombinedCall>,
    ) -> Option<(Ticket, Option<Batch<'_>>)> {
        let mut state = self.state.lock();
        let ticket = state.combiner.queue.join(now, until, Arc::clone(entry));
        let batch = if self.gathers(&state, now) {
            None
        } else {
            self.take_batch(&mut state, cap_rule, now)
        };
        if batch.is_none() && (state.out == 0 || self.is_closed() || self.is_retired()) {
            state.combiner.queue.leave(ticket);
            return None;
        }
        Some((ticket, batch))
    }

    /// The next step of a call that has waited for [`PATIENCE`], or until its deadline if that `is_over`.
    pub(crate) fn look(&self, ticket: Ticket, cap_rule: Cap, is_over: bool) -> Look<'_> {
        let mut state = self.state.lock();
        if !state.combiner.queue.contains(ticket) {
            return Look::Waits;
        }
        if !is_over && let Some(batch) = self.take_batch(&mut state, cap_rule, Instant::now()) {
            return Look::Sends(Box::new(batch));
        }
        if is_over || cap_rule == Cap::Exempt || state.has_room(self.cap) {
            state.combiner.queue.leave(ticket);
            return Look::Alone;
        }
        Look::Waits
    }

    /// Takes an idle connection for the calls in the queue.
    fn take_batch(&self, state: &mut State, cap_rule: Cap, now: Instant) -> Option<Batch<'_>> {
        let connection = state.take(cap_rule, self.cap, None)?;
        let Some(calls) = state.combiner.queue.take(now) else {
            state.put_back(connection);
            return None;
        };
        Some(self.batch(state, connection, calls, now))
    }

    fn batch(
        &self,
        state: &mut State,
        connection: Connection,
        (reader, others): (Arc<CombinedCall>, Vec<Arc<CombinedCall>>),
        now: Instant,
    ) -> Batch<'_> {
        state.combiner.in_flight = Some(now);
        self.combiner.is_on.store(true, Ordering::Relaxed);
        Batch {
            pooled: self.pooled(connection, Some(now)),
            reader,
            others,
            now,
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
        if !state.combiner.queue.is_empty() {
            let now = Instant::now();
            let has_waited = |waited| waited >= PATIENCE;
            let is_due = || state.combiner.queue.waited(now).is_some_and(has_waited);
            if (!pool.gathers(&state, now) || is_due())
                && state.is_turn_of_queue()
                && let Some(calls) = state.combiner.queue.take(now)
            {
                return Some(pool.batch(&mut state, connection, calls, now));
            }
        }
        pool.put_back(&mut state, connection);
        None
    }
}

impl InFlight<'_> {
    /// Whether no other call was in progress.
    pub(crate) fn is_alone(&self) -> bool {
        self.before == 0
    }

    /// Whether so many others were there that it goes along with them.
    pub(crate) fn is_one_of_many(&self, cap_rule: Cap) -> bool {
        let Pool { cap, combiner, .. } = self.pool;
        if combiner.is_near() {
            self.before >= OWN.min(*cap) || combiner.is_on.load(Ordering::Relaxed)
        } else {
            cap_rule == Cap::Counted && self.before >= *cap
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.pool.combiner.calls.fetch_sub(1, Ordering::Relaxed);
    }
}
