//! The threads of the simulated programs that acquire, hold and release sets of names.

use std::sync::Arc;

use super::batch::Batch;
use super::show::{shown_end, shown_set};
use super::{
    Actor, COMMAND_TIMEOUT, CallTerms, Checked, Effects, Failure, Family, Instant, MS, State, Then,
    Time, Todo, Unlocked, World, fault,
};
use crate::holder_id::HolderId;
use crate::kernel::command::Command;
use crate::kernel::release_tries::NextTry;
use crate::kernel::waiter::Wait;
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::parker::Parker;
use crate::protocol::answer::Answer;
use crate::set::acquire::{SetAcquire, SetOutcome, SetStep, SetTerms};
use crate::set::holder::SetUnlock;
use crate::set::lease::SetLease;
use crate::set::operation::SetOperation;
use crate::set::tries::SetTries;
use crate::sim::check::outcomes::Ended;

/// A thread whose call for a set goes on.
pub(super) struct SetThread {
    pub(super) call: SetAcquire,
    is: Is,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    /// Its next step is decided, and still to be done.
    Deciding,
    Asking,
    GivingBack,
    /// Asleep on the parker with this address.
    Asleep(Option<usize>),
}

/// A thread that releases a set.
pub(super) struct SetRelease {
    pub(super) lease: Arc<SetLease>,
    is_sent: bool,
    retry_at: Time,
    deadline: Time,
    tries: SetTries,
}

impl SetThread {
    /// Returns whether the thread sleeps on this parker, or will.
    pub(super) fn sleeps_on(&self, parker: &Parker) -> bool {
        let address = match self.is {
            Is::Asleep(address) => address,
            _ => self.call.parker().map(address),
        };
        address == Some(self::address(parker))
    }
}

impl SetRelease {
    /// Returns whether it releases the lease with this id.
    pub(super) fn is_of(&self, id: &str) -> bool {
        let mut ids = self.tries.commands().iter().filter_map(Command::releases);
        ids.any(|it| it.as_str() == id)
    }
}

fn address(parker: &Parker) -> usize {
    std::ptr::from_ref(parker).addr()
}

impl World {
    pub(super) fn begin_set(&mut self, client: usize, thread: usize, wants: SetTerms) -> Checked {
        for lock in wants.names.at_once() {
            self.names.insert(lock.keys().key(0).name.clone());
        }
        if self.plan.linger > 0 {
            for lock in wants.names.at_once() {
                let wants = CallTerms {
                    lock: Arc::clone(lock),
                    terms: wants.terms,
                    wait: Wait::Once,
                    deadline: wants.deadline,
                    holder: wants.holder.clone(),
                    by_engine: wants.by_engine,
                };
                if self.releases_first(client, thread, &wants) {
                    return Ok(());
                }
            }
        }
        let now = self.clocks[client].at(self.now);
        let clock = self.clocks[client].clone();
        self.say(|| {
            format!(
                "c{client}.{thread} {} {:?} until {} by the engine {}",
                wants.names,
                wants.wait,
                clock.time_of(wants.deadline),
                wants.by_engine
            )
        });
        let kernel = Arc::clone(&self.clients[client].kernel);
        let mut set = Box::new(SetThread {
            call: SetAcquire::new(wants, now),
            is: Is::Deciding,
        });
        let mut fx = Effects::default();
        let step = set.call.begin(&kernel, now, &mut fx);
        self.decided_set(client, thread, set, step, fx, false)
    }

    /// A step of a call for a set is decided: its effects and the step follow.
    fn decided_set(
        &mut self,
        client: usize,
        thread: usize,
        mut set: Box<SetThread>,
        step: SetStep,
        mut fx: Effects,
        closes: bool,
    ) -> Checked {
        self.say(|| format!("c{client}.{thread} -> {}", shown_set(&step)));
        let undos = set.call.take_undos();
        if let SetStep::Done(SetOutcome::Held(lease)) = &step {
            self.note_set(client, lease, &set.call.wants().terms, &mut fx)?;
        }
        self.after_kernel(client, &mut fx)?;
        if let SetStep::Done(outcome) = &step {
            self.check_set_outcome(client, thread, &set.call, outcome)?;
        }
        set.is = Is::Deciding;
        let caller = &mut self.clients[client].callers[thread];
        caller.state = State::Set(set);
        if closes || !undos.is_empty() {
            // The undos go out on the old connection before it is closed.
            caller.todo.push_back(Todo::Undo(undos));
            caller.todo.push_back(Todo::Close);
        }
        caller.todo.push_back(Todo::Effects(fx));
        caller.todo.push_back(Todo::SetStep(step));
        self.stop_if_due(client, Actor::Caller(thread));
        self.go_on(client, Actor::Caller(thread));
        Ok(())
    }

