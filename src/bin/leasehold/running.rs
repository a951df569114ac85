//! A running command: waits for its end, and ends it if the lock is lost.

use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::Lost;
use leasehold::crossbeam_channel::{Receiver, Sender, after, bounded, never, select};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

use crate::exit::{self, Failure};
use crate::guard::Guard;
use crate::job::CommandJob;
use crate::message::say;
use crate::signals::ends;

/// How often to check whether the processes that the command left behind have ended.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// How long to wait for processes to end after KILL. One that is left after that hangs in the
/// kernel, or runs as another user.
const AFTER_KILL: Duration = Duration::from_secs(2);

/// A running command, and the guard of the lock under which it runs.
pub(crate) struct Running<'a> {
    job: Box<dyn CommandJob>,
    command: Child,
    /// Receives the signals that stop the command, and closes when it has ended.
    events: Receiver<Signal>,
    guard: &'a dyn Guard,
    /// The time from TERM to KILL.
    kill_after: Duration,
    /// When to send KILL, if TERM was sent and KILL was not.
    kill_at: Option<Instant>,
    end: End,
}

/// How the command has ended.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// The exit code for it; `None` until it has ended.
    pub(crate) code: Option<u8>,
    /// Why the lock was lost before the command and its processes had ended, if it was.
    pub(crate) lost: Option<Lost>,
    /// The command was terminated because it needed the terminal.
    pub(crate) needed_terminal: bool,
    /// A signal asked this process to end.
    pub(crate) signalled: bool,
}

impl<'a> Running<'a> {
    pub(crate) fn new(
        job: Box<dyn CommandJob>,
        command: Child,
        watcher: Watcher,
        guard: &'a dyn Guard,
        kill_after: Duration,
    ) -> Self {
        Self {
            job,
            events: watcher.watch(&command),
            command,
            guard,
            kill_after,
            kill_at: None,
            end: End::default(),
        }
    }

    /// Waits until the command and all its processes have ended.
    ///
    /// Ends the processes that still run with TERM, and `kill_after` later with KILL, as soon as
    ///
    /// - the command itself has ended,
    /// - the lock is lost, or
    /// - the command needs the terminal and does not have it.
    pub(crate) fn until_the_end(mut self, signals: &Receiver<i32>) -> End {
        let mut events = self.events.clone();
        let mut lost = self.guard.lost();
        while !self.has_ended() {
            let check = self.next_check();
            select! {
                recv(events) -> event => match event {
                    Ok(stopped) => self.stopped(stopped),
                    Err(_) => {
                        events = never();
                        self.job.ended();
                        self.end.code = Some(match self.command.wait() {
                            Ok(status) => exit::code(status),
                            Err(error) => {
                                Failure::system("cannot learn how the command ended", &error)
                                    .print()
                            }
                        });
                    }
                },
                recv(lost) -> why => {
                    lost = never();
                    if let Ok(why) = why {
                        self.end.lost = Some(why);
                        self.terminate();
                        say(&format!("{why}; ending the command"));
                    }
                }
                recv(signals) -> signal => {
                    self.end.signalled |= signal.is_ok_and(ends);
                    if let Some(signal) = signal.ok().and_then(Signal::from_named_raw) {
                        let guard = self.guard;
                        self.job.forward(signal, &|| guard.is_held());
                    }
                }
                recv(check) -> _ => {}
            }
        }
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
        match self.kill_at {
            _ if self.end.code.is_some() => after(CHECK_EVERY),
            Some(at) => after(at.saturating_duration_since(Instant::now())),
            None => never(),
        }
    }

    /// Sends TERM, and schedules KILL for `kill_after` from now unless it is scheduled already.
    fn terminate(&mut self) {
        self.job.terminate();
        self.kill_at
            .get_or_insert_with(|| Instant::now() + self.kill_after);
    }

    fn stopped(&mut self, by: Signal) {
        let guard = self.guard;
        if self.job.stopped(by, &|| guard.is_held()) && self.kill_at.is_none() {
            self.end.needed_terminal = true;
            self.terminate();
            say("the command needs the terminal, which it has only with --foreground; ending it");
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

/// The thread that waits for the command.
///
/// It is started before the command. Without a free thread the run then fails before the command
/// has run.
pub(crate) struct Watcher {
    command: Sender<Pid>,
    events: Receiver<Signal>,
}

impl Watcher {
    pub(crate) fn start() -> Result<Self, Failure> {
        let (command, started) = bounded(1);
        let (tell, events) = bounded(1);
        let watch = move || {
            // Fails if the command is not started.
            if let Ok(command) = started.recv() {
                while watch_once(command, &tell) {}
            }
        };
        thread::Builder::new()
            .name("leasehold-watch".into())
            .spawn(watch)
            .map_err(|error| Failure::system("cannot start a thread", &error))?;
        Ok(Self { command, events })
    }

    /// Returns a channel that receives the signals that stop the command, and closes when it has
    /// ended.
    fn watch(self, command: &Child) -> Receiver<Signal> {
        // Succeeds: the thread waits for this.
        let _ = self.command.send(Pid::from_child(command));
        self.events
    }
}

/// Waits until the process is stopped or has ended; returns false if it has ended. The process is
/// not reaped, so its id stays valid.
fn watch_once(process: Pid, tell: &Sender<Signal>) -> bool {
    let (id, stopped) = (WaitId::Pid(process), WaitIdOptions::STOPPED);
    match waitid(
        id.clone(),
        WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | stopped,
    ) {
        Err(Errno::INTR) => true,
        Ok(Some(status)) if status.stopped() => {
            // Consumes this stop: otherwise the next wait would report it again.
            let _ = waitid(id, stopped | WaitIdOptions::NOHANG);
            let by = status.stopping_signal();
            let by = by.and_then(Signal::from_named_raw);
            by.is_none_or(|by| tell.send(by).is_ok())
        }
        _ => false,
    }
}
