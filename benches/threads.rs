//! Many threads of one client, each locking and unlocking its own name. Alternates with the same
//! scripts by hand, over one plain connection per thread, and over one connection with a thread
//! that combines the writes.

use std::cell::RefCell;
use std::time::Duration;

use common::floor::batched::Batched;
use common::floor::pair::Hand;
use common::picture::{Panel, Picture, Row};
use common::{Report, Runner, Samples, Spread, processor_time, server_processor_time};
use leasehold::Client;
use support::Server;

const THREADS: [usize; 7] = [1, 2, 8, 12, 16, 24, 32];
const ROUNDS: usize = 25;

const HEADS: [&str; 9] = [
    "pairs",
    "pairs/s",
    "p50 µs",
    "p99 µs",
    "pairs/s vs one connection per thread (quartiles)",
    "client CPU/pair vs the same",
    "server CPU/pair vs the same",
    "client CPU µs/pair",
    "server CPU µs/pair",
];

/// How long each runner runs per round.
const ROUND: Duration = Duration::from_millis(100);

fn main() {
    let server = Server::start().long_lived();
    let report = Report::begin(
        "threads",
        ROUNDS,
        &format!("lock + unlock, one name per thread, {ROUNDS} rounds of {ROUND:?}"),
    );
    let mut figures = Vec::new();
    let (mut gains, mut speeds) = (Vec::new(), Vec::new());
    let mut rows = Vec::new();
    for threads in THREADS {
        let [ours, own, batched] = measure(&server, threads);
        let gain = own.per_pair.ratio(&ours.per_pair);
        let cost = ours.clients_cpu.ratio(&own.clients_cpu);
        figures.push((format!("threads{threads}_vs_own_conn"), gain.median));
        figures.push((
            format!("threads{threads}_client_cpu_vs_own_conn"),
            cost.median,
        ));
        let bar = Row::bar(format!("{threads} threads"), gain).ours();
        gains.push(match threads {
            32 => bar.mark("≥", 1.5),
            _ => bar,
        });
        speeds.push(ours.speed(threads, "leasehold").ours());
        speeds.push(own.speed(threads, "one connection per thread"));
        for (name, run) in [
            ("leasehold", &ours),
            ("one connection per thread, by hand", &own),
            ("one shared connection, by hand", &batched),
        ] {
            let mut row = vec![format!("{threads:>2} threads, {name}")];
            row.extend(run.values(&own));
            rows.push(row);
        }
    }
    common::print_table(&HEADS, &rows);
    let figures: Vec<_> = figures
        .iter()
        .map(|(name, gain)| (name.as_str(), format!("{gain:.3}")))
        .collect();
    let picture = Picture {
        title: "Threads of one process, each with its own name".to_owned(),
        panels: vec![
            Panel::new(
                "pairs per second relative to one connection per thread",
                gains,
            ),
            Panel::new("lock + unlock, pairs per second", speeds),
        ],
    };
    report.end(&figures, &picture);
}

/// The results of one runner, by round.
#[derive(Default)]
struct Run {
    /// The time of a round divided by its pairs.
    per_pair: Samples,
    /// The duration of each pair.
    pairs: Samples,
    clients_cpu: Samples,
    servers_cpu: Samples,
}

impl Run {
    /// The bar of its pairs per second.
    fn speed(&self, threads: usize, label: &str) -> Row {
        let pairs = self.per_pair.medians().map(|micros| 1e6 / micros);
        Row::bar(format!("{threads} threads, {label}"), Spread::of(pairs))
    }

    /// The row of the table, without its label; `own` is one connection per thread.
    fn values(&self, own: &Self) -> [String; 8] {
        [
            format!("{:.0}", 1e6 / self.per_pair.percentile(50.0)),
            format!("{:.0}", self.pairs.percentile(50.0)),
            format!("{:.0}", self.pairs.percentile(99.0)),
            own.per_pair.ratio(&self.per_pair).show(2),
            self.clients_cpu.ratio(&own.clients_cpu).show(2),
            self.servers_cpu.ratio(&own.servers_cpu).show(2),
            format!("{:.1}", self.clients_cpu.percentile(50.0)),
            format!("{:.1}", self.servers_cpu.percentile(50.0)),
        ]
    }
}

/// Runs the client, one connection per thread by hand, and one shared connection by hand, each with
/// this many threads.
fn measure(server: &Server, threads: usize) -> [Run; 3] {
    let url = server.url();
    let client = Client::open(&url).unwrap();
    let mutexes: Vec<_> = (0..threads)
        .map(|n| client.mutex(format!("ours-{n}")))
        .collect();
    let mut hands: Vec<_> = (0..threads)
        .map(|n| Hand::new(&url, &format!("hand-{n}")))
        .collect();
    let (ours, own, shared) = (RefCell::default(), RefCell::default(), RefCell::default());
    let mut batched = Batched::several(&url, threads);
    let mut runners: [Runner<'_>; 3] = [
        Box::new(|| {
            let pairs = mutexes.iter().map(|mutex| {
                || {
                    mutex.lock().unwrap().unlock().unwrap();
                }
            });
            round(server, &ours, pairs)
        }),
        Box::new(|| {
            let pairs = hands.iter_mut().map(|hand| || hand.pair());
            round(server, &own, pairs)
        }),
        Box::new(|| {
            let pairs = batched.iter_mut().map(|one| || one.pair());
            round(server, &shared, pairs)
        }),
    ];
    let samples = common::take_turns(ROUNDS, &mut runners);
    drop(runners);
    let mut samples = samples.into_iter();
    [ours, own, shared].map(|run: RefCell<Run>| Run {
        per_pair: samples.next().unwrap_or_default(),
        ..run.into_inner()
    })
}

/// Runs each of `pairs` repeatedly on its own thread; returns the time divided by the number of
/// pairs.
fn round<P: FnMut() + Send>(
    server: &Server,
    run: &RefCell<Run>,
    pairs: impl ExactSizeIterator<Item = P>,
) -> Vec<Duration> {
    let used = (processor_time(), server_processor_time(server));
    let (took, times) = common::repeat_at_once(ROUND, pairs);
    let count = times.len() as u32;
    let mut run = run.borrow_mut();
    run.clients_cpu
        .push(vec![(processor_time() - used.0) / count]);
    run.servers_cpu
        .push(vec![(server_processor_time(server) - used.1) / count]);
    run.pairs.push(times);
    vec![took / count]
}
