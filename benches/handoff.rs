//! From the start of one process's unlock to the return of another process's `lock`, in turns with the same done by hand:
//! the same scripts, a subscriber thread that all waiters share, a channel, and the acquire on a second connection.

mod common;

use common::Report;
use common::floor::mutex::Woken;
use common::picture::{Panel, Picture, Row};
use common::ping_pong::{Ours, Side, in_turns, wait};
use leasehold::Client;
use support::Server;

const ROUNDS: usize = 250;
const HAND_OFFS: usize = 12;

fn sides(url: &str) -> Vec<Box<dyn Side>> {
    let mutex = Client::open(url).unwrap().mutex("ours");
    vec![
        Box::new(Ours::new(move || mutex.lock().unwrap())),
        Box::new(Woken::new(url)),
    ]
}

fn main() {
    // A process that plays a role ends with it.
    if support::play(&[("waiter", || wait(sides))]) {
        return;
    }

    let server = Server::start().untimed();
    let url = server.url();
    let report = Report::begin(
        "handoff",
        ROUNDS,
        &format!("unlock here to lock there, {ROUNDS} rounds of {HAND_OFFS}"),
    );
    let samples = in_turns(&url, ROUNDS, HAND_OFFS, &mut sides(&url));

    let (ours, by_hand) = (&samples[0], &samples[1]);
    let vs_hand = ours.ratio(by_hand);
    let rows: Vec<_> = [("leasehold", ours), ("by hand", by_hand)]
        .iter()
        .map(|(name, samples)| {
            vec![
                (*name).to_owned(),
                format!("{:.1}", samples.percentile(50.0)),
                format!("{:.1}", samples.percentile(99.0)),
                samples.ratio(by_hand).show(3),
            ]
        })
        .collect();
    let heads = ["hand-off", "p50 µs", "p99 µs", "vs by hand (quartiles)"];
    common::print_table(&heads, &rows);
    let picture = Picture {
        title: "From unlock here to lock in another process".to_owned(),
        panels: vec![
            Panel::new(
                "µs: p50 · p99 · most",
                vec![
                    Row::range("leasehold", ours.range()).ours(),
                    Row::range("by hand", by_hand.range()),
                ],
            ),
            Panel::new(
                "times as long as by hand",
                vec![Row::bar("leasehold", vs_hand).ours().mark("≤", 1.10)],
            ),
        ],
    };
    report.end(
        &[("handoff_vs_hand", format!("{:.3}", vs_hand.median))],
        &picture,
    );
}
