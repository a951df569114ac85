//! A read-write lock: acquire and release on one thread, processes that mostly read, and a writer
//! among readers that never pause.
//!
//! Alternates with a reader's scripts called by hand, with `Mutex`, with `FairMutex`, with a
//! hand-written read-write lock that polls every 1 ms, and with one round trip without any lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{hint, thread};

use common::candidates::{READ, WRITE, polling_readers, readers, released};
use common::fleet::{Lockers, Terms, contend, is_first, measure};
use common::floor::pair::connect;
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

/// The labels of the candidates that share the processors with this many busy loops.
const BUSY: &str = "RwLock, one writes, 6 busy loops";
/// Without any lock: what one command costs there.
const BUSY_FLOOR: &str = "one round trip, 6 busy loops";
const LOOPS: usize = 6;

/// The key of the figure that is no lock's.
const FLOOR: &str = "round_trip_sections_busy";

const NAMES: [&str; 5] = [
    "Mutex",
    "RwLock, read",
    "its scripts by hand",
    "FairMutex",
    "RwLock, write",
];

const CANDIDATES: [(&str, &str); 7] = [
    ("RwLock, 95 % read", "mixed"),
    ("Mutex", "mutex"),
    ("RwLock, one writes", "one writer"),
    ("poller, 95 % read", "poller"),
    ("poller, one writes", "one polling writer"),
    (BUSY, "one writer"),
    (BUSY_FLOOR, "no lock"),
];

/// The key of a figure, its label, and its target.
type Figure = (&'static str, &'static str, Option<(&'static str, f64)>);

const FIGURES: [Figure; 9] = [
    (
        "read_pair_vs_scripts",
        "read + release vs its scripts by hand",
        Some(("≤", 1.05)),
    ),
    (
        "read_pair_vs_mutex",
        "read + release vs Mutex",
        Some(("≤", 1.2)),
    ),
    (
        "write_pair_vs_fair",
        "write + release vs FairMutex",
        Some(("≤", 1.1)),
    ),
    (
        "sections_vs_mutex",
        "sections/s, 95 % read, vs Mutex",
        Some(("≥", 5.0)),
    ),
    (
        "writer_wait_sections",
        "a writer's wait p99, in sections",
        Some(("≤", 3.0)),
    ),
    (
        "writer_wait_sections_busy",
        "the same, beside 6 busy loops",
        Some(("≤", 3.0)),
    ),
    (FLOOR, "one round trip p99, beside 6 busy loops", None),
    (
        "sections_vs_poller",
        "sections/s, 95 % read, vs the poller",
        None,
    ),
    (
        "one_writer_wait_p99_vs_poller",
        "wait p99, one writes, vs the poller",
        None,
    ),
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
    let series = contended(&server);
    let values = values(&pairs, &series);
    let bars = FIGURES
        .iter()
        .zip(values)
        .map(|((key, label, must), value)| {
            let bar = Row::bar(*label, value);
            let bar = if *key == FLOOR { bar } else { bar.ours() };
            match must {
                Some((sign, limit)) => bar.mark(sign, *limit),
                None => bar,
            }
        });
    let picture = Picture {
        title: format!("{PROCESSES} processes that read and write, sections of 1 ms"),
        panels: panels(bars.collect(), &series, &NAMES, &pairs),
    };
    let figures = FIGURES.iter().zip(values);
    let figures = figures.map(|((key, ..), value)| (*key, value.figure()));
    report.end(&figures.collect::<Vec<_>>(), &picture);
}

/// Returns the value of each figure.
fn values(pairs: &[Samples], series: &[Series; CANDIDATES.len()]) -> [Spread; FIGURES.len()] {
    let [read_vs_scripts, read, write] = pair_ratios(pairs);
    let [
        mixed,
        mutex,
        one_writer,
        poller,
        polling_writer,
        busy,
        floor,
    ] = series;
    let rate = |of: &Series| mixed.ratio(of, Window::acquisitions_per_s);
    let in_sections =
        |of: &Series, mark| of.spread(|it| it.waits_of(mark)[1] / SECTION.as_micros() as f64);
    [
        read_vs_scripts,
        read,
        write,
        rate(mutex),
        in_sections(one_writer, WRITE),
        in_sections(busy, WRITE),
        in_sections(floor, READ),
        rate(poller),
        one_writer.ratio(polling_writer, |it| it.waits()[1]),
    ]
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
        let is_busy = [BUSY, BUSY_FLOOR].contains(&CANDIDATES[n].0);
        let busy = BusyLoops::start(if is_busy { LOOPS } else { 0 });
        let window = measure(server, terms);
        drop(busy);
        window.holds_at_most(PROCESSES);
        window.is_held_alone(WRITE);
        window
    });
    let rows = series.iter().map(|series| {
        // Without any lock, nobody waits to write.
        let shown = |of: [f64; 3]| {
            of.map(|point| {
                if point.is_nan() {
                    "-".into()
                } else {
                    format!("{point:.0}")
                }
            })
        };
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
        "no lock" => {
            let url = url.to_owned();
            Box::new(move || {
                let mut connection = connect(&url);
                Box::new(move |section| {
                    let reply = redis::cmd("PING").exec(&mut connection);
                    section.run(READ);
                    reply.map_err(|error| error.to_string())
                })
            })
        }
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
            let writes: fn(u64) -> bool = if is_first(url, "writer") {
                |_| true
            } else {
                |_| false
            };
            match kind {
                "one writer" => readers(client.rw_lock("contended"), writes),
                _ => polling_readers(url, writes),
            }
        }
        _ => unreachable!("unknown kind {kind}"),
    }
}
