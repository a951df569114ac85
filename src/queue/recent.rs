//! The names that others wanted a moment ago, too. No I/O, no clock.

use std::time::Duration;

use crate::clock::Instant;
use crate::name::{Name, NameTable};

/// How long calls enter the queue without a first attempt: after a refusal, and after a plain
/// release.
const COUNTS_FOR: Duration = Duration::from_secs(1);

/// Outdated names are removed only from a table of at least this many names.
const FEWEST: usize = 64;

/// When Redis last refused each name to this client; or until when no client asks for it, after a
/// plain release.
#[derive(Debug, Default)]
pub(super) struct ContendedNames {
    names: NameTable<Instant>,
    /// The number of names at which outdated ones are removed.
    limit: usize,
}

/// Returns whether others wanted a name, too, a moment before `now`.
pub(super) fn counts(since: Instant, now: Instant) -> bool {
    since > Instant::START && since.after(COUNTS_FOR) > now
}

impl ContendedNames {
    pub(super) fn note(&mut self, name: &Name, since: Instant) {
        if self.names.len() >= self.limit {
            self.names.retain(|_, noted| counts(*noted, since));
            self.limit = FEWEST.max(self.names.len() * 2);
        }
        let noted = self.names.entry(name.clone()).or_insert(since);
        *noted = since.max(*noted);
    }

    /// Returns the start of time for a name that nobody else has wanted.
    pub(super) fn since(&self, name: &Name) -> Instant {
        self.names.get(name).copied().unwrap_or(Instant::START)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u64) -> Instant {
        Instant::START.after(Duration::from_millis(n))
    }

    #[test]
    fn the_latest_refusal_counts_for_a_second_and_is_then_forgotten() {
        let (mut recent, name) = (ContendedNames::default(), Name::from("a"));
        assert!(!counts(recent.since(&name), at(1)));
        recent.note(&name, at(7));
        recent.note(&name, at(6));
        let since = recent.since(&name);
        assert!(counts(since, at(1_006)) && !counts(since, at(1_007)));
        (0..10_000).for_each(|n| recent.note(&Name::from(n.to_string()), at(5_000 + n)));
        assert!(recent.names.len() <= 3_000, "{}", recent.names.len());
        assert_eq!(recent.since(&name), Instant::START);
    }
}
