//! The supervisor: a second process of this program, which kills the command's group if the first
//! one dies.

use std::env;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::{Pid, Signal, getpid, getppid, kill_process_group, setpgid};
use signal_hook::consts::FORBIDDEN;
use signal_hook::flag;

use crate::process_group::{group_of, signal_command};

/// The argument that selects the supervisor.
pub(crate) const SUPERVISE: &str = "__supervise";

/// The request to leave the group.
pub(crate) const LEAVE: u8 = b'.';

/// The request to watch the process whose id follows in four bytes; 0 stands for none.
pub(crate) const WATCH: u8 = b'w';

/// Waits until the first process closes its pipe, and then kills its own process group and the
/// process that it watches: the command may have left the group. With `--foreground` it was never
/// in it.
///
/// If the first process is killed, the kernel closes the pipe. The supervisor answers every request
/// with a byte.
///
/// The supervisor leads the group. So the group exists before the command starts, and the command
/// never runs without supervision. While the supervisor lives, the kernel cannot reuse the group's
/// id.
pub(crate) fn supervise() {
    // Signals to the group are for the command. A handler that only sets a flag ignores them.
    for signal in 1..=64 {
        if !FORBIDDEN.contains(&signal) {
            // If this fails, the signal ends the supervisor, as it ends the command.
            let _ = flag::register(signal, Arc::new(AtomicBool::new(false)));
        }
    }
    let done = || {
        io::stdout()
            .write_all(b".")
            .and_then(|()| io::stdout().flush())
    };
    // A write fails only if the first process has ended: then `stdin` is closed too.
    let _ = done();
    let (mut request, mut id, mut watched) = ([0], [0; 4], None);
    while io::stdin().read_exact(&mut request).is_ok() {
        if request == [WATCH] && io::stdin().read_exact(&mut id).is_ok() {
            watched = Pid::from_raw(i32::from_ne_bytes(id));
        } else if request == [LEAVE] {
            leave_group();
        }
        let _ = done();
    }
    if let Some(watched) = watched {
        let _ = signal_command(watched, Signal::KILL);
    }
    // Fails if the group is already empty.
    let _ = kill_process_group(getpid(), Signal::KILL);
}

/// Moves this process into the group of the first process, if that process still exists.
fn leave_group() {
    if let Some(group) = group_of(getppid()) {
        let _ = setpgid(None, Some(group));
        return;
    }
    // That group is led from another PID namespace, so it has no id here. A child that ends at once
    // leads a new group. While this process is in that group, it exists without its leader.
    let this_program = env::args_os().next().unwrap_or_default();
    let mut leader = Command::new(this_program);
    leader
        .arg("--version")
        .process_group(0)
        .stdin(Stdio::null());
    if let Ok(mut leader) = leader.stdout(Stdio::null()).spawn() {
        let _ = setpgid(None, Some(Pid::from_child(&leader)));
        let _ = leader.wait();
    }
}
