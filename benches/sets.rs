//! The wait for two names as a set, while other processes lock each of the two without a pause.
//! The set must not starve: its wait is compared with that of the others.
//!
//! Also the time of sets on one thread, for the client and in the server's scripts: of a free set,
//! relative to one name locked and unlocked by hand, and of a refused one, relative to one name
//! refused by hand.

use std::cell::RefCell;
use std::thread;
use std::time::{Duration, Instant};

use common::floor::pair::Hand;
use common::picture::{Panel, Picture, Row};
use common::{Report, Runner, Samples, Spread, percentile, processor_time};
use leasehold::{Client, MutexAll};
use support::{Child, Server, ms, parameter, tell_parent};

const ROUNDS: usize = 5;
const PROCESSES: usize = 8;

/// How long a round lasts, and each critical section.
const LASTS: Duration = ms(6_000);
const SECTION: Duration = ms(1);

const NAMES: [&str; 2] = ["a", "b"];

/// The rounds of sets on one thread, and how many sets one round locks.
const ALONE_ROUNDS: usize = 400;
const ALONE: usize = 25;

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
            "sets on one thread, {ALONE_ROUNDS} rounds of {ALONE}; one process locks two names as \
             a set while {PROCESSES} lock each of them in a thread without a pause, {ROUNDS} \
             rounds of {LASTS:?}"
        ),
    );
    let (mut figures, relative, in_scripts) = alone(&Server::start().long_lived());
    let rounds = rounds();
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
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
        title: format!("Sets alone, and a set of two names that {PROCESSES} processes lock, too"),
        panels: vec![
            Panel::new("time alone ÷ of one name by hand", relative),
            Panel::new("the same in the server's scripts", in_scripts),
            Panel::new("wait p99 of the set ÷ of the others", bars),
        ],
    };
    report.end(&figures, &picture);
}

/// The sets on one thread: what they are called, the keys of their figures, and the highest ratio
/// of times that meets the target.
const SETS: [([&str; 3], Option<f64>); 3] = [
    (
        ["free set of 2", "free2_vs_hand", "free2_in_scripts_vs_hand"],
        Some(1.8),
    ),
    (
        ["free set of 8", "free8_vs_hand", "free8_in_scripts_vs_hand"],
        Some(3.4),
    ),
    (
        [
            "refused set of 8",
            "refused8_vs_hand",
            "refused8_in_scripts_vs_hand",
        ],
        None,
    ),
];

const HEADS_ALONE: [&str; 7] = [
    "on one thread",
    "p50 µs",
    "p99 µs",
    "client CPU µs",
    "µs in scripts",
    "vs by hand (quartiles)",
    "in scripts (quartiles)",
];

/// The processor time of the client for one operation, and the server's time in scripts, by round.
#[derive(Default)]
struct Cost {
    client: RefCell<Samples>,
    scripts: RefCell<Samples>,
}

impl Cost {
    /// Runs one round, and returns how long each operation took.
    fn of(&self, server: &Server, run: impl FnMut()) -> Vec<Duration> {
        let (scripts, used) = (in_scripts(server), processor_time());
        let times = common::timed(ALONE, run);
        let used = (processor_time() - used) / ALONE as u32;
        let scripts = (in_scripts(server) - scripts) / ALONE as u32;
        self.client.borrow_mut().push(vec![used]);
        self.scripts.borrow_mut().push(vec![scripts]);
        times
    }
}

/// Runs sets, and the same for one name by hand, in turns on one thread. Returns the figures, and
/// the bars of the client's times and of those in scripts.
fn alone(server: &Server) -> (Vec<(&'static str, String)>, Vec<Row>, Vec<Row>) {
    let url = server.url();
    let client = Client::open(&url).unwrap();
    let set = |kind: &str, size: usize| {
        let names = (0..size).map(|n| format!("{kind}-{n}"));
        client.mutex_all(names.collect::<Vec<_>>())
    };
    let (free2, free8, refused8) = (set("two", 2), set("eight", 8), set("refused", 8));
    // The last name refuses: the client finds that as late as it can.
    let other = Client::open(&url).unwrap();
    let _held = other.mutex("refused-7").lock().unwrap();
    let _held_too = other.mutex("held").lock().unwrap();
    let (mut free, mut refused) = (Hand::new(&url, "free"), Hand::new(&url, "held"));

    let costs = [(); 5].map(|()| Cost::default());
    let mut runners: [Runner<'_>; 5] = [
        Box::new(|| costs[0].of(server, || lock_and_unlock(&free2))),
        Box::new(|| costs[1].of(server, || lock_and_unlock(&free8))),
        Box::new(|| costs[2].of(server, || assert!(refused8.try_lock().unwrap().is_err()))),
        Box::new(|| costs[3].of(server, || free.pair())),
        Box::new(|| costs[4].of(server, || assert!(refused.acquire().is_none()))),
    ];
    let times = common::take_turns(ALONE_ROUNDS, &mut runners);
    drop(runners);
    let costs = costs.map(|cost| (cost.client.into_inner(), cost.scripts.into_inner()));

    let names = SETS.map(|([name, ..], _)| name).into_iter();
    let names = names.chain(["one free name by hand", "one refused name by hand"]);
    let (mut rows, mut figures) = (Vec::new(), Vec::new());
    let (mut relative, mut relative_in_scripts) = (Vec::new(), Vec::new());
    for (n, name) in names.enumerate() {
        let by_hand = [3, 3, 4, 3, 4][n];
        let ratio = times[n].ratio(&times[by_hand]);
        let ratio_in_scripts = costs[n].1.ratio(&costs[by_hand].1);
        rows.push(vec![
            name.to_owned(),
            format!("{:.1}", times[n].percentile(50.0)),
            format!("{:.1}", times[n].percentile(99.0)),
            format!("{:.1}", costs[n].0.percentile(50.0)),
            format!("{:.1}", costs[n].1.percentile(50.0)),
            ratio.show(3),
            ratio_in_scripts.show(3),
        ]);
        if let Some(([name, of_time, of_scripts], most)) = SETS.get(n) {
            figures.push((*of_time, ratio.figure()));
            figures.push((*of_scripts, ratio_in_scripts.figure()));
            let bar = Row::bar(*name, ratio).ours();
            relative.push(match most {
                Some(most) => bar.mark("≤", *most),
                None => bar,
            });
            relative_in_scripts.push(Row::bar(*name, ratio_in_scripts).ours());
        }
    }
    common::print_table(&HEADS_ALONE, &rows);
    (figures, relative, relative_in_scripts)
}

fn lock_and_unlock(set: &MutexAll) {
    set.lock().unwrap().unlock().unwrap();
}

/// Returns the time that the server has spent in scripts so far.
fn in_scripts(server: &Server) -> Duration {
    let stats = server.command_stats();
    Duration::from_micros(stats.micros("evalsha") + stats.micros("eval"))
}

/// Runs the rounds of each kind, in turns.
fn rounds() -> [Vec<Round>; KINDS.len()] {
    let mut rounds = KINDS.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for ((kind, _), rounds) in KINDS.iter().zip(&mut rounds) {
            rounds.push(round(kind));
        }
    }
    rounds
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
