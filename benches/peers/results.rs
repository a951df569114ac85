//! The results of `make benchmarks`, one line of JSON for each run, and the page's tables.

use std::collections::BTreeSet;

use serde_json::Value;

/// The candidate of this crate that the first table shows.
pub(crate) const OURS: &str = "leasehold Mutex";
/// `SET NX PX` and a compare-and-delete, every 1 ms while another holds the lock.
pub(crate) const BARE: &str = "bare commands";

/// The machine-written part of the page is between these lines.
pub(crate) const BEGIN: &str = "<!-- Written by `make benchmarks`. -->\n";
pub(crate) const END: &str = "<!-- End of what `make benchmarks` writes. -->\n";

/// One run: its date, machine and command, and `figures`, which has the value of each candidate for
/// each key.
pub(crate) struct Run(pub(crate) Value);

impl Run {
    pub(crate) fn figure(&self, key: &str, candidate: &str) -> Option<f64> {
        self.0["figures"][key][candidate].as_f64()
    }

    pub(crate) fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or_default()
    }

    fn candidates(&self, key: &str) -> impl Iterator<Item = &str> {
        let of_key = self.0["figures"][key].as_object();
        of_key.into_iter().flatten().map(|(name, _)| name.as_str())
    }

    /// Returns what a candidate did wrong in this run: holders at once, failures, hangs.
    pub(crate) fn problem(&self, candidate: &str) -> Option<&str> {
        self.0["problems"][candidate].as_str()
    }
}

/// Reads the file of all runs.
pub(crate) fn read(lines: &str) -> Vec<Run> {
    let run = |line| Run(serde_json::from_str(line).expect("a line of JSON for each run"));
    lines.lines().map(run).collect()
}

/// Returns the lowest, the median and the highest value over all runs that have one.
pub(crate) fn range(runs: &[Run], key: &str, candidate: &str) -> Option<[f64; 3]> {
    let values = runs.iter().filter_map(|run| run.figure(key, candidate));
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    Some([*values.first()?, values[values.len() / 2], *values.last()?])
}

/// Returns all candidates that have a value for this key: those of this crate first, then the bare
/// commands, then the peers by name.
pub(crate) fn candidates(runs: &[Run], key: &str) -> Vec<String> {
    let names: BTreeSet<&str> = runs.iter().flat_map(|run| run.candidates(key)).collect();
    let mut names: Vec<String> = names.into_iter().map(str::to_owned).collect();
    let rank = |name: &String| {
        if is_peer(name) {
            2
        } else if name.starts_with("leasehold") {
            0
        } else {
            1
        }
    };
    names.sort_by_key(|name| (rank(name), name != OURS));
    names
}

fn is_peer(candidate: &str) -> bool {
    !candidate.starts_with("leasehold") && !candidate.starts_with(BARE)
}

/// Returns the peer with the best median, of those without a problem in any run.
pub(crate) fn best_peer(runs: &[Run], key: &str, is_more_better: bool) -> Option<String> {
    let median = |name: &String| range(runs, key, name).map_or(f64::NAN, |range| range[1]);
    let has_no_problem = |name: &String| runs.iter().all(|run| run.problem(name).is_none());
    let peers = candidates(runs, key).into_iter();
    let peers = peers.filter(|name| is_peer(name) && has_no_problem(name));
    let better = |a: &String, b: &String| median(a).total_cmp(&median(b));
    if is_more_better {
        peers.max_by(better)
    } else {
        peers.min_by(better)
    }
}

/// Returns a line for each figure that differs from that of the last run by more than a fifth.
pub(crate) fn differing(last: &Run, new: &Run) -> Vec<String> {
    let keys = new.0["figures"].as_object().into_iter().flatten();
    let both = keys.flat_map(|(key, _)| {
        let figures = new.candidates(key).filter_map(move |name| {
            let [before, now] = [last, new].map(|run| run.figure(key, name));
            Some((key, name, before?, now?))
        });
        figures.collect::<Vec<_>>()
    });
    both.filter(|(.., before, now)| differs(*before, *now))
        .map(|(key, name, before, now)| {
            let [before, now] = [before, now].map(number);
            format!("{key}, {name}: {now}, in the last run {before}")
        })
        .collect()
}

pub(crate) fn differs(before: f64, now: f64) -> bool {
    (now - before).abs() > before.abs() / 5.0
}

/// A row of the first table.
struct Row {
    what: &'static str,
    /// The key of each value, and what the cell says of it. The first decides which peer is best.
    values: &'static [(&'static str, &'static str)],
    is_more_better: bool,
}

const ROWS: [Row; 10] = [
    Row {
        what: "lock and unlock, one thread, p50",
        values: &[("lock_unlock_us", "# µs")],
        is_more_better: false,
    },
    Row {
        what: "from `unlock` in one process to the return of `lock` in another, p50",
        values: &[("handoff_us", "# µs")],
        is_more_better: false,
    },
    Row {
        what: "8 processes, one name, sections of 1 ms: longest wait; p99",
        values: &[("wait_max_ms", "# ms"), ("wait_p99_ms", "# ms")],
        is_more_better: false,
    },
    Row {
        what: "the same: acquisitions a second; shares of the luckiest and the unluckiest process",
        values: &[
            ("acq_per_s", "#"),
            ("luckiest_pct", "# %"),
            ("unluckiest_pct", "# %"),
        ],
        is_more_better: true,
    },
    Row {
        what: "the same: requests to the server for each acquisition",
        values: &[("requests", "#")],
        is_more_better: false,
    },
    Row {
        what: "1 000 threads of a process wait for one name: requests a second",
        values: &[("waiting_requests_per_s", "#")],
        is_more_better: false,
    },
    Row {
        what: "10 000 held locks, ttl 10 s: share of a core for the renewals; memory",
        values: &[("held_core_pct", "# %"), ("held_mib", "# MiB")],
        is_more_better: false,
    },
    Row {
        what: "processor time of the server for a lock and unlock",
        values: &[("server_us", "# µs")],
        is_more_better: false,
    },
    Row {
        what: "lock and unlock over a quorum of 5 servers, p50",
        values: &[("quorum_us", "# µs")],
        is_more_better: false,
    },
    Row {
        what: "new client: open, connect, lock and unlock, p50",
        values: &[("first_lock_us", "# µs")],
        is_more_better: false,
    },
];

