//! The servers that keep the locks: one server, a cluster or a quorum, behind one interface.

pub(crate) mod breaker;
pub(crate) mod cluster;
pub(crate) mod combine;
pub(crate) mod conn;
pub(crate) mod fault;
pub(crate) mod first_answer;
pub(crate) mod health;
pub(crate) mod look;
pub(crate) mod pipeline;
pub(crate) mod quorum;
pub(crate) mod sentinel;
pub(crate) mod server;
pub(crate) mod spin;
pub(crate) mod undoable;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::{Config, LeaseTerms};
use crate::dialers::Dialers;
use crate::error::{Cause, Error};
use crate::health::HealthPart;
use crate::holder::HolderId;
use crate::protocol::keys::{Key, Keys};
use crate::protocol::script::{Call, Reply};
use crate::redis::cluster::Cluster;
use crate::redis::cluster::slot_map::SlotMap;
use crate::redis::quorum::Quorum;
use crate::redis::sentinel::Sentinels;
use crate::url::Target;

pub(crate) use crate::redis::conn::callers::Cap;
pub(crate) use crate::redis::conn::connection::Connection;
pub(crate) use crate::redis::fault::{Fault, OpenCircuit};
pub(crate) use crate::redis::health::ServerHealth;
pub(crate) use crate::redis::quorum::member::{Member, MemberTask};
pub(crate) use crate::redis::quorum::votes::{LeaseVotes, Majority, Verdict};
pub(crate) use crate::redis::server::Server;
pub(crate) use crate::redis::undoable::{PendingRelease, ServerVotes, Undoable, Vote};

/// All servers of one client, whichever way they are deployed.
pub(crate) struct Deployment {
    place: DeploymentKind,
    label: String,
    command_timeout: Duration,
    dialers: Dialers,
}

