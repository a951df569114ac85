//! The results of a candidate in each round of a bench, and the panels that show them.

use std::time::Duration;

use crate::picture::{Panel, Row};
use crate::samples::{Samples, Spread};
use crate::turns::turns;
use crate::window::Window;

/// A candidate's runs, one per round.
pub struct Series {
    pub label: &'static str,
    pub section: Duration,
    pub rounds: Vec<Window>,
}

impl Series {
    pub fn new(label: &'static str, section: Duration) -> Self {
        Self {
            label,
            section,
            rounds: Vec::new(),
        }
    }

    pub fn is(&self, label: &str, section: Duration) -> bool {
        self.label == label && self.section == section
    }

    /// Returns the spread over all rounds of a value of a run.
    pub fn spread(&self, of: impl Fn(&Window) -> f64) -> Spread {
        Spread::of(self.rounds.iter().map(of))
    }

    /// Returns the medians over all rounds of three values of a run: p50, p99 and maximum.
    pub fn points(&self, of: impl Fn(&Window) -> [f64; 3]) -> [f64; 3] {
        [0, 1, 2].map(|n| self.spread(|window| of(window)[n]).median)
    }

    /// Returns the spread of a value of this candidate relative to the other's in the same round,
    /// because the machine's speed changes between rounds.
    pub fn ratio(&self, other: &Self, of: impl Fn(&Window) -> f64) -> Spread {
        let pairs = self.rounds.iter().zip(&other.rounds);
        Spread::of(pairs.map(|(own, other)| of(own) / of(other)))
    }
}

/// Runs each candidate once in every round, in the order of [`turns`].
pub fn run_in_turns(rounds: usize, series: &mut [Series], mut run: impl FnMut(usize) -> Window) {
    for (_, n) in turns(rounds, series.len()) {
        series[n].rounds.push(run(n));
    }
}

/// Returns a row of p50, p99 and maximum, in the colour of leasehold unless the label is that of a
/// lock with which leasehold is compared.
fn range(label: &str, points: [f64; 3]) -> Row {
    let row = Row::range(label, points);
    if label.contains("by hand") || label.contains("poller") {
        row
    } else {
        row.ours()
    }
}

/// Returns the panels of a bench that measures pairs of acquire and release by one caller, and the
/// waits of contending processes.
pub fn panels(
    ratios: Vec<Row>,
    series: &[Series],
    names: &[impl AsRef<str>],
    pairs: &[Samples],
) -> Vec<Panel> {
    let waits = series
        .iter()
        .map(|it| range(it.label, it.points(Window::waits)));
    let times = names.iter().zip(pairs);
    let times = times.map(|(name, it)| range(name.as_ref(), it.range()));
    vec![
        Panel::new("relative to the other", ratios),
        Panel::new("wait, µs: p50 · p99 · max", waits.collect()),
        Panel::new("acquire + release, µs: p50 · p99 · max", times.collect()),
    ]
}
