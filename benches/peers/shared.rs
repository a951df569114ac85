//! Eight processes that share four permits, and eight that read and write: through leasehold,
//! through the only other crate with semaphores and read-write locks, and by hand.

use std::thread;

use distributed_lock_core::traits::{
    DistributedReaderWriterLock, DistributedSemaphore, LockHandle, ReaderWriterLockProvider,
    SemaphoreProvider,
};
use leasehold::Client;
use support::{Server, ms};

use crate::contention::{NAME, PROCESSES, TUNED, lasts, rounds};
use crate::provider::{distributed_lock_provider, runtime};
use crate::shown::{drawn, is_ours, problems};
use common::candidates::{
    READ, WRITE, numbered, permits, polled_permits, polling_readers, readers, redisson_permits,
    redisson_readers,
};
use common::fleet::{Locker, Lockers, Terms, is_first, measure};
use common::picture::{Panel, Picture, Row};
use common::report::Report;
use common::series::{Series, run_in_turns};
use common::window::Window;

const PERMITS: u32 = 4;

/// One section in this many is a write.
const WRITES: u64 = 20;

/// In place of a token, marks the holds of the process that wants all permits.
const LARGE: u64 = 1;
const SMALL: u64 = 0;

type Statistic = fn(&Window) -> f64;

/// The work of the processes, and the candidates that do it.
struct Situation {
    title: &'static str,
    /// Label and kind. The one of this crate comes first.
    candidates: &'static [(&'static str, &'static str)],
    /// The holds whose waits are shown apart: what they are, and their mark in place of a token.
    marked: Option<(&'static str, u64)>,
    /// How many holds began although others excluded them.
    excess: fn(&Window) -> u64,
    /// The figures that compare with Redisson: each key, and its statistic.
    vs_redisson: &'static [(&'static str, Statistic)],
}

const REDISSON: &str = "Redisson's scripts by hand";

const PERMITS_SHARED: Situation = Situation {
    title: "4 permits, sections of 1 ms",
    candidates: &[
        ("leasehold Semaphore", "permits/leasehold"),
        ("by hand, every 1 ms", "permits/poller"),
        (REDISSON, "permits/redisson"),
        ("distributed-lock-redis", "permits/peer"),
        ("distributed-lock-redis, tuned", "permits/peer-tuned"),
    ],
    marked: None,
    excess: |it| it.begun_over(PERMITS as usize) as u64,
    vs_redisson: &[
        ("semaphore_acq_vs_redisson", Window::acquisitions_per_s),
        ("semaphore_wait_p99_vs_redisson", |it| it.waits()[1]),
    ],
};

/// No other candidate can take several permits at once.
const ONE_WANTS_ALL: Situation = Situation {
    title: "4 permits, one wants all, 7 want 1, 1 ms",
    candidates: &[
        ("leasehold Semaphore", "one wants all/leasehold"),
        (REDISSON, "one wants all/redisson"),
    ],
    marked: Some(("wait for all", LARGE)),
    excess: |it| it.begun_over(PERMITS as usize).max(it.overlaps_with(LARGE)) as u64,
    vs_redisson: &[("large_wait_most_vs_redisson", |it| it.waits_of(LARGE)[2])],
};

const MOSTLY_READ: Situation = Situation {
    title: "95 % of sections read, 1 ms",
    candidates: &[
        ("leasehold RwLock", "mostly read/leasehold"),
        ("by hand, every 1 ms", "mostly read/poller"),
        (REDISSON, "mostly read/redisson"),
        ("distributed-lock-redis", "mostly read/peer"),
        ("distributed-lock-redis, tuned", "mostly read/peer-tuned"),
    ],
    marked: Some(("wait to write", WRITE)),
    excess: |it| it.overlaps_with(WRITE) as u64,
    vs_redisson: &[("rw_acq_vs_redisson", Window::acquisitions_per_s)],
};

