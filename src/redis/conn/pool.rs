//! The connections to one server: last in first out, with a cap that a release never waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::clock::{Instant, nap};
use crate::error::{Cause, Error};
use crate::redis::conn::callers::{Callers, Cap, Number};
use crate::redis::conn::combined_call::Delivery;
use crate::redis::conn::combiner_state::{Combiner, CombinerState};
use crate::redis::conn::connection::Connection;
use crate::redis::conn::connector::Connector;
use crate::redis::conn::dial::{ConnectError, Dialing};

pub(crate) struct Pool {
    pub(crate) node: Connector,
    pub(in crate::redis) cap: usize,
    pub(in crate::redis) state: Mutex<State>,
    /// Notified when a connection comes back or was made, and when none can be made.
    wished: Condvar,
    pub(in crate::redis) combiner: Combiner,
    closed: AtomicBool,
    /// The server keeps no slot of its cluster any more.
    retired: AtomicBool,
    /// Rises when every connection there is has become useless.
    generation: AtomicU64,
}

#[derive(Default)]
pub(in crate::redis) struct State {
    pub(in crate::redis) idle: Vec<Connection>,
    /// Connections that callers have out.
    pub(in crate::redis) out: usize,
    callers: Callers<Thread>,
    /// How many connections are wished for, in the free lane.
    wishes: usize,
    pub(in crate::redis) combiner: CombinerState,
    pub(in crate::redis) dialing: Dialing,
}

impl State {
    /// Takes an idle connection for the call that waits as `number`, or does not wait yet: if the lane may have one, and
    /// none that goes to a call before it.
    pub(in crate::redis) fn take(
        &mut self,
        cap_rule: Cap,
        cap: usize,
        number: Option<Number>,
    ) -> Option<Connection> {
        let room = cap.saturating_sub(self.out);
        let before = self.callers.before(number, cap_rule, room)?;
        let wishes = if cap_rule == Cap::Counted {
            self.wishes
        } else {
            0
        };
        if self.idle.len() <= before + wishes {
            return None;
        }
        let connection = self.idle.pop()?;
        self.out += 1;
        Some(connection)
    }

    pub(in crate::redis) fn put_back(&mut self, connection: Connection) {
        self.out -= 1;
        self.idle.push(connection);
    }

    /// Whether another connection may be made, beside those that are wanted already.
    pub(in crate::redis) fn has_room(&self, cap: usize) -> bool {
        self.out + self.idle.len() + self.callers.count(Cap::Counted) < cap
    }

    /// Whether anybody waits for a connection of its own.
    pub(in crate::redis) fn is_awaited(&self) -> bool {
        !self.callers.is_empty() || self.wishes > 0
    }

    /// How many more connections are wanted than there are.
    pub(in crate::redis) fn wanted(&self, cap: usize) -> usize {
        let room = cap.saturating_sub(self.out);
        let capped = self.callers.count(Cap::Counted).min(room);
        let free = self.callers.count(Cap::Exempt) + self.wishes;
        (free + capped).saturating_sub(self.idle.len())
    }

    /// Whether the next free connection goes to the queue: it alternates with calls that go alone.
    pub(in crate::redis) fn is_turn_of_queue(&mut self) -> bool {
        if self.combiner.queue.is_empty() {
            return false;
        }
        if self.is_awaited() {
            self.combiner.is_turn_of_own = !self.combiner.is_turn_of_own;
            return !self.combiner.is_turn_of_own;
        }
        true
    }

    /// Sends the first call of the queue away to ask for a connection, since none may come back.
    fn dismiss_one(&mut self) {
        if self.is_turn_of_queue()
            && let Some(call) = self.combiner.queue.first(Instant::now())
        {
            // A call that waits no longer needs no connection.
            let _ = call.deliver(Delivery::Alone);
        }
    }
}

/// A connection in use; dropping it closes it, as befits one that failed.
pub(crate) struct PooledConnection<'a> {
    pub(in crate::redis) pool: &'a Pool,
    pub(in crate::redis) connection: Option<Connection>,
    /// When the calls of several were sent over it, whose answers are not in.
    pub(in crate::redis) sent: Option<Instant>,
}

/// A connection that is wanted soon, while its caller does something else.
pub(crate) struct ConnectRequest<'a> {
    pool: &'a Arc<Pool>,
    /// How often dialing had failed when it was wished for.
    failed_before: u64,
    /// Somebody had wished for one before, in vain so far.
    pub(crate) is_late: bool,
}

/// Why no connection was lent.
pub(crate) enum GetError {
    /// Not within the time given.
    NotYet(ConnectError),
    Never(Error),
}

impl Pool {
    pub(crate) fn new(node: Connector, cap: usize) -> Self {
        Self {
            node,
            cap,
            state: Mutex::default(),
            wished: Condvar::new(),
            combiner: Combiner::default(),
            closed: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            generation: AtomicU64::new(0),
        }
    }

