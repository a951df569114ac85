//! The plain lock, of one name or of several: its keys in Redis, the calls of its scripts, and what their answers mean.

use std::fmt;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::holder::{Holder, HolderId};
use crate::name::{Name, shown};
use crate::protocol::expected::Wanted;
use crate::protocol::fair::QueueKeys;
use crate::protocol::one_or_many::OneOrMany;
use crate::protocol::script::{
    ACQUIRE, ACQUIRE_ALL, Arg, Call, FAIR_RELEASE, FAIR_UNDO, INSPECT, PROPOSE, PROPOSE_ALL,
    RELEASE, RELEASE_ALL, RENEW, RENEW_ALL, Reply, Script, UNDO,
};
use crate::protocol::slot::{hash_tag, slot};
use crate::token::FencingToken;

/// The names that are locked together, mostly one, and what belongs to each in Redis, in one order.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) names: OneOrMany<Name>,
    locks: OneOrMany<Vec<u8>>,
    fences: OneOrMany<Vec<u8>>,
    channels: OneOrMany<Vec<u8>>,
    /// Where those who wait for it stand, if it is a fair one; such a lock has one name.
    line: Option<Box<QueueKeys>>,
    /// Those of each slot apart, where they are in several slots of a cluster.
    parts: Vec<Arc<Self>>,
}

/// One name of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    pub(crate) name: &'a Name,
    lock: &'a [u8],
    pub(crate) channel: &'a [u8],
}

/// What an acquiring command came to.
#[derive(Debug, PartialEq)]
pub(crate) enum Acquired {
    /// With a token for each name, or one for all of them.
    Granted(OneOrMany<FencingToken>),
    Refused(Refusal),
    /// The fencing token that was proposed is not above this one.
    TooLow(u64),
    /// Of several servers some granted it and some did not, and nobody has a majority of them.
    Split,
}

/// Somebody else holds a name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    /// Which of those that were asked for.
    pub(crate) name: usize,
    /// What its key holds.
    pub(crate) holder: Vec<u8>,
    /// For so long, `None` without an end.
    pub(crate) remaining: Option<Duration>,
}

/// What a call about a lease found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyState {
    Ours,
    Gone,
    Foreign,
}

impl Key<'_> {
    /// Its slot, were it kept in a cluster.
    pub(crate) fn slot(self) -> u16 {
        slot(self.lock)
    }
}

impl Keys {
    pub(crate) fn new(name: Name, key_prefix: &str, channel_prefix: &str) -> Self {
        let lock = [key_prefix.as_bytes(), name.as_bytes()].concat();
        let channel = [channel_prefix.as_bytes(), name.as_bytes()].concat();
        Self {
            fences: OneOrMany::One(sibling_key(&lock, "fence")),
            locks: OneOrMany::One(lock),
            channels: OneOrMany::One(channel),
            names: OneOrMany::One(name),
            line: None,
            parts: Vec::new(),
        }
    }

    /// Those of a fair lock.
    pub(crate) fn fair(self) -> Self {
        let line = QueueKeys::new(&self.locks[0], self.fence());
        Self {
            line: Some(Box::new(line)),
            ..self
        }
    }

    /// What a fair lock has beside a plain one.
    pub(crate) fn line(&self) -> Option<&QueueKeys> {
        self.line.as_deref()
    }

