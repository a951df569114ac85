//! `run --end-before`: ends the command before the lease can end.

use std::env;
use std::time::{Duration, Instant};

use leasehold::Error;

use crate::clock::LONGEST_SLEEP;
use crate::exit::{Failure, USAGE};
use crate::guard::Guard;
use crate::validity::validity;

/// The ttl of a client for which none is set.
const DEFAULT_TTL: Duration = Duration::from_secs(10);

/// The least time that must be left of the lease, and when that lease ends.
pub(crate) struct EndBefore {
    least: Duration,
    /// The end of the lease, as far as is known.
    end: Instant,
    checked_at: Instant,
    /// Less than the least time was left of the lease at a check.
    is_reached: bool,
}

impl EndBefore {
    /// Renews the lease if less than `least` is left of it: one that the queue has granted is short
    /// until its first renewal.
    pub(crate) fn new(least: Duration, guard: &dyn Guard) -> Result<Self, Error> {
        let remaining = || guard.remaining().unwrap_or_default();
        if remaining() < least {
            guard.renew()?;
        }
        let now = Instant::now();
        Ok(Self {
            least,
            end: now + remaining(),
            checked_at: now,
            is_reached: false,
        })
    }

    /// Returns when to look at the lease again; `None` if less than the least time was left.
    pub(crate) fn next_check(&self) -> Option<Instant> {
        if self.is_reached {
            return None;
        }
        let reached = self.end.checked_sub(self.least);
        let latest = self.checked_at + LONGEST_SLEEP;
        Some(reached.map_or(self.checked_at, |at| at.min(latest)))
    }

    /// Returns the end of the lease if less than the least time is left of it; at most once.
    pub(crate) fn reached(&mut self, guard: &dyn Guard, now: Instant) -> Option<Instant> {
        if self.is_reached {
            return None;
        }
        self.checked_at = now;
        // If the wall clock leaves the lease in doubt, its end is the last one that was known.
        if let Some(remaining) = guard.remaining() {
            self.end = now + remaining;
        }
        self.is_reached = self.end < now + self.least;
        self.is_reached.then_some(self.end)
    }
}

/// Returns an error if a lease of this ttl always reaches `least` before its first renewal.
///
/// Pass the ttl of `--ttl`; without it, the ttl is that of the environment.
pub(crate) fn check(least: Duration, ttl: Option<Duration>) -> Result<(), Failure> {
    let ttl = ttl.or_else(ttl_of_environment).unwrap_or(DEFAULT_TTL);
    let most = validity(ttl).saturating_sub(ttl / 3);
    if least < most {
        return Ok(());
    }
    Err(Failure::new(
        USAGE,
        format!(
            "--end-before must be shorter than {most:?} with a ttl of {ttl:?}: the lease is certain \
             for {:?}, and renewed after {:?}; set a longer --ttl",
            validity(ttl),
            ttl / 3
        ),
    ))
}

/// Returns the ttl that the environment sets. The client has checked the variable.
fn ttl_of_environment() -> Option<Duration> {
    let value = env::var("LOCK_TTL_MS").ok()?;
    let is_around = |c: char| c.is_whitespace() || ['"', '\''].contains(&c);
    let millis = value.trim_matches(is_around).parse().ok()?;
    Some(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_must_leave_room_for_a_renewal() {
        let secs = Duration::from_secs;
        // A lease of 30 s is certain for 26.998 s, and renewed after 10 s.
        assert!(check(Duration::from_millis(16_997), Some(secs(30))).is_ok());
        for time in [Duration::from_millis(16_998), secs(20), secs(40)] {
            let failure = check(time, Some(secs(30))).unwrap_err();
            assert_eq!(failure.print(), 64, "{time:?}");
        }
    }
}
