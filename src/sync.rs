//! Std's `Mutex` and `Condvar`, without poisoning, and what else the model of the threads replaces.
//!
//! Not those of `parking_lot`: it keeps the parked threads of a process in one table, which a fork
//! copies. In the child, new threads then reuse the memory of threads that the table still has.
//! Std's locks on Linux have no state outside themselves.

use std::ops::{Deref, DerefMut};
#[cfg(feature = "testing")]
use std::sync::TryLockError;
pub(crate) use std::sync::atomic::AtomicBool;
use std::sync::{self, PoisonError};
pub(crate) use std::thread::{Thread, ThreadId, current as current_thread, park_timeout};
use std::time::Duration;

/// A lock for data that a panic leaves usable.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

/// The guard of a [`Mutex`].
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a sync::Mutex<T>,
    /// `None` only while `unlocked` and the waits of a [`Condvar`] run.
    guard: Option<sync::MutexGuard<'a, T>>,
}

const LOCKED: &str = "only the calls that unlock take it, and they put one back";

impl<T> Mutex<T> {
    pub(crate) const fn new(data: T) -> Self {
        Self(sync::Mutex::new(data))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        last::check();
        MutexGuard {
            mutex: &self.0,
            guard: Some(locked(&self.0)),
        }
    }

    #[cfg(feature = "testing")]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = match self.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard {
            mutex: &self.0,
            guard: Some(guard),
        })
    }
}

fn locked<T>(mutex: &sync::Mutex<T>) -> sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> MutexGuard<'_, T> {
    /// Runs `act` while the mutex is unlocked.
    pub(crate) fn unlocked<R>(guard: &mut Self, act: impl FnOnce() -> R) -> R {
        guard.guard = None;
        // Also locks it again after a panic of `act`: the caller's destructors may use the data.
        let relock = Relock(guard);
        let result = act();
        drop(relock);
        result
    }
}

/// A mutex that is the last in the order of locks: a thread that has it must not lock another one.
/// Debug builds and the simulation check that.
#[derive(Debug, Default)]
pub(crate) struct LastMutex<T>(Mutex<T>);

/// The guard of a [`LastMutex`].
#[derive(Debug)]
pub(crate) struct LastGuard<'a, T>(MutexGuard<'a, T>);

impl<T> LastMutex<T> {
    pub(crate) const fn new(data: T) -> Self {
        Self(Mutex::new(data))
    }

    pub(crate) fn lock(&self) -> LastGuard<'_, T> {
        let guard = self.0.lock();
        last::locked();
        LastGuard(guard)
    }
}

impl<T> Deref for LastGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for LastGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Drop for LastGuard<'_, T> {
    fn drop(&mut self) {
        last::unlocked();
    }
}

/// Whether this thread has a mutex that is the last in the order.
#[cfg(any(sim, debug_assertions))]
mod last {
    use std::cell::Cell;

    thread_local! {
        static HAS_LAST: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn check() {
        assert!(
            !HAS_LAST.get(),
            "this thread already has the last lock of the order"
        );
    }

    pub(super) fn locked() {
        HAS_LAST.set(true);
    }

    pub(super) fn unlocked() {
        HAS_LAST.set(false);
    }
}

#[cfg(not(any(sim, debug_assertions)))]
mod last {
    pub(super) const fn check() {}
    pub(super) const fn locked() {}
    pub(super) const fn unlocked() {}
}

/// Locks the mutex of a guard again when dropped.
struct Relock<'g, 'a, T>(&'g mut MutexGuard<'a, T>);

impl<T> Drop for Relock<'_, '_, T> {
    fn drop(&mut self) {
        self.0.guard = Some(locked(self.0.mutex));
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect(LOCKED)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect(LOCKED)
    }
}

/// A condition variable for a [`Mutex`].
#[derive(Debug, Default)]
pub(crate) struct Condvar(sync::Condvar);

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let locked = guard.guard.take().expect(LOCKED);
        guard.guard = Some(self.0.wait(locked).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits for at most `limit`, and returns true if that time has passed.
    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) -> bool {
        let locked = guard.guard.take().expect(LOCKED);
        let waited = self.0.wait_timeout(locked, limit);
        let (locked, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        guard.guard = Some(locked);
        waited.timed_out()
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_locked_behind_the_last_mutex() {
        let (last, other) = (LastMutex::new(1), Mutex::new(2));
        let first = other.lock();
        assert_eq!(*last.lock() + *first, 3);
        drop(first);
        let guard = last.lock();
        let locked = std::panic::catch_unwind(|| drop(other.lock()));
        assert!(locked.is_err());
        drop(guard);
        assert_eq!(*other.lock(), 2);
    }
}
