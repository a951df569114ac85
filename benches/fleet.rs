//! Processes and threads contending for one name, with empty critical sections and with sections of
//! 1 ms. The locks of the crate alternate with hand-written pollers (every 1 ms).
//!
//! Shows the cost of first come, first served. `FLEET=all cargo bench --bench fleet` also runs a
//! hand-written queue, with and without a subscriber thread: the difference is the cost of that
//! thread. `CHAOS=60 cargo bench --bench fleet` kills and pauses processes at random instead, in
//! three runs of at least 60 s each.

use std::env;
use std::time::Duration;

use common::fleet::{Terms, contend, measure};
use common::picture::{Panel, Picture, Row};
use common::series::{Series, run_in_turns};
use common::window::Window;
use common::{Report, Spread, candidates};
use support::{Chaos, Server, ms, survivor};

const ROUNDS: usize = 5;
const PROCESSES: usize = 8;

/// The length of a run: every process holds the lock many times. Runs with several threads in a
/// process last twice as long, because a process then hands the lock off between its own threads.
const LASTS: Duration = ms(4_000);

const POLLER: &str = "poller, every 1 ms";
const GRANTED: &str = "queue and grant by hand";
const DIRECTLY: &str = "by hand, no subscriber thread";
const FAIR: &str = "FairMutex";
const MUTEX: &str = "Mutex";
const LINGERS: &str = "Mutex, lingers 200 µs";
const MUTEX_4: &str = "Mutex, 4 threads each";
const POLLER_4: &str = "poller, 4 threads each";

/// The runs with `CHAOS`: the kind of lock, whether processes are paused too, and the key of the
/// figure for the longest time without an acquisition.
const KINDS: [(&str, bool, &str); 3] = [
    ("mutex", true, "mutex_stall_s"),
    ("fair", true, "fair_stall_s"),
    ("fair", false, "fair_killed_stall_s"),
];

/// Label, kind, threads per process, and the length of the section.
type Candidate = (&'static str, &'static str, usize, Duration);

const CANDIDATES: &[Candidate] = &[
    (FAIR, "fair", 1, ms(1)),
    (MUTEX, "mutex", 1, ms(1)),
    (POLLER, "poller", 1, ms(1)),
    (MUTEX_4, "mutex", 4, ms(1)),
    (POLLER_4, "poller", 4, ms(1)),
    (MUTEX, "mutex", 1, ms(0)),
    (LINGERS, "linger", 1, ms(0)),
    (POLLER, "poller", 1, ms(0)),
];

/// Added by `FLEET=all`.
const MORE_CANDIDATES: &[Candidate] = &[
    (GRANTED, "granted", 1, ms(1)),
    (DIRECTLY, "granted-directly", 1, ms(1)),
    ("FairMutex, 4 threads each", "fair", 4, ms(1)),
    (FAIR, "fair", 1, ms(0)),
    (MUTEX_4, "mutex", 4, ms(0)),
];

fn main() {
    // In a child process, runs its role and exits.
    if support::run_role(&[
        ("member", || contend(candidates::open)),
        ("survivor", survive_and_end),
    ]) {
        return;
    }
    let seconds = env::var("CHAOS").ok().and_then(|n| n.parse().ok());
    match seconds {
        Some(seconds) => run_chaos(Duration::from_secs(seconds)),
        None => compare(),
    }
}

fn compare() {
    let server = Server::start().long_lived();
    let report = Report::begin(
        "fleet",
        ROUNDS,
        &format!(
            "{PROCESSES} processes and one name, {ROUNDS} rounds of {LASTS:?} each, \
             twice that for several threads"
        ),
    );
    let mut candidates = CANDIDATES.to_vec();
    if env::var("FLEET").is_ok_and(|which| which == "all") {
        candidates.extend(MORE_CANDIDATES);
    }
    let new_series = |(label, _, _, section): &Candidate| Series::new(label, *section);
    let mut series: Vec<Series> = candidates.iter().map(new_series).collect();
    run_in_turns(ROUNDS, &mut series, |n| {
        let (_, kind, threads, section) = candidates[n];
        let terms = Terms {
            kind,
            processes: PROCESSES,
            threads,
            section,
            lasts: if threads > 1 { LASTS * 2 } else { LASTS },
        };
        let window = measure(&server, terms);
        window.holds_what_it_promises();
        window
    });
    for (section, title) in [(ms(1), "sections of 1 ms"), (ms(0), "empty sections")] {
        println!("\n{title}");
        table(&series, section);
    }
    report.end(&figures(&series), &picture(&series));
}

fn survive_and_end() {
    survivor();
    std::process::exit(0);
}

