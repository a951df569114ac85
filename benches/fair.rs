//! The time from the start of `unlock` in one process to the return of `lock` in another.
//! Alternates `FairMutex` with a hand-written queue and grant, with its own scripts by hand, and
//! with `Mutex`. Also counts the round trips that the woken thread makes.

use std::time::Duration;

use common::floor::fair::Granted;
use common::picture::{Panel, Picture, Row};
use common::ping_pong::{Ours, Side, Waiter, in_turns, wait};
use common::{Report, Samples};
use leasehold::Client;
use support::{Proxy, Server, ms};

const ROUNDS: usize = 250;
const HAND_OFFS: usize = 12;

/// The delay added to each round trip, and the hand-offs measured with it.
const LONGER: Duration = ms(20);
const LONGER_HAND_OFFS: usize = 15;

/// Enough time for a waiter to try, subscribe, try again and fall asleep.
const FALLS_ASLEEP: Duration = ms(300);

const NAMES: [&str; 4] = [
    "FairMutex",
    "Mutex",
    "queue and grant by hand",
    "FairMutex's scripts by hand",
];

fn sides(url: &str) -> Vec<Box<dyn Side>> {
    let client = Client::open(url).unwrap();
    let (fair, plain) = (client.fair_mutex("fair"), client.mutex("plain"));
    vec![
        Box::new(Ours::new(move || fair.lock().unwrap())),
        Box::new(Ours::new(move || plain.lock().unwrap())),
        Box::new(Granted::new(url)),
        Box::new(Granted::with_client_scripts(url)),
    ]
}

fn main() {
    // In a child process, runs its role and exits.
    if support::run_role(&[("waiter", || wait(sides))]) {
        return;
    }

    let server = Server::start().long_lived();
    let report = Report::begin(
        "fair",
        ROUNDS,
        &format!("unlock in one process to lock in another, {ROUNDS} rounds of {HAND_OFFS}"),
    );
    let mut sides = sides(&server.url());
    let trips = trips_after_wake(&server, &mut sides);

    let samples = in_turns(&server.url(), ROUNDS, HAND_OFFS, &mut sides);

    let [fair, mutex, by_hand, its_scripts] = &samples[..] else {
        unreachable!("one result per candidate");
    };
    let (vs_hand, vs_mutex) = (fair.ratio(by_hand), fair.ratio(mutex));
    let vs_scripts = fair.ratio(its_scripts);
    print(&samples, &trips);
    let ratios = vec![
        Row::bar("FairMutex vs by hand", vs_hand)
            .ours()
            .mark("≤", 1.05),
        Row::bar("FairMutex vs Mutex", vs_mutex).ours(),
        Row::bar("FairMutex vs its scripts by hand", vs_scripts).ours(),
    ];
    let picture = Picture {
        title: "From unlock in one process to lock in another, first come, first served".to_owned(),
        panels: vec![
            Panel::new("µs: p50 · p99 · max", times(&samples)),
            Panel::new("relative time", ratios),
        ],
    };
    report.end(
        &[
            ("fair_vs_hand", format!("{:.3}", vs_hand.median)),
            ("fair_vs_mutex", format!("{:.3}", vs_mutex.median)),
            ("fair_vs_scripts", format!("{:.3}", vs_scripts.median)),
            ("trips_after_wake", format!("{:.0}", trips[0].abs())),
            ("mutex_trips_after_wake", format!("{:.0}", trips[1].abs())),
        ],
        &picture,
    );
}

/// Prints a row per side; `trips` are the round trips after the wake-up.
fn print(samples: &[Samples], trips: &[f64]) {
    let [_, mutex, by_hand, _] = samples else {
        unreachable!("one result per candidate");
    };
    let rows: Vec<_> = NAMES
        .iter()
        .zip(samples)
        .zip(trips)
        .map(|((name, samples), trips)| {
            vec![
                (*name).to_owned(),
                format!("{:.1}", samples.percentile(50.0)),
                format!("{:.1}", samples.percentile(99.0)),
                samples.ratio(by_hand).show(3),
                samples.ratio(mutex).show(3),
                format!("{trips:.2}"),
            ]
        })
        .collect();
    common::print_table(
        &[
            "hand-off",
            "p50 µs",
            "p99 µs",
            "vs by hand (quartiles)",
            "vs Mutex (quartiles)",
            "round trips after the wake-up",
        ],
        &rows,
    );
}

/// Returns the range of each side's times.
fn times(samples: &[Samples]) -> Vec<Row> {
    let times = NAMES.iter().zip(samples).enumerate();
    let times = times.map(|(n, (name, samples))| {
        let row = Row::range(*name, samples.range());
        if n < 2 { row.ours() } else { row }
    });
    times.collect()
}

/// Counts the round trips of each side. Only the waiter's direction to Redis is delayed: each round
/// trip between its wake-up and the return of `lock` adds the delay once; background calls add
/// nothing.
fn trips_after_wake(server: &Server, sides: &mut [Box<dyn Side>]) -> Vec<f64> {
    let proxy = Proxy::new(server);
    let waiter = Waiter::start(&proxy.url());
    let trips = sides.iter_mut().enumerate().map(|(n, side)| {
        let mut took = |longer: Duration| {
            proxy.delay(longer, ms(0));
            let mut samples = Samples::default();
            let times = LONGER_HAND_OFFS;
            samples.push(waiter.slow_hand_offs(FALLS_ASLEEP, times, n, side.as_mut()));
            samples.median().median
        };
        // The first hand-off includes the subscription.
        took(ms(0));
        (took(LONGER) - took(ms(0))) / common::micros(LONGER)
    });
    let trips = trips.collect();
    proxy.delay(ms(0), ms(0));
    waiter.end();
    trips
}
