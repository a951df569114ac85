//! The properties that hold after every event, and at the end of a run.

pub(super) mod outcomes;
pub(super) mod tables;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::plan::{Actor, Family, Kind};
use super::server::{Data, MS, Time, client_of, key_of};
use super::world::{Checked, World};
use crate::clock::Instant;
use crate::kernel::Kernel;
use crate::kernel::bounds::Bound;
use crate::kernel::call::Call;
use crate::kernel::effects::{Effects, Told};
use crate::kernel::entry::LockEntry;
use crate::kernel::held::HeldLease;
use crate::kernel::lease::LeaseStatus;
use crate::kernel::request::RequestState;
use crate::kernel::steps::{take_counts, uncounted};
use crate::kernel::waiter::Outcome;
use crate::lost::Lost;
use crate::name::Name;
use crate::protocol::primitive::Primitive;

/// How many calls and requests a kernel call may look at, for each that it is about.
const STEPS_FOR_EACH: usize = 16;

/// A lease that a client has had.
pub(super) struct Registered {
    client: usize,
    key: Vec<u8>,
    pub(super) lease: Arc<HeldLease>,
}

impl Registered {
    /// Returns whether a holder had the lease until it released it, or its time was over.
    fn was_held_to_its_end(&self) -> bool {
        let is_over = match self.lease.status(Instant::NEVER, &mut Effects::default()) {
            LeaseStatus::Lost(lost) => [Lost::Expired, Lost::MaxHold].contains(&lost),
            LeaseStatus::Released => true,
            LeaseStatus::Held(_) | LeaseStatus::InDoubt => false,
        };
        is_over && self.lease.since().is_some()
    }
}

/// Returns the names that guards of a client hold, or that it is releasing.
pub(super) fn held_names(kernel: &Kernel, names: &BTreeSet<Name>) -> BTreeSet<Name> {
    let mut held = BTreeSet::new();
    each_entry(kernel, names, |entry| {
        let leases = entry.held.iter().filter(|_| entry.lingers_until.is_none());
        held.extend(leases.flat_map(|it| it.lease.lock.names.iter().cloned()));
    });
    held
}

/// Runs `act` on each entry of a kernel.
pub(super) fn each_entry(kernel: &Kernel, names: &BTreeSet<Name>, mut act: impl FnMut(&LockEntry)) {
    for name in names {
        if let Some(entry) = kernel.table.shard(name).lock().get(name) {
            uncounted(|| act(entry));
        }
    }
}

/// Returns whether a lease, a request or a call of a client has this id. The calls are `parked`.
pub(super) fn has_owner<'a>(
    kernel: &Kernel,
    names: &BTreeSet<Name>,
    mut parked: impl Iterator<Item = &'a Call>,
    id: &str,
) -> bool {
    // The entry has given away a lease that a round will release.
    let mut found = kernel.is_closed() && kernel.schedule.lock().has_lease(id);
    each_entry(kernel, names, |entry| {
        found |= entry.held.iter().any(|held| held.lease.id.as_str() == id);
        found |= entry.requests.walk().any(|request| {
            request.id().is_some_and(|it| it.as_str() == id)
                || matches!(&request.state, RequestState::Won(Some(it)) if it.id.as_str() == id)
        });
    });
    let is_in_cell = |call: &Call| {
        let outcome = call.cell().map(|cell| cell.outcome.lock());
        let lease = outcome.as_deref().and_then(|it| match it {
            Some(Outcome::Lease(lease, _)) => Some(lease),
            _ => None,
        });
        lease.is_some_and(|lease| lease.id.as_str() == id)
    };
    found || parked.any(is_in_cell)
}

