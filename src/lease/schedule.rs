//! What is due when: the leases in use, in the order of their next instants.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::Instant;
use crate::lease::held::HeldLease;

/// The leases in use. An entry goes as soon as its lease ends, so that a process that locks and
/// unlocks all day keeps nothing behind; that is what a binary heap cannot do.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    due: BTreeMap<(Instant, u64), Arc<HeldLease>>,
}

impl Leases {
    /// Notes when `hold` is to be looked at next.
    pub(crate) fn arm(&mut self, hold: &Arc<HeldLease>, at: Instant) {
        let entry = hold
            .disarm()
            .and_then(|before| self.due.remove(&(before, hold.serial)));
        self.due
            .insert((at, hold.serial), entry.unwrap_or_else(|| Arc::clone(hold)));
        hold.arm(at);
    }

    /// Forgets `hold`. What is returned must be dropped outside any lock: it may own a user's closure.
    #[must_use]
    pub(crate) fn disarm(&mut self, hold: &HeldLease) -> Option<Arc<HeldLease>> {
        hold.disarm()
            .and_then(|at| self.due.remove(&(at, hold.serial)))
    }

    pub(crate) fn next(&self) -> Instant {
        self.due
            .first_key_value()
            .map_or(Instant::NEVER, |((at, _), _)| *at)
    }

    /// Takes out the first, if it is due by `until`.
    pub(crate) fn take_due(&mut self, until: Instant) -> Option<Arc<HeldLease>> {
        let first = self
            .due
            .first_entry()
            .filter(|entry| entry.key().0 <= until)?;
        let hold = first.remove();
        hold.disarm();
        Some(hold)
    }

    pub(crate) fn all(&self) -> Vec<Arc<HeldLease>> {
        self.due.values().cloned().collect()
    }

    /// Takes out all.
    pub(crate) fn drain(&mut self) -> Vec<Arc<HeldLease>> {
        std::mem::take(&mut self.due)
            .into_values()
            .inspect(|hold| {
                hold.disarm();
            })
            .collect()
    }
}
