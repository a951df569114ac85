//! The servers that keep the locks: one server, a cluster or a quorum, behind one interface.

pub(crate) mod breaker;
pub(crate) mod call;
pub(crate) mod calls;
pub(crate) mod cluster;
pub(crate) mod combine;
pub(crate) mod command;
pub(crate) mod conn;
pub(crate) mod fault;
pub(crate) mod gather;
pub(crate) mod health;
pub(crate) mod inspect;
pub(crate) mod members;
pub(crate) mod pipeline;
pub(crate) mod quorum;
pub(crate) mod refusal;
pub(crate) mod sentinel;
pub(crate) mod server;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::{Config, LeaseTerms};
use crate::error::{Cause, Error};
use crate::majority::Majority;
use crate::protocol::answer::Answer;
use crate::protocol::keys::{Key, Layout};
use crate::protocol::primitive::Primitive;
use crate::protocol::script::Call;
use crate::redis::call::Unanswered;
use crate::redis::cluster::Cluster;
use crate::redis::cluster::slot_map::SlotMap;
use crate::redis::conn::connector::Connector;
use crate::redis::quorum::Quorum;
use crate::resolver::Resolver;
use crate::url::Target;

pub(crate) use crate::kernel::fault::Fault;
pub(crate) use crate::redis::conn::callers::Cap;
pub(crate) use crate::redis::conn::connection::Connection;
pub(crate) use crate::redis::conn::output::Output;
pub(crate) use crate::redis::conn::socket::wait_for_sockets;
pub(crate) use crate::redis::fault::NodeFault;
pub(crate) use crate::redis::health::ServerHealth;
pub(crate) use crate::redis::pipeline::{Ended, Job, LineState, Pipeline, Request};
pub(crate) use crate::redis::sentinel::Sentinels;
pub(crate) use crate::redis::sentinel::replies::MOVES;
pub(crate) use crate::redis::server::{IgnoredRelease, Server};

/// All servers of one client, whichever way they are deployed.
pub(crate) enum Deployment {
    /// One server, or a master with sentinels, has all names.
    One(Arc<Server>),
    /// Each name is on the master that owns its slot.
    Cluster(Cluster),
    /// Each name is on all of several servers.
    Quorum(Box<Quorum>),
}

impl Deployment {
    pub(crate) fn new(target: Target, config: &Config) -> Result<Self, Error> {
        let label = target.label();
        let target = target.with_resolver(Resolver::new(&config.dialers));
        let one = |connector| Self::One(Arc::new(Server::new(connector, config, None)));
        Ok(match target {
            Target::Cluster(nodes) => Self::Cluster(Cluster::new(nodes, config)),
            Target::Quorum(addresses) => {
                Self::Quorum(Box::new(Quorum::new(addresses, label, config)))
            }
            Target::Server(address) => one(Connector::to_server(address, None, config)),
            Target::Sentinel(sentinel) => one(Connector::to_master(sentinel, config)),
        })
    }

    /// The address or addresses, without credentials, for messages.
    pub(crate) fn label(&self) -> &str {
        match self {
            Self::One(server) => server.label(),
            Self::Cluster(cluster) => &cluster.label,
            Self::Quorum(quorum) => &quorum.label,
        }
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        match self {
            Self::One(server) => server.command_timeout(),
            Self::Cluster(cluster) => cluster.map.config.command_timeout,
            Self::Quorum(quorum) => quorum.command_timeout,
        }
    }

    /// Returns an error if this deployment cannot keep such a name.
    pub(crate) fn check(&self, keys: &Arc<dyn Primitive>) -> Result<(), Error> {
        match self {
            Self::One(_) | Self::Quorum(_) => Ok(()),
            Self::Cluster(_) => keys.check_slots(),
        }
    }

    /// Returns an error if this deployment cannot grant a lease on these terms.
    pub(crate) fn check_terms(&self, terms: &LeaseTerms) -> Result<(), Error> {
        match self {
            Self::Quorum(_) if terms.replicas.is_some() => Err(Error::Config(
                "min_replicas needs one server, Sentinel or Cluster: \
                 the servers of a quorum have no replicas"
                    .into(),
            )),
            Self::Quorum(_) if !terms.linger.is_zero() => Err(Error::Config(
                "linger needs one server, Sentinel or Cluster: it is not available over a quorum"
                    .into(),
            )),
            _ => Ok(()),
        }
    }

