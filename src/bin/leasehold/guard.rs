//! The guard of the lock or permit that `run` holds, whatever its kind.

use std::time::Duration;

use leasehold::crossbeam_channel::Receiver;
use leasehold::{
    Error, FencingToken, Lost, MutexAllGuard, MutexGuard, Name, RwLockReadGuard, RwLockWriteGuard,
    SemaphorePermit,
};

/// A guard of any kind. Dropping it releases the lock.
pub(crate) trait Guard: Send {
    /// Returns the fencing token of a held name.
    fn token(&self, name: &Name) -> Option<FencingToken>;

    /// Returns the holder id in the form that `status` shows.
    fn shown_id(&self) -> String;

    fn lost(&self) -> Receiver<Lost>;

    fn is_held(&self) -> bool;

    /// Returns an error unless the lock is certainly held now.
    fn ensure_held(&self) -> Result<(), Error>;

    fn set_ttl(&self, ttl: Duration) -> Result<(), Error>;

    fn release(self: Box<Self>) -> Result<(), Error>;
}

/// Implements [`Guard`] for each type, with the name of its call that releases, and a closure that
/// returns the token of a name. The other calls are those of [`MutexGuard`].
macro_rules! guards {
    ($($guard:ty, $release:ident, $token:expr);+) => {$(
        impl Guard for $guard {
            fn token(&self, name: &Name) -> Option<FencingToken> {
                let token: fn(&Self, &Name) -> Option<FencingToken> = $token;
                token(self, name)
            }

            fn shown_id(&self) -> String {
                self.holder_id().short().to_string()
            }

            fn lost(&self) -> Receiver<Lost> {
                self.lost()
            }

            fn is_held(&self) -> bool {
                self.is_held()
            }

            fn ensure_held(&self) -> Result<(), Error> {
                self.ensure_held()
            }

            fn set_ttl(&self, ttl: Duration) -> Result<(), Error> {
                self.set_ttl(ttl)
            }

            fn release(self: Box<Self>) -> Result<(), Error> {
                (*self).$release()
            }
        }
    )+};
}

guards!(
    MutexGuard, unlock, |guard, _| Some(guard.fencing_token());
    MutexAllGuard, unlock, |guard, name| guard.fencing_token_of(name);
    RwLockReadGuard, unlock, |guard, _| Some(guard.fencing_token());
    RwLockWriteGuard, unlock, |guard, _| Some(guard.fencing_token());
    SemaphorePermit, release, |permit, _| Some(permit.fencing_token())
);
