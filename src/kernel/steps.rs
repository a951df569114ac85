//! Counts what the decisions about an event look at, for the simulation: it finds walks over all
//! waiting calls, and loops without an end.

#[cfg(sim)]
use std::cell::Cell;

/// The most turns of the kernel's loops in one event: a call of the kernel takes a few for each
/// name.
#[cfg(sim)]
const TURNS_OF_AN_EVENT: u32 = 10_000;

#[cfg(sim)]
thread_local! {
    static TURNS: Cell<u32> = const { Cell::new(0) };
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

/// A loop of the kernel goes on.
///
/// # Panics
///
/// If it has gone on so often since the last event that it seems to have no end.
#[cfg(sim)]
pub(crate) fn count_step() {
    let turns = TURNS.get() + 1;
    assert!(
        turns <= TURNS_OF_AN_EVENT,
        "a call of the kernel does not return"
    );
    TURNS.set(turns);
}

/// A loop of the kernel goes on.
#[cfg(not(sim))]
pub(crate) fn count_step() {}

/// An event of the simulation begins.
#[cfg(sim)]
pub(crate) fn begin_event() {
    TURNS.set(0);
    take_counts();
}

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