    fn check_set_outcome(
        &mut self,
        client: usize,
        thread: usize,
        call: &SetAcquire,
        outcome: &SetOutcome,
    ) -> Checked {
        let wants = call.wants();
        let ended = Ended {
            names: wants.names.names().to_vec(),
            wait: wants.wait.clone(),
            start: call.start(),
            deadline: wants.deadline,
            is_refused: matches!(outcome, SetOutcome::Refused(_)),
            is_unreachable: matches!(outcome, SetOutcome::Failed(Failure::Unreachable { .. })),
        };
        self.check_outcome(client, thread, &ended)
    }

    pub(super) fn set_step(&mut self, client: usize, thread: usize, step: SetStep) {
        let caller = &mut self.clients[client].callers[thread];
        let State::Set(mut set) = std::mem::replace(&mut caller.state, State::Done) else {
            unreachable!("set by `decided_set`");
        };
        let is_release = matches!(step, SetStep::GiveBack(..));
        match step {
            SetStep::Send(commands, until) | SetStep::GiveBack(commands, until) => {
                set.is = if is_release {
                    Is::GivingBack
                } else {
                    Is::Asking
                };
                caller.state = State::Set(set);
                let by = self.clocks[client].time_of(until);
                self.write_all(client, thread, commands, by);
            }
            SetStep::Park(until) => {
                set.is = Is::Asleep(set.call.parker().map(address));
                caller.state = State::Set(set);
                let until = self.clocks[client].time_of(until);
                self.timer(client, Actor::Caller(thread), until);
            }
            SetStep::Done(SetOutcome::Held(lease)) => {
                self.report.acquired += 1;
                let until = self.now + self.hold_time(client, thread);
                self.clients[client].callers[thread].state = State::HoldingSet { lease, until };
            }
            SetStep::Done(SetOutcome::Refused(_)) => {
                self.report.refused += 1;
                self.idle(client, thread);
            }
            SetStep::Done(SetOutcome::Failed(_)) => {
                self.report.failed += 1;
                self.idle(client, thread);
            }
        }
    }

    /// The thread of a call for a set runs.
    pub(super) fn set_runs(
        &mut self,
        client: usize,
        thread: usize,
        set: Box<SetThread>,
        panics: bool,
    ) -> Checked {
        if panics {
            return self.set_unwinds(client, thread, set);
        }
        match set.is {
            Is::Deciding => unreachable!("its step is still to be done"),
            Is::Asking | Is::GivingBack => self.set_waits(client, thread, set),
            Is::Asleep(_) => self.set_is_woken(client, thread, set),
        }
    }

    fn set_waits(&mut self, client: usize, thread: usize, mut set: Box<SetThread>) -> Checked {
        let Some(batch) = self.take_batch(client, thread) else {
            self.clients[client].callers[thread].state = State::Set(set);
            return Ok(());
        };
        let sent = batch.sent;
        let (commands, ends) = batch.ended();
        self.note_ends(client, thread, &commands, &ends, sent);
        let closes = ends.iter().any(Result::is_err);
        let kernel = Arc::clone(&self.clients[client].kernel);
        let clock = &self.clocks[client];
        let (sent, now) = (clock.at(sent), clock.at(self.now));
        let mut fx = Effects::default();
        let step = if set.is == Is::GivingBack {
            set.call.gave_back(ends, &kernel, now, &mut fx)
        } else {
            self.check_ends(client, &commands, &ends)?;
            let step = (set.call).replied(ends.clone(), [sent, now], &kernel, &mut fx);
            self.check_next(client, &set.call, &step, (&commands, &ends))?;
            step
        };
        self.decided_set(client, thread, set, step, fx, closes)
    }

    /// Commands of a thread have ended.
    fn note_ends(
        &mut self,
        client: usize,
        thread: usize,
        commands: &[Command],
        ends: &[Result<Answer, fault::Fault>],
        sent: Time,
    ) {
        for (command, end) in commands.iter().zip(ends) {
            self.say(|| format!("c{client}.{thread} reply {}", shown_end(end)));
            let names = &command.lock.keys().names;
            let Some(id) = command.acquires().map(HolderId::as_str) else {
                continue;
            };
            self.note_reply(client, 0, (names, Some(id)), end, sent);
            if end.is_ok() {
                self.ran_twice.remove(id);
            }
        }
    }

