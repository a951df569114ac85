//! What `leasehold run` holds while its command runs: a lock, or a permit of a semaphore.

use std::time::Duration;

use leasehold::crossbeam_channel::Receiver;
use leasehold::{
    Client, Error, FencingToken, Lost, Mutex, MutexGuard, Semaphore, SemaphorePermit, Unlocked,
};

use crate::args::{Run, name};

/// A lock, or a semaphore.
pub(crate) enum Lock {
    Mutex(Mutex),
    Semaphore(Semaphore),
}

/// A held lock, or a permit.
pub(crate) enum Lease {
    Guard(MutexGuard),
    Permit(SemaphorePermit),
}

impl Lock {
    /// Returns the lock or the semaphore that the arguments name, with their settings.
    pub(crate) fn of(client: &Client, args: &Run) -> Self {
        let name = name(&args.name);
        macro_rules! with_settings {
            ($lock:expr) => {{
                let mut lock = $lock;
                if let Some(ttl) = args.ttl {
                    lock = lock.ttl(ttl);
                }
                if let Some(most) = args.max_hold {
                    lock = lock.max_hold(most);
                }
                lock
            }};
        }
        match args.permits {
            None => Self::Mutex(with_settings!(client.mutex(name))),
            Some(permits) => Self::Semaphore(with_settings!(client.semaphore(name, permits))),
        }
    }

    /// Acquires it, waiting without limit.
    pub(crate) fn lock(&self) -> Result<Lease, Error> {
        match self {
            Self::Mutex(mutex) => mutex.lock().map(Lease::Guard),
            Self::Semaphore(semaphore) => semaphore.acquire().map(Lease::Permit),
        }
    }

    /// Acquires it, waiting for at most `limit`; not at all if that is zero.
    pub(crate) fn try_lock_for(&self, limit: Duration) -> Result<Option<Lease>, Error> {
        Ok(match self {
            Self::Mutex(mutex) => mutex.try_lock_for(limit)?.map(Lease::Guard),
            Self::Semaphore(semaphore) => semaphore.try_acquire_for(limit)?.map(Lease::Permit),
        })
    }
}

impl Lease {
    pub(crate) fn fencing_token(&self) -> FencingToken {
        match self {
            Self::Guard(guard) => guard.fencing_token(),
            Self::Permit(permit) => permit.fencing_token(),
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        match self {
            Self::Guard(guard) => guard.is_held(),
            Self::Permit(permit) => permit.is_held(),
        }
    }

    pub(crate) fn lost(&self) -> Receiver<Lost> {
        match self {
            Self::Guard(guard) => guard.lost(),
            Self::Permit(permit) => permit.lost(),
        }
    }

    pub(crate) fn extend(&self, ttl: Duration) -> Result<(), Error> {
        match self {
            Self::Guard(guard) => guard.extend(ttl),
            Self::Permit(permit) => permit.extend(ttl),
        }
    }

    pub(crate) fn release(self) -> Result<Unlocked, Error> {
        match self {
            Self::Guard(guard) => guard.unlock(),
            Self::Permit(permit) => permit.release(),
        }
    }
}
