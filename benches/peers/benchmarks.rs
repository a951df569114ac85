//! What `docs/benchmarks.md` shows first: leasehold, other libraries and the bare commands, in one
//! run. Appends a line to `docs/benchmarks.jsonl`, and writes the tables of the page and its
//! pictures again from all lines of that file.
//!
//! `PEERS=all` also runs the libraries with their defaults, `PEERS=shared` only their semaphores
//! and read-write locks. `QUICK=1` takes a minute, and writes to `target/bench/` instead. `DRAW=1`
//! measures nothing.

mod alone;
mod contended;
mod contention;
mod kinds;
mod many;
mod pictures;
mod provider;
mod record;
mod results;
mod shared;
mod shown;

use std::env;
use std::fs;
use std::path::Path;

use common::fleet::contend;
use common::report::{Report, docs, target};
use results::Run;
use serde_json::json;
use support::Server;

fn main() {
    // In a child process, runs its role and exits.
    let member: (&str, fn()) = ("member", || contend(kinds::open));
    let roles: Vec<_> = [member].into_iter().chain(many::ROLES).collect();
    if support::run_role(&roles) {
        return;
    }
    if env::var("PEERS").is_ok_and(|which| which == "shared") {
        return shared::report();
    }
    let folder = if contention::is_quick() {
target().join("bench")
} else {
docs()
};
    fs::create_dir_all(&folder).expect("the target directory can be written");
    let file = folder.join("benchmarks.jsonl");
    let mut runs = results::read(&fs::read_to_string(&file).unwrap_or_default());
    if env::var_os("DRAW").is_none() {
        let run = measure();
        // The page may show a quick run until there is a longer one.
        runs.retain(|run| contention::is_quick() || !run.text("command").contains("QUICK"));
        if let Some(last) = runs.last() {
            let differing = results::differing(last, &run);
            println!(
                "\n{} figures differ by more than a fifth from the last run",
                differing.len()
            );
            differing.iter().for_each(|line| println!("  {line}"));
        }
        runs.push(run);
        let lines: String = runs.iter().map(|run| format!("{}\n", run.0)).collect();
        fs::write(&file, lines).expect("the file can be written");
    }
    show(&runs, &folder);
}

/// Writes the page and the pictures.
fn show(runs: &[Run], folder: &Path) {
    let tables = results::tables(runs);
    println!("\n{tables}");
    let page = fs::read_to_string(docs().join("benchmarks.md")).expect("the page is there");
    let page = results::with_tables(&page, &tables);
    fs::write(folder.join("benchmarks.md"), page).expect("the page can be written");
    pictures::draw(runs, folder);
    println!(
        "written: benchmarks.jsonl, benchmarks.md and pictures in {}",
        folder.display()
    );
}

fn measure() -> Run {
    let candidates = contention::chosen();
    let report = Report::begin("benchmarks", contention::rounds(), "all rows of the page");
    let mut record = record::Record::default();
    let server = Server::start().long_lived();
    alone::run(&server, &candidates, &mut record);
    println!("measured: one caller; {:?}", report.elapsed());
    contended::run(&server, &candidates, &mut record);
    println!("measured: contention; {:?}", report.elapsed());
    many::run(&candidates, &mut record);
    println!("measured: waiters and held locks; {:?}", report.elapsed());
    let command = ["PEERS", "QUICK"]
        .into_iter()
        .filter_map(|name| Some(format!("{name}={} ", env::var(name).ok()?)))
        .collect::<String>();
    Run(json!({
        "date": common::report::date(),
        "machine": machine(&server),
        "command": format!("{command}make benchmarks"),
        "load": common::report::load(),
        "figures": record.figures,
        "problems": record.problems,
    }))
}

/// Returns the processor, the number of its cores, and the server.
fn machine(server: &Server) -> String {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processor
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("an unknown processor", |model| {
        model.trim_matches([' ', '\t', ':'])
    });
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let version = server.info("server", "redis_version").unwrap_or_default();
    format!("{cores} cores of {model} with Redis {version}")
}
