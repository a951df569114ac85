//! The leases in use, in the order in which the timer must act on them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::Instant;
use crate::lease::held::HeldLease;

/// The leases in use, ordered by their due time.
///
/// An entry is removed as soon as its lease ends, so that a process that locks and unlocks all day
/// does not accumulate entries. A binary heap cannot remove one.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    due: BTreeMap<(Instant, u64), Arc<HeldLease>>,
}

impl Leases {
    /// Schedules `hold` for `at`, replacing its earlier entry.
    pub(crate) fn arm(&mut self, hold: &Arc<HeldLease>, at: Instant) {
        let entry = hold
            .disarm()
            .and_then(|before| self.due.remove(&(before, hold.serial)));
        self.due
            .insert((at, hold.serial), entry.unwrap_or_else(|| Arc::clone(hold)));
        hold.arm(at);
    }

    /// Removes `hold`. The caller must drop the result outside any lock: it may own a user's
    /// closure.
    #[must_use]
    pub(crate) fn disarm(&mut self, hold: &HeldLease) -> Option<Arc<HeldLease>> {
        hold.disarm()
            .and_then(|at| self.due.remove(&(at, hold.serial)))
    }

    /// Returns when the first lease is due; `Instant::NEVER` if none is.
    pub(crate) fn next(&self) -> Instant {
        self.due
            .first_key_value()
            .map_or(Instant::NEVER, |((at, _), _)| *at)
    }

    /// Returns the first lease if it is due by `until`. It stays in use, and is not due until it is
    /// armed again.
    pub(crate) fn next_due(&mut self, until: Instant) -> Option<Arc<HeldLease>> {
        let ((at, _), hold) = self.due.first_key_value()?;
        if *at > until {
            return None;
        }
        let hold = Arc::clone(hold);
        self.arm(&hold, Instant::NEVER);
        Some(hold)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    pub(crate) fn all(&self) -> Vec<Arc<HeldLease>> {
        self.due.values().cloned().collect()
    }

    /// Removes and returns all leases.
    pub(crate) fn drain(&mut self) -> Vec<Arc<HeldLease>> {
        std::mem::take(&mut self.due)
            .into_values()
            .inspect(|hold| {
                hold.disarm();
            })
            .collect()
    }
}