/// How the names are spread over servers.
enum DeploymentKind {
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
        Ok(Self {
            label: label.clone(),
            command_timeout: config.command_timeout,
            dialers: config.dialers.clone(),
            place: match target {
                Target::Cluster(nodes) => DeploymentKind::Cluster(Cluster::new(nodes, config)?),
                Target::Quorum(addresses) => {
                    DeploymentKind::Quorum(Box::new(Quorum::new(addresses, label, config)?))
                }
                target => DeploymentKind::One(Arc::new(Server::new(target, config, None)?)),
            },
        })
    }

    /// The address or addresses, without credentials, for messages.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    /// The threads that make connections.
    pub(crate) fn dialers(&self) -> &Dialers {
        &self.dialers
    }

    /// Returns the known owner of a name; not for a quorum.
    fn owner_of(&self, key: Key<'_>) -> Arc<Server> {
        match &self.place {
            DeploymentKind::One(server) => Arc::clone(server),
            DeploymentKind::Cluster(cluster) => cluster.map().owner_of(key.slot()),
            DeploymentKind::Quorum(_) => {
                unreachable!("a quorum keeps each name on all its servers")
            }
        }
    }

    /// Returns true if `server` is a known owner of the name.
    pub(crate) fn owns(&self, server: &Arc<Server>, key: Key<'_>) -> bool {
        match &self.place {
            DeploymentKind::One(_) | DeploymentKind::Quorum(_) => true,
            DeploymentKind::Cluster(cluster) => {
                Arc::ptr_eq(&cluster.map().owner_of(key.slot()), server)
            }
        }
    }

    /// Returns an error if this deployment cannot keep such a name.
    pub(crate) fn check(&self, keys: &Keys) -> Result<(), Error> {
        match &self.place {
            DeploymentKind::Quorum(_) if keys.queue().is_some() => Err(Error::Config(
                "a fair lock needs one server, Sentinel or Cluster: the servers of a quorum share no queue"
                    .into(),
            )),
            DeploymentKind::One(_) | DeploymentKind::Quorum(_) => Ok(()),
            DeploymentKind::Cluster(_) => keys.check_slots(),
        }
    }

    /// Returns an error if this deployment cannot grant a lease on these terms.
    pub(crate) fn check_terms(&self, terms: &LeaseTerms) -> Result<(), Error> {
        match &self.place {
            DeploymentKind::Quorum(_) if terms.replicas.is_some() => Err(Error::Config(
                "min_replicas needs one server, Sentinel or Cluster: the servers of a quorum have no replicas"
                    .into(),
            )),
            _ => Ok(()),
        }
    }

    /// Returns the known owners of a name, and how many of them decide.
    pub(crate) fn owners_of(&self, key: Key<'_>) -> (Vec<Arc<Server>>, Majority) {
        let servers = match &self.place {
            DeploymentKind::Quorum(quorum) => quorum.servers().to_vec(),
            DeploymentKind::One(_) | DeploymentKind::Cluster(_) => vec![self.owner_of(key)],
        };
        (servers, self.size())
    }

    /// Returns the server for what is stored on one server only: over a quorum, the first.
    pub(crate) fn primary_owner_of(&self, key: Key<'_>) -> Arc<Server> {
        match self.fixed().first() {
            Some(server) => Arc::clone(server),
            None => self.owner_of(key),
        }
    }

    /// Returns the servers that are the same for all names and never change.
    pub(crate) fn fixed(&self) -> &[Arc<Server>] {
        match &self.place {
            DeploymentKind::One(server) => std::slice::from_ref(server),
            DeploymentKind::Cluster(_) => &[],
            DeploymentKind::Quorum(quorum) => quorum.servers(),
        }
    }

    /// Returns how many servers have each name, and how many of them decide.
    pub(crate) fn size(&self) -> Majority {
        match &self.place {
            DeploymentKind::Quorum(quorum) => quorum.size(),
            DeploymentKind::One(_) | DeploymentKind::Cluster(_) => Majority::of(1),
        }
    }

    /// Returns a new record of what each server did about an acquiring command; `None` unless over
    /// a quorum.
    pub(crate) fn votes(&self) -> Option<Arc<ServerVotes>> {
        match &self.place {
            DeploymentKind::Quorum(quorum) => Some(Arc::new(ServerVotes::new(quorum.size().all))),
            DeploymentKind::One(_) | DeploymentKind::Cluster(_) => None,
        }
    }

    /// Returns the call that acquires `keys` and reserves `block` tokens. Over a quorum, the client
    /// proposes the token, higher than `above`.
    pub(crate) fn acquire<'a>(
        &self,
        keys: &'a Keys,
        id: &'a HolderId,
        ttl: Duration,
        above: u64,
        block: u64,
    ) -> Call<'a> {
        match &self.place {
            DeploymentKind::Quorum(quorum) => keys.propose(id, ttl, quorum.propose(above), block),
            DeploymentKind::One(_) | DeploymentKind::Cluster(_) => keys.acquire(id, ttl, block),
        }
    }

    /// Sends `call` and waits for its reply until `until`, at most the command timeout.
    pub(crate) fn call(
        &self,
        call: Call<'_>,
        until: Instant,
        cap_rule: Cap,
    ) -> Result<Reply, Fault> {
        self.call_or_undo(call, until, cap_rule, None)
            .map(|(reply, _)| reply)
    }

    /// Like [`call`](Self::call), for an acquiring call or a release. Also returns the instant
    /// before the call was sent, after connecting: the lease counts from then.
    ///
    /// If an acquiring call gets no reply, its undo is sent behind it on the same connection.
    pub(crate) fn call_or_undo(
        &self,
        call: Call<'_>,
        until: Instant,
        cap_rule: Cap,
        undoable: Option<&Undoable<'_>>,
    ) -> Result<(Reply, Instant), Fault> {
        match &self.place {
            DeploymentKind::One(server) => {
                server.call_or_undo(call, until, cap_rule, to_undo(undoable, cap_rule))
            }
            DeploymentKind::Cluster(cluster) => {
                cluster.call_or_undo(call, until, cap_rule, to_undo(undoable, cap_rule))
            }
            DeploymentKind::Quorum(quorum) => quorum.call(call, until, cap_rule, undoable),
        }
    }

    /// Pings the servers; succeeds if enough of them reply.
    pub(crate) fn ping(&self, until: Instant) -> Result<Reply, Fault> {
        match &self.place {
            DeploymentKind::One(server) => server.ping(until, Cap::Counted),
            DeploymentKind::Cluster(cluster) => cluster.ping(until),
            DeploymentKind::Quorum(quorum) => quorum.ping(until),
        }
    }

    /// When the owner of a name stopped answering, but not before `start`, when the caller first
    /// asked. Returns `now` if nothing has failed since the last answer.
    pub(crate) fn silent_since(&self, key: Key<'_>, now: Instant, start: Instant) -> Instant {
        match &self.place {
            DeploymentKind::Quorum(quorum) => quorum.silent_since(now, start),
            DeploymentKind::One(server) => server.silent_since(now, start),
            DeploymentKind::Cluster(_) => self.owner_of(key).silent_since(now, start),
        }
    }

    /// Returns true if a replica may take over that lacks some of the master's data.
    pub(crate) fn may_fail_over(&self) -> bool {
        self.sentinels().is_some() || self.slot_map().is_some()
    }

    /// The slot map of a cluster.
    pub(crate) fn slot_map(&self) -> Option<&SlotMap> {
        match &self.place {
            DeploymentKind::One(_) | DeploymentKind::Quorum(_) => None,
            DeploymentKind::Cluster(cluster) => Some(cluster.map()),
        }
    }

    /// The sentinels, if there are any.
    pub(crate) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        match &self.place {
            DeploymentKind::One(server) => server.sentinels(),
            DeploymentKind::Cluster(_) | DeploymentKind::Quorum(_) => None,
        }
    }

    /// Reconnects to the address that the sentinels now report.
    pub(crate) fn moved(&self) {
        match &self.place {
            DeploymentKind::One(server) => server.moved(),
            DeploymentKind::Cluster(_) | DeploymentKind::Quorum(_) => {}
        }
    }

    /// Records a failure, after which a cluster refreshes its slot map.
    pub(crate) fn doubt(&self) {
        match &self.place {
            // Sentinels announce a new master, and a quorum replaces no server.
            DeploymentKind::One(_) | DeploymentKind::Quorum(_) => {}
            DeploymentKind::Cluster(cluster) => cluster.map().doubt(),
        }
    }

    /// Pings all servers at once, until `until`. Also returns how many of them must work.
    pub(crate) fn health(&self, until: Instant) -> (Vec<HealthPart>, usize) {
        let servers = match &self.place {
            DeploymentKind::One(server) => vec![Arc::clone(server)],
            DeploymentKind::Cluster(cluster) => {
                let now = Instant::now();
                // The second half of the time is for the pings.
                cluster
                    .masters(now.after(now.until(until) / 2))
                    .unwrap_or_default()
            }
            DeploymentKind::Quorum(quorum) => quorum.servers().to_vec(),
        };
        let needed = match &self.place {
            DeploymentKind::One(_) | DeploymentKind::Cluster(_) => servers.len().max(1),
            DeploymentKind::Quorum(quorum) => quorum.size().needed,
        };
        (health_of_all(&servers, until), needed)
    }

    /// Tells a quorum that one of its servers is up again.
    pub(crate) fn peer_is_back(&self) {
        if let DeploymentKind::Quorum(quorum) = &self.place {
            quorum.is_back();
        }
    }

    /// Closes the idle connections; those in use are closed when they are returned.
    pub(crate) fn close(&self) {
        match &self.place {
            DeploymentKind::One(server) => server.close(),
            DeploymentKind::Cluster(cluster) => cluster.map().close(),
            DeploymentKind::Quorum(quorum) => quorum.close(),
        }
    }

    /// Turns a fault into the error for a caller that gives up.
    pub(crate) fn error(&self, fault: Fault) -> Error {
        match fault {
            Fault::NotRun(cause) | Fault::Unknown(cause) | Fault::Redirected(_, cause) => {
                self.unreachable(cause)
            }
            Fault::Open(open) => (*open).into(),
            Fault::NotReplicated(error) | Fault::Rejected(error) => error,
        }
    }

    /// The last failure of a name's owner.
    pub(crate) fn last_failure(&self, key: Key<'_>) -> Option<Cause> {
        match &self.place {
            DeploymentKind::Quorum(quorum) => quorum.last_failure(),
            DeploymentKind::One(server) => server.condition.last_failure(),
            DeploymentKind::Cluster(_) => {
                let owner_of = self.owner_of(key);
                let last = owner_of.condition.last_failure();
                last.map(|cause| cause.at(owner_of.label()))
            }
        }
    }

    /// Returns [`Error::Unreachable`] for this deployment.
    pub(crate) fn unreachable(&self, cause: Cause) -> Error {
        Error::Unreachable {
            server: self.label.clone(),
            cause,
        }
    }
}