    /// Of a fair lock: the lock's key and the others that its scripts are about.
    pub(crate) fn fair_keys<'a>(&'a self, line: &'a QueueKeys) -> [&'a [Vec<u8>]; 2] {
        [&self.locks, line.keys()]
    }

    /// Sorts the names, so that all who take several of them do so in one order.
    pub(crate) fn all(mut names: Vec<Name>, key_prefix: &str, channel_prefix: &str) -> Self {
        names.sort_unstable();
        names.dedup();
        let each = names
            .into_iter()
            .map(|name| Self::new(name, key_prefix, channel_prefix));
        Self::of(&each.collect::<Vec<_>>())
    }

    fn of(each: &[Self]) -> Self {
        let all = |part: fn(&Self) -> &OneOrMany<Vec<u8>>| {
            let all = each.iter().flat_map(|keys| part(keys).iter());
            all.cloned().collect()
        };
        let names = each.iter().flat_map(|keys| keys.names.iter());
        Self {
            names: names.cloned().collect(),
            locks: all(|keys| &keys.locks),
            fences: all(|keys| &keys.fences),
            channels: all(|keys| &keys.channels),
            line: None,
            parts: Vec::new(),
        }
    }

    /// For a cluster: in the order of their slots, and those of each slot apart.
    pub(crate) fn by_slot(self) -> Self {
        let one = |n: usize| {
            let one = |several: &OneOrMany<Vec<u8>>| several.get(n).cloned().map(OneOrMany::One);
            Some(Self {
                names: OneOrMany::One(self.names.get(n)?.clone()),
                locks: one(&self.locks)?,
                fences: one(&self.fences)?,
                channels: one(&self.channels)?,
                line: None,
                parts: Vec::new(),
            })
        };
        let mut each: Vec<Self> = (0..self.names.len()).filter_map(one).collect();
        each.sort_by_key(|keys| keys.key(0).slot());
        let same = |a: &Self, b: &Self| a.key(0).slot() == b.key(0).slot();
        let parts: Vec<_> = each
            .chunk_by(same)
            .map(|part| Arc::new(Self::of(part)))
            .collect();
        if parts.len() < 2 {
            return self;
        }
        Self {
            parts,
            ..Self::of(&each)
        }
    }

    /// What one script can be about: all of them, but in a cluster those of each slot.
    pub(crate) fn parts(self: &Arc<Self>) -> &[Arc<Self>] {
        if self.parts.is_empty() {
            slice::from_ref(self)
        } else {
            &self.parts
        }
    }

    /// The n-th of them, which must be there.
    pub(crate) fn key(&self, n: usize) -> Key<'_> {
        Key {
            name: &self.names[n],
            lock: &self.locks[n],
            channel: &self.channels[n],
        }
    }

    /// Where the last fencing token of the first of them is kept.
    pub(crate) fn fence(&self) -> &[u8] {
        &self.fences[0]
    }

    /// Errors when no lock can have these names.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.names.is_empty() {
            return Err(Error::Config(
                "mutex_all was given no name: a lock of nothing would be everybody's".into(),
            ));
        }
        for (name, lock) in self.names.iter().zip(&*self.locks) {
            name.check()?;
            if lock.starts_with(b"leasehold:") {
                return Err(Error::Config(format!(
                    "the key {} would be one of leasehold's own: take another name or key_prefix",
                    shown(lock)
                )));
            }
        }
        Ok(())
    }

    /// Errors when no cluster can keep one of these names: its keys would be in different slots.
    pub(crate) fn check_slots(&self) -> Result<(), Error> {
        let mut apart = self.locks.iter().zip(&*self.fences).zip(&*self.names);
        match apart.find(|((lock, fence), _)| slot(lock) != slot(fence)) {
            None => Ok(()),
            Some((_, name)) => Err(Error::Config(format!(
                "the keys of {name} would be in different slots of the cluster: take the }} out of the name, or \
                 begin it with a hash tag such as {{x}}"
            ))),
        }
    }

    /// For one name exactly its own script, for several that for all of them.
    fn call<'a>(&'a self, scripts: [&'static Script; 2], args: [Arg<'a>; 4]) -> Call<'a> {
        let [one, all] = scripts;
        Call {
            script: if self.names.len() == 1 { one } else { all },
            keys: [&self.locks, &[]],
            args,
            rest: &[],
            replicas: None,
            asking: false,
        }
    }

    /// Reserves `block` tokens for one name, and one for each of several.
    pub(crate) fn acquire<'a>(&'a self, id: &'a HolderId, ttl: Duration, block: u64) -> Call<'a> {
        if let Some(line) = self.line() {
            return line.enter(self, id, ttl, None);
        }
        let reserved = match block {
            // The script takes it for granted: most acquires need no more bytes.
            0 | 1 => Arg::Absent,
            several => Arg::Number(several),
        };
        let args = [
            Arg::Bytes(id.as_str().as_bytes()),
            millis(ttl),
            reserved,
            Arg::Absent,
        ];
        Call {
            keys: [&self.locks, &self.fences],
            ..self.call([&ACQUIRE, &ACQUIRE_ALL], args)
        }
    }

    /// Acquires on one server of a quorum, under a token of the client's own, and reserves `block` of
    /// them for one name.
    pub(crate) fn propose<'a>(
        &'a self,
        id: &'a HolderId,
        ttl: Duration,
        token: u64,
        block: u64,
    ) -> Call<'a> {
        let reserved = match block {
            0 | 1 => Arg::Absent,
            several => Arg::Number(token.saturating_add(several - 1)),
        };
        let args = [
            Arg::Bytes(id.as_str().as_bytes()),
            millis(ttl),
            Arg::Number(token),
            reserved,
        ];
        Call {
            keys: [&self.locks, &self.fences],
            ..self.call([&PROPOSE, &PROPOSE_ALL], args)
        }
    }

    /// Also leaves the queue of a fair lock.
    pub(crate) fn release<'a>(&'a self, value: &'a [u8]) -> Call<'a> {
        let args = [Arg::Bytes(value), Arg::Absent, Arg::Absent, Arg::Absent];
        if let Some(line) = self.line() {
            return Call {
                rest: &self.channels,
                ..line.call(self, &FAIR_RELEASE, args)
            };
        }
        Call {
            rest: &self.channels,
            ..self.call([&RELEASE, &RELEASE_ALL], args)
        }
    }

    /// Releases whatever one of several holder ids holds, and takes all of them out of the queue of a fair lock.
    pub(crate) fn undo<'a>(&'a self, arguments: &'a [Vec<u8>]) -> Call<'a> {
        if let Some(line) = self.line() {
            return Call {
                rest: arguments,
                ..line.call(self, &FAIR_UNDO, Default::default())
            };
        }
        Call {
            rest: arguments,
            ..self.call([&UNDO, &UNDO], Default::default())
        }
    }

    /// The arguments of [`undo`](Self::undo).
    pub(crate) fn undo_arguments(&self, ids: &[&HolderId]) -> Vec<Vec<u8>> {
        let channels = self.channels.iter().cloned();
        let ids = ids.iter().map(|id| id.as_str().into());
        channels.chain(ids).collect()
    }

    /// Releases one name, and asks how many clients hear of it.
    pub(crate) fn release_and_ask<'a>(&'a self, id: &'a HolderId) -> Call<'a> {
        let args = [
            Arg::Bytes(id.as_str().as_bytes()),
            Arg::Bytes(&self.channels[0]),
            Arg::Number(1),
            Arg::Absent,
        ];
        self.call([&RELEASE, &RELEASE_ALL], args)
    }

    /// Sets the ttl; makes it shorter only when `may_shorten`.
    pub(crate) fn renew<'a>(
        &'a self,
        id: &'a HolderId,
        ttl: Duration,
        may_shorten: bool,
    ) -> Call<'a> {
        let args = [
            Arg::Bytes(id.as_str().as_bytes()),
            millis(ttl),
            Arg::Number(may_shorten.into()),
            Arg::Absent,
        ];
        self.call([&RENEW, &RENEW_ALL], args)
    }

    /// Of one name.
    pub(crate) fn inspect(&self) -> Call<'_> {
        Call {
            keys: [&self.locks, &self.fences],
            ..self.call([&INSPECT, &INSPECT], Default::default())
        }
    }
}