    /// Returns the known owners of a name.
    pub(crate) fn owners_of(&self, key: Key<'_>) -> Vec<Arc<Server>> {
        match self {
            Self::Quorum(quorum) => quorum.servers.clone(),
            Self::One(_) | Self::Cluster(_) => vec![self.primary_owner_of(key)],
        }
    }

    /// Returns the server for data that is stored on one server only: over a quorum, the first.
    pub(crate) fn primary_owner_of(&self, key: Key<'_>) -> Arc<Server> {
        match self {
            Self::One(server) => Arc::clone(server),
            Self::Cluster(cluster) => cluster.map.owner_of(key.slot()),
            // `check_quorum` in `url.rs` admits no quorum without servers.
            Self::Quorum(quorum) => Arc::clone(&quorum.servers[0]),
        }
    }

    /// Returns the servers that are the same for all names and never change.
    pub(crate) fn fixed(&self) -> &[Arc<Server>] {
        match self {
            Self::One(server) => std::slice::from_ref(server),
            Self::Cluster(_) => &[],
            Self::Quorum(quorum) => &quorum.servers,
        }
    }

    /// Returns all servers that are known to be in use.
    pub(crate) fn servers(&self) -> Vec<Arc<Server>> {
        match self {
            Self::One(_) | Self::Quorum(_) => self.fixed().to_vec(),
            Self::Cluster(cluster) => cluster.map.masters(),
        }
    }

    /// Returns how many servers have each name, and how many of them decide.
    pub(crate) fn size(&self) -> Majority {
        match self {
            Self::Quorum(quorum) => quorum.size,
            Self::One(_) | Self::Cluster(_) => Majority::of(1),
        }
    }

    /// Returns where the keys of a lock are.
    pub(crate) fn layout(&self) -> Layout {
        match self {
            Self::One(_) | Self::Quorum(_) => Layout::OneServer,
            Self::Cluster(_) => Layout::Slots,
        }
    }

    /// Returns whether the servers are a quorum. They share no queue.
    pub(crate) fn is_quorum(&self) -> bool {
        matches!(self, Self::Quorum(_))
    }

    /// Sends `call` and waits for its reply until `until`, at most the command timeout.
    pub(crate) fn call(
        &self,
        call: Call<'_>,
        until: Instant,
        cap_rule: Cap,
    ) -> Result<Answer, Fault> {
        self.call_or_undo(call, until, cap_rule, None)
            .map(|(answer, _)| answer)
    }

    /// Like [`call`](Self::call), for an acquiring call or a release. Also returns the instant
    /// before the call was sent, after connecting: the lease counts from then.
    ///
    /// If an acquiring call gets no reply, `unanswered` decides on an undo, which is sent behind it
    /// on the same connection, unless only a part of the call was written. Over a quorum, the
    /// engine sends the acquiring calls.
    pub(crate) fn call_or_undo(
        &self,
        call: Call<'_>,
        until: Instant,
        cap_rule: Cap,
        mut unanswered: Option<Unanswered<'_, '_>>,
    ) -> Result<(Answer, Instant), Fault> {
        let answer = self.dispatch(call, until, cap_rule, unanswered.as_deref_mut());
        // The refusal may concern only the queue: the server is full, or the user lacks a
        // permission. The lock is then freed by its key alone.
        if let (Err(Fault::Rejected(Error::Refused { .. })), Some(without)) =
            (&answer, call.without_queue())
        {
            return self.dispatch(without, until, cap_rule, unanswered);
        }
        answer
    }

    fn dispatch(
        &self,
        call: Call<'_>,
        until: Instant,
        cap_rule: Cap,
        unanswered: Option<Unanswered<'_, '_>>,
    ) -> Result<(Answer, Instant), Fault> {
        match self {
            Self::One(server) => Ok(server.call_or_undo(call, until, cap_rule, unanswered)?),
            Self::Cluster(cluster) => cluster.call_or_undo(call, until, cap_rule, unanswered),
            Self::Quorum(quorum) => {
                let sent = Instant::now();
                Ok((quorum.ask(&Request::Call(call), until)?, sent))
            }
        }
    }

    /// Pings the servers; succeeds if enough of them reply.
    pub(crate) fn ping(&self, until: Instant) -> Result<(), Fault> {
        match self {
            Self::One(server) => server.ping(until),
            Self::Cluster(cluster) => cluster.ping(until),
            Self::Quorum(quorum) => quorum.ask(&Request::Ping, until).map(drop),
        }
    }

