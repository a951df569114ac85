//! The time from the start of `unlock` in one process to the return of `lock` in another, which the
//! tables call a hand-off. It goes through Redis, unlike the hand-off inside a client, which
//! `local_handoff` measures.
//!
//! Alternates with a hand-off by hand: the scripts that acquire and release a free lock, a
//! subscriber thread shared by all waiters, a channel, and the acquire on a second connection. The
//! waiter by hand has no place in the queue, so it acquires after the wake-up. The release of a
//! `Mutex` grants the lock to the waiter, which sends nothing after the wake-up.

use common::Report;
use common::floor::mutex::HandWritten;
use common::picture::{Panel, Picture, Row};
use common::ping_pong::{Ours, Side, in_turns, wait};
use leasehold::Client;
use support::Server;

const ROUNDS: usize = 250;
/// How many times a round measures, each with both ways.
const HAND_OFFS: usize = 12;

/// The target for the time relative to by hand.
const TARGET: f64 = 1.10;

fn sides(url: &str) -> Vec<Box<dyn Side>> {
    let mutex = Client::open(url).unwrap().mutex("ours");
    vec![
        Box::new(Ours::new(move || mutex.lock().unwrap())),
        Box::new(HandWritten::new(url)),
    ]
}

fn main() {
    // In a child process, runs its role and exits.
    if support::run_role(&[("waiter", || wait(sides))]) {
        return;
    }

    let server = Server::start().long_lived();
    let url = server.url();
    let report = Report::begin(
        "handoff",
        ROUNDS,
        &format!("unlock in one process to lock in another, {ROUNDS} rounds of {HAND_OFFS}"),
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
        title: "From unlock in one process to lock in another".to_owned(),
        panels: vec![
            Panel::new(
                "µs: p50 · p99 · max",
                vec![
                    Row::range("leasehold", ours.range()).ours(),
                    Row::range("by hand", by_hand.range()),
                ],
            ),
            Panel::new(
                "time relative to by hand",
                vec![Row::bar("leasehold", vs_hand).ours().mark("≤", TARGET)],
            ),
        ],
    };
    report.end(
        &[("handoff_vs_hand", format!("{:.3}", vs_hand.median))],
        &picture,
    );
}
