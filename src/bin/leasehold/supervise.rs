//! The supervisor: a second process of this program, which kills the command's group if the first
//! one dies.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process_group, setpgid};
use signal_hook::consts::FORBIDDEN;
use signal_hook::flag;

use crate::children::start_child;
use crate::process_group::{group_of, signal_command};
use crate::program::this_program;
use crate::signals::FORWARDED;

/// The argument that selects the supervisor.
pub(crate) const SUPERVISE: &str = "__supervise";

// A request is one of these bytes and a number of four bytes. The answer is one byte.

/// The request to leave the group. Its number is 0.
pub(crate) const LEAVE: u8 = b'.';

/// The request to watch the process with this id; 0 stands for none.
pub(crate) const WATCH: u8 = b'w';

/// The question whether this process has received this signal within [`RECENT`], and has not been
/// asked since.
pub(crate) const RECEIVED: u8 = b's';

/// The answer "yes" to [`RECEIVED`].
pub(crate) const YES: u8 = b'y';

/// The first process asks half this time after it has received the signal itself.
const RECENT: Duration = Duration::from_millis(100);

/// Waits until the first process closes its pipe, and then kills its own process group and the
/// process that it watches: the command may have left the group. With `--foreground` it was never
/// in it.
///
/// If the first process is killed, the kernel closes the pipe.
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
    let mut signals: Vec<_> = FORWARDED.into_iter().filter_map(Received::new).collect();
    let mut watched = None;
    // A write fails only if the first process has ended: then `stdin` is closed too.
    let answer = |answer| {
        let _ = io::stdout().write_all(&[answer]);
        let _ = io::stdout().flush();
    };
    answer(b'.');
    while let Some((request, number)) = next_request(&mut signals) {
        let mut answered = b'.';
        match request {
            WATCH => watched = Pid::from_raw(number),
            LEAVE => leave_group(),
            RECEIVED => {
                let received = signals
                    .iter_mut()
                    .find(|received| received.signal == number);
                let at = received.and_then(|received| received.at.take());
                if at.is_some_and(|at| at.elapsed() < RECENT) {
                    answered = YES;
                }
            }
            _ => {}
        }
        answer(answered);
    }
    if let Some(watched) = watched {
        let _ = signal_command(watched, Signal::KILL);
    }
    // Fails if the group is already empty.
    let _ = kill_process_group(getpid(), Signal::KILL);
}

/// When this process has last received a signal that the first process forwards.
struct Received {
    signal: i32,
    /// Has a byte for each time that the signal was received.
    pipe: UnixStream,
    at: Option<Instant>,
}

impl Received {
    /// Returns `None` if there is no file descriptor for it: the signal then counts as not
    /// received.
    fn new(signal: i32) -> Option<Self> {
        let (pipe, writer) = UnixStream::pair().ok()?;
        pipe.set_nonblocking(true).ok()?;
        signal_hook::low_level::pipe::register(signal, writer).ok()?;
        Some(Self {
            signal,
            pipe,
            at: None,
        })
    }

    fn look(&mut self) {
        while let Ok(1..) = self.pipe.read(&mut [0; 16]) {
            self.at = Some(Instant::now());
        }
    }
}

/// Waits for the next request, and notes the signals that are received until then. Returns `None`
/// if the first process has closed its pipe.
fn next_request(signals: &mut [Received]) -> Option<(u8, i32)> {
    let mut stdin = io::stdin();
    loop {
        let pipes = signals.iter().map(|received| &received.pipe);
        let pipes = pipes.map(|pipe| PollFd::new(pipe, PollFlags::IN));
        let mut files = vec![PollFd::new(&stdin, PollFlags::IN)];
        files.extend(pipes);
        let is_ready = poll(&mut files, None).is_ok() && !files[0].revents().is_empty();
        // A signal that was sent before the request has been handled by now.
        signals.iter_mut().for_each(Received::look);
        if is_ready {
            let mut request = [0; 5];
            stdin.read_exact(&mut request).ok()?;
            let [request, a, b, c, d] = request;
            return Some((request, i32::from_ne_bytes([a, b, c, d])));
        }
    }
}

/// Moves this process into the group of the first process, if that process still exists.
fn leave_group() {
    if let Some(group) = group_of(getppid()) {
        let _ = setpgid(None, Some(group));
        return;
    }
    // That group is led from another PID namespace, so it has no id here. A child that ends at once
    // leads a new group. While this process is in that group, it exists without its leader.
    let Ok(this_program) = this_program() else {
        return;
    };
    let mut leader = Command::new(this_program);
    leader
        .arg("--version")
        .process_group(0)
        .stdin(Stdio::null());
    leader.stdout(Stdio::null());
    if let Ok(mut leader) = start_child(|| leader.spawn()) {
        let _ = setpgid(None, Some(Pid::from_child(&leader)));
        let _ = leader.wait();
    }
}
