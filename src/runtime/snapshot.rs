//! Snapshots of the client's counters, for callers and for the shared statistics.

use std::sync::Arc;

use crate::clock::Instant;
#[cfg(feature = "metrics")]
use crate::logging::contain;
use crate::protocol::keys::Key;
use crate::redis::{Fault, Server};
use crate::runtime::endpoint::Endpoint;
use crate::runtime::io::shared_stats::{self, SEND_EVERY, StatsDelta};
use crate::runtime::state::Runtime;
use crate::stats::{Buckets, Latency, Stats, Totals};

impl Runtime {
    /// Returns this client's counters and current state.
    pub(crate) fn stats(&self) -> Stats {
        let (held, waiting) = self.waiters.count();
        let [wait, hold, command] = self.histograms();
        let servers = self.all_servers();
        let open = servers.iter().filter(|server| server.health.is_open());
        Stats {
            totals: self.meters.counters.totals(),
            held,
            waiting,
            connections: servers.iter().map(|server| server.connections()).sum(),
            open_breakers: open.count() as u64
                + u64::from(self.deployment.has_open_shared_breaker()),
            renewal_lag: self.meters.lag(),
            wait: Latency::of(&wait),
            hold: Latency::of(&hold),
            command: Latency::of(&command),
        }
    }

    /// Returns the counters, in a child of the process that made the client. The rest is behind
    /// locks, which a thread of the parent may have held at the fork.
    pub(crate) fn stats_in_child(&self) -> Stats {
        Stats {
            totals: self.meters.counters.totals(),
            ..Stats::default()
        }
    }

    /// Returns the histograms of waiting, holding and commands; commands of all servers together.
    pub(crate) fn histograms(&self) -> [Buckets; 3] {
        let [mut wait, mut hold, mut command]: [Buckets; 3] = Default::default();
        self.meters.wait.add_to(&mut wait);
        self.meters.hold.add_to(&mut hold);
        for server in self.all_servers() {
            server.latency.add_to(&mut command);
        }
        [wait, hold, command]
    }

    /// Returns all servers in use, and the replaced ones that still have an endpoint.
    fn all_servers(&self) -> Vec<Arc<Server>> {
        let mut servers = self.deployment.servers();
        for endpoint in self.endpoints.all() {
            let is_known = |known| Arc::ptr_eq(known, &endpoint.server);
            if !servers.iter().any(is_known) {
                servers.push(Arc::clone(&endpoint.server));
            }
        }
        servers
    }

    /// Reads the sums of all clients from the shared statistics.
    pub(crate) fn shared_totals(&self, until: Instant) -> Result<Totals, Fault> {
        let key = self.shared_stats.lock_keys.key(0);
        let [hash] = &*self.shared_stats.hash;
        let read = |reply| shared_stats::read(&reply);
        self.deployment
            .read_on_primary(key, "HGETALL", &[hash], until, read)
    }

    /// On the first call, starts the io thread that sends counters, if they are sent at all. In a
    /// cluster these threads start on demand, and a lock that is released before its first renewal
    /// needs none.
    pub(crate) fn begin_stats(&self, key: Key<'_>) {
        if self.shared_stats.must_start() {
            self.endpoints_of(if self.shared_stats.is_shared {
                self.shared_stats.lock_keys.key(0)
            } else {
                key
            });
        }
    }

    /// Returns the server of the shared statistics' hash; with a quorum, the first server.
    fn stats_server(&self) -> Arc<Server> {
        self.deployment
            .primary_owner_of(self.shared_stats.lock_keys.key(0))
    }

    /// Returns true if `endpoint` is the one that sends the client's counters. With shared
    /// statistics that is the endpoint of the hash's server, otherwise the first one in use.
    fn sends_stats(&self, endpoint: &Endpoint) -> bool {
        if self.shared_stats.is_shared {
            Arc::ptr_eq(&self.stats_server(), &endpoint.server)
        } else {
            let endpoints = self.endpoints.all();
            let mut in_use = (endpoints.iter()).filter(|used| !used.server.is_retired());
            let first = in_use.next();
            first.is_some_and(|first| Arc::ptr_eq(&first.server, &endpoint.server))
        }
    }

    /// Returns the addition to the shared statistics that `endpoint` must write now: none, unless
    /// it sends the client's counters. With the feature `metrics`, also exports these counters.
    ///
    /// They are due at `at`, which is then set to the next time; `None` means never. If `stopping`,
    /// everything left is due at once.
    pub(in crate::runtime) fn stats_due(
        &self,
        endpoint: &Endpoint,
        at: &mut Option<Instant>,
        stopping: bool,
    ) -> Option<StatsDelta> {
        let now = Instant::now();
        if at.is_none_or(|at| at > now && !stopping) {
            return None;
        }
        *at = Some(now.after(SEND_EVERY));
        if !self.sends_stats(endpoint) {
            if self.shared_stats.is_shared && !stopping {
                // The hash's server may have no lock yet, and so no threads.
                self.endpoints_of(self.shared_stats.lock_keys.key(0));
            }
            return None;
        }
        #[cfg(feature = "metrics")]
        contain(|| {
            self.shared_stats
                .facade
                .export(&self.stats(), self.histograms(), stopping);
        });
        if !self.shared_stats.is_shared {
            return None;
        }
        self.shared_stats.next_delta(self.meters.counters.totals())
    }
}