impl Row {
    fn cell(&self, runs: &[Run], candidate: &str) -> String {
        let of_key = |(key, text): &(&str, &str)| {
            let [least, _, most] = range(runs, key, candidate)?;
            let [least, most] = [least, most].map(number);
            let said = if least == most {
                least
            } else {
                format!("{least} to {most}")
            };
            Some(text.replace('#', &said))
        };
        let said: Vec<String> = self.values.iter().filter_map(of_key).collect();
        said.join("; ")
    }

    fn show(&self, runs: &[Run]) -> String {
        let peer = best_peer(runs, self.values[0].0, self.is_more_better);
        let peer = peer.map(|peer| format!("{} ({peer})", self.cell(runs, &peer)));
        let [ours, bare] = [OURS, BARE].map(|candidate| self.cell(runs, candidate));
        let cells = [self.what.to_owned(), ours, peer.unwrap_or_default(), bare];
        format!("| {} |\n", cells.join(" | "))
    }
}

/// The columns of the second table, each with the keys of its values.
const COLUMNS: [Row; 7] = [
    column("1 ms: acquisitions a second", &[("acq_per_s", "#")]),
    column(
        "shares of the luckiest and the unluckiest process",
        &[("luckiest_pct", "# %"), ("unluckiest_pct", "# %")],
    ),
    column(
        "wait, p99; longest",
        &[("wait_p99_ms", "# ms"), ("wait_max_ms", "# ms")],
    ),
    column("requests", &[("requests", "#")]),
    column("empty: acquisitions a second", &[("empty_acq_per_s", "#")]),
    column(
        "shares of the luckiest and the unluckiest process",
        &[
            ("empty_luckiest_pct", "# %"),
            ("empty_unluckiest_pct", "# %"),
        ],
    ),
    column(
        "wait, p99; longest",
        &[("empty_wait_p99_ms", "# ms"), ("empty_wait_max_ms", "# ms")],
    ),
];

const fn column(what: &'static str, values: &'static [(&'static str, &'static str)]) -> Row {
    Row {
        what,
        values,
        is_more_better: false,
    }
}

/// Returns the part of the page that these runs give: how they were measured, and both tables.
pub(crate) fn tables(runs: &[Run]) -> String {
    let mut text = format!("{}.\n\n", measured(runs).join("\n"));
    text += "| | leasehold `Mutex` | best peer | bare commands |\n|---|---|---|---|\n";
    text.extend(ROWS.iter().map(|row| row.show(runs)));
    text +=
        "\nThe same 8 processes with each candidate, in sections of 1 ms and in empty ones:\n\n|";
    let heads = COLUMNS.iter().map(|column| format!(" | {}", column.what));
    text.extend(heads);
    text += &format!(" | problems |\n|{}\n", "---|".repeat(COLUMNS.len() + 2));
    for name in candidates(runs, "acq_per_s") {
        text += &format!("| {name}");
        let cells = COLUMNS.iter().map(|column| column.cell(runs, &name));
        text.extend(cells.map(|cell| format!(" | {cell}")));
        let problem = runs.iter().rev().find_map(|run| run.problem(&name));
        let problem = problem.unwrap_or_default().replace(['|', '\n'], " ");
        text += &format!(" | {problem} |\n");
    }
    text
}

/// Returns how many runs there are, and when, by which commands and where they were measured.
pub(crate) fn measured(runs: &[Run]) -> [String; 2] {
    let all = |of: &dyn Fn(&Run) -> String| {
        let values: BTreeSet<String> = runs.iter().map(of).collect();
        values.into_iter().collect::<Vec<_>>().join(", ")
    };
    let days = all(&|run| run.text("date").get(..10).unwrap_or_default().to_owned());
    let machines = all(&|run| run.text("machine").to_owned());
    let commands = all(&|run| format!("`{}`", run.text("command")));
    let count = runs.len();
    let runs = if count == 1 { "run" } else { "runs" };
    let when = format!("{count} {runs} of {commands}, on {days},");
    [when, format!("on {machines}")]
}

/// Returns the page with this text between its two marks.
pub(crate) fn with_tables(page: &str, tables: &str) -> String {
    let (before, rest) = page.split_once(BEGIN).expect("the mark of the beginning");
    let (_, after) = rest.split_once(END).expect("the mark of the end");
    format!("{before}{BEGIN}\n{tables}\n{END}{after}")
}

/// Formats with at most three digits before a unit of thousands: figures are not more precise.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 9_995.0 => format!("{:.0} 000", value / 1_000.0),
        v if v >= 999.5 => {
            let rounded = (value / 10.0).round() as i64 * 10;
            format!("{} {:03}", rounded / 1_000, rounded % 1_000)
        }
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
