//! Redis as the rest of the crate sees it: where a name is kept, and what a call about it came to.

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

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::{Config, Terms};
use crate::dialers::Dialers;
use crate::error::{Cause, Error};
use crate::health::HealthPart;
use crate::holder::HolderId;
use crate::protocol::kind::{Key, Keys};
use crate::protocol::script::{Call, Reply};
use crate::redis::cluster::Cluster;
use crate::redis::cluster::slot_map::SlotMap;
use crate::redis::sentinel::Sentinels;
use crate::url::Target;

pub(crate) use crate::redis::conn::node::Wire;
pub(crate) use crate::redis::conn::pool::Lane;
pub(crate) use crate::redis::fault::{Fault, OpenCircuit};
pub(crate) use crate::redis::health::Condition;
pub(crate) use crate::redis::look::Beside;
pub(crate) use crate::redis::quorum::member::{Errand, Peer};
pub(crate) use crate::redis::quorum::pipelined::{Promise, Receipt, Vote};
pub(crate) use crate::redis::quorum::votes::{Counted, Size, Tally};
pub(crate) use crate::redis::quorum::{Quorum, Stake};
pub(crate) use crate::redis::server::Server;

/// The Redis that keeps the locks: all its servers.
pub(crate) struct Servers {
    place: Place,
    label: String,
    command_timeout: Duration,
    dialers: Dialers,
}

/// Where names are kept.
enum Place {
    /// All of them on one server.
    One(Arc<Server>),
    /// Each on the master that keeps its slot.
    Cluster(Cluster),
    /// All of them on each of several servers.
    Quorum(Box<Quorum>),
}

impl Servers {
    pub(crate) fn new(target: Target, config: &Config) -> Result<Self, Error> {
        let label = target.label();
        Ok(Self {
            label: label.clone(),
            command_timeout: config.command_timeout,
            dialers: config.dialers.clone(),
            place: match target {
                Target::Cluster(nodes) => Place::Cluster(Cluster::new(nodes, config)?),
                Target::Quorum(addresses) => {
                    Place::Quorum(Box::new(Quorum::new(addresses, label, config)?))
                }
                target => Place::One(Arc::new(Server::new(target, config, None)?)),
            },
        })
    }

    /// Where it is, for people.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    /// The threads that make its connections.
    pub(crate) fn dialers(&self) -> &Dialers {
        &self.dialers
    }

    /// The server that keeps a name now, as far as is known.
    fn home(&self, key: Key<'_>) -> Arc<Server> {
        match &self.place {
            Place::One(server) => Arc::clone(server),
            Place::Cluster(cluster) => cluster.map().home(key.slot()),
            Place::Quorum(_) => unreachable!("a quorum keeps each name on all its servers"),
        }
    }

    /// Whether `server` keeps a name now, as far as is known.
    pub(crate) fn is_home(&self, server: &Arc<Server>, key: Key<'_>) -> bool {
        match &self.place {
            Place::One(_) | Place::Quorum(_) => true,
            Place::Cluster(cluster) => Arc::ptr_eq(&cluster.map().home(key.slot()), server),
        }
    }

    /// Errors when a name cannot be kept here.
    pub(crate) fn check(&self, keys: &Keys) -> Result<(), Error> {
        match &self.place {
            Place::Quorum(_) if keys.line().is_some() => Err(Error::Config(
                "a fair lock is for one server, Sentinel and Cluster: a quorum's servers have no queue in common"
                    .into(),
            )),
            Place::One(_) | Place::Quorum(_) => Ok(()),
            Place::Cluster(_) => keys.check_slots(),
        }
    }

    /// Errors when no lease can be had here on these terms.
    pub(crate) fn check_terms(&self, terms: &Terms) -> Result<(), Error> {
        match &self.place {
            Place::Quorum(_) if terms.replicas.is_some() => Err(Error::Config(
                "min_replicas is for one server, Sentinel and Cluster: a quorum's servers have no replicas"
                    .into(),
            )),
            _ => Ok(()),
        }
    }

