//! The command in this process's own group, where it can use the terminal.

use std::fs::File;
use std::io;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::children::{start_child, was_continued};
use crate::job::{CommandJob, report};
use crate::process_group::signal_command;
use crate::stops::{self, suspend};
use crate::supervisor::Supervisor;

/// If the command is stopped by STOP within this time after Ctrl-Z, it has handled the key and
/// stopped itself.
const AFTER_KEY: Duration = Duration::from_secs(1);

/// For how long the messages about one stop arrive. A stop is pending for at most 2 s.
const ONE_STOP: Duration = Duration::from_millis(2_500);

/// A command that keeps the terminal. It starts in the group of this process and of its pipeline,
/// so this process signals and ends only the command itself. If the command has made itself the
/// leader of another group, this process signals and ends that whole group.
pub(crate) struct Foreground {
    /// Kills the command if this process is killed. The supervisor learns of the command some µs
    /// after its start. If this process is killed in between, the command goes on.
    supervisor: Supervisor,
    command: Option<Pid>,
    /// Whether keys such as Ctrl-C signal the command directly. Without a terminal, this process
    /// forwards their signals.
    has_terminal: bool,
    /// When this process got TSTP, which Ctrl-Z sends to the whole group, if neither has been
    /// suspended because of it.
    key_at: Option<Instant>,
    /// The last stop of the command was by STOP, and this process has not suspended itself since.
    /// If it gets TSTP after that, it assumes that the command stopped itself because of Ctrl-Z.
    is_stopped_by_stop: bool,
}

impl Foreground {
    /// Starts the supervisor.
    pub(crate) fn start() -> io::Result<Self> {
        Ok(Self {
            supervisor: Supervisor::start()?,
            command: None,
            has_terminal: File::open("/dev/tty").is_ok(),
            key_at: None,
            is_stopped_by_stop: false,
        })
    }

    fn signal(&self, signal: Signal) {
        let Some(command) = self.command else {
            return;
        };
        // The command has not been waited for, so its process id is not another process's.
        report(signal_command(command, signal), signal);
    }

    fn is_after_key(&self) -> bool {
        self.key_at.is_some_and(|at| at.elapsed() < AFTER_KEY)
    }

    /// Stops this process as well as the command, so that the shell sees its job as stopped. When
    /// the job is continued, continues the command if the lock is still held.
    fn suspend_both(&mut self, is_held: &dyn Fn() -> bool) {
        let was_asked = self.is_after_key();
        self.key_at = None;
        self.is_stopped_by_stop = false;
        if stops::is_pending() {
            suspend();
        } else if !was_asked {
            // Something has stopped only the command.
            let is_over = || self.command.is_none_or(was_continued);
            stops::suspend_unless(is_over);
        }
        // If this process was asked to stop, and that is not pending, it was continued before the
        // command has stopped.
        if is_held() {
            self.signal(Signal::CONT);
        }
    }
}

impl CommandJob for Foreground {
    fn spawn(&mut self, command: &mut Command) -> io::Result<Child> {
        let command = start_child(|| command.spawn())?;
        self.command = Some(Pid::from_child(&command));
        self.supervisor.watch(self.command);
        Ok(command)
    }

    fn forward(&mut self, signal: Signal) {
        // Keys reach the command without this process. A second signal would do harm: some programs
        // save their work after the first INT, and give that up after the second.
        let is_key = [Signal::INT, Signal::QUIT].contains(&signal);
        let is_from_the_terminal = self.has_terminal && is_key;
        if !is_from_the_terminal && !self.supervisor.has_received(signal) {
            self.signal(signal);
        }
    }

    fn suspend(&mut self, is_held: &dyn Fn() -> bool) {
        // The stop stays pending until the command has stopped: a CONT can take it back until then.
        if self.key_at.is_some_and(|at| at.elapsed() < ONE_STOP) {
            return;
        }
        if !self.has_terminal {
            if stops::is_pending() {
                self.key_at = Some(Instant::now());
                self.signal(Signal::TSTP);
            }
            return;
        }
        // The key has stopped the command, too. A second TSTP could arrive when the command is
        // continued already, and stop it again.
        self.key_at = Some(Instant::now());
        if self.is_stopped_by_stop {
            self.suspend_both(is_held);
        }
    }

    fn stopped(&mut self, by: Signal, is_held: &dyn Fn() -> bool) -> bool {
        // A program that handles Ctrl-Z stops itself with STOP. If nobody pressed Ctrl-Z,
        // another process has stopped the command, and will continue it.
        self.is_stopped_by_stop = by == Signal::STOP;
        let by_key = self.is_after_key() || stops::is_pending();
        if !self.is_stopped_by_stop || by_key {
            self.suspend_both(is_held);
        }
        false
    }

    fn terminate(&self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    fn kill(&mut self) {
        self.signal(Signal::KILL);
    }

    fn ended(&mut self) {
        self.command = None;
        self.supervisor.watch(None);
    }

    fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    fn is_empty(&mut self) -> bool {
        true
    }
}
