//! Permits of a semaphore: acquire and release on one thread, processes that share four permits,
//! and one process that wants all four while seven want one each.
//!
//! The calls on one thread alternate with the same scripts by hand, with Redisson's scripts by hand
//! and with `FairMutex`. The runs of the processes alternate with the simplest queue by hand and
//! with processes that poll every 1 ms.

use std::time::Duration;

use common::candidates::{permits, polled_permits};
use common::fleet::{Lockers, Terms, contend, is_first, measure};
use common::floor::permits::{PermitHand, SimpleQueue};
use common::floor::redisson::RedissonPermits;
use common::picture::{Picture, Row};
use common::ping_pong::Side;
use common::series::{Series, panels, run_in_turns};
use common::window::Window;
use common::{Report, Runner, Samples, Spread};
use leasehold::Client;
use support::{Server, ms};

const PAIR_ROUNDS: usize = 200;

/// How many pairs of acquire and release each runner times in a round.
const PAIRS: usize = 25;

/// How many other permits are out while the pairs are measured.
const OTHERS: [usize; 3] = [0, 10, 1_000];

const ROUNDS: usize = 5;
const PROCESSES: usize = 8;
const PERMITS: u32 = 4;
const SECTION: Duration = ms(1);
const LASTS: Duration = ms(3_000);

const OURS: &str = "Semaphore";
const IDEAL: &str = "queue by hand";
const MIXED: &str = "Semaphore, one wants all";
const POLLER: &str = "poller by hand, every 1 ms";

const CANDIDATES: [(&str, &str); 4] = [
    (OURS, "ours"),
    (IDEAL, "ideal"),
    (MIXED, "mixed"),
    (POLLER, "poller"),
];

/// In place of a token, marks the holds of the process that wants all permits.
const LARGE: u64 = 1;
const SMALL: u64 = 0;

/// The figures in the picture: key, label, and the highest value that meets the target, if there is
/// one.
const BARS: [(&str, &str, Option<f64>); 8] = [
    ("pair_vs_scripts", "pair vs its scripts by hand", Some(1.05)),
    ("pair_vs_fair", "pair vs FairMutex", Some(1.3)),
    ("pair_vs_redisson", "pair vs Redisson's by hand", None),
    (
        "wait_p99_vs_ideal",
        "wait p99 vs the queue by hand",
        Some(1.3),
    ),
    ("wait_p99_vs_poller", "wait p99 vs the poller", None),
    ("acq_vs_poller", "acquisitions vs the poller", None),
    ("requests_per_acq", "requests per acquisition", Some(2.3)),
    (
        "large_wait_vs_mean",
        "longest wait for all vs mean",
        Some(3.0),
    ),
];

fn main() {
    // In a child process, runs its role and exits.
    if support::run_role(&[("member", || contend(open))]) {
        return;
    }
    let server = Server::start().long_lived();
    let report = Report::begin(
        "semaphore",
        ROUNDS,
        &format!(
            "acquire + release on one thread, {PAIR_ROUNDS} rounds of {PAIRS}; then {PROCESSES} \
             processes and {PERMITS} permits, {ROUNDS} rounds of {LASTS:?} each"
        ),
    );
    let (pairs, names) = pairs(&server);
    let series = contended(&server);
    let figures = figures(&pairs, &series);
    let bars = BARS.iter().map(|(key, label, most)| {
        let (_, spread) = figures.iter().find(|(of, _)| of == key).expect(key);
        let bar = Row::bar(*label, *spread).ours();
        match most {
            Some(most) => bar.mark("≤", *most),
            None => bar,
        }
    });
    let picture = Picture {
        title: format!("{PROCESSES} processes, {PERMITS} permits, sections of 1 ms"),
        panels: panels(bars.collect(), &series, &names, &pairs),
    };
    let figures: Vec<_> = (figures.iter())
        .map(|(key, spread)| (*key, spread.figure()))
        .collect();
    report.end(&figures, &picture);
}

