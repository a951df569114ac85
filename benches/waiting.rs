//! A thousand threads of one client that wait for a name which somebody else holds: what they ask of Redis, and what
//! they cost their process.

mod common;
#[path = "../tests/support/mod.rs"]
mod support;

use std::fs;
use std::thread;
use std::time::Duration;

use common::picture::{Panel, Picture, Row};
use common::{Monitor, Report, Spread, clock, processor};
use leasehold::Client;
use support::{Server, eventually, ms};

const ROUNDS: usize = 5;
const WAITERS: usize = 1_000;

/// Of each round: many times the backstop and the probe, which come every second.
const WATCHED: Duration = Duration::from_secs(20);

/// Longer than the bench: the holder renews nothing in it.
const HELD_FOR: Duration = Duration::from_secs(3_600);

/// What a thread that only waits needs of its stack.
const STACK: usize = 64 * 1024;

fn main() {
    let server = Server::start().untimed();
    let report = Report::begin(
        "waiting",
        ROUNDS,
        &format!("{WAITERS} threads of one client wait, {ROUNDS} rounds of {WATCHED:?}"),
    );
    let holder = Client::open(&server.url()).unwrap();
    let waiting = Client::open(&server.url()).unwrap();
    let held = holder.mutex("a").ttl(HELD_FOR).lock().unwrap();

    let before = resident_kib();
    for _ in 0..WAITERS {
        let client = waiting.clone();
        thread::Builder::new()
            .stack_size(STACK)
            .spawn(move || drop(client.mutex("a").lock()))
            .unwrap();
    }
    eventually(ms(30_000), || waiting.stats().waiting == WAITERS as u64);
    // The first wait's subscription is over.
    thread::sleep(ms(2_000));
    let waiters_kib = (resident_kib() - before) / WAITERS as f64;

    let (mut requests, mut cores) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let monitor = Monitor::start(&server);
        let (began, used) = (clock(), processor());
        thread::sleep(WATCHED);
        let (took, used) = (clock() - began, processor() - used);
        requests.push(monitor.stop() as f64 / took.as_secs_f64());
        cores.push(used.as_secs_f64() / took.as_secs_f64() * 100.0);
    }
    assert_eq!(waiting.stats().waiting, WAITERS as u64, "all still wait");
    assert!(held.is_held());

    let (requests, cores) = (
        Spread::of(requests.into_iter()),
        Spread::of(cores.into_iter()),
    );
    let row =
        |what: &str, value: String, asked: &str| vec![what.to_owned(), value, asked.to_owned()];
    common::print_table(
        &["1 000 waiters", "measured", "asked"],
        &[
            row("requests a second", requests.show(2), "at most 3"),
            row("of a core, %", cores.show(3), ""),
            row(
                "KiB a waiter, its thread included",
                format!("{waiters_kib:.1}"),
                "",
            ),
        ],
    );
    let panel = |title: &str, rows| Panel {
        title: title.to_owned(),
        rows,
    };
    let picture = Picture {
        title: format!("{WAITERS} threads of one client wait for a name"),
        panels: vec![
            panel(
                "requests a second, of all of them together",
                vec![Row::bar("Mutex", requests).ours().mark("≤", 3.0)],
            ),
            panel("% of a core", vec![Row::bar("Mutex", cores).ours()]),
        ],
    };
    report.end(
        &[
            ("requests_per_s_1000", format!("{:.2}", requests.median)),
            ("waiting_core_pct", format!("{:.3}", cores.median)),
            ("waiter_kib", format!("{waiters_kib:.1}")),
        ],
        &picture,
    );
    // A thousand threads that would take turns are not waited for.
    std::process::exit(0);
}

fn resident_kib() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    kib.unwrap().parse().unwrap()
}