    /// Returns an earlier release at the same server that failed, if the server has served nothing
    /// since. Over a quorum, this must hold for so many servers that the others are no majority.
    pub(crate) fn ignored_release(&self, keys: &Arc<dyn Primitive>) -> Option<IgnoredRelease> {
        match self {
            Self::Quorum(quorum) => {
                let mut ignored = (quorum.servers.iter()).filter_map(|it| it.ignored_release());
                ignored.nth(self.size().spare())
            }
            Self::One(_) | Self::Cluster(_) => self.primary_owner_of(keys.key(0)).ignored_release(),
        }
    }

    /// Records a release of these keys that began at `start` and failed.
    pub(crate) fn note_ignored_release(
        &self,
        keys: &Arc<dyn Primitive>,
        start: Instant,
        ignored: &IgnoredRelease,
    ) {
        for owner in self.owners_of(keys.key(0)) {
            owner.note_ignored_release(start, ignored);
        }
    }

    /// Returns true if a replica may take over that lacks some of the master's data.
    pub(crate) fn may_fail_over(&self) -> bool {
        self.sentinels().is_some() || self.slot_map().is_some()
    }

    /// The slot map of a cluster.
    pub(crate) fn slot_map(&self) -> Option<&SlotMap> {
        match self {
            Self::One(_) | Self::Quorum(_) => None,
            Self::Cluster(cluster) => Some(&cluster.map),
        }
    }

    /// The sentinels, if there are any.
    pub(crate) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        match self {
            Self::One(server) => server.pool.connector.sentinels(),
            Self::Cluster(_) | Self::Quorum(_) => None,
        }
    }

    /// Records a failure, after which a cluster refreshes its slot map. Sentinels announce a new
    /// master, and a quorum replaces no server.
    pub(crate) fn suspect(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.map.suspect();
        }
    }

    /// The servers of a quorum, if it is one.
    pub(crate) fn quorum(&self) -> Option<&Quorum> {
        match self {
            Self::Quorum(quorum) => Some(quorum),
            Self::One(_) | Self::Cluster(_) => None,
        }
    }

    /// Ends the calls that wait for a connection, except those that `max_connections` does not
    /// limit, like releases.
    ///
    /// Over a quorum the engine sends all calls.
    pub(crate) fn end_connecting(&self) {
        match self {
            Self::One(server) => server.pool.close(),
            Self::Cluster(cluster) => cluster.map.end_connecting(),
            Self::Quorum(_) => {}
        }
    }

    /// Closes the idle connections; those in use are closed when they are returned.
    pub(crate) fn close(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.map.close();
        }
        self.fixed().iter().for_each(|server| server.pool.close());
    }

    /// Turns a fault into the error for a caller that gives up.
    pub(crate) fn error(&self, fault: Fault) -> Error {
        match fault {
            Fault::NotRun(cause) | Fault::Unknown(cause) => self.unreachable(cause),
            Fault::Open(open) => (*open).into(),
            Fault::NotReplicated(error) | Fault::Rejected(error) => error,
        }
    }

    /// Returns why a call for `key` has no outcome at `now` if nothing has failed since `since`.
    pub(crate) fn no_outcome(&self, key: Key<'_>, since: Instant, now: Instant) -> Cause {
        if let Self::Quorum(quorum) = self {
            return quorum.no_outcome(since);
        }
        let server = self.primary_owner_of(key);
        if server.pool.has_connection() {
            return Cause::no_reply(since.until(now));
        }
        // Nothing could be sent, and no attempt to connect has ended for this call.
        let cause = server.pool.last_failure().cause;
        match self.slot_map() {
            Some(map) => cause.at(&map.label_of(&server)),
            None => cause,
        }
    }

    /// Returns [`Error::Unreachable`] for this deployment, or [`Error::Refused`] if a server has
    /// refused the call all the time, or what is missing in this process.
    pub(crate) fn unreachable(&self, cause: Cause) -> Error {
        if let Some(shortage) = cause.shortage() {
            return shortage.clone().into();
        }
        if let Some(refusal) = cause.refusal() {
            let server = match self {
                Self::Quorum(quorum) => &quorum.label,
                Self::One(_) | Self::Cluster(_) => &refusal.server,
            };
            return Error::Refused {
                server: server.clone(),
                command: refusal.command,
                answer: refusal.answer.clone(),
                retried_for: Some(cause.time_unserved()),
            };
        }
        Error::Unreachable {
            server: self.label().to_owned(),
            cause,
        }
    }
}
