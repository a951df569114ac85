//! 32 threads wait for one name by `WaitPolicy::Backoff`, in one client or in four: the requests to
//! Redis, the connections, and how long each call waits. Once while another client holds the name
//! all the time, once in sections of their own without a pause, and once in sections that take half
//! of the time.
//!
//! `PAUSES=50,500` sets the shortest and the longest pause, in ms.

use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::monitor::Monitor;
use common::picture::{Panel, Picture, Row};
use common::{Report, Spread, clock, percentile, processor_time};
use leasehold::{Backoff, Client, WaitPolicy};
use support::{Server, let_pass, ms};

const ROUNDS: usize = 3;
const THREADS: usize = 32;
const CLIENTS: [usize; 2] = [1, 4];

/// The length of a round, after the time in which the threads begin.
const WATCHED: Duration = Duration::from_secs(5);
const BEGIN: Duration = ms(1_000);

/// The ttl of a holder that holds the name all the time: no renewal is due during the bench.
const HELD_FOR: Duration = Duration::from_secs(3_600);

/// The pauses of the backoff unless `PAUSES` sets them, in ms.
const PAUSES: &str = "10,100";

/// How the name is used.
struct Use {
    name: &'static str,
    key: &'static str,
    /// Another client holds it.
    is_held: bool,
    section: Duration,
    /// The pause of a thread between two sections.
    pause: Duration,
}

const USES: [Use; 3] = [
    Use {
        name: "held by another client",
        key: "held",
        is_held: true,
        section: ms(0),
        pause: ms(0),
    },
    Use {
        name: "sections of 5 ms, always wanted",
        key: "busy",
        is_held: false,
        section: ms(5),
        pause: ms(0),
    },
    Use {
        name: "sections of 5 ms, for half of the time",
        key: "half",
        is_held: false,
        section: ms(5),
        pause: ms(320),
    },
];

/// The measurements of one round.
struct Round {
    requests_per_s: f64,
    sections_per_s: f64,
    core_pct: f64,
    connections: f64,
    /// In ms, with those that have not ended. Nothing if another client holds the name.
    waits: Vec<f64>,
}

/// The calls of one thread.
#[derive(Default)]
struct Calls {
    /// How long each one waited that has ended.
    waits: Vec<Duration>,
    /// When the one began that waits now.
    began: Option<Instant>,
}

impl Calls {
    /// Returns how long the calls waited, in ms; that of a call which waits now ends now.
    fn all(&self) -> impl Iterator<Item = f64> + '_ {
        let under_way = self.began.map(|began| began.elapsed());
        let waits = self.waits.iter().copied().chain(under_way);
        waits.map(|wait| wait.as_secs_f64() * 1e3)
    }
}

fn main() {
    let pauses = env::var("PAUSES").unwrap_or_else(|_| PAUSES.into());
    let (base, max) = pauses.split_once(',').expect("two numbers");
    let backoff = Backoff::new(ms(base.parse().unwrap()), ms(max.parse().unwrap()));
    let server = Server::start().long_lived();
    let report = Report::begin(
        "polling",
        ROUNDS,
        &format!(
            "{THREADS} threads poll one name, pauses of {pauses} ms, {ROUNDS} rounds of {WATCHED:?}"
        ),
    );
    let mut results = Results::default();
    for clients in CLIENTS {
        for of in &USES {
            let rounds = (0..ROUNDS).map(|_| round(&server, of, clients, backoff));
            results.add(of, clients, &rounds.collect::<Vec<_>>());
        }
    }
    results.end(report);
}

#[derive(Default)]
struct Results {
    rows: Vec<Vec<String>>,
    figures: Vec<(String, f64)>,
    requests: Vec<Row>,
    waits: Vec<Row>,
}

