//! The connections to one server: last in first out, with a cap that a release never waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::clock::{Instant, nap};
use crate::error::{Cause, Error};
use crate::redis::combine::combiner::{Sharers, Sharing};
use crate::redis::conn::callers::{Callers, Number};
use crate::redis::conn::dial::Dialing;
use crate::redis::conn::node::{NoWire, Node, Wire};

/// Whether a caller takes its turn under the cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Waits while `max_connections` are in use.
    Capped,
    /// Gets one more: releases, and the threads of the client.
    Free,
}

pub(crate) struct Pool {
    pub(crate) node: Node,
    pub(in crate::redis) cap: usize,
    pub(in crate::redis) state: Mutex<State>,
    /// Notified when a connection comes back or was made, and when none can be made.
    wished: Condvar,
    pub(in crate::redis) sharing: Sharing,
    closed: AtomicBool,
    /// The server keeps no slot of its cluster any more.
    retired: AtomicBool,
    /// Rises when every connection there is has become useless.
    generation: AtomicU64,
}

#[derive(Default)]
pub(in crate::redis) struct State {
    pub(in crate::redis) idle: Vec<Wire>,
    /// Connections that callers have out.
    pub(in crate::redis) out: usize,
    callers: Callers<Thread>,
    /// How many connections are wished for, in the free lane.
    wishes: usize,
    pub(in crate::redis) sharers: Sharers,
    pub(in crate::redis) dialing: Dialing,
}

impl State {
    /// Takes an idle connection for the call that waits as `number`, or does not wait yet: if the lane may have one, and
    /// none that goes to a call before it.
    pub(in crate::redis) fn take(
        &mut self,
        lane: Lane,
        cap: usize,
        number: Option<Number>,
    ) -> Option<Wire> {
        let room = cap.saturating_sub(self.out);
        let before = self.callers.before(number, lane, room)?;
        let wishes = if lane == Lane::Capped { self.wishes } else { 0 };
        if self.idle.len() <= before + wishes {
            return None;
        }
        let wire = self.idle.pop()?;
        self.out += 1;
        Some(wire)
    }

    pub(in crate::redis) fn put_back(&mut self, wire: Wire) {
        self.out -= 1;
        self.idle.push(wire);
    }

    /// Whether another connection may be made, beside those that are wanted already.
    pub(in crate::redis) fn has_room(&self, cap: usize) -> bool {
        self.out + self.idle.len() + self.callers.count(Lane::Capped) < cap
    }

    /// Whether anybody waits for a connection of its own.
    pub(in crate::redis) fn is_awaited(&self) -> bool {
        !self.callers.is_empty() || self.wishes > 0
    }

    /// How many more connections are wanted than there are.
    pub(in crate::redis) fn wanted(&self, cap: usize) -> usize {
        let room = cap.saturating_sub(self.out);
        let capped = self.callers.count(Lane::Capped).min(room);
        let free = self.callers.count(Lane::Free) + self.wishes;
        (free + capped).saturating_sub(self.idle.len())
    }
}

/// A connection in use; dropping it closes it, as befits one that failed.
pub(crate) struct Lent<'a> {
    pub(in crate::redis) pool: &'a Pool,
    pub(in crate::redis) wire: Option<Wire>,
    /// When the calls of several were sent over it, whose answers are not in.
    pub(in crate::redis) sent: Option<Instant>,
}

/// A connection that is wanted soon, while its caller does something else.
pub(crate) struct Wish<'a> {
    pool: &'a Arc<Pool>,
    /// How often dialing had failed when it was wished for.
    failed_before: u64,
    /// Somebody had wished for one before, in vain so far.
    pub(crate) is_late: bool,
}

/// Why no connection was lent.
pub(crate) enum Refusal {
    /// Not within the time given.
    NotYet(NoWire),
    Never(Error),
}

impl Pool {
    pub(crate) fn new(node: Node, cap: usize) -> Self {
        Self {
            node,
            cap,
            state: Mutex::default(),
            wished: Condvar::new(),
            sharing: Sharing::default(),
            closed: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            generation: AtomicU64::new(0),
        }
    }

