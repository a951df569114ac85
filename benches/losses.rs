//! How late losses are reported when a server dies under 5,000 leases that end at the same time.
//! One thread waits for all `lost()` channels in the order in which the leases end; next to it,
//! another thread sleeps until each of these ends.
//!
//! Takes about 40 seconds.

use std::thread;
use std::time::{Duration, Instant};

use common::picture::{Panel, Picture, Row};
use common::{Report, Samples};
use leasehold::{Client, Lost, MutexGuard};
use support::{Server, let_pass, ms};

const ROUNDS: usize = 5;
const LEASES: usize = 5_000;

/// Threads that take the leases. The last of them must be taken long before the first one ends.
const TAKERS: usize = 4;

/// The time from the begin of a round until all leases end.
const ENDS_AFTER: Duration = Duration::from_secs(6);

/// The time from the death of the server until the ends of the leases are read. Until then, replies
/// that were on their way may still move them.
const SETTLED: Duration = ms(200);

/// How late a loss may be reported.
const ALLOWED: f64 = 20.0;

fn main() {
    let report = Report::begin(
        "losses",
        ROUNDS,
        &format!("{LEASES} leases end at the same time after their server died, {ROUNDS} rounds"),
    );
    let (mut told, mut slept) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        let round = round();
        told.push(round.told);
        slept.push(round.slept);
    }
    let millis = |samples: &Samples| samples.range().map(|micros| micros / 1e3);
    let (ours, sleeper) = (millis(&told), millis(&slept));
    let row = |name: &str, range: [f64; 3], target: String| {
        let values = range.map(|value| format!("{value:.2}"));
        let cells = [name.to_owned()].into_iter().chain(values);
        cells.chain([target]).collect::<Vec<_>>()
    };
    let target = if ours[2] <= ALLOWED { "kept" } else { "LATE" };
    let rows = [
        row("lost()", ours, target.to_owned()),
        row("a thread that sleeps", sleeper, String::new()),
    ];
    let heads = ["ms late", "p50", "p99", "most", "20 ms"];
    common::print_table(&heads, &rows);
    let figures = [
        ("lost_p50_ms", ours[0]),
        ("lost_p99_ms", ours[1]),
        ("lost_most_ms", ours[2]),
        ("sleeper_p99_ms", sleeper[1]),
        ("sleeper_most_ms", sleeper[2]),
    ];
    let figures = figures.map(|(key, value)| (key, format!("{value:.2}")));
    let picture = Picture {
        title: format!("{LEASES} leases whose server has died: how late each loss is reported"),
        panels: vec![Panel::new(
            "ms after the end of the lease: p50, p99, most",
            vec![
                Row::range("lost()", ours).ours().mark("≤", ALLOWED),
                Row::range("a thread that sleeps", sleeper),
            ],
        )],
    };
    report.end(&figures, &picture);
}

/// How late each loss was reported, and each sleep until the end of a lease was over.
struct Round {
    told: Vec<Duration>,
    slept: Vec<Duration>,
}

fn round() -> Round {
    let mut server = Server::start().long_lived();
    let client = Client::open(server.url()).expect("the URL is valid");
    let guards = take_all(&client);
    server.kill();
    let_pass(SETTLED);
    let mut ends: Vec<_> = guards
        .iter()
        .map(|guard| {
            let left = guard.remaining().expect("no lease has ended yet");
            (Instant::now() + left, guard.lost())
        })
        .collect();
    ends.sort_by_key(|(end, _)| *end);
    thread::scope(|scope| {
        let told = scope.spawn(|| {
            let times = ends.iter().map(|(end, lost)| {
                assert_eq!(lost.recv(), Ok(Lost::Expired));
                end.elapsed()
            });
            times.collect()
        });
        let slept = scope.spawn(|| {
            let times = ends.iter().map(|(end, _)| {
                thread::sleep(end.saturating_duration_since(Instant::now()));
                end.elapsed()
            });
            times.collect()
        });
        Round {
            told: told.join().expect("every loss is an expiry"),
            slept: slept.join().expect("a sleep does not panic"),
        }
    })
}

/// Takes leases that all end at the same time, unless they are renewed.
fn take_all(client: &Client) -> Vec<MutexGuard> {
    let end = Instant::now() + ENDS_AFTER;
    let take = |n: usize| {
        let mutex = client.mutex(format!("account:{n}"));
        let mutex = mutex.ttl(end - Instant::now());
        mutex.lock().expect("the server answers")
    };
    thread::scope(|scope| {
        let takers: Vec<_> = (0..TAKERS)
            .map(|taker| {
                let numbers = (taker..LEASES).step_by(TAKERS);
                scope.spawn(move || numbers.map(take).collect::<Vec<_>>())
            })
            .collect();
        let taken = takers.into_iter().map(|taker| taker.join());
        taken
            .flat_map(|guards| guards.expect("the lock is free"))
            .collect()
    })
}
