//! Times of runs and their statistics: percentiles, and spreads over rounds.

use std::time::Duration;

/// The times of one runner, by round.
#[derive(Default)]
pub struct Samples {
    rounds: Vec<Vec<Duration>>,
}

impl Samples {
    pub fn push(&mut self, round: Vec<Duration>) {
        self.rounds.push(round);
    }

    /// A percentile over all rounds, in µs.
    pub fn percentile(&self, percent: f64) -> f64 {
        let micros = self.rounds.iter().flatten().copied().map(micros);
        percentile(micros.collect(), percent)
    }

    /// p50, p99 and maximum, in µs.
    pub fn range(&self) -> [f64; 3] {
        [50.0, 99.0, 100.0].map(|percent| self.percentile(percent))
    }

    /// The p50 of each round, in µs.
    pub fn medians(&self) -> impl Iterator<Item = f64> + '_ {
        self.rounds
            .iter()
            .map(|round| percentile(round.iter().copied().map(micros).collect(), 50.0))
    }

    /// The maximum of each round, in µs.
    pub fn most(&self) -> impl Iterator<Item = f64> + '_ {
        let most = |round: &Vec<Duration>| round.iter().max().copied();
        self.rounds.iter().filter_map(most).map(micros)
    }

    /// The p50 per round, over all rounds, in µs.
    pub fn median(&self) -> Spread {
        Spread::of(self.medians())
    }

    /// The time relative to that of `other`. Compares within each round, because the machine's
    /// speed changes from one moment to the next.
    pub fn ratio(&self, other: &Self) -> Spread {
        Spread::of(self.medians().zip(other.medians()).map(|(a, b)| a / b))
    }

    /// The mean time relative to that of `other`, compared within each round, too.
    pub fn ratio_of_means(&self, other: &Self) -> Spread {
        Spread::of(self.means().zip(other.means()).map(|(a, b)| a / b))
    }

    fn means(&self) -> impl Iterator<Item = f64> + '_ {
        let mean = |round: &Vec<Duration>| {
            let sum: f64 = round.iter().copied().map(micros).sum();
            sum / round.len() as f64
        };
        self.rounds.iter().map(mean)
    }

    /// The difference to `other` in µs, compared within each round, too.
    pub fn surplus(&self, other: &Self) -> Spread {
        Spread::of(self.medians().zip(other.medians()).map(|(a, b)| a - b))
    }
}

/// The median over rounds, and the quartiles that show its reliability.
#[derive(Clone, Copy)]
pub struct Spread {
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

impl Spread {
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.collect();
        Self {
            low: percentile(values.clone(), 25.0),
            median: percentile(values.clone(), 50.0),
            high: percentile(values, 75.0),
        }
    }

    /// The median as the report of a bench records it.
    pub fn figure(self) -> String {
        format!("{:.3}", self.median)
    }

    pub fn show(self, decimals: usize) -> String {
        format!(
            "{:.decimals$} ({:.decimals$} to {:.decimals$})",
            self.median, self.low, self.high
        )
    }
}

pub fn percentile(mut values: Vec<f64>, percent: f64) -> f64 {
    assert!(!values.is_empty(), "nothing was measured");
    values.sort_by(f64::total_cmp);
    let rank = percent / 100.0 * (values.len() - 1) as f64;
    values[rank.round() as usize]
}

pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
