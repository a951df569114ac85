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
pub(crate) mod call;
pub(crate) mod command;
pub(crate) mod due;
pub(crate) mod engine;
pub(crate) mod entry;
pub(crate) mod fault;
pub(crate) mod held;
pub(crate) mod holdings;
pub(crate) mod last_reply;
pub(crate) mod lease;
pub(crate) mod messages;
pub(crate) mod mutant;
pub(crate) mod pending;
pub(crate) mod places;
pub(crate) mod proposals;
pub(crate) mod request;
pub(crate) mod round;
pub(crate) mod set;
#[cfg(sim)]
pub(crate) mod sim;
pub(crate) mod table;
pub(crate) mod tokens;
pub(crate) mod unlock;
pub(crate) mod votes;
pub(crate) mod waiter;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Instant;
use crate::config::OnLost;
use crate::holder_id::HolderId;
use crate::kernel::command::What;
use crate::kernel::engine::{Item, ItemKey, Schedule};
use crate::kernel::entry::LockEntry;
use crate::kernel::fault::Fault;
use crate::kernel::held::{HeldLease, Holder};
use crate::kernel::lease::OperationCell;
use crate::kernel::pending::{PendingRelease, PendingReleases, Proof, Tally};
use crate::kernel::round::{AtServer, places_of};
use crate::kernel::table::{LockTable, entry_name};
use crate::kernel::tokens::Tokens;
use crate::kernel::votes::Majority;
use crate::kernel::waiter::{Failure, WaiterCell};
use crate::lost::Lost;
use crate::name::Name;
use crate::protocol::primitive::Primitive;
use crate::sync::Mutex;
use crate::token::FencingToken;

/// A command without a reply runs within this time after its sender gave up, or never; longer if
/// twice its ttl is longer.
pub(super) const RUNS_WITHIN: Duration = Duration::from_secs(5);

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
    /// The servers of a quorum; one elsewhere.
    pub(crate) size: Majority,
    /// A majority of the servers decides, even of one server.
    pub(crate) is_quorum: bool,
    /// The wall clock at [`Instant::START`], in µs: for the tokens that are proposed to a quorum.
    pub(crate) wall: u64,
}

/// New holder ids and jitter.
#[derive(Debug)]
pub(crate) struct Fresh {
    owner: Arc<str>,
}

impl Fresh {
    fn id(&self, lock: &dyn Primitive) -> HolderId {
        lock.fresh_id(&self.owner)
    }
}

/// The shared state of a client.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) limits: Limits,
    pub(super) table: LockTable,
    pub(super) pending: Mutex<PendingReleases>,
    pub(super) schedule: Mutex<Schedule>,
    fresh: Fresh,
    tokens: Tokens,
    /// The rounds whose calls have left: the engine ends them.
    abandoned: Mutex<Vec<HolderId>>,
    /// Set before the shards are walked; read under a shard's lock.
    closed: AtomicBool,
    serial: AtomicU64,
}

/// What the caller of the kernel must do after it has dropped its locks, in this order.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// The undo to write behind the unanswered command, on its connection, without waiting.
    pub(crate) undo: Option<Command>,
    /// Calls whose outcome is stored, to be unparked.
    pub(crate) wake: Vec<Arc<WaiterCell>>,
    /// Holders whose operation has ended, to be unparked.
    pub(crate) operations: Vec<Arc<OperationCell>>,
    /// How many calls the end of the client has ended.
    pub(crate) closed: usize,
    /// The engine must run by then: it is woken if it would sleep longer.
    pub(crate) engine_by: Option<Instant>,
    /// Locks whose messages somebody waits for now. Each has the number of its change: the effects
    /// of two threads can be carried out in the wrong order.
    pub(crate) listen: Vec<(Arc<dyn Primitive>, u64)>,
    /// Names for whose messages nobody waits any more, unless somebody has listened under a higher
    /// number.
    pub(crate) unlisten: Vec<(Name, u64)>,
    /// Releases that the engine, which has ended, cannot send: each is sent once, to all servers of
    /// a quorum.
    pub(crate) orphans: Vec<Command>,
    /// Leases that were found lost. Their `lost()` channels have been served.
    pub(crate) lost: Vec<Told>,
    /// The ends of renewals and changes of ttl, but for those that found a loss.
    pub(crate) renewed: Vec<Renewal>,
    /// Holdings that began: leases that were granted, and hand-offs.
    #[cfg(sim)]
    pub(crate) began: Vec<(Arc<HeldLease>, FencingToken)>,
    /// How many acquiring commands have begun.
    pub(crate) attempts: u32,
    /// How many calls another thread has woken, and how many of them found the lock taken.
    pub(crate) wakes: u32,
    pub(crate) spurious_wakes: u32,
    /// Values that may own a user's closure: the engine and the subscriber pass them to the thread
    /// of the callbacks.
    pub(crate) discard: Vec<Discard>,
}

pub(crate) use crate::kernel::command::Command;

