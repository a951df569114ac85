//! How many of several servers decide.

/// Why a call fails if nobody is known to have the lock, and no majority grants it.
pub(crate) const SPLIT: &str = "the servers keep keys of several holders, none of them on a majority: look for keys without an \
     expiry";

/// The number of one of them.
pub(crate) type Member = usize;

/// The number of servers, and how many of them decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Majority {
    pub(crate) all: usize,
    pub(crate) needed: usize,
}

impl Majority {
    pub(crate) const fn of(all: usize) -> Self {
        Self {
            all,
            needed: all / 2 + 1,
        }
    }

    /// How many servers may disagree or fail without preventing a decision.
    pub(crate) const fn spare(self) -> usize {
        self.all - self.needed
    }
}
