//! The children of this process: their start, their end, and the reaping of adopted ones.

use std::io;
use std::process::Child;
use std::thread;
use std::time::Duration;

use leasehold::crossbeam_channel::{RecvTimeoutError, bounded};
#[cfg(target_os = "linux")]
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

use crate::mask::restore_mask;
use crate::stops;

/// How often to check whether a new child is stopped. Most starts take less.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// Runs `start`, which starts a child, in a thread that has the signal mask with which this program
/// was started. The child inherits that mask.
///
/// A signal can stop a new child before it executes its program: at first it is in the group of
/// this process, so Ctrl-Z reaches it. `posix_spawn` returns when the child has executed the
/// program, so it would wait for a stopped child for ever. Therefore this thread continues every
/// child that is stopped before `start` returns.
pub(crate) fn start_child<T: Send>(start: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    // A child of the program that this process was before `exec` may be stopped already: it stays
    // so.
    while take_stopped().is_some() {}
    let (tell, started) = bounded(1);
    let child = thread::scope(|scope| {
        let start = move || {
            restore_mask();
            let _ = tell.send(start());
        };
        thread::Builder::new()
            .name("leasehold-start".into())
            .spawn_scoped(scope, start)?;
        loop {
            match started.recv_timeout(CHECK_EVERY) {
                Ok(child) => return child,
                Err(RecvTimeoutError::Timeout) => {
                    while let Some(stopped) = take_stopped() {
                        let _ = rustix::process::kill_process(stopped, Signal::CONT);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("the thread that starts it has panicked"));
                }
            }
        }
    });
    stops::end_unblocked();
    child
}

/// Returns a child that has been stopped since it was last asked for; consumes that stop.
#[cfg(target_os = "linux")]
fn take_stopped() -> Option<Pid> {
    use nix::sys::wait::waitid;

    match waitid(Id::All, WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG) {
        Ok(WaitStatus::Stopped(pid, _)) => Pid::from_raw(pid.as_raw()),
        _ => None,
    }
}

/// On macOS, `posix_spawn` is a system call that no signal to the child interrupts.
#[cfg(not(target_os = "linux"))]
fn take_stopped() -> Option<Pid> {
    None
}

/// Reaps the children that have ended, except these, whose exit status is still needed.
///
/// Processes that the command leaves behind become children of this process if it is their
/// subreaper, or if it is process 1 of a container.
#[cfg(target_os = "linux")]
pub(crate) fn reap_others(kept: &[Pid]) {
    use nix::sys::wait::waitid;

    let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
    loop {
        // The kernel reports the oldest child first. If that is a kept one, the others wait until
        // it has been reaped.
        let pid = match waitid(Id::All, ended | WaitPidFlag::WNOWAIT) {
            Ok(status) => status.pid().and_then(|pid| Pid::from_raw(pid.as_raw())),
            // `nix` knows no real-time signals, so it does not tell which child one has ended.
            Err(nix::Error::EINVAL) => return reap_listed(kept),
            Err(_) => None,
        };
        match pid {
            Some(pid) if !kept.contains(&pid) => reap(pid),
            _ => return,
        }
    }
}

/// Like [`reap_others`], for the children that `/proc` lists.
///
/// Without `/proc`, no child is listed. If `/proc` belongs to another PID namespace, the ids differ
/// from those here, and most belong to no child of this process.
#[cfg(target_os = "linux")]
fn reap_listed(kept: &[Pid]) {
    let threads = std::fs::read_dir("/proc/self/task");
    for thread in threads.into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let ids = children.split_whitespace().filter_map(|id| id.parse().ok());
        let children = ids.filter_map(Pid::from_raw);
        children.filter(|pid| !kept.contains(pid)).for_each(reap);
    }
}

/// Reaps a child if it has ended.
#[cfg(target_os = "linux")]
fn reap(child: Pid) {
    let _ = waitid(
        WaitId::Pid(child),
        WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
    );
}

/// Other systems have no subreaper.
#[cfg(not(target_os = "linux"))]
pub(crate) fn reap_others(_: &[Pid]) {}

/// Returns whether the child was continued after its last stop.
pub(crate) fn was_continued(child: Pid) -> bool {
    let continued = WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::Pid(child), continued), Ok(Some(_)))
}

/// What has happened to a child.
pub(crate) enum Change {
    Stopped(Signal),
    Ended,
}

/// Returns the next change of the child; `None` if there is none. The child is not reaped, so its
/// id stays valid.
pub(crate) fn next_change(child: &Child) -> Option<Change> {
    let (id, stopped) = (WaitId::Pid(Pid::from_child(child)), WaitIdOptions::STOPPED);
    loop {
        let any = WaitIdOptions::EXITED | stopped | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(id.clone(), any) {
            Err(Errno::INTR) => {}
            Ok(None) => return None,
            Ok(Some(status)) if status.stopped() => {
                // Consumes this stop: otherwise the next call would return it again.
                let _ = waitid(id.clone(), stopped | WaitIdOptions::NOHANG);
                let by = status.stopping_signal().and_then(Signal::from_named_raw);
                if let Some(by) = by {
                    return Some(Change::Stopped(by));
                }
            }
            _ => return Some(Change::Ended),
        }
    }
}
