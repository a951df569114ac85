//! The meaning of a refused connection or an error reply for the caller.

use redis::ServerError;

use crate::error::{Cause, Error};
use crate::error_reply::{Meaning, meaning, words};
use crate::name::shown;
use crate::protocol::redirect::Redirect;
use crate::protocol::script::Call;
use crate::redis::conn::dial::ConnectError;
use crate::redis::fault::{Fault, NodeFault};
use crate::redis::server::Server;

impl Server {
    /// Records that a caller got no connection, and returns its fault.
    pub(super) fn connect_error(&self, connect_error: ConnectError, counts: bool) -> Fault {
        if connect_error.is_final {
            return Fault::Rejected(Error::Refused {
                server: self.label().to_owned(),
                command: connect_error.cause.refused_step(),
                answer: connect_error.cause.to_string(),
            });
        }
        self.failed_by(Some(&connect_error.cause), counts);
        Fault::NotRun(connect_error.cause)
    }

    /// Returns what an error reply to `call` means for its caller.
    pub(super) fn fault(&self, call: &Call<'_>, error: &ServerError) -> Fault {
        // With several names, a script's error begins with the number of the name, counted from 1.
        let which = error
            .details()
            .and_then(|text| text.split(' ').next()?.parse().ok());
        let which = which.map_or(0, |n: usize| n.saturating_sub(1));
        let key = |kind: usize| {
            let key = call.keys.get(kind).and_then(|keys| keys.get(which));
            shown(key.map_or(&[][..], Vec::as_slice))
        };
        let server = || self.label().to_owned();
        match meaning(error) {
            Meaning::WrongType => Fault::Rejected(Error::WrongType {
                server: server(),
                key: key(0),
            }),
            Meaning::BadFence => Fault::Rejected(Error::BadFence {
                server: server(),
                key: key(1),
            }),
            _ => self.refusal(call.script.name, error, || call.rights()),
        }
    }

    /// Like [`fault`](Self::fault), for a server that may be a node of a cluster.
    pub(super) fn node_fault(&self, call: &Call<'_>, error: &ServerError) -> NodeFault {
        self.redirect(error)
            .unwrap_or_else(|| self.fault(call, error).into())
    }

    /// Returns the redirect with which a node of a cluster refused to run something.
    ///
    /// Only a caller that follows no further redirect reports the text.
    pub(super) fn redirect(&self, error: &ServerError) -> Option<NodeFault> {
        let redirect = Redirect::read(error).filter(|_| self.pool.connector.is_member())?;
        let text = match redirect {
            Redirect::TryAgain => words(error),
            _ => format!("redirected again: {}", words(error)),
        };
        Some(NodeFault::Redirected(redirect, Cause::text(text)))
    }

    /// Returns what an error reply to `command` means. `rights` lists the permissions that it
    /// needs.
    pub(super) fn refusal(
        &self,
        command: &'static str,
        error: &ServerError,
        rights: impl FnOnce() -> String,
    ) -> Fault {
        match meaning(error) {
            Meaning::NotServing | Meaning::NoScript => Fault::NotRun(Cause::text(words(error))),
            _ => Fault::Rejected(self.refused(command, error, rights)),
        }
    }

    pub(super) fn refused(
        &self,
        command: &'static str,
        error: &ServerError,
        rights: impl FnOnce() -> String,
    ) -> Error {
        let mut answer = words(error);
        if matches!(meaning(error), Meaning::NoRight) {
            answer = format!("{answer}; {}", rights());
        }
        let server = self.label().to_owned();
        Error::Refused {
            server,
            command,
            answer,
        }
    }
}
