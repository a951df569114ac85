//! The next action of a waiting call, which its queues decide. No I/O.

use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::parker::Parker;
use crate::protocol::place::TokenBlock;
use crate::queue::answers::Answers;

/// A queue, seen by one of the calls that wait in it.
///
/// A call can wait in several at once: in one of this client, and by a place in Redis. It asks them
/// in that order, and the first that does not let it contend decides. Once the call has a place,
/// that place decides, unless a lease was handed to the call.
pub(crate) trait Queue {
    /// Returns what the call must do at `now`.
    ///
    /// `must_try` asks for an attempt even if this client holds the name.
    fn position(&self, now: Instant, must_try: bool) -> Position;

    /// The parker on which the call sleeps.
    fn parker(&self) -> &Parker;

    /// Records that the call is about to ask Redis; returns whether other calls of this client wait
    /// in the queue.
    fn about_to_try(&self, now: Instant) -> bool;

    /// Returns what Redis last said about the name to any waiter of this client.
    fn answers(&self) -> Answers;

    fn update_answers(&self, act: &mut dyn FnMut(&mut Answers));
}

/// The next action of a waiting call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// Sleep: other calls of this client are ahead.
    Behind,
    /// Sleep: this client holds the name, so Redis would refuse.
    HeldLocally,
    /// Wait a moment: other clients go first.
    Yield,
    /// Ask Redis for the lock, or for a place in its queue.
    Contend,
    /// Sleep until then: the call has a place in Redis, and need not refresh it earlier.
    Placed(Instant),
    /// Refresh these places: all those of this client for the name.
    Refresh(Vec<HolderId>),
    /// Take the lease that was handed to the call.
    HandedOff,
    /// Take the lock that Redis granted to the place.
    Granted(Grant),
}

/// A lock that was granted to a waiting call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) id: HolderId,
    pub(crate) tokens: TokenBlock,
    /// An instant before the grant: the provisional lease is counted from then.
    pub(crate) seen_waiting: Instant,
    /// How often the place was refreshed: that says how long its grant lasts.
    pub(crate) refresh_every: Duration,
}

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
