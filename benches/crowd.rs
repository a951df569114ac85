//! A crowd: thousands of threads of one client wait for one name that another client holds. How
//! soon all of them wait, how soon all of them had the lock after its release, and what the engine
//! costs in between. Meanwhile, the same client has other things to do: it renews 100 leases, tells
//! losses, takes free locks and renews a lease at its holder's request. The bench shows how late
//! those are.
//!
//! In a row of its own, the server stands still for 2.5 s under threads that ask for a permit for
//! 2 s at a time: how soon one of them has one of the free permits afterwards.
//!
//! `CROWD=1000` sets the number of threads; `KINDS=fair,permit` leaves the other kinds out.

use std::any::Any;
use std::env;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use common::picture::{Panel, Picture, Row};
use common::{Report, percentile};
use leasehold::{Client, Error, Lost};
use support::{Server, eventually, let_pass, ms};

const ROUNDS: usize = 3;

/// How long all threads wait while the rest is measured.
const WATCHED: Duration = Duration::from_secs(5);

/// The time from the first call in which the rest is measured while the threads begin, at least.
const BEGIN: Duration = ms(1_000);

/// The leases beside the crowd, and their ttl.
const BESIDE: usize = 100;
const BESIDE_TTL: Duration = Duration::from_secs(3);

/// How many threads take leases without renewal, each until it is lost.
const LOSERS: usize = 4;
const LOST_AFTER: Duration = ms(150);

/// The pause between two free locks, and between two renewals.
const PAUSE: Duration = ms(10);

/// How long a server stands still, and how long a call waits for a permit.
const STALL: Duration = ms(2_500);
const PATIENCE: Duration = Duration::from_secs(2);

const PERMITS: u32 = 50;

/// The ttl of the holder: so long that no renewal is due during the bench.
const HELD_FOR: Duration = Duration::from_secs(3_600);

/// The stack of a waiting thread, in bytes.
const STACK: usize = 128 * 1024;

/// A kind of lock that the threads wait for.
struct Kind {
    name: &'static str,
    key: &'static str,
    /// Takes the lock so that nobody else can have it.
    hold: fn(&Client) -> Box<dyn Any>,
    /// Waits for the lock, and gives it back.
    wait: fn(&Client) -> Result<(), Error>,
}

const KINDS: [Kind; 6] = [
    Kind {
        name: "FairMutex",
        key: "fair",
        hold: |client| Box::new(client.fair_mutex("a").lock().unwrap()),
        wait: |client| client.fair_mutex("a").lock()?.unlock(),
    },
    Kind {
        name: "RwLock, writers",
        key: "writer",
        hold: |client| Box::new(client.rw_lock("a").write().unwrap()),
        wait: |client| client.rw_lock("a").write()?.unlock(),
    },
    Kind {
        name: "RwLock, readers",
        key: "readers",
        hold: |client| Box::new(client.rw_lock("a").write().unwrap()),
        wait: |client| client.rw_lock("a").read()?.unlock(),
    },
    Kind {
        name: "one permit of 50",
        key: "permit",
        hold: |client| {
            let all = client.semaphore("a", PERMITS).many(PERMITS);
            Box::new(all.acquire().unwrap())
        },
        wait: |client| client.semaphore("a", PERMITS).acquire()?.release(),
    },
    Kind {
        name: "Mutex",
        key: "mutex",
        hold: |client| Box::new(client.mutex("a").lock().unwrap()),
        wait: |client| client.mutex("a").lock()?.unlock(),
    },
    Kind {
        name: "a set of two",
        key: "set",
        hold: |client| Box::new(client.mutex_all(["a", "b"]).lock().unwrap()),
        wait: |client| client.mutex_all(["a", "b"]).lock()?.unlock(),
    },
];

/// The measures of a round, in the units of their names. While all wait, the longest; while the
/// threads begin, p99.
const MEASURES: [&str; 10] = [
    "wait_s",
    "had_s",
    "engine_pct",
    "lost_ms",
    "lost_p99_begin_ms",
    "free_ms",
    "free_p99_begin_ms",
    "renew_ms",
    "renew_p99_begin_ms",
    "failed",
];

const TARGETS: [f64; 10] = [1.0, 3.0, 10.0, 20.0, 20.0, 20.0, 20.0, 100.0, 100.0, 0.0];

