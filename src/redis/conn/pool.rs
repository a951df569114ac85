//! The connections to one server: a pool, last in first out, with a cap that never delays a
//! release.
//!
//! Combined calls are calls of several threads that share one connection and one write, a batch.
//!
//! The states of a connection:
//!
//! ```text
//!             made          take
//!   (wanted) -----> idle -----------> in use -----> kept by a thread
//!                    | ^                |  |   keep
//!                    | +----------------+  |
//!      forget_idle   |      put_back       |  dropped after an error, or no room
//!                    v                     v
//!                  closed                closed
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::thread;

use crate::clock::{Instant, nap};
use crate::error::Cause;
use crate::redis::conn::callers::{Cap, Number, this_thread};
use crate::redis::conn::connection::Connection;
use crate::redis::conn::connector::Connector;
use crate::redis::conn::dial::ConnectError;
use crate::redis::conn::pool_state::{Combiner, PoolState};
use crate::sync::{Mutex, MutexGuard};

pub(crate) struct Pool {
    pub(crate) connector: Connector,
    pub(in crate::redis) cap: usize,
    pub(in crate::redis) state: Mutex<PoolState>,
    pub(in crate::redis) combiner: Combiner,
    /// A connection was made, and since then no write was answered, and none was closed.
    pub(super) is_unproven: AtomicBool,
    /// Two servers behind the address take writes.
    pub(super) are_two: AtomicBool,
    closed: AtomicBool,
    /// Set when the server no longer owns any slot of its cluster.
    retired: AtomicBool,
    /// Increased when all existing connections have become useless.
    generation: AtomicU64,
}

/// A connection in use. Dropping it closes it: only failed connections are dropped.
pub(crate) struct PooledConnection<'a> {
    pub(in crate::redis) pool: &'a Pool,
    pub(in crate::redis) connection: Option<Connection>,
    /// When its unanswered batch of combined calls was sent; `None` without such a batch.
    pub(in crate::redis) sent: Option<Instant>,
}

/// A request for a connection, which a dialer makes while the caller does something else.
pub(crate) struct ConnectRequest {
    pool: Arc<Pool>,
    number: Number,
    /// How often dialing had failed when the request was made.
    failed_before: u64,
}

impl Pool {
    pub(crate) fn new(connector: Connector, cap: usize) -> Self {
        Self {
            connector,
            cap,
            state: Mutex::default(),
            combiner: Combiner::default(),
            is_unproven: AtomicBool::new(false),
            are_two: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            generation: AtomicU64::new(0),
        }
    }

