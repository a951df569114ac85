//! The processes that `leasehold run` signals and ends.

use std::io;
use std::process::{Child, Command};

use rustix::io::Errno;
use rustix::process::Signal;

use crate::message::say;
use crate::supervisor::Supervisor;

/// The processes of a command: a process group, or with `--foreground` the command alone.
///
/// `suspend` and `stopped` can suspend this process together with the command. When this process is
/// continued, they continue the command only if `is_held` returns true: the lock is still held.
/// With `--foreground`, the shell's `fg` continues the command directly, even if the lock was lost.
pub(crate) trait CommandJob {
    /// Starts the command.
    fn spawn(&mut self, command: &mut Command) -> io::Result<Child>;

    /// Forwards a signal that this process has received, unless the supervisor has received it as
    /// well. With `--foreground` on a terminal, does not forward INT and QUIT: its keys send these
    /// to the command as well.
    fn forward(&mut self, signal: Signal);

    /// Handles a TSTP that this process has received: Ctrl-Z, or a request to suspend both. Does
    /// nothing if a CONT has taken it back.
    fn suspend(&mut self, is_held: &dyn Fn() -> bool);

    /// Handles a stop of the command by a signal. Returns true if the command needs the terminal
    /// and does not have it.
    fn stopped(&mut self, by: Signal, is_held: &dyn Fn() -> bool) -> bool;

    /// Asks all processes to end: sends TERM, then CONT, because a stopped process must run to
    /// handle TERM.
    fn terminate(&self);

    /// Kills all processes.
    fn kill(&mut self);

    /// Handles the end of the command, which must not have been waited for: after that, its process
    /// id can be another process's.
    fn ended(&mut self);

    /// Returns the process that ends the others if this process is killed.
    fn supervisor(&self) -> &Supervisor;

    /// Returns whether no process is left. The command must have been waited for.
    fn is_empty(&mut self) -> bool;
}

/// Prints a message if the signal was not sent because the command runs as another user.
pub(crate) fn report(sent: rustix::io::Result<()>, signal: Signal) {
    // If CONT fails after TERM or STOP, that signal has failed too, and was reported.
    if sent == Err(Errno::PERM) && signal != Signal::CONT {
        say(&format!(
            "cannot send signal {} to the command: it runs as another user",
            signal.as_raw()
        ));
    }
}
