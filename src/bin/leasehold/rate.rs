//! The rate at which names change holders, sampled from their fencing tokens.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use leasehold::Name;

/// The number of samples that a rate covers, and after which a released name is forgotten.
const SAMPLES: usize = 10;

/// The latest samples of all names.
#[derive(Default)]
pub(crate) struct Rates {
    samples: VecDeque<Instant>,
    names: BTreeMap<Name, History>,
}

#[derive(Default)]
struct History {
    token: Option<u64>,
    /// Whether the token had changed at each of the latest samples.
    changed: VecDeque<bool>,
    unheld: usize,
}

impl Rates {
    /// Begins a sample.
    pub(crate) fn begin_sample(&mut self, now: Instant) {
        self.samples.push_back(now);
        if self.samples.len() > SAMPLES + 1 {
            self.samples.pop_front();
        }
    }

    /// Adds a name to this sample.
    ///
    /// A name's first token is not a change, because it may be old.
    pub(crate) fn add(&mut self, name: &Name, token: Option<u64>, is_held: bool) {
        let history = self.names.entry(name.clone()).or_default();
        let changed = history.token.is_some() && token.is_some() && token != history.token;
        history.token = token.or(history.token);
        history.changed.push_back(changed);
        if history.changed.len() > SAMPLES {
            history.changed.pop_front();
        }
        history.unheld = if is_held { 0 } else { history.unheld + 1 };
    }

    /// Returns the changes of holder per second.
    pub(crate) fn of(&self, name: &Name) -> f64 {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
            return 0.0;
        };
        let span = last.duration_since(*first).as_secs_f64();
        let changed = self.names.get(name).map(|history| history.changed.iter());
        let changes = changed.into_iter().flatten().filter(|changed| **changed);
        if span > 0.0 {
            changes.count() as f64 / span
        } else {
            0.0
        }
    }

    /// Returns the names that are not forgotten.
    pub(crate) fn names(&self) -> Vec<Name> {
        self.names.keys().cloned().collect()
    }

    /// Forgets the names that were free at the latest [`SAMPLES`] samples.
    pub(crate) fn forget(&mut self) {
        self.names.retain(|_, history| history.unheld < SAMPLES);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_rate_counts_changes_of_the_token_per_second() {
        let start = Instant::now();
        let name = Name::from("a");
        let mut rates = Rates::default();
        for n in 0..=20_u32 {
            rates.begin_sample(start + Duration::from_secs(2) * n);
            rates.add(&name, Some(100 + u64::from(n / 2)), true);
        }
        // A change at every second sample, and a sample every two seconds.
        assert_eq!(rates.of(&name), 0.25);
        assert_eq!(rates.of(&Name::from("b")), 0.0);
    }

    #[test]
    fn a_released_name_is_forgotten_after_ten_samples() {
        let mut rates = Rates::default();
        let name = Name::from("a");
        rates.begin_sample(Instant::now());
        rates.add(&name, Some(1), true);
        for _ in 0..SAMPLES {
            rates.forget();
            assert_eq!(rates.names().len(), 1);
            rates.add(&name, None, false);
        }
        rates.forget();
        assert!(rates.names().is_empty());
    }
}
