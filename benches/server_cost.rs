//! The server time of a lock and unlock, for each kind of lock, relative to the plain SET NX and
//! compare-and-delete that other crates send. It is the time in scripts by the server's own count
//! (`usec` of `INFO commandstats`). Also measures pairs a second from 8 threads.
//!
//! Also counts the commands that the scripts run. With `PAIRS=2000` instead of 20,000 pairs, takes
//! a few seconds.

use std::env;
use std::time::Duration;

use common::floor::pair::Bare;
use common::picture::{Panel, Picture, Row};
use common::{Report, Runner, Samples};
use leasehold::Client;
use support::{Server, ms};

/// Pairs of each kind whose time in scripts is measured, and how many of them one turn runs. The
/// turns are short so that noise affects all kinds alike.
const PAIRS: usize = 20_000;
const TURN: usize = 200;

const THREADS: usize = 8;
/// How often each kind runs with all threads, and for how long.
const SATURATED_ROUNDS: usize = 7;
const SATURATED: Duration = ms(250);

/// A kind of lock: its key among the figures, and the highest ratio that meets the target.
struct Kind {
    key: &'static str,
    label: &'static str,
    most: f64,
    /// Returns what locks and unlocks this name.
    open: fn(&Client, &str) -> Pair,
}

/// Locks and unlocks.
type Pair = Box<dyn FnMut() + Send>;

const KINDS: [Kind; 5] = [
    Kind {
        key: "mutex",
        label: "Mutex",
        most: 2.8,
        open: |client, name| {
            let mutex = client.mutex(name);
            Box::new(move || assert!(mutex.lock().unwrap().unlock().is_ok()))
        },
    },
    Kind {
        key: "fair",
        label: "FairMutex",
        most: 3.1,
        open: |client, name| {
            let mutex = client.fair_mutex(name);
            Box::new(move || assert!(mutex.lock().unwrap().unlock().is_ok()))
        },
    },
    Kind {
        key: "write",
        label: "RwLock, write",
        most: 3.2,
        open: |client, name| {
            let lock = client.rw_lock(name);
            Box::new(move || assert!(lock.write().unwrap().unlock().is_ok()))
        },
    },
    Kind {
        key: "read",
        label: "RwLock, read",
        most: 4.3,
        open: |client, name| {
            let lock = client.rw_lock(name);
            Box::new(move || assert!(lock.read().unwrap().unlock().is_ok()))
        },
    },
    Kind {
        key: "permit",
        label: "Semaphore, one permit of four",
        most: 4.5,
        open: |client, name| {
            let semaphore = client.semaphore(name, 4);
            Box::new(move || assert!(semaphore.acquire().unwrap().release().is_ok()))
        },
    },
];

fn main() {
    let pairs = env::var("PAIRS").ok().and_then(|n| n.parse().ok());
    let rounds = pairs.unwrap_or(PAIRS).div_ceil(TURN);
    let server = Server::start().long_lived();
    let report = Report::begin(
        "server_cost",
        rounds,
        &format!(
            "lock + unlock: time in scripts, {rounds} rounds of {TURN}; pairs a second with \
             {THREADS} threads, {SATURATED_ROUNDS} rounds of {SATURATED:?}"
        ),
    );
    let (bare, costs) = in_scripts(&server, rounds);
    let speeds = saturated(&server);
    let bare_speed = &speeds[KINDS.len()];
    let both = (&bare, bare_speed);
    let mut rows = vec![row("bare pair of other crates", &bare, bare_speed, both)];
    let (mut figures, mut ratios, mut bars) = (Vec::new(), Vec::new(), Vec::new());
    for ((kind, cost), speed) in KINDS.iter().zip(&costs).zip(&speeds) {
        rows.push(row(kind.label, cost, speed, both));
        let ratio = cost.usec.ratio(&bare.usec);
        // The samples are times, and this is a ratio of speeds.
        let speed_ratio = bare_speed.ratio(speed);
        figures.push((format!("{}_vs_bare", kind.key), ratio.figure()));
        let commands = format!("{:.2}", cost.commands_per_pair());
        figures.push((format!("{}_commands", kind.key), commands));
        figures.push((format!("{}_pairs_vs_bare", kind.key), speed_ratio.figure()));
        figures.push((format!("{}_pairs_per_s", kind.key), per_s(speed)));
        ratios.push(Row::bar(kind.label, ratio).ours().mark("≤", kind.most));
        bars.push(Row::bar(kind.label, speed_ratio).ours());
    }
    figures.push(("bare_pairs_per_s".to_owned(), per_s(bare_speed)));
    let heads = [
        "lock + unlock",
        "µs in scripts",
        "vs bare (quartiles)",
        "commands in scripts",
        "pairs/s, 8 threads",
        "vs bare (quartiles)",
    ];
    common::print_table(&heads, &rows);
    let picture = Picture {
        title: "Lock + unlock: what it costs the server".to_owned(),
        panels: vec![
            Panel::new("time in scripts relative to the bare pair", ratios),
            Panel::new("pairs per second relative to the bare pair", bars),
        ],
    };
    let figures: Vec<_> = (figures.iter())
        .map(|(key, value)| (key.as_str(), value.clone()))
        .collect();
    report.end(&figures, &picture);
}

