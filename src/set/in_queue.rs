//! How a set waits in the queues of its names, one after the other.
//!
//! ```text
//!                   granted                          granted       each part has the terms
//! Waiting(0) ─────────────────▶ … Waiting(n − 1) ─────────▶ Confirming ───────────────▶ held
//!     ▲                            │ a name j that it has is lost │
//!     └──Waiting(j)── cut ◀────────┴──────────────────────────────┘
//! ```

use std::time::Duration;

use crate::clock::{Instant, LONGEST_SLEEP};
use crate::config::LeaseTerms;
use crate::kernel::call::{Call, Step};
use crate::kernel::command::Command;
use crate::kernel::failure::Failure;
use crate::kernel::fault::Fault;
use crate::kernel::part::PartTerms;
use crate::kernel::waiter::Outcome;
use crate::mutant::{Mutant, is_on};
use crate::parker::Parker;
use crate::protocol::answer::Answer;
use crate::set::call::{SetCall, SetOutcome, Turn};
use crate::set::cut::cut;
use crate::set::operation::SetOperation;
use crate::wait_policy::RECONNECT;

/// The longest ttl of a name that a set has while it waits for the next ones.
const KEPT_FOR: Duration = Duration::from_secs(3);

pub(super) enum InQueue {
    /// The name with this index.
    Waiting(usize, Box<Call>),
    /// The change of each part's ttl; how often one has failed, and when they are tried again.
    Confirming(SetOperation, u32, Instant),
    Over,
}

pub(super) enum QueueStep {
    Send(Command, Instant),
    Park(Instant),
    /// The set is held.
    Held,
    /// The call ends without the set, which may have names.
    Ended(SetOutcome),
}

impl InQueue {
    /// Begins with the first name.
    pub(super) fn begin(call: &mut SetCall, turn: &mut Turn<'_>) -> (Self, QueueStep) {
        let mut queue = Self::Over;
        let step = queue.ask_for(0, call, turn);
        (queue, step)
    }

    /// Returns the parker that its thread sleeps on.
    pub(super) fn parker(&self) -> Option<&Parker> {
        match self {
            Self::Waiting(_, call) => Some(&call.cell()?.parker),
            Self::Confirming(operation, ..) => Some(operation.parker()),
            Self::Over => None,
        }
    }

    /// Begins to ask for a name in its queue.
    fn ask_for(&mut self, n: usize, call: &mut SetCall, turn: &mut Turn<'_>) -> QueueStep {
        call.build(turn);
        // From here on, the name's entry knows what refuses it.
        if let Some(refused) = call.last.take_if(|last| last.by.name == n) {
            let lock = &call.wants.names.in_queue()[n];
            (turn.kernel).note_refusal(lock, refused.of_name(0), turn.now, turn.fx);
        }
        let ttl = call.wants.terms.ttl.min(KEPT_FOR);
        let terms = LeaseTerms {
            ttl,
            renew_every: Some(ttl / 3),
            ..call.wants.terms
        };
        let (lock, wait) = (&call.wants.names.in_queue()[n], call.wants.wait.clone());
        let wants = call.part_of_call(lock, terms, wait, call.has_parked);
        let terms = PartTerms {
            part: call.lease.part(n),
            after: None,
            signal: None,
            competes: false,
        };
        let mut one = Box::new(Call::new(turn.kernel, wants, call.start).of_part(terms));
        let step = one.begin(turn.kernel, turn.now, turn.fx);
        self.go_on(n, one, step, call, turn)
    }

    /// Applies a step of the call for a name.
    fn go_on(
        &mut self,
        n: usize,
        one: Box<Call>,
        step: Step,
        call: &mut SetCall,
        turn: &mut Turn<'_>,
    ) -> QueueStep {
        call.has_waited |= one.has_waited();
        match step {
            Step::Send(command, until) => {
                *self = Self::Waiting(n, one);
                QueueStep::Send(command, until)
            }
            Step::Park(until) => {
                *self = Self::Waiting(n, one);
                park(n, until, call, turn)
            }
            Step::Done(Outcome::Lease(lease, token)) => {
                call.lease.add(n, (lease, token));
                // An earlier holder proves at the deadline that the set was taken.
                let lock = &*call.wants.names.in_queue()[n];
                let refused = turn.kernel.last_refusal(lock, turn.now, turn.fx);
                let (start, deadline) = (call.start, call.wants.deadline);
                let refused = refused.filter(|by| by.says_taken(start, deadline));
                call.note_refusal(refused.map(|by| by.of_name(n)));
                self.next(n + 1, call, turn)
            }
            // Nobody took it in time, or it was lost before.
            Step::Done(Outcome::Failed(Failure::Restart)) => self.ask_for(n, call, turn),
            Step::Done(Outcome::Refused(by)) => {
                let by = by.map(|by| by.of_name(n));
                QueueStep::Ended(SetOutcome::Refused(by))
            }
            Step::Done(Outcome::Failed(failure)) => QueueStep::Ended(SetOutcome::Failed(failure)),
        }
    }

    /// The set has the names below `n`: the next step, if it still has them.
    fn next(&mut self, n: usize, call: &mut SetCall, turn: &mut Turn<'_>) -> QueueStep {
        if let Some(lost) = call.lease.first_lost(n, turn.now) {
            return self.cut(lost, call, turn);
        }
        if n < call.wants.names.in_queue().len() {
            self.ask_for(n, call, turn)
        } else {
            self.confirm(0, call, turn)
        }
    }