fn main() {
    let crowd = env::var("CROWD").map_or(4_000, |crowd| crowd.parse::<usize>().unwrap());
    let only = env::var("KINDS").ok();
    let is_wanted = |key: &str| {
        let only = only.as_deref();
        only.is_none_or(|only| only.split(',').any(|wanted| wanted == key))
    };
    let report = Report::begin(
        "crowd",
        ROUNDS,
        &format!("{crowd} threads of one client wait for a name, median of {ROUNDS} rounds"),
    );
    let mut figures: Vec<(String, f64)> = Vec::new();
    let mut rows = Vec::new();
    for kind in KINDS.iter().filter(|kind| is_wanted(kind.key)) {
        let rounds: Vec<[f64; 10]> = (0..ROUNDS).map(|_| round(kind, crowd)).collect();
        let mut cells = vec![kind.name.to_owned()];
        for (n, (measure, target)) in MEASURES.iter().zip(TARGETS).enumerate() {
            let value = percentile(rounds.iter().map(|round| round[n]).collect(), 50.0);
            let is_late = value > target && (kind.key != "set" || *measure == "failed");
            cells.push(format!("{value:.2}{}", if is_late { " LATE" } else { "" }));
            figures.push((format!("{}_{measure}", kind.key), value));
        }
        rows.push(cells);
    }
    let heads: Vec<&str> = std::iter::once("kind").chain(MEASURES).collect();
    common::print_table(&heads, &rows);
    if is_wanted("stall") {
        let first = (0..ROUNDS).map(|_| stall(crowd)).collect();
        figures.push(("stall_first_grant_s".into(), percentile(first, 50.0)));
    }
    end(report, &figures, crowd);
}

fn end(report: Report, figures: &[(String, f64)], crowd: usize) {
    let of = |measure: &str, target| {
        let bars = KINDS.iter().filter_map(|kind| {
            let key = format!("{}_{measure}", kind.key);
            let (_, value) = figures.iter().find(|(found, _)| *found == key)?;
            Some(Row::range(kind.name, [*value; 3]).ours().mark("≤", target))
        });
        Panel::new(measure, bars.collect())
    };
    let picture = Picture {
        title: format!("{crowd} threads of one client wait for a name"),
        panels: vec![of("wait_s", 1.0), of("had_s", 3.0), of("engine_pct", 10.0)],
    };
    let figures: Vec<(&str, String)> = figures
        .iter()
        .map(|(key, value)| (key.as_str(), format!("{value:.3}")))
        .collect();
    report.end(&figures, &picture);
}

/// The times of what the client does beside the crowd.
#[derive(Default)]
struct Beside {
    lost: Mutex<Vec<f64>>,
    free: Mutex<Vec<f64>>,
    renew: Mutex<Vec<f64>>,
    failed: AtomicUsize,
    is_over: AtomicBool,
}

impl Beside {
    fn count(&self, end: Result<(), Error>) {
        if let Err(error) = end
            && self.failed.fetch_add(1, Ordering::Relaxed) == 0
        {
            eprintln!("{error}");
        }
    }

    /// Takes leases that nobody renews, and waits for their losses.
    fn lose(&self, client: &Client, n: usize) {
        let mutex = client.mutex(format!("short:{n}")).ttl(LOST_AFTER);
        let mutex = mutex.auto_renew(false);
        while self.goes_on() {
            let guard = match mutex.lock() {
                Ok(guard) => guard,
                Err(error) => {
                    self.count(Err(error));
                    continue;
                }
            };
            let ends = Instant::now() + guard.remaining().unwrap_or_default();
            if guard.lost().recv() == Ok(Lost::Expired) {
                let late = Instant::now().saturating_duration_since(ends);
                self.lost.lock().unwrap().push(millis(late));
            }
        }
    }

    fn take_free_locks(&self, client: &Client) {
        let names = (0..64).map(|n| client.mutex(format!("free:{n}")));
        let names: Vec<_> = names.collect();
        for mutex in names.iter().cycle().take_while(|_| self.goes_on()) {
            let began = Instant::now();
            let end = mutex.try_lock();
            self.free.lock().unwrap().push(millis(began.elapsed()));
            self.count(end.map(drop));
            thread::sleep(PAUSE);
        }
    }

    fn renew(&self, client: &Client) {
        let renewed = client.mutex("renewed").ttl(BESIDE_TTL).lock().unwrap();
        while self.goes_on() {
            let began = Instant::now();
            let end = renewed.renew();
            self.renew.lock().unwrap().push(millis(began.elapsed()));
            self.count(end);
            thread::sleep(PAUSE);
        }
    }

    /// Holds leases until the end. Returns how many of them were lost.
    fn keep(&self, client: &Client) -> usize {
        let lease = |n| {
            let mutex = client.mutex(format!("beside:{n}")).ttl(BESIDE_TTL);
            mutex.lock().unwrap()
        };
        let leases: Vec<_> = (0..BESIDE).map(lease).collect();
        while self.goes_on() {
            thread::sleep(PAUSE);
        }
        leases.iter().filter(|lease| !lease.is_held()).count()
    }

    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// Takes what was measured since the last time: losses, free locks, renewals.
    fn take(&self) -> [Vec<f64>; 3] {
        [&self.lost, &self.free, &self.renew]
            .map(|times| std::mem::take(&mut *times.lock().unwrap()))
    }
}

