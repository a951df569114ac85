//! The fair lock: what it has in Redis beside the plain one, the calls of its scripts, and what their answers mean.

use std::slice;
use std::time::Duration;

use crate::holder::HolderId;
use crate::protocol::kind::{Keys, millis, sibling_key};
use crate::protocol::script::{Arg, Call, FAIR_ENTER, FAIR_REFRESH, Reply, Script};
use crate::token::FencingToken;

/// How long a grant lasts until its first renewal, and a place in the queue without a refresh, of a lock with a
/// longer ttl: what a waiter that has died costs the others.
const PROVISIONAL: Duration = Duration::from_secs(3);

/// Places are refreshed at least so often.
const REFRESH: Duration = Duration::from_secs(1);

/// How long a grant lasts until its first renewal, and a place in the queue without a refresh.
pub(crate) fn provisional(ttl: Duration) -> Duration {
    ttl.min(PROVISIONAL)
}

/// How long after one refresh the next is sent: a tenth sooner than it must be, for threads that wake late.
pub(crate) fn refresh_every(ttl: Duration) -> Duration {
    (ttl / 4).min(REFRESH) / 10 * 9
}

/// Where those who wait for a fair lock stand in Redis.
#[derive(Debug)]
pub(crate) struct QueueKeys {
    /// The fence, the queue, and the places in it.
    keys: [Vec<u8>; 3],
}

impl QueueKeys {
    pub(crate) fn new(lock: &[u8], fence: &[u8]) -> Self {
        Self {
            keys: [
                fence.to_vec(),
                sibling_key(lock, "queue"),
                sibling_key(lock, "places"),
            ],
        }
    }

    pub(crate) fn keys(&self) -> &[Vec<u8>] {
        &self.keys
    }

    /// Holder ids in their order.
    pub(crate) fn queue(&self) -> &[u8] {
        let [_, queue, _] = &self.keys;
        queue
    }

    pub(crate) fn call<'a>(
        &'a self,
        keys: &'a Keys,
        script: &'static Script,
        args: [Arg<'a>; 4],
    ) -> Call<'a> {
        Call {
            script,
            keys: keys.fair_keys(self),
            args,
            rest: &[],
            replicas: None,
            asking: false,
        }
    }

    /// Acquires, or else goes to the end of the queue, where grants are told to `inbox`; without one it does not wait.
    pub(crate) fn enter<'a>(
        &'a self,
        keys: &'a Keys,
        id: &'a HolderId,
        ttl: Duration,
        inbox: Option<&'a Vec<u8>>,
    ) -> Call<'a> {
        let args = [
            Arg::Bytes(id.as_str().as_bytes()),
            millis(ttl),
            Arg::Number(inbox.is_some().into()),
            Arg::Absent,
        ];
        Call {
            rest: inbox.map_or(&[], slice::from_ref),
            ..self.call(keys, &FAIR_ENTER, args)
        }
    }

    /// Keeps the places of `ids`; grants tell it to `inbox` from now on.
    pub(crate) fn refresh<'a>(
        &'a self,
        keys: &'a Keys,
        inbox: &'a [u8],
        ids: &'a [Vec<u8>],
    ) -> Call<'a> {
        let args = [Arg::Bytes(inbox), Arg::Absent, Arg::Absent, Arg::Absent];
        Call {
            rest: ids,
            ..self.call(keys, &FAIR_REFRESH, args)
        }
    }
}

/// What a refresh found of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refreshed {
    Waiting,
    Granted(FencingToken),
    /// It is gone, or its grant has lapsed.
    Gone,
}

impl Refreshed {
    /// Reads the reply to a refresh of this number of places; `None` for one that the script does not give.
    pub(crate) fn read(reply: &Reply, places: usize) -> Option<Vec<Self>> {
        let Reply::List(items) = reply else {
            return None;
        };
        if items.len() != places {
            return None;
        }
        let read = |item: &Reply| match item {
            Reply::Int(0) => Some(Self::Waiting),
            Reply::Int(-1) => Some(Self::Gone),
            Reply::Int(token) => FencingToken::read(*token).map(Self::Granted),
            _ => None,
        };
        let places: Vec<Self> = items.iter().map(read).collect::<Option<_>>()?;
        let granted = places
            .iter()
            .filter(|place| matches!(place, Self::Granted(_)));
        // One lock has one holder.
        (granted.count() < 2).then_some(places)
    }
}

/// Reads what was published to an inbox; `None` where it is no grant.
pub(crate) fn read_grant(payload: &[u8]) -> Option<(HolderId, FencingToken)> {
    let rest = payload.strip_prefix(b"grant ")?;
    let space = rest.iter().position(|byte| *byte == b' ')?;
    let (token, id) = rest.split_at(space);
    let token = FencingToken::parse(token)?;
    Some((HolderId::parse(id.get(1..)?)?, token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::slot::slot;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn smoke() {
        let id = HolderId::fresh("host/7 of ours");
        let payload = format!("grant 1700000000000000 {id}");
        let token = FencingToken::new(1_700_000_000_000_000);
        assert_eq!(read_grant(payload.as_bytes()), Some((id, token)));
        for payload in [
            &b"probe"[..],
            b"grant ",
            b"grant 7",
            b"grant x y:z",
            b"grant 0 o:123e4567-e89b-12d3-a456-426614174000",
            b"grant 9007199254740992 o:123e4567-e89b-12d3-a456-426614174000",
            b"\xff",
            b"",
        ] {
            assert_eq!(read_grant(payload), None);
        }
    }

    #[test]
    fn times() {
        assert_eq!(provisional(ms(10_000)), ms(3_000));
        assert_eq!(provisional(ms(500)), ms(500));
        assert_eq!(refresh_every(ms(10_000)), ms(900));
        assert_eq!(refresh_every(ms(400)), ms(90));
    }

    #[test]
    fn all_of_a_name_lies_in_one_slot() {
        for name in ["a", "{u1}:a", "a{b"] {
            let keys = Keys::new(name.into(), "lock:", "lock_release:").fair();
            let slots = keys.line().unwrap().keys().iter().map(|key| slot(key));
            assert!(
                slots.into_iter().all(|slot| slot == keys.key(0).slot()),
                "{name}"
            );
        }
        let keys = Keys::new("a".into(), "lock:", "r:").fair();
        assert_eq!(keys.line().unwrap().queue(), b"leasehold:queue:{lock:a}");
    }

    #[test]
    fn answers() {
        let read = |items: &[i64]| {
            let reply = Reply::List(items.iter().map(|n| Reply::Int(*n)).collect());
            Refreshed::read(&reply, 3)
        };
        assert_eq!(
            read(&[0, 7, -1]),
            Some(vec![
                Refreshed::Waiting,
                Refreshed::Granted(FencingToken::new(7)),
                Refreshed::Gone
            ])
        );
        assert_eq!(read(&[0, 0, -2]), None);
        assert_eq!(read(&[0, 0, 1 << 53]), None);
        assert_eq!(read(&[0, 0]), None, "one is missing");
        assert_eq!(read(&[7, 7, 0]), None, "one lock has one holder");
        assert_eq!(Refreshed::read(&Reply::Int(1), 3), None);
    }
}
