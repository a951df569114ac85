//! The lock that `run` takes, whatever its kind.

use std::time::Duration;

use leasehold::{
    CancelToken, Client, Error, FairMutex, Mutex, MutexAll, Name, RwLock, Semaphore, Taken,
};

use crate::args::{Run, name};
use crate::exit::{Failure, USAGE};
use crate::guard::Guard;

/// How long a call waits for its lock.
#[derive(Clone, Copy)]
pub(crate) enum LockWait {
    None,
    For(Duration),
    Unlimited,
}

impl LockWait {
    pub(crate) fn of(args: &Run) -> Self {
        match args.wait {
            _ if args.no_wait => Self::None,
            Some(limit) => Self::For(limit),
            None => Self::Unlimited,
        }
    }
}

/// Acquires the lock; returns [`Taken`] if it is not granted in time.
pub(crate) type Take = Box<dyn Fn(LockWait) -> Result<Result<Box<dyn Guard>, Taken>, Error> + Send>;

/// Returns the call that acquires `$lock` with the settings of `$args`, by the methods of its kind:
/// one that waits, one that does not, and one that waits for a limited time.
macro_rules! take {
    ($lock:expr, $args:ident, $kind:ident: $wait:ident $try:ident $try_for:ident) => {{
        // The client's shutdown waits for calls that can be cancelled, until they have left the
        // queue. Nothing cancels this token: the shutdown ends the call, too.
        let mut lock: $kind = $lock.cancel_on(&CancelToken::new());
        if let Some(ttl) = $args.ttl {
            lock = lock.ttl(ttl);
        }
        let take: Take = Box::new(move |limit| {
            let guard = match limit {
                LockWait::None => lock.$try()?,
                LockWait::For(limit) => lock.$try_for(limit)?,
                LockWait::Unlimited => Ok(lock.$wait()?),
            };
            Ok(guard.map(|guard| Box::new(guard) as Box<dyn Guard>))
        });
        take
    }};
}

/// Returns the call that acquires the lock that the arguments describe.
pub(crate) fn take(client: &Client, args: &Run) -> Result<Take, Failure> {
    let names: Vec<Name> = args.names().into_iter().map(name).collect();
    let usage = |text| Err(Failure::new(USAGE, text));
    let [name] = names.as_slice() else {
        let has_queue = args.fair || args.read || args.write || args.permits.is_some();
        return match names.as_slice() {
            [] => usage("the name is missing: leasehold run NAME -- CMD"),
            _ if has_queue => usage("--fair, --read, --write and --permits need a single name"),
            _ => {
                let lock = client.mutex_all(names);
                Ok(take!(lock, args, MutexAll: lock try_lock try_lock_for))
            }
        };
    };
    Ok(match args.permits {
        // Permits are always granted in the order of the calls.
        Some(permits) => {
            let lock = client.semaphore(name, permits);
            take!(lock, args, Semaphore: acquire try_acquire try_acquire_for)
        }
        None if args.read => {
            take!(client.rw_lock(name), args, RwLock: read try_read try_read_for)
        }
        None if args.write => {
            take!(client.rw_lock(name), args, RwLock: write try_write try_write_for)
        }
        None if args.fair => {
            let lock = client.fair_mutex(name);
            take!(lock, args, FairMutex: lock try_lock try_lock_for)
        }
        None => take!(client.mutex(name), args, Mutex: lock try_lock try_lock_for),
    })
}
