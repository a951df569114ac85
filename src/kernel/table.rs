//! The lock table: an entry for each name that this client holds or waits for.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault};

use crate::holder_id::HolderId;
use crate::kernel::entry::LockEntry;
use crate::kernel::request::RequestNo;
use crate::name::{Hashed, Name, NameTable};
use crate::sync::Mutex;

/// The number of shards. A thread locks one of them at a time.
const SHARDS: usize = 16;

/// The entries, and the index of the ids that a grant message can name.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    pub(super) shards: [Mutex<NameTable<LockEntry>>; SHARDS],
    /// The ids of the requests whose commands enter a queue. Its lock is a leaf.
    pub(super) ids: Mutex<HashMap<HolderId, (Name, RequestNo)>>,
}

impl LockTable {
    pub(super) fn shard(&self, name: &Name) -> &Mutex<NameTable<LockEntry>> {
        let hash = BuildHasherDefault::<Hashed>::default().hash_one(name);
        &self.shards[hash as usize % SHARDS]
    }

    pub(super) fn note_id(&self, id: &HolderId, name: &Name, no: RequestNo) {
        self.ids.lock().insert(id.clone(), (name.clone(), no));
    }

    pub(super) fn forget_id(&self, id: &HolderId) {
        self.ids.lock().remove(id);
    }

    /// Returns the request that has this id.
    pub(super) fn request_of(&self, id: &HolderId) -> Option<(Name, RequestNo)> {
        self.ids.lock().get(id).cloned()
    }
}
