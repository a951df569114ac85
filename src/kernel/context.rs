//! The context of a decision: the state that all entries of a client share, the time, and the list
//! for its effects.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::effects::Effects;
use crate::kernel::event::{IdFate, KnownHolder, Limits, Numbers};
use crate::kernel::held::{Dropped, HeldLease, LeaseInner};
use crate::kernel::pending::PendingReleases;
use crate::kernel::request::RequestNo;
use crate::kernel::schedule::{Item, Schedule};
use crate::kernel::undo::{Counts, PendingRelease, Proof, RUNS_WITHIN, may_run_until};
use crate::kernel::wall::WallClock;
use crate::lease::status::LeaseStatus;
use crate::mutant::{Mutant, is_on};
use crate::name::Name;
use crate::protocol::primitive::Primitive;
use crate::protocol::refusal::RefusedName;
use crate::sync::Mutex;
use crate::token::FencingToken;

/// The state that all entries of a client share.
#[derive(Debug)]
pub(crate) struct SharedState {
    pub(crate) limits: Limits,
    pub(crate) pending: Mutex<PendingReleases>,
    pub(crate) schedule: Mutex<Schedule>,
    /// The requests whose ids a grant message can name. Its lock is a leaf.
    pub(crate) ids: Mutex<HashMap<HolderId, UsedBy>>,
    pub(super) numbers: Numbers,
    /// The ids of the engine's acquiring commands that serve nobody any more.
    pub(super) left: Mutex<Vec<HolderId>>,
    /// Set before the shards are walked; read under a shard's lock.
    pub(super) closed: AtomicBool,
    /// Set when a lease lingers for the first time.
    lingered: AtomicBool,
    pub(super) wall_clock: WallClock,
}

/// The request that uses an id.
#[derive(Debug)]
pub(crate) struct UsedBy {
    name: Name,
    no: RequestNo,
}

pub(crate) struct Context<'a> {
    pub(super) shared: &'a SharedState,
    pub(super) now: Instant,
    pub(super) fx: &'a mut Effects,
}

impl SharedState {
    pub(super) fn new(limits: Limits, owner: &str) -> Self {
        Self {
            pending: Mutex::new(PendingReleases::new(
                limits.may_fail_over.then_some(limits.command_timeout),
            )),
            schedule: Mutex::default(),
            ids: Mutex::default(),
            numbers: Numbers::new(owner),
            left: Mutex::default(),
            closed: AtomicBool::new(false),
            lingered: AtomicBool::new(false),
            wall_clock: WallClock::new(Duration::from_micros(limits.wall)),
            limits,
        }
    }

    pub(super) fn at<'a>(&'a self, now: Instant, fx: &'a mut Effects) -> Context<'a> {
        Context {
            shared: self,
            now,
            fx,
        }
    }

    pub(super) fn note_lingered(&self) {
        self.lingered.store(true, Ordering::Relaxed);
    }

    /// Returns whether a lease may linger. Another thread's first one may not be seen yet: that is
    /// as if the call had begun before it.
    pub(super) fn has_lingered(&self) -> bool {
        self.lingered.load(Ordering::Relaxed)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    // ------------------------------------------------------------------ ids

    pub(super) fn note_id(&self, id: &HolderId, name: &Name, no: RequestNo) {
        let used_by = UsedBy {
            name: name.clone(),
            no,
        };
        self.ids.lock().insert(id.clone(), used_by);
    }

    pub(super) fn forget_id(&self, id: &HolderId) {
        self.ids.lock().remove(id);
    }

    /// Returns the request that has this id.
    pub(super) fn request_of(&self, id: &HolderId) -> Option<(Name, RequestNo)> {
        let ids = self.ids.lock();
        ids.get(id)
            .map(|used_by| (used_by.name.clone(), used_by.no))
    }

    // ------------------------------------------------------------------ the wall clock

    /// Returns whether a lease that is held by the clock that counts may be over by the wall clock,
    /// which showed `at_start` at [`Instant::START`].
    pub(super) fn is_in_doubt(&self, lease: &HeldLease, at_start: Duration, now: Instant) -> bool {
        let ahead = self.ran_ahead(lease, at_start);
        !ahead.is_zero() && lease.validity(now) <= ahead && !is_on(Mutant::WallClockIsIgnored)
    }

    /// Returns by how much the wall clock has run ahead since Redis has confirmed the lease.
    pub(super) fn ran_ahead(&self, lease: &HeldLease, at_start: Duration) -> Duration {
        let noticed = self.wall_clock.noticed(lease.confirmed_at());
        noticed + self.wall_clock.unnoticed(at_start)
    }
}

/// The schedule.
impl Context<'_> {
    /// Puts an item into the schedule, due at the first instant. Wakes the engine if it would sleep
    /// beyond the second.
    pub(super) fn put(&mut self, item: Item, [at, latest]: [Instant; 2]) {
        if self.shared.schedule.lock().put(item, at, latest) {
            self.fx.engine_by(latest);
        }
    }

