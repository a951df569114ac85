//! The shim: this program once more, which ends the command's process group when its starter cannot.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::{Signal, getpgid, getpid, getppid, kill_process_group, setpgid};
use signal_hook::consts::{FORBIDDEN, SIGKILL, SIGSTOP};
use signal_hook::flag;

/// What it is started with.
pub(crate) const SHIM: &str = "__shim";

/// Waits until the pipe that only its starter holds open is closed, by the kernel if need be, and then kills the group
/// that bears this process's id. A byte asks it to step out of the group, and each of ours says "done".
///
/// It leads the group: so there is one for the command to be born into, and no time at which the command runs unwatched;
/// and as long as it lives, the group's id cannot become anybody else's.
pub(crate) fn shim() {
    // Signals to the group are for the command. A handler is as good as ignoring them.
    for signal in 1..=64 {
        if !FORBIDDEN.contains(&signal) && ![SIGKILL, SIGSTOP].contains(&signal) {
            // The few that have no handler end us as they end the command.
            let _ = flag::register(signal, Arc::new(AtomicBool::new(false)));
        }
    }
    let done = || {
        io::stdout()
            .write_all(b".")
            .and_then(|()| io::stdout().flush())
    };
    // If nobody listens any more, the pipe is closed too.
    let _ = done();
    let mut byte = [0];
    while io::stdin().read_exact(&mut byte).is_ok() {
        // Where the starter has a group of its own, and still is.
        let _ = getpgid(getppid()).and_then(|group| setpgid(None, Some(group)));
        let _ = done();
    }
    // It may be empty by now.
    let _ = kill_process_group(getpid(), Signal::KILL);
}
