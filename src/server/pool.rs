//! The connections to one server: last in first out, with a cap that a release never waits for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::clock::{Instant, nap};
use crate::error::{Cause, Error, is_final_at_logon};
use crate::server::dial::{DIALER, Dialing};
use crate::server::node::{NoWire, Node, Wire};

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
    cap: usize,
    state: Mutex<State>,
    /// For each lane: rung when a connection comes back or is made, and when none can be made.
    free: Condvar,
    capped: Condvar,
    closed: AtomicBool,
    /// The server keeps no slot of its cluster any more.
    retired: AtomicBool,
    /// Rises when every connection there is has become useless.
    generation: AtomicU64,
}

#[derive(Default)]
struct State {
    idle: Vec<Wire>,
    /// Connections that callers have out.
    out: usize,
    waiting_capped: usize,
    waiting_free: usize,
    dialing: Dialing,
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

    fn waiting(&mut self, lane: Lane) -> &mut usize {
        match lane {
            Lane::Capped => &mut self.waiting_capped,
            Lane::Free => &mut self.waiting_free,
        }
    }

    /// How many more connections are wanted than there are.
    fn wanted(&self, cap: usize) -> usize {
        let room = cap.saturating_sub(self.out + self.idle.len());
        (self.waiting_free + self.waiting_capped.min(room)).saturating_sub(self.idle.len())
    }
}

/// A connection in use; dropping it closes it, as befits one that failed.
pub(crate) struct Lent<'a> {
    pool: &'a Pool,
    wire: Option<Wire>,
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

    fn ring_all(&self) {
        self.free.notify_all();
        self.capped.notify_all();
    }

    /// Sees to it that somebody dials, if a connection is wanted: on a thread of its own, since name
    /// resolution and a unix socket may hang for longer than any caller has time.
    fn ensure_dialer(self: &Arc<Self>, state: &mut State, now: Instant) -> Result<(), Error> {
        // Each address of a name, and each answer while logging on, may take the whole timeout.
        let limit = self.node.connect_timeout * 2 + Duration::from_millis(100);
        if state.wanted(self.cap) == 0 || !state.dialing.needs_dialer(now, limit) {
            return Ok(());
        }
        let number = state.dialing.start(now);
        let pool = Arc::clone(self);
        let spawned = thread::Builder::new()
            .name(DIALER.into())
            .spawn(move || pool.dial(number));
        spawned.map(drop).map_err(|error| {
            state.dialing.came_back(number);
            state.dialing.stop();
            Error::Thread {
                name: DIALER,
                cause: Arc::new(error),
            }
        })
    }

    /// Makes connections as long as any are wanted.
    fn dial(&self, number: u64) {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            let pause = state.dialing.pause(now);
            if state.wanted(self.cap) == 0 {
                return state.dialing.stop();
            }
            state.dialing.begin(number, now);
            if !pause.is_zero() {
                MutexGuard::unlocked(&mut state, || thread::sleep(pause));
                if !state.dialing.came_back(number) {
                    return;
                }
                continue;
            }
            let made = MutexGuard::unlocked(&mut state, || self.connect());
            let is_current = state.dialing.came_back(number);
            match made {
                Ok(wire) if wire.generation == self.generation() => {
                    state.dialing.succeeded();
                    state.idle.push(wire);
                }
                // It leads to where the master was.
                Ok(wire) => MutexGuard::unlocked(&mut state, || drop(wire)),
                Err(no_wire) if is_current => state.dialing.failed(Instant::now(), no_wire),
                // Somebody else has been at it since.
                Err(_) => {}
            }
            self.ring_all();
            if !is_current {
                return;
            }
        }
    }

    /// One connection. A panic of the library, or of a user's logger, is a failure like others: the
    /// dialer's place must be given back.
    fn connect(&self) -> Result<Wire, NoWire> {
        let mut generation = self.generation();
        let made = catch_unwind(AssertUnwindSafe(|| {
            let moved = || {
                self.leave(generation);
                generation += 1;
            };
            let made = self.node.connect(moved).map(|mut wire| {
                wire.generation = generation;
                wire
            });
            made.map_err(|error| {
                let server = self.node.label.as_str();
                log::debug!(server = server; "no connection to {server}: {error}");
                NoWire {
                    is_final: is_final_at_logon(&error),
                    is_the_servers: true,
                    cause: error.into(),
                }
            })
        }));
        made.unwrap_or_else(|_| {
            Err(NoWire {
                cause: Cause::text("connecting panicked"),
                is_final: false,
                is_the_servers: true,
            })
        })
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
            self.forget_idle();
        }
    }

    /// As [`leave`](Self::leave), where it is known that there is another server to go to: nobody
    /// waits any longer for a connection to the one before.
    pub(crate) fn move_on(&self) {
        self.leave(self.generation());
        self.state.lock().dialing.leave_behind();
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

impl Lent<'_> {
    pub(crate) fn wire(&mut self) -> &mut Wire {
        // Taken only by the methods that consume self.
        self.wire.as_mut().expect("a connection that is lent")
    }

    pub(crate) fn generation(&self) -> u64 {
        // Taken only by the methods that consume self.
        self.wire.as_ref().map_or(0, |wire| wire.generation)
    }

    /// Gives the connection back, after an exchange that left nothing unread.
    pub(crate) fn give_back(mut self) {
        let Some(wire) = self.wire.take() else { return };
        let mut state = self.pool.state.lock();
        state.out -= 1;
        let is_current = wire.generation == self.pool.generation() && !self.pool.is_closed();
        if is_current && state.out + state.idle.len() < self.pool.cap {
            state.idle.push(wire);
            self.pool.ring(&state);
        } else {
            // Closing takes a system call: not under the lock.
            drop(state);
            drop(wire);
        }
    }

    /// Takes the connection out of the pool for good, for a thread that keeps it.
    pub(crate) fn keep(mut self) -> Wire {
        // Taken before only by `give_back`, which consumes self too.
        let wire = self.wire.take().expect("a connection that is lent");
        let mut state = self.pool.state.lock();
        state.out -= 1;
        self.pool.ring(&state);
        wire
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if self.wire.take().is_some() {
            let mut state = self.pool.state.lock();
            state.out -= 1;
            // Room under the cap for somebody who waits for it.
            self.pool.ring(&state);
        }
    }
}
