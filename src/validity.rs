//! The validity of a lease: the part of its ttl for which it is certain.

use std::time::Duration;

/// Returns for how long a lease of `ttl` is certainly held.
///
/// That is `ttl` without 10 %, or without 1 % and 10 s if that is less, and without another 2 ms.
///
/// Redis measures the ttl by its wall clock, and this client by its own. A clock that is being set
/// right runs at another rate: by 8.3 % with chrony's default limit. From a ttl of 111 s on, the
/// margin allows for 10 s that the server's clock gains in one ttl. The 1 % is the
/// [drift of Redlock](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/), and
/// the 2 ms are for the resolution of Redis's expiry.
pub(crate) fn validity(ttl: Duration) -> Duration {
    let drift = (ttl / 10).min(ttl / 100 + Duration::from_secs(10));
    ttl.saturating_sub(drift + Duration::from_millis(2))
}
