//! Writes the traffic between clients and servers as text, step by step, and compares it with a
//! recording.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Instant;
use std::{env, fs};

use support::{Exchange, Recorder, eventually, in_repository, let_pass, ms};

use super::line::{has_no_script, is_confirmation, is_log_on, is_subscribing, line, lines, name};
use super::placeholders::Placeholders;

/// Exchanges that depend on time or on a race between threads.
const LEFT_OUT: [&str; 6] = [
    // Compares a new connection with an older one: see the test of two servers.
    "SET",
    "PUBLISH probe",
    "message probe",
    "PUBLISH subscribe",
    "message subscribe",
    "queue_refresh",
];

/// One scene: servers, and the steps of clients.
pub(super) struct Trace {
    servers: Vec<(&'static str, Recorder)>,
    text: String,
    /// The number of exchanges of each server that are already written.
    written: Vec<usize>,
    placeholders: Placeholders,
    /// The commands, scripts and messages that steps leave out.
    left_out: Vec<&'static str>,
    /// If true, the log-on of each connection is written where it happens, not once for all.
    has_log_on: bool,
}

impl Trace {
    pub(super) fn of(servers: Vec<(&'static str, Recorder)>) -> Self {
        Self {
            written: vec![0; servers.len()],
            placeholders: Placeholders::default(),
            servers,
            text: String::new(),
            left_out: LEFT_OUT.to_vec(),
            has_log_on: false,
        }
    }

    pub(super) fn with_log_on(mut self) -> Self {
        self.has_log_on = true;
        self
    }

    /// Makes later steps leave out these commands, scripts and messages too.
    pub(super) fn leave_out(&mut self, names: &[&'static str]) {
        self.left_out.extend(names);
    }

    /// Writes the placeholder in place of this text.
    pub(super) fn naming(mut self, text: &str, placeholder: &str) -> Self {
        self.placeholders.name(text, placeholder);
        self
    }

    pub(super) fn url(&self) -> String {
        self.urls().swap_remove(0)
    }

    pub(super) fn urls(&self) -> Vec<String> {
        let ports = self.ports().into_iter();
        ports
            .map(|port| format!("redis://127.0.0.1:{port}"))
            .collect()
    }

    pub(super) fn ports(&self) -> Vec<String> {
        let recorders = self.servers.iter().map(|(_, recorder)| recorder);
        recorders
            .map(|recorder| recorder.port().to_string())
            .collect()
    }

    /// Leaves out the exchanges since the last step.
    pub(super) fn skip(&mut self) {
        for ((_, recorder), written) in self.servers.iter().zip(&mut self.written) {
            *written = recorder.exchanges().len();
        }
    }

    /// Runs a call and writes its exchanges, once every request has its reply.
    #[track_caller]
    pub(super) fn step<T>(&mut self, title: &str, call: impl FnOnce(&Progress<'_>) -> T) -> T {
        let progress = Progress {
            servers: &self.servers,
            before: &self.written,
        };
        let outcome = call(&progress);
        eventually(ms(20_000), || progress.is_at_rest());
        self.write(title);
        outcome
    }

    /// Waits for one exchange of each of these names, which steps leave out, and writes the first
    /// one over all servers.
    #[track_caller]
    pub(super) fn meanwhile(&mut self, names: &[&str]) {
        self.text.push_str("\n## Meanwhile, once or more often\n");
        for wanted in names {
            let first = || {
                let of = |(_, recorder): &(_, Recorder)| {
                    let mut all = recorder.exchanges();
                    all.retain(|one| name(one) == *wanted && one.reply.is_some());
                    let is_missing = all.first().is_some_and(has_no_script);
                    let lines = lines(&all, |_| true).into_iter();
                    lines.take(1).find(|_| !is_missing || all.len() > 1)
                };
                self.servers.iter().find_map(of)
            };
            eventually(ms(20_000), || first().is_some());
            let first = first().expect("the wait above ends when there is one");
            let _ = writeln!(self.text, "{first}");
        }
    }

    fn write(&mut self, title: &str) {
        let is_shown =
            |one: &_| (self.has_log_on || !is_log_on(one)) && !self.left_out.contains(&&*name(one));
        let new = self.servers.iter().zip(&mut self.written);
        let lines: Vec<Vec<String>> = new
            .map(|((_, recorder), written)| {
                let mut new = recorder.exchanges().split_off(*written);
                *written += new.len();
                join_those_behind_lost_ones(&mut new);
                lines(&new, is_shown)
            })
            .collect();
        let _ = writeln!(self.text, "\n## {title}");
        let are_alike = lines.len() > 1 && lines.iter().all(|one| *one == lines[0]);
        let shown = if are_alike { 1 } else { lines.len() };
        for ((label, _), lines) in self.servers.iter().zip(&lines).take(shown) {
            let heading = if lines.is_empty() || self.servers.len() == 1 {
                String::new()
            } else if are_alike {
                "each server:\n".to_owned()
            } else {
                format!("{label}:\n")
            };
            self.text.push_str(&heading);
            for line in lines {
                let _ = writeln!(self.text, "{line}");
            }
        }
    }

    /// Returns the whole scene, under its title.
    pub(super) fn end(&mut self, title: &str) -> String {
        let mut text = format!("# {title}\n");
        if !self.has_log_on {
            let log_ons: Vec<String> = self.log_ons().into_iter().collect();
            let _ = writeln!(text, "\n## Each new connection\n{}", log_ons.join("\nor\n"));
        }
        text.push_str(&self.text);
        self.placeholders.replace_all(&text)
    }

    /// Returns the different ways in which connections began.
    fn log_ons(&self) -> BTreeSet<String> {
        let all = self.servers.iter().flat_map(|(_, recorder)| {
            let exchanges = recorder.exchanges();
            let connections = exchanges.iter().map(|one| one.request.connection);
            let count = connections.max().map_or(0, |last| last + 1);
            let log_on_of = move |connection| {
                let is_own =
                    |one: &&Exchange| is_log_on(one) && one.request.connection == connection;
                let own: Vec<_> = exchanges.iter().filter(is_own).collect();
                // A client that has found another connection meanwhile, or that ends, gives up a
                // new one during its log-on.
                let is_given_up = own.iter().any(|one| one.is_lost || one.reply.is_none());
                let lines = || own.iter().map(|one| line(one, None)).collect::<Vec<_>>();
                (!is_given_up).then(lines)
            };
            (0..count).filter_map(log_on_of).collect::<Vec<_>>()
        });
        all.map(|log_on| log_on.join("\n")).collect()
    }
}

/// The exchanges since the last step.
pub(super) struct Progress<'a> {
    servers: &'a [(&'static str, Recorder)],
    before: &'a [usize],
}

impl Progress<'_> {
    fn since_then(&self) -> impl Iterator<Item = Exchange> {
        let of = |((_, recorder), before): (&(_, Recorder), &usize)| {
            let mut exchanges = recorder.exchanges();
            exchanges.drain(..*before);
            exchanges
        };
        self.servers.iter().zip(self.before).flat_map(of)
    }