impl Results {
    fn add(&mut self, of: &Use, clients: usize, rounds: &[Round]) {
        let spread = |value: fn(&Round) -> f64| Spread::of(rounds.iter().map(value));
        let requests = spread(|it| it.requests_per_s);
        let sections = spread(|it| it.sections_per_s);
        let connections = spread(|it| it.connections);
        let all: Vec<f64> = rounds.iter().flat_map(|it| it.waits.clone()).collect();
        let at = |percent| percentile(all.clone(), percent);
        let label = match clients {
            1 => format!("1 client, {}", of.name),
            _ => format!("{clients} clients, {}", of.name),
        };
        let mut row = vec![
            label.clone(),
            requests.show(0),
            sections.show(0),
            spread(|it| it.core_pct).show(1),
            format!("{:.0}", connections.median),
        ];
        let mut figures = vec![
            ("requests_per_s", requests.median),
            ("connections", connections.median),
        ];
        self.requests.push(Row::bar(label.clone(), requests).ours());
        if !of.is_held {
            let waits = [at(50.0), at(99.0), at(100.0)];
            row.extend(waits.map(|wait| format!("{wait:.1}")));
            figures.extend([
                ("sections_per_s", sections.median),
                ("wait_p99_ms", waits[1]),
                ("longest_wait_ms", waits[2]),
            ]);
            self.waits.push(Row::range(label, waits).ours());
        }
        row.resize(8, String::new());
        self.rows.push(row);
        let key = |what| format!("{}_{what}_clients{clients}", of.key);
        let figures = figures.into_iter().map(|(what, value)| (key(what), value));
        self.figures.extend(figures);
    }

    fn end(self, report: Report) {
        let heads = [
            "32 threads",
            "requests/s (quartiles)",
            "sections/s",
            "% of a core",
            "connections",
            "wait p50 ms",
            "p99",
            "max",
        ];
        common::print_table(&heads, &self.rows);
        let figures = self.figures.iter();
        let figures = figures.map(|(key, value)| (key.as_str(), format!("{value:.2}")));
        let picture = Picture {
            title: format!("{THREADS} threads poll one name"),
            panels: vec![
                Panel::new("requests per second, all threads together", self.requests),
                Panel::new("wait, ms: p50 · p99 · max", self.waits),
            ],
        };
        report.end(&figures.collect::<Vec<_>>(), &picture);
    }
}

fn round(server: &Server, of: &Use, clients: usize, backoff: Backoff) -> Round {
    let name = "polled";
    let holder = Client::builder().url(server.url()).ttl(HELD_FOR);
    let holder = holder.build().unwrap();
    let held = of.is_held.then(|| holder.mutex(name).lock().unwrap());
    let clients = (0..clients).map(|_| Client::open(server.url()).unwrap());
    let clients: Vec<Client> = clients.collect();
    let is_over = AtomicBool::new(false);
    let calls: Vec<Mutex<Calls>> = (0..THREADS).map(|_| Mutex::default()).collect();
    thread::scope(|scope| {
        for (n, calls) in calls.iter().enumerate() {
            let (client, is_over) = (&clients[n % clients.len()], &is_over);
            scope.spawn(move || {
                let mutex = client.mutex(name).wait_policy(WaitPolicy::Backoff(backoff));
                // Threads that begin together would go on together.
                thread::sleep(of.pause * n as u32 / THREADS as u32);
                while !is_over.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    calls.lock().unwrap().began = Some(began);
                    let guard = mutex.lock().unwrap();
                    let mut calls = calls.lock().unwrap();
                    calls.waits.push(began.elapsed());
                    calls.began = None;
                    drop(calls);
                    thread::sleep(of.section);
                    guard.unlock().unwrap();
                    thread::sleep(of.pause);
                }
            });
        }
        let_pass(BEGIN);
        calls.iter().for_each(|it| it.lock().unwrap().waits.clear());
        let (monitor, began, used) = (Monitor::start(server), clock(), processor_time());
        let_pass(WATCHED);
        let (took, used) = (clock() - began, processor_time() - used);
        let (requests, took) = (monitor.stop() as f64, took.as_secs_f64());
        let connections: u64 = clients.iter().map(|it| it.stats().connections).sum();
        let (mut sections, mut waits) = (0, Vec::new());
        for calls in &calls {
            let calls = calls.lock().unwrap();
            sections += calls.waits.len();
            waits.extend(calls.all());
        }
        is_over.store(true, Ordering::Relaxed);
        drop(held);
        Round {
            requests_per_s: requests / took,
            sections_per_s: sections as f64 / took,
            core_pct: used.as_secs_f64() / took * 100.0,
            connections: connections as f64,
            waits,
        }
    })
}
