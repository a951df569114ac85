//! The connections to one server: last in first out, with a cap that a release never waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::clock::{Instant, nap};
use crate::error::{Cause, Error};
use crate::server::dial::Dialing;
use crate::server::entry::{Entry, News};
use crate::server::gather::{Gather, Ticket};
use crate::server::node::{NoWire, Node, Wire};

/// So many calls at a time get a connection each. When more come, all go along with others over one
/// connection, until nobody waits any more.
///
/// Processor time of client and server for a lock and an unlock, beside a connection each by hand in the
/// same run, on two busy cores (`--bench threads`):
///
/// | threads | one for all | one for all from the fifth on | four for all |
/// |---|---|---|---|
/// | 2 | 1.27 | 1.04 | 1.14 |
/// | 4 | 1.25 | 0.91 | 1.13 |
/// | 8 | 0.74 | 0.70 | 1.20 |
/// | 32 | 0.56 | 0.65 | 0.73 |
///
/// What few threads gather is too little to pay for waking one another, and several connections
/// gather less each. Of eight threads the processors do less work when they share, but each waits for
/// whoever reads: they reached 0.77 to 1.2 times the pairs a second, 32 threads 1.1 to 1.8 times.
const OWN: usize = 8;

/// A trip to a server that is no farther away takes about as long as the work for it. Where it takes
/// longer, calls wait for the network, and would only wait for one another too: each gets a
/// connection as long as there are any.
const NEAR: Duration = Duration::from_micros(200);

/// A shared connection whose calls are not answered in this time, or in that of eight trips, is not waited
/// for where another lies idle.
const STUCK: Duration = Duration::from_millis(1);

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
    pub(super) cap: usize,
    pub(super) state: Mutex<State>,
    /// For each lane: rung when a connection comes back or is made, and when none can be made.
    free: Condvar,
    capped: Condvar,
    /// How many calls are in progress.
    calls: AtomicUsize,
    /// Whether one connection carries several calls, for those who only want a hint.
    is_sharing: AtomicBool,
    /// The shortest trip to the server so far, in nanoseconds.
    shortest: AtomicU64,
    closed: AtomicBool,
    /// The server keeps no slot of its cluster any more.
    retired: AtomicBool,
    /// Rises when every connection there is has become useless.
    generation: AtomicU64,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) idle: Vec<Wire>,
    /// Connections that callers have out.
    out: usize,
    /// Since when one of them carries the calls of several that it carries now, if one does.
    shared_at: Option<Instant>,
    waiting_capped: usize,
    waiting_free: usize,
    /// Who waits for one of those that are out, or to be sent along with who gets it.
    gather: Gather<Arc<Entry>>,
    /// Who waits for a connection of its own goes first when the next comes back.
    is_turn_of_own: bool,
    pub(super) dialing: Dialing,
}

impl State {
    /// Takes an idle connection, if the lane may have one: under the cap, and none that somebody in
    /// the free lane waits for.
    fn take(&mut self, lane: Lane, cap: usize) -> Option<Wire> {
        if lane == Lane::Capped && (self.out >= cap || self.idle.len() <= self.waiting_free) {
            return None;
        }
        let wire = self.idle.pop()?;
        self.out += 1;
        Some(wire)
    }

    /// Who gets a connection that has come back, of those who go along with others.
    fn next(&mut self) -> Option<(Arc<Entry>, Instant)> {
        if self.gather.is_empty() {
            return None;
        }
        if self.waiting_capped + self.waiting_free > 0 {
            self.is_turn_of_own = !self.is_turn_of_own;
            if self.is_turn_of_own {
                return None;
            }
        }
        let now = Instant::now();
        self.gather.next(now).map(|entry| (entry, now))
    }

    fn waiting(&mut self, lane: Lane) -> &mut usize {
        match lane {
            Lane::Capped => &mut self.waiting_capped,
            Lane::Free => &mut self.waiting_free,
        }
    }

    /// How many more connections are wanted than there are.
    pub(super) fn wanted(&self, cap: usize) -> usize {
        let room = cap.saturating_sub(self.out + self.idle.len());
        (self.waiting_free + self.waiting_capped.min(room)).saturating_sub(self.idle.len())
    }
}

/// A connection in use; dropping it closes it, as befits one that failed.
pub(crate) struct Lent<'a> {
    pool: &'a Pool,
    wire: Option<Wire>,
    /// Several calls were sent over it in one write.
    is_shared: bool,
}

