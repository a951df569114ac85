//! The names that Redis refused to this client a moment ago. No I/O, no clock.

use std::time::Duration;

use crate::clock::Instant;
use crate::name::{Name, NameTable};

/// How long calls enter the queue without a first attempt: after a refusal, after a release that
/// could not grant the lock, and after a release that left it open.
const COUNTS_FOR: Duration = Duration::from_secs(1);

/// Outdated names are removed only from a table of at least this many names.
const FEWEST: usize = 64;

/// The names that Redis refused to this client a moment ago, or that were left free for others.
#[derive(Debug, Default)]
pub(super) struct RecentRefusals {
    names: NameTable<SharedPlace>,
    /// The number of names at which outdated ones are removed.
    limit: usize,
}

/// The state of a name whose calls share a place in Redis, as far as this client knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedPlace {
    /// A call of this client has the place, is entering, or has left the place to the others.
    /// `Places::shared` sets it; it is false in `RecentRefusals`.
    pub(crate) is_taken: bool,
    /// When Redis last refused the name to this client.
    pub(super) refused: Instant,
    /// When a release of this client last freed the name although others waited in its queue.
    pub(super) not_passed_on: Instant,
    /// When this client may ask for the lock again, after a release left it open: free for a moment
    /// for programs outside the queue.
    pub(crate) left_open_until: Instant,
}

impl SharedPlace {
    const UNKNOWN: Self = Self {
        is_taken: false,
        refused: Instant::START,
        not_passed_on: Instant::START,
        left_open_until: Instant::START,
    };

    /// Returns whether Redis refused the name to this client a moment before `now`.
    pub(crate) fn was_refused(&self, now: Instant) -> bool {
        counts(self.refused, now)
    }

    /// Returns whether a release of this client freed the name a moment before `now` although
    /// others waited in its queue: its next call must be behind them.
    pub(crate) fn is_behind_others(&self, now: Instant) -> bool {
        counts(self.not_passed_on, now)
    }

    /// Returns whether a release left the lock open a moment before `now`.
    pub(crate) fn was_left_open(&self, now: Instant) -> bool {
        counts(self.left_open_until, now)
    }
}

fn counts(noted: Instant, now: Instant) -> bool {
    noted > Instant::START && noted.after(COUNTS_FOR) > now
}

impl RecentRefusals {
    pub(super) fn refused(&mut self, name: &Name, now: Instant) {
        self.entry(name, now).refused = now;
    }

    pub(super) fn not_passed_on(&mut self, name: &Name, now: Instant) {
        self.entry(name, now).not_passed_on = now;
    }

    pub(super) fn left_open(&mut self, name: &Name, until: Instant) {
        self.entry(name, until).left_open_until = until;
    }

    pub(super) fn of(&self, name: &Name) -> SharedPlace {
        let recent = self.names.get(name);
        recent.copied().unwrap_or(SharedPlace::UNKNOWN)
    }

    fn entry(&mut self, name: &Name, now: Instant) -> &mut SharedPlace {
        if self.names.len() >= self.limit {
            self.names.retain(|_, recent| {
                recent.was_refused(now) || recent.is_behind_others(now) || recent.was_left_open(now)
            });
            self.limit = FEWEST.max(self.names.len() * 2);
        }
        (self.names.entry(name.clone())).or_insert(SharedPlace::UNKNOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u64) -> Instant {
        Instant::START.after(Duration::from_millis(n))
    }

    #[test]
    fn a_refusal_counts_for_a_second_and_is_then_forgotten() {
        let mut recent = RecentRefusals::default();
        let name = Name::from("a");
        assert!(!recent.of(&name).was_refused(at(1)));
        recent.refused(&name, at(1));
        recent.left_open(&name, at(7));
        let known = recent.of(&name);
        assert!(known.was_left_open(at(8)) && !known.is_behind_others(at(8)));
        recent.not_passed_on(&name, at(2));
        let known = recent.of(&name);
        assert!(known.is_behind_others(at(1_001)) && !known.is_behind_others(at(1_002)));
        assert!(known.was_refused(at(1_000)) && !known.was_refused(at(1_001)));
        assert_eq!(known.left_open_until, at(7));
        for n in 0..10_000 {
            recent.refused(&Name::from(n.to_string()), at(5_000 + n));
        }
        assert!(recent.names.len() <= 3_000, "{}", recent.names.len());
        assert_eq!(recent.of(&name).left_open_until, Instant::START);
    }
}
