//! The reason why a lease ended before its holder released it.

use std::fmt;

/// The reason why a lease ended before its holder released it.
///
/// [`Lease::lost`](crate::Lease::lost), `on_lost` and [`Error::Lost`](crate::Error::Lost) all
/// report the same reason: the one that was detected first. It never changes afterwards.
///
/// ```
/// use leasehold::Lost;
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
///
/// let guard = client.mutex("account:123").lock()?;
/// # server.lose("account:123");
/// match guard.lost().recv() {
///     Ok(Lost::MaxHold) => println!("the transfer took too long"),
///     Ok(lost) => println!("stop the transfer: {lost}"),
///     Err(_) => println!("released in time"),
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lost {
    /// The lease expired by the local clock. Another holder may have the lock.
    ///
    /// Renewal was off or did not reach Redis in time, or the process was paused.
    Expired,
    /// Redis replied that another holder has the lock.
    Taken,
    /// Redis replied that the lock is free. Another client may acquire it at any moment.
    ///
    /// The key was deleted, evicted or flushed, or it expired early.
    Deleted,
    /// The lock was held for [`max_hold`](crate::Mutex::max_hold).
    ///
    /// The key stays until the guard is dropped or the ttl ends, because the critical section may
    /// still run.
    MaxHold,
    /// The client was shut down while the lock was held.
    ///
    /// The client releases the lock if Redis is reachable.
    ShutDown,
    /// This process is a fork of the one that holds the lock. The parent may still hold it.
    ///
    /// Only calls in the child report it. A channel that [`Lease::lost`](crate::Lease::lost)
    /// returned before the fork receives nothing in the child.
    Forked,
    /// The holder has ended the lease of its guard by [`keep_for`](crate::Lease::keep_for).
    ///
    /// Only later calls on that guard report it.
    Kept,
}

impl std::error::Error for Lost {}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease expired",
            Self::Taken => "another holder has the lock",
            Self::Deleted => "the lock's key no longer exists in Redis",
            Self::MaxHold => "the lock was held for its max_hold",
            Self::ShutDown => "the client was shut down",
            Self::Forked => "this process is a fork of the one that holds the lock",
            Self::Kept => "its holder has left it to expire (keep_for)",
        })
    }
}
