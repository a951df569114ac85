//! Redis as the rest of the crate sees it: where a name is kept, and what a call about it came to.

mod batch;
mod dial;
mod fault;
mod look;
pub(crate) mod node;
mod one;
mod pool;
pub(crate) mod sentinel;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::Config;
use crate::error::{Cause, Error};
use crate::kind::Keys;
use crate::scripts::{Call, Reply};
use crate::server::sentinel::Sentinels;
use crate::url::Target;

pub(crate) use crate::server::fault::Fault;
pub(crate) use crate::server::look::Beside;
pub(crate) use crate::server::node::Wire;
pub(crate) use crate::server::one::Server;
pub(crate) use crate::server::pool::Lane;

/// The Redis that keeps the locks: all its servers.
pub(crate) struct Servers {
    place: Place,
    label: String,
    command_timeout: Duration,
}

/// Where names are kept.
enum Place {
    /// All of them on one server.
    One(Arc<Server>),
}

impl Servers {
    pub(crate) fn new(target: Target, config: &Config) -> Result<Self, Error> {
        Ok(Self {
            label: target.label(),
            command_timeout: config.command_timeout,
            place: Place::One(Arc::new(Server::new(target, config)?)),
        })
    }

    /// Where it is, for people.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    /// The server that keeps a name now, as far as is known.
    pub(crate) fn home(&self, _keys: &Keys) -> Arc<Server> {
        match &self.place {
            Place::One(server) => Arc::clone(server),
        }
    }

    /// The servers that are the same for all names and for good.
    pub(crate) fn fixed(&self) -> &[Arc<Server>] {
        match &self.place {
            Place::One(server) => std::slice::from_ref(server),
        }
    }

    /// Sends `call` and waits for its answer until `until`, and never longer than the command
    /// timeout.
    pub(crate) fn call(&self, call: Call<'_>, until: Instant, lane: Lane) -> Result<Reply, Fault> {
        self.call_or_undo(call, until, lane, None)
            .map(|(reply, _)| reply)
    }

    /// As [`call`](Self::call); where no answer comes, `undo` is written behind the call on the same
    /// connection. With the answer comes the instant before the call was sent, once there was a
    /// connection: a lease counts from then.
    pub(crate) fn call_or_undo(
        &self,
        call: Call<'_>,
        until: Instant,
        lane: Lane,
        undo: Option<Call<'_>>,
    ) -> Result<(Reply, Instant), Fault> {
        match &self.place {
            Place::One(server) => server.call_or_undo(call, until, lane, undo),
        }
    }

    /// Whether Redis answers.
    pub(crate) fn ping(&self, until: Instant) -> Result<Reply, Fault> {
        match &self.place {
            Place::One(server) => server.command("PING", &[], until, Lane::Capped),
        }
    }

    /// For how long at `now` the keeper of a name has not answered, for a caller that has asked
    /// since `start`; zero while nothing has failed since the last answer.
    pub(crate) fn silent_for(&self, keys: &Keys, now: Instant, start: Instant) -> Duration {
        self.home(keys).silent_for(now, start)
    }

    /// Whether another server may take over, one that does not know all that the one before did.
    pub(crate) fn may_fail_over(&self) -> bool {
        self.sentinels().is_some()
    }

    /// Who knows the master, if that may change.
    pub(crate) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        match &self.place {
            Place::One(server) => server.sentinels(),
        }
    }

    /// The master has moved to where its sentinels now know it.
    pub(crate) fn moved(&self) {
        match &self.place {
            Place::One(server) => server.moved(),
        }
    }

    /// The connections are closed; what is out is closed when it comes back.
    pub(crate) fn close(&self) {
        match &self.place {
            Place::One(server) => server.close(),
        }
    }

    /// A fault as an error for a caller that gives up.
    pub(crate) fn error(&self, fault: Fault) -> Error {
        match fault {
            Fault::NotNow(cause) | Fault::NoAnswer(cause) => self.unreachable(cause),
            Fault::Unsafe(error) | Fault::Never(error) => error,
        }
    }

    /// As an error for a caller that gives up.
    pub(crate) fn unreachable(&self, cause: Cause) -> Error {
        Error::Unreachable {
            server: self.label.clone(),
            cause,
        }
    }
}
