//! Counts what the decisions about an event look at, for the simulation: it finds walks over all
//! waiting calls.

#[cfg(sim)]
use std::cell::Cell;

#[cfg(sim)]
thread_local! {
    static VISITED: Cell<usize> = const { Cell::new(0) };
    static DECIDED: Cell<usize> = const { Cell::new(0) };
}

/// Counts the waiting calls, requests or ids that a decision looks at.
#[cfg(sim)]
pub(crate) fn visited(items: usize) {
    VISITED.set(VISITED.get() + items);
}

/// Counts the waiting calls, requests or ids that a decision looks at.
#[cfg(not(sim))]
pub(crate) fn visited(_: usize) {}

/// Counts the calls, or the ids of a command or reply, that a decision is about.
#[cfg(sim)]
pub(crate) fn decided(items: usize) {
    DECIDED.set(DECIDED.get() + items);
}

/// Counts the calls, or the ids of a command or reply, that a decision is about.
#[cfg(not(sim))]
pub(crate) fn decided(_: usize) {}

/// Returns how many were looked at since the last time, and how many that was about.
#[cfg(sim)]
pub(crate) fn take_counts() -> [usize; 2] {
    [VISITED.take(), DECIDED.take()]
}

/// Runs `act`, whose looks do not count.
#[cfg(sim)]
pub(crate) fn uncounted<T>(act: impl FnOnce() -> T) -> T {
    let before = (VISITED.get(), DECIDED.get());
    let result = act();
    VISITED.set(before.0);
    DECIDED.set(before.1);
    result
}
