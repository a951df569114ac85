//! The properties of a quorum, after every event and at the end of a run.

pub(super) mod outcomes;

use std::sync::Arc;

use super::world::{Caller, State, Todo, World, time_at};
use crate::clock::Instant;
use crate::kernel::bounds::Bound;
use crate::kernel::call::{Call, Step};
use crate::kernel::effects::Effects;
use crate::kernel::engine::ServerNo;
use crate::kernel::held::HeldLease;
use crate::kernel::lease::LeaseStatus;
use crate::kernel::waiter::Outcome;
use crate::lost::Lost;
use crate::sim::check::tables::table_problems;
use crate::sim::check::{each_entry, has_owner, held_names};
use crate::sim::plan::Actor;
use crate::sim::server::key_of;
use crate::sim::server::{MS, client_of};
use crate::sim::world::Checked;

/// A lease that a client has had.
pub(super) struct Registered {
    client: usize,
    key: Vec<u8>,
    lease: Arc<HeldLease>,
}

impl World {
    /// Looks at a kernel call's effects before they are carried out.
    pub(super) fn after_kernel(&mut self, client: usize, fx: &mut Effects) -> Checked {
        for (lease, token) in std::mem::take(&mut fx.began) {
            self.say(|| format!("c{client} holds {:?} token {token}", lease.id));
            if self.clients[client].kernel.is_closed() {
                let text = format!("c{client} is closed, and gives {:?}", lease.id);
                return Err(self.violation("P10", text));
            }
            let handed = token.value() - lease.run.first().value();
            if handed > u64::from(self.plan.handoffs) {
                let text = format!("{:?} is handed off {handed} times", lease.id);
                return Err(self.violation("P12", text));
            }
            let is_new = !self.leases.iter().any(|it| Arc::ptr_eq(&it.lease, &lease));
            for (n, name) in lease.lock.keys().names.iter().enumerate() {
                let key = name.as_bytes().to_vec();
                let token = match lease.tokens.len() {
                    1 => token,
                    _ => lease.tokens[n],
                };
                let newest = self.newest.get(&key).copied().unwrap_or(0);
                if token.value() <= newest && !self.lost_tokens {
                    let text = format!("token {token} is not above {newest}: {:?}", lease.id);
                    return Err(self.violation("P2", text));
                }
                self.newest.insert(key.clone(), token.value().max(newest));
                if is_new {
                    let lease = Arc::clone(&lease);
                    self.leases.push(Registered { client, key, lease });
                }
            }
        }
        for told in &fx.lost {
            let text = format!("c{client} is told {told:?}");
            self.say(|| text);
        }
        let held = held_names(&self.clients[client].kernel, &self.names);
        let before = std::mem::replace(&mut self.clients[client].held, held.clone());
        for name in before.difference(&held) {
            self.note_own_end(client, name);
        }
        self.check_table(client)
    }

    /// P1, P3, P7, P9.
    pub(super) fn check(&mut self) -> Checked {
        let now = time_at(self.now);
        let ended = self.leases.extract_if(.., |it| !it.lease.is_open());
        for it in ended.collect::<Vec<_>>() {
            let status = it.lease.status(now, &mut Effects::default());
            let is_by_clock = matches!(status, LeaseStatus::Lost(Lost::Expired | Lost::MaxHold));
            if is_by_clock && it.lease.since().is_some() {
                for name in it.lease.lock.keys().names.iter() {
                    self.note_own_end(it.client, name);
                }
            }
        }
        self.leases.retain(|it| self.clients[it.client].is_alive);
        self.check_losses(now)?;
        if !self.lost_leases {
            self.check_exclusion(now)?;
        }
        for server in 0..self.plan.servers {
            self.check_orphans(server)?;
        }
        for name in 0..self.plan.names {
            self.check_idle(format!("n{name}").as_bytes())?;
        }
        Ok(())
    }

    fn check_losses(&self, now: Instant) -> Checked {
        for it in &self.leases {
            let overdue = it.lease.overdue(now);
            let actors = (0..self.plan.threads).map(Actor::Caller);
            let actors = actors.chain([Actor::Engine, Actor::Sub]);
            let stopped = actors
                .map(|it_is| self.stopped_until(it.client, it_is))
                .max();
            let stopped = stopped.unwrap_or(0);
            if overdue.as_millis() > 20 && time_at(stopped + 20 * MS) < now {
                let text = format!("c{}: the loss of {:?} was not told", it.client, it.lease.id);
                return Err(self.violation("P9", text));
            }
        }
        Ok(())
    }

