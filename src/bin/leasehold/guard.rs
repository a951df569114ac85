//! The guard of the lock or permit that `run` holds, whatever its kind.

use std::ops::Deref;

use leasehold::{
    Error, FencingToken, HolderId, Lease, MutexAllGuard, MutexGuard, Name, RwLockReadGuard,
    RwLockWriteGuard, SemaphorePermit,
};

/// A guard of any kind. Dropping it releases the lock.
pub(crate) trait Guard: Deref<Target = Lease> + Send {
    /// Returns the fencing token of a held name.
    fn token(&self, _name: &Name) -> Option<FencingToken> {
        Some(self.fencing_token())
    }

    /// Returns the holder id of each held name.
    fn ids(&self) -> Vec<&HolderId> {
        vec![self.holder_id()]
    }

    fn release(self: Box<Self>) -> Result<(), Error>;
}

impl Guard for MutexGuard {
    fn release(self: Box<Self>) -> Result<(), Error> {
        self.unlock()
    }
}

impl Guard for MutexAllGuard {
    fn token(&self, name: &Name) -> Option<FencingToken> {
        self.fencing_token_of(name)
    }

    fn ids(&self) -> Vec<&HolderId> {
        let names = self.names().iter();
        names
            .filter_map(|name| self.holder_id_of(name.clone()))
            .collect()
    }

    fn release(self: Box<Self>) -> Result<(), Error> {
        self.unlock()
    }
}

impl Guard for RwLockReadGuard {
    fn release(self: Box<Self>) -> Result<(), Error> {
        self.unlock()
    }
}

impl Guard for RwLockWriteGuard {
    fn release(self: Box<Self>) -> Result<(), Error> {
        self.unlock()
    }
}

impl Guard for SemaphorePermit {
    fn release(self: Box<Self>) -> Result<(), Error> {
        (*self).release()
    }
}