    /// Lends the connection that was used last, or a new one, by `until`.
    pub(crate) fn acquire_connection(
        self: &Arc<Self>,
        until: Instant,
        cap_rule: Cap,
    ) -> Result<PooledConnection<'_>, GetError> {
        let mut state = self.state.lock();
        let mut number = None;
        let pooled = self.lend_with(&mut state, until, cap_rule, &mut number);
        if let Some(number) = number {
            state.callers.leave(number);
        }
        if pooled.is_err() {
            // Others may count on the connection that this call was about to get.
            state.dismiss_one();
            self.ring(&state);
        }
        pooled
    }

    fn lend_with(
        self: &Arc<Self>,
        state: &mut MutexGuard<'_, State>,
        until: Instant,
        cap_rule: Cap,
        number: &mut Option<Number>,
    ) -> Result<PooledConnection<'_>, GetError> {
        let failed_before = state.dialing.failed_times;
        let mut in_time = true;
        loop {
            if self.is_retired() {
                return Err(GetError::NotYet(ConnectError {
                    cause: Cause::text("it keeps no slot of the cluster any more"),
                    is_final: false,
                    is_the_servers: false,
                }));
            }
            if let Some(connection) = state.take(cap_rule, self.cap, *number) {
                return Ok(self.pooled(connection, None));
            }
            if cap_rule == Cap::Counted && self.is_closed() {
                return Err(GetError::Never(Error::Closed));
            }
            // A failure counts for those who waited for it; who comes later waits for the next.
            let has_failed = state.dialing.failed_times != failed_before;
            let failure = state
                .dialing
                .failure()
                .filter(|failure| has_failed || !failure.is_final);
            match failure {
                Some(failure) if failure.is_final => return Err(GetError::NotYet(failure.clone())),
                Some(failure) if !in_time => return Err(GetError::NotYet(failure.clone())),
                None if !in_time => return Err(GetError::NotYet(self.no_reason(state, cap_rule))),
                _ => {}
            }
            let now = Instant::now();
            number.get_or_insert_with(|| state.callers.join(cap_rule, thread::current()));
            self.ensure_dialer(state, now).map_err(GetError::Never)?;
            // A wake-up that comes first is not missed: the thread then does not park.
            MutexGuard::unlocked(state, || thread::park_timeout(nap(now, until)));
            in_time = Instant::now() < until;
        }
    }

    /// Has a connection made, if none lies idle, without waiting for it.
    pub(crate) fn wish(self: &Arc<Self>) -> Result<ConnectRequest<'_>, Error> {
        let mut state = self.state.lock();
        let wish = ConnectRequest {
            pool: self,
            failed_before: state.dialing.failed_times,
            is_late: state.dialing.is_at_work(),
        };
        state.wishes += 1;
        let started = self.ensure_dialer(&mut state, Instant::now());
        drop(state);
        started.map(|()| wish)
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

    /// Whether a connection that comes back may stay.
    pub(in crate::redis) fn has_room_for(&self, state: &State, connection: &Connection) -> bool {
        let is_current = connection.generation == self.generation() && !self.is_closed();
        is_current && state.out + state.idle.len() <= self.cap
    }

    /// A connection comes back, and stays.
    pub(in crate::redis) fn put_back(&self, state: &mut State, connection: Connection) {
        state.put_back(connection);
        self.ring(state);
    }

    /// There is room for a connection that somebody may wait for.
    pub(in crate::redis) fn vacated(&self, state: &mut State) {
        state.out -= 1;
        if state.has_room(self.cap) {
            state.dismiss_one();
        }
        self.ring(state);
    }

    /// The answers to what was sent at `sent` are in, or will never be.
    pub(in crate::redis) fn is_answered(&self, state: &mut State, sent: Option<Instant>) {
        if sent.is_some() && state.combiner.in_flight == sent {
            state.combiner.in_flight = None;
            self.combiner.is_on.store(false, Ordering::Relaxed);
        }
    }

    /// Sends every call of the queue away to ask for a connection.
    fn dismiss(&self) {
        let all = self.state.lock().combiner.queue.dismiss();
        for call in all {
            // A call that waits no longer needs no connection.
            let _ = call.deliver(Delivery::Alone);
        }
    }

    /// A connection does not come back.
    fn is_gone(&self, sent: Option<Instant>) {
        let mut state = self.state.lock();
        self.is_answered(&mut state, sent);
        self.vacated(&mut state);
    }

    /// Something has changed that the next waiters can use: a connection lies idle, or there is room to make one.
    fn ring(&self, state: &State) {
        if state.wishes > 0 {
            self.wished.notify_all();
        }
        let next = state.callers.next(self.cap.saturating_sub(state.out));
        next.take(state.idle.len().max(1)).for_each(Thread::unpark);
    }

    pub(in crate::redis) fn ring_all(&self, state: &State) {
        self.wished.notify_all();
        state.callers.next(usize::MAX).for_each(Thread::unpark);
    }

    /// Why there is no connection yet: the last failure, if none was made since.
    pub(in crate::redis) fn last_failure(&self) -> Cause {
        let state = self.state.lock();
        match state.dialing.failure() {
            Some(failure) => failure.cause.clone(),
            None => self.no_reason(&state, Cap::Exempt).cause,
        }
    }

    fn no_reason(&self, state: &State, cap_rule: Cap) -> ConnectError {
        let cause = if cap_rule == Cap::Counted && state.out >= self.cap {
            Cause::of_client(format!(
                "all {} connections (max_connections) were in use",
                self.cap
            ))
        } else {
            self.node.no_connection_yet()
        };
        ConnectError {
            cause,
            is_final: false,
            is_the_servers: false,
        }
    }

    /// The other end hung up on somebody: what lies idle is most likely dead too, and each dead
    /// connection would cost an acquire with an unknown outcome.
    pub(crate) fn forget_idle(&self) {
        let idle = std::mem::take(&mut self.state.lock().idle);
        // Closing takes a system call each: not under the lock.
        drop(idle);
    }

    /// The server that connections of this generation lead to is not the right one any more, or not
    /// for now: all of them are given up, those in use as soon as they come back.
    pub(crate) fn leave(&self, generation: u64) {
        let next = generation + 1;
        let left =
            self.generation
                .compare_exchange(generation, next, Ordering::SeqCst, Ordering::SeqCst);
        // Otherwise somebody was first.
        if left.is_ok() {
            self.combiner.forget_trips();
            self.forget_idle();
        }
    }

    /// As [`leave`](Self::leave), after a server that said "not now": the next connection may lead to
    /// the one that took over.
    pub(crate) fn suspect(&self, generation: u64) {
        if generation == self.generation()
            && let Some(sentinels) = self.node.sentinels()
        {
            // First: a dialer may be about to go there.
            sentinels.doubt();
        }
        self.leave(generation);
    }

    /// As [`leave`](Self::leave), where it is known that there is another server to go to: nobody
    /// waits any longer for a connection to the one before.
    pub(crate) fn move_on(&self) {
        self.leave(self.generation());
        self.state.lock().dialing.leave_behind();
        self.dismiss();
        self.ring_all(&self.state.lock());
    }

    /// The server is of no more use, and nobody waits for it any longer.
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

    /// Keeps no connection from now on; those that are out are closed when they come back. Only the
    /// free lane may still have one made, for what was granted at the last moment.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.forget_idle();
        self.dismiss();
        self.ring_all(&self.state.lock());
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

