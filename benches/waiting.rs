//! The cost of a thousand threads of one client waiting for a name that another client holds:
//! requests to Redis, processor time and memory. And the requests of 200 clients that contend for a
//! name, which each of them holds for 20 ms.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::monitor::Monitor;
use common::picture::{Panel, Picture, Row};
use common::{Report, Spread, clock, processor_time};
use leasehold::{Client, Error, MutexGuard};
use support::{Server, eventually, ms, resident_kib};

const ROUNDS: usize = 5;
const WAITERS: usize = 1_000;

/// The length of a round. Places are refreshed every 0.9 s, so a round has about 22 refreshes.
const WATCHED: Duration = Duration::from_secs(20);

/// The ttl of the holder: so long that no renewal is due during the bench.
const HELD_FOR: Duration = Duration::from_secs(3_600);

/// The clients that contend for a name, and their sections.
const CLIENTS: usize = 200;
const SECTION: Duration = ms(20);
const CONTENDED: Duration = Duration::from_secs(5);

/// The stack of a waiting thread, in bytes: a wait needs no more.
const STACK: usize = 64 * 1024;

fn main() {
    let server = Server::start().long_lived();
    let report = Report::begin(
        "waiting",
        ROUNDS,
        &format!("{WAITERS} threads of one client wait, {ROUNDS} rounds of {WATCHED:?} each"),
    );
    let plain = watch(&server, |client| client.mutex("a").lock());
    let fair = watch(&server, |client| client.fair_mutex("b").lock());
    let rows = [("Mutex", &plain), ("FairMutex", &fair)].map(|(name, costs)| {
        vec![
            name.to_owned(),
            costs.requests.show(2),
            costs.core.show(2),
            format!("{:.1}", costs.kib),
        ]
    });
    common::print_table(
        &[
            "1000 waiters",
            "requests/s (quartiles)",
            "% of a core",
            "KiB per waiter, including its thread",
        ],
        &rows,
    );
    let [contended, fair_contended] = contended(&server);
    report.end(
        &[
            (
                "requests_per_s_1000",
                format!("{:.2}", plain.requests.median),
            ),
            (
                "fair_requests_per_s_1000",
                format!("{:.2}", fair.requests.median),
            ),
            ("waiting_core_pct", format!("{:.2}", plain.core.median)),
            ("fair_waiting_core_pct", format!("{:.2}", fair.core.median)),
            ("requests_per_s_200_clients", contended.figure()),
            ("fair_requests_per_s_200_clients", fair_contended.figure()),
            ("waiter_kib", format!("{:.1}", plain.kib)),
        ],
        &picture(&plain, &fair),
    );
}

fn picture(plain: &Costs, fair: &Costs) -> Picture {
    let bar = |name: &str, value| Row::bar(name, value).ours();
    Picture {
        title: format!("{WAITERS} threads of one client wait for a name"),
        panels: vec![
            Panel::new(
                "requests per second, all waiters together",
                vec![
                    bar("Mutex", plain.requests).mark("≤", 3.0),
                    bar("FairMutex", fair.requests),
                ],
            ),
            Panel::new(
                "% of a core",
                vec![bar("Mutex", plain.core), bar("FairMutex", fair.core)],
            ),
        ],
    }
}

struct Costs {
    /// Requests per second of all waiters together.
    requests: Spread,
    /// Processor time of this process, in % of a core: of all waiters, of the idle holder, and of
    /// the thread that counts requests.
    core: Spread,
    /// Memory of one waiter and its thread, in KiB.
    kib: f64,
}

/// Measures a client whose threads wait for a lock that another client holds.
fn watch(server: &Server, lock: fn(&Client) -> Result<MutexGuard, Error>) -> Costs {
    let holder = Client::builder().url(server.url()).ttl(HELD_FOR);
    let held = lock(&holder.build().unwrap()).unwrap();
    let client = Client::open(server.url()).unwrap();
    let before = resident_kib();
    for _ in 0..WAITERS {
        let client = client.clone();
        thread::Builder::new()
            .stack_size(STACK)
            .spawn(move || drop(lock(&client)))
            .unwrap();
    }
    let all = WAITERS as u64;
    eventually(ms(30_000), || client.stats().waiting == all);
    // The first waiter may still be subscribing. The measured memory includes its connection and
    // the subscriber thread.
    thread::sleep(ms(2_000));
    let kib = (resident_kib() - before) / WAITERS as f64;

    let (mut requests, mut cores) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let monitor = Monitor::start(server);
        let (began, used_before) = (clock(), processor_time());
        thread::sleep(WATCHED);
        let (took, used) = (clock() - began, processor_time() - used_before);
        requests.push(monitor.stop() as f64 / took.as_secs_f64());
        cores.push(used.as_secs_f64() / took.as_secs_f64() * 100.0);
    }
    assert_eq!(client.stats().waiting, all, "a waiter has returned");
    assert!(held.is_held());
    drop(held);
    // The waiters acquire the lock in turn until none is left.
    eventually(ms(60_000), || client.stats().waiting == 0);
    Costs {
        requests: Spread::of(requests.into_iter()),
        core: Spread::of(cores.into_iter()),
        kib,
    }
}

/// Measures the requests of clients that take turns with a `Mutex`, and with a `FairMutex`.
fn contended(server: &Server) -> [Spread; 2] {
    let plain = contend(server, |client| client.mutex("c").lock());
    let fair = contend(server, |client| client.fair_mutex("d").lock());
    common::print_table(
        &["200 clients, sections of 20 ms", "requests/s (quartiles)"],
        &[("Mutex", &plain), ("FairMutex", &fair)]
            .map(|(name, requests)| vec![name.to_owned(), requests.show(0)]),
    );
    [plain, fair]
}

/// Returns the requests of clients that take turns, per second.
fn contend(server: &Server, lock: fn(&Client) -> Result<MutexGuard, Error>) -> Spread {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|_| Client::open(server.url()).unwrap());
        for client in clients.collect::<Vec<_>>() {
            let is_over = &is_over;
            thread::Builder::new()
                .stack_size(STACK)
                .spawn_scoped(scope, move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let guard = lock(&client).unwrap();
                        thread::sleep(SECTION);
                        guard.unlock().unwrap();
                    }
                })
                .unwrap();
        }
        // Each client subscribes, and has its place.
        thread::sleep(ms(5_000));
        let rounds = (0..ROUNDS).map(|_| {
            let (monitor, began) = (Monitor::start(server), clock());
            thread::sleep(CONTENDED);
            monitor.stop() as f64 / (clock() - began).as_secs_f64()
        });
        let requests = Spread::of(rounds.collect::<Vec<_>>().into_iter());
        is_over.store(true, Ordering::Relaxed);
        requests
    })
}
