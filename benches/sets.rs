//! The wait for two names as a set, while other processes lock each of the two without a pause.
//! The set must not starve: its wait is compared with that of the others.

use std::thread;
use std::time::{Duration, Instant};

use common::picture::{Panel, Picture, Row};
use common::{Report, Spread, percentile};
use leasehold::Client;
use support::{Child, Server, ms, parameter, tell_parent};

const ROUNDS: usize = 5;
const PROCESSES: usize = 8;

/// How long a round lasts, and each critical section.
const LASTS: Duration = ms(6_000);
const SECTION: Duration = ms(1);

const NAMES: [&str; 2] = ["a", "b"];

/// The kinds of lock of the other processes, and the figure for each.
const KINDS: [(&str, &str); 2] = [
    ("Mutex", "set_wait_p99_vs_plain"),
    ("FairMutex", "set_wait_p99_vs_fair"),
];

/// How long the calls of one round waited, in ms.
struct Round {
    set: Vec<f64>,
    others: Vec<f64>,
}

fn main() {
    // In a child process, runs its role and exits.
    if support::run_role(&[("set", lock_sets), ("other", lock_names)]) {
        return;
    }
    let report = Report::begin(
        "sets",
        ROUNDS,
        &format!(
            "one process locks two names as a set; {PROCESSES} lock each of them in a thread \
             without a pause; {ROUNDS} rounds of {LASTS:?}"
        ),
    );
    let mut rounds = KINDS.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for ((kind, _), rounds) in KINDS.iter().zip(&mut rounds) {
            rounds.push(round(kind));
        }
    }
    let (mut rows, mut bars, mut figures) = (Vec::new(), Vec::new(), Vec::new());
    for ((kind, figure), rounds) in KINDS.iter().zip(&rounds) {
        let spread = |of: &dyn Fn(&Round) -> f64| Spread::of(rounds.iter().map(of));
        let p99 = |waits: &[f64]| percentile(waits.to_vec(), 99.0);
        let ratio = spread(&|round| p99(&round.set) / p99(&round.others));
        let shown = |of: Spread| format!("{:.1}", of.median);
        rows.push(vec![
            (*kind).to_owned(),
            shown(spread(&|round| round.set.len() as f64)),
            shown(spread(&|round| percentile(round.set.clone(), 50.0))),
            shown(spread(&|round| p99(&round.set))),
            shown(spread(&|round| round.others.len() as f64)),
            shown(spread(&|round| percentile(round.others.clone(), 50.0))),
            shown(spread(&|round| p99(&round.others))),
            ratio.show(2),
        ]);
        bars.push(
            Row::bar(format!("others: {kind}"), ratio)
                .ours()
                .mark("≤", 10.0),
        );
        figures.push((*figure, format!("{:.3}", ratio.median)));
    }
    let heads = [
        "kind of the others",
        "sets",
        "wait p50 ms",
        "p99",
        "others",
        "wait p50 ms",
        "p99",
        "p99 to p99",
    ];
    common::print_table(&heads, &rows);
    let picture = Picture {
        title: format!("A set of two names, and {PROCESSES} processes that lock each"),
        panels: vec![Panel::new("wait p99 of the set ÷ of the others", bars)],
    };
    report.end(&figures, &picture);
}

fn round(kind: &str) -> Round {
    let server = Server::start().long_lived();
    let parameters = [("URL", &*server.url()), ("KIND", kind)];
    let others = (0..PROCESSES).map(|_| Child::spawn("other", &parameters));
    let others: Vec<_> = others.collect();
    for child in &others {
        child.wait_for_line("ready");
    }
    let set = Child::spawn("set", &parameters);
    let waits = |child: Child| -> Vec<f64> {
        let lines = child.wait().succeeded().lines;
        let waits = lines.last().expect("the child reports its waits");
        waits.split(' ').map(|wait| wait.parse().unwrap()).collect()
    };
    Round {
        set: waits(set),
        others: others.into_iter().flat_map(waits).collect(),
    }
}

/// Locks and unlocks for [`LASTS`]; returns how long each call waited, in ms. `lock` gets the time
/// that is left. If it gives up then, its wait until then counts.
fn waits<G>(lock: impl Fn(Duration) -> Option<G>) -> Vec<f64> {
    let begin = Instant::now();
    let mut waits = Vec::new();
    while begin.elapsed() < LASTS {
        let asked = Instant::now();
        let guard = lock(LASTS.saturating_sub(begin.elapsed()));
        waits.push(asked.elapsed().as_secs_f64() * 1e3);
        if guard.is_some() {
            thread::sleep(SECTION);
        }
    }
    waits
}

fn report(waits: &[f64]) {
    let waits: Vec<String> = waits.iter().map(|wait| format!("{wait:.3}")).collect();
    tell_parent(&waits.join(" "));
}

fn lock_sets() {
    let set = Client::open(parameter("URL")).unwrap().mutex_all(NAMES);
    report(&waits(|limit| set.try_lock_for(limit).unwrap().ok()));
}

fn lock_names() {
    let client = Client::open(parameter("URL")).unwrap();
    let is_fair = parameter("KIND") == "FairMutex";
    let all = thread::scope(|scope| {
        let threads = NAMES.map(|name| {
            let client = &client;
            scope.spawn(move || {
                if is_fair {
                    let mutex = client.fair_mutex(name);
                    waits(|_| Some(mutex.lock().unwrap()))
                } else {
                    let mutex = client.mutex(name);
                    waits(|_| Some(mutex.lock().unwrap()))
                }
            })
        });
        tell_parent("ready");
        threads.map(|thread| thread.join().unwrap()).concat()
    });
    report(&all);
}
