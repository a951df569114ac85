//! Whose each key is, after every event; the order of grants and what is left, at the end of a run.

use super::{each_entry, has_owner};
use crate::clock::Instant;
use crate::kernel::bounds::Bound;
use crate::majority::Member;
use crate::quorum::Quorum;
use crate::sim::plan::Kind;
use crate::sim::server::{base, client_of};
use crate::sim::world::{Checked, World};

impl World {
    /// P7: each value in Redis belongs to somebody who knows it.
    pub(super) fn check_orphans(&self, key: &[u8]) -> Checked {
        if self.has_old_data {
            return Ok(());
        }
        for (n, server) in self.servers.iter().enumerate() {
            let Some(data) = server.data.get(key) else {
                continue;
            };
            for id in data.lasting(server.now(self.now)) {
                let Some(client) = client_of(id).filter(|it| self.clients[*it].is_alive) else {
                    continue;
                };
                let is_excused = self.ran_twice.contains(id) || self.outlasts.contains(id);
                let is_excused = is_excused || self.has_forgotten(client, id);
                if !is_excused && !self.is_known(client, n, id) {
                    let text = format!("nobody of c{client} knows {id} at s{n}");
                    return Err(self.violation("P7", text));
                }
            }
        }
        Ok(())
    }

    /// Returns whether a client has forgotten an id because it knew too many: it may be left for
    /// one ttl.
    fn has_forgotten(&self, client: usize, id: &str) -> bool {
        let is_low = matches!(self.plan.low, Some(Bound::KeySeen | Bound::Recent));
        let it = &self.clients[client];
        is_low
            && (it.kernel.shared.pending.lock().has_forgotten(id)
                || it.quorum().is_some_and(|quorum| quorum.has_forgotten(id)))
    }

    /// Returns whether a client knows an id at a server. Over a quorum, the commands under way are
    /// no memory: the engine has sent them.
    fn is_known(&self, client: usize, server: Member, id: &str) -> bool {
        let kernel = &self.clients[client].kernel;
        let is_pending = || {
            let pending = kernel.shared.pending.lock();
            !pending.is_empty() && pending.has(base(id).as_bytes())
        };
        let is_known_at = |quorum: &Quorum| quorum.knows(server, id);
        let of_lease = &base(id);
        self.has_guard(client, of_lease)
            || has_owner(kernel, &self.names, self.parked(client), of_lease)
            || is_pending()
            || self.clients[client].quorum().is_some_and(is_known_at)
            || !self.plan.is_quorum() && self.is_under_way(client, id)
    }

    /// P5: without faults, places are granted in the order in which the server ran their enters.
    fn check_order(&self) -> Checked {
        let kinds = &self.plan.kinds;
        let is_fair = kinds
            .iter()
            .all(|kind| [Kind::Fair, Kind::Mutex].contains(kind));
        if self.plan.has_faults() || !is_fair || self.plan.names > 1 || self.plan.backoff > 0 {
            return Ok(());
        }
        for server in &self.servers {
            let mut entered = server.entered.iter();
            for id in &server.granted {
                // Each grant is behind the one before.
                if !entered.any(|it| it == id) {
                    return Err(self.violation("P5", format!("{id} is granted out of order")));
                }
            }
        }
        Ok(())
    }

    /// P4, P10: nothing is left.
    pub(in crate::sim) fn check_end(&mut self) -> Checked {
        self.check_order()?;
        for (n, server) in self.servers.iter().enumerate() {
            for (key, data) in &server.data {
                let mut data = data.clone();
                data.settle(server.now(self.now));
                for id in data.lasting(server.now(self.now)) {
                    let client = client_of(id);
                    // The network has run its command once more, and told of one run only.
                    let is_excused = self.ran_twice.contains(id)
                        || self.outlasts.contains(id)
                        || client.is_some_and(|it| self.has_forgotten(it, id));
                    if !is_excused && client.is_some_and(|it| self.clients[it].is_alive) {
                        let key = String::from_utf8_lossy(key);
                        return Err(self.violation("P4", format!("s{n}: {key} is left with {id}")));
                    }
                }
            }
        }
        for (n, client) in self.clients.iter().enumerate() {
            if !client.is_alive {
                continue;
            }
            let kernel = &client.kernel;
            let mut left = Vec::new();
            each_entry(kernel, &self.names, |entry| left.push(format!("{entry:?}")));
            if !kernel.shared.pending.lock().is_empty() {
                left.push(format!(
                    "pending {:?}",
                    kernel.shared.pending.lock().ids().collect::<Vec<_>>()
                ));
            }
            if client.in_flight() > 0 || !kernel.shared.ids.lock().is_empty() {
                left.push("commands, rounds or ids".into());
            }
            if kernel.shared.schedule.lock().next() < Instant::NEVER {
                left.push(format!("the schedule {:?}", kernel.shared.schedule.lock()));
            }
            if !left.is_empty() {
                return Err(self.violation("P10", format!("c{n} has {left:?}")));
            }
        }
        let bound = 2_000 + self.report.acquired * 200 + self.report.events / 4;
        let bound = bound * self.plan.servers as u64;
        if self.report.commands > bound {
            let text = format!("{} commands", self.report.commands);
            return Err(self.violation("P10", text));
        }
        Ok(())
    }
}