    fn set_is_woken(&mut self, client: usize, thread: usize, mut set: Box<SetThread>) -> Checked {
        let kernel = Arc::clone(&self.clients[client].kernel);
        let now = self.clocks[client].at(self.now);
        let mut fx = Effects::default();
        let caller = &mut self.clients[client].callers[thread];
        let step = if std::mem::take(&mut caller.is_cancelled) {
            let outcome = set.call.leave(Failure::Cancelled, &kernel, now, &mut fx);
            SetStep::Done(outcome)
        } else {
            set.call.woken(&kernel, now, &mut fx)
        };
        let SetStep::Park(until) = step else {
            return self.decided_set(client, thread, set, step, fx, false);
        };
        self.after_kernel(client, &mut fx)?;
        set.is = Is::Asleep(set.call.parker().map(address));
        self.clients[client].callers[thread].state = State::Set(set);
        self.effects(client, None, fx)?;
        let until = self.clocks[client].time_of(until);
        self.timer(client, Actor::Caller(thread), until);
        Ok(())
    }

    /// The thread panics, and catches that.
    fn set_unwinds(&mut self, client: usize, thread: usize, mut set: Box<SetThread>) -> Checked {
        self.say(|| format!("c{client}.{thread} panics"));
        let kernel = Arc::clone(&self.clients[client].kernel);
        let mut fx = Effects::default();
        let now = self.clocks[client].at(self.now);
        set.call.abandon(&kernel, now, &mut fx);
        drop(set);
        self.clients[client].callers[thread].batch = None;
        self.unwound(client, thread, fx)
    }

    /// The holder of a set goes on, or unlocks.
    pub(super) fn holding_set(
        &mut self,
        client: usize,
        thread: usize,
        lease: Arc<SetLease>,
        until: Time,
    ) -> Checked {
        let actor = Actor::Caller(thread);
        if self.now < until {
            self.clients[client].callers[thread].state = State::HoldingSet { lease, until };
            self.timer(client, actor, until);
            return Ok(());
        }
        if self.clients[client].callers[thread].rng.chance(300) {
            return self.look_at_set(client, thread, lease);
        }
        let Some(what) = self.change(client, thread, None) else {
            return self.unlock_set(client, thread, lease);
        };
        self.say(|| {
            format!(
                "c{client}.{thread} wants {what:?} of {:?}",
                lease.holder_ids()
            )
        });
        let kernel = Arc::clone(&self.clients[client].kernel);
        let now = self.clocks[client].at(self.now);
        let mut fx = Effects::default();
        let operation = lease.operate(&what, &kernel, now, &mut fx);
        self.after_kernel(client, &mut fx)?;
        let by = self.now + COMMAND_TIMEOUT;
        let caller = &mut self.clients[client].callers[thread];
        caller.todo.push_back(Todo::Effects(fx));
        caller.state = match operation {
            Some(operation) => State::OperatingSet {
                lease,
                operation,
                by,
                then: Then::Holds,
            },
            None => State::HoldingSet {
                lease,
                until: self.now + 1,
            },
        };
        self.go_on(client, actor);
        Ok(())
    }

    /// The holder of a set asks for its status.
    fn look_at_set(&mut self, client: usize, thread: usize, lease: Arc<SetLease>) -> Checked {
        let kernel = Arc::clone(&self.clients[client].kernel);
        let clock = &self.clocks[client];
        let (wall, now) = (clock.wall_at_start(self.now), clock.at(self.now));
        let mut fx = Effects::default();
        let status = lease.status(wall, &kernel, now, &mut fx);
        self.say(|| format!("c{client}.{thread} looks at its set: {status:?}"));
        self.after_kernel(client, &mut fx)?;
        let is_held = matches!(status, LeaseStatus::Held(_) | LeaseStatus::InDoubt);
        if is_held != lease.remaining(now).is_some() || status == LeaseStatus::Released {
            return Err(self.violation("S1", format!("{status:?} of {:?}", lease.phase())));
        }
        let caller = &mut self.clients[client].callers[thread];
        caller.todo.push_back(Todo::Effects(fx));
        let until = self.now + 1;
        caller.state = State::HoldingSet { lease, until };
        self.go_on(client, Actor::Caller(thread));
        Ok(())
    }

    /// The engine sends what the holder of a set wants.
    pub(super) fn operating_set(
        &mut self,
        client: usize,
        thread: usize,
        (lease, operation): (Arc<SetLease>, SetOperation),
        by: Time,
        then: Then,
    ) -> Checked {
        let actor = Actor::Caller(thread);
        let result = operation.result();
        if self.now < by && result.is_none() {
            self.clients[client].callers[thread].state = State::OperatingSet {
                lease,
                operation,
                by,
                then,
            };
            self.timer(client, actor, by);
            return Ok(());
        }
        operation.cancel();
        if let Then::Holds = then {
            let more = match self.plan.family {
                Family::ShortTtl => self.clients[client].callers[thread]
                    .rng
                    .range(100, 600 * MS),
                _ => 100,
            };
            return self.holding_set(client, thread, lease, self.now + more);
        }
        let unlocked = lease.released_late();
        self.say(|| format!("c{client}.{thread} has released a set: {unlocked:?}"));
        self.left_set(client, thread, &lease, unlocked, Effects::default());
        Ok(())
    }

