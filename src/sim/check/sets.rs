//! S1 to S3: a set has a lease for each of its names, and is held only while all of them are valid.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use crossbeam_channel::Receiver;

use super::each_entry;
use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::kernel::command::{Attempt, Command, What};
use crate::kernel::effects::{Effects, Told};
use crate::kernel::fault;
use crate::kernel::held::HeldLease;
use crate::kernel::part::Part;
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::protocol::answer::Answer;
use crate::set::acquire::{SetAcquire, SetStep};
use crate::set::lease::{Phase, SetLease};
use crate::sim::plan::Actor;
use crate::sim::server::{MS, Server, Time};
use crate::sim::world::{COMMAND_TIMEOUT, Checked, World};

/// A set that a client has held.
pub(in crate::sim) struct RegisteredSet {
    client: usize,
    lease: Weak<SetLease>,
    parts: Vec<Arc<HeldLease>>,
    /// The end of its `max_hold`.
    ends_at: Instant,
    is_told: bool,
    /// Receives its loss.
    losses: Receiver<Lost>,
    /// Its holder has begun to release it.
    is_ending: bool,
}

/// A set that a thread acquires, or has.
struct Whole {
    lease: Arc<SetLease>,
    /// It waits for the name with this index, and has none from there on.
    waits_for: Option<usize>,
}

/// How long a part waits for its thread; the engine looks once a second.
const TAKEN_WITHIN: Time = 1_100 * MS;

impl Whole {
    fn is_of(&self, part: &Part) -> bool {
        Arc::as_ptr(&self.lease).addr() == part.listener.as_ptr().addr()
    }

    /// Returns whether it has this lease, and may have it.
    fn may_have(&self, lease: &Arc<HeldLease>) -> bool {
        let leases = self.lease.leases();
        let its = leases.iter().position(|it| {
            let it = it.as_ref();
            it.is_some_and(|it| Arc::ptr_eq(it, lease))
        });
        its.is_some_and(|n| self.waits_for.is_none_or(|limit| n < limit))
    }

    fn is_over(&self, now: Instant) -> bool {
        match self.lease.phase() {
            Phase::Building(until) => until <= now,
            Phase::Held | Phase::Ending | Phase::Lost(Lost::MaxHold) => false,
            Phase::Lost(_) | Phase::Over => true,
        }
    }
}

impl World {
    /// S1, S2: a call has a set, all of whose names it has on the terms of the call.
    pub(in crate::sim) fn note_set(
        &mut self,
        client: usize,
        lease: &Arc<SetLease>,
        terms: &LeaseTerms,
        fx: &mut Effects,
    ) -> Checked {
        let now = self.clocks[client].at(self.now);
        let parts: Vec<_> = lease.leases().into_iter().flatten().collect();
        if parts.len() != lease.names().names().len() {
            return Err(self.violation("S1", format!("a set has {parts:?}")));
        }
        let ttl = terms.ttl.as_millis() as u64;
        if let Some(part) = parts.iter().find(|it| it.ttl_ms() < ttl) {
            let text = format!("{part:?} is held for {} of {ttl} ms", part.ttl_ms());
            return Err(self.violation("S2", text));
        }
        self.sets.push(RegisteredSet {
            client,
            lease: Arc::downgrade(lease),
            parts,
            ends_at: now.after(terms.max_hold),
            is_told: false,
            losses: lease.listen(now, fx),
            is_ending: false,
        });
        Ok(())
    }

    /// The holder of a set has begun to release it.
    pub(in crate::sim) fn note_ending(&mut self, lease: &Arc<SetLease>) {
        let mut sets = self.sets.iter_mut();
        let set = sets.find(|it| std::ptr::eq(it.lease.as_ptr(), Arc::as_ptr(lease)));
        set.expect("it was held").is_ending = true;
    }

    /// S1: the loss of a set is reported once, and only that of a held one.
    pub(super) fn check_told(&mut self, client: usize, told: &Told) -> Checked {
        let now = self.clocks[client].at(self.now);
        let mut sets = self.sets.iter();
        let is_its = |it: &RegisteredSet| it.parts[0].id == told.id;
        let Some(n) = sets.position(is_its) else {
            return Err(self.violation("S1", format!("{told:?} was not held")));
        };
        let set = &self.sets[n];
        let what = if set.is_told {
            "is reported again"
        } else if set.is_ending {
            "is reported although it was released"
        } else if told.lost == Lost::MaxHold && now < set.ends_at {
            "is reported too early"
        } else if self.has_all(set, told.lost) {
            "is reported although it has all its names"
        } else {
            self.sets[n].is_told = true;
            return Ok(());
        };
        Err(self.violation("S1", format!("c{client}: {told:?} {what}")))
    }

