//! The processes of a command, which `run` signals and ends.

use std::io;
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group};

/// The processes of a command.
pub(crate) trait CommandJob {
    /// Starts the command.
    fn spawn(&mut self, command: &mut Command) -> io::Result<Child>;

    /// Forwards a signal that this process has received; `is_held` tells whether the command may go
    /// on.
    fn forward(&mut self, signal: Signal, is_held: &dyn Fn() -> bool);

    /// Handles that the command was stopped by a signal. Returns true if it needs the terminal,
    /// which it does not have.
    fn stopped(&mut self, by: Signal, is_held: &dyn Fn() -> bool) -> bool;

    /// Asks all processes to end, including stopped ones.
    fn terminate(&self);

    /// Kills all processes.
    fn kill(&mut self);

    /// Handles that the command has ended, before its process id is free for another process.
    fn ended(&mut self);

    /// Returns whether no process is left. The command must have been waited for.
    fn is_empty(&mut self) -> bool;
}

/// Sends a signal to the command, which has not been waited for; to all of its group if it leads
/// one, as `timeout` does.
pub(crate) fn signal_command(command: Pid, signal: Signal) -> rustix::io::Result<()> {
    match getpgid(Some(command)) {
        Ok(group) if group == command => kill_process_group(group, signal),
        _ => kill_process(command, signal),
    }
}