/// Kills and pauses processes at random, for at least `lasts` in each run. The protected resource
/// records the processes that lost the lock: [`Chaos::run`] asserts that all were killed or paused.
fn run_chaos(lasts: Duration) {
    let report = Report::begin(
        "chaos",
        1,
        &format!("{PROCESSES} processes, killed and paused at random for {lasts:?} each"),
    );
    let (mut rows, mut bars, mut figures) = (Vec::new(), Vec::new(), Vec::new());
    for (kind, pauses, figure) in KINDS {
        let chaos = Chaos {
            kind,
            processes: PROCESSES,
            threads: 4,
            pauses,
            duration: lasts,
        };
        let (server, witness) = (Server::start().long_lived(), Server::start().long_lived());
        let outcome = chaos.run(&server, &witness);
        let [stall, bound] = [outcome.stall, outcome.bound].map(|it| it.as_secs_f64());
        let label = if pauses {
            kind.to_owned()
        } else {
            format!("{kind}, killed only")
        };
        rows.push(vec![
            label.clone(),
            outcome.killed.to_string(),
            outcome.paused.to_string(),
            outcome.accepted.to_string(),
            outcome.overtaken.to_string(),
            outcome.rejected.to_string(),
            format!("{stall:.2}"),
            format!("{bound:.2}"),
        ]);
        let bar = Row::bar(label, Spread::of([stall].into_iter()));
        bars.push(bar.ours().mark("≤", (bound * 100.0).round() / 100.0));
        figures.push((figure, format!("{stall:.3}")));
        outcome.assert_promises();
    }
    common::print_table(
        &[
            "lock",
            "killed",
            "paused",
            "accepted",
            "overtaken",
            "rejected",
            "longest stall s",
            "bound s",
        ],
        &rows,
    );
    let picture = Picture {
        title: format!("{PROCESSES} processes, killed and paused at random"),
        panels: vec![Panel::new("longest time without an acquisition, s", bars)],
    };
    report.end(&figures, &picture);
}

/// The keys of the figures of a candidate relative to the poller: the p99 of the wait, the
/// acquisitions per second, and the p50 of the gap between two holders.
const FAIR_VS_POLLER: [&str; 3] = [
    "fair_wait_p99_vs_poller",
    "fair_acq_vs_poller",
    "fair_gap_vs_poller",
];
const GRANTED_VS_POLLER: [&str; 3] = [
    "granted_by_hand_wait_p99_vs_poller",
    "granted_by_hand_acq_vs_poller",
    "granted_by_hand_gap_vs_poller",
];
const DIRECTLY_VS_POLLER: [&str; 3] = [
    "granted_with_no_thread_wait_p99_vs_poller",
    "granted_with_no_thread_acq_vs_poller",
    "granted_with_no_thread_gap_vs_poller",
];
const MUTEX_VS_POLLER: [&str; 3] = [
    "mutex1_wait_p99_vs_poller",
    "mutex1_acq_vs_poller",
    "mutex1_gap_vs_poller",
];
const MUTEX_4_VS_POLLER: [&str; 3] = [
    "mutex4_wait_p99_vs_poller",
    "mutex4_acq_vs_poller",
    "mutex4_gap_vs_poller",
];
const EMPTY_VS_POLLER: [&str; 3] = [
    "mutex1_empty_wait_p99_vs_poller",
    "mutex1_empty_acq_vs_poller",
    "mutex1_empty_gap_vs_poller",
];
const LINGERS_VS_POLLER: [&str; 3] = [
    "mutex1_empty_linger_wait_p99_vs_poller",
    "mutex1_empty_linger_acq_vs_poller",
    "mutex1_empty_linger_gap_vs_poller",
];

