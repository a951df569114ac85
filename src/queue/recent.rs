//! The names that others wanted a moment ago, too. No I/O, no clock.

use std::time::Duration;

use crate::clock::Instant;
use crate::name::{Name, NameTable};

/// How long calls enter the queue without a first attempt: after a refusal, and after a plain
/// release.
const COUNTS_FOR: Duration = Duration::from_secs(1);

/// Outdated names are removed only from a table of at least this many names.
const FEWEST: usize = 64;

/// The names that others wanted a moment ago, too.
#[derive(Debug, Default)]
pub(super) struct ContendedNames {
    names: NameTable<SharedPlace>,
    /// The number of names at which outdated ones are removed.
    limit: usize,
}

/// The state of a name whose calls share a place in Redis, as far as this client knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedPlace {
    /// A call of this client has the place, is entering, or has left the place to the others.
    /// `Places::shared` sets it; it is false in `ContendedNames`.
    pub(crate) is_taken: bool,
    /// When Redis last refused the name to this client; or until when no client asks for it, after
    /// a plain release.
    pub(crate) contended: Instant,
}

impl SharedPlace {
    const UNKNOWN: Self = Self {
        is_taken: false,
        contended: Instant::START,
    };

    /// Returns whether others wanted the name, too, a moment before `now`.
    pub(crate) fn is_contended(&self, now: Instant) -> bool {
        counts(self.contended, now)
    }
}

fn counts(noted: Instant, now: Instant) -> bool {
    noted > Instant::START && noted.after(COUNTS_FOR) > now
}

impl ContendedNames {
    pub(super) fn contended(&mut self, name: &Name, since: Instant) {
        let entry = self.entry(name, since);
        entry.contended = entry.contended.max(since);
    }

    pub(super) fn of(&self, name: &Name) -> SharedPlace {
        let recent = self.names.get(name);
        recent.copied().unwrap_or(SharedPlace::UNKNOWN)
    }

    fn entry(&mut self, name: &Name, now: Instant) -> &mut SharedPlace {
        if self.names.len() >= self.limit {
            self.names.retain(|_, it| it.is_contended(now));
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
        let mut recent = ContendedNames::default();
        let name = Name::from("a");
        assert!(!recent.of(&name).is_contended(at(1)));
        recent.contended(&name, at(1));
        let known = recent.of(&name);
        assert!(known.is_contended(at(1_000)) && !known.is_contended(at(1_001)));
        for n in 0..10_000 {
            recent.contended(&Name::from(n.to_string()), at(5_000 + n));
        }
        assert!(recent.names.len() <= 3_000, "{}", recent.names.len());
        assert_eq!(recent.of(&name).contended, Instant::START);
    }

    #[test]
    fn a_refusal_does_not_shorten_the_time_after_a_plain_release() {
        let mut recent = ContendedNames::default();
        let name = Name::from("a");
        recent.contended(&name, at(7));
        recent.contended(&name, at(6));
        assert_eq!(recent.of(&name).contended, at(7));
    }
}
