//! The process group of a command, and signals to it.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Returns the id of the process group of a process, or of this process for `None`.
///
/// Returns `None` if that process is gone, or if the process that leads the group is in another PID
/// namespace (after `unshare --pid --fork` or `nsenter`): the kernel then answers 0, which
/// `rustix` takes for a process id.
pub(crate) fn group_of(process: Option<Pid>) -> Option<Pid> {
    let process = process.map(|process| nix::unistd::Pid::from_raw(process.as_raw_pid()));
    let group = nix::unistd::getpgid(process).ok()?;
    Pid::from_raw(group.as_raw())
}

/// Sends a signal to the command, or to its whole process group if the command leads one, as the
/// program `timeout` does. The command must not have been waited for.
pub(crate) fn signal_command(command: Pid, signal: Signal) -> rustix::io::Result<()> {
    match group_of(Some(command)) {
        Some(group) if group == command => kill_process_group(group, signal),
        _ => kill_process(command, signal),
    }
}