    /// Returns whether the server has all leases of a set of which a reply has told the loss.
    fn has_all(&self, set: &RegisteredSet, lost: Lost) -> bool {
        let has = |part: &Arc<HeldLease>| {
            let id = part.id.as_str();
            let has_it = |server: &Server| {
                let now = server.now(self.now);
                server.data.values().any(|data| data.is_held_by(id, now))
            };
            !self.over.contains(id) && self.servers.iter().any(has_it)
        };
        matches!(lost, Lost::Deleted | Lost::Taken)
            && !self.lost_leases
            && set.parts.iter().all(has)
    }

    /// S2: a name is asked for only while the one before is granted.
    pub(in crate::sim) fn check_ends(
        &self,
        client: usize,
        commands: &[Command],
        ends: &[Result<Answer, fault::Fault>],
    ) -> Checked {
        let all = commands.iter().zip(ends);
        let mut behind = all.skip_while(|(command, end)| !is_refusal(command, end));
        if behind.any(|(_, end)| matches!(end, Ok(Answer::Granted(_)))) {
            let text = format!("c{client} has a name behind one that it was refused: {ends:?}");
            return Err(self.violation("S2", text));
        }
        Ok(())
    }

    /// S2: an attempt that was refused ends. The next one begins with the first name.
    pub(in crate::sim) fn check_next(
        &self,
        client: usize,
        call: &SetAcquire,
        step: &SetStep,
        (sent, ends): (&[Command], &[Result<Answer, fault::Fault>]),
    ) -> Checked {
        let SetStep::Send(commands, _) = step else {
            return Ok(());
        };
        let first = &commands[0];
        let is_once = |what: &What| match what {
            What::Acquire { attempt, .. } => *attempt == Attempt::Once,
            _ => false,
        };
        let is_later = first.lock.keys().key(0).name != &call.wants().names.names()[0];
        let mut sent = sent.iter().zip(ends);
        let was_refused = sent.any(|(command, end)| is_refusal(command, end));
        if was_refused && is_once(&first.what) && is_later {
            let text = format!("c{client} asks for {} although it was refused", first.lock);
            return Err(self.violation("S2", text));
        }
        Ok(())
    }

    pub(super) fn check_sets(&mut self) -> Checked {
        self.sets.retain(|it| {
            let goes_on = it.lease.strong_count() > 0 || it.parts.iter().any(|it| it.is_open());
            goes_on && self.clients[it.client].is_alive
        });
        for set in &self.sets {
            if let Some(lease) = set.lease.upgrade() {
                self.check_set(set, &lease)?;
            }
        }
        for client in 0..self.clients.len() {
            if self.clients[client].is_alive {
                self.check_places(client)?;
                self.check_parts(client)?;
            }
        }
        Ok(())
    }

    /// S1: a set is held only while all its parts are valid, and its loss is reported and final.
    /// S3: after `max_hold`, its names stay.
    fn check_set(&self, set: &RegisteredSet, lease: &SetLease) -> Checked {
        let (client, now) = (set.client, self.clocks[set.client].at(self.now));
        let is_silent = set.losses.is_empty();
        let wrong = |property, text: &str| {
            let text = format!("c{client}: {:?} {text}", lease.holder_ids());
            Err(self.violation(property, text))
        };
        if !set.is_told && !is_silent {
            return wrong("S1", "is not lost, and its channel says so");
        }
        if lease.remaining(now).is_some() {
            if set.is_told {
                return wrong("S1", "is held although its loss was reported");
            }
            let is_not_held = |it: &&Arc<HeldLease>| !it.is_held_at(now);
            if let Some(part) = set.parts.iter().find(is_not_held) {
                return wrong("S1", &format!("is held without {part:?}"));
            }
        }
        match lease.phase() {
            Phase::Held => {
                let before = Instant::from_nanos(now.as_nanos() - 20_000_000);
                let is_overdue = lease.remaining(before).is_none() && lease.since() < Some(before);
                if is_overdue && self.runs_since(client) + 20 * MS < self.now {
                    return wrong("S1", "is over, and that was not told");
                }
            }
            Phase::Lost(Lost::MaxHold) => {
                let is_released = |it: &Arc<HeldLease>| {
                    let status = it.status(now, &mut Effects::default());
                    status == LeaseStatus::Released
                };
                if !set.is_ending && set.parts.iter().any(is_released) {
                    return wrong("S3", "was released while its section may run");
                }
            }
            Phase::Lost(_) if set.is_told && !set.is_ending && is_silent => {
                return wrong("S1", "is lost, and its channel does not say so");
            }
            Phase::Lost(_) if !set.is_told && !set.is_ending => {
                return wrong("S1", "is lost, and that was not told");
            }
            _ => {}
        }
        let has_max_hold = |it: &Arc<HeldLease>| {
            !it.is_open()
                && it.status(now, &mut Effects::default()) == LeaseStatus::Lost(Lost::MaxHold)
        };
        if set.parts.iter().any(has_max_hold) {
            return wrong("S3", "has a part with a `max_hold`");
        }
        Ok(())
    }