const ONE_WRITES: Situation = Situation {
    title: "one writes, 7 read without a pause, 1 ms",
    candidates: &[
        ("leasehold RwLock", "one writes/leasehold"),
        ("by hand, every 1 ms", "one writes/poller"),
        (REDISSON, "one writes/redisson"),
        ("distributed-lock-redis", "one writes/peer"),
        ("distributed-lock-redis, tuned", "one writes/peer-tuned"),
    ],
    vs_redisson: &[("writer_wait_p99_vs_redisson", |it| it.waits_of(WRITE)[1])],
    ..MOSTLY_READ
};

/// Opens a candidate of a situation; `None` if the kind names none.
pub(crate) fn open(kind: &str, url: &str) -> Option<Lockers> {
    let (situation, candidate) = kind.split_once('/')?;
    Some(match situation {
        "permits" => semaphore(candidate, url, 1),
        "one wants all" if is_first(url, "large") => semaphore(candidate, url, PERMITS),
        "one wants all" => semaphore(candidate, url, 1),
        "mostly read" => rw_lock(candidate, url, |number| number.is_multiple_of(WRITES)),
        "one writes" if is_first(url, "writer") => rw_lock(candidate, url, |_| true),
        "one writes" => rw_lock(candidate, url, |_| false),
        _ => unreachable!("unknown situation {situation}"),
    })
}

fn semaphore(candidate: &str, url: &str, wanted: u32) -> Lockers {
    let mark = if wanted == PERMITS { LARGE } else { SMALL };
    let here = url.to_owned();
    match candidate {
        "leasehold" => {
            let semaphore = Client::open(url).unwrap().semaphore(NAME, PERMITS);
            permits(semaphore.many(wanted), mark)
        }
        "poller" => polled_permits(url, PERMITS),
        "redisson" => redisson_permits(url, PERMITS, wanted, mark),
        "peer" => Box::new(move || distributed_semaphore(&here, false)),
        "peer-tuned" => Box::new(move || distributed_semaphore(&here, true)),
        _ => unreachable!("unknown candidate {candidate}"),
    }
}

fn rw_lock(candidate: &str, url: &str, writes: fn(u64) -> bool) -> Lockers {
    let here = url.to_owned();
    match candidate {
        "leasehold" => readers(Client::open(url).unwrap().rw_lock(NAME), writes),
        "poller" => polling_readers(url, writes),
        "redisson" => redisson_readers(url, writes),
        "peer" => Box::new(move || distributed_rw_lock(&here, false, writes)),
        "peer-tuned" => Box::new(move || distributed_rw_lock(&here, true, writes)),
        _ => unreachable!("unknown candidate {candidate}"),
    }
}

/// Repeats an attempt every 1 ms if the candidate is tuned, otherwise waits as the crate does.
macro_rules! acquire {
    ($is_tuned:expr, $attempt:expr, $wait:expr) => {
        if $is_tuned {
loop {
                match $attempt.await.map_err(|error| error.to_string())? {
                    Some(handle) => break handle,
                    None => thread::sleep(TUNED),
                }
            }
} else {
$wait.await.map_err(|error| error.to_string())?
}
    };
}

fn distributed_semaphore(url: &str, is_tuned: bool) -> Locker {
    let runtime = runtime();
    let provider = distributed_lock_provider(&runtime, &[url], is_tuned);
    Box::new(move |section| {
        let semaphore = provider.create_semaphore(NAME, PERMITS);
        runtime.block_on(async {
            let permit = acquire!(is_tuned, semaphore.try_acquire(), semaphore.acquire(None));
            section.run(SMALL);
            permit.release().await.map_err(|error| error.to_string())
        })
    })
}

fn distributed_rw_lock(url: &str, is_tuned: bool, writes: fn(u64) -> bool) -> Locker {
    let (runtime, mut number) = (runtime(), numbered());
    let provider = distributed_lock_provider(&runtime, &[url], is_tuned);
    Box::new(move |section| {
        let lock = provider.create_reader_writer_lock(NAME);
        let writes = writes(number());
        runtime.block_on(async {
            if writes {
                let writer = acquire!(is_tuned, lock.try_acquire_write(), lock.acquire_write(None));
                section.run(WRITE);
                return writer.release().await.map_err(|error| error.to_string());
            }
            let reader = acquire!(is_tuned, lock.try_acquire_read(), lock.acquire_read(None));
            section.run(READ);
            reader.release().await.map_err(|error| error.to_string())
        })
    })
}

