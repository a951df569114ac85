//! Processes that end when the one that started them does, however that ends.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Waits beside the program for its starter to close the pipe, then kills the whole group: the program even
/// when stopped, whatever it forked, and itself. The directory goes too, since no `Drop` will see to it.
///
/// It ignores HUP above all: the kernel sends that to a group with a stopped member when the starter dies.
///
/// The program takes over the shell's own process, so that its id and exit status are the ones seen from outside.
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

/// A program on a leash: it does not outlive this process.
pub(crate) struct SupervisedProcess {
    process: Child,
    /// Held open for as long as the program may run; the kernel closes it when this process dies.
    pipe: Option<ChildStdin>,
}

impl SupervisedProcess {
    /// Starts `program`; `prepare` sets its environment and its output. Its input is empty.
    /// The directory, if any, is removed when the leash is let go by the death of this process.
    pub(crate) fn start<A: AsRef<OsStr>>(
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
        directory: Option<&Path>,
        prepare: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", WATCH, "leash"])
            .arg(directory.unwrap_or_else(|| Path::new("")))
            .arg(program)
            .args(arguments)
            .process_group(0);
        prepare(&mut command);
        let mut process = command.stdin(Stdio::piped()).spawn()?;
        // `wait` would close it first, and with that kill what it waits for.
        let pipe = process.stdin.take();
        Ok(Self { process, pipe })
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn process(&mut self) -> &mut Child {
        &mut self.process
    }

    /// Stops the program where it stands: its sockets stay open and say nothing.
    pub(crate) fn pause(&self) {
        kill_process(self.pid(), Signal::STOP).expect("the program is there to be stopped");
        // The signal is only sent by now. Linux tells when every thread has stopped.
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
        kill_process(self.pid(), Signal::CONT).expect("the program is there to go on");
    }

    pub(crate) fn terminate(&self) {
        kill_process(self.pid(), Signal::TERM).expect("the program is there to be ended");
    }

    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        self.process.wait()
    }

    /// Kills the program and what it forked, and returns when the program is gone.
    pub(crate) fn kill(&mut self) {
        if self.pipe.is_none() {
            return;
        }
        // The watching shell is still of the group, so the group's id cannot be anybody else's by now.
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
