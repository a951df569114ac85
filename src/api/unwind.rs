//! Clients, locks and guards may be used after a caught panic.

use std::panic::{RefUnwindSafe, UnwindSafe};

use crate::api::client::Client;
use crate::api::fair_mutex::FairMutex;
use crate::api::guards::{
    MutexAllGuard, MutexGuard, RwLockReadGuard, RwLockWriteGuard, SemaphorePermit,
};
use crate::api::lease::Lease;
use crate::api::mutex::Mutex;
use crate::api::mutex_all::MutexAll;
use crate::api::rw_lock::RwLock;
use crate::api::semaphore::Semaphore;

/// Implements the traits for these types. A panic cannot leave a value of them half-changed: the
/// crate does not panic while it changes shared state, and it never calls users' code, such as a
/// callback or a logger, in the middle of such a change.
macro_rules! unwind_safe {
    ($($type:ty)+) => {$(
        impl UnwindSafe for $type {}
        impl RefUnwindSafe for $type {}
    )+};
}
unwind_safe!(Client Mutex FairMutex MutexAll RwLock Semaphore);
unwind_safe!(Lease MutexGuard MutexAllGuard RwLockReadGuard RwLockWriteGuard SemaphorePermit);
