//! The periods in which threads held a lock during one run, and their statistics.

use std::time::Duration;

use crate::samples::percentile;

/// The report of a process about its run.
pub(super) struct Account {
    pub(super) holds: Vec<HeldPeriod>,
    /// Processor time.
    pub(super) used: Duration,
    pub(super) failures: u64,
    /// The text of the first failure; empty without one.
    pub(super) first: String,
}

/// A period in which one thread held the lock. Times are in ns, on the clock that all processes
/// share.
#[derive(Clone, Copy)]
pub struct HeldPeriod {
    pub process: u64,
    pub thread: u64,
    /// When the thread asked for the lock.
    pub asked: u64,
    pub from: u64,
    pub to: u64,
    /// The fencing token, or 0 without one. Some benchmarks store a mark here instead, for the kind
    /// of hold.
    pub token: u64,
}

impl HeldPeriod {
    pub(super) fn words(&self) -> [u64; 6] {
        [
            self.process,
            self.thread,
            self.asked,
            self.from,
            self.to,
            self.token,
        ]
    }

    pub(super) fn of(words: &[u64; 6]) -> Self {
        let [process, thread, asked, from, to, token] = *words;
        Self {
            process,
            thread,
            asked,
            from,
            to,
            token,
        }
    }

    fn holder(&self) -> (u64, u64) {
        (self.process, self.thread)
    }
}

/// The record of one run: all holds, and the part of the run that is measured.
#[derive(Default)]
pub struct Window {
    pub(super) processes: usize,
    /// Threads of each process.
    pub(super) threads: usize,
    /// Start and end of the measured window.
    pub(super) window: [u64; 2],
    /// The server's processor time in the window.
    pub(super) server_used: Duration,
    /// Start and end of the counting of requests, and their number.
    pub(super) monitored: ([u64; 2], u64),
    /// Ordered by start.
    pub(super) holds: Vec<HeldPeriod>,
    /// The processor time of all client processes in the whole run.
    pub(super) clients_used: Duration,
    pub failures: u64,
    pub first_failure: String,
    /// Processes that did not report in time.
    pub hung: usize,
    /// How many holds began before the previous one had ended.
    pub overlaps: usize,
    /// How many increments of the counter were lost.
    pub miscounted: u64,
    /// How many holders had a token not higher than the previous one.
    pub out_of_order: usize,
}

impl Window {
    pub(super) fn add(&mut self, process: u64, account: Account) {
        let holds = account.holds.into_iter();
        self.holds
            .extend(holds.map(|hold| HeldPeriod { process, ..hold }));
        self.clients_used += account.used;
        self.failures += account.failures;
        if self.first_failure.is_empty() {
            self.first_failure = account.first;
        }
    }

    /// Checks the holds of all processes. `counter` is the final value of the counter that each
    /// section increments.
    pub(super) fn sum_up(&mut self, counter: u64) {
        self.holds.sort_by_key(|hold| hold.from);
        // The increments of a process that hangs are unknown.
        if self.hung == 0 {
            self.miscounted = (self.holds.len() as u64).saturating_sub(counter);
        }
        let pairs = self.holds.windows(2);
        self.overlaps = pairs.clone().filter(|it| it[1].from < it[0].to).count();
        self.out_of_order = pairs
            .filter(|it| it[1].token != 0 && it[1].token <= it[0].token)
            .count();
    }

    /// Asserts that every process reported, that no call failed, and that one thread at a time held
    /// the lock, each with a higher token than the one before.
    pub fn holds_what_it_promises(&self) {
        assert_eq!(self.hung, 0, "processes that did not report");
        assert_eq!(self.failures, 0, "{}", self.first_failure);
        assert_eq!(self.overlaps, 0, "two holders at a time");
        assert_eq!(self.miscounted, 0, "lost increments of the counter");
        assert_eq!(self.out_of_order, 0, "tokens that did not rise");
    }

    /// Asserts that every process reported, that no call failed, and that at most `most` threads
    /// held permits at a time.
    pub fn holds_at_most(&self, most: usize) {
        assert_eq!(self.hung, 0, "processes that did not report");
        assert_eq!(self.failures, 0, "{}", self.first_failure);
        assert_eq!(self.begun_over(most), 0, "more than {most} at a time");
    }

    /// Returns how many holds began while `most` or more others lasted.
    pub fn begun_over(&self, most: usize) -> usize {
        let starts = self.holds.iter().map(|hold| (hold.from, 1));
        let ends = self.holds.iter().map(|hold| (hold.to, -1));
        let mut steps: Vec<(u64, i64)> = starts.chain(ends).collect();
        // Holds that end at an instant come before those that begin then: -1 sorts before 1.
        steps.sort_unstable();
        let mut held = 0;
        let is_over = |(_, step): &(u64, i64)| {
            held += step;
            *step > 0 && held > most as i64
        };
        steps.iter().copied().filter(is_over).count()
    }

    /// Asserts that holds with this mark in place of a token overlap no other hold.
    pub fn is_held_alone(&self, mark: u64) {
        assert_eq!(self.overlaps_with(mark), 0, "two holders at a time");
    }

    /// Returns how many holds began during an earlier one, if at least one of the two has this
    /// mark.
    pub fn overlaps_with(&self, mark: u64) -> usize {
        let (mut end, mut marked_end, mut count) = (0, 0, 0);
        for hold in &self.holds {
            let free_from = if hold.token == mark { end } else { marked_end };
            count += usize::from(hold.from < free_from);
            end = end.max(hold.to);
            if hold.token == mark {
                marked_end = marked_end.max(hold.to);
            }
        }
        count
    }

