//! A limit on the servers that run at the same time, so that parallel tests do not starve each
//! other.

use std::cell::Cell;

use parking_lot::{Condvar, Mutex};

/// The weight of one server.
pub(crate) const SERVER: usize = 1;

/// The weight of a Sentinel group: three sentinels, a master and its replicas.
pub(crate) const SENTINELS: usize = 5;

/// The weight of a cluster.
pub(crate) const CLUSTER: usize = 6;

/// A test waits for its first permit while the sum of weights would exceed this.
const LIMIT: usize = 24;

/// The sum of the weights of all permits.
static USED: Mutex<usize> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

thread_local! {
    /// True while this thread runs a test that has no permit yet.
    static NEEDS_PERMIT: Cell<bool> = const { Cell::new(false) };
}

/// Counts towards the limit until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit(usize);

impl Permit {
    /// Takes a permit. A test's first permit waits for room; later ones only count.
    ///
    /// Two tests that each held a server while they waited for another would deadlock.
    pub(crate) fn take(weight: usize) -> Self {
        let mut used = USED.lock();
        if NEEDS_PERMIT.replace(false) {
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

/// Runs a test, whose first permit waits for room.
pub(crate) fn in_test<T>(test: impl FnOnce() -> T) -> T {
    NEEDS_PERMIT.set(true);
    test()
}

/// Starts something that several tests share, without waiting for a permit.
///
/// If its permits waited, a test that holds a permit could wait for this start, and this
/// start for that test.
pub fn start_shared<T>(start: impl FnOnce() -> T) -> T {
    let needs_permit = NEEDS_PERMIT.replace(false);
    let started = start();
    NEEDS_PERMIT.set(needs_permit);
    started
}