    /// The same for a lease; `None` if the engine must not look at it any more.
    pub(super) fn put_lease(&mut self, lease: &Arc<HeldLease>, bounds: Option<[Instant; 2]>) {
        let mut schedule = self.shared.schedule.lock();
        match bounds {
            Some([at, latest]) => {
                if schedule.put_lease(lease, at, latest) {
                    self.fx.engine_by(latest);
                }
            }
            None => schedule.remove_lease(lease),
        }
    }

    /// Wakes the engine if it would sleep beyond `latest`.
    pub(super) fn wake_engine_by(&mut self, latest: Instant) {
        if self.shared.schedule.lock().must_wake(latest) {
            self.fx.engine_by(latest);
        }
    }

    /// Takes an item out of the schedule.
    pub(super) fn unschedule(&self, item: &Item) {
        self.shared.schedule.lock().remove(item);
    }

    /// Makes the sender of the engine's commands look at them at this instant. An earlier one
    /// stays: another thread may have put it while the sender looked.
    pub(super) fn wake_sender_at(&mut self, at: Instant) {
        if self.shared.schedule.lock().put_earlier(Item::Sender, at) {
            self.fx.engine_by(at);
        }
    }
}

/// Leases.
impl Context<'_> {
    /// Runs `act` on a lease. If it is lost afterwards, tells that, and schedules what it needs
    /// next, all under the same lock: two threads cannot do so in the wrong order.
    pub(super) fn change<T>(
        &mut self,
        lease: &Arc<HeldLease>,
        act: impl FnOnce(&mut LeaseInner, Instant) -> T,
    ) -> T {
        let mut inner = lease.inner.lock();
        let result = act(&mut inner, self.now);
        lease.tell(&mut inner, self.fx);
        let due = inner.due(self.now, self.shared.limits.command_timeout);
        let _right = (!is_on(Mutant::LeaseIsScheduledLate)).then_some(inner);
        self.put_lease(lease, due);
        result
    }

    /// Schedules what the lease needs next, and tells a loss.
    pub(super) fn rearm(&mut self, lease: &Arc<HeldLease>) {
        self.change(lease, |_, _| ());
    }

    /// Ends the lease of the holder of `token` without a release, and returns the status before it;
    /// `None` if this holder has ended it before. It leaves its entry.
    pub(super) fn end_unreleased(
        &mut self,
        lease: &Arc<HeldLease>,
        token: FencingToken,
    ) -> Option<LeaseStatus> {
        let (status, dropped) = self.change(lease, |it, now| it.end_unreleased(token, now))?;
        self.drop_operations(dropped);
        Some(status)
    }

    /// Ends operations of a lease that are not sent any more: its status says why.
    pub(super) fn drop_operations(&mut self, operations: Dropped) {
        for operation in operations.into_iter().flatten() {
            self.fx.operation_ended(&operation.cell, Ok(()));
        }
    }

    /// Plans a renewal of a lease that Redis has not confirmed since the wall clock ran ahead.
    pub(super) fn distrust(&mut self, lease: &Arc<HeldLease>) {
        let ahead = self.shared.wall_clock.noticed(lease.confirmed_at());
        if !ahead.is_zero() && lease.distrust(ahead, self.now) {
            self.rearm(lease);
        }
    }
}

