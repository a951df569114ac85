//! Forks a process that has several threads. A package, because this needs `unsafe`.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};

/// A child of this process, made by [`fork`].
#[derive(Debug)]
#[must_use = "the child becomes a zombie"]
pub struct Child(Pid);

/// Runs `body` in a fork of this process, which has no thread but the calling one.
///
/// The child exits with status 0 when `body` returns, with 1 if it panics. Nothing else of the
/// calling thread runs there: no destructor, no exit handler.
pub fn fork(body: impl FnOnce()) -> io::Result<Child> {
    // SAFETY: POSIX allows the child only async-signal-safe calls. With glibc, `malloc` and thread
    // creation work as well. Other locks may be held by threads that do not exist in the child: the
    // tests are about that.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let outcome = catch_unwind(AssertUnwindSafe(body));
            let _ = io::stdout().flush();
            // SAFETY: ends the process without running anything.
            unsafe { libc::_exit(i32::from(outcome.is_err())) }
        }
        id => Ok(Child(Pid::from_raw(id).expect("fork returns a process id"))),
    }
}

impl Child {
    /// Returns the exit status; kills the child and returns `None` if it runs for longer than
    /// `limit`.
    pub fn wait(self, limit: Duration) -> Option<i32> {
        let end = Instant::now() + limit;
        let mut options = WaitOptions::NOHANG;
        loop {
            let ended = waitpid(Some(self.0), options).expect("it is a child of this process");
            let is_killed = !options.contains(WaitOptions::NOHANG);
            match ended {
                Some((_, status)) => return (!is_killed).then(|| code(status)),
                None if Instant::now() < end => thread::sleep(Duration::from_micros(200)),
                None => {
                    let _ = kill_process(self.0, Signal::KILL);
                    options = WaitOptions::empty();
                }
            }
        }
    }
}

/// The exit status, or the number of the signal that ended the child plus 128, as a shell has it.
fn code(status: WaitStatus) -> i32 {
    let signal = || {
        status
            .terminating_signal()
            .map_or(-1, |signal| signal + 128)
    };
    status.exit_status().unwrap_or_else(signal)
}
