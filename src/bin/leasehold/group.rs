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
    /// Also the shim's process id.
    id: Pid,
    shim: Child,
    /// Closes with this process at the latest, which the shim hears.
    lifeline: Option<ChildStdin>,
    answers: ChildStdout,
    shim_is_in: bool,
}

impl Group {
    /// Starts the shim, and returns when it is ready.
    pub(crate) fn start() -> io::Result<Self> {
        // What the command leaves behind becomes our child, so that we know when it has ended. Where that cannot be
        // had, it is left to the system to reap it.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let mut command = Command::new(ourselves()?);
        // Nothing of ours is to be seen or kept busy by it.
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

    /// Starts the command in it.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        command.process_group(self.id.as_raw_pid()).spawn()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // Whoever is gone need not be told.
        let _ = kill_process_group(self.id, signal);
    }

    /// Asks all of it to end, also what is stopped.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    /// Kills all of it but the shim.
    pub(crate) fn kill(&mut self) {
        self.let_shim_out();
        self.signal(Signal::KILL);
    }

    /// Whether nobody is left in it but the shim. The command itself must have been waited for.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.let_shim_out();
        while matches!(waitpgid(self.id, WaitOptions::NOHANG), Ok(Some(_))) {}
        test_kill_process_group(self.id) == Err(Errno::SRCH)
    }

    /// From then on the shim is not counted with the group, but still keeps its id from others. It is in our own group
    /// then, and so not until the end is near: what kills all of our group is not to kill it.
    fn let_shim_out(&mut self) {
        if !self.shim_is_in {
            return;
        }
        self.shim_is_in = false;
        // Somebody may have stopped the whole group.
        let _ = kill_process(self.id, Signal::CONT);
        // A shim that was killed has left too.
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
        // `is_empty` has waited for it if it was killed in the group.
        let _ = self.shim.wait();
    }
}

/// This program, also when its file was replaced meanwhile.
#[cfg(target_os = "linux")]
fn ourselves() -> io::Result<&'static OsStr> {
    Ok(OsStr::new("/proc/self/exe"))
}

#[cfg(not(target_os = "linux"))]
fn ourselves() -> io::Result<std::path::PathBuf> {
    std::env::current_exe()
}