/// A loss that the holder is told.
#[derive(Clone)]
pub(crate) struct Told {
    pub(crate) lease: Arc<HeldLease>,
    pub(crate) lost: Lost,
    pub(crate) token: FencingToken,
    pub(crate) trace_id: Option<Arc<str>>,
    pub(crate) on_lost: Option<Arc<OnLost>>,
}

/// The end of a renewal or a change of ttl.
#[derive(Debug)]
pub(crate) struct Renewal {
    pub(crate) lease: Arc<HeldLease>,
    pub(crate) end: Result<Confirmed, Fault>,
}

/// What a confirmed renewal has brought.
#[derive(Debug)]
pub(crate) struct Confirmed {
    /// How late it was.
    pub(crate) lag: Duration,
    /// How long the lease lasts now; `None` after a change of ttl.
    pub(crate) remaining: Option<Duration>,
    pub(crate) took: Duration,
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {:?}", self.lost, self.lease.id)
    }
}

/// A value to be dropped outside of all locks.
pub(crate) enum Discard {
    Holder(Holder),
    Lease(Arc<HeldLease>),
}

impl std::fmt::Debug for Discard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("discard")
    }
}

impl Effects {
    fn engine_by(&mut self, at: Instant) {
        self.engine_by = Some(self.engine_by.map_or(at, |before| before.min(at)));
    }

    fn orphan(&mut self, release: &PendingRelease) {
        let what = What::Undo {
            ids: vec![release.id.clone()],
        };
        let has_it = |it: &Command| it.what == what && Arc::ptr_eq(&it.lock, &release.lock);
        if !self.orphans.iter().any(has_it) {
            self.orphans.push(Command::new(&release.lock, what));
        }
    }

    /// Stores the result of an operation; its holder is woken.
    fn operation_ended(&mut self, cell: &Arc<OperationCell>, result: Result<(), Failure>) {
        *cell.result.lock() = Some(result);
        self.operations.push(Arc::clone(cell));
    }
}

/// What a method of an entry needs besides the entry.
pub(super) struct Context<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) now: Instant,
    pub(super) fx: &'a mut Effects,
}