fn round(kind: &Kind, crowd: usize) -> [f64; 10] {
    let server = Server::start().long_lived();
    let holder = Client::builder().url(server.url()).ttl(HELD_FOR);
    let holder = holder.build().unwrap();
    let held = (kind.hold)(&holder);
    let client = Client::open(server.url()).unwrap();
    let beside = Beside::default();
    thread::scope(|scope| {
        let leases = begin_beside(scope, &client, &beside);
        let_pass(ms(500));
        beside.take();
        let began = Instant::now();
        let threads = start(crowd, &client, &beside, kind, scope);
        eventually(ms(120_000), || {
            client.stats().waiting >= crowd as u64 || threads.iter().any(|it| it.is_finished())
        });
        let wait = began.elapsed();
        // Even if the threads begin sooner, this is long enough for a few losses.
        let_pass(BEGIN.saturating_sub(wait));
        let begin = beside.take().map(|times| at(times, 99.0));
        let_pass(ms(500));
        beside.take();
        let (used, since) = (engine_time(), Instant::now());
        let_pass(WATCHED);
        let engine = (engine_time() - used).as_secs_f64() / since.elapsed().as_secs_f64();
        let all = beside.take().map(|times| at(times, 100.0));
        let released = Instant::now();
        drop(held);
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        let had = released.elapsed();
        beside.is_over.store(true, Ordering::Relaxed);
        let failed = leases.join().unwrap() + beside.failed.load(Ordering::Relaxed);
        let [wait, had] = [wait, had].map(|it| it.as_secs_f64());
        let [lost, free, renew] = std::array::from_fn(|n| [all[n], begin[n]]);
        let values = [
            wait,
            had,
            engine * 100.0,
            lost[0],
            lost[1],
            free[0],
            free[1],
            renew[0],
            renew[1],
            failed as f64,
        ];
        println!("{}: {values:.2?}", kind.name);
        values
    })
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn at(times: Vec<f64>, percent: f64) -> f64 {
    if times.is_empty() {
        // Nothing has ended: as late as it gets.
        f64::INFINITY
    } else {
        percentile(times, percent)
    }
}

fn start<'scope, 'env>(
    crowd: usize,
    client: &'env Client,
    beside: &'env Beside,
    kind: &'env Kind,
    scope: &'scope Scope<'scope, 'env>,
) -> Vec<thread::ScopedJoinHandle<'scope, ()>> {
    let threads = (0..crowd).map(|_| {
        let call = move || beside.count((kind.wait)(client));
        let thread = thread::Builder::new().stack_size(STACK);
        thread.spawn_scoped(scope, call).unwrap()
    });
    threads.collect()
}

/// Starts the threads of what the client does beside the crowd. Returns the one that counts lost
/// leases.
fn begin_beside<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    client: &'env Client,
    beside: &'env Beside,
) -> thread::ScopedJoinHandle<'scope, usize> {
    for n in 0..LOSERS {
        scope.spawn(move || beside.lose(client, n));
    }
    scope.spawn(move || beside.take_free_locks(client));
    scope.spawn(move || beside.renew(client));
    scope.spawn(move || beside.keep(client))
}

/// Returns the seconds from the end of a stall of the server until a call has a permit.
fn stall(crowd: usize) -> f64 {
    let server = Server::start().long_lived();
    let client = Client::open(server.url()).unwrap();
    let (granted, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..crowd {
            let thread = thread::Builder::new().stack_size(STACK);
            let call = || {
                let semaphore = client.semaphore("a", PERMITS);
                while !is_over.load(Ordering::Relaxed) {
                    if let Ok(Ok(permit)) = semaphore.try_acquire_for(PATIENCE) {
                        granted.fetch_add(1, Ordering::Relaxed);
                        thread::sleep(ms(20));
                        drop(permit);
                    }
                }
            };
            thread.spawn_scoped(scope, call).unwrap();
        }
        let_pass(ms(3_000));
        server.pause();
        let_pass(STALL);
        let before = granted.load(Ordering::Relaxed);
        let began = Instant::now();
        server.resume();
        while granted.load(Ordering::Relaxed) == before && began.elapsed() < ms(30_000) {
            thread::sleep(ms(1));
        }
        let first = began.elapsed().as_secs_f64();
        let_pass(ms(2_000));
        let then = granted.load(Ordering::Relaxed) - before;
        println!("stall: {before} grants before, the first {first:.2} s after it, then {then}");
        is_over.store(true, Ordering::Relaxed);
        first
    })
}

/// Returns the processor time of the engine's threads of this process.
fn engine_time() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let used = tasks.filter_map(|task| {
        let task = task.ok()?.path();
        let name = fs::read_to_string(task.join("comm")).ok()?;
        let used = fs::read_to_string(task.join("schedstat")).ok()?;
        let used: u64 = used.split(' ').next()?.parse().ok()?;
        name.starts_with("leasehold-engin").then_some(used)
    });
    Duration::from_nanos(used.sum())
}
