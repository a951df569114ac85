//! The release of the lock after the command.

use std::mem;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::{Receiver, select};
use leasehold::{Error, Lost, Unlocked};

use crate::guard::Guard;
use crate::message::{note, say};
use crate::signals::ends;

/// The shortest valid ttl.
const SHORTEST: Duration = Duration::from_millis(10);

/// The pause between attempts to extend the lease for `--min-hold`.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Releases the lock, or leaves it in Redis for the rest of `min_hold`.
///
/// Returns an error if the lock was lost before.
pub(crate) fn release(
    guard: Box<dyn Guard>,
    granted: Instant,
    min_hold: Duration,
    signals: &Receiver<i32>,
) -> Result<(), Lost> {
    if let Err(Error::Lost(lost)) = guard.ensure_held() {
        return Err(said_lost(lost));
    }
    // A request without a reply may have run: then the lease ends with the shorter ttl. The command
    // has ended before, under a valid lease, so an expiry from here on is no loss.
    let mut is_shortened = false;
    loop {
        let left = min_hold.saturating_sub(granted.elapsed());
        if left < SHORTEST {
            thread::sleep(left);
            return release_now(guard, is_shortened);
        }
        match guard.set_ttl(left) {
            Ok(()) => break,
            // The reply to this very request may arrive after the end of its ttl, too.
            Err(Error::Lost(lost @ (Lost::Expired | Lost::MaxHold))) => {
                say_free_early(lost);
                break;
            }
            Err(Error::Lost(lost)) => return Err(said_lost(lost)),
            Err(error) => {
                if !mem::replace(&mut is_shortened, true) {
                    say(&format!(
                        "{error}; this process renews the lock until --min-hold is over"
                    ));
                }
                select! {
                    recv(signals) -> signal => {
                        if signal.is_ok_and(ends) {
                            note("exiting before --min-hold ends: the lock is free after the ttl");
                            break;
                        }
                    }
                    default(ASK_AGAIN) => {}
                }
            }
        }
    }
    // Dropping the guard would release the lock.
    mem::forget(guard);
    Ok(())
}

fn release_now(guard: Box<dyn Guard>, is_shortened: bool) -> Result<(), Lost> {
    match guard.release() {
        Ok(Unlocked::Released) => Ok(()),
        Ok(Unlocked::AlreadyLost(lost @ (Lost::Expired | Lost::MaxHold))) if is_shortened => {
            say_free_early(lost);
            Ok(())
        }
        Ok(Unlocked::AlreadyLost(lost)) => Err(said_lost(lost)),
        Err(error @ Error::WrongType { .. }) => {
            say(&format!(
                "the lock was lost before the command ended: {error}"
            ));
            Err(Lost::Taken)
        }
        Err(error) => {
            // The lease was valid until the command ended, so the command has succeeded.
            say(&format!(
                "the release was not confirmed, the lock is free after the ttl: {error}"
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

fn said_lost(lost: Lost) -> Lost {
    say(&format!(
        "the lock was lost before the command ended: {lost}"
    ));
    lost
}