/// The cost of one kind in the server.
#[derive(Default)]
struct Cost {
    /// The time of the requests of a pair, by turn.
    usec: Samples,
    /// All commands that the scripts ran, and the pairs that ran them.
    commands: u64,
    pairs: usize,
}

impl Cost {
    fn commands_per_pair(&self) -> f64 {
        self.commands as f64 / self.pairs as f64
    }
}

fn per_s(per_pair: &Samples) -> String {
    format!("{:.0}", 1e6 / per_pair.median().median)
}

fn row(label: &str, cost: &Cost, speed: &Samples, bare: (&Cost, &Samples)) -> Vec<String> {
    let (bare, bare_speed) = bare;
    vec![
        label.to_owned(),
        format!("{:.1}", cost.usec.median().median),
        cost.usec.ratio(&bare.usec).show(2),
        format!("{:.2}", cost.commands_per_pair()),
        per_s(speed),
        bare_speed.ratio(speed).show(2),
    ]
}

/// Measures the bare pair and each kind on one thread, in turns. The time of the bare pair includes
/// its SET, which is outside of a script, and which is not one of the commands in scripts.
fn in_scripts(server: &Server, rounds: usize) -> (Cost, Vec<Cost>) {
    let url = server.url();
    let client = Client::open(&url).unwrap();
    let mut bare = Bare::new(&url, "bare");
    let mut pairs: Vec<Pair> = vec![Box::new(move || bare.pair())];
    pairs.extend(KINDS.iter().map(|kind| (kind.open)(&client, kind.key)));
    let mut costs: Vec<Cost> = pairs.iter().map(|_| Cost::default()).collect();
    // The first pairs load the scripts and draw the first tokens.
    pairs.iter_mut().for_each(|pair| pair());
    for (_, n) in common::turns(rounds, pairs.len()) {
        let before = server.command_stats();
        (0..TURN).for_each(|_| pairs[n]());
        let used = server.command_stats().since(&before);
        let mut usec = used.micros("evalsha") + used.micros("eval");
        let mut commands = used.in_scripts();
        if n == 0 {
            usec += used.micros("set");
            commands -= TURN as u64;
        }
        let cost = &mut costs[n];
        // Nanoseconds, so that a pair's share of the turn is not rounded to microseconds.
        let nanos = usec * 1_000 / TURN as u64;
        cost.usec.push(vec![Duration::from_nanos(nanos)]);
        cost.commands += commands;
        cost.pairs += TURN;
    }
    let bare = costs.remove(0);
    (bare, costs)
}

/// Returns the time per pair of each kind, and last that of the bare pair, from 8 threads that each
/// lock another name over another connection.
fn saturated(server: &Server) -> Vec<Samples> {
    let url = server.url();
    // One client for each thread: the bare pair has one connection for each thread, too.
    let clients: Vec<_> = (0..THREADS).map(|_| Client::open(&url).unwrap()).collect();
    let mut runners: Vec<Runner<'_>> = Vec::new();
    for kind in &KINDS {
        let pairs = clients.iter().enumerate();
        let pairs = pairs.map(|(n, client)| (kind.open)(client, &format!("{}-{n}", kind.key)));
        runners.push(at_once(pairs.collect()));
    }
    let bare = (0..THREADS).map(|n| -> Pair {
        let mut bare = Bare::new(&url, &format!("bare-{n}"));
        Box::new(move || bare.pair())
    });
    runners.push(at_once(bare.collect()));
    common::take_turns(SATURATED_ROUNDS, &mut runners)
}

/// Returns a runner that repeats each of `pairs` on its own thread, and returns the time of the
/// round divided by the number of pairs.
fn at_once(mut pairs: Vec<Pair>) -> Runner<'static> {
    Box::new(move || {
        let (took, times) = common::repeat_at_once(SATURATED, pairs.iter_mut());
        vec![took / times.len() as u32]
    })
}
