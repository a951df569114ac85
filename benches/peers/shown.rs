//! How a candidate's results are shown: its problems, and its row in a picture.

use common::picture::Row;
use common::series::Series;
use common::window::Window;

pub(crate) fn is_ours(label: &str) -> bool {
    label.starts_with("leasehold")
}

/// Holds that began although others excluded them, which `excess` counts, and failures.
pub(crate) fn problems(series: &Series, excess: fn(&Window) -> u64) -> String {
    let sum = |of: fn(&Window) -> u64| series.rounds.iter().map(of).sum::<u64>();
    let held = sum(|it| it.acquisitions() as u64);
    let overlaps = sum(excess);
    let failures = sum(|it| it.failures);
    let mut said = Vec::new();
    if overlaps > 0 {
        said.push(format!("too many holders at once: {overlaps} of {held}"));
    }
    if failures > 0 {
        let first = series.rounds.iter().find(|it| it.failures > 0);
        let first = first.map_or("", |it| it.first_failure.as_str());
        let tried = held + failures;
        said.push(format!("failed: {failures} of {tried} ({first})"));
    }
    match sum(|it| it.hung as u64) {
        0 => {}
        hung => said.push(format!("hung: {hung} processes")),
    }
    said.join("; ")
}

/// Returns the row of a candidate, or what is drawn in its place, with its problems in short.
pub(crate) fn drawn(series: &Series, row: Option<Row>, problems: &str) -> Row {
    let row = row.unwrap_or_else(|| Row::nothing(series.label, "never held it"));
    let row = match problems.split([':', '(']).next() {
        Some(short) if !short.is_empty() => row.note(short),
        _ => row,
    };
    if is_ours(series.label) {
        row.ours()
    } else {
        row
    }
}
