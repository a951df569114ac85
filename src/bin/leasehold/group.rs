//! The command's process group, and the shim that leads it.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, kill_process_group, test_kill_process_group, waitpgid,
};

use crate::shim::SHIM;

/// A process group that does not outlive this process.
pub(crate) struct Group {
    /// The group's id, which is the shim's process id.
    id: Pid,
    shim: Child,
    /// The pipe to the shim. It closes when this process ends, and the shim then kills the group.
    lifeline: Option<ChildStdin>,
    answers: ChildStdout,
    shim_is_in: bool,
}

impl Group {
    /// Starts the shim and returns when it is ready.
    pub(crate) fn start() -> io::Result<Self> {
        // Processes that the command leaves behind become our children, so that we can wait for
        // them. If this fails, init reaps them.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let mut command = Command::new(ourselves()?);
        // The shim must not keep our environment, working directory or terminal in use.
        command.arg(SHIM).env_clear().current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shim = command.stderr(Stdio::null()).process_group(0).spawn()?;
        let missing = || io::Error::other("the shim has no pipe");
        let mut group = Self {
            id: Pid::from_child(&shim),
            lifeline: Some(shim.stdin.take().ok_or_else(missing)?),
            answers: shim.stdout.take().ok_or_else(missing)?,
            shim,
            shim_is_in: true,
        };
        group.answers.read_exact(&mut [0])?;
        Ok(group)
    }

    /// Starts the command in the group.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        command.process_group(self.id.as_raw_pid()).spawn()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // An error means that the group is empty.
        let _ = kill_process_group(self.id, signal);
    }

    /// Asks all processes of the group to end, including stopped ones.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    /// Kills all processes of the group except the shim.
    pub(crate) fn kill(&mut self) {
        self.let_shim_out();
        self.signal(Signal::KILL);
    }

    /// Returns whether only the shim is left. The command must have been waited for.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.let_shim_out();
        while matches!(waitpgid(self.id, WaitOptions::NOHANG), Ok(Some(_))) {}
        test_kill_process_group(self.id) == Err(Errno::SRCH)
    }

    /// Moves the shim out of the group and into ours.
    ///
    /// The shim still reserves the group's id. It is moved only at the end, because a signal that
    /// kills all of our group must not kill the shim as well.
    fn let_shim_out(&mut self) {
        if !self.shim_is_in {
            return;
        }
        self.shim_is_in = false;
        // The whole group may have been stopped, and the shim with it.
        let _ = kill_process(self.id, Signal::CONT);
        // A write fails if the shim was killed: then it is not in the group either.
        if let Some(lifeline) = &mut self.lifeline
            && lifeline.write_all(b".").is_ok()
        {
            let _ = self.answers.read_exact(&mut [0]);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.lifeline = None;
        // Fails if the shim was killed inside the group and `is_empty` has waited for it.
        let _ = self.shim.wait();
    }
}

/// Returns the path of this program, which stays valid if the file is replaced.
#[cfg(target_os = "linux")]
fn ourselves() -> io::Result<&'static OsStr> {
    Ok(OsStr::new("/proc/self/exe"))
}

#[cfg(not(target_os = "linux"))]
fn ourselves() -> io::Result<std::path::PathBuf> {
    std::env::current_exe()
}
