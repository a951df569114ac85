//! The pictures of the page, drawn from the same runs as its tables.

use std::path::Path;

use common::Spread;
use common::picture::{Panel, Picture, Row};

use crate::contention::has_tuned_form;
use crate::results::{Run, candidates, measured, range};
use crate::shown::is_ours;

/// Panels: title and key, or the keys of p50, p99 and maximum.
type Panels = &'static [(&'static str, &'static [&'static str])];

const PICTURES: [(&str, &str, Panels); 3] = [
    (
        "alone.svg",
        "One caller that never waits",
        &[
            ("lock and unlock, µs", &["lock_unlock_us"]),
            ("open, connect, lock and unlock, µs", &["first_lock_us"]),
            (
                "processor time of the server for lock and unlock, µs",
                &["server_us"],
            ),
            (
                "from unlock in one process to lock in another, µs",
                &["handoff_us"],
            ),
        ],
    ),
    (
        "contended.svg",
        "8 processes, one name, sections of 1 ms",
        &[
            (
                "wait, ms: p50 · p99 · max",
                &["wait_p50_ms", "wait_p99_ms", "wait_max_ms"],
            ),
            ("acquisitions a second", &["acq_per_s"]),
            ("share of the luckiest process, %", &["luckiest_pct"]),
            ("share of the unluckiest process, %", &["unluckiest_pct"]),
        ],
    ),
    (
        "contended_empty.svg",
        "8 processes, one name, empty sections",
        &[
            (
                "wait, ms: p50 · p99 · max",
                &[
                    "empty_wait_p50_ms",
                    "empty_wait_p99_ms",
                    "empty_wait_max_ms",
                ],
            ),
            ("acquisitions a second", &["empty_acq_per_s"]),
            ("share of the luckiest process, %", &["empty_luckiest_pct"]),
            (
                "share of the unluckiest process, %",
                &["empty_unluckiest_pct"],
            ),
        ],
    ),
];

/// Draws all pictures in a folder. They show the tuned form of a candidate, not its defaults.
pub(crate) fn draw(runs: &[Run], folder: &Path) {
    for (file, title, panels) in PICTURES {
        let panels = panels.iter().map(|(title, keys)| {
            let names = candidates(runs, keys[0]).into_iter();
            let names = names.filter(|name| !has_tuned_form(name));
            let rows = names.map(|name| row(runs, keys, &name));
            Panel::new(*title, rows.collect())
        });
        let picture = Picture {
            title: title.to_owned(),
            panels: panels.collect(),
        };
        picture.draw_runs(&folder.join(file), &measured(runs));
    }
}

fn row(runs: &[Run], keys: &[&str], name: &str) -> Row {
    let of_key = |key: &&str| range(runs, key, name).unwrap_or([f64::NAN; 3]);
    let values: Vec<[f64; 3]> = keys.iter().map(of_key).collect();
    let row = match values[..] {
        [[low, median, high]] => Row::bar(name, Spread { low, median, high }),
        _ => Row::range(name, [0, 1, 2].map(|n| values[n][1])),
    };
    let problem = runs.iter().rev().find_map(|run| run.problem(name));
    let row = match problem.and_then(|problem| problem.split([':', '(']).next()) {
        Some(short) => row.note(short),
        None => row,
    };
    if is_ours(name) { row.ours() } else { row }
}