    /// The mean and the longest wait of the holds with this mark in place of a token, relative to
    /// the mean wait of all holds.
    pub fn waits_vs_mean(&self, mark: u64) -> [f64; 2] {
        let wait = |hold: &HeldPeriod| (hold.from - hold.asked) as f64;
        let mean = |waits: &[f64]| waits.iter().sum::<f64>() / waits.len() as f64;
        let all: Vec<f64> = self.waited().map(wait).collect();
        let marked = self.waited().filter(|hold| hold.token == mark);
        let marked: Vec<f64> = marked.map(wait).collect();
        assert!(!marked.is_empty(), "nobody waited with the mark {mark}");
        let longest = marked.iter().copied().fold(0.0, f64::max);
        [mean(&marked), longest].map(|wait| wait / mean(&all))
    }

    /// The holds that began in the window.
    fn counted(&self) -> impl Iterator<Item = &HeldPeriod> + Clone {
        let [begins, ends] = self.window;
        let holds = self.holds.iter();
        holds.filter(move |hold| (begins..ends).contains(&hold.from))
    }

    /// The holds whose wait was at least partly in the window. A caller that starved until its end
    /// is among them.
    fn waited(&self) -> impl Iterator<Item = &HeldPeriod> {
        let [begins, ends] = self.window;
        let holds = self.holds.iter();
        holds.filter(move |hold| hold.asked < ends && hold.from >= begins)
    }

    /// All holds, including those outside the window.
    pub fn acquisitions(&self) -> usize {
        self.holds.len()
    }

    pub fn acquisitions_per_s(&self) -> f64 {
        let [begins, ends] = self.window;
        self.counted().count() as f64 / Duration::from_nanos(ends - begins).as_secs_f64()
    }

    /// The times from the end of a section to the start of the next one, if another thread runs it,
    /// in µs: p50, p99, max.
    pub fn gaps(&self) -> [f64; 3] {
        let pairs = self.counted().zip(self.counted().skip(1));
        let gaps = pairs
            .filter(|(before, after)| before.holder() != after.holder())
            .map(|(before, after)| after.from.saturating_sub(before.to) as f64 / 1e3);
        points(gaps.collect())
    }

    /// Waits from asking to acquiring, in µs: p50, p99, max. Includes every wait that overlaps the
    /// window, even if it ended after the window.
    pub fn waits(&self) -> [f64; 3] {
        self.waits_where(|_| true)
    }

    /// Like [`waits`](Self::waits), but only of the holds with this mark in place of a token.
    pub fn waits_of(&self, mark: u64) -> [f64; 3] {
        self.waits_where(|hold| hold.token == mark)
    }

    fn waits_where(&self, is_wanted: impl Fn(&HeldPeriod) -> bool) -> [f64; 3] {
        points(
            self.waited()
                .filter(|hold| is_wanted(hold))
                .map(|hold| (hold.from - hold.asked) as f64 / 1e3)
                .collect(),
        )
    }

    /// Jain's index of the numbers of holds that each thread began in the window.
    pub fn jain_threads(&self) -> f64 {
        let mut counts = vec![0.0; self.processes * self.threads];
        for hold in self.counted() {
            counts[hold.process as usize * self.threads + hold.thread as usize] += 1.0;
        }
        jain(&counts)
    }

    /// Jain's index of the numbers of holds that each process began in the window.
    pub fn jain_processes(&self) -> f64 {
        jain(&self.counts_of_processes())
    }

    /// The shares of the luckiest and of the unluckiest process in the holds of the window, in %.
    pub fn shares(&self) -> [f64; 2] {
        let counts = self.counts_of_processes();
        let sum: f64 = counts.iter().sum();
        let most = counts.iter().copied().fold(0.0, f64::max);
        let least = counts.iter().copied().fold(f64::INFINITY, f64::min);
        [most, least].map(|count| 100.0 * count / sum.max(1.0))
    }

    fn counts_of_processes(&self) -> Vec<f64> {
        let mut counts = vec![0.0; self.processes];
        for hold in self.counted() {
            counts[hold.process as usize] += 1.0;
        }
        counts
    }

    pub fn requests_per_acquisition(&self) -> f64 {
        let ([from, to], requests) = self.monitored;
        let held = self.holds.iter();
        let held = held.filter(|hold| (from..to).contains(&hold.from)).count();
        requests as f64 / held.max(1) as f64
    }

    /// Processor time of all client processes per acquisition, in µs.
    pub fn client_cpu_per_acquisition(&self) -> f64 {
        self.clients_used.as_secs_f64() * 1e6 / self.holds.len().max(1) as f64
    }

    /// Processor time of the server per acquisition, in µs.
    pub fn server_cpu_per_acquisition(&self) -> f64 {
        self.server_used.as_secs_f64() * 1e6 / self.counted().count().max(1) as f64
    }
}

/// Returns p50, p99 and maximum of the values; NaN without values. [`Window::gaps`] has none if the
/// same thread made all holds.
fn points(values: Vec<f64>) -> [f64; 3] {
    if values.is_empty() {
        [f64::NAN; 3]
    } else {
        [50.0, 99.0, 100.0].map(|percent| percentile(values.clone(), percent))
    }
}

/// Jain's index of n counts: 1 if all are equal, 1/n if only one is not 0, and 0 if all are 0.
fn jain(counts: &[f64]) -> f64 {
    let sum: f64 = counts.iter().sum();
    let squares: f64 = counts.iter().map(|count| count * count).sum();
    if squares > 0.0 {
        sum * sum / (counts.len() as f64 * squares)
    } else {
        0.0
    }
}
