//! The order in which runners run, and the timing of their operations.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::samples::Samples;

/// Runs a round and returns how long each operation took.
pub type Runner<'a> = Box<dyn FnMut() -> Vec<Duration> + 'a>;

/// Returns the order in which runners run: the round and the runner, both from 0.
///
/// Each round starts with another runner, so that none is always first. A runner still mostly runs
/// after the same other one, and finds the caches as that one has left them.
pub fn turns(rounds: usize, runners: usize) -> impl Iterator<Item = (usize, usize)> {
    let of_round = move |round| (0..runners).map(move |n| (round, (round + n) % runners));
    (0..rounds).flat_map(of_round)
}

/// Runs every runner in every round. The first rounds are not counted.
pub fn take_turns(rounds: usize, runners: &mut [Runner<'_>]) -> Vec<Samples> {
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

/// Times each of `times` runs.
pub fn timed(times: usize, mut run: impl FnMut()) -> Vec<Duration> {
    (0..times)
        .map(|_| {
            let began = Instant::now();
            run();
            began.elapsed()
        })
        .collect()
}

/// Repeats each of `runs` on its own thread until `lasts` is over. Returns how long that took in
/// all, and the time of each run.
pub fn repeat_at_once<R: FnMut() + Send>(
    lasts: Duration,
    runs: impl ExactSizeIterator<Item = R>,
) -> (Duration, Vec<Duration>) {
    let start = &Barrier::new(runs.len() + 1);
    thread::scope(|scope| {
        let threads: Vec<_> = runs
            .map(|mut run| {
                scope.spawn(move || {
                    start.wait();
                    let began = Instant::now();
                    let mut times = Vec::new();
                    while began.elapsed() < lasts {
                        times.extend(timed(1, &mut run));
                    }
                    times
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        let threads = threads.into_iter();
        let times = threads.flat_map(|thread| thread.join().unwrap()).collect();
        (began.elapsed(), times)
    })
}