/// Runs all candidates of each situation, prints a table of it, and reports the figures.
pub(crate) fn report() {
    let server = Server::start().long_lived();
    let (rounds, lasts) = (rounds(), lasts());
    let what = format!("{PROCESSES} processes and one name, {rounds} rounds of {lasts:?} each");
    let report = Report::begin("peers", rounds, &what);
    let situations = [PERMITS_SHARED, ONE_WANTS_ALL, MOSTLY_READ, ONE_WRITES];
    let (mut figures, mut panels) = (Vec::new(), Vec::new());
    for situation in &situations {
        let series = contended(&server, situation);
        situation.print(&series);
        panels.push(situation.panel(&series));
        let redisson = series.iter().find(|series| series.label == REDISSON);
        let redisson = redisson.expect("Redisson is in every situation");
        for (key, of) in situation.vs_redisson {
            figures.push((*key, series[0].ratio(redisson, of).figure()));
        }
    }
    let picture = Picture {
        title: format!("{PROCESSES} processes, one name"),
        panels,
    };
    report.end(&figures, &picture);
}

fn contended(server: &Server, situation: &Situation) -> Vec<Series> {
    let candidates = situation.candidates;
    let series = candidates
        .iter()
        .map(|(label, _)| Series::new(label, ms(1)));
    let mut series: Vec<Series> = series.collect();
    run_in_turns(rounds(), &mut series, |n| {
        let terms = Terms {
            kind: candidates[n].1,
            processes: PROCESSES,
            threads: 1,
            section: ms(1),
            lasts: lasts(),
        };
        server.run("FLUSHALL", &[]);
        measure(server, terms)
    });
    series
}

impl Situation {
    fn print(&self, series: &[Series]) {
        let rows = series.iter().map(|series| {
            let mut numbers = vec![series.spread(Window::acquisitions_per_s).median];
            numbers.extend(series.points(Window::waits));
            if let Some((_, mark)) = self.marked {
                numbers.extend(series.points(|it| it.waits_of(mark)));
            }
            let mut row = vec![series.label.to_owned()];
            row.extend(numbers.into_iter().map(|number| format!("{number:.0}")));
            let problems = problems(series, self.excess);
            assert!(!is_ours(series.label) || problems.is_empty(), "{problems}");
            row.push(problems);
            row
        });
        let mut heads = vec!["lock", "sections/s", "wait p50 µs", "p99", "max"];
        let p50 = self.marked.map(|(what, _)| format!("{what} p50"));
        heads.extend(p50.iter().flat_map(|p50| [p50.as_str(), "p99", "max"]));
        heads.push("problems");
        println!("\n{}", self.title);
        common::print_table(&heads, &rows.collect::<Vec<_>>());
    }

    /// Returns the panel of the waits of the marked holds, or of all holds if none are marked.
    ///
    /// Leaves out the waits of candidates that let in too many holders: such waits do not show the
    /// cost of exclusion.
    fn panel(&self, series: &[Series]) -> Panel {
        let rows = series.iter().map(|series| {
            if series.rounds.iter().any(|it| (self.excess)(it) > 0) {
                return Row::nothing(series.label, "too many holders at once");
            }
            let points = match self.marked {
                Some((_, mark)) => series.points(|it| it.waits_of(mark)),
                None => series.points(Window::waits),
            };
            let row = (!points[0].is_nan()).then(|| Row::range(series.label, points));
            drawn(series, row, &problems(series, self.excess))
        });
        let whose = self.marked.map_or("wait", |(what, _)| what);
        let title = format!("{}: {whose}, µs: p50 · p99 · max", self.title);
        Panel::new(title, rows.collect())
    }
}
