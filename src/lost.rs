//! Why a lease ended without being released by its holder.

use std::fmt;

/// Why a lease ended before its holder released it.
///
/// Told by [`MutexGuard::lost`](crate::MutexGuard::lost), `on_lost`, [`Error::Lost`](crate::Error::Lost)
/// and [`Unlocked::AlreadyLost`](crate::Unlocked::AlreadyLost). Whoever sees a loss first decides
/// the reason; it never changes afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lost {
    /// The lease's time ran out by our own clock: renewal was off, or did not reach Redis in time,
    /// or the process was paused. Another holder may be at work.
    Expired,
    /// Redis says that another holder has the lock. Another holder is at work.
    Taken,
    /// Redis says that nobody has the lock: the key was deleted, evicted or flushed, or expired
    /// early. Another holder may come at any moment.
    Deleted,
    /// The lock was held for [`max_hold`](crate::Mutex::max_hold). The key is left to run out, so
    /// that nobody else comes in before the lease's own end.
    MaxHold,
    /// The client was shut down while the lock was held. It releases the lock, if Redis can be asked.
    ShutDown,
}

impl std::error::Error for Lost {}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease expired",
            Self::Taken => "another holder has taken the lock",
            Self::Deleted => "the lock's key is gone from Redis",
            Self::MaxHold => "the lock was held for max_hold",
            Self::ShutDown => "the client was shut down",
        })
    }
}
