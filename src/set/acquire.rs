//! A call for a set: all names at once, or one after the other in their queues.
//!
//! ```text
//! AtOnce ──all are granted────────────────────────────────────────────────────▶ Held
//!   ▲ │ one is not                                                               ▲
//!   │ ▼                                                                          │
//!   │ GivingBack ──it may wait, in queues──▶ InQueue ──all are granted, confirmed┘
//!   │     ├──it may wait, without queues; nobody refused it──▶ Watching ──┐
//!   │     └──otherwise──▶ Done                                            │
//!   └─────────────────────────────────────────────────────────────────────┘
//! ```

use std::sync::Arc;

use crate::clock::Instant;
use crate::kernel::Kernel;
use crate::kernel::command::Command;
use crate::kernel::effects::Effects;
use crate::kernel::failure::Failure;
use crate::kernel::fault::Fault;
use crate::kernel::waiter::Wait;
use crate::parker::Parker;
use crate::protocol::answer::Answer;
use crate::set::at_once::{AtOnce, AttemptStep};
use crate::set::call::{Missed, SetCall, Turn, Why};
pub(crate) use crate::set::call::{SetOutcome, SetStep, SetTerms};
use crate::set::cut::{cut, give_up};
use crate::set::in_queue::{InQueue, QueueStep};
use crate::set::watching::{Next, Watched};

pub(crate) struct SetAcquire {
    call: SetCall,
    stage: Stage,
    watched: Watched,
}

enum Stage {
    New,
    AtOnce(AtOnce),
    /// The releases, and the name that the attempt has missed.
    GivingBack(Vec<Command>, Missed),
    InQueue(InQueue),
    Watching,
    Over,
}

impl SetAcquire {
    pub(crate) fn new(wants: SetTerms, now: Instant) -> Self {
        Self {
            call: SetCall::new(wants, now),
            stage: Stage::New,
            watched: Watched::default(),
        }
    }

    /// Returns whether it has waited for another holder.
    pub(crate) fn has_waited(&self) -> bool {
        self.call.has_waited
    }

    /// Returns the parker that its thread sleeps on.
    pub(crate) fn parker(&self) -> Option<&Parker> {
        match &self.stage {
            Stage::AtOnce(attempt) => Some(attempt.parker()),
            Stage::InQueue(queue) => queue.parker(),
            Stage::Watching => self.watched.parker(),
            Stage::New | Stage::GivingBack(..) | Stage::Over => None,
        }
    }

    pub(crate) fn begin(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> SetStep {
        let turn = &mut Turn { kernel, now, fx };
        if self.call.wants.by_engine && self.waits_in_queues() {
            return self.enter_queues(turn);
        }
        self.attempt(turn)
    }

    fn waits_in_queues(&self) -> bool {
        let wants = &self.call.wants;
        wants.wait != Wait::Once && !wants.names.in_queue().is_empty()
    }

    fn attempt(&mut self, turn: &mut Turn<'_>) -> SetStep {
        self.watched.forget_news();
        let mut attempt = AtOnce::new();
        let step = attempt.begin(&mut self.call, turn);
        self.after_step(attempt, step, turn)
    }

    /// Applies a step of the attempt at all names.
    fn after_step(&mut self, attempt: AtOnce, step: AttemptStep, turn: &mut Turn<'_>) -> SetStep {
        match step {
            AttemptStep::Send(commands, until) => {
                self.stage = Stage::AtOnce(attempt);
                SetStep::Send(commands, until)
            }
            AttemptStep::Park(until) => {
                self.stage = Stage::AtOnce(attempt);
                SetStep::Park(until)
            }
            AttemptStep::Granted if self.call.hold(turn) => self.held(turn),
            AttemptStep::Granted => {
                let (name, why) = (0, Why::ByNobody(None));
                self.give_back(Missed { name, why }, turn)
            }
            AttemptStep::Missed(missed) => self.give_back(missed, turn),
        }
    }

    fn held(&mut self, turn: &mut Turn<'_>) -> SetStep {
        self.watched.end(turn);
        self.stage = Stage::Over;
        SetStep::Done(SetOutcome::Held(Arc::clone(&self.call.lease)))
    }

    /// The attempt has ended: the set gives back what it has.
    fn give_back(&mut self, missed: Missed, turn: &mut Turn<'_>) -> SetStep {
        let is_by_engine = self.call.wants.by_engine || turn.kernel.shared.limits.engine_sends;
        let (lease, kernel, now) = (&self.call.lease, turn.kernel, turn.now);
        if is_by_engine {
            cut(lease, 0, kernel, now, turn.fx);
        } else {
            let commands = lease.give_back(kernel, now, turn.fx);
            if !commands.is_empty() {
                let until = now.after(kernel.shared.limits.command_timeout);
                self.stage = Stage::GivingBack(commands.clone(), missed);
                return SetStep::GiveBack(commands, until.min(self.call.wants.deadline));
            }
        }
        self.after_attempt(missed, turn)
    }

    /// The ends of the commands that this thread sent at `sent`, in their order.
    ///
    /// The caller then writes [`take_undos`](Self::take_undos) behind them on the same connection,
    /// without waiting, and closes the connection if there are any.
    pub(crate) fn replied(
        &mut self,
        ends: Vec<Result<Answer, Fault>>,
        [sent, now]: [Instant; 2],
        kernel: &Kernel,
        fx: &mut Effects,
    ) -> SetStep {
        let turn = &mut Turn { kernel, now, fx };
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::AtOnce(mut attempt) => {
                let step = attempt.replied(ends, sent, &mut self.call, turn);
                self.after_step(attempt, step, turn)
            }
            Stage::InQueue(mut queue) => {
                let end = ends.into_iter().next().expect("one command has one end");
                let step = queue.replied(end, sent, &mut self.call, turn);
                self.after_queue(queue, step, turn)
            }
            _ => unreachable!("nothing was sent"),
        }
    }

