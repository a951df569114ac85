//! The steps of the model, and the promises that every sequence of steps must keep.

use super::state::{ATTEMPTS, Phase, Release, State};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
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
    /// An undo or a release deletes the key at this server.
    Deletes {
        server: usize,
        id: usize,
    },
    /// The client reads the answer to the acquire.
    ReadsGrant {
        server: usize,
        id: usize,
    },
    /// The connection of the acquire ends before its answer is read.
    Cuts {
        server: usize,
        id: usize,
    },
    SendsRelease {
        server: usize,
        id: usize,
        is_behind: bool,
    },
    /// A release runs at this server, which does not have the key.
    FindsNothing {
        server: usize,
        id: usize,
    },
    /// The release or its answer is lost, or the answer proves nothing.
    RepeatsRelease {
        server: usize,
        id: usize,
    },
    /// The client accepts the answer of a release that found nothing as final.
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
    /// A server that lost the key of a lease gets it back.
    Joins {
        server: usize,
        id: usize,
    },
    ExpiresEarly {
        server: usize,
    },
    RestartsEmpty {
        server: usize,
    },
}

/// A property that every sequence of steps must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// No two attempts believe at the same time that they hold the lock.
    Exclusion,
    /// Each holder has a higher token than every earlier holder.
    RisingByHolding,
    /// An attempt that begins after another became the holder gets a higher token than that holder.
    ///
    /// A waiter to which a lease is handed off makes no attempt: the lease is as old as its first
    /// holder.
    RisingByAsking,
    /// No two holders have the same token.
    Distinct,
    /// Once no client will delete an attempt's key from a server, the server does not have that key
    /// and does not get it.
    NoKeyStays,
}

impl Promise {
    pub(super) fn is_broken(self, before: &State, step: Step) -> bool {
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
