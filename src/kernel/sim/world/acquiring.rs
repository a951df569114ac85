//! A call of one lock, or of a set.

use super::{Answer, Call, Effects, Failure, Kernel, Outcome, Step, fault};
use crate::clock::Instant;
use crate::kernel::set::SetAcquire;
use crate::kernel::waiter::WaiterCell;
use crate::name::Name;
use std::sync::Arc;

pub(super) enum Acquiring {
    One(Call),
    Set(SetAcquire),
}

impl Acquiring {
    /// The call that it waits for now.
    pub(super) fn call(&self) -> &Call {
        match self {
            Self::One(call) => call,
            Self::Set(set) => set.call(),
        }
    }

    /// The cell that its thread sleeps on.
    pub(super) fn cell(&self) -> Option<&Arc<WaiterCell>> {
        match self {
            Self::One(call) => call.cell(),
            Self::Set(set) => set.cell(),
        }
    }

    /// The names of a set.
    pub(super) fn names_of_set(&self) -> &[Name] {
        match self {
            Self::One(_) => &[],
            Self::Set(set) => set.names_of_set(),
        }
    }

    pub(super) fn keeps(&self, id: &str) -> bool {
        match self {
            Self::One(_) => false,
            Self::Set(set) => set.keeps(id),
        }
    }

    pub(super) fn begin(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Step {
        match self {
            Self::One(call) => call.begin(kernel, now, fx),
            Self::Set(set) => set.begin(kernel, now, fx),
        }
    }

    pub(super) fn replied(
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

    pub(super) fn woken(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Step {
        match self {
            Self::One(call) => call.woken(kernel, now, fx),
            Self::Set(set) => set.woken(kernel, now, fx),
        }
    }

    /// The call's thread panics.
    pub(super) fn abandon(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) {
        match self {
            Self::One(call) => call.abandon(kernel, now, fx),
            Self::Set(set) => set.abandon(kernel, now, fx),
        }
    }

    pub(super) fn leave(
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