/// For people: there may be a thousand.
impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.names {
            [] => f.write_str("nothing"),
            [name] => name.fmt(f),
            [first, second] => write!(f, "{first} and {second}"),
            [first, second, more @ ..] => write!(f, "{first}, {second} and {} more", more.len()),
        }
    }
}

impl Acquired {
    /// Reads the reply to an acquiring call; `None` for one that no such script gives.
    pub(crate) fn read(reply: &Reply, wanted: Wanted) -> Option<Self> {
        let Reply::List(items) = reply else {
            return None;
        };
        match items.as_slice() {
            [Reply::Int(1), tokens @ ..] if tokens.len() == wanted.tokens => {
                let tokens = tokens.iter().map(|token| read_token(token, wanted));
                Some(Self::Granted(tokens.collect::<Option<_>>()?))
            }
            [Reply::Int(0), holder, Reply::Int(ttl), which @ ..] => Some(Self::Refused(Refusal {
                name: match which {
                    [] if wanted.names == 1 => 0,
                    [Reply::Int(n)] => {
                        let name = usize::try_from(n.checked_sub(1)?).ok()?;
                        Some(name).filter(|name| *name < wanted.names)?
                    }
                    _ => return None,
                },
                holder: match holder {
                    Reply::Text(holder) => holder.clone(),
                    // A key that ran out within the script's own millisecond has no value any more.
                    Reply::Nil => Vec::new(),
                    _ => return None,
                },
                remaining: remaining(*ttl)?,
            })),
            [Reply::Int(2), Reply::Int(last)] => {
                let last = FencingToken::read(*last)?.value();
                (last >= wanted.proposed?).then_some(Self::TooLow(last))
            }
            [Reply::Int(3)] => Some(Self::Split),
            _ => None,
        }
    }
}