/// What became of a call that was to go along with others.
pub(crate) enum Joined<'a> {
    Waits(Ticket),
    /// It goes alone: over this connection, if one lay idle.
    Alone(Option<Lent<'a>>),
}

/// A connection that goes on to those who wait.
pub(crate) struct Given<L> {
    pub(crate) lent: L,
    /// Who reads for all of them.
    pub(crate) next: Arc<Entry>,
    pub(crate) others: Vec<Arc<Entry>>,
    /// None of them had run out of time by then.
    pub(crate) now: Instant,
}

/// A call in progress.
pub(crate) struct Entered<'a> {
    pool: &'a Pool,
    before: usize,
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
            free: Condvar::new(),
            capped: Condvar::new(),
            calls: AtomicUsize::new(0),
            is_sharing: AtomicBool::new(false),
            shortest: AtomicU64::new(u64::MAX),
            closed: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            generation: AtomicU64::new(0),
        }
    }

    /// Lends the connection that was used last, or a new one, by `until`.
    pub(crate) fn lend(self: &Arc<Self>, until: Instant, lane: Lane) -> Result<Lent<'_>, Refusal> {
        let mut state = self.state.lock();
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
            if let Some(wire) = state.take(lane, self.cap) {
                return Ok(Lent {
                    pool: self,
                    wire: Some(wire),
                    is_shared: false,
                });
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
                None if !in_time => return Err(Refusal::NotYet(self.no_reason(&state, lane))),
                _ => {}
            }
            let now = Instant::now();
            *state.waiting(lane) += 1;
            let started = self.ensure_dialer(&mut state, now);
            if started.is_ok() {
                self.bell(lane).wait_for(&mut state, nap(now, until));
            }
            *state.waiting(lane) -= 1;
            started.map_err(Refusal::Never)?;
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
        state.waiting_free += 1;
        let started = self.ensure_dialer(&mut state, Instant::now());
        drop(state);
        started.map(|()| wish)
    }

    /// Counts a call in, for as long as what is returned is there.
    pub(crate) fn enter(&self) -> Entered<'_> {
        let before = self.calls.fetch_add(1, Ordering::Relaxed);
        Entered { pool: self, before }
    }

    /// A trip took so long.
    pub(crate) fn took(&self, trip: Duration) {
        let nanos = u64::try_from(trip.as_nanos()).unwrap_or(u64::MAX);
        if nanos < self.shortest.load(Ordering::Relaxed) {
            self.shortest.store(nanos, Ordering::Relaxed);
        }
    }

    fn is_near(&self) -> bool {
        Duration::from_nanos(self.shortest.load(Ordering::Relaxed)) <= NEAR
    }

    /// From now on one connection carries several calls, or none does.
    fn share(&self, state: &mut State, shared_at: Option<Instant>) {
        state.shared_at = shared_at;
        self.is_sharing
            .store(shared_at.is_some(), Ordering::Relaxed);
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
        let shortest = Duration::from_nanos(self.shortest.load(Ordering::Relaxed));
        let limit = STUCK.max(shortest.saturating_mul(8));
        // After that it is stuck, or whoever reads from it has lost the processor.
        let is_in_time = |since: Instant| since.until(now) <= limit;
        let own = if state.shared_at.is_some_and(is_in_time) {
            None
        } else {
            // At once: a place in the other queue would be a worse one.
            state.take(lane, self.cap)
        };
        match own {
            None if state.out > 0 && !self.is_closed() && !self.is_retired() => {
                Joined::Waits(state.gather.join(until, Arc::clone(entry)))
            }
            own => Joined::Alone(own.map(|wire| Lent {
                pool: self,
                wire: Some(wire),
                is_shared: false,
            })),
        }
    }

    /// Takes a call back that is to have a connection of its own, unless it would wait for that too
    /// before its deadline `is_over`. False if it stays, or is not there any more.
    pub(crate) fn leave_off(&self, ticket: Ticket, lane: Lane, is_over: bool) -> bool {
        let mut state = self.state.lock();
        let has_room = lane == Lane::Free || state.out < self.cap;
        (has_room || is_over) && state.gather.leave(ticket)
    }

    /// The connection that carries several calls.
    pub(crate) fn lent_to_several(&self, wire: Wire) -> Lent<'_> {
        Lent {
            pool: self,
            wire: Some(wire),
            is_shared: true,
        }
    }

    /// Nobody waits any longer to go along with others.
    fn dismiss(&self) {
        let all = self.state.lock().gather.dismiss();
        for entry in all {
            // Who waits no longer needs no connection.
            let _ = entry.tell(News::Alone);
        }
    }

    /// There is room for a connection that somebody may wait for.
    fn vacated(&self, state: &mut State, is_shared: bool) {
        state.out -= 1;
        if is_shared {
            self.share(state, None);
        }
        if let Some((entry, _)) = state.next() {
            // Who waits no longer needs no connection.
            let _ = entry.tell(News::Alone);
        }
        self.ring(state);
    }

    fn bell(&self, lane: Lane) -> &Condvar {
        match lane {
            Lane::Capped => &self.capped,
            Lane::Free => &self.free,
        }
    }

    /// Something has changed that one waiter can use: the free lane goes first.
    fn ring(&self, state: &State) {
        let lane = if state.waiting_free > 0 {
            Lane::Free
        } else {
            Lane::Capped
        };
        self.bell(lane).notify_one();
    }

    pub(super) fn ring_all(&self) {
        self.free.notify_all();
        self.capped.notify_all();
    }

    fn no_reason(&self, state: &State, lane: Lane) -> NoWire {
        let cause = if lane == Lane::Capped && state.out >= self.cap {
            Cause::text(format!(
                "all {} connections (max_connections) were in use",
                self.cap
            ))
        } else {
            Cause::silence("the connection was not made in time")
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
            self.shortest.store(u64::MAX, Ordering::Relaxed);
            self.forget_idle();
        }
    }

    /// As [`leave`](Self::leave), where it is known that there is another server to go to: nobody
    /// waits any longer for a connection to the one before.
    pub(crate) fn move_on(&self) {
        self.leave(self.generation());
        self.state.lock().dialing.leave_behind();
        self.dismiss();
        self.ring_all();
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
        self.ring_all();
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
            self.pool.free.wait_for(&mut state, patience);
        }
    }
}

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        self.pool.state.lock().waiting_free -= 1;
    }
}