fn figures(pairs: &[Samples], series: &[Series; 4]) -> Vec<(&'static str, Spread)> {
    let [permits @ .., redisson, fair] = pairs else {
        unreachable!("more than two runners");
    };
    let vs_scripts = permits.chunks(2).map(|both| both[0].ratio(&both[1]));
    let vs_scripts: Vec<Spread> = vs_scripts.collect();
    let [ours, ideal, mixed, poller] = series;
    vec![
        ("pair_vs_scripts", vs_scripts[0]),
        ("pair_vs_scripts_10_out", vs_scripts[1]),
        ("pair_vs_scripts_1000_out", vs_scripts[2]),
        ("pair_vs_fair", pairs[0].ratio(fair)),
        ("pair_vs_redisson", pairs[0].ratio(redisson)),
        ("wait_p99_vs_ideal", ours.ratio(ideal, |it| it.waits()[1])),
        ("wait_p99_vs_poller", ours.ratio(poller, |it| it.waits()[1])),
        (
            "acq_vs_poller",
            ours.ratio(poller, Window::acquisitions_per_s),
        ),
        ("jain", ours.spread(Window::jain_processes)),
        (
            "requests_per_acq",
            ours.spread(Window::requests_per_acquisition),
        ),
        (
            "large_wait_vs_mean",
            mixed.spread(|it| it.waits_vs_mean(LARGE)[1]),
        ),
        (
            "large_mean_wait_vs_mean",
            mixed.spread(|it| it.waits_vs_mean(LARGE)[0]),
        ),
        (
            "small_wait_vs_mean",
            mixed.spread(|it| it.waits_vs_mean(SMALL)[1]),
        ),
    ]
}

/// Times pairs of acquire and release; returns the samples and the names of the runners.
///
/// For each number in `OTHERS`, the client runs first and its scripts by hand second. The last two
/// are Redisson's scripts by hand and `FairMutex`.
fn pairs(server: &Server) -> (Vec<Samples>, Vec<String>) {
    let url = server.url();
    let client = Client::open(&url).unwrap();
    let (mut names, mut runners) = (Vec::new(), Vec::<Runner<'_>>::new());
    for others in OTHERS {
        let permits = 2_000;
        let name = format!("pairs-{others}");
        let semaphore = client.semaphore(&name, permits);
        // The other permits are never released or renewed: the bench must end within their ttl.
        let unrenewed = semaphore
            .clone()
            .many(1)
            .ttl(ms(3_600_000))
            .auto_renew(false);
        (0..others).for_each(|_| std::mem::forget(unrenewed.acquire().unwrap()));
        let mut hand = PermitHand::new(&url, &name, permits);
        names.push(format!("{OURS}, {others} others out"));
        runners.push(Box::new(move || {
            common::timed(PAIRS, || {
                let permit = semaphore.acquire().unwrap();
                permit.release().unwrap();
            })
        }));
        names.push(format!("its scripts by hand, {others} others out"));
        runners.push(Box::new(move || common::timed(PAIRS, || hand.pair())));
    }
    let mut redisson = RedissonPermits::new(&url, "pairs-redisson", 2_000, 1);
    names.push("Redisson's scripts by hand".to_owned());
    runners.push(Box::new(move || {
        common::timed(PAIRS, || redisson.run(|| ()))
    }));
    let fair = client.fair_mutex("pairs-fair");
    names.push("FairMutex".to_owned());
    runners.push(Box::new(move || {
        common::timed(PAIRS, || {
            let guard = fair.lock().unwrap();
            guard.unlock().unwrap();
        })
    }));
    let samples = common::take_turns(PAIR_ROUNDS, &mut runners);
    common::print_pairs(&names, &samples);
    (samples, names)
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
        // In each mixed run, the first process to claim this key wants all permits.
        server.run("DEL", &["large"]);
        let window = measure(server, terms);
        window.holds_at_most(PERMITS as usize);
        // Only holds of all permits have this mark.
        window.is_held_alone(LARGE);
        window
    });
    let rows = series.iter().map(|series| {
        let [p50, p99, max] = series
            .points(Window::waits)
            .map(|point| format!("{point:.0}"));
        let show = |of: fn(&Window) -> f64| format!("{:.3}", series.spread(of).median);
        vec![
            series.label.to_owned(),
            show(Window::acquisitions_per_s),
            p50,
            p99,
            max,
            show(Window::jain_processes),
            show(Window::requests_per_acquisition),
        ]
    });
    let heads = [
        "candidate",
        "acquisitions/s",
        "wait p50 µs",
        "p99",
        "max",
        "Jain",
        "requests",
    ];
    common::print_table(&heads, &rows.collect::<Vec<_>>());
    series
}

/// Opens the candidate of this kind, in a process with the role `member`.
fn open(kind: &str, url: &str) -> Lockers {
    let semaphore = || Client::open(url).unwrap().semaphore("contended", PERMITS);
    match kind {
        "ours" => permits(semaphore(), SMALL),
        "mixed" => {
            if is_first(url, "large") {
                permits(semaphore().many(PERMITS), LARGE)
            } else {
                permits(semaphore(), SMALL)
            }
        }
        "ideal" => {
            let url = url.to_owned();
            Box::new(move || {
                let mut queue = SimpleQueue::new(&url, PERMITS);
                Box::new(move |section| {
                    queue.take();
                    section.run(0);
                    queue.release();
                    Ok(())
                })
            })
        }
        "poller" => polled_permits(url, PERMITS),
        _ => unreachable!("unknown kind {kind}"),
    }
}
