//! The signals to this process, received on a channel.

use std::collections::BTreeMap;
use std::io;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::{Receiver, unbounded};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::exit::by_signal;
use crate::stops;

/// The signals that this process forwards to the command.
pub(crate) const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// A signal that asks this process to end counts as one with those that follow it within this time:
/// a service manager may send it to this process, and to a parent that forwards it.
pub(crate) const ONE_SIGNAL: Duration = Duration::from_millis(250);

/// Returns whether the signal asks this process to end.
pub(crate) fn ends(signal: i32) -> bool {
    [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(&signal)
}

/// Catches signals and returns a channel that receives them. For TSTP, the channel may receive
/// several messages, also after a CONT: `stops` says whether a stop is pending.
///
/// Call it before another thread is started.
///
/// A signal that was ignored when this process started (`nohup`, a shell's `&`) stays ignored.
/// Only systems with `/proc` show which signals these are; on others, this process catches them as
/// well.
pub(crate) fn signals() -> io::Result<Receiver<i32>> {
    catch(None)
}

/// Returns whether this process is the first one of its PID namespace, for example of a container.
///
/// The kernel ignores a signal to such a process that it does not catch.
pub(crate) fn is_process_1() -> bool {
    process::id() == 1
}

/// Makes process 1 end at a signal, as the kernel ends any other process.
pub(crate) fn end_process_1_at_a_signal() -> io::Result<()> {
    if !is_process_1() {
        return Ok(());
    }
    let signals = signals()?;
    let end = move || {
        if let Some(signal) = signals.iter().find(|&signal| ends(signal)) {
            process::exit(by_signal(signal).into());
        }
    };
    thread::Builder::new()
        .name("leasehold-end".into())
        .spawn(end)?;
    Ok(())
}

/// Like [`signals`], and also receives SIGCHLD, even if it was ignored: while it is ignored, the
/// kernel discards the exit status of a child.
pub(crate) fn signals_and_children() -> io::Result<Receiver<i32>> {
    catch(Some(SIGCHLD))
}

fn catch(children: Option<i32>) -> io::Result<Receiver<i32>> {
    let ignored = ignored();
    let caught = |signal: i32| ignored & bit(signal) == 0;
    let (sender, receiver) = unbounded();
    if caught(SIGTSTP) {
        stops::catch(sender.clone())?;
    }
    let forwarded = FORWARDED.into_iter().filter(|&signal| caught(signal));
    let mut signals = Signals::new(forwarded.chain(children))?;
    let mut repeats = Repeats::default();
    let mut received = move |signal| {
        if repeats.is_repeat(signal, Instant::now()) {
            Ok(())
        } else {
            sender.send(signal)
        }
    };
    // Fails when this process no longer handles signals.
    let listen = move || signals.forever().try_for_each(&mut received);
    thread::Builder::new()
        .name("leasehold-signals".into())
        .spawn(listen)?;
    Ok(receiver)
}

/// Recognises signals that count as one.
#[derive(Default)]
struct Repeats(BTreeMap<i32, Instant>);

impl Repeats {
    /// Returns whether a signal that is received now repeats an earlier one.
    fn is_repeat(&mut self, signal: i32, now: Instant) -> bool {
        if !ends(signal) {
            return false;
        }
        let first = self.0.get(&signal);
        let repeats = first.is_some_and(|first| now.duration_since(*first) < ONE_SIGNAL);
        if !repeats {
            self.0.insert(signal, now);
        }
        repeats
    }
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
    fn repeats_of_a_signal_that_ends_this_process_count_as_one_for_a_while() {
        let began = Instant::now();
        let mut repeats = Repeats::default();
        for (signal, at, expected) in [
            (SIGTERM, 0, false),
            (SIGTERM, 249, true),
            (SIGINT, 249, false),
            (SIGUSR1, 249, false),
            (SIGUSR1, 249, false),
            (SIGTERM, 250, false),
            (SIGTERM, 499, true),
        ] {
            let now = began + Duration::from_millis(at);
            assert_eq!(repeats.is_repeat(signal, now), expected, "{signal} at {at}");
        }
    }

    #[test]
    fn ignored_signals_are_read_from_the_process_status() {
        let ignored = read("SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0\n");
        assert_eq!(ignored & bit(SIGHUP), 1);
        assert_eq!(ignored & bit(SIGTERM), 0);
        assert_eq!(read(""), 0);
    }
}