fn read_token(token: &Reply, wanted: Wanted) -> Option<FencingToken> {
    let Reply::Int(token) = token else {
        return None;
    };
    let first = FencingToken::read(*token)?;
    // Hand-offs count up to it.
    FencingToken::read(token.checked_add_unsigned(wanted.reserved)?)?;
    let is_ours = wanted.proposed.is_none_or(|token| token == first.value());
    is_ours.then_some(first)
}

impl KeyState {
    /// Reads the reply to a call about a lease; `None` for one that no such script gives.
    pub(crate) fn read(reply: &Reply) -> Option<Self> {
        match reply {
            Reply::Int(1) => Some(Self::Ours),
            Reply::List(items) => match items.as_slice() {
                // With the number of clients that were told of the release.
                [Reply::Int(1), Reply::Int(0..)] => Some(Self::Ours),
                _ => None,
            },
            Reply::Int(0) => Some(Self::Gone),
            Reply::Text(_) => Some(Self::Foreign),
            _ => None,
        }
    }
}

/// What the undo of several holder ids found.
#[derive(Debug, PartialEq)]
pub(crate) struct Undone {
    /// Which of them, from 0, held the lock or waited for it until now.
    pub(crate) removed: Vec<usize>,
    /// Somebody else holds the lock: its key's value.
    pub(crate) other: Option<Vec<u8>>,
}

impl Undone {
    /// Reads the answer about so many `ids`; one alone was sent as a release.
    pub(crate) fn read(reply: &Reply, ids: usize) -> Option<Self> {
        let other = |first: &Reply| match first {
            Reply::Int(0) => Some(None),
            Reply::Text(value) => Some(Some(value.clone())),
            _ => None,
        };
        if ids == 1 {
            let is_ours = KeyState::read(reply)? == KeyState::Ours;
            return Some(Self {
                removed: if is_ours { vec![0] } else { Vec::new() },
                other: if is_ours { None } else { other(reply)? },
            });
        }
        let Reply::List(items) = reply else {
            return None;
        };
        let (first, numbers) = items.split_first()?;
        let index = |number: &Reply| match number {
            Reply::Int(n) => usize::try_from(*n).ok()?.checked_sub(1),
            _ => None,
        };
        let removed = numbers.iter().map(|n| index(n).filter(|n| *n < ids));
        Some(Self {
            removed: removed.collect::<Option<_>>()?,
            other: other(first)?,
        })
    }
}

/// Reads an inspection: `Some(None)` where nobody holds the lock, `None` for a reply that the script
/// does not give.
pub(crate) fn read_holder(reply: &Reply) -> Option<Option<Holder>> {
    let items = match reply {
        Reply::Nil => return Some(None),
        Reply::List(items) => items,
        _ => return None,
    };
    let [Reply::Text(value), Reply::Int(ttl), token] = items.as_slice() else {
        return None;
    };
    let token = match token {
        Reply::Nil => None,
        // Somebody else may have written anything.
        Reply::Text(digits) => FencingToken::parse(digits),
        _ => return None,
    };
    Some(Some(Holder::new(value.clone(), remaining(*ttl)?, token)))
}

/// Reads PTTL's answer: -1 is a key without an end, -2 one that has just gone.
#[expect(
    clippy::option_option,
    reason = "a key may have no end, and a number may be no answer"
)]
fn remaining(pttl: i64) -> Option<Option<Duration>> {
    match pttl {
        -1 => Some(None),
        -2 => Some(Some(Duration::ZERO)),
        left => Some(Some(Duration::from_millis(left.try_into().ok()?))),
    }
}

