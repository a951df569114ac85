//! The locks and the sleeps of the library, by shuttle. No time passes: a sleep ends if another
//! thread unparks it, or by itself at some moment.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::Duration;

pub(crate) use shuttle::sync::atomic::AtomicBool;
pub(crate) use shuttle::thread::{Thread, ThreadId, current as current_thread, park_timeout};

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    /// `None` only while `Condvar::wait_for` has it.
    locked: Option<shuttle::sync::MutexGuard<'a, T>>,
}

const LOCKED: &str = "only a wait takes the lock out, and it puts it back";

impl<T> Mutex<T> {
    pub(crate) const fn new(data: T) -> Self {
        Self(shuttle::sync::Mutex::new(data))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard {
            locked: Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.locked.as_ref().expect(LOCKED)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.locked.as_mut().expect(LOCKED)
    }
}

/// No time passes: a wait ends only if somebody wakes it.
#[derive(Debug, Default)]
pub(crate) struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub(crate) const fn new() -> Self {
        Self(shuttle::sync::Condvar::new())
    }

    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> bool {
        let locked = guard.locked.take().expect(LOCKED);
        let woken = self.0.wait(locked).unwrap_or_else(PoisonError::into_inner);
        guard.locked = Some(woken);
        false
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
