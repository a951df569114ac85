//! An attempt at all names of a set, each by a call that does not wait.
//!
//! ```text
//! by the thread:  the names of a slot in one write, each after the one before, then the next slot
//! by the engine:  name by name, each once the one before was granted
//! over a quorum:  all names side by side, by the engine
//! ```
//!
//! On one server a name is asked for only while the name before is granted. So the set has the
//! names below the one that refuses it, and no others, and of two sets that overlap one gets all.

use std::ops::Range;
use std::sync::Arc;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::call::{Call, Step};
use crate::kernel::command::Command;
use crate::kernel::failure::Failure;
use crate::kernel::fault::Fault;
use crate::kernel::part::PartTerms;
use crate::kernel::waiter::{Outcome, Wait};
use crate::mutant::{Mutant, is_on};
use crate::parker::Parker;
use crate::protocol::answer::Answer;
use crate::protocol::primitive::Primitive;
use crate::set::call::{Missed, SetCall, Turn, Why};

/// The lock and the holder id of the call for the name before.
type Before = (Arc<dyn Primitive>, HolderId);

pub(super) struct AtOnce {
    /// The calls for the names that it asks for now, each with the index of its name.
    pub(super) open: Vec<(usize, Call)>,
    /// The index of the first name that it has not asked for.
    next: usize,
    missed: Option<Missed>,
    /// The parker that its thread sleeps on.
    signal: Arc<Parker>,
}

pub(super) enum AttemptStep {
    Send(Vec<Command>, Instant),
    Park(Instant),
    /// The set has all names.
    Granted,
    /// The set may have others.
    Missed(Missed),
}

impl AtOnce {
    pub(super) fn new() -> Self {
        Self {
            open: Vec::new(),
            next: 0,
            missed: None,
            signal: Arc::new(Parker::new()),
        }
    }

    pub(super) fn parker(&self) -> &Parker {
        &self.signal
    }

    pub(super) fn begin(&mut self, call: &mut SetCall, turn: &mut Turn<'_>) -> AttemptStep {
        let names = Arc::clone(&call.wants.names);
        let is_in_parts = self.batch(call).len() < names.names().len();
        if call.wants.wait == Wait::Once && is_in_parts && !turn.kernel.is_closed() {
            // No command is sent if a later one would be refused by this client itself.
            for (n, lock) in names.at_once().iter().enumerate() {
                let refused = turn.kernel.refuses_once(&**lock, turn.now, turn.fx);
                if let Some(by) = refused {
                    return AttemptStep::Missed(Missed::of(n, Outcome::Refused(by), call));
                }
            }
        }
        self.ask(call, turn)
    }

    /// Returns the names that are asked for next.
    fn batch(&self, call: &SetCall) -> Range<usize> {
        let (next, names) = (self.next, &call.wants.names);
        if call.wants.side_by_side {
            return next..names.names().len();
        }
        if call.wants.by_engine {
            return next..next + 1;
        }
        let mut slots = names.slots().iter();
        let end = slots.find(|slot| slot.contains(&next)).map(|slot| slot.end);
        next..end.unwrap_or(names.names().len())
    }

    /// Asks for the next names.
    fn ask(&mut self, call: &mut SetCall, turn: &mut Turn<'_>) -> AttemptStep {
        call.build(turn);
        let (mut commands, mut until): (Vec<Command>, _) = (Vec::new(), Instant::NEVER);
        for n in self.batch(call) {
            let before = commands.last().and_then(before);
            let mut one = self.call_once(n, before, call, turn.kernel);
            match one.begin(turn.kernel, turn.now, turn.fx) {
                Step::Send(command, by) => {
                    until = until.min(by);
                    commands.push(command);
                    self.open.push((n, one));
                }
                Step::Park(by) => {
                    until = until.min(by);
                    self.open.push((n, one));
                }
                Step::Done(outcome) => {
                    self.leave(Failure::Restart, call, turn);
                    return AttemptStep::Missed(Missed::of(n, outcome, call));
                }
            }
            self.next = n + 1;
        }
        if commands.is_empty() {
            AttemptStep::Park(until)
        } else {
            AttemptStep::Send(commands, until)
        }
    }

