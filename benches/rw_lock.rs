//! A read-write lock: acquire and release on one thread, processes that mostly read, and a writer
//! among readers that never pause.
//!
//! Alternates with a reader's scripts called by hand, with `Mutex`, with `FairMutex`, and with a
//! hand-written read-write lock that polls every 1 ms.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{hint, thread};

use common::candidates::{WRITE, polling_readers, readers, released};
use common::fleet::{Lockers, Terms, contend, is_first, measure};
use common::floor::readers::ReaderHand;
use common::picture::{Picture, Row};
use common::series::{Series, panels, run_in_turns};
use common::window::Window;
use common::{Report, Runner, Samples, Spread};
use leasehold::{Client, Error};
use support::{Server, ms};

const PAIR_ROUNDS: usize = 200;

/// How many times a round acquires and releases each lock.
const PAIRS: usize = 25;

const ROUNDS: usize = 5;
const PROCESSES: usize = 8;
const SECTION: Duration = ms(1);

/// How long a round of the processes lasts.
const LASTS: Duration = ms(3_000);

/// If all processes read and write, one section in this many is a write.
const WRITES: u64 = 20;

/// The label of the candidate that shares the processors with this many busy loops.
const BUSY: &str = "RwLock, one writes, 6 busy loops";
const LOOPS: usize = 6;

const NAMES: [&str; 5] = [
    "Mutex",
    "RwLock, read",
    "its scripts by hand",
    "FairMutex",
    "RwLock, write",
];

const CANDIDATES: [(&str, &str); 6] = [
    ("RwLock, 95 % read", "mixed"),
    ("Mutex", "mutex"),
    ("RwLock, one writes", "one writer"),
    ("poller, 95 % read", "poller"),
    ("poller, one writes", "one polling writer"),
    (BUSY, "one writer"),
];

fn main() {
    // In a child process, runs its role and exits.
    if support::run_role(&[("member", || contend(open))]) {
        return;
    }
    let server = Server::start().long_lived();
    let report = Report::begin(
        "rw_lock",
        ROUNDS,
        &format!(
            "acquire + release on one thread, {PAIR_ROUNDS} rounds of {PAIRS}; then {PROCESSES} \
             processes, {ROUNDS} rounds of {LASTS:?} each"
        ),
    );
    let pairs = pairs(&server);
    let [read_vs_scripts, read, write] = pair_ratios(&pairs);
    let series = contended(&server);
    let [mixed, mutex, one_writer, poller, polling_writer, busy] = &series;
    let sections = mixed.ratio(mutex, Window::acquisitions_per_s);
    let polled = mixed.ratio(poller, Window::acquisitions_per_s);
    let polled_wait = one_writer.ratio(polling_writer, |it| it.waits()[1]);
    let [wait, busy_wait] = [one_writer, busy]
        .map(|it| it.spread(|it| it.waits_of(WRITE)[1] / SECTION.as_micros() as f64));
    let ratios = vec![
        Row::bar("read + release vs its scripts by hand", read_vs_scripts)
            .ours()
            .mark("≤", 1.05),
        Row::bar("read + release vs Mutex", read)
            .ours()
            .mark("≤", 1.2),
        Row::bar("write + release vs FairMutex", write)
            .ours()
            .mark("≤", 1.1),
        Row::bar("sections/s, 95 % read, vs Mutex", sections)
            .ours()
            .mark("≥", 5.0),
        Row::bar("a writer's wait p99, in sections", wait)
            .ours()
            .mark("≤", 3.0),
        Row::bar("the same, beside 6 busy loops", busy_wait)
            .ours()
            .mark("≤", 3.0),
        Row::bar("sections/s, 95 % read, vs the poller", polled).ours(),
        Row::bar("wait p99, one writes, vs the poller", polled_wait).ours(),
    ];
    let picture = Picture {
        title: format!("{PROCESSES} processes that read and write, sections of 1 ms"),
        panels: panels(ratios, &series, &NAMES, &pairs),
    };
    report.end(
        &[
            ("read_pair_vs_scripts", read_vs_scripts.figure()),
            ("read_pair_vs_mutex", read.figure()),
            ("write_pair_vs_fair", write.figure()),
            ("sections_vs_mutex", sections.figure()),
            ("writer_wait_sections", wait.figure()),
            ("writer_wait_sections_busy", busy_wait.figure()),
            ("sections_vs_poller", polled.figure()),
            ("one_writer_wait_p99_vs_poller", polled_wait.figure()),
        ],
        &picture,
    );
}

