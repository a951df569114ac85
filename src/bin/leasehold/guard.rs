//! The guard of the lock or permit that `run` holds, whatever its kind.

use std::ops::Deref;

use leasehold::{
    Error, FencingToken, Lease, MutexAllGuard, MutexGuard, Name, RwLockReadGuard, RwLockWriteGuard,
    SemaphorePermit,
};

/// A guard of any kind. Dropping it releases the lock.
pub(crate) trait Guard: Deref<Target = Lease> + Send {
    /// Returns the fencing token of a held name.
    fn token(&self, _name: &Name) -> Option<FencingToken> {
        Some(self.fencing_token())
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
