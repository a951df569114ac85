//! Parker: a waiting thread sleeps on it until another thread wakes it.

use std::sync::atomic::Ordering;

use crate::clock::Instant;
use crate::sync::{AtomicBool, Thread, current_thread, park_timeout};

/// Blocks the thread that made it until another thread calls [`unpark`](Self::unpark).
///
/// Not a channel: a receiver of crossbeam yields its processor four times before it sleeps. While
/// all processors are busy, each of these yields is a context switch.
#[derive(Debug)]
pub(crate) struct Parker {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Parker {
    /// Returns the parker of the current thread: no other thread can sleep on it.
    pub(crate) fn new() -> Self {
        Self {
            thread: current_thread(),
            is_woken: AtomicBool::new(false),
        }
    }

    /// Wakes the waiter. If it is not asleep, its next [`park`](Self::park) returns at once.
    ///
    /// Several calls before that wake it only once.
    pub(crate) fn unpark(&self) {
        // Before the thread is unparked, because that ends only one sleep.
        self.is_woken.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }

    /// Sleeps until `unpark`, and until `until` at most.
    pub(crate) fn park(&self, until: Instant) {
        self.park_unless(|| false, until);
    }

    /// Sleeps like [`park`](Self::park), but not once `is_over`. Another thread must unpark the
    /// [`thread`](Self::thread) after it has changed that.
    pub(crate) fn park_unless(&self, is_over: impl Fn() -> bool, until: Instant) {
        debug_assert_eq!(self.thread.id(), current_thread().id());
        // The program, too, may park this thread and unpark it: each wake-up can be another's, and
        // another sleep may have used up the one that was meant for this.
        while !self.is_woken.swap(false, Ordering::SeqCst) && !is_over() {
            let now = Instant::now();
            if now >= until {
                return;
            }
            park_timeout(now.until(until));
        }
    }

    /// The thread that sleeps on it.
    pub(crate) const fn thread(&self) -> &Thread {
        &self.thread
    }
}

#[cfg(test)]
mod tests;
