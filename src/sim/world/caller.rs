//! The threads of the simulated programs: their calls.

use super::show::{shown, shown_end, unknown};
use super::{
    Actor, Arc, Call, CallTerms, Cause, Checked, Command, Effects, Failure, Family, MS, Outcome,
    Release, State, Step, Then, Time, Todo, Unlock, World, fault,
};

use super::wants::Wants;
use crate::clock::Instant;
use crate::sim::check::outcomes::Ended;

impl World {
    pub(super) fn caller(&mut self, client: usize, thread: usize) -> Checked {
        let actor = Actor::Caller(thread);
        if let Some(todo) = self.clients[client].callers[thread].todo.pop_front() {
            match todo {
                Todo::Effects(fx) => self.effects(client, Some(actor), fx)?,
                Todo::Step(step) => self.step(client, thread, step)?,
                Todo::SetStep(step) => self.set_step(client, thread, step),
                Todo::GiveUp(it) => self.give_up(client, Some(actor), it)?,
                Todo::Undo(undos) => self.undo_behind(client, thread, undos),
                Todo::Close => {
                    if let Some(n) = self.clients[client].callers[thread].conn.take() {
                        self.close(n);
                    }
                }
                Todo::Write(..) | Todo::Sleep => unreachable!("of the engine"),
            }
            self.go_on(client, actor);
            return Ok(());
        }
        if self.sends_again(client, thread) {
            return Ok(());
        }
        let caller = &mut self.clients[client].callers[thread];
        let panics = std::mem::take(&mut caller.panics);
        let state = std::mem::replace(&mut caller.state, State::Done);
        match state {
            State::Waiting { call, .. } | State::Parked(call) if panics => {
                self.unwinds(client, thread, call)
            }
            State::Done => Ok(()),
            State::Idle(until) if self.now < until => {
                caller.state = State::Idle(until);
                self.timer(client, actor, until);
                Ok(())
            }
            State::Idle(_) if caller.ops == 0 => Ok(()),
            State::Idle(_) => self.begin(client, thread),
            State::Waiting { call, sent, by } => self.waiting(client, thread, call, sent, by),
            State::Parked(call) => self.woken(client, thread, call),
            State::Holding {
                lease,
                token,
                until,
            } => self.holding(client, thread, lease, token, until),
            State::Operating { .. } => self.operating(client, thread, state),
            State::Releasing(release) => self.releasing(client, thread, release),
            State::Set(set) => self.set_runs(client, thread, set, panics),
            State::HoldingSet { lease, until } => self.holding_set(client, thread, lease, until),
            State::OperatingSet {
                lease,
                operation,
                by,
                then,
            } => self.operating_set(client, thread, (lease, operation), by, then),
            State::ReleasingSet(release) => self.releasing_set(client, thread, release),
        }
    }

    /// Follows a redirect, while the time of the command lasts. Returns whether the thread then
    /// sleeps.
    fn sends_again(&mut self, client: usize, thread: usize) -> bool {
        let caller = &mut self.clients[client].callers[thread];
        let by = match &caller.state {
            State::Waiting { by, .. } | State::Releasing(Release { by, .. }) => *by,
            _ => 0,
        };
        let Some((at, to)) = caller.again.filter(|_| self.now < by && !caller.panics) else {
            return false;
        };
        if self.now < at {
            self.timer(client, Actor::Caller(thread), at.min(by));
            return true;
        }
        caller.again = None;
        let (old, command) = (caller.conn, caller.last.clone());
        let n = match old.filter(|n| self.conns[*n].peer == to.peer) {
            Some(n) => n,
            None => {
                old.into_iter().for_each(|n| self.close(n));
                self.connect(client, Actor::Caller(thread), to.peer)
            }
        };
        self.clients[client].callers[thread].conn = Some(n);
        let command = command.expect("it was redirected");
        let up = self.up(n, command, true).again(to);
        self.send(n, up);
        self.timer(client, Actor::Caller(thread), by);
        true
    }

