//! Eight threads of one client contend for one name with empty critical sections: the time from one
//! thread's unlock to another's lock. Alternates with eight hand-written pollers (every 1 ms), and
//! with a hand-written hand-off through Redis.

mod common;

use common::fleet::{Terms, contend, stretch};
use common::floor::mutex::Woken;
use common::picture::{Panel, Picture, Row};
use common::ping_pong::{Side, Waiter, wait};
use common::series::Series;
use common::window::Window;
use common::{Report, Samples, Spread, contenders};
use support::{Server, ms};

const ROUNDS: usize = 7;
const THREADS: usize = 8;
const HAND_OFFS: usize = 200;

fn sides(url: &str) -> Vec<Box<dyn Side>> {
    vec![Box::new(Woken::new(url))]
}

fn main() {
    // In a child process, runs its role and exits.
    if support::run_role(&[
        ("waiter", || wait(sides)),
        ("member", || contend(contenders::open)),
    ]) {
        return;
    }

    let server = Server::start().long_lived();
    let report = Report::begin(
        "local_handoff",
        ROUNDS,
        &format!("{THREADS} threads of one process, one name, empty sections, {ROUNDS} rounds"),
    );
    let waiter = Waiter::start(&server.url());
    let mut side = Woken::new(&server.url());
    waiter.hand_offs(HAND_OFFS, 0, &mut side);

    let mut over_redis = Samples::default();
    let mut ours = Series::new("Mutex", ms(0));
    let mut pollers = Series::new("poller by hand, every 1 ms", ms(0));
    for round in 0..ROUNDS {
        for turn in 0..3 {
            match (round + turn) % 3 {
                0 => over_redis.push(waiter.hand_offs(HAND_OFFS, 0, &mut side)),
                1 => ours.rounds.push(in_one_process(&server, "mutex")),
                _ => pollers.rounds.push(in_one_process(&server, "poller")),
            }
        }
    }
    waiter.end();

    let gap_vs_redis = Spread::of(
        ours.rounds
            .iter()
            .zip(over_redis.medians())
            .map(|(ours, over_redis)| ours.gaps()[0] / over_redis),
    );
    let acq_vs_poller = ours.ratio(&pollers, Window::acquisitions_per_s);
    let requests = ours.spread(Window::requests_per_acquisition);
    let jain = ours.spread(Window::jain_threads);

    let points = |points: [f64; 3]| points.map(|point| format!("{point:.1}"));
    let row = |ran: &Series| {
        let [p50, p99, most] = points(ran.points(Window::gaps));
        vec![
            ran.label.to_owned(),
            p50,
            p99,
            most,
            ran.spread(Window::acquisitions_per_s).show(0),
            ran.spread(Window::jain_threads).show(3),
            ran.spread(Window::requests_per_acquisition).show(3),
            ran.spread(Window::client_cpu_per_acquisition).show(1),
        ]
    };
    let [p50, p99, most] = points(over_redis.range());
    let none = String::new;
    common::print_table(
        &[
            "8 threads",
            "gap p50 µs",
            "p99",
            "max",
            "acquisitions/s (quartiles)",
            "Jain",
            "requests",
            "client CPU µs",
        ],
        &[
            row(&ours),
            row(&pollers),
            vec![
                "through Redis by hand, two processes".to_owned(),
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
    let per_s = |ran: &Series| ran.spread(Window::acquisitions_per_s);
    let picture = Picture {
        title: "Eight threads of one process, one name, empty sections".to_owned(),
        panels: vec![
            Panel::new(
                "from unlock to another thread's lock, µs: p50 · p99 · max",
                vec![
                    Row::range("Mutex, same process", ours.points(Window::gaps)).ours(),
                    Row::range("pollers, same process", pollers.points(Window::gaps)),
                    Row::range("through Redis by hand", over_redis.range()),
                ],
            ),
            Panel::new(
                "that p50 relative to the hand-off through Redis by hand",
                vec![Row::bar("Mutex", gap_vs_redis).ours().mark("≤", 0.15)],
            ),
            Panel::new(
                "acquisitions per second",
                vec![
                    Row::bar("Mutex", per_s(&ours)).ours(),
                    Row::bar("pollers", per_s(&pollers)),
                ],
            ),
            Panel::new(
                "requests per acquisition",
                vec![
                    Row::bar("Mutex", requests).ours().mark("≤", 0.15),
                    Row::bar("pollers", pollers.spread(Window::requests_per_acquisition)),
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

fn in_one_process(server: &Server, kind: &'static str) -> Window {
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