impl World {
    /// Looks at a kernel call's effects before they are carried out.
    pub(super) fn after_kernel(&mut self, client: usize, fx: &mut Effects) -> Checked {
        self.check_steps()?;
        for (lease, token) in std::mem::take(&mut fx.began) {
            let key = key_of(&*lease.lock);
            let is_exclusive = !lease.lock.is_shared() && lease.lock.permits().is_none();
            self.say(|| format!("c{client} holds {:?} token {token}", lease.id));
            if self.clients[client].kernel.is_closed() {
                let text = format!("c{client} is closed, and gives {:?}", lease.id);
                return Err(self.violation("P10", text));
            }
            // A lease that is passed on may have ended while it lingered.
            let is_known = self.leases.iter().any(|it| Arc::ptr_eq(&it.lease, &lease));
            if is_known && !lease.is_held_at(self.clocks[client].at(self.now)) {
                let text = format!("c{client} gets {:?}, which is over", lease.id);
                return Err(self.violation("P1", text));
            }
            // P12.
            let handed = token.value() - lease.run.first().value();
            let most = if lease.run.is_granted_in_queue() {
                self.plan.handoffs.div_ceil(4)
            } else {
                self.plan.handoffs
            };
            if handed > u64::from(most) {
                let text = format!("{:?} is handed off {handed} times", lease.id);
                return Err(self.violation("P12", text));
            }
            if lease.lock.keys().names.len() > 1 {
                self.check_set(client, &lease)?;
                continue;
            }
            let newest = self.newest.get(&key).copied().unwrap_or(0);
            let is_over = self.lost_data || self.may_be_over(client, &lease);
            if is_exclusive && token.value() <= newest && !is_over {
                let text = format!("token {token} is not above {newest}: {:?}", lease.id);
                return Err(self.violation("P2", text));
            }
            if !is_exclusive && lease.lock.permits().is_none() && token.value() < newest {
                let text = format!("a reader's token {token} is below {newest}");
                if !is_over {
                    return Err(self.violation("P2", text));
                }
            }
            if is_exclusive {
                self.newest.insert(key.clone(), token.value().max(newest));
            }
            if !is_known {
                self.leases.push(Registered { client, key, lease });
            }
        }
        for told in &fx.lost {
            let text = format!("c{client} is told {told:?}");
            self.say(|| text.clone());
            if self.still_has(told) {
                return Err(self.violation("P9", format!("{text}, which still has the lock")));
            }
        }
        let held = held_names(&self.clients[client].kernel, &self.names);
        let before = std::mem::replace(&mut self.clients[client].held, held.clone());
        for name in before.difference(&held) {
            self.note_own_name(client, name);
        }
        self.check_table(client)
    }

    /// P13: a kernel call looks at few of the calls that wait, unless it is about many of them.
    fn check_steps(&self) -> Checked {
        let [looked, about] = take_counts();
        let threads = self.plan.clients * self.plan.threads;
        let most = STEPS_FOR_EACH * (about + 1 + threads.ilog2() as usize);
        if looked <= most {
            Ok(())
        } else {
            let text = format!("{looked} looks for {about} of {threads} calls, not {most}");
            Err(self.violation("P13", text))
        }
    }

    /// A set has all its names: none of their tokens is below an earlier one.
    fn check_set(&mut self, client: usize, lease: &Arc<HeldLease>) -> Checked {
        let names = lease.lock.keys().names.iter();
        let keys: Vec<Vec<u8>> = names.map(|name| name.as_bytes().to_vec()).collect();
        if lease.tokens.len() != keys.len() {
            return Err(self.violation("P2", format!("tokens {:?}", lease.tokens)));
        }
        let is_over = self.lost_data || self.may_be_over(client, lease);
        for (key, token) in keys.into_iter().zip(lease.tokens.iter()) {
            let newest = self.newest.entry(key.clone()).or_default();
            if token.value() < *newest && !is_over {
                let text = format!("token {token} is below {newest}: {:?}", lease.id);
                return Err(self.violation("P2", text));
            }
            *newest = token.value().max(*newest);
            let lease = Arc::clone(lease);
            self.leases.push(Registered { client, key, lease });
        }
        Ok(())
    }