impl Entered<'_> {
    /// Whether so many others were there that it goes along with them.
    pub(crate) fn is_one_of_many(&self, lane: Lane) -> bool {
        let pool = self.pool;
        if pool.is_near() {
            self.before >= OWN.min(pool.cap) || pool.is_sharing.load(Ordering::Relaxed)
        } else {
            lane == Lane::Capped && self.before >= pool.cap
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.pool.calls.fetch_sub(1, Ordering::Relaxed);
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

    /// Gives the connection back, after an exchange that left nothing unread. Or on, to one of those
    /// who wait to go along with others.
    pub(crate) fn give_on(mut self) -> Option<Given<Self>> {
        let wire = self.wire.take()?;
        let pool = self.pool;
        let mut state = pool.state.lock();
        let is_current = wire.generation == self.pool.generation() && !self.pool.is_closed();
        if is_current && state.out + state.idle.len() <= pool.cap {
            let is_shared = std::mem::take(&mut self.is_shared);
            if (is_shared || state.shared_at.is_none())
                && let Some((next, now)) = state.next()
            {
                pool.share(&mut state, Some(now));
                return Some(Given {
                    lent: pool.lent_to_several(wire),
                    next,
                    others: state.gather.take(now),
                    now,
                });
            }
            if is_shared {
                pool.share(&mut state, None);
            }
            state.out -= 1;
            state.idle.push(wire);
            pool.ring(&state);
        } else {
            pool.vacated(&mut state, self.is_shared);
            // Closing takes a system call: not under the lock.
            drop(state);
            drop(wire);
        }
        None
    }

    /// Hands the connection over to another thread, still in use.
    pub(crate) fn hand(mut self) -> Wire {
        // Taken only by the methods that consume self.
        self.wire.take().expect("a connection that is lent")
    }

    /// Takes the connection out of the pool for good, for a thread that keeps it.
    pub(crate) fn keep(mut self) -> Wire {
        // Taken before only by `give_back`, which consumes self too.
        let wire = self.wire.take().expect("a connection that is lent");
        self.pool
            .vacated(&mut self.pool.state.lock(), self.is_shared);
        wire
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if self.wire.take().is_some() {
            self.pool
                .vacated(&mut self.pool.state.lock(), self.is_shared);
        }
    }
}
