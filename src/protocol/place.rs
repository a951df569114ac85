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
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_place_is_refreshed_three_times_within_its_provisional_time() {
        assert_eq!(provisional(ms(10_000)), ms(3_000));
        assert_eq!(provisional(ms(500)), ms(500));
        assert_eq!(refresh_every(ms(10_000)), ms(900));
        assert_eq!(refresh_every(ms(400)), ms(90));
        for ttl in [10, 11, 400, 2_999, 3_000, 3_999, 4_000, 10_000].map(ms) {
            let lasts = provisional_of(refresh_every(ttl));
            assert!(
                lasts <= provisional(ttl) && lasts + ms(1) > provisional(ttl),
                "{ttl:?}"
            );
        }
    }

    #[test]
    fn only_a_grant_is_read_from_an_inbox() {
        let id = HolderId::fresh("host/7 of ours");
        let payload = format!("grant 1700000000000000 33 {id}");
        let tokens = TokenBlock {
            first: FencingToken::new(1_700_000_000_000_000),
            count: 33,
        };
        assert_eq!(read_grant(payload.as_bytes()), Some((id.clone(), tokens)));
        let token = TokenBlock::one(FencingToken::new(7));
        let payload = format!("grant 7 r {id}");
        assert_eq!(read_grant(payload.as_bytes()), Some((id, token)));
        let id = HolderId::fresh("3 host/7");
        let payload = format!("grant 7 3/10 {id}");
        let token = TokenBlock::one(FencingToken::new(7));
        assert_eq!(read_grant(payload.as_bytes()), Some((id, token)));
        for payload in [
            &b"probe"[..],
            b"grant ",
            b"grant 7",
            b"grant 7 1",
            b"grant x 1 y:z",
            b"grant 7 o:123e4567-e89b-12d3-a456-426614174000",
            b"grant 7 0 o:123e4567-e89b-12d3-a456-426614174000",
            b"grant 0 1 o:123e4567-e89b-12d3-a456-426614174000",
            b"grant 9007199254740992 1 o:123e4567-e89b-12d3-a456-426614174000",
            b"grant 9007199254740991 2 o:123e4567-e89b-12d3-a456-426614174000",
            b"\xff",
            b"",
        ] {
            assert_eq!(read_grant(payload), None);
        }
    }

    #[test]
    fn only_a_plain_release_names_the_first_place() {
        let first = HolderId::fresh("7 of ours");
        for waiting in [1, 100] {
            let payload = format!("next {waiting} {}", first.as_str());
            let first = Some(first.clone());
            assert_eq!(read_next(payload.as_bytes()), Some(Next { first, waiting }));
        }
        let foreign = Next {
            first: None,
            waiting: 1,
        };
        assert_eq!(read_next(b"next 1 foreign"), Some(foreign));
        let id = "o:123e4567-e89b-12d3-a456-426614174000";
        for payload in ["", "next", "next ", "next 1", "next 1 ", id] {
            assert_eq!(read_next(payload.as_bytes()), None, "{payload}");
        }
        for number in ["0", "101", "+1", "-1", "", "x", "1.5", "99999999999"] {
            let payload = format!("next {number} {id}");
            assert_eq!(read_next(payload.as_bytes()), None, "{payload}");
        }
    }

    #[test]
    fn refresh_of_a_place_is_no_grant() {
        let id = HolderId::fresh("3 host/7");
        let payload = format!("refresh {id}");
        assert_eq!(read_refresh(payload.as_bytes()), Some(id.clone()));
        assert_eq!(read_grant(payload.as_bytes()), None);
        for payload in [
            format!("grant 7 3/10 {id}"),
            "refresh x".into(),
            "refresh".into(),
        ] {
            assert_eq!(read_refresh(payload.as_bytes()), None, "{payload}");
        }
    }

    #[test]
    fn each_place_has_its_state_and_one_lock_one_holder() {
        let read = |items: &[i64]| {
            let reply = Reply::List(items.iter().map(|n| Reply::Int(*n)).collect());
            Some(Refreshed::read(reply, 3, false)?.0)
        };
        assert_eq!(
            read(&[0, 7, -1, 900, -1]),
            Some(vec![
                Refreshed::Waiting(Some(Duration::from_millis(900))),
                Refreshed::Granted(FencingToken::new(7)),
                Refreshed::Gone
            ])
        );
        let endless = Refreshed::Waiting(None);
        assert_eq!(read(&[0, 0, 0, -1, 5]), Some(vec![endless; 3]));
        assert_eq!(read(&[0, 0, -2, 900, 5]), None);
        assert_eq!(read(&[0, 0, 0, -3, 5]), None);
        assert_eq!(read(&[0, 0, 1 << 53, 900, 5]), None);
        assert_eq!(read(&[0, 0, 0, 5]), None, "one is missing");
        assert_eq!(read(&[7, 7, 0, 900, 5]), None, "one lock has one holder");
        let reply = Reply::List([7, 8, 0, 900, 5].map(Reply::Int).to_vec());
        assert!(Refreshed::read(reply, 3, true).is_some(), "two of several");
        assert_eq!(Refreshed::read(Reply::Int(1), 3, false), None);
    }

    #[test]
    fn a_refresh_says_who_holds_the_lock() {
        let read = |last: &[Reply]| {
            let items = [Reply::Int(0), Reply::Int(900)].into_iter();
            let reply = Reply::List(items.chain(last.iter().cloned()).collect());
            Some(Refreshed::read(reply, 1, false)?.1)
        };
        let refusal = |holder: &str, detail| RefusedName {
            name: 0,
            holder: holder.into(),
            remaining: Some(ms(900)),
            detail,
        };
        let holder = Reply::Text(b"v".to_vec());
        assert_eq!(read(&[Reply::Int(4)]), Some(refusal("", Some(4))));
        assert_eq!(
            read(&[Reply::Int(-1), holder.clone()]),
            Some(refusal("v", None))
        );
        assert_eq!(read(&[holder]), None);
    }

    #[test]
    fn a_place_has_its_time_of_entry_unless_it_is_malformed() {
        let entered = |place: &str| entered_ms(place.as_bytes());
        let inbox = "leasehold:inbox:123e4567-e89b-12d3-a456-426614174000";
        assert_eq!(entered(&format!("17 3000 1 12 l {inbox}")), Some(12));
        assert_eq!(entered("17 3000 2/3 12 a "), Some(12));
        for other in ["", "17 3000 ", "17 3000 1 +12 l x", "17 3000 1 x l x"] {
            assert_eq!(entered(other), None, "{other}");
        }
        assert_eq!(entered(&format!("17 3000 {inbox}")), None);
    }
}
