//! Measures which calls a stuck connection delays. Many threads share connections, and a proxy
//! delays one write that contains the commands of several calls. The bench counts the calls that
//! take more than 10 ms longer than the slowest call before the delay. The promise is that only
//! calls in that write do.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::picture::{Panel, Picture, Row};
use common::{Report, Spread};
use leasehold::{Client, Mutex};
use support::{Proxy, Server, Traffic, let_pass, ms};

const ROUNDS: usize = 10;
const THREADS: usize = 128;
const CONNECTIONS: usize = 16;

/// The least number of scripts in the write that is held back.
const BATCH: usize = 8;

/// How long the write is held back, and how long the control before it runs.
const HELD: Duration = ms(800);

/// How much longer than the slowest call of the control a call outside the write may take.
const ALLOWED: Duration = ms(10);

fn main() {
    let server = Server::start().long_lived();
    let report = Report::begin(
        "stuck",
        ROUNDS,
        &format!(
            "{THREADS} threads lock and unlock over {CONNECTIONS} connections; one write of at \
             least {BATCH} calls is held back for {HELD:?}"
        ),
    );
    let mut rows = Vec::new();
    let mut beyond_by_round = Vec::new();
    for n in 1..=ROUNDS {
        let round = round(&server);
        let slowest = round.control.iter().max().copied().unwrap_or_default();
        let is_stalled = |took: &&Duration| **took > slowest + ALLOWED;
        let stalled = round.stuck.iter().filter(is_stalled).count();
        let beyond = stalled.saturating_sub(round.in_write);
        beyond_by_round.push(beyond as f64);
        // The slowest calls, as many as were in the write, count as those in the write.
        let mut slowest_first = round.stuck.clone();
        slowest_first.sort_unstable_by(|a, b| b.cmp(a));
        let slowest_other = slowest_first.get(round.in_write).copied();
        let slowest_other = slowest_other.unwrap_or_default();
        rows.push(vec![
            n.to_string(),
            format!("{:.1}", slowest.as_secs_f64() * 1e3),
            round.stuck.len().to_string(),
            round.in_write.to_string(),
            stalled.to_string(),
            beyond.to_string(),
            format!("{:.1}", slowest_other.as_secs_f64() * 1e3),
            if beyond == 0 { "kept" } else { "LATE" }.into(),
        ]);
    }
    let heads = [
        "round",
        "slowest in control, ms",
        "calls while stuck",
        "in the write",
        "10 ms slower than control",
        "not in it",
        "slowest not in it, ms",
        "10 ms",
    ];
    common::print_table(&heads, &rows);
    let most = beyond_by_round.iter().copied().fold(0.0, f64::max);
    let bar = Row::bar("calls", Spread::of(beyond_by_round.into_iter()));
    let picture = Picture {
        title: "Calls that wait for a stuck connection without being sent over it".to_owned(),
        panels: vec![Panel::new(
            format!("of {THREADS} threads, per round"),
            vec![bar.ours().mark("≤", 0.0)],
        )],
    };
    report.end(&[("stalled_beyond_write", format!("{most}"))], &picture);
}

struct Round {
    /// The times of `lock` and `unlock` of each pair that ends before the proxy begins to look for
    /// a write to hold back.
    control: Vec<Duration>,
    /// The same times of each pair that ends later.
    stuck: Vec<Duration>,
    /// How many calls were in the write.
    in_write: usize,
}

/// The phase of a round, set by the thread that runs it.
struct Phase {
    start: Barrier,
    is_stuck: AtomicBool,
    is_over: AtomicBool,
}

/// Locks and unlocks until the round is over; returns the times of `Round::control` and
/// `Round::stuck`.
fn call_until_over(mutex: &Mutex, phase: &Phase) -> (Vec<Duration>, Vec<Duration>) {
    let (mut control, mut stuck) = (Vec::new(), Vec::new());
    // Connections are made, and scripts sent, before anything is timed.
    drop(mutex.lock());
    phase.start.wait();
    while !phase.is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        let guard = mutex.lock().expect("the server answers");
        let locked = Instant::now();
        guard.unlock().expect("the server answers");
        let times = if phase.is_stuck.load(Ordering::Relaxed) {
            &mut stuck
        } else {
            &mut control
        };
        times.extend([locked - began, locked.elapsed()]);
    }
    (control, stuck)
}

fn round(server: &Server) -> Round {
    let proxy = Proxy::new(server);
    let client = Client::builder()
        .url(proxy.url())
        .max_connections(CONNECTIONS)
        .command_timeout(4 * HELD)
        .build()
        .expect("the settings are valid");
    let phase = Phase {
        start: Barrier::new(THREADS + 1),
        is_stuck: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|n| {
                let mutex = client.mutex(format!("stuck-{n}"));
                let phase = &phase;
                scope.spawn(move || call_until_over(&mutex, phase))
            })
            .collect();
        phase.start.wait();
        let_pass(HELD);
        phase.is_stuck.store(true, Ordering::Relaxed);
        proxy.set_on_batch(BATCH, Traffic::StallRequests);
        let (connection, in_write) = loop {
            match proxy.found_batch() {
                Some(found) => break found,
                None => let_pass(ms(1)),
            }
        };
        let_pass(HELD);
        proxy.set_nth(connection, Traffic::Pass);
        phase.is_over.store(true, Ordering::Relaxed);
        let mut round = Round {
            control: Vec::new(),
            stuck: Vec::new(),
            in_write,
        };
        for thread in threads {
            let (control, stuck) = thread.join().expect("the calls succeed");
            round.control.extend(control);
            round.stuck.extend(stuck);
        }
        round
    })
}
