//! `leasehold run`: runs a command under a lock.

use std::io::{self, IsTerminal};
use std::mem;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::{Receiver, after, bounded, never, select};
use leasehold::{Client, Error, Lost, Unlocked};
use rustix::process::Signal;
use signal_hook::consts::SIGTSTP;
use signal_hook::low_level::emulate_default_handler;

use crate::args::{Connection, Run, name};
use crate::exit::{self, Failure, say};
use crate::group::Group;
use crate::lease::{Lease, Lock};
use crate::signals::{ends, signals};

/// How often to check whether the processes that the command left behind have ended.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// How long to wait after KILL. A process that is left after that hangs in the kernel.
const DYING: Duration = Duration::from_secs(2);

/// How long a release may take after a signal.
const LEAVING: Duration = Duration::from_secs(1);

/// The shortest valid ttl.
const SHORTEST: Duration = Duration::from_millis(10);

/// The pause between attempts to extend the lease for `--min-hold`.
const ASK_AGAIN: Duration = Duration::from_millis(200);

pub(crate) fn run(connection: &Connection, args: &Run) -> Result<u8, Failure> {
    if args.max_hold.is_some_and(|most| most < args.min_hold) {
        return Err(Failure::new(
            exit::USAGE,
            "--max-hold is shorter than --min-hold",
        ));
    }
    let signals = signals().map_err(|error| Failure::system("cannot catch signals", &error))?;
    let mut builder = connection.builder()?;
    if let Some(owner) = &args.owner {
        builder = builder.owner(owner);
    }
    let client = builder.build()?;
    let guard = take(&client, Lock::of(&client, args), args, &signals)?;
    let granted = Instant::now();
    let group = Group::start()
        .map_err(|error| Failure::system("cannot start the supervisor process", &error))?;
    // On failure the guard is dropped, which frees the name at once: the command has not run.
    let command = start(&group, &guard, args)?;
    let running = Running {
        group,
        guard: &guard,
        kill_after: args.kill_after,
    };
    let status = running.until_the_end(command, &signals);
    let held = status.and_then(|status| {
        let_go(guard, granted, args.min_hold, &signals)?;
        Ok(status)
    });
    Ok(held.map_or_else(lost_code, exit::code))
}

/// Waits for the lock, and handles signals during the wait.
fn take(
    client: &Client,
    lock: Lock,
    args: &Run,
    signals: &Receiver<i32>,
) -> Result<Lease, Failure> {
    let (answer, answered) = bounded(1);
    let (wait, no_wait) = (args.wait, args.no_wait);
    let waiting = move || {
        let taken = match wait {
            _ if no_wait => lock.try_lock_for(Duration::ZERO),
            Some(limit) => lock.try_lock_for(limit),
            None => lock.lock().map(Some),
        };
        // After a signal the receiver is gone: dropping a guard that arrives then releases the
        // lock.
        let _ = answer.send(taken);
    };
    thread::Builder::new()
        .name("leasehold-wait".into())
        .spawn(waiting)
        .map_err(|error| Failure::system("cannot start a thread", &error))?;
    loop {
        select! {
            recv(answered) -> taken => {
                // The thread always sends a result, unless it has panicked and printed why.
                let taken = taken.unwrap_or(Err(Error::Closed))?;
                let name = name(&args.name);
                let held = || match args.permits {
                    None => format!("{name} is held by another holder"),
                    Some(_) => format!("no permit of {name} is free, or other calls wait for one"),
                };
                return taken.ok_or_else(|| Failure::new(args.not_acquired_exit, held()));
            }
            recv(signals) -> signal => match signal {
                Ok(signal) if ends(signal) => {
                    // Wakes the waiting thread, and undoes its attempt.
                    client.shutdown(LEAVING)?;
                    return Err(Failure::new(exit::by_signal(signal), ""));
                }
                Ok(SIGTSTP) => suspend(),
                _ => {}
            }
        }
    }
}

fn start(group: &Group, guard: &Lease, args: &Run) -> Result<Child, Failure> {
    let [program, arguments @ ..] = args.command.as_slice() else {
        return Err(Failure::new(exit::USAGE, "the command is missing"));
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LEASEHOLD_FENCING_TOKEN", guard.fencing_token().to_string())
        .env("LEASEHOLD_NAME", &args.name);
    if io::stdin().is_terminal() {
        // The command is in another process group than the shell's foreground job, so the terminal
        // would stop it with SIGTTIN when it reads.
        command.stdin(Stdio::null());
    }
    group.spawn(&mut command).map_err(|error| {
        let code = match error.kind() {
            io::ErrorKind::NotFound => exit::NOT_FOUND,
            _ => exit::CANNOT_RUN,
        };
        Failure::new(code, format!("cannot run {}: {error}", program.display()))
    })
}

/// A running command, with its lock.
struct Running<'a> {
    group: Group,
    guard: &'a Lease,
    kill_after: Duration,
}

