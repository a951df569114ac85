//! The kernel: all decisions about locks, leases and waiting calls, without I/O, clock or threads.
//!
//! Each method takes the time, changes the state under its locks, and returns [`Effects`], which
//! its caller carries out after the last unlock. `docs/kernel.md` has the order of the locks.
//!
//! ```text
//! a call's thread ─▶ Call ─┐  ┌── messages ── the subscriber
//! a holder's ──────────────┤  │  ┌── ends, due work ── Engine ◀── the engine thread
//!                          ▼  ▼  ▼
//!                          LockEntry ─▶ Line: calls and requests   OwnLeases
//!                              │
//!                              └─▶ Context ─▶ HeldLease, PendingReleases, Schedule
//! ```

pub(crate) mod answers;
pub(crate) mod batch;
pub(crate) mod bounds;
pub(crate) mod call;
pub(crate) mod command;
pub(crate) mod context;
pub(crate) mod due;
pub(crate) mod effects;
pub(crate) mod ended;
pub(crate) mod ending;
pub(crate) mod engine;
pub(crate) mod entry;
pub(crate) mod event;
pub(crate) mod failure;
pub(crate) mod fault;
pub(crate) mod few;
pub(crate) mod groups;
pub(crate) mod held;
pub(crate) mod holder;
pub(crate) mod indexed;
pub(crate) mod last_reply;
pub(crate) mod lease;
pub(crate) mod line;
pub(crate) mod linger;
pub(crate) mod messages;
pub(crate) mod operation;
pub(crate) mod own_leases;
pub(crate) mod part;
pub(crate) mod parts;
pub(crate) mod pending;
pub(crate) mod places;
pub(crate) mod purpose;
pub(crate) mod refusals;
pub(crate) mod release_tries;
pub(crate) mod renewals;
pub(crate) mod request;
pub(crate) mod request_index;
pub(crate) mod requests;
pub(crate) mod schedule;
pub(crate) mod steps;
pub(crate) mod undo;
pub(crate) mod unlock;
pub(crate) mod waiter;
pub(crate) mod waiters;
pub(crate) mod wall;
pub(crate) mod watch;

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::call::{Call, CallState, Step};
use crate::kernel::context::{Context, SharedState};
use crate::kernel::effects::Effects;
use crate::kernel::ended::Tally;
use crate::kernel::entry::LockEntry;
pub(crate) use crate::kernel::event::Limits;
use crate::kernel::failure::Failure;
use crate::kernel::fault::Fault;
use crate::kernel::held::HeldLease;
use crate::kernel::pending::PendingReleases;
pub(crate) use crate::kernel::undo::RUNS_WITHIN;
use crate::kernel::waiter::{CallTerms, Outcome};
use crate::mutant::{Mutant, is_on};
use crate::name::{Hashed, Name, NameTable};
use crate::protocol::answer::Answer;
use crate::protocol::primitive::Primitive;
use crate::sync::Mutex;

/// The number of shards. A thread locks one of them at a time.
const SHARDS: usize = 16;

/// Boxed: a table has room for many more entries than it has.
type Shard = Mutex<NameTable<Box<LockEntry>>>;

/// The state of a client: an entry for each name that it holds or waits for, and what they share.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) shared: SharedState,
    shards: [Shard; SHARDS],
}

/// The entries.
impl Kernel {
    pub(crate) fn new(limits: Limits, owner: &str) -> Self {
        Self {
            shared: SharedState::new(limits, owner),
            shards: Default::default(),
        }
    }

    pub(crate) fn shard(&self, name: &Name) -> &Shard {
        let hash = BuildHasherDefault::<Hashed>::default().hash_one(name);
        &self.shards[hash as usize % SHARDS]
    }