    /// Returns whether the server has a lease of which a reply is said to have told the loss.
    fn still_has(&self, told: &Told) -> bool {
        let id = told.lease.id.as_str();
        let now = self.server_now();
        let has_it = |data: &Data| {
            let mut data = data.clone();
            data.settle(now);
            let is_its = data.lock.is_some_and(|(holder, _)| holder == id);
            is_its || data.readers.contains_key(id) || data.permits.contains_key(id)
        };
        matches!(told.lost, Lost::Deleted | Lost::Taken)
            && told.lease.lock.keys().names.len() == 1
            && !self.lost_data
            && !self.over.contains(id)
            && self.server.data.values().any(has_it)
    }

    /// P1, P3, P7, P9.
    pub(super) fn check(&mut self) -> Checked {
        let ended = self.leases.extract_if(.., |it| !it.lease.is_open());
        let ended: Vec<Registered> = ended.collect();
        for it in ended.iter().filter(|it| it.was_held_to_its_end()) {
            self.note_own_end(it.client, &*it.lease.lock);
        }
        self.leases.retain(|it| self.clients[it.client].is_alive);
        self.check_losses()?;
        if self.plan.linger > 0 {
            self.check_lingering()?;
        }
        if !self.lost_data {
            self.check_exclusion()?;
        }
        let keys: Vec<Vec<u8>> = self.server.data.keys().cloned().collect();
        for key in keys {
            self.check_orphans(&key)?;
            self.check_idle(&key)?;
        }
        Ok(())
    }

    fn check_losses(&self) -> Checked {
        for it in &self.leases {
            let overdue = it.lease.overdue(self.clocks[it.client].at(self.now));
            // A thread that is stopped may have promised to wake the engine.
            let actors = (0..self.plan.threads).map(Actor::Caller);
            let actors = actors.chain([Actor::Engine, Actor::Sub]);
            let stopped = actors
                .map(|actor| self.stopped_until(it.client, actor))
                .max();
            let stopped = stopped.unwrap_or(0).max(self.sleeps_until(it.client));
            if overdue.as_millis() > 20 && stopped + 20 * MS < self.now {
                let text = format!("c{}: the loss of {:?} was not told", it.client, it.lease.id);
                return Err(self.violation("P9", text));
            }
        }
        Ok(())
    }

    /// Returns whether what the lease had may have ended on the server, or may be over because its
    /// machine has stood still: no guard says that it is held.
    fn may_be_over(&self, client: usize, lease: &HeldLease) -> bool {
        let (clock, kernel) = (&self.clocks[client], &self.clients[client].kernel);
        let (now, wall) = (clock.at(self.now), clock.wall_at_start(self.now));
        self.over.contains(lease.id.as_str()) || kernel.is_in_doubt(lease, wall, now)
    }

    /// P3: no lease lingers for longer than its time.
    fn check_lingering(&self) -> Checked {
        for (n, client) in self.clients.iter().enumerate() {
            let actors = (0..self.plan.threads).map(Actor::Caller);
            let actors = actors.chain([Actor::Engine]);
            let stopped = actors.map(|actor| self.stopped_until(n, actor)).max();
            let stopped = stopped.unwrap_or(0).max(self.sleeps_until(n));
            if !client.is_alive || stopped + 20 * MS >= self.now {
                continue;
            }
            let latest = self.clocks[n].at(self.now - 20 * MS);
            let mut late = None;
            each_entry(&client.kernel, &self.names, |entry| {
                if entry.lingers_until.is_some_and(|until| until < latest) {
                    late = Some(entry.name.clone());
                }
            });
            if let Some(name) = late {
                let text = format!("a lease of c{n} for {name} lingers for too long");
                return Err(self.violation("P3", text));
            }
        }
        Ok(())
    }

    /// Returns when the sleeps of a client that was suspended end at the latest.
    fn sleeps_until(&self, client: usize) -> Time {
        match self.clients[client].resumed {
            0 => 0,
            resumed => resumed + 1_000 * MS,
        }
    }

