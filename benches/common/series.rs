//! The results of one contender, by round.

use std::time::Duration;

use super::Spread;
use super::window::Window;

/// A contender's runs, one per round.
pub(crate) struct Series {
    pub(crate) label: &'static str,
    pub(crate) section: Duration,
    pub(crate) rounds: Vec<Window>,
}

impl Series {
    pub(crate) fn new(label: &'static str, section: Duration) -> Self {
        Self {
            label,
            section,
            rounds: Vec::new(),
        }
    }

    pub(crate) fn is(&self, label: &str, section: Duration) -> bool {
        self.label == label && self.section == section
    }

    pub(crate) fn spread(&self, of: impl Fn(&Window) -> f64) -> Spread {
        Spread::of(self.rounds.iter().map(of))
    }

    pub(crate) fn points(&self, of: impl Fn(&Window) -> [f64; 3]) -> [f64; 3] {
        [0, 1, 2].map(|n| self.spread(|stretch| of(stretch)[n]).median)
    }

    /// Compares within each round, since the machine's speed changes.
    pub(crate) fn ratio(&self, floor: &Self, of: impl Fn(&Window) -> f64) -> Spread {
        let pairs = self.rounds.iter().zip(&floor.rounds);
        Spread::of(pairs.map(|(own, floor)| of(own) / of(floor)))
    }
}
