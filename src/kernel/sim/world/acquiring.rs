//! A call of one lock, or of a set.

use super::{Answer, Call, Effects, Failure, Kernel, Outcome, Step, fault};
use crate::clock::Instant;
use crate::kernel::call::CallTerms;
use crate::kernel::set::SetAcquire;
use crate::kernel::waiter::WaiterCell;
use crate::name::Name;
use crate::protocol::primitive::Primitive;
use std::sync::Arc;

pub(crate) enum Acquiring {
    One(Call),
    Set(SetAcquire),
}

impl Acquiring {
    /// The call that it waits for now.
    pub(crate) fn call(&self) -> &Call {
        match self {
            Self::One(call) => call,
            Self::Set(set) => set.call(),
        }
    }

    /// The cell that its thread sleeps on.
    pub(crate) fn cell(&self) -> Option<&Arc<WaiterCell>> {
        match self {
            Self::One(call) => call.cell(),
            Self::Set(set) => set.cell(),
        }
    }

    /// The name that a set waits for outside of a queue.
    pub(crate) fn watched(&self) -> Option<&Arc<dyn Primitive>> {
        match self {
            Self::One(_) => None,
            Self::Set(set) => set.watched_lock(),
        }
    }

    /// Returns the call for a lock, or for a set of names.
    pub(crate) fn of(kernel: &Kernel, wants: CallTerms, now: Instant) -> Self {
        let names = wants.lock.names_of_set().to_vec();
        match names.is_empty() {
            true => Self::One(Call::new(kernel, wants, now)),
            false => Self::Set(SetAcquire::new(kernel, wants, names, now)),
        }
    }

    /// The names of a set.
    pub(crate) fn names_of_set(&self) -> &[Name] {
        match self {
            Self::One(_) => &[],
            Self::Set(set) => set.names_of_set(),
        }
    }

    pub(crate) fn keeps(&self, id: &str) -> bool {
        match self {
            Self::One(_) => false,
            Self::Set(set) => set.keeps(id),
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
        end: Result<Answer, fault::Fault>,
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

    /// The call's thread panics.
    pub(crate) fn abandon(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) {
        match self {
            Self::One(call) => call.abandon(kernel, now, fx),
            Self::Set(set) => set.abandon(kernel, now, fx),
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
}
