//! Other processes: the test's own binary once more, in one of the roles that the test file declares.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use parking_lot::Mutex;

use super::leash::Leashed;
use super::time::ms;

const ROLE: &str = "LEASEHOLD_ROLE";

/// Sets off what a child says from what the test runner prints around it.
const MARK: &str = "say: ";

/// Plays the role that this process was started for, and nothing in a process that is not a child. Each test file with
/// children has a test named `child` that calls it:
///
/// ```ignore
/// #[test]
/// fn child() {
///     support::role(&[("holder", holder)]);
/// }
/// ```
pub(crate) fn role(roles: &[(&str, fn())]) {
    let Some(wanted) = env::var_os(ROLE) else {
        return;
    };
    let (_, play) = roles
        .iter()
        .find(|(name, _)| wanted == **name)
        .expect("the role is one of this file's");
    play();
}

/// In a child: what it was started with under this key.
pub(crate) fn given(key: &str) -> String {
    env::var(key).unwrap_or_else(|_| panic!("the child is given {key}"))
}

/// In a child: a line that its parent may wait for.
pub(crate) fn say(line: &str) {
    let mut output = io::stdout().lock();
    // The runner may be in the middle of a line.
    writeln!(output, "\n{MARK}{line}")
        .and_then(|()| output.flush())
        .expect("the parent listens");
}

/// How many threads of this process have this name, or so much of it as the kernel keeps: fifteen bytes.
pub(crate) fn threads(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("this is Linux");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|comm| comm.trim_end() == name).count()
}

pub(crate) struct Child {
    process: Leashed,
    said: Receiver<String>,
    output: Arc<Mutex<String>>,
}

/// A child that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    /// What it said that nobody has waited for.
    pub(crate) said: Vec<String>,
    /// All it printed.
    pub(crate) output: String,
}

impl Child {
    pub(crate) fn spawn(role: &str, given: &[(&str, &str)]) -> Self {
        let binary = env::current_exe().expect("the test runs from a file");
        let arguments = ["--exact", "child", "--nocapture", "--test-threads=1"];
        let mut process = Leashed::start(&binary, arguments, None, |command| {
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
        let (sayer, said) = unbounded();
        thread::spawn({
            let output = Arc::clone(&output);
            move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if let Some(line) = line.strip_prefix(MARK) {
                        let _ = sayer.send(line.to_owned());
                    }
                    let mut output = output.lock();
                    output.push_str(&line);
                    output.push('\n');
                }
            }
        });
        Self {
            process,
            said,
            output,
        }
    }

    /// The next line that it says.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        match self.line_within(ms(30_000)) {
            Some(line) => line,
            None => panic!(
                "the child says nothing more; it printed:\n{}",
                self.output.lock()
            ),
        }
    }

    pub(crate) fn line_within(&self, limit: Duration) -> Option<String> {
        self.said.recv_timeout(limit).ok()
    }

    /// Waits until it says just this, after whatever else.
    #[track_caller]
    pub(crate) fn wait_for(&self, line: &str) {
        while self.line() != line {}
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Finished {
        let mut said = Vec::new();
        // Its output ends when it does.
        loop {
            match self.said.recv_timeout(ms(60_000)) {
                Ok(line) => said.push(line),
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
            said,
            output,
        }
    }

    pub(crate) fn pause(&self) {
        self.process.pause();
    }

    pub(crate) fn resume(&self) {
        self.process.resume();
    }

    /// Kills it where it stands, as the kernel does when memory runs out. It is gone when this returns.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Asks it to end (SIGTERM).
    pub(crate) fn terminate(&self) {
        self.process.terminate();
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Finished {
    #[track_caller]
    pub(crate) fn succeeded(self) -> Self {
        assert!(
            self.status.success(),
            "the child ended with {}; it printed:\n{}",
            self.status,
            self.output
        );
        self
    }
}
