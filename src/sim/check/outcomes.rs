//! Whether calls return in time, and say "taken" only with a proof.

use std::time::Duration;

use super::each_entry;
use crate::clock::Instant;
use crate::kernel::call::Call;
use crate::kernel::fault;
use crate::kernel::request::{RequestState, Serves};
use crate::kernel::table::entry_name;
use crate::kernel::waiter::{Failure, Outcome, Wait, Waiter};
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::place::Refreshed;
use crate::protocol::primitive::Primitive;
use crate::sim::plan::Actor;
use crate::sim::server::{Time, client_of};
use crate::sim::world::{Checked, World};

/// A refusal that a client has received.
#[derive(Clone, Debug)]
pub(in crate::sim) struct Refusal {
    name: Name,
    sent: Instant,
    arrived: Instant,
    until: Option<Instant>,
}

impl Refusal {
    /// Returns whether it is less than a second old at the deadline.
    fn is_fresh(&self, deadline: Instant) -> bool {
        self.arrived.after(Duration::from_secs(1)) >= deadline
    }
}

impl World {
    pub(in crate::sim) fn note_refusal(
        &mut self,
        client: usize,
        (names, id): (&[Name], Option<&str>),
        end: &Result<Answer, fault::Fault>,
        sent: Time,
    ) {
        let by = match end {
            Ok(Answer::Refused(by)) => by,
            Ok(Answer::Places(found, by))
                if found.iter().any(|it| matches!(it, Refreshed::Waiting(_))) =>
            {
                by
            }
            _ => return,
        };
        let holder = String::from_utf8_lossy(&by.holder).into_owned();
        let is_its_own = id == Some(&*holder);
        let is_own = client_of(&holder) == Some(client);
        if is_its_own || is_own && self.is_abandoned(client, &holder) {
            return;
        }
        let clock = &self.clocks[client];
        let sent = clock.at(sent);
        let refusal = Refusal {
            name: names[by.name].clone(),
            sent,
            arrived: clock.at(self.now),
            until: by.remaining.map(|left| sent.after(left)),
        };
        let refusals = &mut self.clients[client].refusals;
        refusals.push(refusal);
        if refusals.len() > 400 {
            refusals.drain(..200);
        }
    }

    /// A lease of the client has ended by its release: until now the lock was taken.
    pub(in crate::sim) fn note_own_end(&mut self, client: usize, lock: &dyn Primitive) {
        let of_set = entry_name(lock).into_owned();
        for name in lock.keys().names.iter().chain([&of_set]) {
            self.note_own_name(client, name);
        }
    }

    /// The client itself had this name until now.
    pub(super) fn note_own_name(&mut self, client: usize, name: &Name) {
        let now = self.clocks[client].at(self.now);
        let refusal = Refusal {
            name: name.clone(),
            sent: now,
            arrived: now,
            until: Some(now),
        };
        self.clients[client].refusals.push(refusal);
    }

    /// Returns whether nobody owns what a command of the client with this id has taken.
    fn is_abandoned(&self, client: usize, id: &str) -> bool {
        let kernel = &self.clients[client].kernel;
        let mut found = kernel.pending.lock().has(id.as_bytes());
        each_entry(kernel, &self.names, |entry| {
            found |= entry.requests.walk().any(|request| {
                request.serves == Serves::Nobody
                    && !matches!(request.state, RequestState::Won(_))
                    && request.id().is_some_and(|it| it.as_str() == id)
            });
        });
        found
    }

    /// Returns whether a call of the client waits for such a name, which it was refused.
    fn is_waited_for(&self, client: usize, is_its: impl Fn(&Name) -> bool) -> bool {
        let mut found = false;
        each_entry(&self.clients[client].kernel, &self.names, |entry| {
            let mut waiting = entry.waiters.walk();
            let waits = |it: &Waiter| it.wait != Wait::Once && it.cell.has_waited();
            found |= is_its(&entry.name) && waiting.any(waits);
        });
        found
    }

    /// P8: a call ends in time, and says "taken" only with a proof.
    pub(in crate::sim) fn check_outcome(
        &mut self,
        client: usize,
        thread: usize,
        (call, names): (&Call, &[Name]),
        outcome: &Outcome,
    ) -> Checked {
        let deadline = call.wants.deadline;
        let clock = &self.clocks[client];
        let stopped = self.stopped_until(client, Actor::Caller(thread));
        // After a suspend, the engine wakes the call.
        let engine = match self.clients[client].resumed {
            0 => 0,
            _ => self.stopped_until(client, Actor::Engine),
        };
        let stopped = clock.at(stopped.max(self.sleeps_until(client)).max(engine));
        let now = clock.at(self.now);
        let latest = deadline.max(stopped).after(Duration::from_millis(40));
        if now > latest {
            let text = format!("c{client}.{thread} ended {:?} late", deadline.until(now));
            return Err(self.violation("P8", text));
        }
        if let Outcome::Failed(Failure::Unreachable { .. }) = outcome
            && !self.plan.has_faults()
        {
            let text = format!("c{client}.{thread} fails although the server answers");
            return Err(self.violation("P8", text));
        }
        if let Outcome::Lease(lease, _) = outcome
            && lease.lock.has_local_queue() != call.wants.lock.has_local_queue()
        {
            let text = format!("c{client}.{thread} gets the lease of another kind");
            return Err(self.violation("P8", text));
        }
        let Outcome::Refused(_) = outcome else {
            return Ok(());
        };
        let is_limited = match &call.wants.wait {
            Wait::Queue(crate::wait_policy::WaitPolicy::Backoff(backoff)) => {
                backoff.limit().is_some()
            }
            _ => false,
        };
        let name = &*entry_name(&*call.wants.lock);
        let mut holds = false;
        each_entry(&self.clients[client].kernel, &self.names, |entry| {
            let is_its = |it: &Name| it == name || names.contains(it);
            let mut held = entry
                .held
                .iter()
                .flat_map(|held| held.lease.lock.names.iter());
            holds |= held.any(is_its);
        });
        let mut ended = self.ended_unread(client);
        holds |= ended.any(|lease| {
            let mut its = lease.lock.keys().names.iter();
            its.any(|it| it == name || names.contains(it))
        });
        let is_once = call.wants.wait == Wait::Once;
        holds |= is_once && self.is_waited_for(client, |it| it == name || names.contains(it));
        let is_proof = |refusal: &Refusal| {
            let is_fresh =
                refusal.until.is_none_or(|until| until >= deadline) || refusal.is_fresh(deadline);
            let is_its = refusal.name == *name || names.contains(&refusal.name);
            is_its && refusal.sent >= call.start && (is_fresh || is_once)
        };
        let has_proof = self.clients[client].refusals.iter().any(is_proof);
        if !holds && !has_proof && !is_limited {
            let text = format!("c{client}.{thread} says that {name} is taken without a proof");
            return Err(self.violation("P8", text));
        }
        Ok(())
    }
}
