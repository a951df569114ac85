//! Why a command has no result.

use std::fmt;
use std::time::Duration;

use crate::error::{Cause, Error};
use crate::protocol::answer::Answer;

/// Why a call has no result.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The call did not run and may be repeated: there was no connection.
    NotRun(Cause),
    /// The call was not sent: the server's circuit breaker is open.
    Open(Box<OpenCircuit>),
    /// The call may have run, or may still run: no reply came, or an error that may pass.
    Unknown(Cause),
    /// The call ran, but its effect must be undone or ignored: too few replicas acknowledged it,
    /// WAIT was rejected, or a call that belongs to it was.
    NotReplicated(Error),
    /// The call did not run and repeating it is useless.
    Rejected(Error),
}

/// Why an open circuit breaker rejected a call, and when it admits the next one.
#[derive(Clone, Debug)]
pub(crate) struct OpenCircuit {
    pub(crate) server: String,
    /// How many calls in a row have failed.
    pub(crate) failures: u32,
    /// Why the last call failed.
    pub(crate) last: Cause,
    pub(crate) retry_in: Duration,
}

impl OpenCircuit {
    /// Returns the last failure, for an error about the servers that `label` names.
    pub(crate) fn last_at(self, label: &str) -> Cause {
        if self.server == label {
            self.last
        } else {
            self.last.at(&self.server)
        }
    }
}

impl From<OpenCircuit> for Error {
    fn from(open: OpenCircuit) -> Self {
        Self::CircuitOpen {
            server: open.server,
            failures: open.failures,
            last: open.last,
            retry_in: open.retry_in,
        }
    }
}

impl Fault {
    /// Returns whether the server refused for a reason that lasts, such as that it is full, and not
    /// because the user lacks a permission. Such a reply does not show that it accepts writes.
    pub(crate) fn refuses_writes(&self) -> bool {
        matches!(self, Self::Rejected(error @ Error::Refused { .. }) if !error.lacks_right())
    }

    /// Returns the cause of a fault that may pass.
    pub(crate) fn cause(&self) -> Option<&Cause> {
        match self {
            Self::NotRun(cause) | Self::Unknown(cause) => Some(cause),
            Self::Open(_) | Self::NotReplicated(_) | Self::Rejected(_) => None,
        }
    }

    /// Returns whether the server has replied to the call, or its state is the reason.
    pub(crate) fn is_of_server(&self) -> bool {
        match self {
            Self::NotRun(cause) | Self::Unknown(cause) => cause.is_of_server(),
            Self::Rejected(_) => true,
            Self::Open(_) | Self::NotReplicated(_) => false,
        }
    }

    /// Returns whether the server refused the call with an error that may pass.
    pub(crate) fn is_refusal(&self) -> bool {
        self.cause().is_some_and(|cause| cause.refusal().is_some())
    }

    /// Returns whether the call has run, or may yet run.
    pub(crate) fn may_have_run(&self) -> bool {
        match self {
            Self::Unknown(_) | Self::NotReplicated(_) => true,
            Self::NotRun(_) | Self::Open(_) | Self::Rejected(_) => false,
        }
    }

    /// Returns the fault of one of several calls that belong together, after some of the others
    /// have run: this fault reports that the group may have run.
    pub(crate) fn after_others(self) -> Self {
        match self {
            Self::NotRun(cause) => Self::Unknown(cause),
            Self::Rejected(error) => Self::NotReplicated(error),
            fault => fault,
        }
    }

    /// Adds the address of the node to the cause.
    pub(crate) fn at(self, node: &str) -> Self {
        match self {
            Self::NotRun(cause) => Self::NotRun(cause.at(node)),
            Self::Unknown(cause) => Self::Unknown(cause.at(node)),
            fault => fault,
        }
    }

    /// Returns the text of the fault for a message that names the server itself.
    pub(crate) fn without_server(&self) -> String {
        match self {
            Self::Rejected(error) => error.without_server(),
            fault => fault.to_string(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRun(cause) | Self::Unknown(cause) => cause.fmt(f),
            Self::Open(open) => Error::from(OpenCircuit::clone(open)).fmt(f),
            Self::NotReplicated(error) | Self::Rejected(error) => error.fmt(f),
        }
    }
}

/// Returns the end of a command of a lease. A key of another type is one that another program has
/// replaced: the lease is lost.
pub(crate) fn end_for_lease(end: Result<Answer, Fault>) -> Result<Answer, Fault> {
    match end {
        Err(Fault::Rejected(Error::WrongType { .. })) => Ok(Answer::Foreign(Vec::new())),
        end => end,
    }
}

/// Returns the cause of a reply that no command of its kind gets.
pub(super) fn unexpected() -> Cause {
    Cause::text("unexpected reply to a script")
}
