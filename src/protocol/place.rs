//! A waiter's place in a queue in Redis: its state, how long it lasts, and the message that grants
//! it the lock.

use std::time::Duration;

use crate::holder_id::HolderId;
use crate::protocol::refusal::{RefusedName, read_detail};
use crate::protocol::reply::{Reply, read_digits, read_pttl};
use crate::token::FencingToken;

/// How long, at most, a grant lasts without a renewal, and a place without a refresh. A waiter that
/// died delays the others for at most this long.
const PROVISIONAL: Duration = Duration::from_secs(3);

/// The longest time between two refreshes of a place.
const REFRESH: Duration = Duration::from_millis(900);

/// The state of a place that a refresh found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refreshed {
    /// Others hold the lock, or are ahead in its queue. Contains the time until the lock expires or
    /// the first permits end: zero if nobody holds, `None` if the lock does not expire.
    Waiting(Option<Duration>),
    Granted(FencingToken),
    /// The place was removed, or its grant has expired.
    Gone,
}

impl Refreshed {
    /// Reads the reply to a refresh of this number of places; `None` if the script cannot give it.
    ///
    /// Also returns what those that wait are refused by.
    pub(super) fn read(
        reply: Reply,
        places: usize,
        is_shared: bool,
    ) -> Option<(Vec<Self>, RefusedName)> {
        let mut items = reply.into_list()?;
        let last = items.pop()?;
        let (holder, detail) = match last {
            Reply::Text(holder) => (holder, items.pop()?),
            // Nobody holds it, or it is a semaphore.
            detail => (Vec::new(), detail),
        };
        let remaining = read_pttl(items.pop()?.int()?)?;
        let refusal = RefusedName {
            name: 0,
            holder,
            remaining,
            detail: read_detail(&detail)?,
        };
        let read = |item: &Reply| match item.int()? {
            0 => Some(Self::Waiting(remaining)),
            -1 => Some(Self::Gone),
            token => FencingToken::read(token).map(Self::Granted),
        };
        let found: Vec<Self> = items.iter().map(read).collect::<Option<_>>()?;
        let granted = found
            .iter()
            .filter(|place| matches!(place, Self::Granted(_)));
        let is_possible = found.len() == places && (is_shared || granted.count() < 2);
        is_possible.then_some((found, refusal))
    }
}

/// How long a grant lasts until its first renewal, and a place in the queue without a refresh.
pub(crate) fn provisional(ttl: Duration) -> Duration {
    ttl.min(PROVISIONAL)
}

/// How long after one refresh the next is sent: after a quarter of the ttl, less a tenth for
/// threads that wake late; at most [`REFRESH`].
pub(crate) fn refresh_every(ttl: Duration) -> Duration {
    (ttl / 40 * 9).min(REFRESH)
}

/// Returns how long a grant lasts if its place is refreshed this often: no longer than
/// [`provisional`] of its ttl.
pub(crate) fn provisional_of(refresh_every: Duration) -> Duration {
    provisional(refresh_every / 9 * 10 * 4)
}

/// Consecutive fencing tokens of one grant: hand-offs use those after the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenBlock {
    pub(crate) first: FencingToken,
    pub(crate) count: u64,
}

impl TokenBlock {
    pub(crate) fn one(first: FencingToken) -> Self {
        Self { first, count: 1 }
    }
}

/// Reads a message published to an inbox, `grant <token> <want> <id>`; `None` if it is no grant.
/// The want of a [`Mutex`](crate::Mutex) has a plus sign.
pub(crate) fn read_grant(payload: &[u8]) -> Option<(HolderId, TokenBlock)> {
    let rest = payload.strip_prefix(b"grant ")?;
    let mut words = rest.splitn(3, |byte| *byte == b' ');
    let first = FencingToken::parse(words.next()?)?;
    let count = match words.next()? {
        // A reader has a single token, and so has a grant of permits, `<k>/<n>` of them.
        b"r" => 1,
        want if want.contains(&b'/') => 1,
        // A count has the form of a token.
        want => FencingToken::parse(want.strip_prefix(b"+").unwrap_or(want))?.value(),
    };
    let last = first.value() + count - 1;
    FencingToken::read(i64::try_from(last).ok()?)?;
    let id = HolderId::parse(words.next()?)?;
    Some((id, TokenBlock { first, count }))
}

/// Reads a message published to an inbox, `refresh <id>`; `None` for any other message.
///
/// The client of this place must refresh it at once: the script that sent the message has left
/// grants to the refresh.
pub(crate) fn read_refresh(payload: &[u8]) -> Option<HolderId> {
    HolderId::parse(payload.strip_prefix(b"refresh ")?)
}

/// The message of a plain release.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Next {
    /// The place whose client must ask for the lock before the others; `None` if its id is not one
    /// of this crate's.
    pub(crate) first: Option<HolderId>,
    /// How many of the first 100 places count.
    pub(crate) waiting: u32,
}

/// Reads the message of a plain release, `next <waiting> <id>`; `None` for any other message.
pub(crate) fn read_next(payload: &[u8]) -> Option<Next> {
    let mut words = payload
        .strip_prefix(b"next ")?
        .splitn(2, |byte| *byte == b' ');
    let waiting = read_digits(words.next()?)?;
    let id = words.next().filter(|id| !id.is_empty())?;
    (1..=100).contains(&waiting).then(|| Next {
        first: HolderId::parse(id),
        waiting,
    })
}

/// Returns when a place entered the queue, in ms of the server's clock; `None` if the place is
/// malformed.
///
/// The layout of a place is documented in `queue.lua`.
pub(crate) fn entered_ms(place: &[u8]) -> Option<u64> {
    let mut words = place.split(|byte| *byte == b' ');
    let (entered, mark) = (words.nth(3)?, words.next()?);
    let is_mark = matches!(mark, [letter] if letter.is_ascii_lowercase());
    read_digits(entered).filter(|_| is_mark)
}

#[cfg(test)]
mod tests;
