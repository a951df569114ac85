//! The meaning of a refused connection or an error reply for the caller.

use redis::ServerError;

use crate::cause::Refusal;
use crate::error::{Cause, Error};
use crate::error_reply::{Meaning, meaning, words};
use crate::kernel::fault::Fault;
use crate::name::shown;
use crate::protocol::redirect::Redirect;
use crate::protocol::script::Call;
use crate::redis::fault::NodeFault;
use crate::redis::server::Server;

impl Server {
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
            _ => self.refusal(call.script.name, error, || match meaning(error) {
                Meaning::NoCommand => call.missing_command(&words(error)),
                _ => call.missing_right(&words(error)),
            }),
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
        let cause = match redirect {
            Redirect::TryAgain => Cause::of_moving_slot(words(error)),
            Redirect::Ask(..) => {
                Cause::of_moving_slot(format!("redirected again: {}", words(error)))
            }
            Redirect::Moved(..) => Cause::text(format!("redirected again: {}", words(error))),
        };
        Some(NodeFault::Redirected(redirect, cause))
    }

    /// Returns what an error reply to `command` means. `needs` says what the command needs, if it
    /// is missing.
    pub(super) fn refusal(
        &self,
        command: &'static str,
        error: &ServerError,
        needs: impl FnOnce() -> String,
    ) -> Fault {
        match meaning(error) {
            Meaning::NoScript => Fault::NotRun(Cause::text(words(error))),
            Meaning::NotServing => Fault::Unknown(self.passing(command, error, false)),
            Meaning::Unclear => {
                let may_last = !self.health.has_answered();
                Fault::Unknown(self.passing(command, error, may_last))
            }
            _ => Fault::Rejected(self.refused(command, error, needs)),
        }
    }

    /// Returns an error reply that may pass. If it `may_last`, few tries show whether it does.
    pub(super) fn passing(
        &self,
        command: &'static str,
        error: &ServerError,
        may_last: bool,
    ) -> Cause {
        Cause::refusal_by(Refusal {
            server: self.label().to_owned(),
            command,
            answer: words(error),
            may_last,
        })
    }

    pub(super) fn refused(
        &self,
        command: &'static str,
        error: &ServerError,
        needs: impl FnOnce() -> String,
    ) -> Error {
        let mut answer = words(error);
        if matches!(meaning(error), Meaning::NoRight | Meaning::NoCommand) {
            answer = format!("{answer}; {}", needs());
        }
        let server = self.label().to_owned();
        Error::Refused {
            server,
            command,
            answer,
            retried_for: None,
        }
    }
}
