//! Calls that share a write: when they do, and which connection of the pool carries it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock::Instant;
use crate::redis::conn::call_queue::Ticket;
use crate::redis::conn::callers::Cap;
use crate::redis::conn::combined_call::CombinedCall;
use crate::redis::conn::connection::Connection;
use crate::redis::conn::pool::{Pool, PooledConnection};
use crate::redis::conn::pool_state::PoolState;

/// To a near server, at most this many calls at a time get a connection each; fewer if
/// `max_connections` is smaller. From the next one on, calls are combined until the queue is empty.
///
/// Ratios to a program with one connection for each thread, measured alternately on two cores that
/// other programs also used. `--bench threads` measures most of these rows again:
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
/// So combining pays at every count from here on, in time and in CPU. With a lower threshold,
/// 6 threads gained nothing beyond noise: batches of few calls do not pay for the wake-ups.
const UNCOMBINED_CALLS: usize = 8;

/// While another connection is idle, new calls are queued behind a batch for at most this long
/// after it was sent. Most replies arrive sooner.
const STUCK: Duration = Duration::from_millis(2);

/// A call that has been queued this long takes any idle connection, even if a batch is in flight.
/// Longer than [`STUCK`]: after that, a new call or a returned connection sends the queue, so few
/// calls wait this long.
pub(super) const COMBINE_WAIT: Duration = Duration::from_millis(5);

/// A call in progress.
pub(crate) struct InFlight<'a> {
    pool: &'a Pool,
    before: usize,
}

/// A batch of calls for one write, and the connection that carries it.
#[must_use]
pub(crate) struct Batch<'a> {
    pub(crate) pooled: PooledConnection<'a>,
    /// The call whose thread reads the replies to all of them.
    pub(super) reader: Arc<CombinedCall>,
    pub(crate) others: Vec<Arc<CombinedCall>>,
    /// When the batch was taken: each call still had time.
    pub(super) now: Instant,
}

/// The next step of a call that has waited in the queue for [`COMBINE_WAIT`].
pub(super) enum NextStep<'a> {
    /// It keeps waiting: for a connection, or for its reply if it was sent meanwhile.
    Waits,
    /// It sends this batch, which most likely contains its own command.
    Sends(Box<Batch<'a>>),
    /// It has left the queue and asks the pool for its own connection.
    Alone,
}

impl Pool {
    /// Counts a call as in progress until the returned value is dropped.
    pub(crate) fn enter(&self) -> InFlight<'_> {
        let before = self.combiner.calls.fetch_add(1, Ordering::Relaxed);
        InFlight { pool: self, before }
    }

    /// Returns whether new calls are queued behind a batch in flight. With a distant server they
    /// are not: they would only wait for each other.
    fn queues_calls(&self, state: &PoolState, now: Instant) -> bool {
        let is_late = |sent: Instant| sent.until(now) > STUCK;
        state.batch_sent.is_some_and(|sent| !is_late(sent)) && self.combiner.is_near()
    }

    /// Queues a call. Returns its ticket, with a batch if one can be sent now. Returns `None`, and
    /// does not queue the call, if no connection would come back for the queue.
    pub(crate) fn join(
        &self,
        now: Instant,
        until: Instant,
        cap_rule: Cap,
        call: &Arc<CombinedCall>,
    ) -> Option<(Ticket, Option<Batch<'_>>)> {
        let mut state = self.state.lock();
        let ticket = state.queue.join(now, until, Arc::clone(call));
        let batch = if self.queues_calls(&state, now) {
            None
        } else {
            self.take_batch(&mut state, cap_rule, now)
        };
        if batch.is_none() && (state.out == 0 || self.is_over()) {
            state.queue.leave(ticket);
            return None;
        }
        Some((ticket, batch))
    }

    /// Returns the next step of a call that has been queued for [`COMBINE_WAIT`], or until its
    /// deadline if `is_over`.
    pub(super) fn next_step(&self, ticket: Ticket, cap_rule: Cap, is_over: bool) -> NextStep<'_> {
        let mut state = self.state.lock();
        if !state.queue.contains(ticket) {
            return NextStep::Waits;
        }
        if !is_over && let Some(batch) = self.take_batch(&mut state, cap_rule, Instant::now()) {
            return NextStep::Sends(Box::new(batch));
        }
        if is_over || cap_rule == Cap::Exempt || state.has_room(self.cap) {
            state.queue.leave(ticket);
            return NextStep::Alone;
        }
        NextStep::Waits
    }

    /// Takes an idle connection for the queued calls.
    fn take_batch(&self, state: &mut PoolState, cap_rule: Cap, now: Instant) -> Option<Batch<'_>> {
        let connection = state.take(cap_rule, self.cap, None)?;
        let Some(calls) = state.queue.take(now) else {
            state.put_back(connection);
            return None;
        };
        Some(self.batch(state, connection, calls, now))
    }

    fn batch(
        &self,
        state: &mut PoolState,
        connection: Connection,
        (reader, others): (Arc<CombinedCall>, Vec<Arc<CombinedCall>>),
        now: Instant,
    ) -> Batch<'_> {
        state.batch_sent = Some(now);
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
    /// Puts the connection back after an exchange that left no reply unread. If queued calls take
    /// it, returns their batch, to be sent over it.
    pub(super) fn put_back_or_batch(mut self) -> Option<Batch<'a>> {
        let connection = self.connection.take()?;
        let pool = self.pool;
        let mut state = pool.state.lock();
        pool.note_answered(&mut state, self.sent);
        if !pool.has_room_for(&state, &connection) {
            pool.vacated(&mut state);
            // Closing takes a system call: not under the lock.
            drop(state);
            drop(connection);
            return None;
        }
        if !state.queue.is_empty() {
            let now = Instant::now();
            let has_waited = |waited| waited >= COMBINE_WAIT;
            let is_due = || state.queue.waited(now).is_some_and(has_waited);
            if (!pool.queues_calls(&state, now) || is_due())
                && state.take_turn_of_queue()
                && let Some(calls) = state.queue.take(now)
            {
                return Some(pool.batch(&mut state, connection, calls, now));
            }
        }
        state.put_back(connection);
        pool.wake_next(&state);
        None
    }
}

impl InFlight<'_> {
    /// Returns whether to combine this call: enough others were in progress, or a batch is in
    /// flight. With a distant server: it would most likely have to wait for a connection.
    pub(crate) fn is_one_of_many(&self, cap_rule: Cap) -> bool {
        let Pool { cap, combiner, .. } = self.pool;
        if combiner.is_near() {
            self.before >= UNCOMBINED_CALLS.min(*cap) || combiner.is_on.load(Ordering::Relaxed)
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