/// Pings each server on its own thread; on this thread those for which no thread can be started.
fn health_of_all(servers: &[Arc<Server>], until: Instant) -> Vec<HealthPart> {
    thread::scope(|scope| {
        let ask = |server: &Arc<Server>| {
            let server = Arc::clone(server);
            let asked = thread::Builder::new().spawn_scoped(scope, move || server.health(until));
            asked.ok()
        };
        // This thread pings the first server.
        let asked = servers.iter().enumerate();
        let asked: Vec<_> = asked
            .map(|(n, server)| if n == 0 { None } else { ask(server) })
            .collect();
        let mut left = asked.iter().filter(|asked| asked.is_none()).count() as u32;
        let own: Vec<_> = servers
            .iter()
            .zip(&asked)
            .map(|(server, asked)| {
                asked.is_none().then(|| {
                    let now = Instant::now();
                    // An equal share of the time for each.
                    let share = now.until(until) / left;
                    left -= 1;
                    server.health(now.after(share))
                })
            })
            .collect();
        let parts = own.into_iter().zip(asked);
        let parts = parts.filter_map(|(own, asked)| own.or_else(|| asked?.join().ok()));
        parts.collect()
    })
}

/// Returns what to undo if the call fails. A release, which is [`Cap::Exempt`], needs no undo.
fn to_undo<'a>(undoable: Option<&'a Undoable<'a>>, cap_rule: Cap) -> Option<&'a Undoable<'a>> {
    undoable.filter(|_| cap_rule == Cap::Counted)
}
