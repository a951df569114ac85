//! A call of one lock, or of a set.

use std::sync::Arc;

use crate::clock::Instant;
use crate::kernel::Kernel;
use crate::kernel::call::{Call, CallTerms, Step};
use crate::kernel::effects::Effects;
use crate::kernel::fault::Fault;
use crate::kernel::set::SetAcquire;
use crate::kernel::waiter::{Failure, Outcome, WaiterCell};
use crate::protocol::answer::Answer;

pub(crate) enum Acquiring {
    One(Box<Call>),
    Set(Box<SetAcquire>),
}

impl Acquiring {
    pub(crate) fn new(kernel: &Kernel, wants: CallTerms, now: Instant) -> Self {
        match wants.lock.names_of_set() {
            [] => Self::One(Box::new(Call::new(kernel, wants, now))),
            names => {
                let names = names.to_vec();
                Self::Set(Box::new(SetAcquire::new(kernel, wants, names, now)))
            }
        }
    }

    /// The cell of a parked call.
    pub(crate) fn cell(&self) -> Option<&Arc<WaiterCell>> {
        match self {
            Self::One(call) => call.cell(),
            Self::Set(set) => set.cell(),
        }
    }

    /// Returns whether it has waited for another holder.
    pub(crate) fn has_waited(&self) -> bool {
        match self {
            Self::One(call) => call.has_waited(),
            Self::Set(set) => set.has_waited(),
        }
    }

    pub(crate) fn begin(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Step {
        match self {
            Self::One(call) => call.begin(kernel, now, fx),
            Self::Set(set) => set.begin(kernel, now, fx),
        }
    }

    pub(crate) fn replied(
        &mut self,
        kernel: &Kernel,
        end: Result<Answer, Fault>,
        [sent, now]: [Instant; 2],
        fx: &mut Effects,
    ) -> Step {
        match self {
            Self::One(call) => call.replied(kernel, end, sent, now, fx),
            Self::Set(set) => set.replied(kernel, end, sent, now, fx),
        }
    }

    pub(crate) fn woken(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Step {
        match self {
            Self::One(call) => call.woken(kernel, now, fx),
            Self::Set(set) => set.woken(kernel, now, fx),
        }
    }

    pub(crate) fn leave(
        &mut self,
        kernel: &Kernel,
        failure: Failure,
        now: Instant,
        fx: &mut Effects,
    ) -> Outcome {
        match self {
            Self::One(call) => call.leave(kernel, failure, now, fx),
            Self::Set(set) => set.leave(kernel, failure, now, fx),
        }
    }

    /// The call's thread panics.
    pub(crate) fn abandon(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) {
        match self {
            Self::One(call) => call.abandon(kernel, now, fx),
            Self::Set(set) => set.abandon(kernel, now, fx),
        }
    }
}
