//! When a waiting call tries again if nothing wakes it. No I/O, no clock.

use std::time::Duration;

use crate::clock::Instant;

/// Returns when to try again: at `regular`, or when the lock's key expires if that is earlier.
///
/// At `arrived`, a reply said that the key lasts for `remaining` longer; `None` if it does not
/// expire. The expiry makes no attempt due before `earliest`.
pub(crate) fn next_attempt(
    regular: Instant,
    arrived: Instant,
    remaining: Option<Duration>,
    earliest: Instant,
) -> Instant {
    // No message announces the expiry of a key. Redis rounds the remaining time down to whole ms.
    let expiry = remaining.map_or(Instant::NEVER, |remaining| {
        let rounded_up = remaining.saturating_add(Duration::from_millis(1));
        arrived.after(rounded_up)
    });
    expiry.max(earliest).min(regular)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expiry_of_the_key_is_awaited_if_it_is_earlier() {
        let at = |ms| Instant::START.after(Duration::from_millis(ms));
        let next = |remaining, earliest| next_attempt(at(100), at(20), remaining, at(earliest));
        assert_eq!(next(None, 0), at(100));
        assert_eq!(next(Some(Duration::from_millis(50)), 0), at(71));
        assert_eq!(next(Some(Duration::MAX), 0), at(100));
        assert_eq!(next(Some(Duration::ZERO), 30), at(30));
    }
}
