//! Eight processes contending for one name: through leasehold, through other crates, and through
//! hand-written equivalents, in turn. First they contend for a lock of one holder, then for a
//! semaphore and a read-write lock.

mod contention;
mod kinds;
mod provider;
mod shared;
mod shown;

use std::time::Duration;

use common::Report;
use common::fleet::{Terms, contend, measure};
use common::picture::{Panel, Picture, Row};
use common::series::Series;
use common::window::Window;
use contention::{LASTS, PROCESSES, ROUNDS};
use shown::{drawn, is_ours, problems};
use support::{Server, ms};

const SECTIONS: [Duration; 2] = [ms(1), ms(0)];

/// Label and kind. Those of this crate come first.
const CANDIDATES: [(&str, &str); 11] = [
    ("leasehold Mutex", "mutex"),
    ("leasehold FairMutex", "fair"),
    ("by hand, every 1 ms", "poller"),
    ("rslock", "rslock"),
    ("rslock, tuned", "rslock-tuned"),
    ("redlock", "redlock"),
    ("redlock, tuned", "redlock-tuned"),
    ("redis-lock", "redis-lock"),
    ("redis-lock, tuned", "redis-lock-tuned"),
    ("distributed-lock-redis", "distributed-lock"),
    ("distributed-lock-redis, tuned", "distributed-lock-tuned"),
];

fn sections(lasting: Duration) -> String {
    match lasting.is_zero() {
        true => "empty sections".to_owned(),
        false => format!("sections of {lasting:?}"),
    }
}

fn main() {
    // In a child process, runs its role and exits.
    if support::run_role(&[("member", || contend(kinds::open))]) {
        return;
    }

    let server = Server::start().long_lived();
    let report = Report::begin(
        "peers",
        ROUNDS,
        &format!("{PROCESSES} processes and one name, {ROUNDS} rounds of {LASTS:?} each"),
    );
    let mut series: Vec<Series> = SECTIONS
        .into_iter()
        .flat_map(|section| CANDIDATES.map(|(label, _)| Series::new(label, section)))
        .collect();
    for round in 0..ROUNDS {
        for turn in 0..series.len() {
            let n = (round + turn) % series.len();
            let terms = Terms {
                kind: CANDIDATES[n % CANDIDATES.len()].1,
                processes: PROCESSES,
                threads: 1,
                section: series[n].section,
                lasts: LASTS,
            };
            // Keys left behind by one candidate must not affect the next.
            redis::cmd("FLUSHALL")
                .exec(&mut server.connection())
                .unwrap();
            let window = measure(&server, terms);
            if is_ours(series[n].label) {
                window.holds_what_it_promises();
            }
            series[n].rounds.push(window);
        }
    }
    for section in SECTIONS {
        println!("\n{}", sections(section));
        table(&series, section);
    }
    let (of_shared, panels) = shared::run(&server);
    let mut figures = figures(&series);
    figures.extend(of_shared);
    let mut picture = picture(&series);
    picture.panels.extend(panels);
    report.end(&figures, &picture);
}

/// Violations and failures, for the last column.
fn verdict(series: &Series) -> String {
    problems(series, |it| it.miscounted.max(it.overlaps as u64))
}

fn table(series: &[Series], section: Duration) {
    let series = series.iter().filter(|series| series.section == section);
    let rows: Vec<_> = series
        .map(|series| {
            let [gap_p50, gap_p99, _] = series.points(Window::gaps);
            let [wait_p50, wait_p99, wait_most] = series.points(Window::waits);
            let numbers = [
                series.spread(Window::acquisitions_per_s).median,
                gap_p50,
                gap_p99,
                wait_p50,
                wait_p99,
                wait_most,
            ];
            let mut row = vec![series.label.to_owned()];
            row.extend(numbers.map(|number| format!("{number:.0}")));
            let median = |of: fn(&Window) -> f64| series.spread(of).median;
            row.push(format!("{:.3}", median(Window::jain_processes)));
            row.push(format!("{:.2}", median(Window::requests_per_acquisition)));
            row.push(format!("{:.0}", median(Window::client_cpu_per_acquisition)));
            row.push(verdict(series));
            row
        })
        .collect();
    common::print_table(
        &[
            "lock",
            "acquisitions/s",
            "gap p50 µs",
            "p99",
            "wait p50 µs",
            "p99",
            "max",
            "Jain",
            "requests",
            "client CPU µs",
            "problems",
        ],
        &rows,
    );
}

fn figures(series: &[Series]) -> Vec<(&'static str, String)> {
    let of_1_ms = || series.iter().filter(|series| series.section == ms(1));
    let find = |label: &str| of_1_ms().find(|series| series.label == label);
    let find = |label| find(label).expect("every kind has a result");
    let all_peers = || of_1_ms().skip(3);
    // The best crate without violations or failures.
    let peers = || all_peers().filter(|series| verdict(series).is_empty());
    let ratios = |label, of: fn(&Window) -> f64| {
        let ours = find(label);
        peers().map(move |peer| ours.ratio(peer, of).median)
    };
    let more = |label, of| {
        let ratios = ratios(label, of).fold(f64::INFINITY, f64::min);
        format!("{ratios:.3}")
    };
    let less = |label, of| format!("{:.3}", ratios(label, of).fold(0.0, f64::max));
    let (mutex, fair) = (CANDIDATES[0].0, CANDIDATES[1].0);
    // Compares the maximum, not the p99: if one process nearly always has the lock, nearly all
    // waits are its own, and short.
    let wait = |it: &Window| it.waits()[2];
    let gap = |it: &Window| it.gaps()[0];
    vec![
        (
            "mutex_acq_vs_best_peer",
            more(mutex, Window::acquisitions_per_s),
        ),
        ("mutex_wait_most_vs_best_peer", less(mutex, wait)),
        ("mutex_gap_vs_best_peer", less(mutex, gap)),
        (
            "fair_acq_vs_best_peer",
            more(fair, Window::acquisitions_per_s),
        ),
        ("fair_wait_most_vs_best_peer", less(fair, wait)),
        ("fair_gap_vs_best_peer", less(fair, gap)),
        (
            "peers_that_overlap_fail_or_hang",
            (all_peers().count() - peers().count()).to_string(),
        ),
    ]
}

fn picture(series: &[Series]) -> Picture {
    let rows = |section: Duration, row: &dyn Fn(&Series) -> Row| {
        let series = series.iter().filter(|series| series.section == section);
        series
            .map(|series| {
                let held = series.rounds.iter().any(|it| it.acquisitions() > 0);
                drawn(series, held.then(|| row(series)), &verdict(series))
            })
            .collect()
    };
    let mut panels = Vec::new();
    for section in SECTIONS {
        panels.push(Panel::new(
            format!("{}: wait, µs: p50 · p99 · max", sections(section)),
            rows(section, &|series| {
                Row::range(series.label, series.points(Window::waits))
            }),
        ));
        panels.push(Panel::new(
            format!("{}: acquisitions per second", sections(section)),
            rows(section, &|series| {
                Row::bar(series.label, series.spread(Window::acquisitions_per_s))
            }),
        ));
    }
    Picture {
        title: format!("{PROCESSES} processes, one name"),
        panels,
    }
}