/// Returns the ratios of a read to its scripts by hand, of a read to `Mutex`, and of a write to
/// `FairMutex`.
fn pair_ratios(pairs: &[Samples]) -> [Spread; 3] {
    let [mutex, read, by_hand, fair, write] = pairs else {
        unreachable!("five runners");
    };
    [read.ratio(by_hand), read.ratio(mutex), write.ratio(fair)]
}

fn pairs(server: &Server) -> Vec<Samples> {
    let client = Client::open(server.url()).unwrap();
    let (mutex, fair) = (client.mutex("plain"), client.fair_mutex("fair"));
    let (read, write) = (client.rw_lock("read"), client.rw_lock("written"));
    let mut by_hand = ReaderHand::new(&server.url(), "read-by-hand");
    let timed = |pair: &dyn Fn() -> Result<(), Error>| common::timed(PAIRS, || pair().unwrap());
    let mut runners: Vec<Runner<'_>> = vec![
        Box::new(|| timed(&|| mutex.lock()?.unlock())),
        Box::new(|| timed(&|| read.read()?.unlock())),
        Box::new(|| common::timed(PAIRS, || by_hand.pair())),
        Box::new(|| timed(&|| fair.lock()?.unlock())),
        Box::new(|| timed(&|| write.write()?.unlock())),
    ];
    let samples = common::take_turns(PAIR_ROUNDS, &mut runners);
    common::print_pairs(&NAMES, &samples);
    samples
}

fn contended(server: &Server) -> [Series; CANDIDATES.len()] {
    let mut series = CANDIDATES.map(|(label, _)| Series::new(label, SECTION));
    run_in_turns(ROUNDS, &mut series, |n| {
        let terms = Terms {
            kind: CANDIDATES[n].1,
            processes: PROCESSES,
            threads: 1,
            section: SECTION,
            lasts: LASTS,
        };
        // The first process of each round to claim this key becomes the only writer.
        server.run("DEL", &["writer"]);
        let loops = if CANDIDATES[n].0 == BUSY { LOOPS } else { 0 };
        let busy = BusyLoops::start(loops);
        let window = measure(server, terms);
        drop(busy);
        window.holds_at_most(PROCESSES);
        window.is_held_alone(WRITE);
        window
    });
    let rows = series.iter().map(|series| {
        let shown = |of: [f64; 3]| of.map(|point| format!("{point:.0}"));
        let [p50, p99, max] = shown(series.points(Window::waits));
        let [write_p50, write_p99, write_max] = shown(series.points(|it| it.waits_of(WRITE)));
        let rate = series.spread(Window::acquisitions_per_s).median;
        let requests = series.spread(Window::requests_per_acquisition).median;
        vec![
            series.label.to_owned(),
            format!("{rate:.0}"),
            p50,
            p99,
            max,
            write_p50,
            write_p99,
            write_max,
            format!("{requests:.3}"),
        ]
    });
    let heads = [
        "candidate",
        "sections/s",
        "wait p50 µs",
        "p99",
        "max",
        "to write p50",
        "p99",
        "max",
        "requests",
    ];
    common::print_table(&heads, &rows.collect::<Vec<_>>());
    series
}

/// Threads that use the processors until they are dropped.
struct BusyLoops(Arc<AtomicBool>);

impl BusyLoops {
    fn start(count: usize) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        for _ in 0..count {
            let ends = Arc::clone(&ends);
            thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        Self(ends)
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Opens the candidate of this kind in a member process.
fn open(kind: &str, url: &str) -> Lockers {
    let client = Client::open(url).unwrap();
    match kind {
        "mutex" => Box::new(move || {
            let mutex = client.mutex("contended");
            Box::new(move |section| {
                let guard = mutex.lock().map_err(|error| error.to_string())?;
                section.run(WRITE);
                released(guard.unlock())
            })
        }),
        "mixed" => readers(client.rw_lock("contended"), |n| n % WRITES == 0),
        "poller" => polling_readers(url, |n| n % WRITES == 0),
        "one writer" | "one polling writer" => {
            let writes: fn(u64) -> bool = match is_first(url, "writer") {
                true => |_| true,
                false => |_| false,
            };
            match kind {
                "one writer" => readers(client.rw_lock("contended"), writes),
                _ => polling_readers(url, writes),
            }
        }
        _ => unreachable!("unknown kind {kind}"),
    }
}
