//! How often two clients hold a lock at once when the master is replaced, by the way it is replaced
//! and by the number of replicas that must acknowledge. `FAILOVERS=8 cargo bench --bench failovers`
//! runs eight failovers per row.

use std::env;
use std::thread;
use std::time::Duration;

use common::picture::{Panel, Picture, Row};
use common::{Report, Spread};
use support::{Contention, MasterFailure, Outcome, Sentinels, Setup, contender, ms};

const PROCESSES: usize = 8;

/// The wait after the new master accepts writes: time for an old master that is alive to learn of
/// it.
const AFTERWARDS: Duration = ms(2_000);

fn main() {
    // In a child process, runs its role and exits.
    if support::run_role(&[("contender", contend_and_end)]) {
        return;
    }
    let failovers = env::var("FAILOVERS").ok().and_then(|n| n.parse().ok());
    let failovers: usize = failovers.unwrap_or(4);
    let report = Report::begin(
        "failovers",
        failovers,
        &format!(
            "{PROCESSES} processes contend; a master with 2 replicas and 3 sentinels; \
             {failovers} failovers per row"
        ),
    );
    let mut bars = Vec::new();
    let mut rows = Vec::new();
    let mut figures = vec![("failovers", (3 * failovers).to_string())];
    for (replicas, figure) in [
        (0, "two_holders_0"),
        (1, "two_holders_1"),
        (2, "two_holders_all"),
    ] {
        let mut overlaps_in_all = 0;
        for failure in [
            MasterFailure::Killed,
            MasterFailure::Stopped,
            MasterFailure::SwitchedByCommand,
        ] {
            let outcomes: Vec<Outcome> = (0..failovers)
                .map(|_| fail_over(failure, replicas))
                .collect();
            let overlaps = overlaps(&outcomes);
            overlaps_in_all += overlaps;
            let mut row = vec![replicas.to_string(), format!("{failure:?}")];
            row.extend(counts(&outcomes, overlaps));
            rows.push(row);
        }
        figures.push((figure, overlaps_in_all.to_string()));
        let value = Spread::of([overlaps_in_all as f64].into_iter());
        bars.push(Row::bar(format!("min_replicas({replicas})"), value).ours());
    }
    common::print_table(
        &[
            "min_replicas",
            "master",
            "acquired",
            "failovers with two holders",
            "rejected",
            "losses reported",
            "out of order",
        ],
        &rows,
    );
    report.end(&figures, &picture(3 * failovers, bars));
}

/// Returns the number of failovers in which two processes held the lock at once.
fn overlaps(outcomes: &[Outcome]) -> usize {
    // A process whose write is rejected held the lock while another one did.
    let with_two = |outcome: &&Outcome| outcome.overlaps + outcome.rejected > 0;
    outcomes.iter().filter(with_two).count()
}

/// Returns the counts of a row, from "acquired" on.
fn counts(outcomes: &[Outcome], overlaps: usize) -> [String; 5] {
    let sum = |count: fn(&Outcome) -> u64| outcomes.iter().map(count).sum::<u64>();
    let out_of_order = outcomes.iter().filter(|outcome| !outcome.is_in_order);
    [
        sum(|outcome| outcome.entered).to_string(),
        overlaps.to_string(),
        sum(|outcome| outcome.rejected).to_string(),
        sum(|outcome| outcome.known_losses).to_string(),
        out_of_order.count().to_string(),
    ]
}

fn picture(failovers: usize, bars: Vec<Row>) -> Picture {
    let panel = format!("of {failovers} failovers, by the replicas that must acknowledge");
    Picture {
        title: "Failovers with two holders at once".to_owned(),
        panels: vec![Panel::new(panel, bars)],
    }
}

fn contend_and_end() {
    contender();
    std::process::exit(0);
}

/// Runs one failover under contention.
fn fail_over(failure: MasterFailure, replicas: usize) -> Outcome {
    let mut sentinels = Sentinels::start(Setup::fast_failover()).long_lived();
    let contention = Contention::start(&sentinels.url(), "a", PROCESSES, replicas);
    match failure {
        MasterFailure::Killed => sentinels.kill_first_master(),
        MasterFailure::Stopped => sentinels.first_master().pause(),
        MasterFailure::SwitchedByCommand => sentinels.failover(),
    }
    sentinels.successor();
    if let MasterFailure::Stopped = failure {
        sentinels.first_master().resume();
    }
    // No event to wait for: if all replicas must acknowledge and one server is dead, no process can
    // acquire.
    thread::sleep(AFTERWARDS);
    contention.finish()
}