    /// Returns the connection used last, or a new one, by `until`.
    pub(crate) fn acquire_connection(
        self: &Arc<Self>,
        until: Instant,
        cap_rule: Cap,
    ) -> Result<PooledConnection<'_>, ConnectError> {
        let mut state = self.state.lock();
        let mut number = None;
        let pooled = self.get_with(&mut state, until, cap_rule, &mut number);
        if let Some(number) = number {
            self.leave_queue(&mut state, number);
        }
        if pooled.is_err() {
            // A combined call may wait for the connection that this call would have returned.
            state.dismiss_one();
        }
        if pooled.is_err() || number.is_some() {
            // Several wake-ups may have gone to this call: one connection was returned and another
            // one closed.
            self.wake_next(&state);
        }
        pooled
    }

    fn get_with(
        self: &Arc<Self>,
        state: &mut MutexGuard<'_, PoolState>,
        until: Instant,
        cap_rule: Cap,
        number: &mut Option<Number>,
    ) -> Result<PooledConnection<'_>, ConnectError> {
        let failed_before = state.dialing.failed_times;
        let mut in_time = true;
        loop {
            if self.is_retired() {
                return Err(Self::no_slot_left());
            }
            if let Some(connection) = state.take(cap_rule, self.cap, *number) {
                return Ok(self.pooled(connection, None));
            }
            if cap_rule != Cap::Exempt && self.is_closed() {
                let cause = Cause::of_client("the client was shut down");
                return Err(ConnectError::of_client(cause));
            }
            // Only the calls that were waiting when dialing failed can fail at once. A later call
            // waits for the next attempt. If its time ends first, it reports the earlier failure,
            // unless that one was final.
            let has_failed = state.dialing.failed_times != failed_before;
            let failure = state.dialing.failure.as_ref();
            let failure = failure.filter(|failure| has_failed || !failure.is_final);
            let may_end = has_failed && !state.gives_back(cap_rule);
            let is_over = |failure: &ConnectError| !in_time || (may_end && failure.ends_waits());
            match failure {
                Some(failure) if is_over(failure) => return Err(failure.clone()),
                None if !in_time => return Err(self.no_reason(state, cap_rule)),
                _ => {}
            }
            let now = Instant::now();
            number.get_or_insert_with(|| state.callers.join(cap_rule, this_thread()));
            state.note_end(until);
            let again = self.ensure_dialer(state, now).unwrap_or(until).min(until);
            // A wake-up that comes before `park_timeout` is not missed: the thread then does not
            // park.
            MutexGuard::unlocked(state, || thread::park_timeout(nap(now, again)));
            in_time = Instant::now() < until;
        }
    }

    /// Removes a caller. If it is the last one of a closed pool, ends the dial.
    fn leave_queue(&self, state: &mut PoolState, number: Number) {
        state.callers.leave(number);
        if !self.may_dial(state) {
            self.hurry_dialer(state);
        }
    }

    /// Returns whether the pool has a connection, idle or in use.
    pub(in crate::redis) fn has_connection(&self) -> bool {
        self.state.lock().has_connection()
    }

    /// Requests a connection without waiting for it; a dialer starts if none is idle. The pool
    /// wakes `waker` when [`poll`](ConnectRequest::poll) may return something. The caller gives
    /// up at `until`.
    pub(in crate::redis) fn request(
        self: &Arc<Self>,
        until: Instant,
        waker: Waker,
    ) -> ConnectRequest {
        let mut state = self.state.lock();
        state.note_end(until);
        let failed_before = state.dialing.failed_times;
        let number = state.callers.join(Cap::Exempt, waker);
        // A failure to start one is found by `poll`.
        let _ = self.ensure_dialer(&mut state, Instant::now());
        drop(state);
        ConnectRequest {
            pool: Arc::clone(self),
            number,
            failed_before,
        }
    }

    pub(in crate::redis) fn pooled(
        &self,
        connection: Connection,
        sent: Option<Instant>,
    ) -> PooledConnection<'_> {
        PooledConnection {
            pool: self,
            connection: Some(connection),
            sent,
        }
    }

    /// Returns whether the pool keeps a connection that is returned.
    pub(in crate::redis) fn has_room_for(
        &self,
        state: &PoolState,
        connection: &Connection,
    ) -> bool {
        let is_of_use = self.is_current(connection.generation) && !self.is_closed();
        is_of_use && !connection.has_surplus() && state.out + state.idle.len() <= self.cap
    }

    /// Counts a connection as closed and wakes the waiters that may now have one made.
    pub(in crate::redis) fn vacated(&self, state: &mut PoolState) {
        state.out -= 1;
        // Combined calls use connections that are returned. For an idle one to be used, or another
        // one to be made, a combined call must ask for its own.
        if state.has_room(self.cap) || !state.idle.is_empty() {
            state.dismiss_one();
        }
        self.wake_next(state);
    }

    /// Records that the replies to the batch sent at `sent` are read or lost.
    pub(in crate::redis) fn note_answered(&self, state: &mut PoolState, sent: Option<Instant>) {
        if sent.is_some() && state.batch_sent == sent {
            state.batch_sent = None;
            self.combiner.is_on.store(false, Ordering::Relaxed);
        }
    }

    /// Records that a write was answered.
    pub(in crate::redis) fn note_write(&self) {
        if self.is_unproven.load(Ordering::Relaxed) {
            self.is_unproven.store(false, Ordering::Relaxed);
            self.state.lock().dialing.proven();
        }
    }

    /// Records that the peer has closed a connection in place of a reply, for this reason.
    pub(in crate::redis) fn note_closed(&self, cause: &Cause) {
        if self.is_unproven.load(Ordering::Relaxed) {
            let failure = ConnectError::of_server(cause.clone());
            (self.state.lock().dialing).closed(Instant::now(), failure);
        }
    }

    /// Takes back a connection that was lent.
    pub(in crate::redis) fn give_back(&self, connection: Connection) {
        let mut state = self.state.lock();
        if !self.has_room_for(&state, &connection) {
            self.vacated(&mut state);
            drop(state);
            return;
        }
        state.put_back(connection);
        state.offer_idle();
        self.wake_next(&state);
    }

    /// Records that a connection that was lent is closed.
    pub(in crate::redis) fn lost(&self) {
        self.vacated(&mut self.state.lock());
    }

    /// Wakes all waiters, and has each combined call ask for its own connection.
    fn dismiss(&self) {
        let all = self.state.lock().queue.dismiss();
        for call in all {
            call.send_alone();
        }
        self.wake_all(&self.state.lock());
    }

    /// Records that a connection was closed or taken out of the pool.
    fn note_gone(&self, sent: Option<Instant>) {
        let mut state = self.state.lock();
        self.note_answered(&mut state, sent);
        self.vacated(&mut state);
    }

    /// Wakes the next waiters: a connection is idle, or there is room to make one.
    pub(in crate::redis) fn wake_next(&self, state: &PoolState) {
        let next = state.callers.next(self.cap.saturating_sub(state.out));
        // Those that keep a connection may have to leave an idle one to the calls behind them.
        let woken = state.idle.len().max(1) + state.callers.keeping();
        next.take(woken).for_each(Waker::wake_by_ref);
    }

    pub(super) fn wake_all(&self, state: &PoolState) {
        state.callers.next(usize::MAX).for_each(Waker::wake_by_ref);
    }

    /// Returns why there is no connection yet: the last dialing failure, if no connection was made
    /// since.
    pub(in crate::redis) fn last_failure(&self) -> ConnectError {
        let state = self.state.lock();
        let failure = state.dialing.failure.clone();
        failure.unwrap_or_else(|| self.no_reason(&state, Cap::Exempt))
    }

    /// Returns why there is no connection to a server without slots.
    pub(in crate::redis) fn no_slot_left() -> ConnectError {
        ConnectError::of_client(Cause::of_client("it keeps no slot of the cluster any more"))
    }

    fn no_reason(&self, state: &PoolState, cap_rule: Cap) -> ConnectError {
        let cause = if cap_rule == Cap::Counted && state.out >= self.cap {
            Cause::of_client(format!(
                "all {} connections (max_connections) were in use",
                self.cap
            ))
        } else {
            self.connector.no_connection_yet()
        };
        ConnectError::of_client(cause)
    }

    /// Closes the idle connections after one failed: the others are most likely dead too, and each
    /// dead connection would cost an acquire with an unknown outcome, or a try of a renewal.
    pub(crate) fn forget_idle(&self) {
        let idle = std::mem::take(&mut self.state.lock().idle);
        // Each close takes a system call: not under the lock.
        drop(idle);
    }

    /// Gives up all connections of this generation, because their server is wrong or cannot serve
    /// now. Those in use are closed when they are returned. Returns false if another thread was
    /// first.
    pub(crate) fn leave(&self, generation: u64) -> bool {
        let next = generation + 1;
        let left =
            self.generation
                .compare_exchange(generation, next, Ordering::SeqCst, Ordering::SeqCst);
        if left.is_ok() {
            self.combiner.forget_trips();
            self.forget_idle();
        }
        left.is_ok()
    }

    /// As [`leave`](Self::leave), while a connection to another server is made. Returns the
    /// generation of that connection. If another thread was first, a further server may have taken
    /// over since: the connection then keeps the old generation, and is not used.
    pub(super) fn leave_for_new(&self, generation: u64) -> u64 {
        if self.leave(generation) {
            generation + 1
        } else {
            generation
        }
    }

    /// As [`leave`](Self::leave), after a server replied that it cannot serve now. The next
    /// connection may lead to the server that took over.
    pub(crate) fn suspect(&self, generation: u64) {
        if self.is_current(generation)
            && let Some(sentinels) = self.connector.sentinels()
        {
            // First: a dialer that begins after the generation has changed must ask the sentinels.
            sentinels.suspect();
        }
        self.leave(generation);
    }

    /// As [`leave`](Self::leave), when another server has taken over. Waiting calls stop waiting
    /// for a connection to the old one.
    pub(crate) fn move_on(&self) {
        self.leave(self.generation());
        let mut state = self.state.lock();
        state.dialing.abandon_current();
        self.hurry_dialer(&mut state);
        state.wake_watcher();
        drop(state);
        self.dismiss();
    }

    /// Retires the pool: the server owns no slot any more, and waiting calls fail.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
        self.move_on();
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Returns whether the connections of this generation lead to the server that currently grants
    /// the locks, as far as known.
    pub(in crate::redis) fn is_current(&self, generation: u64) -> bool {
        generation == self.generation()
    }

    /// Closes the pool: connections in use are closed when they are returned. Only calls exempt
    /// from the cap may still have one made, to release what was granted at the last moment.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.forget_idle();
        self.dismiss();
        let mut state = self.state.lock();
        if state.callers.is_empty() {
            self.hurry_dialer(&mut state);
        }
        state.wake_watcher();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Returns whether the pool is closed or retired.
    pub(in crate::redis) fn is_over(&self) -> bool {
        self.is_closed() || self.is_retired()
    }

    /// Returns whether a new connection can be of use: while the pool is open, or a call waits.
    pub(super) fn may_dial(&self, state: &PoolState) -> bool {
        !(self.is_closed() && state.callers.is_empty())
    }
}

