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
    let mut said = false;
    loop {
        let left = min_hold.saturating_sub(granted.elapsed());
        if left < SHORTEST {
            thread::sleep(left);
            break;
        }
        match guard.set_ttl(left) {
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
                            note("exiting before --min-hold ends: the lock is free after the ttl");
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

fn said_lost(lost: Lost) -> Lost {
    say(&format!(
        "the lock was lost before the command ended: {lost}"
    ));
    lost
}
