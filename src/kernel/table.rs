//! The lock table: an entry for each name that this client holds or waits for.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault};
use std::sync::{Arc, Weak};

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::effects::{Discard, Effects};
use crate::kernel::entry::LockEntry;
use crate::kernel::held::HeldLease;
use crate::kernel::request::RequestNo;
use crate::name::{Hashed, Name, NameTable};
use crate::protocol::primitive::Primitive;
use crate::sync::Mutex;

/// Returns the name of the entry of a lock. A set has an entry of its own.
pub(crate) fn entry_name(lock: &dyn Primitive) -> Cow<'_, Name> {
    match lock.keys().names.len() {
        1 => Cow::Borrowed(lock.keys().key(0).name),
        _ => Cow::Owned(Name::of_set(&lock.keys().names)),
    }
}

/// The number of shards. A thread locks one of them at a time.
const SHARDS: usize = 16;

/// The entries, and the index of the ids that a grant message can name.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    /// Boxed: a table has room for many more entries than it has.
    pub(super) shards: [Mutex<NameTable<Box<LockEntry>>>; SHARDS],
    /// The ids of the requests whose commands enter a queue. Its lock is a leaf.
    pub(crate) ids: Mutex<HashMap<HolderId, UsedBy>>,
    /// The leases of sets, and of the names that waiting sets keep: they exclude calls for them.
    /// Its lock is a leaf.
    sets: Mutex<Vec<Weak<HeldLease>>>,
}

/// The request that uses an id.
#[derive(Debug)]
pub(crate) struct UsedBy {
    name: Name,
    no: RequestNo,
    /// It serves nobody any more.
    is_abandoned: bool,
}

impl LockTable {
    pub(crate) fn shard(&self, name: &Name) -> &Mutex<NameTable<Box<LockEntry>>> {
        let hash = BuildHasherDefault::<Hashed>::default().hash_one(name);
        &self.shards[hash as usize % SHARDS]
    }

    /// Adds the lease of a set.
    pub(super) fn note_set(&self, lease: &Arc<HeldLease>) {
        let mut sets = self.sets.lock();
        sets.retain(|lease| lease.strong_count() > 0);
        sets.push(Arc::downgrade(lease));
    }

    /// The lease of a set is in use no more.
    pub(super) fn forget_set(&self, lease: &Arc<HeldLease>) {
        if lease.lock.names.len() > 1 {
            let mut sets = self.sets.lock();
            sets.retain(|it| !std::ptr::eq(it.as_ptr(), Arc::as_ptr(lease)));
        }
    }

    /// Returns the lease of a set that has this name at `now`.
    pub(super) fn set_with(
        &self,
        name: &Name,
        now: Instant,
        fx: &mut Effects,
    ) -> Option<Arc<HeldLease>> {
        self.set(
            |lease| lease.lock.names.contains(name) && lease.covers(now),
            fx,
        )
    }

    /// Returns whether a set holds or keeps a name at `now` under an id of this text.
    pub(super) fn is_of_set(&self, id: &[u8], now: Instant, fx: &mut Effects) -> bool {
        let is_its = |lease: &HeldLease| lease.id.as_str().as_bytes() == id && lease.covers(now);
        self.set(is_its, fx).is_some()
    }

    /// The caller may have locks: a lease whose last owner leaves meanwhile is dropped later.
    fn set(&self, is_it: impl Fn(&HeldLease) -> bool, fx: &mut Effects) -> Option<Arc<HeldLease>> {
        let sets: Vec<_> = self.sets.lock().iter().filter_map(Weak::upgrade).collect();
        let found = sets.iter().find(|lease| is_it(lease)).cloned();
        fx.discard.extend(sets.into_iter().map(Discard::Lease));
        found
    }

    pub(super) fn note_id(&self, id: &HolderId, name: &Name, no: RequestNo) {
        let used_by = UsedBy {
            name: name.clone(),
            no,
            is_abandoned: false,
        };
        self.ids.lock().insert(id.clone(), used_by);
    }

    /// The request that has this id serves nobody any more.
    pub(super) fn abandon_id(&self, id: &HolderId) {
        if let Some(used_by) = self.ids.lock().get_mut(id) {
            used_by.is_abandoned = true;
        }
    }

    pub(super) fn forget_id(&self, id: &HolderId) {
        self.ids.lock().remove(id);
    }

    /// Forgets an id of a request for `name`. A set's id can be in use for another name.
    pub(super) fn forget_id_for(&self, id: &HolderId, name: &Name) {
        let mut ids = self.ids.lock();
        if ids.get(id).is_some_and(|used_by| used_by.name == *name) {
            ids.remove(id);
        }
    }

    /// Returns the request that has this id.
    pub(super) fn request_of(&self, id: &HolderId) -> Option<(Name, RequestNo)> {
        let ids = self.ids.lock();
        ids.get(id)
            .map(|used_by| (used_by.name.clone(), used_by.no))
    }

    /// Returns whether the command with an id of this text serves a call in another entry.
    pub(super) fn serves_another(&self, id: &[u8], name: &Name) -> bool {
        let id = HolderId::parse(id);
        let ids = self.ids.lock();
        let used_by = id.and_then(|id| ids.get(&id));
        used_by.is_some_and(|used_by| !used_by.is_abandoned && used_by.name != *name)
    }
}
