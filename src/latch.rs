//! Latch: opened once; threads wait for that.

use crate::clock::{Instant, nap};
use crate::sync::{Condvar, Mutex};

#[derive(Debug, Default)]
pub(crate) struct Latch {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Latch {
    pub(crate) fn open(&self) {
        *self.is_open.lock() = true;
        self.opened.notify_all();
    }

    /// Waits until the latch is open; returns false if it is still closed at `until`.
    pub(crate) fn wait(&self, until: Instant) -> bool {
        let mut is_open = self.is_open.lock();
        while !*is_open {
            let now = Instant::now();
            if now >= until {
                return false;
            }
            self.opened.wait_for(&mut is_open, nap(now, until));
        }
        true
    }
}
