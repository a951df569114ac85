//! `leasehold run`: runs a command under a lock.

use std::io;
use std::mem;

use leasehold::Error;
use leasehold::crossbeam_channel::Receiver;
use signal_hook::consts::SIGTSTP;

use crate::args::{ConnectionArgs, Run};
use crate::clock::Instant;
use crate::command::start;
use crate::end_before::{self, EndBefore};
use crate::exit::{self, Failure};
use crate::foreground::Foreground;
use crate::group::ProcessGroup;
use crate::guard::Guard;
use crate::job::CommandJob;
use crate::lock::take;
use crate::message::print_in_background;
use crate::release::{AlreadyLost, give_back, release};
use crate::running::{End, Limits, Running};
use crate::signals::{ends, signals_and_children};
use crate::stops::suspend;
use crate::wait::wait;

pub(crate) fn run(connection: &ConnectionArgs, args: &Run) -> Result<u8, Failure> {
    if args.max_hold.is_some_and(|most| most < args.min_hold) {
        return Err(Failure::new(
            exit::USAGE,
            "--max-hold is shorter than --min-hold",
        ));
    }
    args.command()?;
    let signals =
        signals_and_children().map_err(|error| Failure::system("cannot catch signals", &error))?;
    print_in_background().map_err(|error| Failure::system("cannot start a thread", &error))?;
    let mut builder = connection.builder()?;
    if let Some(least) = args.end_before {
        end_before::check(least, args.ttl)?;
    }
    if let Some(owner) = &args.owner {
        builder = builder.owner(owner);
    }
    let client = builder.build()?;
    let take = take(&client, args)?;
    let guard = match wait(&client, take, args, connection.unreachable_for, &signals) {
        Ok(guard) => guard,
        Err(failure) => {
            // Dropping the client would wait for a command without a reply, beyond --wait.
            mem::forget(client);
            return Err(failure);
        }
    };
    let granted = Instant::now();
    let end = match run_under(&*guard, args, granted, &signals) {
        Ok(end) => end,
        Err(NotStarted { failure, signalled }) => {
            give_back((client, guard), &signals, signalled);
            return Err(failure);
        }
    };
    if end.is_lost {
        give_back((client, guard), &signals, end.signalled);
        return Ok(exit::LOST);
    }
    let released = release(
        (client, guard),
        granted,
        args.min_hold,
        &signals,
        end.signalled,
    );
    Ok(match released {
        Err(AlreadyLost) => exit::LOST,
        Ok(()) => end
            .ended_for
            .or(end.code)
            .expect("`until_the_end` waits for the command"),
    })
}

/// Why the command was not started, and whether that was a signal.
struct NotStarted {
    failure: Failure,
    signalled: bool,
}

impl From<Failure> for NotStarted {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            signalled: false,
        }
    }
}

/// Runs the command under the lock until it has ended.
fn run_under(
    guard: &dyn Guard,
    args: &Run,
    granted: Instant,
    signals: &Receiver<i32>,
) -> Result<End, NotStarted> {
    let mut job = job(args)
        .map_err(|error| Failure::system("cannot start the supervisor process", &error))?;
    // May wait for Redis.
    let end_before = args.end_before.map(|least| EndBefore::new(least, guard));
    ensure_not_cancelled(signals).map_err(|failure| NotStarted {
        failure,
        signalled: true,
    })?;
    let end_before = end_before.transpose().map_err(not_started)?;
    // This process may have been stopped since the grant.
    guard.ensure_held().map_err(not_started)?;
    let limits = Limits {
        kill_after: args.kill_after,
        max_hold_at: args.max_hold.map(|longest| granted.after(longest)),
        end_before,
    };
    if limits.max_hold_at.is_some_and(|at| at <= Instant::now()) {
        let text = "the command was not started: the lock was already held for --max-hold";
        return Err(Failure::new(exit::TOO_LONG, text).into());
    }
    let command = start(&mut *job, guard, args)?;
    let running = Running::new(job, command, guard, limits);
    Ok(running.until_the_end(signals))
}

fn job(args: &Run) -> io::Result<Box<dyn CommandJob>> {
    Ok(if args.foreground {
        Box::new(Foreground::start()?)
    } else {
        Box::new(ProcessGroup::start()?)
    })
}

/// Returns an error if a signal asked this process to end after the grant.
///
/// With `--foreground`, an INT that arrives before the command starts would otherwise have no
/// effect: this process does not forward it, because the terminal sends it to a running command.
fn ensure_not_cancelled(signals: &Receiver<i32>) -> Result<(), Failure> {
    for signal in signals.try_iter() {
        match signal {
            signal if ends(signal) => return Err(Failure::new(exit::by_signal(signal), "")),
            SIGTSTP => suspend(),
            // USR1 and USR2 are meant for the command, which does not run yet.
            _ => {}
        }
    }
    Ok(())
}

/// Returns the failure of a command whose lock is not held before its start, or not renewed.
fn not_started(error: Error) -> Failure {
    let failure = match error {
        Error::Lost(_) => Failure::new(exit::LOST, error.to_string()),
        error => error.into(),
    };
    failure.of("the command was not started")
}

#[cfg(test)]
mod tests {
    use leasehold::Lost;
    use leasehold::crossbeam_channel::unbounded;
    use signal_hook::consts::{SIGINT, SIGUSR1};

    use super::*;

    #[test]
    fn command_is_not_started_if_the_lock_is_lost_or_not_renewed() {
        for (error, expected) in [
            (Lost::Expired.into(), 79),
            (Lost::Deleted.into(), 79),
            (Error::Closed, 77),
        ] {
            let text = format!("{error}");
            assert_eq!(not_started(error).print(), expected, "{text}");
        }
    }

    #[test]
    fn command_is_not_started_after_a_signal_that_ends_the_wait() {
        let (sender, signals) = unbounded();
        sender.send(SIGUSR1).unwrap();
        assert!(ensure_not_cancelled(&signals).is_ok());
        sender.send(SIGUSR1).unwrap();
        sender.send(SIGINT).unwrap();
        let outcome = ensure_not_cancelled(&signals);
        assert_eq!(outcome.err().map(Failure::print), Some(130));
    }
}
