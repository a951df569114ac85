//! Other processes: the test's own binary once more, in one of the roles that its modules list.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use parking_lot::Mutex;

use super::supervised_process::SupervisedProcess;
use super::time::ms;

const ROLE: &str = "LEASEHOLD_ROLE";

/// Sets off what a child says from whatever else it prints.
const MARK: &str = "say: ";

/// Plays the role that this process was started for. Returns false in a process that is not a child.
///
/// A binary's `main` calls it first.
pub fn run_role(roles: &[(&str, fn())]) -> bool {
    let Some(wanted) = env::var_os(ROLE) else {
        return false;
    };
    let (_, role) = roles
        .iter()
        .find(|(name, _)| wanted == **name)
        .unwrap_or_else(|| panic!("no role is called {}", wanted.display()));
    role();
    true
}

/// In a child: what it was started with under this key.
pub fn parameter(key: &str) -> String {
    env::var(key).unwrap_or_else(|_| panic!("the child is given {key}"))
}

/// In a child: a line that its parent may wait for.
pub fn tell_parent(line: &str) {
    let mut output = io::stdout().lock();
    // Another thread may be in the middle of a line.
    writeln!(output, "\n{MARK}{line}")
        .and_then(|()| output.flush())
        .expect("the parent listens");
}

/// How many threads of this process have this name, or so much of it as the kernel keeps: fifteen bytes.
pub fn thread_count(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("this is Linux");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|comm| comm.trim_end() == name).count()
}

pub struct Child {
    process: SupervisedProcess,
    lines: Receiver<String>,
    output: Arc<Mutex<String>>,
}

/// A child that has ended.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    /// The lines it sent that no caller has read.
    pub lines: Vec<String>,
    /// All it printed.
    pub output: String,
}

impl Child {
    pub fn spawn(role: &str, given: &[(&str, &str)]) -> Self {
        let binary = env::current_exe().expect("the test runs from a file");
        let arguments: [&str; 0] = [];
        let mut process = SupervisedProcess::start(&binary, arguments, None, |command| {
            command
                .env(ROLE, role)
                .envs(given.iter().copied())
                .stdout(Stdio::piped());
        })
        .expect("/bin/sh can be started");

        let stdout = process
            .process()
            .stdout
            .take()
            .expect("its output is a pipe");
        let output = Arc::new(Mutex::new(String::new()));
        let (sender, lines) = unbounded();
        thread::spawn({
            let output = Arc::clone(&output);
            move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if let Some(line) = line.strip_prefix(MARK) {
                        let _ = sender.send(line.to_owned());
                    }
                    let mut output = output.lock();
                    output.push_str(&line);
                    output.push('\n');
                }
            }
        });
        Self {
            process,
            lines,
            output,
        }
    }

    /// The next line that it says.
    #[track_caller]
    pub fn next_line(&self) -> String {
        match self.next_line_within(ms(30_000)) {
            Some(line) => line,
            None => panic!(
                "the child says nothing more; it printed:\n{}",
                self.output.lock()
            ),
        }
    }

    pub fn next_line_within(&self, limit: Duration) -> Option<String> {
        self.lines.recv_timeout(limit).ok()
    }

    /// Waits until it says just this, after whatever else.
    #[track_caller]
    pub fn wait_for_line(&self, line: &str) {
        while self.next_line() != line {}
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(mut self) -> Finished {
        let mut lines = Vec::new();
        // The pipe closes when the child ends.
        loop {
            match self.lines.recv_timeout(ms(60_000)) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!(
                    "the child does not end; it printed:\n{}",
                    self.output.lock()
                ),
            }
        }
        let status = self.process.wait().expect("the child is ours");
        let output = self.output.lock().clone();
        Finished {
            status,
            lines,
            output,
        }
    }

    pub fn pause(&self) {
        self.process.pause();
    }

    pub fn resume(&self) {
        self.process.resume();
    }

    /// Kills it where it stands, as the kernel does when memory runs out. It is gone when this returns.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Asks it to end (SIGTERM).
    pub fn terminate(&self) {
        self.process.terminate();
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Finished {
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert!(
            self.status.success(),
            "the child ended with {}; it printed:\n{}",
            self.status,
            self.output
        );
        self
    }
}
