//! Promise: the program `leasehold` runs a command only while it holds the lock.
//!
//! However the program ends, no process of the command outlives it. Its output describes the locks.

pub(crate) mod credentials;
pub(crate) mod cron;
pub(crate) mod ends;
pub(crate) mod exits;
pub(crate) mod handover;
pub(crate) mod min_hold;
pub(crate) mod nested;
pub(crate) mod options;
pub(crate) mod shown;
pub(crate) mod signals;
#[cfg(target_os = "linux")]
pub(crate) mod starts;
#[cfg(target_os = "linux")]
pub(crate) mod supervision;
pub(crate) mod terminal;
pub(crate) mod top;
pub(crate) mod writes;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use leasehold::{Client, MutexGuard};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use support::{Server, eventually, ms};

support::tests![
    password_is_never_printed,
    completions_and_manual_pages_are_written
];

const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");

/// The limit for everything that is immediate on an idle machine.
const WAIT_LIMIT: Duration = ms(10_000);

fn program(url: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    for name in [
        "REDIS_HOST",
        "REDIS_USERNAME",
        "REDIS_PASSWORD",
        "REDIS_PASSWORD_FILE",
        "LOCK_TTL_MS",
        "LOCK_KEY_PREFIX",
    ] {
        command.env_remove(name);
    }
    command
        .env("REDIS_URL", url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The running program. It is killed at the end of the test.
struct Program {
    process: Child,
    lines: BufReader<ChildStdout>,
}

impl Program {
    fn start(url: &str, args: &[&str]) -> Self {
        Self::of(program(url).args(args).spawn().unwrap())
    }

    /// Returns the program that this process runs, whose output is a pipe.
    fn of(mut process: Child) -> Self {
        let lines = BufReader::new(process.stdout.take().unwrap());
        Self { process, lines }
    }

    /// Starts `run a` with these options and a shell script.
    fn run(url: &str, options: &[&str], script: &str) -> Self {
        let command = ["--", "sh", "-c", script];
        let args = [&["run", "a"], options, limit(options), &command].concat();
        Self::start(url, &args)
    }

    #[track_caller]
    fn next_line(&mut self) -> String {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line).unwrap();
        assert!(read > 0, "no further output; errors: {}", self.errors());
        line.trim_end().to_owned()
    }

    fn pid(&mut self) -> Pid {
        Pid::from_raw(self.next_line().parse().unwrap()).unwrap()
    }

    fn id(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn send(&self, signal: Signal) {
        kill_process(self.id(), signal).unwrap();
    }

    fn code(&mut self) -> Option<i32> {
        self.process.wait().unwrap().code()
    }

    fn errors(&mut self) -> String {
        let mut errors = String::new();
        let pipe = self.process.stderr.as_mut().unwrap();
        pipe.read_to_string(&mut errors).unwrap();
        errors
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns further options, which limit how long the program outlives an aborted test.
fn limit(options: &[&str]) -> &'static [&'static str] {
    if options.contains(&"--max-hold") {
        &[]
    } else {
        &["--max-hold", "60s"]
    }
}

fn output(url: &str, args: &[&str]) -> Output {
    program(url).args(args).output().unwrap()
}

#[track_caller]
fn code(url: &str, args: &[&str]) -> i32 {
    let output = output(url, args);
    let code = output.status.code();
    code.unwrap_or_else(|| panic!("{args:?}: {output:?}"))
}

#[track_caller]
fn text(url: &str, args: &[&str]) -> String {
    let output = output(url, args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the state of the process, such as T if it is stopped; `None` if it is gone.
fn state_of(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    stat.rsplit(") ").next().unwrap().chars().next()
}

/// Returns whether the process is running. A zombie is not: reaping it is its parent's job.
fn is_alive(pid: Pid) -> bool {
    match state_of(pid) {
        Some(state) => !['Z', 'X'].contains(&state),
        None => !cfg!(target_os = "linux") && test_kill_process(pid).is_ok(),
    }
}

/// Returns the children of all threads of the process.
#[cfg(target_os = "linux")]
fn children_of(pid: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{}/task", pid.as_raw_pid()));
    let threads = threads.into_iter().flatten().flatten();
    let children =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let children = children.collect::<String>();
    let ids = children.split_whitespace();
    ids.filter_map(|id| Pid::from_raw(id.parse().unwrap()))
        .collect()
}

/// Waits until the program has started its supervisor, and returns its id.
#[cfg(target_os = "linux")]
fn supervisor_of(program: Pid) -> Pid {
    let mut supervisor = None;
    eventually(WAIT_LIMIT, || {
        supervisor = children_of(program).into_iter().find(|child| {
            let arguments = fs::read(format!("/proc/{}/cmdline", child.as_raw_pid()));
            arguments.is_ok_and(|arguments| arguments.ends_with(b"\0__supervise\0"))
        });
        supervisor.is_some()
    });
    supervisor.unwrap()
}

#[track_caller]
fn wait_until_ended(pids: &[Pid]) {
    eventually(WAIT_LIMIT, || !pids.iter().any(|pid| is_alive(*pid)));
}

fn client(server: &Server) -> Client {
    // A machine that is busy for a second must not fail the test's own calls.
    let builder = Client::builder()
        .url(server.url())
        .connect_timeout(WAIT_LIMIT);
    builder.command_timeout(WAIT_LIMIT).build().unwrap()
}

fn hold(server: &Server) -> MutexGuard {
    client(server).mutex("a").lock().unwrap()
}

fn delete(server: &Server) {
    let mut command = redis::cmd("DEL");
    let deleted: u32 = command
        .arg("lock:a")
        .query(&mut server.connection())
        .unwrap();
    assert_eq!(deleted, 1);
}

/// Parses one flat JSON object.
#[track_caller]
fn json(line: &str) -> BTreeMap<String, String> {
    let mut rest = line.strip_prefix('{').unwrap_or_else(|| panic!("{line}"));
    let mut object = BTreeMap::new();
    while !rest.starts_with('}') {
        rest = rest.strip_prefix(',').unwrap_or(rest);
        let (key, after) = string(rest);
        rest = after.strip_prefix(':').unwrap();
        let (value, after) = if rest.starts_with('"') {
            string(rest)
        } else {
            let (value, _) = rest.split_once([',', '}']).unwrap();
            let is_number = value.parse::<f64>().is_ok();
            assert!(
                is_number || ["null", "true", "false"].contains(&value),
                "{line}"
            );
            (value.to_owned(), &rest[value.len()..])
        };
        rest = after;
        assert!(object.insert(key, value).is_none(), "{line}");
    }
    assert_eq!(rest, "}", "{line}");
    object
}

fn string(text: &str) -> (String, &str) {
    let mut chars = text.strip_prefix('"').unwrap().chars();
    let mut value = String::new();
    loop {
        match chars.next().unwrap() {
            '"' => return (value, chars.as_str()),
            '\\' => match chars.next().unwrap() {
                'u' => {
                    let digits: String = chars.by_ref().take(4).collect();
                    let code = u32::from_str_radix(&digits, 16).unwrap();
                    value.push(char::from_u32(code).unwrap());
                }
                c => value.push(c),
            },
            c => value.push(c),
        }
    }
}

fn completions_and_manual_pages_are_written() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(
            text("", &["completions", shell]).contains("min-hold"),
            "{shell}"
        );
    }
    let page = text("", &["man"]);
    assert!(
        page.contains(".TH leasehold 1") && page.contains("Exit codes"),
        "{page}"
    );
    let page = text("", &["man", "run"]);
    assert!(page.contains("LEASEHOLD_FENCING_TOKEN"), "{page}");
    assert_eq!(code("", &["man", "nonsense"]), 64);
    for args in [&["--help"][..], &["man"], &["completions", "bash"]] {
        assert!(!text("", args).contains("__supervise"), "{args:?}");
    }
}

fn password_is_never_printed() {
    let server = Server::start();
    server.run("CONFIG", &["SET", "requirepass", "s3cret"]);
    let url = |password: &str| format!("redis://:{password}@127.0.0.1:{}", server.port());
    let show = |url: &str, expected: i32, args: &[&str]| {
        let output = output(url, args);
        assert_eq!(output.status.code(), Some(expected), "{args:?}: {output:?}");
        let output = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        for password in ["s3cret", "wr0ng"] {
            assert!(!output.contains(password), "{args:?}: {output}");
        }
    };
    let _held = Client::open(url("s3cret"))
        .unwrap()
        .mutex("a")
        .lock()
        .unwrap();
    for (expected, args) in [
        (75, &["run", "a", "--no-wait", "--", "true"][..]),
        (0, &["run", "b", "--", "true"]),
        (0, &["status", "a", "b"]),
        (0, &["status", "a", "--json"]),
        (0, &["list"]),
        (0, &["top", "--count", "1"]),
        (0, &["--help"]),
        (0, &["run", "--help"]),
        (64, &["list", "x", &url("s3cret")]),
        (64, &["status", "--url", "http://u:s3cret@h", "x"]),
    ] {
        show(&url("s3cret"), expected, args);
    }
    for args in [
        &["run", "c", "--", "true"][..],
        &["status", "a"],
        &["list"],
        &["top"],
        &["unlock", "a", "--force"],
    ] {
        show(&url("wr0ng"), 77, args);
    }
}
