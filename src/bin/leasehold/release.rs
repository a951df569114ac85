//! The release of the lock after the command.

use std::mem;
use std::thread;
use std::time::{self, Duration};

use leasehold::crossbeam_channel::Receiver;
use leasehold::{Client, Error, Lost};

use crate::background;
use crate::clock::Instant;
use crate::guard::Guard;
use crate::message::say;

/// The shortest valid ttl.
const SHORTEST: Duration = Duration::from_millis(10);

/// The pause between attempts to extend the lease for `--min-hold`.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// The lock was lost before its release, and a message says so.
#[derive(Debug)]
pub(crate) struct AlreadyLost;

/// Releases the lock, or leaves it in Redis for the rest of `min_hold`, as long as signals permit.
///
/// `signalled` means that a signal asked this process to end before this call. Returns an error if
/// the lock was lost before.
pub(crate) fn release(
    (client, guard): (Client, Box<dyn Guard>),
    granted: Instant,
    min_hold: Duration,
    signals: &Receiver<i32>,
    signalled: bool,
) -> Result<(), AlreadyLost> {
    if let Err(Error::Lost(lost)) = guard.ensure_held() {
        give_back((client, guard), signals, signalled);
        return Err(say_lost(lost));
    }
    let released = background::start("leasehold-release", move || {
        let released = release_or_keep(guard, granted, min_hold);
        // Waits for the requests that are under way.
        drop(client);
        released
    });
    let first = signalled.then(time::Instant::now);
    background::wait_for(&released, signals, first).unwrap_or_else(|| {
        // The lease was valid until the command ended, so the command has succeeded.
        let latest = if min_hold.is_zero() {
            "the ttl"
        } else {
            "the ttl or --min-hold"
        };
        say(&format!(
            "the release was not confirmed before a signal: the lock is free after {latest} at the \
             latest"
        ));
        Ok(())
    })
}

/// Drops the guard of a lost lock, or of a command that has not run, as long as signals permit.
pub(crate) fn give_back(
    (client, guard): (Client, Box<dyn Guard>),
    signals: &Receiver<i32>,
    signalled: bool,
) {
    let released = background::start("leasehold-release", move || {
        drop(guard);
        drop(client);
    });
    background::wait_for(&released, signals, signalled.then(time::Instant::now));
}

fn release_or_keep(
    guard: Box<dyn Guard>,
    granted: Instant,
    min_hold: Duration,
) -> Result<(), AlreadyLost> {
    // A request without a reply may have run: then the lease ends with the shorter ttl. The command
    // has ended before, under a valid lease, so an expiry from here on is no loss.
    let mut is_shortened = false;
    loop {
        let left = min_hold.saturating_sub(granted.until(Instant::now()));
        if left < SHORTEST {
            thread::sleep(left);
            return release_now(guard, is_shortened);
        }
        match guard.set_ttl(left) {
            Ok(()) => break,
            // The reply to this very request may arrive after the end of its ttl, too.
            Err(Error::Lost(lost @ Lost::Expired)) => {
                say_free_early(lost);
                break;
            }
            Err(Error::Lost(lost)) => return Err(say_lost(lost)),
            Err(error) => {
                if !mem::replace(&mut is_shortened, true) {
                    say(&format!(
                        "{error}; this process renews the lock until --min-hold is over"
                    ));
                }
                thread::sleep(ASK_AGAIN);
            }
        }
    }
    // Dropping the guard would release the lock.
    mem::forget(guard);
    Ok(())
}

fn release_now(guard: Box<dyn Guard>, is_shortened: bool) -> Result<(), AlreadyLost> {
    match guard.release() {
        Ok(()) => Ok(()),
        Err(Error::Lost(lost @ Lost::Expired)) if is_shortened => {
            say_free_early(lost);
            Ok(())
        }
        Err(Error::Lost(lost)) => Err(say_lost(lost)),
        Err(error @ Error::WrongType { .. }) => {
            say(&format!(
                "the lock was lost before the command ended: {error}"
            ));
            Err(AlreadyLost)
        }
        Err(error) => {
            // The lease was valid until the command ended, so the command has succeeded.
            say(&format!(
                "the release was not confirmed, the lock is free after the ttl at the latest: {error}"
            ));
            Ok(())
        }
    }
}

fn say_free_early(lost: Lost) {
    say(&format!(
        "the lock may be free before --min-hold is over: {lost}"
    ));
}

fn say_lost(lost: Lost) -> AlreadyLost {
    say(&format!(
        "the lock was lost before the command ended: {lost}"
    ));
    AlreadyLost
}
