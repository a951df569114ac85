//! How often names change hands, by looks at their fencing tokens.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use leasehold::Name;

/// Over so many looks a rate is counted, and so many after its last release a name is remembered.
const LOOKS: usize = 10;

/// The last looks at all names.
#[derive(Default)]
pub(crate) struct Rates {
    looks: VecDeque<Instant>,
    names: BTreeMap<Name, History>,
}

#[derive(Default)]
struct History {
    token: Option<u64>,
    /// Whether the token was another at each of the last looks.
    changed: VecDeque<bool>,
    unheld: usize,
}

impl Rates {
    /// A look begins.
    pub(crate) fn look(&mut self, now: Instant) {
        self.looks.push_back(now);
        if self.looks.len() > LOOKS + 1 {
            self.looks.pop_front();
        }
    }

    /// What was seen of a name at this look. A name's first token is no change: it may be old.
    pub(crate) fn saw(&mut self, name: &Name, token: Option<u64>, is_held: bool) {
        let history = self.names.entry(name.clone()).or_default();
        let changed = history.token.is_some() && token.is_some() && token != history.token;
        history.token = token.or(history.token);
        history.changed.push_back(changed);
        if history.changed.len() > LOOKS {
            history.changed.pop_front();
        }
        history.unheld = if is_held { 0 } else { history.unheld + 1 };
    }

    /// Changes a second.
    pub(crate) fn of(&self, name: &Name) -> f64 {
        let (Some(first), Some(last)) = (self.looks.front(), self.looks.back()) else {
            return 0.0;
        };
        let span = last.duration_since(*first).as_secs_f64();
        let changes = self.names.get(name).map_or(0, |history| {
            history.changed.iter().filter(|changed| **changed).count()
        });
        if span > 0.0 {
            changes as f64 / span
        } else {
            0.0
        }
    }

    /// The names that were seen lately.
    pub(crate) fn names(&self) -> Vec<Name> {
        self.names.keys().cloned().collect()
    }

    /// Forgets the names that nobody has held for long.
    pub(crate) fn forget(&mut self) {
        self.names.retain(|_, history| history.unheld < LOOKS);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn smoke() {
        let start = Instant::now();
        let name = Name::from("a");
        let mut rates = Rates::default();
        for n in 0..=20_u32 {
            rates.look(start + Duration::from_secs(2) * n);
            rates.saw(&name, Some(100 + u64::from(n / 2)), true);
        }
        // Every second look, and one look every two seconds.
        assert_eq!(rates.of(&name), 0.25);
        assert_eq!(rates.of(&Name::from("b")), 0.0);
    }

    #[test]
    fn a_name_is_remembered_for_some_looks() {
        let mut rates = Rates::default();
        let name = Name::from("a");
        rates.look(Instant::now());
        rates.saw(&name, Some(1), true);
        for _ in 0..LOOKS {
            rates.forget();
            assert_eq!(rates.names().len(), 1);
            rates.saw(&name, None, false);
        }
        rates.forget();
        assert!(rates.names().is_empty());
    }
}
