//! P3: whether a free lock is idle while a call waits for it.

use std::sync::Arc;

use super::each_entry;
use crate::protocol::primitive::Primitive;
use crate::sim::plan::{Actor, Family};
use crate::sim::server::{MS, Server, base, client_of, key_of};
use crate::sim::world::{Checked, World};

impl World {
    /// P3: a free lock is not idle while a call waits for it.
    pub(super) fn check_idle(&mut self, key: &[u8]) -> Checked {
        let could_grant = |server: &&Server| self.could_grant(server, key);
        let waits = self.servers.iter().filter(could_grant).count() >= self.plan.needed()
            && !self.is_disturbed()
            && (0..self.clients.len()).any(|client| self.waits(client, key));
        if !waits {
            self.idle_since.remove(key);
            return Ok(());
        }
        let since = *self.idle_since.entry(key.to_vec()).or_insert(self.now);
        let idle = self.now - since;
        self.report.longest_idle = self.report.longest_idle.max(idle);
        if idle > self.plan.longest_idle() {
            let text = format!(
                "{} is idle for {} ms",
                String::from_utf8_lossy(key),
                idle / MS
            );
            return Err(self.violation("P3", text));
        }
        Ok(())
    }

    /// Returns whether a lock is free at a server that does what it is asked.
    fn could_grant(&self, server: &Server, key: &[u8]) -> bool {
        if self.now < server.works_from() {
            return false;
        }
        let Some(data) = server.data.get(key) else {
            return true;
        };
        let now = server.now(self.now);
        let is_free = data.permits.is_empty() && data.end().is_none_or(|end| end <= now);
        let lock = data.lock.as_ref();
        is_free || lock.is_some_and(|(id, _)| self.is_not_taken(id))
    }

    /// Returns whether a lock was granted to a client that lives, and that has not taken it.
    fn is_not_taken(&self, id: &str) -> bool {
        let Some(client) = client_of(id).filter(|it| self.clients[*it].is_alive) else {
            return false;
        };
        let is_quorum = self.plan.is_quorum();
        // Through a slow link, a client that gives a lease up does so late.
        if self.ran_twice.contains(id) || !is_quorum && self.usable(client) == 0 {
            return false;
        }
        // Each place of a client that stands still may cost the others three seconds. A quorum has
        // no places.
        let of = |actor| self.stopped_until(client, actor) > self.now;
        if of(Actor::Engine) || !is_quorum && of(Actor::Sub) {
            return false;
        }
        let (of_lease, mut is_held) = (base(id), false);
        each_entry(&self.clients[client].kernel, &self.names, |entry| {
            is_held |= entry
                .leases
                .held
                .iter()
                .any(|held| held.lease.id.as_str() == of_lease);
        });
        !is_held && !self.has_guard(client, &of_lease)
    }

    /// Returns whether a client has a lease of the lock, as far as it knows.
    fn has_lease(&self, client: usize, key: &[u8]) -> bool {
        let now = self.clocks[client].at(self.now);
        let mut has = false;
        each_entry(&self.clients[client].kernel, &self.names, |entry| {
            has |= entry
                .leases
                .held
                .iter()
                .any(|held| held.lease.is_held_at(now) && key_of(&*held.lease.lock) == key);
        });
        has
    }

    fn waits(&self, client: usize, key: &[u8]) -> bool {
        let it = &self.clients[client];
        if !it.is_alive || it.kernel.is_closed() {
            return false;
        }
        let stopped = self.stopped_until(client, Actor::Engine);
        if stopped.max(self.sleeps_until(client)) > self.now {
            return false;
        }
        // Through slow links no lease can be had in time.
        if self.usable(client) < self.plan.needed() {
            return false;
        }
        // The server's clock has ended the lease that its calls wait for.
        if self.plan.family == Family::Clocks && self.has_lease(client, key) {
            return false;
        }
        let watches = self.watched(client);
        let is_watched = |(thread, lock): &(usize, Arc<dyn Primitive>)| {
            let runs = self.stopped_until(client, Actor::Caller(*thread)) <= self.now;
            runs && key_of(&**lock) == key
        };
        if watches.iter().any(is_watched) {
            return true;
        }
        let mut calls = self.parked_threads(client);
        calls.any(|(thread, call)| {
            let runs = self.stopped_until(client, Actor::Caller(thread)) <= self.now;
            let waits = call
                .cell()
                .is_some_and(|cell| cell.outcome.lock().is_none());
            runs && waits && key_of(&*call.wants.lock) == key
        })
    }
}