impl Running<'_> {
    /// Waits until the command and all processes of its group have ended. Returns the command's
    /// exit status, or why the lock was lost.
    ///
    /// After the command itself, or after the loss of the lock, the group is ended: TERM first, and
    /// KILL after `kill_after`.
    fn until_the_end(
        mut self,
        mut command: Child,
        signals: &Receiver<i32>,
    ) -> Result<ExitStatus, Lost> {
        let (tell, mut ended) = bounded(1);
        thread::spawn(move || tell.send(command.wait()));
        let mut lost = self.guard.lost();
        let (mut loss, mut status) = (None, None);
        let mut kill_at = None;
        loop {
            if status.is_some() {
                if self.group.is_empty() {
                    break;
                }
                kill_at.get_or_insert_with(|| {
                    self.group.terminate();
                    Instant::now() + self.kill_after
                });
            }
            if kill_at.is_some_and(|at| Instant::now() >= at) {
                self.group.kill();
                if status.is_some() {
                    self.see_them_die();
                    break;
                }
                kill_at = None;
            }
            let check = match kill_at {
                _ if status.is_some() => after(CHECK_EVERY),
                Some(at) => after(at.saturating_duration_since(Instant::now())),
                None => never(),
            };
            select! {
                recv(ended) -> how => {
                    // `wait` fails only if other code has waited for the command already.
                    status = Some(how.ok().and_then(Result::ok).unwrap_or_default());
                    ended = never();
                }
                recv(lost) -> why => {
                    lost = never();
                    if let Ok(why) = why {
                        say(&format!("{why}; ending the command"));
                        loss = Some(why);
                        self.group.terminate();
                        kill_at.get_or_insert_with(|| Instant::now() + self.kill_after);
                    }
                }
                recv(signals) -> signal => {
                    if let Ok(signal) = signal {
                        self.pass_on(signal);
                    }
                }
                recv(check) -> _ => {}
            }
        }
        loss.map_or_else(|| Ok(status.unwrap_or_default()), Err)
    }

    fn pass_on(&self, signal: i32) {
        if signal == SIGTSTP {
            // The command must not run while this process is stopped and does not renew.
            self.group.signal(Signal::STOP);
            suspend();
            // After a loss, `terminate` continues the group.
            if self.guard.is_held() {
                self.group.signal(Signal::CONT);
            }
        } else if let Some(signal) = Signal::from_named_raw(signal) {
            self.group.signal(signal);
        }
    }

    fn see_them_die(&mut self) {
        let killed = Instant::now();
        while !self.group.is_empty() {
            if killed.elapsed() > DYING {
                say("the command left processes behind that do not end after KILL");
                return;
            }
            thread::sleep(CHECK_EVERY);
        }
    }
}

/// Stops this process until it gets CONT.
fn suspend() {
    // Fails only for signals without a default action.
    let _ = emulate_default_handler(SIGTSTP);
}

fn lost_code(lost: Lost) -> u8 {
    match lost {
        Lost::MaxHold => exit::TOO_LONG,
        _ => exit::LOST,
    }
}

/// Releases the lock, or leaves it in Redis for the rest of `min_hold`.
///
/// Returns an error if the lock was lost before.
fn let_go(
    guard: Lease,
    granted: Instant,
    min_hold: Duration,
    signals: &Receiver<i32>,
) -> Result<(), Lost> {
    let mut said = false;
    loop {
        let left = min_hold.saturating_sub(granted.elapsed());
        if left < SHORTEST {
            thread::sleep(left);
            break;
        }
        match guard.extend(left) {
            Ok(()) => {
                mem::forget(guard);
                return Ok(());
            }
            Err(Error::Lost(lost)) => return Err(said_lost(lost)),
            Err(error) => {
                if !mem::replace(&mut said, true) {
                    say(&format!(
                        "{error}; this process renews the lock until --min-hold is over"
                    ));
                }
                select! {
                    recv(signals) -> signal => {
                        if signal.is_ok_and(ends) {
                            say("exiting before --min-hold ends: the lock is free after the ttl");
                            mem::forget(guard);
                            return Ok(());
                        }
                    }
                    default(ASK_AGAIN) => {}
                }
            }
        }
    }
    match guard.release() {
        Ok(Unlocked::Released) => Ok(()),
        Ok(Unlocked::AlreadyLost(lost)) => Err(said_lost(lost)),
        Err(error) => {
            // The lock was held until the command ended, so the command has succeeded.
            say(&format!(
                "the release was not confirmed, the lock is free after the ttl: {error}"
            ));
            Ok(())
        }
    }
}

fn said_lost(lost: Lost) -> Lost {
    say(&format!(
        "the lock was lost before the command ended: {lost}"
    ));
    lost
}