impl ConnectRequest<'_> {
    /// The connection, for good, or why there is none; `None` while it is being made.
    pub(crate) fn look(&self) -> Option<Result<Connection, ConnectError>> {
        let mut state = self.pool.state.lock();
        if let Some(connection) = state.idle.pop() {
            return Some(Ok(connection));
        }
        let has_failed = state.dialing.failed_times != self.failed_before;
        let failure = state.dialing.failure().filter(|_| has_failed);
        failure.cloned().map(Err)
    }

    /// Waits until there may be something to look at, and no longer than `patience`.
    pub(crate) fn wait(&self, patience: Duration) {
        let mut state = self.pool.state.lock();
        if state.idle.is_empty() && state.dialing.failed_times == self.failed_before {
            self.pool.wished.wait_for(&mut state, patience);
        }
    }
}

impl Drop for ConnectRequest<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.wishes -= 1;
        self.pool.ring(&state);
    }
}

impl PooledConnection<'_> {
    pub(crate) fn connection(&mut self) -> &mut Connection {
        // Taken only by the methods that consume self.
        self.connection.as_mut().expect("a connection that is lent")
    }

    pub(crate) fn generation(&self) -> u64 {
        // Taken only by the methods that consume self.
        self.connection
            .as_ref()
            .map_or(0, |connection| connection.generation)
    }

    /// Hands the connection over to another thread, still in use.
    pub(crate) fn hand(mut self) -> Connection {
        // Taken only by the methods that consume self.
        self.connection.take().expect("a connection that is lent")
    }

    /// Takes the connection out of the pool for good, for a thread that keeps it.
    pub(crate) fn keep(mut self) -> Connection {
        // Taken only by the methods that consume self.
        let connection = self.connection.take().expect("a connection that is lent");
        self.pool.is_gone(self.sent);
        connection
    }
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        if self.connection.take().is_some() {
            self.pool.is_gone(self.sent);
        }
    }
}