    fn operating(&mut self, client: usize, thread: usize, state: State) -> Checked {
        let actor = Actor::Caller(thread);
        let State::Operating {
            lease,
            token,
            cell,
            by,
            then,
        } = state
        else {
            unreachable!("called for it");
        };
        let result = cell.result.lock().clone();
        if self.now < by && result.is_none() {
            let caller = &mut self.clients[client].callers[thread];
            caller.state = State::Operating {
                lease,
                token,
                cell,
                by,
                then,
            };
            self.timer(client, actor, by);
            return Ok(());
        }
        lease.cancel(&cell);
        match then {
            Then::Unlocks => {
                if !lease.is_open() {
                    self.note_own_end(client, &*lease.lock);
                }
                self.unlock(client, thread, lease, token, matches!(result, Some(Ok(()))))
            }
            Then::Leaves => {
                self.say(|| format!("c{client}.{thread} has released: {result:?}"));
                self.leaves(client, thread, &lease);
                Ok(())
            }
            Then::Holds => {
                let rng = &mut self.clients[client].callers[thread].rng;
                let more = match self.plan.family {
                    Family::ShortTtl => rng.range(100, 600 * MS),
                    _ => 100,
                };
                let until = self.now + more;
                self.holding(client, thread, lease, token, until)
            }
        }
    }

    /// The thread panics, and catches that.
    fn unwinds(&mut self, client: usize, thread: usize, mut call: Box<Call>) -> Checked {
        self.say(|| format!("c{client}.{thread} panics"));
        let kernel = Arc::clone(&self.clients[client].kernel);
        let mut fx = Effects::default();
        call.abandon(&kernel, self.clocks[client].at(self.now), &mut fx);
        self.unwound(client, thread, fx)
    }

    /// The thread has abandoned its call: it carries out the effects, and closes its connection.
    pub(super) fn unwound(&mut self, client: usize, thread: usize, mut fx: Effects) -> Checked {
        self.after_kernel(client, &mut fx)?;
        let caller = &mut self.clients[client].callers[thread];
        caller.todo.push_back(Todo::Effects(fx));
        caller.todo.push_back(Todo::Close);
        self.idle(client, thread);
        self.stop_if_due(client, Actor::Caller(thread));
        self.go_on(client, Actor::Caller(thread));
        Ok(())
    }

    /// Begins the release of what lingers and keeps a call out. Returns whether the thread sends
    /// one: it makes its next call after that.
    pub(super) fn releases_first(
        &mut self,
        client: usize,
        thread: usize,
        wants: &CallTerms,
    ) -> bool {
        let kernel = Arc::clone(&self.clients[client].kernel);
        let (mut fx, now) = (Effects::default(), self.clocks[client].at(self.now));
        let releases = kernel.release_for(wants, now, &mut fx);
        let mut sends = false;
        for (lease, release) in releases {
            self.say(|| format!("c{client}.{thread} ends the linger of {:?}", lease.id));
            let Unlock::Send(command) = release else {
                continue;
            };
            if std::mem::replace(&mut sends, true) {
                // A command for each: the engine sends the others.
                let end = Err(fault::Fault::NotRun(Cause::text("not sent")));
                kernel.unlocked(&lease, end, false, now, &mut fx);
                continue;
            }
            let release = self.release(client, lease, command);
            self.clients[client].callers[thread].state = State::Releasing(release);
        }
        let caller = &mut self.clients[client].callers[thread];
        caller.todo.push_back(Todo::Effects(fx));
        if sends {
            self.stop_if_due(client, Actor::Caller(thread));
        }
        self.go_on(client, Actor::Caller(thread));
        sends
    }

    pub(super) fn begin(&mut self, client: usize, thread: usize) -> Checked {
        let wants = match self.wants(client, thread) {
            Wants::One(wants) => wants,
            Wants::Set(wants) => return self.begin_set(client, thread, wants),
        };
        if self.plan.linger > 0 && self.releases_first(client, thread, &wants) {
            return Ok(());
        }
        let shown = wants.clone();
        let kernel = Arc::clone(&self.clients[client].kernel);
        let now = self.clocks[client].at(self.now);
        let mut call = Box::new(Call::new(&kernel, wants, now));
        let mut fx = Effects::default();
        let step = call.begin(&kernel, self.clocks[client].at(self.now), &mut fx);
        let clock = self.clocks[client].clone();
        self.say(|| {
            let what = format!("{:?}", shown.lock);
            format!(
                "c{client}.{thread} {} {} {:?} until {} by the engine {}",
                what.split(['(', ' ']).next().unwrap_or_default(),
                shown.lock,
                shown.wait,
                clock.time_of(shown.deadline),
                shown.by_engine
            )
        });
        self.decided(client, thread, Some(call), step, fx)
    }

