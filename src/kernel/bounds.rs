//! The bounds of the kernel, which the simulation lowers one at a time.
//!
//! A bound slows down or forgets, and never refuses a call: `docs/kernel.md` says what each does.

#[cfg(sim)]
use std::cell::Cell;

/// A bound on what the kernel remembers, or does at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    KeySeen,
    Ended,
    Recent,
    Ids,
    Together,
    Heard,
    Proposals,
    Names,
    Left,
}

#[cfg(sim)]
impl Bound {
    pub(crate) const ALL: [Self; 9] = [
        Self::KeySeen,
        Self::Ended,
        Self::Recent,
        Self::Ids,
        Self::Together,
        Self::Heard,
        Self::Proposals,
        Self::Names,
        Self::Left,
    ];
}

/// Returns the bound of this name.
#[cfg(sim)]
pub(crate) fn bound_of(name: &str) -> Option<Bound> {
    Bound::ALL.into_iter().find(|it| format!("{it:?}") == name)
}

/// The value of a lowered bound.
#[cfg(sim)]
const LOWERED: usize = 3;

#[cfg(sim)]
thread_local! {
    static LOW: Cell<Option<Bound>> = const { Cell::new(None) };
}

/// Lowers this bound, in this thread.
#[cfg(sim)]
pub(crate) fn lower(bound: Option<Bound>) {
    LOW.set(bound);
}

/// Returns the value of a bound: its `usual` one, except in the simulation.
#[cfg(sim)]
pub(crate) fn at_most(bound: Bound, usual: usize) -> usize {
    if LOW.get() == Some(bound) {
        LOWERED
    } else {
        usual
    }
}

/// Returns the value of a bound: its `usual` one, except in the simulation.
#[cfg(not(sim))]
pub(crate) const fn at_most(_: Bound, usual: usize) -> usize {
    usual
}
