//! A running command: waits for its end, and ends it if the lock is lost.

use std::collections::VecDeque;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::Lost;
use leasehold::crossbeam_channel::{Receiver, after, at, never, select};
use rustix::process::{Pid, Signal};
use signal_hook::consts::SIGCHLD;

use crate::children::{Change, next_change, reap_others};
use crate::clock::{self, nap};
use crate::end_before::EndBefore;
use crate::exit::{self, Failure};
use crate::guard::Guard;
use crate::job::CommandJob;
use crate::message::say;
use crate::signals::ends;
use crate::stops;

/// The most time between two signals of one sender to this process and to the supervisor.
const TOGETHER: Duration = Duration::from_millis(50);

/// How soon after a signal the command must have ended for that to be the reason.
const FOR_THE_END: Duration = Duration::from_secs(10);

/// How often to check whether the processes that the command left behind have ended.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// How long to wait for processes to end after KILL. One that is left after that hangs in the
/// kernel, or runs as another user.
const AFTER_KILL: Duration = Duration::from_secs(2);

/// A running command, and the guard of the lock under which it runs.
pub(crate) struct Running<'a> {
    job: Box<dyn CommandJob>,
    command: Child,
    guard: &'a dyn Guard,
    limits: Limits,
    /// When to send KILL, if that is planned.
    kill_at: Option<Instant>,
    /// The signals to forward, and when to do so: by then the supervisor has received them, too, if
    /// they were sent to all processes.
    forwards: VecDeque<(Signal, Instant)>,
    /// When a signal last asked this process to end.
    signalled_at: Option<Instant>,
    end: End,
}

/// When this process ends its command while it holds the lock.
pub(crate) struct Limits {
    /// The time from TERM to KILL.
    pub(crate) kill_after: Duration,
    /// When the lock has been held for `--max-hold`.
    pub(crate) max_hold_at: Option<clock::Instant>,
    /// How much of the validity must be left (`--end-before`).
    pub(crate) end_before: Option<EndBefore>,
}

impl Limits {
    /// Returns whether the lock has been held for `--max-hold`; at most once.
    fn take_max_hold(&mut self) -> bool {
        let now = clock::Instant::now();
        self.max_hold_at.take_if(|at| *at <= now).is_some()
    }

    /// Returns when to check these limits again. A timer does not count the time for which the
    /// machine sleeps, and both limits do.
    fn next_check(&self) -> Option<Instant> {
        let max_hold = self
            .max_hold_at
            .map(|at| Instant::now() + nap(clock::Instant::now(), at));
        let end_before = self.end_before.as_ref().and_then(EndBefore::next_check);
        max_hold.into_iter().chain(end_before).min()
    }
}

/// How the command has ended.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// The exit code for it; `None` until it has ended.
    pub(crate) code: Option<u8>,
    /// The lock was lost before the command and its processes had ended.
    pub(crate) is_lost: bool,
    /// The exit code if this process has ended the command for a reason of its own, such as a
    /// limit. `None` if the lock was lost.
    pub(crate) ended_for: Option<u8>,
    /// A signal asked this process to end, at most [`FOR_THE_END`] before.
    pub(crate) signalled: bool,
}

impl<'a> Running<'a> {
    pub(crate) fn new(
        job: Box<dyn CommandJob>,
        command: Child,
        guard: &'a dyn Guard,
        limits: Limits,
    ) -> Self {
        Self {
            job,
            command,
            guard,
            limits,
            kill_at: None,
            forwards: VecDeque::new(),
            signalled_at: None,
            end: End::default(),
        }
    }

    /// Waits until the command and all its processes have ended.
    ///
    /// Ends the processes that still run with TERM, and `kill_after` later with KILL, as soon as
    ///
    /// - the command itself has ended,
    /// - the lock is lost,
    /// - the lock has been held for `--max-hold`,
    /// - less than `--end-before` is left of the lease: then KILL is sent at its end at the latest,
    /// - the supervisor has ended: if this process ended as well, the command would go on without
    ///   the lock, or
    /// - the command needs the terminal and does not have it.
    ///
    /// The lease is renewed until this returns, unless it is lost.
    pub(crate) fn until_the_end(mut self, signals: &Receiver<i32>) -> End {
        let mut lost = self.guard.lost();
        // The signal of an earlier change may have been received before the command started.
        self.children_changed();
        while !self.has_ended() {
            let check = self.next_check();
            select! {
                recv(lost) -> why => {
                    lost = never();
                    if let Ok(why) = why {
                        self.lost(why);
                    }
                }
                recv(signals) -> signal => match signal {
                    Ok(SIGCHLD) => self.children_changed(),
                    Ok(signal) => self.signalled(signal),
                    // The thread that receives the signals lives as long as this process.
                    Err(_) => {}
                },
                recv(check) -> _ => {}
            }
            self.forward_due(Instant::now());
            self.check_limits(Instant::now());
        }
        // A command may go on after a signal, such as a HUP that makes it read its files again.
        self.end.signalled = self
            .signalled_at
            .is_some_and(|at| at.elapsed() <= FOR_THE_END);
        self.end.signalled |= signals.try_iter().filter(|signal| ends(*signal)).count() > 0;
        // A Ctrl-Z that the command has handled must not stop this process before the release.
        stops::discard();
        self.end
    }

