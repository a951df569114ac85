//! The properties that hold after every event, and at the end of a run.

mod idle;
mod keys;
pub(super) mod outcomes;
pub(super) mod sets;
mod tables;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::plan::{Actor, Family};
use super::server::{MS, Server, Time, key_of};
use super::world::{COMMAND_TIMEOUT, Checked, World};
use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::call::Call;
use crate::kernel::effects::{Effects, Told};
use crate::kernel::entry::LockEntry;
use crate::kernel::held::HeldLease;
use crate::kernel::request::RequestState;
use crate::kernel::steps::{take_counts, uncounted};
use crate::kernel::waiter::Outcome;
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::name::Name;
use crate::protocol::primitive::Primitive;
use crate::token::FencingToken;

/// How many calls and requests a kernel call may look at, for each that it is about.
const STEPS_FOR_EACH: usize = 16;

/// A lease that a client has had.
pub(super) struct Registered {
    client: usize,
    key: Vec<u8>,
    pub(super) lease: Arc<HeldLease>,
    /// When it was granted.
    since: Time,
    /// Since when the set is over that it is a part of.
    over_since: Option<Time>,
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
        let leases = entry
            .leases
            .held
            .iter()
            .filter(|_| entry.leases.lingers_until.is_none());
        held.extend(leases.flat_map(|it| it.lease.lock.names.iter().cloned()));
    });
    held
}

/// Runs `act` on each entry of a kernel.
pub(super) fn each_entry(kernel: &Kernel, names: &BTreeSet<Name>, mut act: impl FnMut(&LockEntry)) {
    for name in names {
        if let Some(entry) = kernel.shard(name).lock().get(name) {
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
    let mut found = kernel.is_closed() && kernel.shared.schedule.lock().has_lease(id);
    each_entry(kernel, names, |entry| {
        found |= entry
            .leases
            .held
            .iter()
            .any(|held| held.lease.id.as_str() == id);
        found |= entry.line.requests.walk().any(|request| {
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
            let lease = lease.downcast::<HeldLease>().expect("a lease begins");
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
            self.check_token(client, &lease, token)?;
            if !is_known {
                self.leases.push(Registered {
                    client,
                    key: key_of(&*lease.lock),
                    lease,
                    since: self.now,
                    over_since: None,
                });
            }
        }
        for told in &fx.lost {
            let text = format!("c{client} reports {told:?}");
            self.say(|| text.clone());
            if self.is_lost_by_restarts(told) {
                return Err(self.violation("P14", text));
            }
            if told.whole.is_some() {
                self.check_told(client, told)?;
            } else if self.still_has(told) {
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
        // A call for a set is a call for each name.
        let calls = if self.plan.has_parts() {
            self.plan.names as usize
        } else {
            1
        };
        let most = STEPS_FOR_EACH * (about + calls * (1 + threads.ilog2() as usize));
        if looked <= most {
            Ok(())
        } else {
            let text = format!("{looked} looks for {about} of {threads} calls, not {most}");
            Err(self.violation("P13", text))
        }
    }

    /// P2: the token of a new holder is above the earlier ones.
    fn check_token(
        &mut self,
        client: usize,
        lease: &Arc<HeldLease>,
        token: FencingToken,
    ) -> Checked {
        let key = key_of(&*lease.lock);
        let has_permits = lease.lock.permits().is_some();
        let is_exclusive = !lease.lock.is_shared() && !has_permits;
        let newest = self.newest.get(&key).copied().unwrap_or(0);
        let is_over = self.lost_tokens || self.may_be_over(client, lease);
        if is_exclusive && token.value() <= newest && !is_over {
            let text = format!("token {token} is not above {newest}: {:?}", lease.id);
            return Err(self.violation("P2", text));
        }
        if !is_exclusive && !has_permits && token.value() < newest && !is_over {
            let text = format!("a reader's token {token} is below {newest}");
            return Err(self.violation("P2", text));
        }
        if is_exclusive {
            self.newest.insert(key, token.value().max(newest));
        }
        Ok(())
    }

    fn is_renewed(&self, id: &HolderId) -> bool {
        let lease = self.leases.iter().find(|it| it.lease.id == *id);
        lease.is_some_and(|it| it.lease.is_renewed())
    }

    /// P14: no lease that was whole is lost because servers restart one after the other.
    fn is_lost_by_restarts(&self, told: &Told) -> bool {
        self.plan.family == Family::Restarts
            && matches!(told.lost, Lost::Deleted | Lost::Taken)
            && self.is_renewed(&told.id)
            && !self.over.contains(told.id.as_str())
    }

    /// P15: no lease outlives its release by force for longer than until its next renewal.
    fn check_forced(&self) -> Checked {
        let within = self.plan.ttl / 2 + 3 * COMMAND_TIMEOUT;
        for it in &self.leases {
            let Some((servers, last)) = self.forced.get(it.lease.id.as_str()) else {
                continue;
            };
            let now = self.clocks[it.client].at(self.now);
            if servers.len() == self.plan.servers
                && self.now > last + within
                && it.lease.is_renewed()
                && it.lease.is_held_at(now)
            {
                let text = format!("{:?} outlives its release by force", it.lease.id);
                return Err(self.violation("P15", text));
            }
        }
        Ok(())
    }

    /// Returns whether the servers have a lease of which a reply is said to have told the loss.
    fn still_has(&self, told: &Told) -> bool {
        let id = told.id.as_str();
        let has_it = |server: &&Server| {
            let now = server.now(self.now);
            server.data.values().any(|data| data.is_held_by(id, now))
        };
        matches!(told.lost, Lost::Deleted | Lost::Taken)
            && !self.lost_leases
            && !self.over.contains(id)
            && self.servers.iter().filter(has_it).count() >= self.plan.needed()
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
        self.check_forced()?;
        if self.plan.has_parts() {
            self.check_sets()?;
        }
        if self.plan.linger > 0 {
            self.check_lingering()?;
        }
        if !self.lost_leases {
            self.check_exclusion()?;
        }
        let mut keys = std::mem::take(&mut self.keys);
        for key in self.servers.iter().flat_map(|it| it.data.keys()) {
            if !keys.contains(key) {
                keys.push(key.clone());
            }
        }
        for key in &keys {
            self.check_orphans(key)?;
            self.check_idle(key)?;
        }
        self.keys = keys;
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
                if entry
                    .leases
                    .lingers_until
                    .is_some_and(|until| until < latest)
                {
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

    /// Returns when the sleeps of a client that was suspended end at the latest: they take a second
    /// of its clock.
    fn sleeps_until(&self, client: usize) -> Time {
        let clock = &self.clocks[client];
        match self.clients[client].resumed {
            0 => 0,
            resumed => clock.time_of(clock.at(resumed).after(Duration::from_secs(1))),
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
            let has_it = |server: &&Server| {
                let data = server.data.get(&it.key);
                let has_key = data.is_some_and(|it| it.is_held_by(id, server.now(self.now)));
                // Emptied, and away until all leases have ended.
                has_key || server.is_emptied
            };
            if self.servers.iter().filter(has_it).count() < self.plan.needed() {
                let data = self.servers.iter().map(|server| server.data.get(&it.key));
                let holders = data.map(|data| data.map(|it| (&it.lock, &it.readers)));
                let text = format!(
                    "c{} believes to hold {:?}, the servers have {:?}",
                    it.client,
                    it.lease.id,
                    holders.collect::<Vec<_>>()
                );
                return Err(self.violation("P1", text));
            }
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
}
