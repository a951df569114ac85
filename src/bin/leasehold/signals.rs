//! The signals to this process, received on a channel.

use std::io;
use std::thread;

use leasehold::crossbeam_channel::{Receiver, unbounded};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

const CAUGHT: [i32; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2];

/// Returns whether the signal asks this process to end.
pub(crate) fn ends(signal: i32) -> bool {
    [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(&signal)
}

/// Stops this process until it receives CONT.
pub(crate) fn suspend() {
    // Fails only for a signal that `signal_hook` does not know.
    let _ = emulate_default_handler(SIGTSTP);
}

/// Catches signals and returns a channel that receives them.
///
/// A signal that was ignored when this process started (`nohup`, a shell's `&`) stays ignored.
/// Only systems with `/proc` show which signals these are; on others, this process catches them as
/// well.
pub(crate) fn signals() -> io::Result<Receiver<i32>> {
    catch(None)
}

/// Like [`signals`], and also receives SIGCHLD, even if it was ignored: while it is ignored, the
/// kernel discards the exit status of a child.
pub(crate) fn signals_and_children() -> io::Result<Receiver<i32>> {
    catch(Some(SIGCHLD))
}

fn catch(children: Option<i32>) -> io::Result<Receiver<i32>> {
    let ignored = ignored();
    let caught = CAUGHT.into_iter();
    let caught = caught.filter(|&signal| ignored & bit(signal) == 0);
    let mut signals = Signals::new(caught.chain(children))?;
    let (sender, receiver) = unbounded();
    let listen = move || signals.forever().try_for_each(|signal| sender.send(signal));
    thread::Builder::new()
        .name("leasehold-signals".into())
        .spawn(listen)?;
    Ok(receiver)
}

/// Returns the ignored signals, one bit for each; none on systems without `/proc`.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    read(&status)
}

fn read(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_process_status() {
        let ignored = read("SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0\n");
        assert_eq!(ignored & bit(SIGHUP), 1);
        assert_eq!(ignored & bit(SIGTERM), 0);
        assert_eq!(read(""), 0);
    }
}