impl ConnectRequest {
    /// Records when a caller that waits for the connection gives up.
    pub(in crate::redis) fn note_end(&self, until: Instant) {
        self.pool.state.lock().note_end(until);
    }

    /// Takes the connection out of the pool, or returns why there is none; `None` while it is being
    /// made.
    pub(crate) fn poll(&self) -> Option<Result<Connection, ConnectError>> {
        let mut state = self.pool.state.lock();
        if let Some(connection) = state.idle.pop() {
            state.callers.leave(self.number);
            if state.out == 0 {
                // This connection leaves the pool and none is in use, so none would come back to
                // the queue of combined calls.
                state.dismiss_one();
            }
            return Some(Ok(connection));
        }
        let has_failed = state.dialing.failed_times != self.failed_before;
        let failure = state.dialing.failure.as_ref().filter(|_| has_failed);
        failure.cloned().map(Err)
    }

    /// Like [`poll`](Self::poll), for a caller that waits while another attempt may succeed.
    ///
    /// If the connection is the pool's last one, it is only lent: it counts as in use, and the
    /// caller must [give it back](Pool::give_back) soon, or [report](Pool::lost) that it failed.
    pub(in crate::redis) fn lend(&self) -> Option<Result<(Connection, IsLent), ConnectError>> {
        {
            let mut state = self.pool.state.lock();
            if state.out == 0
                && state.idle.len() == 1
                && let Some(connection) = state.idle.pop()
            {
                state.callers.leave(self.number);
                state.out += 1;
                return Some(Ok((connection, true)));
            }
        }
        match self.poll()? {
            Ok(connection) => Some(Ok((connection, false))),
            Err(failure) if failure.ends_waits() && !self.pool.has_connection() => {
                Some(Err(failure))
            }
            Err(_) => None,
        }
    }
}

/// Whether a connection must be given back to its pool.
pub(in crate::redis) type IsLent = bool;

impl Drop for ConnectRequest {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        self.pool.leave_queue(&mut state, self.number);
        self.pool.wake_next(&state);
    }
}

impl PooledConnection<'_> {
    pub(crate) fn connection(&mut self) -> &mut Connection {
        let connection = self.connection.as_mut();
        connection.expect("taken only by the methods that consume self")
    }

    /// Returns the connection for another thread to use; it still counts as in use.
    pub(crate) fn into_connection(mut self) -> Connection {
        self.take()
    }

    fn take(&mut self) -> Connection {
        let connection = self.connection.take();
        connection.expect("taken only by the methods that consume self")
    }

    /// Closes the connection after a reply that the server cannot serve now.
    pub(in crate::redis) fn reject(self) {
        let pool = self.pool;
        let generation = self.keep().generation;
        pool.suspect(generation);
    }

    /// Takes the connection out of the pool permanently, for a thread that keeps it.
    pub(crate) fn keep(mut self) -> Connection {
        let connection = self.take();
        self.pool.note_gone(self.sent);
        connection
    }
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        if self.connection.take().is_some() {
            self.pool.note_gone(self.sent);
        }
    }
}
