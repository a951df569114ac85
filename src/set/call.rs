//! A call for a set: what it wants, and what it has in each of its stages.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::kernel::Kernel;
use crate::kernel::command::Command;
use crate::kernel::effects::Effects;
use crate::kernel::failure::{Failure, Refused};
use crate::kernel::holder::Holder;
use crate::kernel::waiter::CallTerms;
use crate::kernel::waiter::{Outcome, Wait};
use crate::mutant::{Mutant, is_on};
use crate::protocol::primitive::Primitive;
use crate::set::lease::SetLease;
use crate::set::names::SetNames;

/// How long a set that is not complete keeps its names although its thread stands still, unless a
/// command may take longer.
const BUILT_WITHIN: Duration = Duration::from_secs(3);

/// The terms of a call for a set.
#[derive(Clone)]
pub(crate) struct SetTerms {
    pub(crate) names: Arc<SetNames>,
    pub(crate) terms: LeaseTerms,
    pub(crate) wait: Wait,
    pub(crate) deadline: Instant,
    pub(crate) holder: Holder,
    /// The engine sends all commands: the call can be cancelled.
    pub(crate) by_engine: bool,
    /// Its names are asked for at the same time: the servers give no order to commands.
    pub(crate) side_by_side: bool,
}

/// The next step of the thread of a call.
#[derive(Debug)]
pub(crate) enum SetStep {
    /// Sends the commands in one write, and waits for their replies until then at most.
    Send(Vec<Command>, Instant),
    /// The same, for releases. They may be for several slots of a cluster.
    GiveBack(Vec<Command>, Instant),
    /// Sleeps until it is unparked, and until then at most.
    Park(Instant),
    Done(SetOutcome),
}

/// The end of a call for a set.
#[derive(Debug)]
pub(crate) enum SetOutcome {
    Held(Arc<SetLease>),
    /// Another holder has a name, or this client itself.
    Refused(Option<Refused>),
    Failed(Failure),
}

/// One step of a call: the kernel, the time, and the list of effects.
pub(super) struct Turn<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) now: Instant,
    pub(super) fx: &'a mut Effects,
}

/// The data that all stages of a call share.
pub(super) struct SetCall {
    pub(super) wants: SetTerms,
    pub(super) start: Instant,
    pub(super) lease: Arc<SetLease>,
    /// It has parked in a queue, and does not send any more.
    pub(super) has_parked: bool,
    /// It has waited for another holder.
    pub(super) has_waited: bool,
    /// The last refusal.
    pub(super) last: Option<Refused>,
    /// The undos of commands without a reply.
    pub(super) undos: Vec<Command>,
}

/// Why a set has not got a name.
#[derive(Debug)]
pub(super) struct Missed {
    /// The index of the name.
    pub(super) name: usize,
    pub(super) why: Why,
}

#[derive(Debug)]
pub(super) enum Why {
    /// Another holder has it, or this client itself.
    Refused(Option<Refused>),
    /// Nobody is known to have it: votes were split, or a command of this client has it for a
    /// moment.
    ByNobody(Option<Refused>),
    Failed(Failure),
}

impl SetCall {
    pub(super) fn new(wants: SetTerms, now: Instant) -> Self {
        Self {
            start: now,
            lease: SetLease::new(&wants.names, now.after(BUILT_WITHIN)),
            has_parked: wants.by_engine,
            has_waited: false,
            last: None,
            undos: Vec::new(),
            wants,
        }
    }

    /// The thread of the call goes on: it keeps its names for a while.
    pub(super) fn build(&self, turn: &Turn<'_>) {
        let within = BUILT_WITHIN.max(turn.kernel.shared.limits.command_timeout);
        self.lease.build(turn.now.after(within));
    }

    /// Returns what the call for a name wants.
    pub(super) fn part_of_call(
        &self,
        lock: &Arc<dyn Primitive>,
        terms: LeaseTerms,
        wait: Wait,
        by_engine: bool,
    ) -> CallTerms {
        let max_hold = if is_on(Mutant::PartHasMaxHold) {
            terms.max_hold
        } else {
            Duration::MAX
        };
        CallTerms {
            lock: Arc::clone(lock),
            terms: LeaseTerms {
                max_hold,
                handoffs: 0,
                linger: Duration::ZERO,
                ..terms
            },
            holder: Holder {
                thread: self.wants.holder.thread,
                ..Holder::default()
            },
            wait,
            deadline: self.wants.deadline,
            by_engine,
        }
    }

    /// The set has all names. Returns false if one of them is not valid any more.
    pub(super) fn hold(&self, turn: &mut Turn<'_>) -> bool {
        let max_hold = self.wants.terms.max_hold;
        (self.lease).hold(&self.wants.holder, max_hold, turn.kernel, turn.now, turn.fx)
    }

    /// Records a refusal. One whose holder is not known says less than an earlier one.
    pub(super) fn note_refusal(&mut self, by: Option<Refused>) {
        self.last = by.or_else(|| self.last.take());
    }

    /// Returns the outcome of a call that fails at its deadline: a refusal that still counts is a
    /// better one than silence.
    pub(super) fn at_deadline(&mut self, failure: Failure, turn: &mut Turn<'_>) -> SetOutcome {
        let (start, deadline) = (self.start, self.wants.deadline);
        let last = self.last.take();
        if let Some(last) = last.filter(|last| last.says_taken(start, deadline)) {
            return SetOutcome::Refused(Some(last));
        }
        let mut locks = self.wants.names.at_once().iter();
        let is_own = locks.any(|lock| {
            let own = turn.kernel.refused_by_own(&**lock, turn.now, turn.fx);
            own.is_some()
        });
        if is_own {
            SetOutcome::Refused(None)
        } else {
            SetOutcome::Failed(failure)
        }
    }
}

impl Missed {
    /// Returns why a name was missed whose call has this outcome, which is no lease.
    pub(super) fn of(name: usize, outcome: Outcome, call: &SetCall) -> Self {
        let why = match outcome {
            Outcome::Refused(by) => {
                let by = by.map(|by| by.of_name(name));
                let is_split = call.wants.side_by_side
                    && by.as_ref().is_some_and(|by| by.by.holder.is_empty())
                    && !is_on(Mutant::SplitRefusesTheSet);
                if is_split {
                    Why::ByNobody(by)
                } else {
                    Why::Refused(by)
                }
            }
            Outcome::Failed(Failure::Restart) => Why::ByNobody(None),
            Outcome::Failed(failure) => Why::Failed(failure),
            Outcome::Lease(..) => unreachable!("a lease is added to the set"),
        };
        Self { name, why }
    }

    /// Returns whether a later attempt may get the name.
    pub(super) fn may_pass(&self) -> bool {
        match &self.why {
            Why::Refused(_) | Why::ByNobody(_) => true,
            Why::Failed(failure) => {
                matches!(failure, Failure::Unreachable { .. } | Failure::Open { .. })
            }
        }
    }
}