    /// S2: only calls that go on have places, or wait for one.
    fn check_places(&self, client: usize) -> Checked {
        let parked: BTreeSet<_> = self.parked(client).map(|call| call.no).collect();
        let mut left = None;
        each_entry(&self.clients[client].kernel, &self.names, |entry| {
            let mut waiters = entry.line.waiters.walk();
            if waiters.any(|waiter| !parked.contains(&waiter.no)) {
                left = Some(entry.name.clone());
            }
        });
        match left {
            None => Ok(()),
            Some(name) => {
                let text = format!("c{client} waits for {name}, and no call does");
                Err(self.violation("S2", text))
            }
        }
    }

    /// S2: a set has the names below the one that it waits for. S3: parts that no thread takes, or
    /// whose set is over, end.
    fn check_parts(&mut self, client: usize) -> Checked {
        let wholes = self.wholes(client);
        let now = self.clocks[client].at(self.now);
        let runs_since = self.engine_runs_since(client);
        for n in 0..self.leases.len() {
            let it = &self.leases[n];
            if it.client != client || !it.lease.is_open() {
                continue;
            }
            let Some(part) = it.lease.part_of() else {
                continue;
            };
            let whole = wholes.iter().find(|whole| whole.is_of(&part));
            let text = match whole {
                _ if it.lease.since().is_none() => {
                    let is_late = it.since.max(runs_since) + TAKEN_WITHIN < self.now;
                    is_late.then_some(("S3", "is kept although no thread takes it"))
                }
                Some(whole) if !whole.is_over(now) => {
                    let may_have = whole.may_have(&it.lease);
                    (!may_have).then_some(("S2", "is kept above the name that its set waits for"))
                }
                _ => {
                    let since = it.over_since.unwrap_or(self.now);
                    // A lease asks before each renewal, once the one before has ended.
                    let share = if it.lease.is_renewed() { 3 } else { 1 };
                    let lasts = it.lease.ttl_ms() * MS / share + COMMAND_TIMEOUT + TAKEN_WITHIN;
                    let is_late = since.max(runs_since) + lasts < self.now;
                    self.leases[n].over_since = Some(since);
                    is_late.then_some(("S3", "is kept although its set is over"))
                }
            };
            if let Some((property, text)) = text {
                let text = format!("c{client}: {:?} {text}", self.leases[n].lease);
                return Err(self.violation(property, text));
            }
        }
        Ok(())
    }

    /// Returns the sets that the threads of a client acquire or have.
    fn wholes(&self, client: usize) -> Vec<Whole> {
        let held = self.sets.iter().filter(|set| set.client == client);
        let held = held.filter_map(|set| {
            Some(Whole {
                lease: set.lease.upgrade()?,
                waits_for: None,
            })
        });
        let building = self.set_calls(client).map(|call| Whole {
            lease: Arc::clone(call.lease()),
            waits_for: call.waits_for().or(call.has_nothing().then_some(0)),
        });
        building.chain(held).collect()
    }

    /// Returns since when the threads that can tell of a loss have run.
    fn runs_since(&self, client: usize) -> Time {
        let callers = (0..self.plan.threads).map(Actor::Caller);
        let stopped = callers.map(|actor| self.stopped_until(client, actor)).max();
        stopped.unwrap_or(0).max(self.engine_runs_since(client))
    }

    fn engine_runs_since(&self, client: usize) -> Time {
        let engine = self.stopped_until(client, Actor::Engine);
        let sub = self.stopped_until(client, Actor::Sub);
        engine.max(sub).max(self.sleeps_until(client))
    }
}

/// Returns whether a command was not run, or another holder has its name.
fn is_refusal(command: &Command, end: &Result<Answer, fault::Fault>) -> bool {
    let own = command.acquires().map(|id| id.as_str().as_bytes());
    match end {
        // A proxy has run it twice.
        Ok(Answer::Refused(by)) => own != Some(&*by.holder),
        Ok(Answer::Skipped) => true,
        _ => false,
    }
}
