//! The cost of ten thousand held leases: threads, memory, and processor time for renewals at a ttl
//! of 10 s.

use std::thread;
use std::time::{Duration, Instant};

use common::floor::pair::connect;
use common::picture::{Panel, Picture, Row};
use common::{Report, Samples, Spread, processor_time};
use leasehold::{Client, MutexGuard};
use support::{Server, own_threads, resident_kib};

const LEASES: usize = 10_000;
const TTL: Duration = Duration::from_secs(10);

/// How long the leases are watched. Each is renewed six times in this time, every third of its ttl.
const WATCHED: Duration = Duration::from_secs(20);

/// The number of parts of [`WATCHED`]. The processor time is measured in each.
const PARTS: u32 = 10;

const RENEW: &str = concat!(
    include_str!("../src/protocol/rewrite.lua"),
    include_str!("../src/protocol/renew.lua")
);

fn main() {
    let server = Server::start().long_lived();
    let url = server.url();
    let report = Report::begin(
        "held",
        1,
        &format!("{LEASES} held leases, ttl {TTL:?}, watched for {WATCHED:?}"),
    );

    let client = Client::builder().url(&url).ttl(TTL).build().unwrap();
    // Opens connections and starts threads before the first measurement.
    drop(client.mutex("first").lock().unwrap());
    let mut guards: Vec<MutexGuard> = Vec::with_capacity(LEASES);
    // The room of the samples is not that of the leases.
    let mut remaining = vec![1.0; LEASES * PARTS as usize];
    remaining.clear();
    let before = resident_mib();
    let locking = lock_all(&client, &mut guards);
    let watched = watch(&server, &guards, before, remaining);
    let threads = own_threads();
    let by_hand = renewals_by_hand(&url, &guards, watched.renewals);
    let by_hand = by_hand.as_secs_f64() / WATCHED.as_secs_f64() * 100.0;

    let figures = [
        ("held_mib", format!("{:.2}", watched.highest)),
        ("held_core_pct", format!("{:.2}", watched.share())),
        ("held_threads", threads.len().to_string()),
    ];
    let picture = picture(&watched, by_hand);
    print(&locking, &threads, watched, by_hand);
    report.end(&figures, &picture);
    drop(client);
    // Exits without dropping the guards: ten thousand single releases would dominate the run.
    std::process::exit(0);
}

/// Takes the leases; returns the time of each call.
fn lock_all(client: &Client, guards: &mut Vec<MutexGuard>) -> Samples {
    let times = (0..LEASES).map(|n| {
        let mutex = client.mutex(format!("account:{n}"));
        let began = Instant::now();
        guards.push(mutex.try_lock().unwrap().expect("the name is free"));
        began.elapsed()
    });
    let mut locking = Samples::default();
    locking.push(times.collect());
    locking
}

/// The measurements taken while the leases are held.
struct Watched {
    /// The processor time in each part, in % of a core.
    shares: Vec<f64>,
    /// The remaining time of each lease at the end of each part, in s.
    remaining: Vec<f64>,
    /// The most memory added, in MiB.
    highest: f64,
    renewals: u64,
}

impl Watched {
    /// The mean share of a core, in %.
    fn share(&self) -> f64 {
        self.shares.iter().sum::<f64>() / self.shares.len() as f64
    }
}

/// Watches the leases; `before` is the memory used before they were taken, in MiB. `remaining` is
/// an empty list with room for all samples.
fn watch(server: &Server, guards: &[MutexGuard], before: f64, mut remaining: Vec<f64>) -> Watched {
    let mut highest = resident_mib() - before;
    let calls = server.calls(&["pexpire"]);
    let mut shares = Vec::new();
    for _ in 0..PARTS {
        let (began, used) = (Instant::now(), processor_time());
        thread::sleep(WATCHED / PARTS);
        shares
            .push((processor_time() - used).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0);
        highest = highest.max(resident_mib() - before);
        remaining.extend(guards.iter().map(|guard| {
            let remaining = guard.remaining().expect("every lease is held to the end");
            remaining.as_secs_f64()
        }));
    }
    Watched {
        shares,
        remaining,
        highest,
        renewals: server.calls(&["pexpire"]) - calls,
    }
}

