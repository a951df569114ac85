//! Counts what a decision visits, for the simulation: a walk over all waiters is found there.

#[cfg(sim)]
use std::cell::Cell;

#[cfg(sim)]
thread_local! {
    static VISITED: Cell<usize> = const { Cell::new(0) };
}

/// A decision looks at so many waiting calls, requests or ids.
#[cfg(sim)]
pub(crate) fn visited(items: usize) {
    VISITED.set(VISITED.get() + items);
}

/// A decision looks at so many waiting calls, requests or ids.
#[cfg(not(sim))]
pub(crate) fn visited(_: usize) {}

/// Returns how many were looked at since the last call.
#[cfg(sim)]
pub(crate) fn take_visited() -> usize {
    VISITED.take()
}