    /// Sends TERM or KILL to the remaining processes, if that is due. Returns true if the command
    /// has ended and no other process is left, except those that KILL does not end.
    fn has_ended(&mut self) -> bool {
        let command_has_ended = self.end.code.is_some();
        if command_has_ended {
            if self.job.is_empty() {
                return true;
            }
            if self.kill_at.is_none() {
                self.terminate();
            }
        }
        if self.kill_at.is_some_and(|at| Instant::now() >= at) {
            self.job.kill();
            if command_has_ended {
                self.wait_after_kill();
                return true;
            }
            self.kill_at = None;
        }
        false
    }

    fn next_check(&self) -> Receiver<Instant> {
        let forward_at = self.forwards.front().map(|(_, at)| *at);
        let next = [self.kill_at, forward_at, self.limits.next_check()];
        match next.into_iter().flatten().min() {
            _ if self.end.code.is_some() => after(CHECK_EVERY),
            Some(next) => at(next),
            None => never(),
        }
    }

    fn lost(&mut self, why: Lost) {
        self.end.is_lost = true;
        // The end of the lease is when `--end-before` kills the command. KILL may be planned for
        // later, by a clock that does not count the time for which the machine slept.
        if why == Lost::Expired && self.limits.end_before.is_some() {
            self.kill_at = Some(Instant::now());
        } else {
            self.terminate();
        }
        say(&format!("{why}; ending the command"));
    }

    /// Ends the command if it has reached a limit.
    fn check_limits(&mut self, now: Instant) {
        if self.limits.take_max_hold() {
            self.end_for(
                exit::TOO_LONG,
                "the lock was held for --max-hold; ending the command, and then releasing the lock",
            );
        }
        let guard = self.guard;
        let end_before = self.limits.end_before.as_mut();
        if let Some(end) = end_before.and_then(|limit| limit.reached(guard, now)) {
            self.end_for(
                exit::LOST,
                "Redis has not confirmed a renewal, and less than --end-before is left of the lease; \
                 ending the command",
            );
            // A later renewal does not change this: the command is being ended.
            self.kill_at = self.kill_at.map(|at| at.min(end));
        }
    }

    /// Ends the command for a reason with this exit code, unless it is being ended already.
    fn end_for(&mut self, code: u8, message: &str) {
        if self.kill_at.is_some() || self.end.ended_for.is_some() || self.end.is_lost {
            return;
        }
        self.terminate();
        // Otherwise only processes that the command has left behind still run.
        if self.end.code.is_none() {
            self.end.ended_for = Some(code);
            say(message);
        }
    }

    /// Handles a signal to this process. One that is forwarded must not delay the others, or the
    /// end of the command.
    fn signalled(&mut self, signal: i32) {
        if ends(signal) {
            self.signalled_at = Some(Instant::now());
        }
        match Signal::from_named_raw(signal) {
            Some(Signal::TSTP) => {
                let guard = self.guard;
                self.job.suspend(&|| guard.is_held());
            }
            Some(signal) => self.forwards.push_back((signal, Instant::now() + TOGETHER)),
            None => {}
        }
    }

    fn forward_due(&mut self, now: Instant) {
        while let Some((signal, _)) = self.forwards.front().filter(|(_, at)| *at <= now) {
            self.job.forward(*signal);
            self.forwards.pop_front();
        }
    }

    /// Sends TERM, and schedules KILL for `kill_after` from now unless it is scheduled already.
    fn terminate(&mut self) {
        self.job.terminate();
        self.kill_at
            .get_or_insert_with(|| Instant::now() + self.limits.kill_after);
    }

    /// Handles what has happened to the children.
    fn children_changed(&mut self) {
        while self.end.code.is_none() {
            match next_change(&self.command) {
                Some(Change::Stopped(by)) => self.stopped(by),
                Some(Change::Ended) => self.command_ended(),
                None => break,
            }
        }
        let is_watched_for = self.end.code.is_none() && self.end.ended_for.is_none();
        if is_watched_for && self.job.supervisor().has_ended() {
            self.end_for(
                exit::SYSTEM,
                "the supervisor process has ended, so the command is ended before the lock is free",
            );
        }
        let mut kept = vec![self.job.supervisor().id()];
        if self.end.code.is_none() {
            kept.push(Pid::from_child(&self.command));
        }
        reap_others(&kept);
    }

    fn command_ended(&mut self) {
        self.job.ended();
        self.end.code = Some(match self.command.wait() {
            Ok(status) => exit::code(status),
            Err(error) => Failure::system("cannot learn how the command ended", &error).print(),
        });
    }

    fn stopped(&mut self, by: Signal) {
        let guard = self.guard;
        if self.job.stopped(by, &|| guard.is_held()) {
            self.end_for(
                exit::USAGE,
                "the command needs the terminal, which it has only with --foreground; ending it",
            );
        }
    }

    /// Waits until the killed processes have ended, for at most [`AFTER_KILL`].
    fn wait_after_kill(&mut self) {
        let killed = Instant::now();
        while !self.job.is_empty() {
            if killed.elapsed() > AFTER_KILL {
                say("the command left processes behind that do not end after KILL");
                return;
            }
            thread::sleep(CHECK_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "testing")]
    use super::*;

    #[cfg(feature = "testing")]
    #[test]
    fn time_for_which_the_machine_sleeps_counts_for_max_hold() {
        let hour = Duration::from_secs(3_600);
        let mut limits = Limits {
            kill_after: Duration::ZERO,
            max_hold_at: Some(clock::Instant::now().after(hour)),
            end_before: None,
        };
        let soon = Instant::now() + clock::LONGEST_SLEEP * 2;
        assert!(limits.next_check().is_some_and(|at| at < soon));
        assert!(!limits.take_max_hold());
        clock::suspend(hour);
        assert!(limits.take_max_hold());
        assert_eq!(limits.next_check(), None);
    }
}