/// Prints the measured values; `by_hand` is the share of a core for the same renewals by hand.
fn print(locking: &Samples, threads: &[String], watched: Watched, by_hand: f64) {
    let share = watched.share();
    let Watched {
        shares,
        remaining,
        highest,
        renewals,
    } = watched;
    let row =
        |what: &str, value: String, bound: &str| vec![what.to_owned(), value, bound.to_owned()];
    let rows = [
        row(
            "lock, p50 µs",
            format!("{:.1}", locking.percentile(50.0)),
            "",
        ),
        row(
            "lock, p99 µs",
            format!("{:.1}", locking.percentile(99.0)),
            "",
        ),
        row("threads", threads.join(" "), "1"),
        row("memory added, MiB", format!("{highest:.1}"), "below 15"),
        row(
            "bytes per lease",
            format!("{:.0}", highest * 1_048_576.0 / LEASES as f64),
            "",
        ),
        row("renewals", renewals.to_string(), ""),
        row("core share, mean %", format!("{share:.2}"), "below 0.8"),
        row(
            "core share, p50 %",
            format!("{:.2}", common::percentile(shares.clone(), 50.0)),
            "",
        ),
        row(
            "core share, p99 %",
            format!("{:.2}", common::percentile(shares, 99.0)),
            "",
        ),
        row("the same renewals by hand, %", format!("{by_hand:.2}"), ""),
        row(
            "remaining, p50 s",
            format!("{:.2}", common::percentile(remaining.clone(), 50.0)),
            "",
        ),
        row(
            "remaining, min s",
            format!("{:.2}", common::percentile(remaining, 0.0)),
            "",
        ),
    ];
    common::print_table(&["held", "measured", "target"], &rows);
}

fn picture(watched: &Watched, by_hand: f64) -> Picture {
    let once = |value| Spread::of([value].into_iter());
    let shares = Spread::of(watched.shares.iter().copied());
    let memory = Row::bar("leasehold", once(watched.highest));
    Picture {
        title: "10 000 held leases in one process, ttl 10 s".to_owned(),
        panels: vec![
            Panel::new(
                "% of a core for renewals",
                vec![
                    Row::bar("leasehold", shares).ours().mark("≤", 0.8),
                    Row::bar("the same by hand", once(by_hand)),
                ],
            ),
            Panel::new("MiB", vec![memory.ours().mark("≤", 15.0)]),
        ],
    }
}

/// Measures the processor time of the same renewals by hand, in pipelines of 256.
fn renewals_by_hand(url: &str, guards: &[MutexGuard], renewals: u64) -> Duration {
    let mut connection = connect(url);
    let script = redis::Script::new(RENEW);
    script.prepare_invoke().load(&mut connection).unwrap();
    let names: Vec<_> = guards
        .iter()
        .map(|guard| {
            let lock = format!("lock:{}", guard.name());
            (lock, guard.holder_id())
        })
        .collect();
    let used = processor_time();
    let mut left = usize::try_from(renewals).unwrap();
    for chunk in names.chunks(256).cycle() {
        let batch = &chunk[..left.min(chunk.len())];
        let mut pipe = redis::pipe();
        for (lock, id) in batch {
            // 10_000 is the ttl in ms; with 0 the renewal cannot shorten it.
            pipe.invoke_script(script.key(lock).arg(id.as_str()).arg(10_000).arg(0));
        }
        let answers: Vec<i64> = pipe.query(&mut connection).unwrap();
        assert!(
            answers.iter().all(|answer| *answer == 1),
            "a lease was lost"
        );
        left -= batch.len();
        if left == 0 {
            break;
        }
    }
    processor_time() - used
}

fn resident_mib() -> f64 {
    resident_kib() / 1024.0
}
