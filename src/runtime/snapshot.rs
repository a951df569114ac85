//! Snapshots of the client's counters, for callers and for the shared statistics.

use std::sync::Arc;

use crate::clock::Instant;
#[cfg(feature = "metrics")]
use crate::logging;
use crate::redis::{Fault, Server};
use crate::runtime::engine::shared_stats::{self, SEND_EVERY, StatsDelta};
use crate::runtime::state::Runtime;
use crate::stats::{Buckets, Latency, Stats, Totals};

impl Runtime {
    /// Returns this client's counters and current state.
    pub(crate) fn stats(&self) -> Stats {
        let [held, lingering, waiting] = self.kernel.counts();
        let [wait, hold, command] = self.histograms();
        let servers = self.all_servers();
        let open = servers.iter().filter(|server| server.health.is_open());
        let quorum = self.deployment.quorum();
        let is_shared_open = quorum.is_some_and(|quorum| quorum.health.is_open());
        Stats {
            totals: self.meters.counters.totals(),
            held,
            lingering,
            waiting,
            connections: servers.iter().map(|server| server.connections()).sum(),
            open_breakers: open.count() as u64 + u64::from(is_shared_open),
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
        self.deployment
            .read_on_primary(key, "HGETALL", &[hash], until, shared_stats::read)
    }

    /// Returns the server of the shared statistics' hash; with a quorum, the first server.
    pub(in crate::runtime) fn stats_server(&self) -> Arc<Server> {
        self.deployment
            .primary_owner_of(self.shared_stats.lock_keys.key(0))
    }

    /// Returns the addition to the shared statistics that is due. With the feature `metrics`, also
    /// exports the counters.
    ///
    /// They are due at `at`, which is then set to the next time; `None` means never. Pass
    /// `is_last` if nothing is exported any more.
    pub(in crate::runtime) fn stats_due(
        &self,
        at: &mut Option<Instant>,
        now: Instant,
        is_last: bool,
    ) -> Option<StatsDelta> {
        if at.is_none_or(|at| at > now) {
            return None;
        }
        *at = Some(now.after(SEND_EVERY)).filter(|_| !is_last);
        #[cfg(feature = "metrics")]
        {
            let facade = Arc::clone(&self.shared_stats.facade);
            let (stats, times) = (self.stats(), self.histograms());
            logging::run_slow(move || facade.export(&stats, times, is_last));
        }
        if !self.shared_stats.is_shared {
            return None;
        }
        self.shared_stats.next_delta(self.meters.counters.totals())
    }
}
