//! P8: whether calls return in time, and say "taken" only with a proof.

use std::collections::BTreeSet;
use std::time::Duration;

use super::each_entry;
use crate::clock::Instant;
use crate::kernel::call::Call;
use crate::kernel::fault;
use crate::kernel::request::{RequestState, Serves};
use crate::kernel::waiter::{Outcome, Wait, Waiter};
use crate::majority::Member;
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::place::{Refreshed, read_next};
use crate::protocol::primitive::Primitive;
use crate::sim::plan::Actor;
use crate::sim::server::{Time, client_of};
use crate::sim::world::{COMMAND_TIMEOUT, Checked, World};

/// A fact about a name that a client knows: from the reply to an acquiring command, or from the end
/// of its own lease.
#[derive(Clone, Debug)]
pub(in crate::sim) struct Learnt {
    /// The server that has replied; `None` for an own lease.
    server: Option<Member>,
    name: Name,
    sent: Instant,
    /// When the reply arrived, or the last release message since.
    arrived: Instant,
    /// Until when the lock was taken, as far as the client knows; `None` if it was not refused.
    taken_until: Option<Instant>,
}

impl Learnt {
    /// Returns whether it is younger than this at the deadline.
    fn is_within(&self, time: Duration, deadline: Instant) -> bool {
        self.arrived.after(time) >= deadline
    }
}

/// A call that has ended.
pub(in crate::sim) struct Ended {
    /// The names of what it asked for.
    pub(in crate::sim) names: Vec<Name>,
    pub(in crate::sim) wait: Wait,
    pub(in crate::sim) start: Instant,
    pub(in crate::sim) deadline: Instant,
    pub(in crate::sim) is_refused: bool,
    /// It failed because the servers were silent.
    pub(in crate::sim) is_unreachable: bool,
}

/// The most that a client remembers: then it forgets the older half.
const REMEMBERED: usize = 1_000;

impl World {
    /// A reply to an acquiring command, or to a refresh, has arrived. `id`: that of the command.
    pub(in crate::sim) fn note_reply(
        &mut self,
        client: usize,
        server: Member,
        (names, id): (&[Name], Option<&str>),
        end: &Result<Answer, fault::Fault>,
        sent: Time,
    ) {
        let by = match end {
            Ok(Answer::Refused(by)) => Some(by),
            Ok(Answer::Places(found, by))
                if found.iter().any(|it| matches!(it, Refreshed::Waiting(_))) =>
            {
                Some(by)
            }
            // A majority of a quorum must have replied.
            Ok(_) if self.plan.is_quorum() => None,
            _ => return,
        };
        let clock = &self.clocks[client];
        let (sent, arrived) = (clock.at(sent), clock.at(self.now));
        let mut learnt = Learnt {
            server: Some(server),
            name: names[0].clone(),
            sent,
            arrived,
            taken_until: None,
        };
        if let Some(by) = by {
            let holder = String::from_utf8_lossy(&by.holder).into_owned();
            let is_its_own = id == Some(&*holder);
            let is_own = client_of(&holder) == Some(client);
            if is_its_own || is_own && self.is_abandoned(client, server, &holder) {
                return;
            }
            learnt.name = names[by.name].clone();
            let until = by.remaining.map(|left| sent.after(left));
            learnt.taken_until = Some(until.unwrap_or(Instant::NEVER));
        }
        let all = &mut self.clients[client].learnt;
        all.push(learnt);
        if all.len() > REMEMBERED {
            all.drain(..REMEMBERED / 2);
        }
    }

    /// A lease of the client has ended by its release: until now the lock was taken.
    pub(in crate::sim) fn note_own_end(&mut self, client: usize, lock: &dyn Primitive) {
        let of_set = lock.keys().key(0).name.clone();
        for name in lock.keys().names.iter().chain([&of_set]) {
            self.note_own_name(client, name);
        }
    }

    /// The client itself had this name until now.
    pub(super) fn note_own_name(&mut self, client: usize, name: &Name) {
        let now = self.clocks[client].at(self.now);
        self.clients[client].learnt.push(Learnt {
            server: None,
            name: name.clone(),
            sent: now,
            arrived: now,
            taken_until: Some(now),
        });
    }

    /// The release of a name was announced to a client, by a majority of the servers: what they
    /// refused was taken until now, unless it was something that nobody here owns.
    pub(in crate::sim) fn note_announced(&mut self, client: usize, name: &Name, payload: &[u8]) {
        // A plain release names the place that asks next, and was that of a holder.
        let is_plain = read_next(payload).is_some();
        let id = String::from_utf8_lossy(payload);
        let is_of_nobody = |server| self.is_abandoned(client, server, &id);
        if !is_plain && (0..self.plan.servers).any(is_of_nobody) {
            return;
        }
        let now = self.clocks[client].at(self.now);
        let learnt = self.clients[client].learnt.iter_mut();
        let refusals = learnt.filter(|it| it.server.is_some() && it.taken_until.is_some());
        for refusal in refusals.filter(|it| it.name == *name) {
            refusal.arrived = now;
        }
    }

