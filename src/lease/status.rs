//! The status of a lease, and the next action that is due for it.

use std::time::Duration;

use crate::clock::Instant;
use crate::lost::Lost;

/// A renewal that is due within this time is sent early, with one that is due now.
///
/// With a ttl below 2 s, the time is a twentieth of the ttl. The first renewal of a lease that a
/// queue in Redis granted is never sent early.
pub(crate) const RENEWAL_WINDOW: Duration = Duration::from_millis(100);

/// The delay of the first renewal of a lease that a queue in Redis granted.
///
/// An earlier renewal would compete with the new holder for the CPU and the server. Most such
/// leases are released before the renewal is due.
pub(crate) const FIRST_RENEWAL_AFTER: Duration = Duration::from_millis(3);

/// The status of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseStatus {
    /// Certainly held for this long from now.
    Held(Duration),
    /// Held, but it may be over by the wall clock, until a renewal is confirmed.
    InDoubt,
    Lost(Lost),
    /// Released, or being released, by its holder.
    Released,
}

/// The next action for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Send a renewal.
    Renewal,
    /// Nothing before `best`. An engine that sleeps may do so until `latest`.
    At { best: Instant, latest: Instant },
    /// Nothing: the lease is lost, released or being released.
    Nothing,
}

/// A request to Redis to renew a lease, or only to check it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RenewalRequest {
    /// The ttl to set. If `renews` is false, one that the key has, as far as the client knows.
    pub(crate) ttl: Duration,
    /// If false, the command only checks that the client still holds the lease, and changes
    /// nothing.
    pub(crate) renews: bool,
}