    /// The set has lost a name: it waits for that.
    fn cut(&mut self, lost: usize, call: &mut SetCall, turn: &mut Turn<'_>) -> QueueStep {
        cut(&call.lease, lost, turn.kernel, turn.now, turn.fx);
        self.ask_for(lost, call, turn)
    }

    /// The set has all names: each of them gets the terms of the call.
    fn confirm(&mut self, failures: u32, call: &mut SetCall, turn: &mut Turn<'_>) -> QueueStep {
        if is_on(Mutant::SetIsHeldShort) {
            return self.confirmed(call, turn);
        }
        let terms = &call.wants.terms;
        let mut cells = Vec::new();
        for part in call.lease.parts() {
            // One that is lost or given up has no cell, and is found below.
            let cell = (turn.kernel).confirm_part(&part, terms, turn.now, turn.fx);
            cells.extend(cell.map(|cell| (part.0, cell)));
        }
        let Some(operation) = SetOperation::new(cells) else {
            return self.confirmed(call, turn);
        };
        *self = Self::Confirming(operation, failures, Instant::NEVER);
        self.look_at_confirmations(call, turn)
    }

    fn look_at_confirmations(&mut self, call: &mut SetCall, turn: &mut Turn<'_>) -> QueueStep {
        let (count, deadline) = (call.wants.names.in_queue().len(), call.wants.deadline);
        if call.lease.first_lost(count, turn.now).is_some() {
            return self.start_again(call, turn);
        }
        let Self::Confirming(operation, failures, retry_at) = self else {
            unreachable!("called while it confirms");
        };
        match operation.result() {
            Some(Ok(())) => self.confirmed(call, turn),
            _ if turn.now >= deadline => {
                QueueStep::Ended(SetOutcome::Failed(Failure::unreachable(None)))
            }
            Some(Err(Failure::Unreachable { .. })) => {
                if *retry_at == Instant::NEVER {
                    *retry_at = turn.now.after(RECONNECT.pause(*failures));
                }
                let (at, failures) = (*retry_at, *failures + 1);
                if turn.now >= at {
                    return self.confirm(failures, call, turn);
                }
                park(count, at.min(deadline), call, turn)
            }
            Some(Err(failure)) => QueueStep::Ended(SetOutcome::Failed(failure)),
            None => park(count, deadline, call, turn),
        }
    }

    fn confirmed(&mut self, call: &mut SetCall, turn: &mut Turn<'_>) -> QueueStep {
        if call.hold(turn) {
            *self = Self::Over;
            return QueueStep::Held;
        }
        self.start_again(call, turn)
    }

    /// A name is lost while its set gets the terms of the call: the other names may have a long ttl
    /// already, which a set that waits must not keep.
    fn start_again(&mut self, call: &mut SetCall, turn: &mut Turn<'_>) -> QueueStep {
        self.cut(0, call, turn)
    }

    /// The end of the command that this thread sent at `sent`.
    pub(super) fn replied(
        &mut self,
        end: Result<Answer, Fault>,
        sent: Instant,
        call: &mut SetCall,
        turn: &mut Turn<'_>,
    ) -> QueueStep {
        let Self::Waiting(n, mut one) = std::mem::replace(self, Self::Over) else {
            unreachable!("nothing was sent");
        };
        let step = one.replied(turn.kernel, end, sent, turn.now, turn.fx);
        call.undos.extend(turn.fx.undo.take());
        self.go_on(n, one, step, call, turn)
    }

    /// The thread was unparked, or a nap is over, or the deadline has come.
    pub(super) fn woken(&mut self, call: &mut SetCall, turn: &mut Turn<'_>) -> QueueStep {
        if let Self::Confirming(..) = self {
            return self.look_at_confirmations(call, turn);
        }
        let Self::Waiting(n, mut one) = std::mem::replace(self, Self::Over) else {
            unreachable!("a call sleeps only while it is parked");
        };
        // An outcome that is stored counts first.
        let step = one.woken(turn.kernel, turn.now, turn.fx);
        let lost = call.lease.first_lost(n, turn.now);
        let Some(lost) = lost.filter(|_| matches!(step, Step::Park(_))) else {
            return self.go_on(n, one, step, call, turn);
        };
        if !is_on(Mutant::CutLeavesItsPlace) {
            *self = Self::Waiting(n, one);
            self.leave(&Failure::Restart, call, turn);
        }
        self.cut(lost, call, turn)
    }

    /// Leaves the queue. The set has what its call was given.
    pub(super) fn leave(&mut self, failure: &Failure, call: &SetCall, turn: &mut Turn<'_>) {
        let Self::Waiting(n, mut one) = std::mem::replace(self, Self::Over) else {
            return;
        };
        let outcome = one.leave(turn.kernel, failure.clone(), turn.now, turn.fx);
        if let Outcome::Lease(lease, token) = outcome {
            call.lease.add(n, (lease, token));
        }
    }

    /// The thread of the call unwinds.
    pub(super) fn abandon(&mut self, turn: &mut Turn<'_>) {
        if let Self::Waiting(_, call) = self {
            call.abandon(turn.kernel, turn.now, turn.fx);
        }
    }
}

/// Nothing wakes a call when it loses a name that it has: it looks once a second.
fn park(has: usize, until: Instant, call: &mut SetCall, turn: &Turn<'_>) -> QueueStep {
    call.has_parked = true;
    if has > 0 {
        call.build(turn);
        QueueStep::Park(until.min(turn.now.after(LONGEST_SLEEP)))
    } else {
        // It has nothing to give up, however long it sleeps.
        call.lease.build(Instant::NEVER);
        QueueStep::Park(until)
    }
}
