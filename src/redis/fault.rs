//! Why one server has no result for a call.

use crate::error::Cause;
use crate::kernel::fault::Fault;
use crate::protocol::redirect::Redirect;

/// Why one server has no result for a call, before a cluster follows the redirect.
pub(crate) enum NodeFault {
    /// The call did not run: this node of a cluster does not own its keys, or not all of them. The
    /// cause is for a call that does not follow the redirect any more.
    Redirected(Redirect, Cause),
    /// The call did not run: the server does not know its script.
    NoScript,
    Fault(Fault),
}

impl NodeFault {
    /// Returns why the server did not serve the call, from its reply, if that may pass.
    pub(super) fn not_served_in<T>(answer: &Result<T, Self>) -> Option<&Cause> {
        match answer {
            Err(Self::Fault(fault)) => fault.cause(),
            _ => None,
        }
    }
}

impl From<Fault> for NodeFault {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<NodeFault> for Fault {
    fn from(fault: NodeFault) -> Self {
        match fault {
            NodeFault::Redirected(_, cause) => Self::NotRun(cause),
            NodeFault::NoScript => Self::NotRun(Cause::text("its script was not known")),
            NodeFault::Fault(fault) => fault,
        }
    }
}
