//! Helpers of the benches: turns, percentiles, tables, hand-written equivalents, and reports.

// Every bench compiles its own copy of this module and uses only a part.
#![allow(dead_code)]

pub(crate) mod affinity;
pub(crate) mod contenders;
pub(crate) mod fleet;
pub(crate) mod floor;
mod legend;
pub(crate) mod monitor;
mod pen;
pub(crate) mod picture;
pub(crate) mod ping_pong;
mod report;
pub(crate) mod series;
pub(crate) mod window;

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use support::Server;

pub(crate) use report::Report;

/// The times of one runner, by round.
#[derive(Default)]
pub(crate) struct Samples {
    rounds: Vec<Vec<Duration>>,
}

impl Samples {
    pub(crate) fn push(&mut self, round: Vec<Duration>) {
        self.rounds.push(round);
    }

    /// A percentile over all rounds, in µs.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        let micros = self.rounds.iter().flatten().copied().map(micros);
        percentile(micros.collect(), percent)
    }

    /// p50, p99 and maximum, in µs.
    pub(crate) fn range(&self) -> [f64; 3] {
        [50.0, 99.0, 100.0].map(|percent| self.percentile(percent))
    }

    /// The p50 of each round, in µs.
    pub(crate) fn medians(&self) -> impl Iterator<Item = f64> + '_ {
        self.rounds
            .iter()
            .map(|round| percentile(round.iter().copied().map(micros).collect(), 50.0))
    }

    /// The p50 per round, over all rounds, in µs.
    pub(crate) fn median(&self) -> Spread {
        Spread::of(self.medians())
    }

    /// The time relative to that of `other`. Compares within each round, because the machine's
    /// speed changes from one moment to the next.
    pub(crate) fn ratio(&self, other: &Self) -> Spread {
        Spread::of(self.medians().zip(other.medians()).map(|(a, b)| a / b))
    }

    /// The difference to `other` in µs, compared within each round, too.
    pub(crate) fn surplus(&self, other: &Self) -> Spread {
        Spread::of(self.medians().zip(other.medians()).map(|(a, b)| a - b))
    }
}

/// The median over rounds, and the quartiles that show its reliability.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Spread {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.collect();
        Self {
            low: percentile(values.clone(), 25.0),
            median: percentile(values.clone(), 50.0),
            high: percentile(values, 75.0),
        }
    }

    /// The median as the report of a bench records it.
    pub(crate) fn figure(self) -> String {
        format!("{:.3}", self.median)
    }

    pub(crate) fn show(self, decimals: usize) -> String {
        format!(
            "{:.decimals$} ({:.decimals$} to {:.decimals$})",
            self.median, self.low, self.high
        )
    }
}

/// Runs a round and returns how long each operation took.
pub(crate) type Runner<'a> = Box<dyn FnMut() -> Vec<Duration> + 'a>;

/// Returns the order in which runners run: the round and the runner, both from 0. Each round
/// starts with another runner, because the order matters: a runner finds the caches as the one
/// before it has left them.
pub(crate) fn turns(rounds: usize, runners: usize) -> impl Iterator<Item = (usize, usize)> {
    let of_round = move |round| (0..runners).map(move |n| (round, (round + n) % runners));
    (0..rounds).flat_map(of_round)
}

/// Runs every runner in every round. The first rounds are not counted.
pub(crate) fn take_turns(rounds: usize, runners: &mut [Runner<'_>]) -> Vec<Samples> {
    const WARM_UP: usize = 2;
    let mut samples: Vec<Samples> = runners.iter().map(|_| Samples::default()).collect();
    for (round, n) in turns(WARM_UP + rounds, runners.len()) {
        let took = runners[n]();
        if round >= WARM_UP {
            samples[n].push(took);
        }
    }
    samples
}

/// Prints the times of pairs of acquire and release.
pub(crate) fn print_pairs(names: &[impl AsRef<str>], samples: &[Samples]) {
    let rows = names.iter().zip(samples).map(|(name, it)| {
        let [p50, p99, _] = it.range();
        let name = name.as_ref().to_owned();
        vec![name, format!("{p50:.1}"), format!("{p99:.1}")]
    });
    print_table(
        &["acquire + release", "p50 µs", "p99 µs"],
        &rows.collect::<Vec<_>>(),
    );
}

/// Times each of `times` runs.
pub(crate) fn timed(times: usize, mut run: impl FnMut()) -> Vec<Duration> {
    (0..times)
        .map(|_| {
            let began = Instant::now();
            run();
            began.elapsed()
        })
        .collect()
}

pub(crate) fn percentile(mut values: Vec<f64>, percent: f64) -> f64 {
    assert!(!values.is_empty(), "nothing was measured");
    values.sort_by(f64::total_cmp);
    let rank = percent / 100.0 * (values.len() - 1) as f64;
    values[rank.round() as usize]
}

/// A clock shared by all processes.
pub(crate) fn clock() -> Duration {
    time_of(ClockId::Monotonic)
}

/// The processor time used by all threads of this process.
pub(crate) fn processor_time() -> Duration {
    time_of(ClockId::ProcessCPUTime)
}

/// The processor time used by a server.
pub(crate) fn server_processor_time(server: &Server) -> Duration {
    let seconds = |field| {
        let seconds = server.info("cpu", field);
        seconds.and_then(|seconds| seconds.parse::<f64>().ok())
    };
    let used = ["used_cpu_user", "used_cpu_sys"].into_iter();
    Duration::from_secs_f64(used.filter_map(seconds).sum())
}

fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap(),
        u32::try_from(time.tv_nsec).unwrap(),
    )
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Prints a table, the first column aligned left.
pub(crate) fn print_table(heads: &[&str], rows: &[Vec<String>]) {
    let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
    let widths: Vec<usize> = (0..heads.len())
        .map(|n| {
            let column = [&heads].into_iter().chain(rows).map(|row| row[n].chars());
            column.map(Iterator::count).max().unwrap_or(0)
        })
        .collect();
    println!();
    for row in [&heads].into_iter().chain(rows) {
        let cells = row.iter().zip(&widths).enumerate();
        let line: Vec<String> = cells
            .map(|(n, (cell, width))| match n {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        println!("{}", line.join("  ").trim_end());
    }
    println!();
}
