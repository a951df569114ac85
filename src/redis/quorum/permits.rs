//! How many calls may use the quorum at once.

use crate::clock::{Instant, nap};
use crate::error::Cause;
use crate::redis::conn::callers::Cap;
use crate::redis::fault::Fault;
use crate::sync::{Condvar, Mutex};

/// Limits the concurrent [`Cap::Counted`] calls. Each uses a connection to every server.
pub(super) struct Permits {
    left: Mutex<usize>,
    free: Condvar,
}

/// A permit for one call, returned when dropped.
pub(super) struct Permit<'a>(Option<&'a Permits>);

impl Permits {
    pub(super) fn new(most: usize) -> Self {
        Self {
            left: Mutex::new(most),
            free: Condvar::new(),
        }
    }

    pub(super) fn take(&self, cap_rule: Cap, until: Instant) -> Result<Permit<'_>, Fault> {
        if cap_rule == Cap::Exempt {
            return Ok(Permit(None));
        }
        let mut left = self.left.lock();
        while *left == 0 {
            let now = Instant::now();
            if now >= until {
                return Err(Fault::NotRun(Cause::of_client(
                    "all connections (max_connections) were in use",
                )));
            }
            self.free.wait_for(&mut left, nap(now, until));
        }
        *left -= 1;
        Ok(Permit(Some(self)))
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if let Some(permits) = self.0 {
            *permits.left.lock() += 1;
            permits.free.notify_one();
        }
    }
}