fn figures(series: &[Series]) -> Vec<(&'static str, String)> {
    let find = |label, section| series.iter().find(|series| series.is(label, section));
    let mut figures = Vec::new();
    for (ours, poller, section, [wait, acq, gap]) in [
        (FAIR, POLLER, ms(1), FAIR_VS_POLLER),
        (GRANTED, POLLER, ms(1), GRANTED_VS_POLLER),
        (DIRECTLY, POLLER, ms(1), DIRECTLY_VS_POLLER),
        (MUTEX, POLLER, ms(1), MUTEX_VS_POLLER),
        (MUTEX_4, POLLER_4, ms(1), MUTEX_4_VS_POLLER),
        (MUTEX, POLLER, ms(0), EMPTY_VS_POLLER),
        (LINGERS, POLLER, ms(0), LINGERS_VS_POLLER),
    ] {
        let (Some(ours), Some(poller)) = (find(ours, section), find(poller, section)) else {
            continue;
        };
        let acquired = ours.ratio(poller, Window::acquisitions_per_s);
        figures.push((wait, ours.ratio(poller, |it| it.waits()[1]).figure()));
        figures.push((acq, acquired.figure()));
        figures.push((gap, ours.ratio(poller, |it| it.gaps()[0]).figure()));
    }
    let requests: fn(&Window) -> f64 = Window::requests_per_acquisition;
    for (key, label, of) in [
        ("fair_requests_per_acq", FAIR, requests),
        ("mutex1_requests_per_acq", MUTEX, requests),
        ("mutex4_requests_per_acq", MUTEX_4, requests),
        ("poller_requests_per_acq", POLLER, requests),
        ("fair_jain", FAIR, Window::jain_processes),
        ("mutex1_jain", MUTEX, Window::jain_processes),
        ("mutex4_jain", MUTEX_4, Window::jain_processes),
        ("mutex4_jain_threads", MUTEX_4, Window::jain_threads),
    ] {
        let found = find(label, ms(1)).expect("every kind has a result");
        figures.push((key, found.spread(of).figure()));
    }
    let lingers = find(LINGERS, ms(0)).expect("every kind has a result");
    let jain = lingers.spread(Window::jain_processes);
    figures.push(("mutex1_empty_linger_jain", jain.figure()));
    let longest = lingers.points(Window::waits)[2] / 1_000.0;
    figures.push((
        "mutex1_empty_linger_longest_wait_ms",
        format!("{longest:.1}"),
    ));
    figures
}

fn table(series: &[Series], section: Duration) {
    let series = series.iter().filter(|series| series.section == section);
    let rows: Vec<_> = series
        .map(|series| {
            let show = |value: Spread, decimals: usize| format!("{:.decimals$}", value.median);
            let points = |points: [f64; 3]| points.map(|point| format!("{point:.0}"));
            let [gap_p50, gap_p99, gap_max] = points(series.points(Window::gaps));
            let [wait_p50, wait_p99, _] = points(series.points(Window::waits));
            vec![
                series.label.to_owned(),
                show(series.spread(Window::acquisitions_per_s), 0),
                gap_p50,
                gap_p99,
                gap_max,
                wait_p50,
                wait_p99,
                show(series.spread(Window::jain_threads), 3),
                show(series.spread(Window::jain_processes), 3),
                show(series.spread(Window::requests_per_acquisition), 2),
                show(series.spread(Window::client_cpu_per_acquisition), 0),
                show(series.spread(Window::server_cpu_per_acquisition), 0),
            ]
        })
        .collect();
    common::print_table(
        &[
            "candidate",
            "acquisitions/s",
            "gap p50 µs",
            "p99",
            "max",
            "wait p50 µs",
            "p99",
            "Jain threads",
            "processes",
            "requests",
            "client CPU µs",
            "server CPU µs",
        ],
        &rows,
    );
}

fn picture(series: &[Series]) -> Picture {
    let rows = |row: &dyn Fn(&Series) -> Row| {
        let series = series.iter().filter(|series| series.section == ms(1));
        series
            .map(|series| {
                if series.label.contains("Mutex") {
                    row(series).ours()
                } else {
                    row(series)
                }
            })
            .collect()
    };
    let range = |of: fn(&Window) -> [f64; 3]| {
        rows(&|series: &Series| Row::range(series.label, series.points(of)))
    };
    let bar =
        |of: fn(&Window) -> f64| rows(&|series: &Series| Row::bar(series.label, series.spread(of)));
    let jain = rows(&|series: &Series| {
        let row = Row::bar(series.label, series.spread(Window::jain_processes));
        match series.label {
            FAIR => row.mark("≥", 0.99),
            MUTEX => row.mark("≥", 0.99),
            MUTEX_4 => row.mark("≥", 0.97),
            _ => row,
        }
    });
    Picture {
        title: format!("{PROCESSES} processes, one name, sections of 1 ms"),
        panels: vec![
            Panel::new("wait, µs: p50 · p99 · max", range(Window::waits)),
            Panel::new(
                "gap between two holders, µs: p50 · p99 · max",
                range(Window::gaps),
            ),
            Panel::new("acquisitions per second", bar(Window::acquisitions_per_s)),
            Panel::new("Jain's index across processes (1: equal shares)", jain),
            Panel::new(
                "requests per acquisition",
                bar(Window::requests_per_acquisition),
            ),
            Panel::new(
                "client CPU time per acquisition, µs",
                bar(Window::client_cpu_per_acquisition),
            ),
        ],
    }
}
