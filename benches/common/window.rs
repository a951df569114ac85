//! Who held a lock from when to when in a stretch of contention, and what that comes to.

use std::time::Duration;

use super::percentile;

/// What a process says: its holds, the processor time it used, and its failures.
pub(super) struct Account {
    pub(super) holds: Vec<Hold>,
    pub(super) used: Duration,
    pub(super) failures: u64,
    pub(super) first: String,
}

/// Times are nanoseconds of the clock that all processes read alike.
#[derive(Clone, Copy)]
pub(crate) struct Hold {
    pub(crate) process: u64,
    pub(crate) thread: u64,
    /// When it was asked for.
    pub(crate) asked: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// 0 where the lock has none.
    pub(crate) token: u64,
}

impl Hold {
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

#[derive(Default)]
pub(crate) struct Window {
    pub(super) processes: usize,
    pub(super) threads: usize,
    /// What counts, from when to when.
    pub(super) window: [u64; 2],
    pub(super) server_used: Duration,
    /// From when to when requests were counted, and how many came.
    pub(super) monitored: ([u64; 2], u64),
    /// In the order in which they began.
    pub(super) holds: Vec<Hold>,
    pub(super) clients_used: Duration,
    pub(crate) failures: u64,
    pub(crate) first_failure: String,
    /// Processes that did not come back.
    pub(crate) hung: usize,
    /// How often somebody came in while another was inside.
    pub(crate) overlaps: usize,
    /// How many counts were overwritten.
    pub(crate) miscounted: u64,
    /// How often a later holder's token was not higher.
    pub(crate) out_of_order: usize,
}

impl Window {
    pub(super) fn add(&mut self, process: u64, account: Account) {
        let holds = account.holds.into_iter();
        self.holds
            .extend(holds.map(|hold| Hold { process, ..hold }));
        self.clients_used += account.used;
        self.failures += account.failures;
        if self.first_failure.is_empty() {
            self.first_failure = account.first;
        }
    }

    pub(super) fn sum_up(&mut self, counted: u64) {
        self.holds.sort_by_key(|hold| hold.from);
        // What a process that hangs has counted is not known.
        if self.hung == 0 {
            self.miscounted = (self.holds.len() as u64).saturating_sub(counted);
        }
        let both = self.holds.windows(2);
        self.overlaps = both.clone().filter(|it| it[1].from < it[0].to).count();
        self.out_of_order = both
            .filter(|it| it[1].token != 0 && it[1].token <= it[0].token)
            .count();
    }

    /// All came back, and one at a time held it, each with a higher token than the one before.
    pub(crate) fn holds_what_it_promises(&self) {
        assert_eq!(self.hung, 0, "processes that did not come back");
        assert_eq!(self.failures, 0, "{}", self.first_failure);
        assert_eq!(self.overlaps, 0, "two at a time");
        assert_eq!(self.miscounted, 0, "two at a time");
        assert_eq!(self.out_of_order, 0, "tokens that did not rise");
    }

    fn counted(&self) -> impl Iterator<Item = &Hold> + Clone {
        let [begins, ends] = self.window;
        let holds = self.holds.iter();
        holds.filter(move |hold| (begins..ends).contains(&hold.from))
    }

    /// All of them, before and after what counts too.
    pub(crate) fn acquisitions(&self) -> usize {
        self.holds.len()
    }

    pub(crate) fn acquisitions_per_s(&self) -> f64 {
        let [begins, ends] = self.window;
        self.counted().count() as f64 / Duration::from_nanos(ends - begins).as_secs_f64()
    }

    /// From the end of one's section to the beginning of another's, in µs: p50, p99, most.
    pub(crate) fn gaps(&self) -> [f64; 3] {
        let pairs = self.counted().zip(self.counted().skip(1));
        let gaps = pairs
            .filter(|(before, after)| before.holder() != after.holder())
            .map(|(before, after)| after.from.saturating_sub(before.to) as f64 / 1e3);
        points(gaps.collect())
    }

    /// From asking to having, in µs: p50, p99, most. Whoever waited at some time in the window counts, also who had it
    /// only when the others had ended.
    pub(crate) fn waits(&self) -> [f64; 3] {
        let [begins, ends] = self.window;
        let waited = self.holds.iter();
        let waited = waited.filter(|hold| hold.asked < ends && hold.from >= begins);
        points(
            waited
                .map(|hold| (hold.from - hold.asked) as f64 / 1e3)
                .collect(),
        )
    }

    pub(crate) fn jain_threads(&self) -> f64 {
        let mut counts = vec![0.0; self.processes * self.threads];
        for hold in self.counted() {
            counts[hold.process as usize * self.threads + hold.thread as usize] += 1.0;
        }
        jain(&counts)
    }

    pub(crate) fn jain_processes(&self) -> f64 {
        let mut counts = vec![0.0; self.processes];
        for hold in self.counted() {
            counts[hold.process as usize] += 1.0;
        }
        jain(&counts)
    }

    pub(crate) fn requests_per_acquisition(&self) -> f64 {
        let ([from, to], requests) = self.monitored;
        let held = self.holds.iter();
        let held = held.filter(|hold| (from..to).contains(&hold.from)).count();
        requests as f64 / held.max(1) as f64
    }

    /// Of all client processes, in µs.
    pub(crate) fn client_cpu_per_acquisition(&self) -> f64 {
        self.clients_used.as_secs_f64() * 1e6 / self.holds.len().max(1) as f64
    }

    /// In µs.
    pub(crate) fn server_cpu_per_acquisition(&self) -> f64 {
        self.server_used.as_secs_f64() * 1e6 / self.counted().count().max(1) as f64
    }
}

/// Not a number where there are none: nobody held it, or always the same one.
fn points(values: Vec<f64>) -> [f64; 3] {
    match values.is_empty() {
        true => [f64::NAN; 3],
        false => [50.0, 99.0, 100.0].map(|percent| percentile(values.clone(), percent)),
    }
}

/// Jain's index: 1 where all had the same, 1/n where one had everything.
fn jain(counts: &[f64]) -> f64 {
    let sum: f64 = counts.iter().sum();
    let squares: f64 = counts.iter().map(|count| count * count).sum();
    match squares > 0.0 {
        true => sum * sum / (counts.len() as f64 * squares),
        false => 0.0,
    }
}
