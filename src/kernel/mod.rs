//! The kernel: all decisions about locks, leases and waiting calls, without I/O, clock or threads.
//!
//! A waiting call is an entry in a list. Each method takes the time, changes the state under its
//! locks, and returns [`Effects`], which its caller carries out after the last unlock. Locks are
//! taken in the order shard of the table, lease, pending releases, schedule, and never two of one
//! rank.
//!
//! ```text
//! a call's thread ─▶ Call ──────▶ LockEntry ◀── messages ── the subscriber
//!                                   │  ▲
//!                   HeldLease ◀─────┤  └── answers, due work ── Engine ◀── the engine thread
//!                   PendingReleases ◀                             │
//!                   Schedule ◀────────────────────────────────────┘
//! ```

pub(crate) mod answers;
pub(crate) mod batch;
pub(crate) mod bounds;
pub(crate) mod busy;
pub(crate) mod call;
pub(crate) mod command;
pub(crate) mod context;
pub(crate) mod due;
pub(crate) mod effects;
pub(crate) mod ended;
pub(crate) mod engine;
pub(crate) mod entry;
pub(crate) mod fault;
pub(crate) mod few;
pub(crate) mod groups;
pub(crate) mod held;
pub(crate) mod holder;
pub(crate) mod holdings;
pub(crate) mod indexed;
pub(crate) mod last_reply;
pub(crate) mod lease;
pub(crate) mod linger;
pub(crate) mod messages;
pub(crate) mod part;
pub(crate) mod pending;
pub(crate) mod places;
pub(crate) mod refusals;
pub(crate) mod release_tries;
pub(crate) mod renewals;
pub(crate) mod request;
pub(crate) mod request_index;
pub(crate) mod requests;
pub(crate) mod schedule;
pub(crate) mod steps;
pub(crate) mod table;
pub(crate) mod undo;
pub(crate) mod unlock;
pub(crate) mod waiter;
pub(crate) mod waiters;
pub(crate) mod wall;
pub(crate) mod watch;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::effects::Effects;
use crate::kernel::ended::Tally;
use crate::kernel::entry::LockEntry;
use crate::kernel::held::HeldLease;
use crate::kernel::pending::PendingReleases;
use crate::kernel::schedule::Schedule;
use crate::kernel::table::{LockTable, entry_name};
use crate::kernel::wall::WallClock;
use crate::name::Name;
use crate::protocol::primitive::Primitive;
use crate::sync::Mutex;

/// A command without a reply runs within this time after its sender gave up, or never; longer if
/// twice its ttl is longer.
pub(crate) const RUNS_WITHIN: Duration = Duration::from_secs(5);

/// The settings of a client that the kernel needs.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) command_timeout: Duration,
    /// A call gives up if Redis has not answered for this long.
    pub(crate) unreachable_for: Duration,
    /// The longest pause of a call that waits without a queue in Redis.
    pub(crate) backstop: Duration,
    /// A replica may become the master: recent releases are then repeated.
    pub(crate) may_fail_over: bool,
    /// The server that answers has the only copy of the keys.
    pub(crate) replies_are_final: bool,
    /// The engine sends the commands of calls and the releases, not the program's threads.
    pub(crate) engine_sends: bool,
    /// The wall clock at [`Instant::START`], in µs: to notice if it runs ahead.
    pub(crate) wall: u64,
}

/// The shared state of a client.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) limits: Limits,
    pub(crate) table: LockTable,
    pub(crate) pending: Mutex<PendingReleases>,
    pub(crate) schedule: Mutex<Schedule>,
    /// The first part of the client's holder ids.
    owner: Arc<str>,
    /// The ids of the engine's acquiring commands that serve nobody any more.
    left: Mutex<Vec<HolderId>>,
    /// Set before the shards are walked; read under a shard's lock.
    closed: AtomicBool,
    /// Set when a lease lingers for the first time.
    lingered: AtomicBool,
    serial: AtomicU64,
    wall_clock: WallClock,
}

impl Kernel {
    pub(crate) fn new(limits: Limits, owner: &str) -> Self {
        Self {
            table: LockTable::default(),
            pending: Mutex::new(PendingReleases::new(
                limits.may_fail_over.then_some(limits.command_timeout),
            )),
            schedule: Mutex::default(),
            owner: owner.into(),
            left: Mutex::default(),
            closed: AtomicBool::new(false),
            lingered: AtomicBool::new(false),
            serial: AtomicU64::new(0),
            wall_clock: WallClock::new(Duration::from_micros(limits.wall)),
            limits,
        }
    }

    fn note_lingered(&self) {
        self.lingered.store(true, Ordering::Relaxed);
    }