    fn unlock_set(&mut self, client: usize, thread: usize, lease: Arc<SetLease>) -> Checked {
        let actor = Actor::Caller(thread);
        let kernel = Arc::clone(&self.clients[client].kernel);
        let now = self.clocks[client].at(self.now);
        let mut fx = Effects::default();
        let unlock = lease.begin_unlock(&kernel, now, &mut fx);
        self.say(|| format!("c{client}.{thread} unlocks {:?}", lease.holder_ids()));
        self.after_kernel(client, &mut fx)?;
        self.note_ending(&lease);
        let deadline = self.now + COMMAND_TIMEOUT;
        let tries_by = self.clocks[client].at(deadline);
        let caller = &mut self.clients[client].callers[thread];
        caller.todo.push_back(Todo::Effects(fx));
        match unlock {
            SetUnlock::Send(commands) => {
                caller.state = State::ReleasingSet(Box::new(SetRelease {
                    lease,
                    is_sent: false,
                    retry_at: 0,
                    deadline,
                    tries: SetTries::new(commands, tries_by, false),
                }));
                self.stop_if_due(client, actor);
            }
            SetUnlock::Wait(operation) => {
                caller.state = State::OperatingSet {
                    lease,
                    operation,
                    by: deadline,
                    then: Then::Leaves,
                };
            }
            SetUnlock::AlreadyLost(_) => {
                self.report.lost += 1;
                self.idle(client, thread);
            }
            SetUnlock::Over => return Err(self.violation("S1", "a set is unlocked twice".into())),
        }
        self.go_on(client, actor);
        Ok(())
    }

    /// The holder of a set releases it.
    pub(super) fn releasing_set(
        &mut self,
        client: usize,
        thread: usize,
        mut release: Box<SetRelease>,
    ) -> Checked {
        let actor = Actor::Caller(thread);
        if !std::mem::replace(&mut release.is_sent, true) {
            if self.now < release.retry_at {
                self.timer(client, actor, release.retry_at);
                release.is_sent = false;
            } else {
                let left = release.tries.open().into_owned();
                let by = release.deadline.max(self.now + 1);
                self.write_all(client, thread, left, by);
            }
            self.clients[client].callers[thread].state = State::ReleasingSet(release);
            return Ok(());
        }
        let Some(batch) = self.take_batch(client, thread) else {
            self.clients[client].callers[thread].state = State::ReleasingSet(release);
            return Ok(());
        };
        let is_closed = self.clients[client].kernel.is_closed();
        let now = self.clocks[client].at(self.now);
        let (_, ends) = batch.ended();
        let next = release.tries.ended(ends, "redis", is_closed, now);
        if release.tries.fault().is_some()
            && let Some(n) = self.clients[client].callers[thread].conn.take()
        {
            self.close(n);
        }
        if let NextTry::Again(at) = next {
            release.is_sent = false;
            release.retry_at = self.clocks[client].time_of(at);
            self.clients[client].callers[thread].state = State::ReleasingSet(release);
            self.go_on(client, actor);
            return Ok(());
        }
        self.released_set(client, thread, *release)
    }

    fn released_set(&mut self, client: usize, thread: usize, release: SetRelease) -> Checked {
        let kernel = Arc::clone(&self.clients[client].kernel);
        let now = self.clocks[client].at(self.now);
        let (commands, ends) = release.tries.into_ends();
        let lease = &release.lease;
        let mut fx = Effects::default();
        let unlocked = lease.unlocked(&commands, ends, &kernel, now, &mut fx);
        self.say(|| format!("c{client}.{thread} released a set: {unlocked:?}"));
        self.after_kernel(client, &mut fx)?;
        self.left_set(client, thread, lease, unlocked, fx);
        Ok(())
    }

    fn left_set(
        &mut self,
        client: usize,
        thread: usize,
        lease: &SetLease,
        unlocked: Unlocked,
        fx: Effects,
    ) {
        self.report.lost += u64::from(matches!(unlocked, Unlocked::Lost(_)));
        // Also by the clock: until then, this client had the locks.
        if [Unlocked::Released, Unlocked::Lost(Lost::Expired)].contains(&unlocked) {
            for lock in lease.names().at_once() {
                self.note_own_end(client, &**lock);
            }
        }
        let caller = &mut self.clients[client].callers[thread];
        caller.todo.push_back(Todo::Effects(fx));
        self.idle(client, thread);
        self.go_on(client, Actor::Caller(thread));
    }
}
