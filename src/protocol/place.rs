//! The state of a waiter's place in a queue in Redis, and the message that grants it the lock.

use std::time::Duration;

use crate::holder::HolderId;
use crate::protocol::reply::{Reply, read_pttl};
use crate::token::FencingToken;

/// The state of a place that a refresh found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refreshed {
    /// Others hold the lock, or are ahead; its key lasts for this much longer, `None` if without
    /// end.
    Waiting(Option<Duration>),
    Granted(FencingToken),
    /// The place was removed, or its grant has expired.
    Gone,
}

impl Refreshed {
    /// Reads the reply to a refresh of this number of places; `None` if the script cannot give it.
    pub(super) fn read(reply: Reply, places: usize, is_shared: bool) -> Option<Vec<Self>> {
        let mut items = reply.into_list()?;
        let remaining = read_pttl(items.pop()?.int()?)?;
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
        is_possible.then_some(found)
    }
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

/// Reads a message published to an inbox, `grant <token> <want> <id>`; `None` if it is no grant. What
/// a [`Mutex`](crate::Mutex) wants has a plus sign.
pub(crate) fn read_grant(payload: &[u8]) -> Option<(HolderId, TokenBlock)> {
    let rest = payload.strip_prefix(b"grant ")?;
    let mut words = rest.splitn(3, |byte| *byte == b' ');
    let first = FencingToken::parse(words.next()?)?;
    let count = match words.next()? {
        // A reader has a single token, and so has a grant of permits, `<k>/<n>` of them.
        b"r" => 1,
        want if want.contains(&b'/') => 1,
        // The digits of a count are those of a token.
        want => FencingToken::parse(want.strip_prefix(b"+").unwrap_or(want))?.value(),
    };
    let last = first.value() + count - 1;
    FencingToken::read(i64::try_from(last).ok()?)?;
    let id = HolderId::parse(words.next()?)?;
    Some((id, TokenBlock { first, count }))
}

/// Reads a message published to an inbox, `refresh <id>`; `None` if it is another. The client of this
/// place must refresh it at once: the script that sent the message has left grants to the refresh.
pub(crate) fn read_refresh(payload: &[u8]) -> Option<HolderId> {
    HolderId::parse(payload.strip_prefix(b"refresh ")?)
}

/// Returns when a place entered the queue, in ms of the server's clock; `None` if an earlier version
/// of leasehold wrote the place.
///
/// The layout of a place is documented in `queue.lua`.
pub(crate) fn entered_ms(place: &[u8]) -> Option<u64> {
    let mut words = place.split(|byte| *byte == b' ');
    let (entered, mark) = (words.nth(3)?, words.next()?);
    let is_mark = matches!(mark, [letter] if letter.is_ascii_lowercase());
    let is_number = entered.iter().all(u8::is_ascii_digit);
    let entered = str::from_utf8(entered).ok()?.parse().ok()?;
    (is_mark && is_number).then_some(entered)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            Refreshed::read(reply, 3, false)
        };
        assert_eq!(
            read(&[0, 7, -1, 900]),
            Some(vec![
                Refreshed::Waiting(Some(Duration::from_millis(900))),
                Refreshed::Granted(FencingToken::new(7)),
                Refreshed::Gone
            ])
        );
        let endless = Refreshed::Waiting(None);
        assert_eq!(read(&[0, 0, 0, -1]), Some(vec![endless; 3]));
        assert_eq!(read(&[0, 0, -2, 900]), None);
        assert_eq!(read(&[0, 0, 0, -3]), None);
        assert_eq!(read(&[0, 0, 1 << 53, 900]), None);
        assert_eq!(read(&[0, 0, 0]), None, "one is missing");
        assert_eq!(read(&[7, 7, 0, 900]), None, "one lock has one holder");
        let reply = Reply::List([7, 8, 0, 900].map(Reply::Int).to_vec());
        assert!(Refreshed::read(reply, 3, true).is_some(), "two of several");
        assert_eq!(Refreshed::read(Reply::Int(1), 3, false), None);
    }

    #[test]
    fn a_place_has_its_time_of_entry_unless_it_is_of_an_earlier_version() {
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