    /// Returns the undos of the commands that got no reply.
    pub(crate) fn take_undos(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.call.undos)
    }

    /// The ends of the releases. The engine repeats what got no reply.
    pub(crate) fn gave_back(
        &mut self,
        ends: Vec<Result<Answer, Fault>>,
        kernel: &Kernel,
        now: Instant,
        fx: &mut Effects,
    ) -> SetStep {
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        let Stage::GivingBack(commands, missed) = stage else {
            unreachable!("nothing was given back");
        };
        let lease = &self.call.lease;
        lease.gave_back(&commands, ends, kernel, now, fx);
        self.after_attempt(missed, &mut Turn { kernel, now, fx })
    }

    /// The set has nothing any more: it waits if it may.
    fn after_attempt(&mut self, missed: Missed, turn: &mut Turn<'_>) -> SetStep {
        if !missed.may_pass() {
            let Why::Failed(failure) = missed.why else {
                unreachable!("a refusal passes");
            };
            return self.done(SetOutcome::Failed(failure), turn);
        }
        if self.waits_in_queues() && turn.now < self.call.wants.deadline {
            if let Why::Refused(by) = missed.why {
                self.call.has_waited = true;
                let lock = &*self.call.wants.names.at_once()[missed.name];
                let own = || turn.kernel.refused_by_own(lock, turn.now, turn.fx);
                let by = by.or_else(own).map(|by| by.of_name(missed.name));
                self.call.note_refusal(by);
            }
            return self.enter_queues(turn);
        }
        let next = self.watched.missed(missed, &mut self.call, turn);
        self.after_watch(next, turn)
    }

    fn after_watch(&mut self, next: Next, turn: &mut Turn<'_>) -> SetStep {
        match next {
            Next::Attempt => self.attempt(turn),
            Next::Park(until) => {
                self.stage = Stage::Watching;
                SetStep::Park(until)
            }
            Next::Done(outcome) => self.done(outcome, turn),
        }
    }

    fn enter_queues(&mut self, turn: &mut Turn<'_>) -> SetStep {
        let (queue, step) = InQueue::begin(&mut self.call, turn);
        self.after_queue(queue, step, turn)
    }

    /// Applies a step of a call that waits in the queues.
    fn after_queue(&mut self, queue: InQueue, step: QueueStep, turn: &mut Turn<'_>) -> SetStep {
        match step {
            QueueStep::Send(command, until) => {
                self.stage = Stage::InQueue(queue);
                SetStep::Send(vec![command], until)
            }
            QueueStep::Park(until) => {
                self.stage = Stage::InQueue(queue);
                SetStep::Park(until)
            }
            QueueStep::Held => self.held(turn),
            QueueStep::Ended(outcome) => {
                let outcome = match outcome {
                    SetOutcome::Failed(failure @ Failure::Unreachable { .. })
                        if turn.now >= self.call.wants.deadline =>
                    {
                        self.call.at_deadline(failure, turn)
                    }
                    outcome => outcome,
                };
                self.done(outcome, turn)
            }
        }
    }

    /// The thread was unparked, or a nap is over, or the deadline has come.
    pub(crate) fn woken(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> SetStep {
        let turn = &mut Turn { kernel, now, fx };
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::AtOnce(mut attempt) => {
                let step = attempt.woken(&mut self.call, turn);
                self.after_step(attempt, step, turn)
            }
            Stage::InQueue(mut queue) => {
                let step = queue.woken(&mut self.call, turn);
                self.after_queue(queue, step, turn)
            }
            Stage::Watching => {
                let next = self.watched.woken(&mut self.call, turn);
                self.after_watch(next, turn)
            }
            _ => unreachable!("a call sleeps only while it is parked"),
        }
    }

    /// The call ends without the set.
    fn done(&mut self, outcome: SetOutcome, turn: &mut Turn<'_>) -> SetStep {
        self.stage = Stage::Over;
        self.watched.end(turn);
        give_up(&self.call.lease, turn.kernel, turn.now, turn.fx);
        SetStep::Done(outcome)
    }

    /// The call is cancelled.
    pub(crate) fn leave(
        &mut self,
        failure: Failure,
        kernel: &Kernel,
        now: Instant,
        fx: &mut Effects,
    ) -> SetOutcome {
        let turn = &mut Turn { kernel, now, fx };
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::AtOnce(mut attempt) => attempt.leave(failure.clone(), &self.call, turn),
            Stage::InQueue(mut queue) => queue.leave(&failure, &self.call, turn),
            Stage::New | Stage::GivingBack(..) | Stage::Watching | Stage::Over => {}
        }
        self.done(SetOutcome::Failed(failure.clone()), turn);
        SetOutcome::Failed(failure)
    }

    /// The thread of the call unwinds: what it has or gets is released by the engine.
    pub(crate) fn abandon(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) {
        let turn = &mut Turn { kernel, now, fx };
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::AtOnce(mut attempt) => attempt.abandon(turn),
            Stage::InQueue(mut queue) => queue.abandon(turn),
            Stage::New | Stage::GivingBack(..) | Stage::Watching | Stage::Over => {}
        }
        self.watched.end(turn);
        give_up(&self.call.lease, kernel, now, turn.fx);
    }
}

#[cfg(sim)]
mod look;
