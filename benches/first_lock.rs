//! The first lock of a new client: open, connect, lock and unlock. Alternates with the same round
//! trips by hand: a connection, and the scripts that acquire and release. The scripts are in the
//! server, and the end of the client or of the connection is not measured.

use std::time::{Duration, Instant};

use common::floor::pair::Hand;
use common::picture::{Panel, Picture, Row};
use common::{Report, Runner};
use leasehold::Client;
use support::Server;

const ROUNDS: usize = 200;
const CLIENTS: usize = 5;

/// The target for the time relative to by hand.
const TARGET: f64 = 1.5;

fn main() {
    let server = Server::start().long_lived();
    let url = server.url();
    let report = Report::begin(
        "first_lock",
        ROUNDS,
        &format!("the first lock of a new client, {ROUNDS} rounds of {CLIENTS}"),
    );
    let ours = || {
        let client = Client::open(&url).unwrap();
        client.mutex("ours").lock().unwrap().unlock().unwrap();
        client
    };
    let by_hand = || {
        let mut hand = Hand::new(&url, "hand");
        hand.pair();
        hand
    };
    let mut runners: [Runner<'_>; 2] = [
        Box::new(|| times(CLIENTS, ours)),
        Box::new(|| times(CLIENTS, by_hand)),
    ];
    let samples = common::take_turns(ROUNDS, &mut runners);
    let names = ["leasehold", "the same round trips by hand"];
    common::print_pairs(&names, &samples);
    let vs_hand = samples[0].ratio(&samples[1]);
    println!("leasehold relative to by hand: {}", vs_hand.show(3));
    let [ours, by_hand] = [&samples[0], &samples[1]].map(|it| it.range());
    let picture = Picture {
        title: "The first lock of a new client".to_owned(),
        panels: vec![
            Panel::new(
                "µs: p50 · p99 · max",
                vec![
                    Row::range(names[0], ours).ours(),
                    Row::range(names[1], by_hand),
                ],
            ),
            Panel::new(
                "time relative to by hand",
                vec![Row::bar(names[0], vs_hand).ours().mark("≤", TARGET)],
            ),
        ],
    };
    report.end(&[("vs_hand", vs_hand.figure())], &picture);
}

/// Times each of `times` runs without the drop of what it returns.
fn times<T>(times: usize, run: impl Fn() -> T) -> Vec<Duration> {
    let timed = |_| {
        let began = Instant::now();
        let opened = run();
        let took = began.elapsed();
        drop(opened);
        took
    };
    (0..times).map(timed).collect()
}
