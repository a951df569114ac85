//! What a call came to, where it is no answer.

use std::fmt;
use std::time::Duration;

use redis::ServerError;

use crate::error::{Cause, Error, words};

/// What a call came to, where it is no answer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It did not run, and may run later: no connection, or an answer that says "not now".
    NotRun(Cause),
    /// It was not sent: the server's circuit breaker is open.
    Open(Box<OpenCircuit>),
    /// It was sent, and no answer came: it may have run, and may yet run.
    Unknown(Cause),
    /// It ran, and did not become as safe as was asked: what it did is to be undone, or not counted.
    NotReplicated(Error),
    /// It did not run: this node of a cluster does not keep its keys, or not all of them. Followed
    /// before anybody above is told.
    Redirected(Redirect, Cause),
    /// It did not run, and will not.
    Rejected(Error),
}

/// Why a circuit breaker turned a call away, and for how long it does.
#[derive(Clone, Debug)]
pub(crate) struct OpenCircuit {
    pub(crate) server: String,
    /// In a row.
    pub(crate) failures: u32,
    /// Why the last call failed.
    pub(crate) last: Cause,
    pub(crate) retry_in: Duration,
}

impl OpenCircuit {
    /// The last failure, for an error about the server or servers that `label` stands for.
    pub(crate) fn last_at(self, label: &str) -> Cause {
        match self.server == label {
            true => self.last,
            false => self.last.at(&self.server),
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

/// Where a node of a cluster sends a call that it did not run. An empty host is the node's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// The slot is kept there now.
    Moved(String, u16),
    /// The slot is on its way there, and this key is there already or nowhere.
    Ask(String, u16),
    /// The slot is on its way, and the keys of the call are apart.
    TryAgain,
}

impl Redirect {
    pub(crate) fn read(answer: &ServerError) -> Option<Self> {
        let place = || {
            let (host, port) = answer.details()?.split(' ').nth(1)?.rsplit_once(':')?;
            Some((host.to_owned(), port.parse().ok()?))
        };
        match answer.code() {
            "MOVED" => place().map(|(host, port)| Self::Moved(host, port)),
            "ASK" => place().map(|(host, port)| Self::Ask(host, port)),
            "TRYAGAIN" => Some(Self::TryAgain),
            _ => None,
        }
    }
}

impl Fault {
    /// Why it came to nothing, where that is no error for good.
    pub(in crate::redis) fn cause(&self) -> Option<&Cause> {
        match self {
            Self::NotRun(cause) | Self::Unknown(cause) | Self::Redirected(_, cause) => Some(cause),
            Self::Open(_) | Self::NotReplicated(_) | Self::Rejected(_) => None,
        }
    }

    pub(in crate::redis) fn elsewhere(answer: &ServerError) -> Option<Self> {
        Redirect::read(answer)
            .map(|redirect| Self::Redirected(redirect, Cause::text(words(answer))))
    }

    /// As one of several calls that belong together, where some before it have run.
    pub(crate) fn after_others(self) -> Self {
        match self {
            Self::NotRun(cause) | Self::Redirected(_, cause) => Self::Unknown(cause),
            Self::Rejected(error) => Self::NotReplicated(error),
            said => said,
        }
    }

    /// Says which node of a cluster it was.
    pub(in crate::redis) fn at(self, node: &str) -> Self {
        match self {
            Self::NotRun(cause) | Self::Redirected(_, cause) => Self::NotRun(cause.at(node)),
            Self::Unknown(cause) => Self::Unknown(cause.at(node)),
            said => said,
        }
    }
}

impl Fault {
    /// As text that is followed by the server's name.
    pub(in crate::redis) fn without_server(&self) -> String {
        match self {
            Self::Rejected(Error::Refused {
                command, answer, ..
            }) => format!("{command} refused: {answer}"),
            fault => fault.to_string(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRun(cause) | Self::Unknown(cause) | Self::Redirected(_, cause) => cause.fmt(f),
            Self::Open(open) => Error::from(OpenCircuit::clone(open)).fmt(f),
            Self::NotReplicated(error) | Self::Rejected(error) => error.fmt(f),
        }
    }
}
