//! The time of a lease, and the commands for it. The arithmetic is that of `lease/state.rs`.

use std::sync::Arc;
use std::time::Duration;

use crate::kernel::held::HeldLease;
use crate::kernel::waiter::Failure;
pub(crate) use crate::lease::handoff::{HandoffRun, NoHandoff};
pub(crate) use crate::lease::state::{BeforeSetTtl, LeaseState};
pub(crate) use crate::lease::status::{Due, LeaseStatus, RENEWAL_WINDOW, RenewalRequest};
use crate::parker::Parker;
use crate::protocol::primitive::Primitive;
use crate::sync::Mutex;

/// A command that the holder of a lease wants, and waits for.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) what: Wanted,
    pub(crate) cell: Arc<OperationCell>,
}

#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    /// Renews the lease for its whole ttl.
    Renew,
    SetTtl(Duration),
    /// Makes a writer a reader; contains the readers' side of the lock.
    Downgrade(Arc<dyn Primitive>),
}

/// Where the result of an operation is put.
#[derive(Debug)]
pub(crate) struct OperationCell {
    /// The result: `Ok` if Redis has confirmed the lease.
    pub(crate) result: Mutex<Option<Result<(), Failure>>>,
    pub(crate) parker: Parker,
}

impl OperationCell {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            result: Mutex::new(None),
            parker: Parker::new(),
        })
    }
}

/// The command of a lease that is in flight: there is at most one.
#[derive(Debug)]
pub(crate) struct LeaseWork {
    pub(crate) lease: Arc<HeldLease>,
    pub(crate) kind: WorkKind,
    /// The cell of the operation, if the holder waits for it.
    pub(crate) cell: Option<Arc<OperationCell>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum WorkKind {
    Renewal(RenewalRequest),
    SetTtl(Duration, BeforeSetTtl),
}
