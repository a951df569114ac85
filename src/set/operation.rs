//! The operation of each part of a set: a renewal, another ttl, or a release by the engine.

use std::sync::Arc;

use crate::kernel::failure::Failure;
use crate::kernel::held::HeldLease;
use crate::kernel::operation::OperationCell;
use crate::mutant::{Mutant, is_on};
use crate::parker::Parker;

/// The lease of a part, and where the result of its operation is put.
pub(super) type PartCell = (Arc<HeldLease>, Arc<OperationCell>);

/// An operation of each part, which the engine sends.
#[derive(Debug)]
pub(crate) struct SetOperation {
    parts: Vec<PartCell>,
}

impl SetOperation {
    pub(super) fn new(parts: Vec<PartCell>) -> Option<Self> {
        (!parts.is_empty()).then_some(Self { parts })
    }

    /// Returns the parker that the caller sleeps on before it looks at the result again.
    pub(crate) fn parker(&self) -> &Parker {
        let mut cells = self.parts.iter().map(|(_, cell)| cell);
        let open = cells.find(|cell| cell.result.lock().is_none());
        // The last one has been unparked, and nobody has slept on it since. `new` makes none
        // without parts.
        &open.unwrap_or(&self.parts[self.parts.len() - 1].1).parker
    }

    /// Returns the result once each part has one: the first error, if there is any.
    pub(crate) fn result(&self) -> Option<Result<(), Failure>> {
        let parts = if is_on(Mutant::OperationEndsWithTheFirst) {
            &self.parts[..1]
        } else {
            &self.parts
        };
        let results = parts.iter().map(|(_, cell)| cell.result.lock().clone());
        let results: Option<Vec<_>> = results.collect();
        results.map(|results| results.into_iter().collect())
    }

    /// The caller waits no more.
    pub(crate) fn cancel(&self) {
        for (lease, cell) in &self.parts {
            lease.cancel(cell);
        }
    }
}
