//! The context of a decision: the client, the time, and the list for its effects.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::effects::Effects;
use crate::kernel::entry::LockEntry;
use crate::kernel::held::HeldLease;
use crate::kernel::lease::Operation;
use crate::kernel::pending::PendingReleases;
use crate::kernel::schedule::Item;
use crate::kernel::table::entry_name;
use crate::name::Name;
use crate::protocol::primitive::Primitive;

pub(crate) struct Context<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) now: Instant,
    pub(super) fx: &'a mut Effects,
}

impl Kernel {
    pub(crate) fn at<'a>(&'a self, now: Instant, fx: &'a mut Effects) -> Context<'a> {
        Context {
            kernel: self,
            now,
            fx,
        }
    }
}

impl Context<'_> {
    /// Runs `act` on the entry of a name, which it creates if there is none, under the lock of its
    /// shard. Then re-arms the entry in the schedule, or removes it if nothing is left in it.
    pub(crate) fn with_entry<T>(
        &mut self,
        lock: &Arc<dyn Primitive>,
        act: impl FnOnce(&mut LockEntry, &mut Self) -> T,
    ) -> T {
        let name = entry_name(&**lock);
        let mut shard = self.kernel.table.shard(name).lock();
        let entry = shard
            .entry(name.clone())
            .or_insert_with(|| Box::new(LockEntry::new(name.clone(), &**lock)));
        let result = act(entry, self);
        if entry.rearm(self) {
            shard.remove(name);
        }
        result
    }

    /// Like [`with_entry`](Self::with_entry), but only if there is an entry.
    pub(super) fn with_existing<T>(
        &mut self,
        name: &Name,
        act: impl FnOnce(&mut LockEntry, &mut Self) -> T,
    ) -> Option<T> {
        let mut shard = self.kernel.table.shard(name).lock();
        let entry = shard.get_mut(name)?;
        let result = act(entry, self);
        if entry.rearm(self) {
            shard.remove(name);
        }
        Some(result)
    }

    /// Runs `act` on each entry, in the order of the names.
    pub(super) fn for_each(&mut self, mut act: impl FnMut(&mut LockEntry, &mut Self)) {
        let mut names: Vec<Name> = Vec::new();
        for shard in &self.kernel.table.shards {
            names.extend(shard.lock().keys().cloned());
        }
        names.sort_unstable();
        for name in names {
            self.with_existing(&name, &mut act);
        }
    }

    /// Runs `act` on the pending releases; puts what is due then into the schedule, under their
    /// lock.
    pub(crate) fn with_pending<T>(
        &mut self,
        act: impl FnOnce(&mut PendingReleases, &mut Effects) -> T,
    ) -> T {
        let mut pending = self.kernel.pending.lock();
        let result = act(&mut pending, self.fx);
        let at = pending.next();
        self.put(Item::Pending, [at, at]);
        result
    }

    /// Puts an item into the schedule, due at the first instant. Wakes the engine if it would sleep
    /// beyond the second.
    pub(super) fn put(&mut self, item: Item, [at, latest]: [Instant; 2]) {
        if self.kernel.schedule.lock().put(item, at, latest) {
            self.fx.engine_by(latest);
        }
    }

    /// The same for a lease; `None` if the engine must not look at it any more.
    pub(super) fn put_lease(&mut self, lease: &Arc<HeldLease>, bounds: Option<[Instant; 2]>) {
        let mut schedule = self.kernel.schedule.lock();
        match bounds {
            Some([at, latest]) => {
                if schedule.put_lease(lease, at, latest) {
                    self.fx.engine_by(latest);
                }
            }
            None => schedule.remove_lease(lease),
        }
    }

    /// Ends operations of a lease that are not sent any more: its status says why.
    pub(super) fn drop_operations(&mut self, operations: Option<VecDeque<Operation>>) {
        for operation in operations.into_iter().flatten() {
            self.fx.operation_ended(&operation.cell, Ok(()));
        }
    }

    /// Wakes the engine if it would sleep beyond `latest`.
    pub(super) fn wake_engine_by(&mut self, latest: Instant) {
        if self.kernel.schedule.lock().must_wake(latest) {
            self.fx.engine_by(latest);
        }
    }

    /// Takes an item out of the schedule.
    pub(super) fn unschedule(&self, item: &Item) {
        self.kernel.schedule.lock().remove(item);
    }

    /// The calls that an acquiring command was for have left.
    pub(super) fn abandon(&mut self, id: &HolderId) {
        self.kernel.left.lock().push(id.clone());
        self.wake_sender_at(self.now);
    }

    /// Makes the sender of the engine's commands look at them at this instant. An earlier one
    /// stays: another thread may have put it while the sender looked.
    pub(super) fn wake_sender_at(&mut self, at: Instant) {
        if self.kernel.schedule.lock().put_earlier(Item::Sender, at) {
            self.fx.engine_by(at);
        }
    }
}
