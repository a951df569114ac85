//! Why the engine sent a command: whom its end concerns.

use std::sync::Arc;

use crate::config::LeaseTerms;
use crate::holder_id::HolderId;
use crate::kernel::batch::Batch;
use crate::kernel::held::HeldLease;
use crate::kernel::lease::LeaseWork;
use crate::kernel::operation::OperationCell;
use crate::kernel::request::{Asked, RequestNo};
use crate::name::Name;

/// Why a command was sent.
#[derive(Debug)]
pub(crate) enum Purpose {
    Ask(Asked),
    Refresh(Name, Vec<(RequestNo, HolderId)>),
    Confirm(Name, RequestNo, HolderId, LeaseTerms),
    Lease(LeaseWork),
    Renewals(Vec<LeaseWork>),
    /// The holder of the lease waits for the end.
    Release(Arc<HeldLease>, Arc<OperationCell>),
    Undo(Batch),
}

impl Purpose {
    /// Returns what is left of a purpose that is over: it may own a user's closure.
    pub(super) fn into_leases(self) -> Vec<Arc<HeldLease>> {
        match self {
            Self::Lease(work) => vec![work.lease],
            Self::Renewals(works) => works.into_iter().map(|work| work.lease).collect(),
            Self::Release(lease, _) => vec![lease],
            _ => Vec::new(),
        }
    }
}
