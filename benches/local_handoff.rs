//! Eight threads of one client that want one name, with nothing to do under it: from one thread's unlock to another's
//! lock. In turns with eight threads that poll every 1 ms by hand, and with the hand-off over Redis by hand.

mod common;
#[path = "../tests/support/mod.rs"]
mod support;

use common::between::{Side, Waiter, wait};
use common::fleet::{Terms, contend, stretch};
use common::picture::{Panel, Picture, Row};
use common::stretch::Stretch;
use common::woken::Woken;
use common::{Report, Samples, Spread, contenders};
use support::{Server, ms};

const ROUNDS: usize = 7;
const THREADS: usize = 8;
const HAND_OFFS: usize = 200;

fn sides(url: &str) -> Vec<Box<dyn Side>> {
    vec![Box::new(Woken::new(url))]
}

fn main() {
    // A process that plays a role ends with it.
    support::role(&[
        ("waiter", || wait(sides)),
        ("member", || contend(contenders::open)),
    ]);

    let server = Server::start().untimed();
    let report = Report::begin(
        "local_handoff",
        ROUNDS,
        &format!("{THREADS} threads of one process, one name, empty sections, {ROUNDS} rounds"),
    );
    let waiter = Waiter::start(&server.url());
    let mut side = Woken::new(&server.url());
    waiter.hand_offs(HAND_OFFS, 0, &mut side);

    let (mut over_redis, mut ours, mut pollers) = (Samples::default(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for turn in 0..3 {
            match (round + turn) % 3 {
                0 => over_redis.push(waiter.hand_offs(HAND_OFFS, 0, &mut side)),
                1 => ours.push(in_one_process(&server, "mutex")),
                _ => pollers.push(in_one_process(&server, "poller")),
            }
        }
    }
    waiter.end();

    let spread =
        |of: fn(&Stretch) -> f64, stretches: &[Stretch]| Spread::of(stretches.iter().map(of));
    let gaps = |stretches: &[Stretch]| {
        [0, 1, 2].map(|n| Spread::of(stretches.iter().map(|it| it.gaps()[n])).median)
    };
    let gap_vs_redis = Spread::of(
        ours.iter()
            .zip(over_redis.medians())
            .map(|(ours, over_redis)| ours.gaps()[0] / over_redis),
    );
    let acq_vs_poller = Spread::of(
        ours.iter()
            .zip(&pollers)
            .map(|(ours, poller)| ours.acquisitions_per_s() / poller.acquisitions_per_s()),
    );
    let requests = spread(Stretch::requests_per_acquisition, &ours);
    let jain = spread(Stretch::jain_threads, &ours);

    let points = |points: [f64; 3]| points.map(|point| format!("{point:.1}"));
    let row = |label: &str, stretches: &[Stretch]| {
        let [p50, p99, most] = points(gaps(stretches));
        vec![
            label.to_owned(),
            p50,
            p99,
            most,
            spread(Stretch::acquisitions_per_s, stretches).show(0),
            spread(Stretch::jain_threads, stretches).show(3),
            spread(Stretch::requests_per_acquisition, stretches).show(3),
            spread(Stretch::client_cpu_per_acquisition, stretches).show(1),
        ]
    };
    let [p50, p99, most] = points(over_redis.range());
    let none = String::new;
    common::print_table(
        &[
            "8 threads",
            "gap p50 µs",
            "p99",
            "most",
            "acquired/s (quartiles)",
            "Jain",
            "requests",
            "client CPU µs",
        ],
        &[
            row("Mutex", &ours),
            row("poller by hand, every 1 ms", &pollers),
            vec![
                "over Redis by hand, two processes".to_owned(),
                p50,
                p99,
                most,
                none(),
                none(),
                none(),
                none(),
            ],
        ],
    );
    let panel = |title: &str, rows| Panel {
        title: title.to_owned(),
        rows,
    };
    let per_s = |stretches: &[Stretch]| spread(Stretch::acquisitions_per_s, stretches);
    let picture = Picture {
        title: "Eight threads of one process, one name, empty sections".to_owned(),
        panels: vec![
            panel(
                "from unlock to another's lock, µs: p50 · p99 · most",
                vec![
                    Row::range("Mutex, same process", gaps(&ours)).ours(),
                    Row::range("pollers, same process", gaps(&pollers)),
                    Row::range("over Redis by hand", over_redis.range()),
                ],
            ),
            panel(
                "p50 of that against the hand-off over Redis by hand",
                vec![Row::bar("Mutex", gap_vs_redis).ours().mark("≤", 0.15)],
            ),
            panel(
                "acquisitions a second",
                vec![
                    Row::bar("Mutex", per_s(&ours)).ours(),
                    Row::bar("pollers", per_s(&pollers)),
                ],
            ),
            panel(
                "requests for an acquisition",
                vec![
                    Row::bar("Mutex", requests).ours().mark("≤", 0.15),
                    Row::bar(
                        "pollers",
                        spread(Stretch::requests_per_acquisition, &pollers),
                    ),
                ],
            ),
        ],
    };
    report.end(
        &[
            ("gap_vs_redis", format!("{:.3}", gap_vs_redis.median)),
            ("acq_vs_poller", format!("{:.3}", acq_vs_poller.median)),
            ("jain", format!("{:.3}", jain.median)),
            ("requests_per_acq", format!("{:.3}", requests.median)),
        ],
        &picture,
    );
}

fn in_one_process(server: &Server, kind: &'static str) -> Stretch {
    let terms = Terms {
        kind,
        processes: 1,
        threads: THREADS,
        section: ms(0),
        lasts: ms(1_000),
    };
    let stretch = stretch(server, terms);
    stretch.holds_what_it_promises();
    stretch
}