    /// Returns whether nobody owns what a command of the client with this id has taken.
    fn is_abandoned(&self, client: usize, server: Member, id: &str) -> bool {
        let kernel = &self.clients[client].kernel;
        let quorum = self.clients[client].quorum();
        let mut found = kernel.shared.pending.lock().has(id.as_bytes())
            || quorum.is_some_and(|quorum| quorum.has_left(server, id));
        each_entry(kernel, &self.names, |entry| {
            found |= entry.line.requests.walk().any(|request| {
                request.serves == Serves::Nobody
                    && !matches!(request.state, RequestState::Won(_))
                    && request.id().is_some_and(|it| it.as_str() == id)
            });
        });
        found
    }

    /// Returns whether a call of the client waits for such a name, which it was refused.
    fn is_waited_for(&self, client: usize, is_its: impl Fn(&Name) -> bool) -> bool {
        let learnt = &self.clients[client].learnt;
        let mut refusals = learnt.iter().filter(|it| it.taken_until.is_some());
        if !refusals.any(|it| is_its(&it.name)) {
            return false;
        }
        let mut found = false;
        each_entry(&self.clients[client].kernel, &self.names, |entry| {
            let mut waiting = entry.line.waiters.walk();
            let waits = |it: &Waiter| it.wait != Wait::Once && it.cell.has_waited();
            found |= is_its(&entry.name) && waiting.any(waits);
        });
        found
    }

    /// P8: a call gets a lease of its kind.
    pub(in crate::sim) fn check_kind(
        &self,
        client: usize,
        thread: usize,
        call: &Call,
        outcome: &Outcome,
    ) -> Checked {
        if let Outcome::Lease(lease, _) = outcome
            && lease.lock.has_local_queue() != call.wants.lock.has_local_queue()
        {
            let text = format!("c{client}.{thread} gets the lease of another kind");
            return Err(self.violation("P8", text));
        }
        Ok(())
    }

    /// P8: a call ends in time, and says "taken" only with a proof.
    pub(in crate::sim) fn check_outcome(
        &mut self,
        client: usize,
        thread: usize,
        call: &Ended,
    ) -> Checked {
        let deadline = call.deadline;
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
        if call.is_unreachable && !self.plan.has_faults() {
            let text = format!("c{client}.{thread} fails although the servers answer");
            return Err(self.violation("P8", text));
        }
        if !call.is_refused {
            return Ok(());
        }
        let is_limited = match &call.wait {
            Wait::Queue(crate::wait_policy::WaitPolicy::Backoff(backoff)) => {
                backoff.limit().is_some()
            }
            _ => false,
        };
        let names = &call.names;
        let mut holds = false;
        each_entry(&self.clients[client].kernel, &self.names, |entry| {
            let is_its = |it: &Name| names.contains(it);
            let mut held = entry
                .leases
                .held
                .iter()
                .flat_map(|held| held.lease.lock.names.iter());
            holds |= held.any(is_its);
        });
        let mut ended = self.ended_unread(client);
        holds |= ended.any(|lease| {
            let mut its = lease.lock.keys().names.iter();
            its.any(|it| names.contains(it))
        });
        let is_once = call.wait == Wait::Once;
        holds |= is_once && self.is_waited_for(client, |it| names.contains(it));
        if !holds && !is_limited && !self.is_proven(client, call) {
            let name = &names[0];
            let text = format!("c{client}.{thread} says that {name} is taken without a proof");
            return Err(self.violation("P8", text));
        }
        Ok(())
    }

    /// Returns whether what a client has learnt since a call began proves that the lock was taken:
    /// a refusal, and over a quorum the replies of a majority, or the end of an own lease.
    fn is_proven(&self, client: usize, call: &Ended) -> bool {
        let (deadline, is_once) = (call.deadline, call.wait == Wait::Once);
        let is_quorum = self.plan.is_quorum();
        // A server that does not answer can delay the verdict by the command timeout.
        let timeout = Duration::from_micros(COMMAND_TIMEOUT);
        let fresh_for = Duration::from_secs(1) + if is_quorum { timeout } else { Duration::ZERO };
        let is_fresh = |it: &Learnt| {
            let is_taken = it.taken_until.is_some_and(|until| until >= deadline);
            is_taken || it.is_within(fresh_for, deadline)
        };
        let counts = |it: &&Learnt| {
            let is_its = call.names.contains(&it.name);
            // The votes of one round arrive within the command timeout.
            let is_vote = is_quorum && it.is_within(fresh_for + timeout, deadline);
            is_its && it.sent >= call.start && (is_once || is_vote || is_fresh(it))
        };
        let learnt: Vec<&Learnt> = self.clients[client].learnt.iter().filter(counts).collect();
        let is_refused = learnt.iter().any(|it| it.taken_until.is_some());
        if !is_quorum || learnt.iter().any(|it| it.server.is_none()) {
            return is_refused;
        }
        let servers: BTreeSet<Member> = learnt.iter().filter_map(|it| it.server).collect();
        // The votes are split as well if the servers that answered name different holders, and the
        // others failed.
        let needed = if self.plan.servers == 5 && self.plan.has_faults() {
            2
        } else {
            self.plan.needed()
        };
        let is_recent = is_once || learnt.iter().any(|it| is_fresh(it));
        is_refused && is_recent && servers.len() >= needed
    }
}
