//! The argument of `on_renew` callbacks.

use std::time::Duration;

use crate::holder::HolderId;
use crate::name::Name;
use crate::token::FencingToken;

/// A renewal that Redis confirmed.
#[derive(Clone, Debug)]
pub struct Renewed {
    pub(crate) name: Name,
    pub(crate) holder_id: HolderId,
    pub(crate) fencing_token: FencingToken,
    pub(crate) remaining: Duration,
    pub(crate) took: Duration,
}

impl Renewed {
    /// Returns the lock's name; for a set of names, the first.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the id of the renewed lease.
    pub fn holder_id(&self) -> &HolderId {
        &self.holder_id
    }

    /// Returns the holder's fencing token for that name, which a renewal does not change.
    pub fn fencing_token(&self) -> FencingToken {
        self.fencing_token
    }

    /// Returns how long the lease was certainly held from the moment of the reply.
    pub fn remaining(&self) -> Duration {
        self.remaining
    }

    /// Returns how long the reply took.
    pub fn took(&self) -> Duration {
        self.took
    }
}
