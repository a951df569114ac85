//! The command in its own process group.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process_group, test_kill_process, test_kill_process_group,
    waitpgid,
};

use crate::children::start_child;
use crate::job::{CommandJob, report};
use crate::process_group::{group_of, signal_command};
use crate::stops::{self, suspend};
use crate::supervisor::Supervisor;

/// A process group that does not outlive this process. The supervisor leads it.
pub(crate) struct ProcessGroup {
    supervisor: Supervisor,
    supervisor_is_in: bool,
    /// The command until it has ended. It may leave the group.
    command: Option<Pid>,
}

impl ProcessGroup {
    /// Starts the supervisor, and returns the group without a command.
    pub(crate) fn start() -> io::Result<Self> {
        // Processes that the command leaves behind become our children, so that we can wait for
        // them. If this fails, init reaps them.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        Ok(Self {
            supervisor: Supervisor::start()?,
            supervisor_is_in: true,
            command: None,
        })
    }

    fn signal(&self, signal: Signal) {
        let id = self.supervisor.id();
        // Fails if the group is empty, or if all of it runs as another user.
        let _ = kill_process_group(id, signal);
        let Some(command) = self.command else {
            return;
        };
        let sent = match group_of(Some(command)) {
            // The command is in the group and has got the signal, unless it runs as another user.
            // The result above does not tell: one process that gets the signal, such as the
            // supervisor, is enough for it.
            Some(group) if group == id => test_kill_process(command),
            _ => signal_command(command, signal),
        };
        report(sent, signal);
    }

    /// Moves the supervisor out of the group that it leads, into this process's own group.
    ///
    /// It is moved only at the end: until then, a signal that kills all of this process's group
    /// spares the supervisor, so the supervisor can still kill the command.
    fn let_supervisor_out(&mut self) {
        if self.supervisor_is_in {
            self.supervisor_is_in = false;
            self.supervisor.leave_group();
        }
    }
}

impl CommandJob for ProcessGroup {
    fn spawn(&mut self, command: &mut Command) -> io::Result<Child> {
        let group = self.supervisor.id().as_raw_pid();
        let command = command.process_group(group);
        let command = start_child(|| command.spawn())?;
        self.command = Some(Pid::from_child(&command));
        self.supervisor.watch(self.command);
        Ok(command)
    }

    fn forward(&mut self, signal: Signal) {
        if !self.supervisor.has_received(signal) {
            self.signal(signal);
            self.supervisor.forget_received(signal);
        }
    }

    fn suspend(&mut self, is_held: &dyn Fn() -> bool) {
        if !stops::is_pending() {
            return;
        }
        // The command must not run while this process is stopped and does not renew.
        self.signal(Signal::STOP);
        suspend();
        // After a loss, `terminate` continues the group.
        if is_held() {
            self.signal(Signal::CONT);
        }
    }

    fn stopped(&mut self, by: Signal, _: &dyn Fn() -> bool) -> bool {
        // The group is in the terminal's background, so the kernel stops all of it if one of its
        // processes reads from the terminal or changes its settings.
        [Signal::TTIN, Signal::TTOU].contains(&by)
    }

    fn terminate(&self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    fn kill(&mut self) {
        self.let_supervisor_out();
        self.signal(Signal::KILL);
    }

    fn ended(&mut self) {
        self.command = None;
        self.supervisor.watch(None);
    }

    fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    fn is_empty(&mut self) -> bool {
        self.let_supervisor_out();
        let id = self.supervisor.id();
        while matches!(waitpgid(id, WaitOptions::NOHANG), Ok(Some(_))) {}
        test_kill_process_group(id) == Err(Errno::SRCH)
    }
}