    fn check_exclusion(&self) -> Checked {
        let is_held = |it: &&Registered| {
            let now = self.clocks[it.client].at(self.now);
            it.lease.is_held_at(now) && !self.may_be_over(it.client, &it.lease)
        };
        let held: Vec<&Registered> = self.leases.iter().filter(is_held).collect();
        for it in &held {
            let id = it.lease.id.as_str();
            let data = &self.server.data[&it.key];
            let lasts = |end: Option<Time>| end.is_some_and(|end| end > self.server_now());
            let lock = data.lock.as_ref().filter(|(it, _)| it == id);
            let is_there = lasts(lock.map(|it| it.1))
                || lasts(data.readers.get(id).copied())
                || lasts(data.permits.get(id).map(|it| it.1));
            if !is_there {
                let text = format!(
                    "c{} believes to hold {:?}, the server has {:?} {:?}",
                    it.client, it.lease.id, data.lock, data.readers
                );
                return Err(self.violation("P1", text));
            }
            // A set's lease has the names that the set kept, under the same id.
            let is_other =
                |other: &&&Registered| other.key == it.key && other.lease.id != it.lease.id;
            let others = 1 + held.iter().filter(is_other).count();
            let is_shared = it.lease.renewed_as().is_shared() || it.lease.lock.permits().is_some();
            if !is_shared && others > 1 {
                return Err(self.violation("P1", format!("two holders: {:?}", it.lease.id)));
            }
        }
        Ok(())
    }

    /// P7: each value in Redis belongs to somebody who knows it.
    fn check_orphans(&self, key: &[u8]) -> Checked {
        if self.lost_data {
            return Ok(());
        }
        let (data, now) = (&self.server.data[key], self.server_now());
        let lasting = |(id, end): (&String, &Time)| (*end > now).then(|| id.clone());
        let lock = data.lock.as_ref().and_then(|(id, end)| lasting((id, end)));
        let readers = data.readers.iter().filter_map(lasting);
        let permits = data.permits.iter();
        let permits = permits.filter_map(|(id, (_, end))| lasting((id, end)));
        let ids = lock.into_iter().chain(readers).chain(permits);
        for id in ids.chain(living_places(data, now)) {
            let Some(client) = client_of(&id).filter(|it| self.clients[*it].is_alive) else {
                continue;
            };
            let is_excused = self.ran_twice.contains(&id) || self.outlasts.contains(&id);
            let is_excused = is_excused || self.has_forgotten(client, &id);
            if !is_excused && !self.is_known(client, &id) {
                return Err(self.violation("P7", format!("nobody of c{client} knows {id}")));
            }
        }
        Ok(())
    }

    /// Returns whether a client has forgotten an id because it knew too many: it may be left for
    /// one ttl.
    fn has_forgotten(&self, client: usize, id: &str) -> bool {
        let is_low = self.plan.low == Some(Bound::KeySeen);
        is_low && (self.clients[client].kernel.pending.lock()).has_forgotten(id)
    }

    fn is_known(&self, client: usize, id: &str) -> bool {
        let kernel = &self.clients[client].kernel;
        kernel.pending.lock().has(id.as_bytes())
            || self.clients[client].knows(id)
            || has_owner(kernel, &self.names, self.parked(client), id)
            || self.has_guard(client, id)
            || self.is_under_way(client, id)
    }

