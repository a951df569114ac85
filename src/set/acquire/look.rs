//! Questions about a call for a set, for the checks of the simulation.

use std::sync::Arc;

use super::{SetAcquire, SetTerms, Stage};
use crate::clock::Instant;
use crate::kernel::call::Call;
use crate::protocol::primitive::Primitive;
use crate::set::in_queue::InQueue;
use crate::set::lease::SetLease;

impl SetAcquire {
    pub(crate) fn wants(&self) -> &SetTerms {
        &self.call.wants
    }

    pub(crate) fn start(&self) -> Instant {
        self.call.start
    }

    pub(crate) fn lease(&self) -> &Arc<SetLease> {
        &self.call.lease
    }

    /// The calls for names that have not ended.
    pub(crate) fn calls(&self) -> Vec<&Call> {
        match &self.stage {
            Stage::AtOnce(attempt) => attempt.open.iter().map(|(_, call)| call).collect(),
            Stage::InQueue(InQueue::Waiting(_, call)) => vec![call],
            _ => Vec::new(),
        }
    }

    /// The index of the name in whose queue it waits: it has those below that, and no others.
    pub(crate) fn waits_for(&self) -> Option<usize> {
        match &self.stage {
            Stage::InQueue(InQueue::Waiting(n, _)) => Some(*n),
            _ => None,
        }
    }

    /// The name that it waits for outside of a queue, if a message can end that.
    pub(crate) fn watched(&self) -> Option<&Arc<dyn Primitive>> {
        let (_, watch) = self.watched.watch.as_ref()?;
        let waits = matches!(self.stage, Stage::Watching) && watch.wakes && !watch.has_news();
        waits.then_some(&watch.lock)
    }

    /// Returns whether it has nothing, and keeps nothing while it waits.
    pub(crate) fn has_nothing(&self) -> bool {
        matches!(self.stage, Stage::Watching)
    }
}