    /// Waits until `count` commands, scripts or messages of this name have passed, over all
    /// servers.
    #[track_caller]
    pub(super) fn wait_for(&self, wanted: &str, count: usize) {
        let is_it =
            |one: &Exchange| name(one) == wanted && one.reply.is_some() && !has_no_script(one);
        let deadline = Instant::now() + ms(20_000);
        while self.since_then().filter(is_it).count() < count {
            let passed = || self.since_then().map(|one| line(&one, None));
            assert!(
                Instant::now() < deadline,
                "{count} of {wanted} did not pass after\n{}",
                passed().collect::<Vec<_>>().join("\n")
            );
            let_pass(ms(1));
        }
    }

    /// Waits until a call of this name was made after the last subscription was confirmed.
    #[track_caller]
    pub(super) fn wait_for_retry(&self, wanted: &str) {
        eventually(ms(20_000), || {
            let passed: Vec<Exchange> = self.since_then().collect();
            let confirmed = passed.iter().rposition(is_confirmation);
            let is_retry =
                |one: &Exchange| name(one) == wanted && one.reply.is_some() && !has_no_script(one);
            confirmed.is_some_and(|at| passed[at..].iter().any(is_retry))
        });
    }

    /// Drops the reply to the next command or script of this name at the first server.
    pub(super) fn lose_reply_to(&self, name: &str) {
        self.servers[0].1.lose_reply_to(name);
    }

    /// Drops the next command or script of this name to the first server.
    pub(super) fn lose(&self, name: &str) {
        self.servers[0].1.lose(name);
    }

    /// Returns true if every request has its reply, and every subscription its confirmation.
    fn is_at_rest(&self) -> bool {
        let new: Vec<Exchange> = self.since_then().collect();
        let is_open = |one: &Exchange| one.reply.is_none() && !one.is_lost && !is_subscribing(one);
        let subscribing = new.iter().filter(|one| is_subscribing(one));
        let channels: usize = subscribing.map(|one| one.request.words.len() - 1).sum();
        let confirmed = new.iter().filter(|one| is_confirmation(one)).count();
        channels == confirmed && !new.iter().any(is_open)
    }
}

/// Moves what was sent behind a lost exchange, on its connection, next to it: another connection
/// may have been faster or slower.
fn join_those_behind_lost_ones(exchanges: &mut Vec<Exchange>) {
    let mut in_order: Vec<Exchange> = Vec::with_capacity(exchanges.len());
    for exchange in exchanges.drain(..) {
        let connection = exchange.request.connection;
        let is_behind = |one: &Exchange| one.request.connection == connection;
        let lost = |one: &Exchange| one.is_lost && is_behind(one);
        let at = if in_order.iter().any(lost) {
            in_order.iter().rposition(is_behind).map(|last| last + 1)
        } else {
            None
        };
        in_order.insert(at.unwrap_or(in_order.len()), exchange);
    }
    *exchanges = in_order;
}

/// Compares the scenes with the recording, or writes the recording; see `CONTRIBUTING.md`.
#[track_caller]
pub(super) fn compare(file: &str, scenes: &[String]) {
    let path = in_repository("tests/it/trace").join(file);
    let now = scenes.join("\n");
    if env::var_os("LEASEHOLD_RECORD").is_some() {
        fs::write(&path, now).expect("the recording can be written");
        return;
    }
    let recorded = fs::read_to_string(&path).expect("the recording can be read");
    let (mut scene, mut step) = ("", "");
    let mut recorded = recorded.lines();
    for (n, is) in now.lines().enumerate() {
        match is {
            _ if is.starts_with("# ") => scene = is,
            _ if is.starts_with("## ") => step = is,
            _ => {}
        }
        let was = recorded.next().unwrap_or("nothing more");
        assert!(
            is == was,
            "{file}:{}, {scene}, {step}\nrecorded: {was}\nnow:      {is}\n\nthe text now:\n{now}",
            n + 1
        );
    }
    assert_eq!(
        recorded.next(),
        None,
        "{file} has more lines; the text now:\n{now}"
    );
}