    /// P3: a free lock is not idle while a call waits for it.
    fn check_idle(&mut self, key: &[u8]) -> Checked {
        let data = &self.server.data[key];
        let is_free = if data.permits.is_empty() {
            data.end().is_none_or(|end| end <= self.server_now())
        } else {
            false
        };
        let is_unknown = data
            .lock
            .as_ref()
            .is_some_and(|(id, _)| self.is_not_taken(id));
        let rejects_until = self.rejects.iter().map(|(_, until)| *until).max();
        let works_from = self.stalled_until.max(self.errors_until);
        let works_from = works_from.max(self.moves_until);
        let waits = (is_free || is_unknown)
            && self.now >= works_from.max(rejects_until.unwrap_or(0))
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

    /// Returns whether a lock was granted to a client that lives, and that has not taken it.
    fn is_not_taken(&self, id: &str) -> bool {
        let Some(client) = client_of(id).filter(|it| self.clients[*it].is_alive) else {
            return false;
        };
        // Through such a link, a client that gives a lease up does so late.
        if self.ran_twice.contains(id) || self.engine_is_slower_than(client, self.plan.ttl / 4) {
            return false;
        }
        // Each place of a client that stands still may cost the others three seconds.
        let of = |actor| self.stopped_until(client, actor) > self.now;
        if of(Actor::Engine) || of(Actor::Sub) {
            return false;
        }
        let mut is_held = false;
        each_entry(&self.clients[client].kernel, &self.names, |entry| {
            is_held |= entry.held.iter().any(|held| held.lease.id.as_str() == id);
        });
        !is_held && !self.has_guard(client, id)
    }

    /// Returns whether a client has a lease of the lock, as far as it knows.
    fn has_lease(&self, client: usize, key: &[u8]) -> bool {
        let now = self.clocks[client].at(self.now);
        let mut has = false;
        each_entry(&self.clients[client].kernel, &self.names, |entry| {
            has |= entry
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
        // Through such a link no lease can be had in time.
        if self.engine_is_slower_than(client, self.plan.ttl / 4) {
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

    /// P5: without faults, places are granted in the order in which the server ran their enters.
    fn check_order(&self) -> Checked {
        let kinds = &self.plan.kinds;
        let is_fair = kinds
            .iter()
            .all(|kind| [Kind::Fair, Kind::Mutex].contains(kind));
        if self.plan.has_faults() || !is_fair || self.plan.names > 1 || self.plan.backoff > 0 {
            return Ok(());
        }
        let mut entered = self.server.entered.iter();
        for id in &self.server.granted {
            // Each grant is behind the one before.
            if !entered.any(|it| it == id) {
                return Err(self.violation("P5", format!("{id} is granted out of order")));
            }
        }
        Ok(())
    }

    /// P4, P10: nothing is left.
    pub(super) fn check_end(&mut self) -> Checked {
        self.check_order()?;
        for (key, data) in &self.server.data {
            let mut data = data.clone();
            data.settle(self.server_now());
            let keys = data.lock.as_ref().map(|it| it.0.clone());
            let others = data.readers.keys().chain(data.permits.keys()).cloned();
            for id in keys
                .into_iter()
                .chain(others)
                .chain(living_places(&data, self.server_now()))
            {
                let client = client_of(&id);
                // The network has run its command once more, and told of one run only.
                let is_excused = self.ran_twice.contains(&id) || self.outlasts.contains(&id);
                if !is_excused && client.is_some_and(|it| self.clients[it].is_alive) {
                    let key = String::from_utf8_lossy(key);
                    return Err(self.violation("P4", format!("{key} is left with {id}")));
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
                left.push(format!(
                    "pending {:?}",
                    kernel.pending.lock().ids().collect::<Vec<_>>()
                ));
            }
            if client.in_flight() > 0 || !kernel.table.ids.lock().is_empty() {
                left.push("commands or ids".into());
            }
            if kernel.schedule.lock().next() < Instant::NEVER {
                left.push("the schedule".into());
            }
            if !left.is_empty() {
                return Err(self.violation("P10", format!("c{n} has {left:?}")));
            }
        }
        let bound = 2_000 + self.report.acquired * 200 + self.report.events / 4;
        if self.report.commands > bound {
            let text = format!("{} commands", self.report.commands);
            return Err(self.violation("P10", text));
        }
        Ok(())
    }
}

fn living_places(data: &Data, now: Time) -> Vec<String> {
    let places = data.places.iter();
    let living = places.filter(|(_, end)| **end > now);
    living.map(|(id, _)| id.clone()).collect()
}
