//! Child processes: the test's own binary, started in one of the roles that its modules list.

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

pub(crate) const ROLE: &str = "LEASEHOLD_ROLE";

/// Marks the lines meant for the parent among everything else a child prints.
const MARK: &str = "to parent: ";

/// Runs the role that this process was started for; returns false if it is not a child.
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

/// In a child: returns the parameter that its parent passed under this key.
pub fn parameter(key: &str) -> String {
    env::var(key).unwrap_or_else(|_| panic!("the child has no parameter {key}"))
}

/// In a child: sends a line that its parent may wait for.
pub fn tell_parent(line: &str) {
    let mut output = io::stdout().lock();
    // The line break first: another thread may have printed half a line.
    writeln!(output, "\n{MARK}{line}")
        .and_then(|()| output.flush())
        .expect("the parent reads its pipe");
}

/// Returns how many threads of this process have this name.
///
/// The kernel keeps the first 15 bytes of a name.
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

/// A child process that has exited.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    /// The lines for the parent that no caller has read.
    pub lines: Vec<String>,
    /// Everything the child printed.
    pub output: String,
}

impl Child {
    pub fn spawn(role: &str, parameters: &[(&str, &str)]) -> Self {
        let binary = env::current_exe().expect("the test runs from a file");
        let arguments: [&str; 0] = [];
        let mut process = SupervisedProcess::start(&binary, arguments, None, |command| {
            command
                .env(ROLE, role)
                .envs(parameters.iter().copied())
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

    /// Returns the next line for the parent; fails the test after 60 s without one.
    #[track_caller]
    pub fn next_line(&self) -> String {
        match self.next_line_within(ms(60_000)) {
            Some(line) => line,
            None => panic!(
                "no further line from the child; it printed:\n{}",
                self.output.lock()
            ),
        }
    }

    pub fn next_line_within(&self, limit: Duration) -> Option<String> {
        self.lines.recv_timeout(limit).ok()
    }

    /// Reads lines until one equals `line`.
    #[track_caller]
    pub fn wait_for_line(&self, line: &str) {
        while self.next_line() != line {}
    }

    /// Waits until the child exits; fails the test after 240 s without a line or an exit.
    #[track_caller]
    pub fn wait(mut self) -> Finished {
        let mut lines = Vec::new();
        // The channel closes when the child's output ends.
        loop {
            match self.lines.recv_timeout(ms(240_000)) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!(
                    "the child does not exit; it printed:\n{}",
                    self.output.lock()
                ),
            }
        }
        let status = self.process.wait().expect("the child can be waited for");
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

    /// Kills the child (SIGKILL), as the kernel does when memory runs out, and waits for its exit.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Asks the child to exit (SIGTERM).
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