    /// The servers that keep a name now, as far as is known, and how many of them a majority takes.
    pub(crate) fn keepers(&self, key: Key<'_>) -> (Vec<Arc<Server>>, Size) {
        let servers = match &self.place {
            Place::Quorum(quorum) => quorum.servers().to_vec(),
            Place::One(_) | Place::Cluster(_) => vec![self.home(key)],
        };
        (servers, self.size())
    }

    /// The server that keeps what is on one server only: over a quorum the first.
    pub(crate) fn first_keeper(&self, key: Key<'_>) -> Arc<Server> {
        match self.fixed().first() {
            Some(server) => Arc::clone(server),
            None => self.home(key),
        }
    }

    /// The servers that are the same for all names and for good.
    pub(crate) fn fixed(&self) -> &[Arc<Server>] {
        match &self.place {
            Place::One(server) => std::slice::from_ref(server),
            Place::Cluster(_) => &[],
            Place::Quorum(quorum) => quorum.servers(),
        }
    }

    /// How many servers keep each name, and how many of them a majority takes.
    pub(crate) fn size(&self) -> Size {
        match &self.place {
            Place::Quorum(quorum) => quorum.size(),
            Place::One(_) | Place::Cluster(_) => Size::of(1),
        }
    }

    /// Where it is noted what each server did about an acquiring command, where there are several.
    pub(crate) fn receipt(&self) -> Option<Arc<Receipt>> {
        match &self.place {
            Place::Quorum(quorum) => Some(Arc::new(Receipt::new(quorum.size().all))),
            Place::One(_) | Place::Cluster(_) => None,
        }
    }

