//! The lock table: an entry for each name that this client holds or waits for.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault};

use crate::holder_id::HolderId;
use crate::kernel::entry::LockEntry;
use crate::kernel::request::RequestNo;
use crate::name::{Hashed, Name, NameTable};
use crate::protocol::primitive::Primitive;
use crate::sync::Mutex;

/// Returns the name of the entry of a lock.
pub(crate) fn entry_name(lock: &dyn Primitive) -> &Name {
    lock.keys().key(0).name
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
}

/// The request that uses an id.
#[derive(Debug)]
pub(crate) struct UsedBy {
    name: Name,
    no: RequestNo,
}

impl LockTable {
    pub(crate) fn shard(&self, name: &Name) -> &Mutex<NameTable<Box<LockEntry>>> {
        let hash = BuildHasherDefault::<Hashed>::default().hash_one(name);
        &self.shards[hash as usize % SHARDS]
    }

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
}