    /// Returns whether a lease may linger. Another thread's first one may not be seen yet: that is
    /// as if the call had begun before it.
    fn has_lingered(&self) -> bool {
        self.lingered.load(Ordering::Relaxed)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(super) fn fresh_id(&self, lock: &dyn Primitive) -> HolderId {
        lock.fresh_id(&self.owner)
    }

    /// Parses an id that may be one of this client: another client can have the same owner.
    fn own_id(&self, id: &[u8]) -> Option<HolderId> {
        let may_be_own = id.starts_with(self.owner.as_bytes());
        may_be_own.then(|| HolderId::parse(id)).flatten()
    }

    /// Returns the ids of acquiring commands that have come to serve nobody: what sends them for
    /// the engine may end them.
    pub(crate) fn take_left(&self) -> Vec<HolderId> {
        std::mem::take(&mut *self.left.lock())
    }

    /// Makes the sender of the engine's commands look at them at this instant.
    pub(crate) fn wake_sender_at(&self, at: Instant, now: Instant, fx: &mut Effects) {
        if at < Instant::NEVER {
            self.at(now, fx).wake_sender_at(at);
        }
    }

    /// Returns whether a shutdown waits for the releases that were pending before it.
    pub(crate) fn awaits_open(&self) -> bool {
        self.pending.lock().awaits_open
    }

    /// A change to this ttl may run later.
    pub(crate) fn limit(&self, lock: &dyn Primitive, id: &HolderId, ttl: Duration) {
        self.with_lease(lock, id, |lease| lease.limit(ttl));
    }

    fn with_lease<T>(
        &self,
        lock: &dyn Primitive,
        id: &HolderId,
        act: impl FnOnce(&HeldLease) -> T,
    ) -> Option<T> {
        let name = entry_name(lock);
        let shard = self.table.shard(name).lock();
        let mut held = shard.get(name)?.held.iter();
        let held = held.find(|held| held.lease.id == *id)?;
        Some(act(&held.lease))
    }

    /// Returns a number for a call, a request or a lease.
    pub(super) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// Refuses new calls, ends all waiting calls and all leases, and releases what they had.
    pub(crate) fn close(&self, now: Instant, fx: &mut Effects) {
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        let cx = &mut self.at(now, fx);
        cx.for_each(LockEntry::close);
        cx.with_pending(|pending, _| pending.close());
    }

    /// A shutdown waits for the releases that got no reply before it, too: they are sent now.
    pub(crate) fn await_releases(&self, now: Instant, fx: &mut Effects) {
        self.at(now, fx)
            .with_pending(|pending, _| pending.await_open());
    }

    /// The engine's thread has panicked: nobody sends what it would. Closes the client, and tells
    /// all calls and holders.
    pub(crate) fn engine_died(&self, now: Instant, fx: &mut Effects) {
        self.pending.lock().end_now();
        self.close(now, fx);
    }

    /// The engine's thread ends although releases may be pending.
    pub(crate) fn end_engine_now(&self) {
        self.pending.lock().end_now();
    }

    /// The engine's thread ends unless a release is due, or an undo has no reply. Returns whether
    /// it may.
    pub(crate) fn end_engine(&self, now: Instant) -> bool {
        self.pending.lock().end(now)
    }

    /// Returns whether somebody waits for the messages of a name. Its last waiter may have left
    /// while the thread that asks stood still.
    pub(crate) fn listens(&self, name: &Name) -> bool {
        let shard = self.table.shard(name).lock();
        shard.get(name).is_some_and(|entry| entry.listens)
    }

    /// Returns how many leases of this client are held, how many linger, and how many of its calls
    /// wait.
    pub(crate) fn counts(&self) -> [u64; 3] {
        let [mut held, mut lingering, mut waiting] = [0; 3];
        for shard in &self.table.shards {
            for entry in shard.lock().values() {
                match entry.lingering() {
                    Some(_) => lingering += 1,
                    None => held += entry.held.len() as u64,
                }
                waiting += entry.waiters.len() as u64;
            }
        }
        [held, lingering, waiting]
    }

    /// Returns how many leases may exist because their release has no reply.
    pub(crate) fn unconfirmed(&self) -> usize {
        let pending = self.pending.lock();
        let ids: HashSet<&HolderId> = pending.unconfirmed().collect();
        ids.len()
    }

    /// Returns whether Redis has answered about each lease that the shutdown has ended.
    pub(crate) fn has_released(&self) -> bool {
        self.pending.lock().has_counted()
    }

    /// Returns whether nothing is left to send, and what the releases of a shutdown found.
    pub(crate) fn shutdown_tally(&self) -> (bool, Tally) {
        let pending = self.pending.lock();
        (pending.is_empty(), pending.tally())
    }
}
