//! The client's counters as others see them: the snapshot, and what goes to the shared statistics.

use std::sync::Arc;

use crate::clock::Instant;
use crate::protocol::kind::Key;
use crate::redis::{Cap, Fault, Server};
use crate::runtime::endpoint::Endpoint;
use crate::runtime::io::shared_stats::{self, EVERY, StatsDelta};
use crate::runtime::state::Runtime;
#[cfg(feature = "metrics")]
use crate::runtime::worker::contain;
use crate::stats::{Buckets, Latency, Stats, Totals};

impl Runtime {
    /// What this client has counted, and is doing now.
    pub(crate) fn stats(&self) -> Stats {
        let (held, waiting) = self.waiters.count();
        let [wait, hold, command] = self.histograms();
        Stats {
            totals: self.meters.counters.totals(),
            held,
            waiting,
            connections: self.all_servers().iter().map(|s| s.connections()).sum(),
            renewal_lag: self.meters.lag(),
            wait: Latency::of(&wait),
            hold: Latency::of(&hold),
            command: Latency::of(&command),
        }
    }

    /// The times of waiting, holding, and commands, those of all servers together.
    pub(crate) fn histograms(&self) -> [Buckets; 3] {
        let [mut wait, mut hold, mut command]: [Buckets; 3] = Default::default();
        self.meters.wait.add_to(&mut wait);
        self.meters.hold.add_to(&mut hold);
        for server in self.all_servers() {
            server.latency.add_to(&mut command);
        }
        [wait, hold, command]
    }

    /// All servers in use: those that were given, and those that were found.
    fn all_servers(&self) -> Vec<Arc<Server>> {
        let mut deployment = self.deployment.fixed().to_vec();
        for endpoint in self.endpoints.all() {
            if !deployment
                .iter()
                .any(|known| Arc::ptr_eq(known, &endpoint.server))
            {
                deployment.push(Arc::clone(&endpoint.server));
            }
        }
        deployment
    }

    /// What all clients have added to the shared statistics.
    pub(crate) fn shared_totals(&self, until: Instant) -> Result<Totals, Fault> {
        let server = self.stats_server();
        let [hash] = &self.tally.keys.hash;
        server.command("HGETALL", &[hash], until, Cap::Counted, |reply| {
            shared_stats::read(&reply)
        })
    }

    /// There is something to tell. In a cluster the threads of a server begin when somebody needs
    /// them, and a lock that is let go before its first renewal needs none.
    pub(crate) fn begin_stats(&self, key: Key<'_>) {
        if self.tally.begins() {
            self.endpoints_of(if self.tally.is_shared {
                self.tally.owner_of.key(0)
            } else {
                key
            });
        }
    }

    /// The server that keeps the hash. Where several are fixed (a quorum) it is the first of them.
    fn stats_server(&self) -> Arc<Server> {
        self.deployment.primary_owner_of(self.tally.owner_of.key(0))
    }

    /// One site tells for all: where a hash is kept that of its server, and else any that is at
    /// work.
    fn are_stats_told_by(&self, endpoint: &Endpoint) -> bool {
        if self.tally.is_shared {
            Arc::ptr_eq(&self.stats_server(), &endpoint.server)
        } else {
            let endpoints = self.endpoints.all();
            let at_work = endpoints
                .iter()
                .find(|endpoint| !endpoint.server.is_retired());
            at_work.is_some_and(|first| Arc::ptr_eq(&first.server, &endpoint.server))
        }
    }

    /// What `endpoint`, if it is the one that tells, is to write now. The last time is when it
    /// is `stopping`: then all that there is.
    pub(in crate::runtime) fn stats_due(
        &self,
        endpoint: &Endpoint,
        at: &mut Option<Instant>,
        stopping: bool,
    ) -> Vec<StatsDelta> {
        let now = Instant::now();
        if at.is_none_or(|at| at > now && !stopping) {
            return Vec::new();
        }
        *at = Some(now.after(EVERY));
        if !self.are_stats_told_by(endpoint) {
            if self.tally.is_shared && !stopping {
                // It may keep no lock as yet, and then nobody has started its threads.
                self.endpoints_of(self.tally.owner_of.key(0));
            }
            return Vec::new();
        }
        #[cfg(feature = "metrics")]
        contain(|| {
            self.tally
                .facade
                .tell(&self.stats(), self.histograms(), stopping);
        });
        if !self.tally.is_shared {
            return Vec::new();
        }
        self.tally.parcels(self.meters.counters.totals(), stopping)
    }
}