    /// The call that acquires what one script can, and reserves `block` tokens; where the client proposes
    /// them, above `above`.
    pub(crate) fn acquire<'a>(
        &self,
        keys: &'a Keys,
        id: &'a HolderId,
        ttl: Duration,
        above: u64,
        block: u64,
    ) -> Call<'a> {
        match &self.place {
            Place::Quorum(quorum) => keys.propose(id, ttl, quorum.propose(above), block),
            Place::One(_) | Place::Cluster(_) => keys.acquire(id, ttl, block),
        }
    }

    /// Sends `call` and waits for its answer until `until`, and never longer than the command
    /// timeout.
    pub(crate) fn call(&self, call: Call<'_>, until: Instant, lane: Lane) -> Result<Reply, Fault> {
        self.call_or_undo(call, until, lane, None)
            .map(|(reply, _)| reply)
    }

    /// As [`call`](Self::call), for an acquiring call or a release. Where no answer to an acquiring
    /// call comes, its undo is written behind it on the same connection. With the answer comes the
    /// instant before the call was sent, once there was a connection: a lease counts from then.
    pub(crate) fn call_or_undo(
        &self,
        call: Call<'_>,
        until: Instant,
        lane: Lane,
        stake: Option<&Stake<'_>>,
    ) -> Result<(Reply, Instant), Fault> {
        match &self.place {
            Place::One(server) => server.call_or_undo(call, until, lane, to_undo(stake, lane)),
            Place::Cluster(cluster) => {
                cluster.call_or_undo(call, until, lane, to_undo(stake, lane))
            }
            Place::Quorum(quorum) => quorum.call(call, until, lane, stake),
        }
    }

    /// Whether Redis answers.
    pub(crate) fn ping(&self, until: Instant) -> Result<Reply, Fault> {
        match &self.place {
            Place::One(server) => server.ping(until, Lane::Capped),
            Place::Cluster(cluster) => cluster.ping(until),
            Place::Quorum(quorum) => quorum.ping(until),
        }
    }

    /// Since when the keeper of a name has not answered, for a caller that has asked since `start`;
    /// since `now` if nothing has failed since its last answer.
    pub(crate) fn silent_since(&self, key: Key<'_>, now: Instant, start: Instant) -> Instant {
        match &self.place {
            Place::Quorum(quorum) => quorum.silent_since(now, start),
            Place::One(server) => server.silent_since(now, start),
            Place::Cluster(_) => self.home(key).silent_since(now, start),
        }
    }

    /// Whether another server may take over, one that does not know all that the one before did.
    pub(crate) fn may_fail_over(&self) -> bool {
        self.sentinels().is_some() || self.slot_map().is_some()
    }

    /// Who knows the slots, where there are any.
    pub(crate) fn slot_map(&self) -> Option<&SlotMap> {
        match &self.place {
            Place::One(_) | Place::Quorum(_) => None,
            Place::Cluster(cluster) => Some(cluster.map()),
        }
    }

    /// Who knows the master, if that may change.
    pub(crate) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        match &self.place {
            Place::One(server) => server.sentinels(),
            Place::Cluster(_) | Place::Quorum(_) => None,
        }
    }

    /// The master has moved to where its sentinels now know it.
    pub(crate) fn moved(&self) {
        match &self.place {
            Place::One(server) => server.moved(),
            Place::Cluster(_) | Place::Quorum(_) => {}
        }
    }

    /// Something failed: whoever keeps the names may be about to be replaced.
    pub(crate) fn doubt(&self) {
        match &self.place {
            // Sentinels say so by themselves, and a quorum replaces none.
            Place::One(_) | Place::Quorum(_) => {}
            Place::Cluster(cluster) => cluster.map().doubt(),
        }
    }

    /// Asks every server how it does, all at once, until `until`; and how many must work.
    pub(crate) fn health(&self, until: Instant) -> (Vec<HealthPart>, usize) {
        let servers = match &self.place {
            Place::One(server) => vec![Arc::clone(server)],
            Place::Cluster(cluster) => {
                let now = Instant::now();
                // The other half is for their answers.
                cluster
                    .masters(now.after(now.until(until) / 2))
                    .unwrap_or_default()
            }
            Place::Quorum(quorum) => quorum.servers().to_vec(),
        };
        let needed = match &self.place {
            Place::One(_) | Place::Cluster(_) => servers.len().max(1),
            Place::Quorum(quorum) => quorum.size().needed,
        };
        (health_of_all(&servers, until), needed)
    }

    /// A server of a quorum that did not answer does again.
    pub(crate) fn peer_is_back(&self) {
        if let Place::Quorum(quorum) = &self.place {
            quorum.is_back();
        }
    }

    /// The connections are closed; what is out is closed when it comes back.
    pub(crate) fn close(&self) {
        match &self.place {
            Place::One(server) => server.close(),
            Place::Cluster(cluster) => cluster.map().close(),
            Place::Quorum(quorum) => quorum.close(),
        }
    }

    /// A fault as an error for a caller that gives up.
    pub(crate) fn error(&self, fault: Fault) -> Error {
        match fault {
            Fault::NotNow(cause) | Fault::NoAnswer(cause) | Fault::Elsewhere(_, cause) => {
                self.unreachable(cause)
            }
            Fault::Open(open) => (*open).into(),
            Fault::Unsafe(error) | Fault::Never(error) => error,
        }
    }

    /// Why the keeper of a name failed last, if it has.
    pub(crate) fn last_failure(&self, key: Key<'_>) -> Option<Cause> {
        match &self.place {
            Place::Quorum(quorum) => quorum.last_failure(),
            Place::One(server) => server.condition.last_failure(),
            Place::Cluster(_) => {
                let home = self.home(key);
                let last = home.condition.last_failure();
                last.map(|cause| cause.at(home.label()))
            }
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

/// Asks each server on a thread of its own, and on this one those for which the system has none.
fn health_of_all(servers: &[Arc<Server>], until: Instant) -> Vec<HealthPart> {
    thread::scope(|scope| {
        let ask = |server: &Arc<Server>| {
            let server = Arc::clone(server);
            let asked = thread::Builder::new().spawn_scoped(scope, move || server.health(until));
            asked.ok()
        };
        // One server needs no thread.
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
                    // As long for each of those that are asked here.
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

/// What an acquiring call may leave behind. A release, which goes in the free lane, needs no undo.
fn to_undo<'a>(stake: Option<&'a Stake<'a>>, lane: Lane) -> Option<&'a Stake<'a>> {
    stake.filter(|_| lane == Lane::Capped)
}