    /// Returns a call for a name that does not wait.
    fn call_once(&self, n: usize, before: Option<Before>, call: &SetCall, kernel: &Kernel) -> Call {
        let (lock, terms) = (&call.wants.names.at_once()[n], call.wants.terms);
        let wants = call.part_of_call(lock, terms, Wait::Once, call.wants.by_engine);
        let terms = PartTerms {
            part: call.lease.part(n),
            after: before.filter(|_| !is_on(Mutant::NextWithoutTheOneBefore)),
            signal: Some(Arc::clone(&self.signal)),
            // It has no place that would go before the other calls of its client.
            competes: call.wants.wait != Wait::Once && call.wants.names.in_queue().is_empty(),
        };
        Call::new(kernel, wants, call.start).of_part(terms)
    }

    /// The ends of the commands that this thread sent at `sent`, in their order.
    pub(super) fn replied(
        &mut self,
        ends: Vec<Result<Answer, Fault>>,
        sent: Instant,
        call: &mut SetCall,
        turn: &mut Turn<'_>,
    ) -> AttemptStep {
        for ((n, mut one), end) in self.open.drain(..).zip(ends) {
            match one.replied(turn.kernel, end, sent, turn.now, turn.fx) {
                Step::Done(outcome) => note(&mut self.missed, n, outcome, call),
                Step::Send(..) | Step::Park(_) => unreachable!("its first command ends it"),
            }
            call.undos.extend(turn.fx.undo.take());
        }
        self.after_batch(call, turn)
    }

    /// The thread was unparked, or the deadline has come.
    pub(super) fn woken(&mut self, call: &mut SetCall, turn: &mut Turn<'_>) -> AttemptStep {
        let mut open = Vec::new();
        for (n, mut one) in self.open.drain(..) {
            match one.woken(turn.kernel, turn.now, turn.fx) {
                Step::Done(outcome) => note(&mut self.missed, n, outcome, call),
                Step::Park(_) => open.push((n, one)),
                Step::Send(..) => unreachable!("a call that has parked does not send"),
            }
        }
        self.open = open;
        if self.open.is_empty() {
            self.after_batch(call, turn)
        } else {
            AttemptStep::Park(call.wants.deadline)
        }
    }

    /// The calls for some names have ended.
    fn after_batch(&mut self, call: &mut SetCall, turn: &mut Turn<'_>) -> AttemptStep {
        let missed = self.missed.take();
        let has_all = self.next == call.wants.names.names().len();
        match missed {
            Some(missed) if has_all || !is_on(Mutant::NextSlotIsAsked) => {
                AttemptStep::Missed(missed)
            }
            None if has_all => AttemptStep::Granted,
            missed => {
                self.missed = missed;
                self.ask(call, turn)
            }
        }
    }

    /// Ends the calls that are open. The set has what they were given.
    pub(super) fn leave(&mut self, failure: Failure, call: &SetCall, turn: &mut Turn<'_>) {
        for (n, mut one) in self.open.drain(..) {
            if one.cell().is_none() {
                one.not_sent(turn.kernel, turn.now, turn.fx);
                continue;
            }
            let outcome = one.leave(turn.kernel, failure.clone(), turn.now, turn.fx);
            if let Outcome::Lease(lease, token) = outcome {
                call.lease.add(n, (lease, token));
            }
        }
    }

    /// The thread of the call unwinds.
    pub(super) fn abandon(&mut self, turn: &mut Turn<'_>) {
        for (_, mut one) in self.open.drain(..) {
            one.abandon(turn.kernel, turn.now, turn.fx);
        }
    }
}

/// Records the end of the call for a name. The first refusal counts, or else the first end that is
/// no grant.
fn note(missed: &mut Option<Missed>, n: usize, outcome: Outcome, call: &SetCall) {
    if let Outcome::Lease(lease, token) = outcome {
        return call.lease.add(n, (lease, token));
    }
    let new = Missed::of(n, outcome, call);
    let is_refusal = |missed: &Missed| matches!(missed.why, Why::Refused(_));
    if missed
        .as_ref()
        .is_none_or(|it| !is_refusal(it) && is_refusal(&new))
    {
        *missed = Some(new);
    }
}

/// Returns what a command acquires: the next one is sent after it.
fn before(command: &Command) -> Option<Before> {
    Some((Arc::clone(&command.lock), command.acquires()?.clone()))
}