    /// Runs `act` on the entry of a lock, which it creates if there is none, under the lock of its
    /// shard. Then re-arms the entry in the schedule, or removes it if nothing is left in it.
    pub(crate) fn with_entry<T>(
        &self,
        lock: &Arc<dyn Primitive>,
        now: Instant,
        fx: &mut Effects,
        act: impl FnOnce(&mut LockEntry, &mut Context<'_>) -> T,
    ) -> T {
        let name = lock.key(0).name;
        let cx = &mut self.shared.at(now, fx);
        let mut shard = self.shard(name).lock();
        let entry = shard
            .entry(name.clone())
            .or_insert_with(|| Box::new(LockEntry::new(name.clone(), &**lock)));
        let result = act(entry, cx);
        if entry.rearm(cx) {
            shard.remove(name);
        }
        result
    }

    /// Like [`with_entry`](Self::with_entry), but only if there is an entry.
    pub(super) fn with_existing<T>(
        &self,
        name: &Name,
        now: Instant,
        fx: &mut Effects,
        act: impl FnOnce(&mut LockEntry, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let cx = &mut self.shared.at(now, fx);
        let mut shard = self.shard(name).lock();
        let entry = shard.get_mut(name)?;
        let result = act(entry, cx);
        if entry.rearm(cx) {
            shard.remove(name);
        }
        Some(result)
    }

    /// Runs `act` on each entry, in the order of the names.
    pub(super) fn for_each(
        &self,
        now: Instant,
        fx: &mut Effects,
        mut act: impl FnMut(&mut LockEntry, &mut Context<'_>),
    ) {
        let mut names: Vec<Name> = Vec::new();
        for shard in &self.shards {
            names.extend(shard.lock().keys().cloned());
        }
        names.sort_unstable();
        for name in names {
            self.with_existing(&name, now, fx, &mut act);
        }
    }

    /// Runs `act` on the pending releases, and schedules what is due then.
    pub(crate) fn with_pending<T>(
        &self,
        now: Instant,
        fx: &mut Effects,
        act: impl FnOnce(&mut PendingReleases) -> T,
    ) -> T {
        self.shared
            .at(now, fx)
            .with_pending(|pending, _| act(pending))
    }

    fn with_lease<T>(
        &self,
        lock: &dyn Primitive,
        id: &HolderId,
        act: impl FnOnce(&HeldLease) -> T,
    ) -> Option<T> {
        let name = lock.keys().key(0).name;
        let shard = self.shard(name).lock();
        let mut held = shard.get(name)?.leases.held.iter();
        let held = held.find(|held| held.lease.id == *id)?;
        Some(act(&held.lease))
    }
}

/// The calls of the program and of the engine.
impl Kernel {
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// Returns the ids of acquiring commands that have come to serve nobody: what sends them for
    /// the engine may end them.
    pub(crate) fn take_left(&self) -> Vec<HolderId> {
        std::mem::take(&mut *self.shared.left.lock())
    }

    /// Makes the sender of the engine's commands look at them at this instant.
    pub(crate) fn wake_sender_at(&self, at: Instant, now: Instant, fx: &mut Effects) {
        if at < Instant::NEVER {
            self.shared.at(now, fx).wake_sender_at(at);
        }
    }

    /// Returns whether a shutdown waits for the releases that were pending before it.
    pub(crate) fn awaits_open(&self) -> bool {
        self.shared.pending.lock().awaits_open
    }

    /// A change to this ttl may run later.
    pub(crate) fn limit(&self, lock: &dyn Primitive, id: &HolderId, ttl: Duration) {
        self.with_lease(lock, id, |lease| lease.limit(ttl));
    }

    /// Refuses new calls, ends all waiting calls and all leases, and releases what they had.
    pub(crate) fn close(&self, now: Instant, fx: &mut Effects) {
        if self.shared.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        self.for_each(now, fx, LockEntry::close);
        self.with_pending(now, fx, PendingReleases::close);
    }

    /// A shutdown waits for the releases that got no reply before it, too: they are sent now.
    pub(crate) fn await_releases(&self, now: Instant, fx: &mut Effects) {
        self.with_pending(now, fx, PendingReleases::await_open);
    }

    /// The engine's thread has panicked: nobody sends what it would. Closes the client, and tells
    /// all calls and holders.
    pub(crate) fn engine_died(&self, now: Instant, fx: &mut Effects) {
        self.shared.pending.lock().end_now();
        self.close(now, fx);
    }

    /// The engine's thread ends although releases may be pending.
    pub(crate) fn end_engine_now(&self) {
        self.shared.pending.lock().end_now();
    }

    /// The engine's thread ends unless a release is due, or an undo has no reply. Returns whether
    /// it may.
    pub(crate) fn end_engine(&self, now: Instant) -> bool {
        self.shared.pending.lock().end(now)
    }

    /// Returns whether somebody waits for the messages of a name. Its last waiter may have left
    /// while the thread that asks stood still.
    pub(crate) fn listens(&self, name: &Name) -> bool {
        let shard = self.shard(name).lock();
        shard.get(name).is_some_and(|entry| entry.listens)
    }

    /// Returns how many leases of this client are held, how many linger, and how many of its calls
    /// wait.
    pub(crate) fn counts(&self) -> [u64; 3] {
        let [mut held, mut lingering, mut waiting] = [0; 3];
        for shard in &self.shards {
            for entry in shard.lock().values() {
                match entry.leases.lingering() {
                    Some(_) => lingering += 1,
                    None => held += entry.leases.held.len() as u64,
                }
                waiting += entry.line.waiters.len() as u64;
            }
        }
        [held, lingering, waiting]
    }

    /// Returns how many leases may exist because their release has no reply.
    pub(crate) fn unconfirmed(&self) -> usize {
        let pending = self.shared.pending.lock();
        let ids: HashSet<&HolderId> = pending.unconfirmed().collect();
        ids.len()
    }

    /// Returns whether Redis has answered about each lease that the shutdown has ended.
    pub(crate) fn has_released(&self) -> bool {
        self.shared.pending.lock().has_counted()
    }

    /// Returns whether nothing is left to send, and what the releases of a shutdown found.
    pub(crate) fn shutdown_tally(&self) -> (bool, Tally) {
        let pending = self.shared.pending.lock();
        (pending.is_empty(), pending.tally())
    }
}

/// The engine, and the wall clock.
impl Kernel {
    /// The engine begins a turn: until it sleeps again, nobody needs to wake it.
    pub(crate) fn engine_awake(&self) {
        self.shared.schedule.lock().sleeps_until = Instant::START;
    }

    /// The engine is about to sleep: returns until when at most, and records that.
    pub(crate) fn engine_sleeps(&self, now: Instant, longest: Duration) -> Instant {
        let mut schedule = self.shared.schedule.lock();
        // Somebody who locks and unlocks in a loop must not wake the engine each time. What it was
        // woken for can be gone already: it sleeps until then, and the first sleep with nothing to
        // look at is short.
        let woken_for = std::mem::replace(&mut schedule.woken_for, Instant::NEVER);
        let next = if woken_for > now {
            schedule.next().min(woken_for)
        } else {
            schedule.next()
        };
        if is_on(Mutant::SleepIsReadFirst) {
            drop(schedule);
            schedule = self.shared.schedule.lock();
        }
        let was_idle = schedule.is_idle;
        schedule.is_idle = next == Instant::NEVER && !was_idle;
        let until = match next {
            Instant::NEVER if was_idle => Instant::NEVER,
            Instant::NEVER => now.after(longest),
            next if is_on(Mutant::SleepIsLong) => next,
            next => next.min(now.after(longest)),
        };
        if !is_on(Mutant::SleepIsNotRecorded) {
            schedule.sleeps_until = until;
        }
        until
    }

    /// The engine looks at the wall clock, which showed `at_start` at [`Instant::START`]. If it has
    /// run ahead, all leases are renewed at once.
    pub(crate) fn look_at_wall_clock(&self, at_start: Duration, now: Instant, fx: &mut Effects) {
        if self.shared.wall_clock.look(now, at_start) {
            self.for_each(now, fx, |entry, cx| {
                for held in entry.leases.held.iter() {
                    cx.distrust(&held.lease);
                }
            });
        }
    }
}

/// The steps of a call on its thread.
impl Call {
    pub(crate) fn new(kernel: &Kernel, wants: CallTerms, now: Instant) -> Self {
        Self::with_number(kernel.shared.numbers.next(), wants, now)
    }

    pub(crate) fn begin(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Step {
        let lock = Arc::clone(&self.wants.lock);
        kernel.with_entry(&lock, now, fx, |entry, cx| entry.begin(self, cx))
    }

    /// The end of the command that this thread sent at `sent`.
    ///
    /// If that left an undo in the effects, the caller writes it behind the command on the same
    /// connection, without waiting, and closes the connection.
    pub(crate) fn replied(
        &mut self,
        kernel: &Kernel,
        end: Result<Answer, Fault>,
        sent: Instant,
        now: Instant,
        fx: &mut Effects,
    ) -> Step {
        let asked = self.take_asked().expect("a call sends only while it asks");
        let lock = Arc::clone(&self.wants.lock);
        kernel.with_entry(&lock, now, fx, |entry, cx| {
            entry.replied(self, &asked, (end, sent), cx)
        })
    }

    /// The thread of the call has not sent its command, and does not send it any more.
    pub(crate) fn not_sent(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) {
        if let Some(asked) = self.take_asked() {
            kernel.with_entry(&asked.lock, now, fx, |entry, cx| entry.not_sent(&asked, cx));
        }
    }

    /// The thread was unparked, or a nap is over, or the deadline has come.
    pub(crate) fn woken(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Step {
        let Some(cell) = self.wakes(now) else {
            return Step::Park(self.wants.deadline);
        };
        let lock = Arc::clone(&self.wants.lock);
        kernel.with_entry(&lock, now, fx, |entry, cx| {
            let outcome = cell.outcome.lock().take();
            entry.woken(self, outcome, cx)
        })
    }

    /// The thread of the call unwinds: what it has or gets is released by the engine.
    pub(crate) fn abandon(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) {
        let outcome = self.leave(kernel, Failure::Cancelled, now, fx);
        if let Outcome::Lease(lease, token) = outcome {
            kernel.unlock_later(&lease, token, now, fx);
        }
    }

    /// The call is cancelled or given up. An outcome that is already stored wins.
    pub(crate) fn leave(
        &mut self,
        kernel: &Kernel,
        failure: Failure,
        now: Instant,
        fx: &mut Effects,
    ) -> Outcome {
        let state = self.take_state();
        let lock = Arc::clone(&self.wants.lock);
        let looks_first = is_on(Mutant::CancelLooksFirst);
        let early = match &state {
            CallState::Parked(cell) if looks_first => cell.outcome.lock().take(),
            _ => None,
        };
        kernel.with_entry(&lock, now, fx, |entry, cx| {
            entry.leave(self, state, (early, failure), cx)
        })
    }
}