    /// Returns the id that holds a key at a server.
    fn holder(&self, server: ServerNo, key: &[u8]) -> Option<&str> {
        let data = self.members[server].server.data.get(key)?;
        let (id, end) = data.lock.as_ref()?;
        (*end > self.local(server)).then_some(id)
    }

    fn check_exclusion(&self, now: Instant) -> Checked {
        let held = self.leases.iter().filter(|it| it.lease.is_held_at(now));
        let held: Vec<&Registered> = held.collect();
        let needed = self.plan.servers / 2 + 1;
        for it in &held {
            let id = it.lease.id.as_str();
            let holders = (0..self.plan.servers).map(|server| self.holder(server, &it.key));
            let holders: Vec<Option<&str>> = holders.collect();
            let has_it = |server: &ServerNo| {
                // Emptied, and away until all leases have ended.
                holders[*server] == Some(id) || self.members[*server].down_until > 0
            };
            if (0..self.plan.servers).filter(has_it).count() < needed {
                let text = format!(
                    "c{} believes to hold {:?}, the servers have {holders:?}",
                    it.client, it.lease.id
                );
                return Err(self.violation("P1", text));
            }
            if held.iter().filter(|other| other.key == it.key).count() > 1 {
                return Err(self.violation("P1", format!("two holders: {:?}", it.lease.id)));
            }
        }
        Ok(())
    }

    /// P7: each key belongs to somebody who knows it.
    fn check_orphans(&self, server: ServerNo) -> Checked {
        for key in self.members[server].server.data.keys() {
            let Some(id) = self.holder(server, key) else {
                continue;
            };
            let Some(client) = client_of(id).filter(|it| self.clients[*it].is_alive) else {
                continue;
            };
            let kernel = &self.clients[client].kernel;
            let is_forgotten =
                self.plan.low == Some(Bound::KeySeen) && kernel.pending.lock().has_forgotten(id);
            if !is_forgotten && !self.is_known(client, server, id) {
                let text = format!("nobody of c{client} knows {id} at s{server}");
                return Err(self.violation("P7", text));
            }
        }
        Ok(())
    }

    fn is_known(&self, client: usize, server: ServerNo, id: &str) -> bool {
        let kernel = &self.clients[client].kernel;
        let parked = self.parked(client).map(|(_, call)| call);
        kernel.pending.lock().has_at(server, id.as_bytes())
            || self.clients[client].engine.knows(id)
            || has_owner(kernel, &self.names, parked, id)
            || self.has_guard(client, id)
    }

    fn has_guard(&self, client: usize, id: &str) -> bool {
        self.clients[client].callers.iter().any(|caller| {
            let lease = match &caller.state {
                State::Holding { lease, .. }
                | State::Operating { lease, .. }
                | State::Releasing { lease, .. } => Some(lease),
                _ => None,
            };
            let given = caller.todo.iter().filter_map(|todo| match todo {
                Todo::Step(Step::Done(Outcome::Lease(lease, _))) => Some(lease),
                _ => None,
            });
            lease
                .into_iter()
                .chain(given)
                .any(|it| it.id.as_str() == id)
        })
    }

    pub(super) fn parked(&self, client: usize) -> impl Iterator<Item = (usize, &Call)> {
        let callers = self.clients[client].callers.iter().enumerate();
        callers.filter_map(|(thread, caller)| match &caller.state {
            State::Parked(call) => Some((thread, call.call())),
            _ => None,
        })
    }

    /// P3: a lock that a majority could grant is not idle while a call waits for it.
    fn check_idle(&mut self, key: &[u8]) -> Checked {
        let needed = self.plan.servers / 2 + 1;
        let is_free = |server: &ServerNo| {
            let member = &self.members[*server];
            let works = self.now
                >= member
                    .stalled_until
                    .max(member.errors_until)
                    .max(member.down_until);
            works
                && self
                    .holder(*server, key)
                    .is_none_or(|id| self.is_not_taken(id))
        };
        let free = (0..self.plan.servers).filter(is_free).count();
        // Through a slow connection a client holds a server's key for as long, at each attempt.
        let is_slow = |it: &super::world::Conn| {
            it.at_server && !it.is_sub && (it.slow > 20 * MS || it.is_cut)
        };
        let is_disturbed = self.conns.iter().any(is_slow);
        let waits = free >= needed
            && !is_disturbed
            && (0..self.clients.len()).any(|client| self.waits(client, key, needed));
        if !waits {
            self.idle_since.remove(key);
            return Ok(());
        }
        let since = *self.idle_since.entry(key.to_vec()).or_insert(self.now);
        let idle = self.now - since;
        self.report.longest_idle = self.report.longest_idle.max(idle);
        if idle > self.plan.longest_idle() {
            let key = String::from_utf8_lossy(key);
            let text = format!("{key} is idle for {} ms", idle / MS);
            return Err(self.violation("P3", text));
        }
        Ok(())
    }

