//! The report of a bench: lines on standard output, a line of JSON in a file, and a picture.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, thread};

use crate::picture::Picture;

/// A run of a bench, from the first line to the last.
pub struct Report {
    bench: &'static str,
    rounds: usize,
    /// The processors available at the start: the bench may restrict itself to some of them later.
    cores: usize,
    load: String,
    began: Instant,
}

impl Report {
    /// Prints what is measured and the load of the machine: figures of a busy machine are less
    /// reliable.
    pub fn begin(bench: &'static str, rounds: usize, what: &str) -> Self {
        let load = load();
        println!("{what}");
        let cores = thread::available_parallelism().map_or(0, usize::from);
        println!("load average before: {load} on {cores} cores");
        Self {
            bench,
            rounds,
            cores,
            load,
            began: Instant::now(),
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Prints the line `figures: {…}` for programs. Appends the figures, with the date and the
    /// load, to a file in `target/bench/`, and draws the picture there.
    pub fn end(self, figures: &[(&str, String)], picture: &Picture) {
        let after = load();
        println!("load average after: {after} on {} cores", self.cores);
        let figures: Vec<String> = figures
            .iter()
            .map(|(key, value)| format!("\"{key}\":{value}"))
            .collect();
        let figures = format!("{{{}}}", figures.join(","));

        let folder = target().join("bench");
        fs::create_dir_all(&folder).expect("the target directory can be written");
        let list = |load: &str| format!("[{}]", load.replace(' ', ","));
        let line = format!(
            "{{\"date\":\"{}\",\"rounds\":{},\"cores\":{},\"load\":{},\"load_after\":{},\
             \"figures\":{figures}}}\n",
            date(),
            self.rounds,
            self.cores,
            list(&self.load),
            list(&after),
        );
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.join(format!("{}.jsonl", self.bench)))
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("the target directory can be written");

        picture.draw(&folder.join(format!("{}.svg", self.bench)));
        println!("figures: {figures}");
    }
}

/// Returns the load averages over 1, 5 and 15 minutes, separated by spaces.
pub fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

pub fn date() -> String {
    let date = Command::new("date").args(["-u", "+%FT%TZ"]).output();
    let date = date.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    date.unwrap_or_default()
}

/// The target directory: cargo puts the executable of a bench into its `release/deps/`.
pub fn target() -> PathBuf {
    let own = env::current_exe().expect("the executable has a path");
    let target = own.ancestors().nth(3);
    target
        .expect("the executable is in the target directory")
        .to_owned()
}

/// The `docs` directory of the repository.
pub fn docs() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = package
        .ancestors()
        .find(|folder| folder.join("CHANGELOG.md").is_file());
    root.expect("the package is in the repository").join("docs")
}