    /// Lends the connection that was used last, or a new one, by `until`.
    pub(crate) fn lend(self: &Arc<Self>, until: Instant, lane: Lane) -> Result<Lent<'_>, Refusal> {
        let mut state = self.state.lock();
        let mut number = None;
        let lent = self.lend_with(&mut state, until, lane, &mut number);
        if let Some(number) = number {
            state.callers.leave(number);
        }
        if lent.is_err() {
            // Others may count on the connection that this call was about to get.
            state.dismiss_one();
            self.ring(&state);
        }
        lent
    }

    fn lend_with(
        self: &Arc<Self>,
        state: &mut MutexGuard<'_, State>,
        until: Instant,
        lane: Lane,
        number: &mut Option<Number>,
    ) -> Result<Lent<'_>, Refusal> {
        let failed_before = state.dialing.failed_times;
        let mut in_time = true;
        loop {
            if self.is_retired() {
                return Err(Refusal::NotYet(NoWire {
                    cause: Cause::text("it keeps no slot of the cluster any more"),
                    is_final: false,
                    is_the_servers: false,
                }));
            }
            if let Some(wire) = state.take(lane, self.cap, *number) {
                return Ok(self.lent(wire, None));
            }
            if lane == Lane::Capped && self.is_closed() {
                return Err(Refusal::Never(Error::Closed));
            }
            // A failure counts for those who waited for it; who comes later waits for the next.
            let has_failed = state.dialing.failed_times != failed_before;
            let failure = state
                .dialing
                .failure()
                .filter(|failure| has_failed || !failure.is_final);
            match failure {
                Some(failure) if failure.is_final => return Err(Refusal::NotYet(failure.clone())),
                Some(failure) if !in_time => return Err(Refusal::NotYet(failure.clone())),
                None if !in_time => return Err(Refusal::NotYet(self.no_reason(state, lane))),
                _ => {}
            }
            let now = Instant::now();
            number.get_or_insert_with(|| state.callers.join(lane, thread::current()));
            self.ensure_dialer(state, now).map_err(Refusal::Never)?;
            // A wake-up that comes first is not missed: the thread then does not park.
            MutexGuard::unlocked(state, || thread::park_timeout(nap(now, until)));
            in_time = Instant::now() < until;
        }
    }

    /// Has a connection made, if none lies idle, without waiting for it.
    pub(crate) fn wish(self: &Arc<Self>) -> Result<Wish<'_>, Error> {
        let mut state = self.state.lock();
        let wish = Wish {
            pool: self,
            failed_before: state.dialing.failed_times,
            is_late: state.dialing.is_at_work(),
        };
        state.wishes += 1;
        let started = self.ensure_dialer(&mut state, Instant::now());
        drop(state);
        started.map(|()| wish)
    }

    pub(in crate::redis) fn lent(&self, wire: Wire, sent: Option<Instant>) -> Lent<'_> {
        Lent {
            pool: self,
            wire: Some(wire),
            sent,
        }
    }

    /// Whether a connection that comes back may stay.
    pub(in crate::redis) fn has_room_for(&self, state: &State, wire: &Wire) -> bool {
        let is_current = wire.generation == self.generation() && !self.is_closed();
        is_current && state.out + state.idle.len() <= self.cap
    }

    /// A connection comes back, and stays.
    pub(in crate::redis) fn lay_by(&self, state: &mut State, wire: Wire) {
        state.put_back(wire);
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
            None => self.no_reason(&state, Lane::Free).cause,
        }
    }

    fn no_reason(&self, state: &State, lane: Lane) -> NoWire {
        let cause = if lane == Lane::Capped && state.out >= self.cap {
            Cause::of_client(format!(
                "all {} connections (max_connections) were in use",
                self.cap
            ))
        } else {
            self.node.no_connection_yet()
        };
        NoWire {
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
            self.sharing.forget_trips();
            self.forget_idle();
        }
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

impl Wish<'_> {
    /// The connection, for good, or why there is none; `None` while it is being made.
    pub(crate) fn look(&self) -> Option<Result<Wire, NoWire>> {
        let mut state = self.pool.state.lock();
        if let Some(wire) = state.idle.pop() {
            return Some(Ok(wire));
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

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.wishes -= 1;
        self.pool.ring(&state);
    }
}

impl Lent<'_> {
    pub(crate) fn wire(&mut self) -> &mut Wire {
        // Taken only by the methods that consume self.
        self.wire.as_mut().expect("a connection that is lent")
    }

    pub(crate) fn generation(&self) -> u64 {
        // Taken only by the methods that consume self.
        self.wire.as_ref().map_or(0, |wire| wire.generation)
    }

    /// Hands the connection over to another thread, still in use.
    pub(crate) fn hand(mut self) -> Wire {
        // Taken only by the methods that consume self.
        self.wire.take().expect("a connection that is lent")
    }

    /// Takes the connection out of the pool for good, for a thread that keeps it.
    pub(crate) fn keep(mut self) -> Wire {
        // Taken only by the methods that consume self.
        let wire = self.wire.take().expect("a connection that is lent");
        self.pool.is_gone(self.sent);
        wire
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if self.wire.take().is_some() {
            self.pool.is_gone(self.sent);
        }
    }
}