    /// A kernel call of this thread has returned: its effects and its step follow.
    pub(super) fn decided(
        &mut self,
        client: usize,
        thread: usize,
        call: Option<Box<Call>>,
        step: Step,
        mut fx: Effects,
    ) -> Checked {
        self.say(|| format!("c{client}.{thread} -> {}", shown(&step)));
        self.after_kernel(client, &mut fx)?;
        if let Step::Done(outcome) = &step {
            let call = call.as_ref().expect("only a call is done");
            self.check_kind(client, thread, call, outcome)?;
            let of_call = &call.wants;
            let names = vec![of_call.lock.key(0).name.clone()];
            let ended = Ended {
                names,
                wait: of_call.wait.clone(),
                start: call.start,
                deadline: of_call.deadline,
                is_refused: matches!(outcome, Outcome::Refused(_)),
                is_unreachable: matches!(outcome, Outcome::Failed(Failure::Unreachable { .. })),
            };
            self.check_outcome(client, thread, &ended)?;
        }
        let caller = &mut self.clients[client].callers[thread];
        if let Some(call) = call {
            // From here on, its cell can be filled, and its thread unparked.
            caller.state = State::Parked(call);
        }
        caller.todo.push_back(Todo::Effects(fx));
        caller.todo.push_back(Todo::Step(step));
        self.stop_if_due(client, Actor::Caller(thread));
        self.go_on(client, Actor::Caller(thread));
        Ok(())
    }

    pub(super) fn step(&mut self, client: usize, thread: usize, step: Step) -> Checked {
        let now = self.now;
        let State::Parked(call) =
            std::mem::replace(&mut self.clients[client].callers[thread].state, State::Done)
        else {
            unreachable!("set by `decided`");
        };
        match step {
            Step::Send(..) if self.plan.engine_sends() => {
                unreachable!("the engine sends the commands of calls")
            }
            Step::Send(command, until) => {
                let by = self.clocks[client].time_of(until);
                if now < by {
                    self.write(client, thread, command);
                } else {
                    // The thread stood still: a command whose time is over is not sent.
                    let end = Err(fault::Fault::NotRun(Cause::text("too late")));
                    self.clients[client].callers[thread].mail = Some(end);
                }
                let caller = &mut self.clients[client].callers[thread];
                caller.state = State::Waiting {
                    call,
                    sent: now,
                    by,
                };
                self.timer(client, Actor::Caller(thread), by);
            }
            Step::Park(until) => {
                let until = self.clocks[client].time_of(until);
                self.clients[client].callers[thread].state = State::Parked(call);
                self.timer(client, Actor::Caller(thread), until);
            }
            Step::Done(outcome) => self.done(client, thread, outcome),
        }
        Ok(())
    }

    pub(super) fn done(&mut self, client: usize, thread: usize, outcome: Outcome) {
        let Outcome::Lease(lease, token) = outcome else {
            match outcome {
                Outcome::Refused(_) => self.report.refused += 1,
                _ => self.report.failed += 1,
            }
            self.idle(client, thread);
            return;
        };
        self.report.acquired += 1;
        let until = self.now + self.hold_time(client, thread);
        self.clients[client].callers[thread].state = State::Holding {
            lease,
            token,
            until,
        };
    }

