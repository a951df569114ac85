//! Processes that contend for one name: two that hand it to each other, and eight.

use std::time::Duration;

use common::fleet::{Terms, measure};
use common::series::{Series, run_in_turns};
use common::window::Window;
use support::{Server, ms};

use crate::contention::{Candidate, PROCESSES, lasts, rounds};
use crate::record::Record;
use crate::shown::{is_ours, problems};

type Statistic = fn(&Window) -> f64;

struct Situation {
    /// Before the kind of the candidate.
    kind: &'static str,
    processes: usize,
    section: Duration,
    figures: &'static [(&'static str, Statistic)],
}

const SITUATIONS: [Situation; 3] = [
    Situation {
        kind: "alternating/",
        processes: 2,
        section: ms(2),
        figures: &[("handoff_us", |it| it.gaps()[0])],
    },
    Situation {
        kind: "",
        processes: PROCESSES,
        section: ms(1),
        figures: &[
            ("wait_p50_ms", |it| it.waits()[0] / 1e3),
            ("wait_p99_ms", |it| it.waits()[1] / 1e3),
            ("wait_max_ms", |it| it.waits()[2] / 1e3),
            ("acq_per_s", Window::acquisitions_per_s),
            ("luckiest_pct", |it| it.shares()[0]),
            ("unluckiest_pct", |it| it.shares()[1]),
            ("requests", Window::requests_per_acquisition),
        ],
    },
    Situation {
        kind: "",
        processes: PROCESSES,
        section: ms(0),
        figures: &[
            ("empty_wait_p50_ms", |it| it.waits()[0] / 1e3),
            ("empty_wait_p99_ms", |it| it.waits()[1] / 1e3),
            ("empty_wait_max_ms", |it| it.waits()[2] / 1e3),
            ("empty_acq_per_s", Window::acquisitions_per_s),
            ("empty_luckiest_pct", |it| it.shares()[0]),
            ("empty_unluckiest_pct", |it| it.shares()[1]),
        ],
    },
];

/// Runs every candidate in every situation.
pub(crate) fn run(server: &Server, candidates: &[Candidate], record: &mut Record) {
    for situation in &SITUATIONS {
        let labels = candidates.iter().map(|(label, _)| *label);
        let mut series: Vec<Series> = labels
            .map(|label| Series::new(label, situation.section))
            .collect();
        run_in_turns(rounds(), &mut series, |n| {
            // Keys left behind by one candidate must not affect the next.
            server.run("FLUSHALL", &[]);
            let terms = Terms {
                kind: &format!("{}{}", situation.kind, candidates[n].1),
                processes: situation.processes,
                threads: 1,
                section: situation.section,
                lasts: lasts(),
            };
            let window = measure(server, terms);
            if is_ours(candidates[n].0) {
                window.holds_what_it_promises();
            }
            window
        });
        for series in &series {
            for (key, of) in situation.figures {
                record.add(key, series.label, series.spread(of).median);
            }
            let excess = |it: &Window| it.miscounted.max(it.overlaps as u64);
            record.problem(series.label, problems(series, excess));
        }
    }
}