impl Kernel {
    pub(crate) fn new(limits: Limits, owner: &str) -> Self {
        Self {
            table: LockTable::default(),
            pending: Mutex::new(PendingReleases::new(limits.may_fail_over)),
            schedule: Mutex::default(),
            fresh: Fresh {
                owner: owner.into(),
            },
            tokens: Tokens::default(),
            abandoned: Mutex::default(),
            closed: AtomicBool::new(false),
            serial: AtomicU64::new(0),
            limits,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Returns whether several independent servers keep each lock.
    pub(super) fn is_quorum(&self) -> bool {
        self.limits.is_quorum
    }

    /// Returns whether several commands make up one renewal or release of the lock.
    pub(super) fn has_rounds(&self, lock: &dyn Primitive) -> bool {
        self.is_quorum() || !lock.slots().is_empty()
    }

    /// Returns a token above this one, for the servers of a quorum.
    pub(super) fn propose(&self, above: u64, now: Instant) -> u64 {
        self.tokens.propose(self.wall(now), above)
    }

    /// Records the counter that a server has reported.
    pub(super) fn learn_token(&self, counter: u64, now: Instant) {
        self.tokens.learn(self.wall(now), counter);
    }

    fn wall(&self, now: Instant) -> u64 {
        self.limits.wall.saturating_add(now.as_nanos() / 1000)
    }

    /// The calls that a round was for have left: the engine ends it.
    pub(super) fn abandon(&self, id: &HolderId, now: Instant, fx: &mut Effects) {
        self.abandoned.lock().push(id.clone());
        self.put(ItemKey::Rounds, Item::Rounds, [now, now], fx);
    }

    /// Returns a number for a call, a request or a lease.
    pub(super) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// Runs `act` on the entry of a name, which it creates if there is none, under the lock of its
    /// shard. Then re-arms the entry in the schedule, or removes it if nothing is left in it.
    pub(super) fn with_entry<T>(
        &self,
        lock: &Arc<dyn Primitive>,
        now: Instant,
        fx: &mut Effects,
        act: impl FnOnce(&mut LockEntry, &mut Context<'_>) -> T,
    ) -> T {
        let name = &*entry_name(&**lock);
        let mut shard = self.table.shard(name).lock();
        let entry = shard
            .entry(name.clone())
            .or_insert_with(|| LockEntry::new(name.clone(), &**lock));
        let mut cx = Context {
            kernel: self,
            now,
            fx,
        };
        let result = act(entry, &mut cx);
        if entry.rearm(&mut cx) {
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
        let mut shard = self.table.shard(name).lock();
        let entry = shard.get_mut(name)?;
        let mut cx = Context {
            kernel: self,
            now,
            fx,
        };
        let result = act(entry, &mut cx);
        if entry.rearm(&mut cx) {
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
        for shard in &self.table.shards {
            names.extend(shard.lock().keys().cloned());
        }
        names.sort_unstable();
        for name in names {
            self.with_existing(&name, now, fx, &mut act);
        }
    }

    /// Puts an item into the schedule, due at the first instant. Wakes the engine if it would sleep
    /// beyond the second.
    pub(super) fn put(
        &self,
        key: ItemKey,
        item: Item,
        [at, latest]: [Instant; 2],
        fx: &mut Effects,
    ) {
        let (wakes, before) = self.schedule.lock().put(key, item, at, latest);
        if wakes {
            fx.engine_by(latest);
        }
        discard(before, fx);
    }

    /// Wakes the engine if it would sleep beyond `latest`.
    pub(super) fn wake_engine_by(&self, latest: Instant, fx: &mut Effects) {
        if self.schedule.lock().must_wake(latest) {
            fx.engine_by(latest);
        }
    }

    pub(super) fn unschedule(&self, key: &ItemKey, fx: &mut Effects) {
        let before = self.schedule.lock().remove(key);
        discard(before, fx);
    }

    /// Adds a pending release. The caller has the lock of the shard, and the id has no lease.
    pub(super) fn pend(&self, release: PendingRelease, now: Instant, fx: &mut Effects) {
        let name = entry_name(&*release.lock);
        self.table.forget_id_for(&release.id, &name);
        let mut pending = self.pending.lock();
        if pending.is_unsent() {
            fx.orphan(&release);
        }
        pending.push(release, now);
        let at = pending.next();
        self.put(ItemKey::Pending, Item::Pending, [at, at], fx);
    }

    /// Adds the release of what an acquiring command may have taken.
    pub(super) fn undo(
        &self,
        lock: &Arc<dyn Primitive>,
        id: &HolderId,
        ttl: Duration,
        (ends_by, is_place): (Proof, bool),
        cx: (Instant, &mut Effects),
    ) {
        let (now, fx) = cx;
        if self.is_quorum() {
            // The round releases what it has taken.
            self.table.forget_id(id);
            return;
        }
        let release = PendingRelease {
            server: 0,
            lock: Arc::clone(lock),
            id: id.clone(),
            until: now.after(ttl.saturating_mul(2).max(RUNS_WITHIN)),
            ends_by,
            counts: None,
            is_place,
        };
        self.pend(release, now, fx);
    }

    /// Adds the release of an ended lease: at the servers of a quorum that may have its key, and in
    /// each slot of a set.
    pub(super) fn pend_lease(
        &self,
        lease: &HeldLease,
        until: Instant,
        counts: bool,
        now: Instant,
        fx: &mut Effects,
    ) {
        let places = places_of(self, &lease.lock);
        let needed = match self.is_quorum() {
            true => self.limits.size.needed,
            false => places.len(),
        };
        for (server, lock) in places {
            let ends_by = match lease.at.as_ref().map(|at| at.of(server)) {
                Some(AtServer::NotSent | AtServer::No) => continue,
                Some(AtServer::Unknown) => Proof::KeySeen,
                Some(AtServer::Yes | AtServer::Asked) | None => Proof::AnyAnswer,
            };
            let release = PendingRelease {
                server,
                lock,
                id: lease.id.clone(),
                until,
                ends_by,
                counts: counts.then_some(needed),
                is_place: false,
            };
            self.pend(release, now, fx);
        }
    }

    /// Keeps a confirmed release, if a replica may take over.
    pub(super) fn note_released(&self, lease: &HeldLease, now: Instant) {
        if !self.limits.may_fail_over {
            return;
        }
        for lock in lease.lock.parts() {
            let release = PendingRelease {
                server: 0,
                lock: Arc::clone(lock),
                id: lease.id.clone(),
                until: now.after(lease.key_may_last()),
                ends_by: Proof::AnyAnswer,
                counts: None,
                is_place: false,
            };
            self.pending.lock().note_recent(release);
        }
    }

    /// Refuses new calls, ends all waiting calls and all leases, and releases what they had.
    pub(crate) fn close(&self, now: Instant, fx: &mut Effects) {
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        self.for_each(now, fx, LockEntry::close);
        let mut pending = self.pending.lock();
        pending.close();
        let at = pending.next();
        self.put(ItemKey::Pending, Item::Pending, [at, at], fx);
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

    /// Returns how many leases this client has, and how many of its calls wait.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let (mut held, mut waiting) = (0, 0);
        for shard in &self.table.shards {
            for entry in shard.lock().values() {
                held += entry.held.len() as u64;
                waiting += (entry.line.len() + entry.own.len()) as u64;
            }
        }
        (held, waiting)
    }

    /// Returns how many leases may exist because their release has no reply.
    pub(crate) fn unconfirmed(&self) -> usize {
        self.pending.lock().unconfirmed(self.limits.size)
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

fn discard(item: Option<Item>, fx: &mut Effects) {
    if let Some(Item::Lease(lease)) = item {
        fx.discard.push(Discard::Lease(lease));
    }
}