    /// Chooses for how long a lease is held.
    pub(super) fn hold_time(&mut self, client: usize, thread: usize) -> Time {
        let rng = &mut self.clients[client].callers[thread].rng;
        let long = if self.plan.family == Family::ShortTtl {
            3
        } else {
            0
        };
        let longest = if self.plan.is_quorum() {
            (self.plan.ttl * 5 / 2).min(2_500 * MS)
        } else {
            2_500 * MS
        };
        match rng.below(10 - long) + long {
            _ if self.plan.family == Family::Crowd => rng.range(10, 3 * MS),
            kind if kind < 7 && [Family::Restarts, Family::Force].contains(&self.plan.family) => {
                rng.range(self.plan.ttl / 2, self.plan.ttl * 3)
            }
            0..=5 => rng.range(10, 3 * MS),
            6..=8 => rng.range(MS, 60 * MS),
            _ if self.plan.family == Family::Clocks => rng.range(10 * MS, 6_000 * MS),
            _ => rng.range(10 * MS, longest),
        }
    }

    /// Writes undos behind the commands that got no reply, on their connection.
    fn undo_behind(&mut self, client: usize, thread: usize, undos: Vec<Command>) {
        if let Some(n) = self.clients[client].callers[thread].conn {
            for undo in undos {
                let up = self.up(n, undo, false);
                self.send(n, up);
            }
        }
    }

    pub(super) fn write(&mut self, client: usize, thread: usize, command: Command) {
        let it = &self.clients[client];
        let (conn, node) = (it.callers[thread].conn, it.node);
        let n = conn.unwrap_or_else(|| self.connect(client, Actor::Caller(thread), node));
        let caller = &mut self.clients[client].callers[thread];
        (caller.conn, caller.mail, caller.again) = (Some(n), None, None);
        caller.last = Some(command.clone());
        let up = self.up(n, command, true);
        self.send(n, up);
    }

    pub(super) fn idle(&mut self, client: usize, thread: usize) {
        let caller = &mut self.clients[client].callers[thread];
        let pause = if caller.rng.chance(500) {
            0
        } else {
            caller.rng.below(5 * MS)
        };
        caller.state = State::Idle(self.now + pause);
    }

    pub(super) fn waiting(
        &mut self,
        client: usize,
        thread: usize,
        mut call: Box<Call>,
        sent: Time,
        by: Time,
    ) -> Checked {
        let caller = &mut self.clients[client].callers[thread];
        let end = match caller.mail.take() {
            Some(end) => end,
            None if self.now < by => {
                caller.state = State::Waiting { call, sent, by };
                self.timer(client, Actor::Caller(thread), by);
                return Ok(());
            }
            None => Err(unknown()),
        };
        let names = &call.wants.lock.keys().names;
        self.note_reply(client, 0, (names, call.asks_as()), &end, sent);
        let is_error = end.is_err();
        if let Some(id) = call.asks_as().filter(|_| end.is_ok()) {
            self.ran_twice.remove(id);
        }
        self.say(|| format!("c{client}.{thread} reply {}", shown_end(&end)));
        let kernel = Arc::clone(&self.clients[client].kernel);
        let mut fx = Effects::default();
        let (sent, now) = (
            self.clocks[client].at(sent),
            self.clocks[client].at(self.now),
        );
        let step = call.replied(&kernel, end, sent, now, &mut fx);
        self.decided(client, thread, Some(call), step, fx)?;
        if is_error {
            // The undo goes out on the old connection before it is closed.
            let todo = &mut self.clients[client].callers[thread].todo;
            todo.insert(1, Todo::Close);
        }
        Ok(())
    }

    pub(super) fn woken(&mut self, client: usize, thread: usize, mut call: Box<Call>) -> Checked {
        let kernel = Arc::clone(&self.clients[client].kernel);
        let mut fx = Effects::default();
        let caller = &mut self.clients[client].callers[thread];
        let step = if std::mem::take(&mut caller.is_cancelled) {
            Step::Done(call.leave(
                &kernel,
                Failure::Cancelled,
                self.clocks[client].at(self.now),
                &mut fx,
            ))
        } else {
            call.woken(&kernel, self.clocks[client].at(self.now), &mut fx)
        };
        if let Step::Park(until) = step {
            let until = self.clocks[client].time_of(until);
            self.after_kernel(client, &mut fx)?;
            let caller = &mut self.clients[client].callers[thread];
            caller.state = State::Parked(call);
            self.effects(client, None, fx)?;
            self.timer(client, Actor::Caller(thread), until);
            return Ok(());
        }
        self.decided(client, thread, Some(call), step, fx)
    }
}
