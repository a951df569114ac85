//! The handle of the supervisor process (`supervise.rs`): starts it, and sends it requests.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::children::{Change, next_change, start_child};
use crate::program::this_program;
use crate::supervise::{LEAVE, RECEIVED, SUPERVISE, WATCH, YES};

/// How often to continue a supervisor that does not answer, because something stops it.
const CONTINUE_EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// A second process of this program, which leads a process group and kills that group when this
/// process ends, however it ends.
pub(crate) struct Supervisor {
    process: Child,
    /// The pipe to the supervisor, which kills its group when the pipe closes. The kernel closes it
    /// at the latest when this process ends.
    requests: Option<ChildStdin>,
    /// One byte when the supervisor is ready, and one for each request.
    answers: ChildStdout,
}

impl Supervisor {
    /// Starts the supervisor and returns when it is ready.
    pub(crate) fn start() -> io::Result<Self> {
        let mut command = Command::new(this_program()?);
        // The supervisor must not keep our working directory or terminal in use, nor a copy of our
        // environment.
        command.arg(SUPERVISE).env_clear().current_dir("/");
        Self::start_as(command)
    }

    fn start_as(mut command: Command) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::null()).process_group(0);
        start_child(|| Self::of_process(command.spawn()?))
    }

    /// Returns when the supervisor is ready.
    fn of_process(mut process: Child) -> io::Result<Self> {
        let missing = || io::Error::other("the supervisor has no pipe");
        let mut supervisor = Self {
            requests: Some(process.stdin.take().ok_or_else(missing)?),
            answers: process.stdout.take().ok_or_else(missing)?,
            process,
        };
        match supervisor.answers.read_exact(&mut [0]) {
            Ok(()) => Ok(supervisor),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                let status = supervisor.process.wait()?;
                Err(io::Error::other(format!(
                    "it ended before it was ready ({status}): check the limits of memory and \
                     processes, and whether this program may start itself"
                )))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the supervisor's process id, which is also the id of its group.
    pub(crate) fn id(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Moves the supervisor out of its group and into ours. The id of its group stays reserved,
    /// because it is also the supervisor's process id.
    pub(crate) fn leave_group(&mut self) {
        self.ask(LEAVE, 0);
    }

    /// Sets the process that the supervisor kills in addition to its group when this process ends;
    /// `None` for no process.
    pub(crate) fn watch(&mut self, process: Option<Pid>) {
        self.ask(WATCH, process.map_or(0, Pid::as_raw_pid));
    }

    /// Returns whether the supervisor has received the signal together with this process. Then
    /// something sends it to all processes, as systemd does when it stops a service, and the
    /// command has it already.
    pub(crate) fn has_received(&mut self, signal: Signal) -> bool {
        self.ask(RECEIVED, signal.as_raw()) == Some(YES)
    }

    /// Forgets that the supervisor has received the signal: this process has sent it to the group.
    pub(crate) fn forget_received(&mut self, signal: Signal) {
        self.ask(RECEIVED, signal.as_raw());
    }

    /// Returns whether the supervisor has ended. It is not reaped, so its id stays valid.
    pub(crate) fn has_ended(&self) -> bool {
        !matches!(next_change(&self.process), None | Some(Change::Stopped(_)))
    }

    /// Sends a request and returns the answer; `None` if the supervisor was killed. It then leads
    /// no group and watches no process.
    fn ask(&mut self, request: u8, number: i32) -> Option<u8> {
        let [a, b, c, d] = number.to_ne_bytes();
        let requests = self.requests.as_mut()?;
        requests.write_all(&[request, a, b, c, d]).ok()?;
        let mut answer = [0];
        loop {
            if self.is_readable() {
                self.answers.read_exact(&mut answer).ok()?;
                return Some(answer[0]);
            }
        }
    }

    /// Waits for a short time until the supervisor has answered or ended. Continues it first: it
    /// may have been stopped, with its group or alone.
    fn is_readable(&self) -> bool {
        let _ = kill_process(self.id(), Signal::CONT);
        let mut answers = [PollFd::new(&self.answers, PollFlags::IN)];
        !matches!(
            poll(&mut answers, Some(&CONTINUE_EVERY)),
            Ok(0) | Err(Errno::INTR)
        )
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // Closes the pipe: the supervisor kills what is left of its group, and ends.
        self.requests = None;
        while !self.has_ended() && !self.is_readable() {}
        // Fails if the supervisor was killed inside the group and `ProcessGroup::is_empty` has
        // reaped it.
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supervisor_that_ends_at_once_is_reported_with_its_status() {
        let error = Supervisor::start_as(Command::new("false")).map(drop);
        let text = error.unwrap_err().to_string();
        assert!(text.contains("before it was ready"), "{text}");
        assert!(text.contains("exit status: 1"), "{text}");
    }
}
