//! The operations of a holder: the engine sends them, and the holder waits for their ends.

use std::sync::Arc;
use std::time::Duration;

use crate::kernel::failure::Failure;
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

/// The cell for the result of an operation.
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
