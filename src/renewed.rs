//! What `on_renew` is told.

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
    /// The lock's name; of several that are held together, the first.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The lease that was renewed.
    pub fn holder_id(&self) -> &HolderId {
        &self.holder_id
    }

    /// The holder's fencing token for that name; a renewal does not change it.
    pub fn fencing_token(&self) -> FencingToken {
        self.fencing_token
    }

    /// How long the lease was surely held, at the moment of the answer.
    pub fn remaining(&self) -> Duration {
        self.remaining
    }

    /// How long the answer took.
    pub fn took(&self) -> Duration {
        self.took
    }
}
