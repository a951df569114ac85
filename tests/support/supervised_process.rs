//! Child processes that end when the process that started them ends, even if that one is killed.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Runs a program, and a background shell that kills it when the starting process dies.
///
/// The shell reads its input, a pipe from the starting process, until the pipe is closed. Then it
/// removes the program's directory, since no `Drop` will run. It then kills the whole process
/// group: the program even if stopped, its children, and itself.
///
/// The shell must ignore HUP: when the starting process dies, the kernel sends HUP to a group that
/// has a stopped member.
///
/// The program replaces the first shell (`exec`), so that its process id and exit status are the
/// ones the caller sees.
const WATCH: &str = r#"
directory=$1; shift
exec 3<&0 </dev/null
(
    trap '' HUP INT TERM
    while read -r _ <&3; do :; done
    if [ -n "$directory" ]; then rm -rf -- "$directory"; fi
    kill -KILL 0
) >/dev/null 2>&1 &
exec "$@" 3<&-
"#;

/// A running program that does not outlive this process.
pub(crate) struct SupervisedProcess {
    process: Child,
    /// Open as long as the program may run; the kernel closes it when this process dies.
    pipe: Option<ChildStdin>,
}

impl SupervisedProcess {
    /// Starts `program` with empty input; `prepare` sets its environment and output.
    ///
    /// If this process dies, `directory` is removed.
    pub(crate) fn start<A: AsRef<OsStr>>(
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
        directory: Option<&Path>,
        prepare: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", WATCH, "supervisor"])
            .arg(directory.unwrap_or_else(|| Path::new("")))
            .arg(program)
            .args(arguments)
            .process_group(0);
        prepare(&mut command);
        let mut process = command.stdin(Stdio::piped()).spawn()?;
        // Taken out of `Child`, whose `wait` closes it first, which would kill the program.
        let pipe = process.stdin.take();
        Ok(Self { process, pipe })
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn process(&mut self) -> &mut Child {
        &mut self.process
    }

    /// Pauses the program: its sockets stay open, but it does not reply.
    pub(crate) fn pause(&self) {
        kill_process(self.pid(), Signal::STOP).expect("the program is running");
        // Signals are asynchronous: on Linux, wait until every thread has stopped.
        #[cfg(target_os = "linux")]
        super::eventually(super::ms(5_000), || {
            fs::read_dir(format!("/proc/{}/task", self.id()))
                .expect("the program has threads")
                .flatten()
                .filter_map(|task| fs::read_to_string(task.path().join("stat")).ok())
                .all(|stat| {
                    stat.rsplit(") ")
                        .next()
                        .is_some_and(|rest| rest.starts_with(['T', 'Z']))
                })
        });
    }

    pub(crate) fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).expect("the program is running");
    }

    pub(crate) fn terminate(&self) {
        kill_process(self.pid(), Signal::TERM).expect("the program is running");
    }

    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        self.process.wait()
    }

    /// Kills the program and its children, and waits for the program's exit.
    pub(crate) fn kill(&mut self) {
        if self.pipe.is_none() {
            return;
        }
        // The group's id cannot have been reused: the supervising shell is still a member.
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.process.wait();
        self.pipe = None;
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }
}

impl Drop for SupervisedProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
