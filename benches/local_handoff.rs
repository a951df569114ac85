//! Eight threads of one client contend for one name with empty critical sections: the time from one
//! thread's unlock to another's lock. Alternates with eight hand-written pollers (every 1 ms), with
//! a hand-written hand-off through Redis, and with a line of threads by hand, which has no server:
//! no hand-off takes less than the wake-up of a thread.

use common::fleet::{Terms, contend, measure};
use common::floor::mutex::HandWritten;
use common::picture::{Panel, Picture, Row};
use common::ping_pong::{Side, Waiter, wait};
use common::series::Series;
use common::window::Window;
use common::{Report, Samples, Spread, candidates};
use support::{Server, ms};

const ROUNDS: usize = 7;
const THREADS: usize = 8;
/// How many hand-offs through Redis a round measures.
const HAND_OFFS: usize = 200;

fn sides(url: &str) -> Vec<Box<dyn Side>> {
    vec![Box::new(HandWritten::new(url))]
}

fn main() {
    // In a child process, runs its role and exits.
    if support::run_role(&[
        ("waiter", || wait(sides)),
        ("member", || contend(candidates::open)),
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
    let mut side = HandWritten::new(&server.url());
    // Not measured: loads the scripts, and starts the waiter's subscriber thread.
    waiter.hand_offs(HAND_OFFS, 0, &mut side);

    let mut results = Results {
        over_redis: Samples::default(),
        ours: Series::new("Mutex", ms(0)),
        pollers: Series::new("poller by hand, every 1 ms", ms(0)),
        lines: Series::new("line by hand, no server", ms(0)),
    };
    for round in 0..ROUNDS {
        for turn in 0..4 {
            match (round + turn) % 4 {
                0 => {
                    let samples = waiter.hand_offs(HAND_OFFS, 0, &mut side);
                    results.over_redis.push(samples);
                }
                1 => results.ours.rounds.push(in_one_process(&server, "mutex")),
                2 => results.lines.rounds.push(in_one_process(&server, "line")),
                _ => {
                    let window = in_one_process(&server, "poller");
                    results.pollers.rounds.push(window);
                }
            }
        }
    }
    waiter.end();

    results.print();
    let acq_vs_poller = results
        .ours
        .ratio(&results.pollers, Window::acquisitions_per_s);
    let requests = results.ours.spread(Window::requests_per_acquisition);
    let jain = results.ours.spread(Window::jain_threads);
    let gap_vs_redis = results.gap_vs_redis(&results.ours);
    let line_gap_vs_redis = results.gap_vs_redis(&results.lines);
    report.end(
        &[
            ("gap_vs_redis", format!("{:.3}", gap_vs_redis.median)),
            (
                "line_by_hand_gap_vs_redis",
                format!("{:.3}", line_gap_vs_redis.median),
            ),
            ("acq_vs_poller", format!("{:.3}", acq_vs_poller.median)),
            ("jain", format!("{:.3}", jain.median)),
            ("requests_per_acq", format!("{:.3}", requests.median)),
        ],
        &results.picture(),
    );
}

struct Results {
    over_redis: Samples,
    ours: Series,
    pollers: Series,
    lines: Series,
}

impl Results {
    fn gap_vs_redis(&self, of: &Series) -> Spread {
        let rounds = of.rounds.iter().zip(self.over_redis.medians());
        Spread::of(rounds.map(|(local, over_redis)| local.gaps()[0] / over_redis))
    }

    fn print(&self) {
        let points = |points: [f64; 3]| points.map(|point| format!("{point:.1}"));
        let row = |series: &Series| {
            let [p50, p99, most] = points(series.points(Window::gaps));
            vec![
                series.label.to_owned(),
                p50,
                p99,
                most,
                series.spread(Window::acquisitions_per_s).show(0),
                series.spread(Window::jain_threads).show(3),
                series.spread(Window::requests_per_acquisition).show(3),
                series.spread(Window::client_cpu_per_acquisition).show(1),
            ]
        };
        let mut over_redis = vec!["through Redis by hand, two processes".to_owned()];
        over_redis.extend(points(self.over_redis.range()));
        over_redis.resize(8, String::new());
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
                row(&self.ours),
                row(&self.pollers),
                row(&self.lines),
                over_redis,
            ],
        );
    }

    fn picture(&self) -> Picture {
        let (ours, pollers) = (&self.ours, &self.pollers);
        let per_s = |series: &Series| series.spread(Window::acquisitions_per_s);
        let requests = |series: &Series| series.spread(Window::requests_per_acquisition);
        let gaps = vec![
            Row::range("Mutex, same process", ours.points(Window::gaps)).ours(),
            Row::range("pollers, same process", pollers.points(Window::gaps)),
            Row::range("line by hand", self.lines.points(Window::gaps)),
            Row::range("through Redis by hand", self.over_redis.range()),
        ];
        let relative = Row::bar("Mutex", self.gap_vs_redis(ours)).ours();
        let line = Row::bar("line by hand", self.gap_vs_redis(&self.lines));
        let acquisitions = vec![
            Row::bar("Mutex", per_s(ours)).ours(),
            Row::bar("pollers", per_s(pollers)),
        ];
        let requests = vec![
            Row::bar("Mutex", requests(ours)).ours().mark("≤", 0.15),
            Row::bar("pollers", requests(pollers)),
        ];
        Picture {
            title: "Eight threads of one process, one name, empty sections".to_owned(),
            panels: vec![
                Panel::new(
                    "from unlock to another thread's lock, µs: p50 · p99 · max",
                    gaps,
                ),
                Panel::new(
                    "that p50 relative to the hand-off through Redis by hand",
                    vec![relative.mark("≤", 0.03), line],
                ),
                Panel::new("acquisitions per second", acquisitions),
                Panel::new("requests per acquisition", requests),
            ],
        }
    }
}

fn in_one_process(server: &Server, kind: &'static str) -> Window {
    let terms = Terms {
        kind,
        processes: 1,
        threads: THREADS,
        section: ms(0),
        lasts: ms(1_000),
    };
    let window = measure(server, terms);
    window.holds_what_it_promises();
    window
}
