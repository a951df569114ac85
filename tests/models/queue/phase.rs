//! The phases of a client, from its first attempt to its release.

use super::rules::OLD;
use super::state::Id;
use super::wire::Tokens;

/// The phase of a client. Ages are ticks since a command was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Out,
    /// Without a place: acquires the lock if it is free.
    Trying {
        id: Id,
        age: u8,
    },
    /// The lock was refused to a client of `Kind::Broadcast`: it tries again when a release is
    /// announced.
    Sleeping {
        id: Id,
    },
    Entering {
        id: Id,
        age: u8,
    },
    Waiting {
        id: Id,
        /// The age of the last command whose reply said that the client waits.
        proof: u8,
        /// The age of the refresh that is in flight.
        refresh: Option<u8>,
    },
    /// Has learned of a grant that may have ended. The client renews it, and holds the lock only
    /// if the reply confirms it.
    Confirming {
        id: Id,
        age: u8,
        tokens: Tokens,
    },
    Held {
        id: Id,
        /// How many ticks the lease is still valid.
        validity: u8,
        /// The age of the renewal that is in flight.
        renewal: Option<u8>,
        /// The token of the thread that holds, and those for the threads after it.
        tokens: Tokens,
    },
    Leaving {
        id: Id,
    },
    /// Killed or stopped.
    Dead,
}

impl Phase {
    pub(super) fn id(self) -> Option<Id> {
        match self {
            Self::Out | Self::Dead => None,
            Self::Trying { id, .. }
            | Self::Sleeping { id }
            | Self::Entering { id, .. }
            | Self::Waiting { id, .. }
            | Self::Confirming { id, .. }
            | Self::Held { id, .. }
            | Self::Leaving { id } => Some(id),
        }
    }

    /// Whether the client wants the lock and does not have it.
    pub(super) fn wants(self) -> bool {
        matches!(
            self,
            Self::Trying { .. }
                | Self::Sleeping { .. }
                | Self::Entering { .. }
                | Self::Waiting { .. }
                | Self::Confirming { .. }
        )
    }

    pub(super) fn is_held(self) -> bool {
        matches!(self, Self::Held { .. })
    }

    /// The phase one tick later. A client whose lease is no longer valid does not hold the lock.
    pub(super) fn older(mut self) -> Self {
        let older = |age: u8| (age + 1).min(OLD);
        match &mut self {
            Self::Trying { age, .. }
            | Self::Entering { age, .. }
            | Self::Confirming { age, .. } => {
                *age = older(*age);
            }
            Self::Waiting { proof, refresh, .. } => {
                *proof = older(*proof);
                *refresh = refresh.map(older);
            }
            Self::Held { validity: 1, .. } => return Self::Out,
            Self::Held {
                validity, renewal, ..
            } => {
                *validity -= 1;
                *renewal = renewal.map(older);
            }
            Self::Out | Self::Sleeping { .. } | Self::Leaving { .. } | Self::Dead => {}
        }
        self
    }
}