/// The pending releases.
impl Context<'_> {
    /// Does what has become of an id of a name. The caller has the lock of the shard.
    pub(super) fn settle(&mut self, name: &Name, end: IdFate) {
        match end {
            IdFate::InUse(id, no) => self.shared.note_id(&id, name, no),
            IdFate::Nothing(id) => self.shared.forget_id(&id),
            IdFate::NothingKnown(id) => self.forget_attempt(&id),
            IdFate::Abandoned(id) => self.abandon(&id),
            IdFate::ToUndo {
                lock,
                id,
                ttl,
                ends_by,
                counts,
            } => self.undo(&lock, &id, ttl, (ends_by, counts)),
        }
    }

    /// Returns the facts about the holder of a name that refused a command, which was sent at
    /// `sent`. The caller has the lock of the shard.
    pub(super) fn known(&self, by: &RefusedName, name: &Name, sent: Instant) -> KnownHolder {
        let pending = self.shared.pending.lock();
        if !by.names_holder() {
            return KnownHolder {
                has_unanswered: pending.has_unanswered(name),
                ..KnownHolder::default()
            };
        }
        let is_own = self.shared.numbers.own_id(&by.holder).is_some();
        KnownHolder {
            is_own,
            is_released: pending.had_since(&by.holder, sent),
            is_undone: is_own && pending.has_ended(&by.holder),
            has_unanswered: false,
        }
    }

    /// Returns the id if it may be one of this client, and whether an attempt of it that has ended,
    /// or has a place, had that.
    pub(super) fn own_attempt(&self, id: &[u8]) -> Option<(HolderId, bool)> {
        let id = self.shared.numbers.own_id(id)?;
        let is_known =
            self.shared.request_of(&id).is_some() || self.shared.pending.lock().has_had(&id);
        Some((id, is_known))
    }

    /// Runs `act` on the pending releases; puts what is due then into the schedule, under their
    /// lock.
    pub(crate) fn with_pending<T>(
        &mut self,
        act: impl FnOnce(&mut PendingReleases, &mut Effects) -> T,
    ) -> T {
        let mut pending = self.shared.pending.lock();
        let result = act(&mut pending, self.fx);
        let at = pending.next();
        self.put(Item::Pending, [at, at]);
        result
    }

    /// The calls that an acquiring command was for have left.
    fn abandon(&mut self, id: &HolderId) {
        self.shared.left.lock().push(id.clone());
        self.wake_sender_at(self.now);
    }

    /// Adds a pending release in this way. The caller has the lock of the shard, and the id has no
    /// lease.
    fn pend(
        &mut self,
        release: PendingRelease,
        push: fn(&mut PendingReleases, PendingRelease, Instant),
    ) {
        self.shared.forget_id(&release.id);
        let now = self.now;
        self.with_pending(|pending, fx| {
            if pending.is_unsent() {
                fx.orphan(&release.lock, &release.id);
            }
            push(pending, release, now);
        });
    }

    /// Adds the release of what an acquiring command may have taken.
    fn undo(
        &mut self,
        lock: &Arc<dyn Primitive>,
        id: &HolderId,
        ttl: Duration,
        (ends_by, counts): (Proof, Counts),
    ) {
        let until = may_run_until(ttl, self.now);
        let release = PendingRelease::new(lock, id, until, ends_by).counting(counts);
        self.pend(release, PendingReleases::push);
    }

    /// Adds the release of an ended lease.
    pub(super) fn release_later(&mut self, lease: &HeldLease, counts: Counts) {
        let until = self.now.after(lease.key_may_last().max(RUNS_WITHIN));
        let release = PendingRelease::new(&lease.lock, &lease.id, until, Proof::AnyAnswer);
        self.pend(release.counting(counts), PendingReleases::push_ended);
    }

    /// An attempt took nothing, as far as is known. What answers the engine's commands may still
    /// give something back that it had taken: it refuses nobody.
    fn forget_attempt(&mut self, id: &HolderId) {
        self.shared.forget_id(id);
        if self.shared.limits.engine_sends {
            self.shared.pending.lock().ended.note(id, self.now);
        }
    }

    /// Keeps a confirmed release, if a replica may take over.
    pub(super) fn note_released(&mut self, lease: &HeldLease) {
        if !self.shared.limits.may_fail_over {
            return;
        }
        let until = self.now.after(lease.key_may_last());
        let release = PendingRelease::new(&lease.lock, &lease.id, until, Proof::AnyAnswer);
        // Sent before this client learnt of another master, it may have run at the last one.
        let sent = self.now.before(self.shared.limits.command_timeout);
        let mut pending = self.shared.pending.lock();
        if pending.has_moved_since(sent) {
            drop(pending);
            self.pend(release, PendingReleases::push);
        } else {
            pending.note_recent(release, self.now);
        }
    }
}