/// Whole milliseconds, upwards: validity is counted from the ttl asked for, so Redis may keep the
/// key longer but not shorter.
pub(crate) fn millis(ttl: Duration) -> Arg<'static> {
    // A ttl that was checked fits.
    Arg::Number(u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

/// Another key of the same name. It lies in the lock key's cluster slot, and it is no other name's
/// lock key, since no lock key begins with `leasehold:`.
pub(crate) fn sibling_key(lock: &[u8], what: &str) -> Vec<u8> {
    let what = what.as_bytes();
    if hash_tag(lock).is_some() {
        [b"leasehold:", what, b":", lock].concat()
    } else {
        [b"leasehold:", what, b":{", lock, b"}"].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(name: &str) -> Keys {
        Keys::new(name.into(), "lock:", "lock_release:")
    }

    #[test]
    fn smoke() {
        let keys = keys("a");
        assert_eq!(*keys.locks, [b"lock:a".to_vec()]);
        assert_eq!(*keys.fences, [b"leasehold:fence:{lock:a}".to_vec()]);
        assert_eq!(*keys.channels, [b"lock_release:a".to_vec()]);
    }

    #[test]
    fn several_names_are_sorted_and_each_is_there_once() {
        let all = |names: &[&str]| {
            let names = names.iter().map(|name| Name::from(*name)).collect();
            Keys::all(names, "lock:", "r:")
        };
        let keys = all(&["b", "c", "a", "b"]);
        assert_eq!(*keys.names, ["a", "b", "c"].map(Name::from));
        assert_eq!(keys.locks[2], b"lock:c");
        assert_eq!(keys.to_string(), "a, b and 1 more");
        assert_eq!(all(&["b", "a"]).to_string(), "a and b");
        assert!(matches!(all(&["a", "a"]).names, OneOrMany::One(_)));
        let error = all(&[]).check().unwrap_err().to_string();
        assert!(error.contains("no name"), "{error}");
        assert!(all(&["a", ""]).check().is_err());
    }

    #[test]
    fn in_a_cluster_those_of_each_slot_are_apart() {
        let names = ["{x}1", "a", "b", "{x}2"].map(Name::from).to_vec();
        let keys = Arc::new(Keys::all(names, "lock:", "r:").by_slot());
        let slots: Vec<u16> = (0..4).map(|n| keys.key(n).slot()).collect();
        assert!(slots.is_sorted());
        assert_eq!(keys.parts().len(), 3);
        let parts = keys.parts().iter().flat_map(|part| part.names.iter());
        assert!(parts.eq(keys.names.iter()), "in the same order");
        let one_slot = ["{x}1", "{x}2"].map(Name::from).to_vec();
        let keys = Arc::new(Keys::all(one_slot, "lock:", "r:").by_slot());
        assert_eq!(keys.parts().len(), 1);
    }

    #[test]
    fn a_hash_tag_of_the_name_is_kept() {
        assert_eq!(keys("{u1}:a").fences[0], b"leasehold:fence:lock:{u1}:a");
        assert_eq!(keys("{}a").fences[0], b"leasehold:fence:{lock:{}a}");
        assert_eq!(keys("a{b").fences[0], b"leasehold:fence:{lock:a{b}");
    }

    /// All names of up to seven characters of these: what a cluster cannot keep is refused, and that
    /// is only what has a closing brace and no hash tag.
    #[test]
    fn all_keys_of_a_name_are_in_one_slot_or_the_name_is_refused() {
        let mut names = vec![String::new()];
        for _ in 0..7 {
            let longer = |name: &String| ["a", "{", "}"].map(|next| format!("{name}{next}"));
            names = names.iter().flat_map(longer).collect();
            for name in &names {
                for prefix in ["lock:", "", "{t}", "}", "{"] {
                    let keys = Keys::new(name.as_str().into(), prefix, "r:");
                    let lock = [prefix, name].concat();
                    let can_be = !lock.contains('}') || hash_tag(lock.as_bytes()).is_some();
                    assert_eq!(keys.check_slots().is_ok(), can_be, "{lock}");
                }
            }
        }
        let error = keys("a}b").check_slots().unwrap_err().to_string();
        assert!(
            error.contains("a}b") && error.contains("hash tag"),
            "{error}"
        );
    }

    #[test]
    fn no_lock_key_is_a_key_of_ours() {
        let name = "leasehold:fence:{lock:a}";
        assert!(Keys::new(name.into(), "", "r:").check().is_err());
        assert!(Keys::new(name.into(), "lock:", "r:").check().is_ok());
    }

    fn list(items: &[Reply]) -> Reply {
        Reply::List(items.to_vec())
    }

    fn text() -> Reply {
        Reply::Text(b"v".to_vec())
    }

    /// Reads the reply to an acquire of this number of names.
    fn read(items: &[Reply], names: usize) -> Option<Acquired> {
        let wanted = Wanted {
            names,
            tokens: names,
            reserved: 63,
            proposed: None,
        };
        Acquired::read(&list(items), wanted)
    }

    #[test]
    fn answers() {
        let refused = |name, holder: &[u8], remaining| {
            Some(Acquired::Refused(Refusal {
                name,
                holder: holder.to_vec(),
                remaining,
            }))
        };
        assert_eq!(
            read(&[Reply::Int(1), Reply::Int(7)], 1),
            Some(Acquired::Granted(OneOrMany::One(FencingToken::new(7))))
        );
        assert_eq!(
            read(&[Reply::Int(0), text(), Reply::Int(-1)], 1),
            refused(0, b"v", None)
        );
        assert_eq!(
            read(&[Reply::Int(0), Reply::Nil, Reply::Int(-2)], 1),
            refused(0, b"", Some(Duration::ZERO))
        );
        let of_third = [Reply::Int(0), text(), Reply::Int(9), Reply::Int(3)];
        assert_eq!(
            read(&of_third, 3),
            refused(2, b"v", Some(Duration::from_millis(9)))
        );
        let tokens = read(&[Reply::Int(1), Reply::Int(7), Reply::Int(9)], 2);
        let Some(Acquired::Granted(tokens)) = tokens else {
            panic!("{tokens:?}")
        };
        assert_eq!(*tokens, [7, 9].map(FencingToken::new));
        assert_eq!(KeyState::read(&text()), Some(KeyState::Foreign));
        let held = [text(), Reply::Int(5), Reply::Text(b"9".to_vec())];
        let held = read_holder(&list(&held)).unwrap().unwrap();
        assert_eq!(held.fencing_token(), Some(FencingToken::new(9)));
        assert!(read_holder(&Reply::Nil).unwrap().is_none());
    }

    #[test]
    fn no_grant_is_read_from_what_no_script_replies() {
        let int = Reply::Int;
        for token in [0, -1, (1 << 53) - 63, 1 << 53, i64::MAX, i64::MIN] {
            assert_eq!(read(&[int(1), int(token)], 1), None, "{token}");
        }
        assert_eq!(read(&[int(1)], 1), None);
        assert_eq!(read(&[int(1), int(7)], 2), None, "a token is missing");
        assert_eq!(read(&[int(1), int(7), int(9)], 1), None, "one too many");
        assert_eq!(read(&[int(1), text()], 1), None);
        assert_eq!(read(&[int(4), int(7)], 1), None);
        let wanted = Wanted {
            names: 1,
            tokens: 1,
            reserved: 0,
            proposed: Some(7),
        };
        let proposed = |items: &[Reply]| Acquired::read(&list(items), wanted);
        assert!(proposed(&[int(1), int(7)]).is_some());
        assert_eq!(proposed(&[int(1), int(8)]), None, "nobody proposed it");
        assert_eq!(proposed(&[int(2), int(7)]), Some(Acquired::TooLow(7)));
        assert_eq!(proposed(&[int(2), int(6)]), None, "7 is above it");
        assert_eq!(Acquired::read(&int(1), wanted), None);
    }

    #[test]
    fn no_refusal_is_read_from_what_no_script_replies() {
        let int = Reply::Int;
        for which in [0, 4, 99, -1, i64::MIN, i64::MAX] {
            let refusal = [int(0), text(), int(100), int(which)];
            assert_eq!(read(&refusal, 3), None, "{which}");
        }
        assert_eq!(read(&[int(0), text(), int(9)], 3), None, "of which name");
        assert_eq!(read(&[int(0), text(), int(-3)], 1), None);
        assert_eq!(read(&[int(0), int(7), int(9)], 1), None);
        assert_eq!(read(&[int(0), Reply::Other, int(9)], 1), None);
    }

    #[test]
    fn no_finding_is_read_from_what_no_script_replies() {
        let int = Reply::Int;
        let status = Reply::Status("OK".into());
        for reply in [Reply::Nil, int(2), int(-1), status, Reply::Other] {
            assert_eq!(KeyState::read(&reply), None, "{reply:?}");
        }
        for items in [&[int(1)][..], &[int(1), int(-1)], &[int(0), int(1)], &[]] {
            assert_eq!(KeyState::read(&list(items)), None, "{items:?}");
        }
        for items in [
            &[text(), int(-3), Reply::Nil][..],
            &[text(), int(5), int(7)],
            &[text(), int(5)],
            &[],
        ] {
            assert!(read_holder(&list(items)).is_none(), "{items:?}");
        }
        let foreign = [text(), int(5), Reply::Text(b"9007199254740992".to_vec())];
        let held = read_holder(&list(&foreign)).unwrap().unwrap();
        assert_eq!(held.fencing_token(), None, "no token is that high");
    }

    #[test]
    fn a_ttl_is_never_rounded_down() {
        for (ttl, sent) in [
            (Duration::from_micros(10_001), 11),
            (Duration::from_millis(10), 10),
        ] {
            assert!(
                matches!(millis(ttl), Arg::Number(n) if n == sent),
                "{ttl:?}"
            );
        }
    }
}
