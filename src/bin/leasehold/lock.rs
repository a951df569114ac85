//! The lock that `run` takes, whatever its kind.

use std::time::Duration;

use leasehold::{Client, Error, FairMutex, Mutex, MutexAll, Name, Semaphore};

use crate::args::{Run, name};
use crate::exit::{Failure, USAGE};
use crate::guard::Guard;

/// How long a call waits for its lock.
#[derive(Clone, Copy)]
pub(crate) enum Patience {
    None,
    For(Duration),
    Unlimited,
}

impl Patience {
    pub(crate) fn of(args: &Run) -> Self {
        match args.wait {
            _ if args.no_wait => Self::None,
            Some(limit) => Self::For(limit),
            None => Self::Unlimited,
        }
    }
}

/// A lock of any kind.
pub(crate) trait Lock: Send {
    /// Acquires the lock; returns `None` if it is not granted in time.
    fn take(&self, patience: Patience) -> Result<Option<Box<dyn Guard>>, Error>;

    /// Returns the lock with these settings.
    fn with(self, ttl: Option<Duration>, max_hold: Option<Duration>) -> Self
    where
        Self: Sized;
}

/// Implements [`Lock`] for kinds of lock that have the settings and calls of [`Mutex`], under these
/// names.
macro_rules! locks {
    ($($lock:ty: $lock_call:ident $try:ident $try_for:ident),+) => {$(
        impl Lock for $lock {
            fn take(&self, patience: Patience) -> Result<Option<Box<dyn Guard>>, Error> {
                let guard = match patience {
                    Patience::None => self.$try()?,
                    Patience::For(limit) => self.$try_for(limit)?,
                    Patience::Unlimited => Some(self.$lock_call()?),
                };
                Ok(guard.map(|guard| Box::new(guard) as Box<dyn Guard>))
            }

            fn with(mut self, ttl: Option<Duration>, max_hold: Option<Duration>) -> Self {
                if let Some(ttl) = ttl {
                    self = self.ttl(ttl);
                }
                if let Some(longest) = max_hold {
                    self = self.max_hold(longest);
                }
                self
            }
        }
    )+};
}

locks!(
    Mutex: lock try_lock try_lock_for,
    FairMutex: lock try_lock try_lock_for,
    MutexAll: lock try_lock try_lock_for,
    Semaphore: acquire try_acquire try_acquire_for
);

/// Returns the lock that the arguments describe.
pub(crate) fn lock(client: &Client, args: &Run) -> Result<Box<dyn Lock>, Failure> {
    let names: Vec<Name> = args.names().into_iter().map(name).collect();
    match (names.as_slice(), args.permits) {
        ([], _) => Err(Failure::new(
            USAGE,
            "the lock's name is missing: leasehold run NAME -- CMD",
        )),
        // Permits are always granted in the order of the calls.
        ([name], Some(permits)) => Ok(boxed(client.semaphore(name, permits), args)),
        ([name], None) if args.fair => Ok(boxed(client.fair_mutex(name), args)),
        ([name], None) => Ok(boxed(client.mutex(name), args)),
        (_, None) if !args.fair => Ok(boxed(client.mutex_all(names), args)),
        _ => Err(Failure::new(
            USAGE,
            "--fair and --permits need a single name: a lock of several names has no queue",
        )),
    }
}

fn boxed(lock: impl Lock + 'static, args: &Run) -> Box<dyn Lock> {
    Box::new(lock.with(args.ttl, args.max_hold))
}
