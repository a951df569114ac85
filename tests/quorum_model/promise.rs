//! What may happen, and what must hold whatever happens.

use crate::state::{ATTEMPTS, Phase, Release, State};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Tick,
    Asks {
        id: usize,
        token: u8,
    },
    AsksHigher {
        id: usize,
        token: u8,
    },
    Grants {
        server: usize,
        id: usize,
    },
    GivesUp {
        id: usize,
    },
    Holds {
        id: usize,
        token: u8,
    },
    HandsOn {
        id: usize,
        token: u8,
    },
    Releases {
        id: usize,
    },
    /// An undo or a release has come to this server.
    Deletes {
        server: usize,
        id: usize,
    },
    /// The client reads the answer to the acquire.
    ReadsGrant {
        server: usize,
        id: usize,
    },
    /// The connection of the acquire ends before its answer was read.
    Cuts {
        server: usize,
        id: usize,
    },
    SendsRelease {
        server: usize,
        id: usize,
        is_behind: bool,
    },
    /// A release has come to this server, which has no such key.
    FindsNothing {
        server: usize,
        id: usize,
    },
    /// The release or its answer is lost, or the answer proves nothing.
    RepeatsRelease {
        server: usize,
        id: usize,
    },
    /// The answer of a release that found nothing is taken for its end.
    EndsRelease {
        server: usize,
        id: usize,
    },
    AsksToRenew {
        id: usize,
    },
    Renews {
        server: usize,
        id: usize,
    },
    HoldsOn {
        id: usize,
    },
    ExpiresEarly {
        server: usize,
    },
    RestartsEmpty {
        server: usize,
    },
}

/// What must hold of all holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// No two believe at once that they hold the lock.
    Exclusion,
    /// Whoever comes to hold the lock has a higher token than all who held it before.
    RisingByHolding,
    /// Whoever asked for the lock when another had come to hold it gets a higher token than that one. (One to whom a lease
    /// is handed on asked for nothing: the lease is as old as its first holder.)
    RisingByAsking,
    /// No two holders have the same token.
    Distinct,
    /// A server from which nobody will delete the key of an attempt any more does not have that key,
    /// and does not get it.
    NoKeyStays,
}

impl Promise {
    pub(crate) fn is_broken(self, before: &State, step: Step) -> bool {
        let (id, token) = match step {
            Step::Holds { id, token } | Step::HandsOn { id, token } => (id, token),
            Step::EndsRelease { server, id } if self == Self::NoKeyStays => {
                return before.servers[server].holder == Some(id);
            }
            Step::Grants { server, id } if self == Self::NoKeyStays => {
                return before.servers[server].release[id] == Release::Over;
            }
            _ => return false,
        };
        match self {
            Self::Exclusion => (0..ATTEMPTS)
                .any(|other| other != id && before.attempts[other].phase == Phase::Holding),
            Self::RisingByHolding => token <= before.highest_held(),
            Self::RisingByAsking => token <= before.attempts[id].floor,
            Self::Distinct => before.held & (1 << token) != 0,
            Self::NoKeyStays => false,
        }
    }
}
