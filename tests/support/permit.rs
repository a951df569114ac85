//! A limit on the servers that run at the same time, so that parallel tests do not starve each other.

use std::cell::Cell;

use parking_lot::{Condvar, Mutex};

/// What one server counts for.
pub(crate) const SERVER: usize = 1;

/// What three sentinels count for, with a master and its replicas.
pub(crate) const SENTINELS: usize = 5;

/// What the nodes of a cluster count for.
pub(crate) const CLUSTER: usize = 6;

const LIMIT: usize = 10;

/// The sum of all permits.
static USED: Mutex<usize> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

thread_local! {
    /// Whether this thread runs a test that has no permit yet.
    static WAITS: Cell<bool> = const { Cell::new(false) };
}

/// Counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit(usize);

impl Permit {
    /// The first permit of a test waits until there is room. Any further one only counts: two tests that each held a
    /// server while they waited for another would wait for ever.
    pub(crate) fn take(weight: usize) -> Self {
        let mut used = USED.lock();
        if WAITS.replace(false) {
            FREED.wait_while(&mut used, |used| *used > 0 && *used + weight > LIMIT);
        }
        *used += weight;
        Self(weight)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *USED.lock() -= self.0;
        FREED.notify_all();
    }
}

/// Runs a test: its first permit waits for room.
pub(crate) fn in_test<T>(test: impl FnOnce() -> T) -> T {
    WAITS.set(true);
    test()
}

/// Starts what several tests share. None of its permits waits: a test that held one might wait for the start.
pub fn shared<T>(start: impl FnOnce() -> T) -> T {
    let waited = WAITS.replace(false);
    let started = start();
    WAITS.set(waited);
    started
}