    /// Returns whether a client that lives has this key and does not hold the lock by it.
    fn is_not_taken(&self, id: &str) -> bool {
        let Some(client) = client_of(id).filter(|it| self.clients[*it].is_alive) else {
            return false;
        };
        if self.stopped_until(client, Actor::Engine) > self.now {
            return false;
        }
        let mut is_held = false;
        each_entry(&self.clients[client].kernel, &self.names, |entry| {
            is_held |= entry.held.iter().any(|held| held.lease.id.as_str() == id);
        });
        !is_held && !self.has_guard(client, id)
    }

    fn waits(&self, client: usize, key: &[u8], needed: usize) -> bool {
        let it = &self.clients[client];
        if !it.is_alive || it.kernel.is_closed() {
            return false;
        }
        if self.stopped_until(client, Actor::Engine) > self.now || self.usable(client) < needed {
            return false;
        }
        let watches = |caller: &Caller| match &caller.state {
            State::Parked(call) => call.watched().is_some_and(|lock| key_of(&**lock) == key),
            _ => false,
        };
        let mut callers = self.clients[client].callers.iter().enumerate();
        let runs = |thread| self.stopped_until(client, Actor::Caller(thread)) <= self.now;
        if callers.any(|(thread, caller)| watches(caller) && runs(thread)) {
            return true;
        }
        let mut ones = self
            .parked(client)
            .filter(|(_, call)| call.wants.lock.keys().names.len() == 1);
        ones.any(|(thread, call)| {
            let runs = self.stopped_until(client, Actor::Caller(thread)) <= self.now;
            let waits = call
                .cell()
                .is_some_and(|cell| cell.outcome.lock().is_none());
            runs && waits && key_of(&*call.wants.lock) == key
        })
    }

    /// P6: the lists, the requests and the index of a client's table agree.
    fn check_table(&self, client: usize) -> Checked {
        let kernel = &self.clients[client].kernel;
        let parked = self.parked(client).map(|(_, call)| call);
        let problems = table_problems(kernel, &self.names, parked);
        if problems.is_empty() {
            Ok(())
        } else {
            Err(self.violation("P6", format!("c{client}: {problems:?}")))
        }
    }

    /// Adds the tables of the clients to the trace.
    pub(super) fn dump(&mut self) {
        for client in 0..self.clients.len() {
            let kernel = Arc::clone(&self.clients[client].kernel);
            let mut entries = Vec::new();
            each_entry(&kernel, &self.names, |entry| {
                entries.push(format!("{entry:?}"))
            });
            let rounds = format!("{:?}", self.clients[client].engine);
            for entry in entries {
                self.say(|| format!("c{client}: {entry}"));
            }
            self.say(|| format!("c{client}: {rounds}"));
        }
        for server in 0..self.plan.servers {
            for name in 0..self.plan.names {
                let holder = self.holder(server, format!("n{name}").as_bytes());
                let text = format!("s{server} n{name}: {holder:?}");
                self.say(|| text);
            }
        }
    }

    /// P4, P10: nothing is left.
    pub(super) fn check_end(&mut self) -> Checked {
        for server in 0..self.plan.servers {
            for key in self.members[server].server.data.keys() {
                let holder = self.holder(server, key);
                let client = holder.and_then(client_of);
                if client.is_some_and(|it| self.clients[it].is_alive) {
                    let text = format!("s{server} is left with {holder:?}");
                    return Err(self.violation("P4", text));
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
            if !kernel.pending.lock().is_empty() {
                let ids = format!("{:?}", kernel.pending.lock().ids().collect::<Vec<_>>());
                left.push(format!("pending {ids}"));
            }
            if client.engine.in_flight() > 0 || client.engine.rounds() > 0 {
                left.push("commands or rounds".into());
            }
            if !kernel.table.ids.lock().is_empty() {
                left.push("ids".into());
            }
            if kernel.schedule.lock().next() < Instant::NEVER {
                left.push("the schedule".into());
            }
            if !left.is_empty() {
                return Err(self.violation("P10", format!("c{n} has {left:?}")));
            }
        }
        let bound = (2_000 + self.report.acquired * 200 + self.report.events / 4)
            * self.plan.servers as u64;
        if self.report.commands > bound {
            let text = format!("{} commands", self.report.commands);
            return Err(self.violation("P10", text));
        }
        Ok(())
    }
}
