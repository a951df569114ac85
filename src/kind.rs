//! The plain lock: its keys in Redis, the calls of its scripts, and what their answers mean.

use std::time::Duration;

use crate::error::Error;
use crate::holder::{Holder, HolderId};
use crate::name::{Name, shown};
use crate::scripts::{ACQUIRE, Arg, Call, INSPECT, PROPOSE, RELEASE, RENEW, Reply};
use crate::server::slots::{hash_tag, slot};
use crate::token::FencingToken;

/// A name, and what belongs to it in Redis.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) name: Name,
    lock: Vec<u8>,
    fence: Vec<u8>,
    pub(crate) channel: Vec<u8>,
}

/// What an acquiring command came to.
#[derive(Debug, PartialEq)]
pub(crate) enum Acquired {
    Granted(FencingToken),
    /// Somebody else holds it: by this value, for so long, `None` without an end.
    Refused(Vec<u8>, Option<Duration>),
    /// The fencing token that was proposed is not above this one.
    TooLow(u64),
    /// Of several servers some granted it and some did not, and nobody has a majority of them.
    Split,
}

/// What a call about a lease found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Ours,
    Nobody,
    Another,
}

impl Keys {
    pub(crate) fn new(name: Name, key_prefix: &str, channel_prefix: &str) -> Self {
        let lock = [key_prefix.as_bytes(), name.as_bytes()].concat();
        let channel = [channel_prefix.as_bytes(), name.as_bytes()].concat();
        Self {
            fence: beside(&lock, "fence"),
            lock,
            channel,
            name,
        }
    }

    /// Where the last fencing token is kept.
    pub(crate) fn fence(&self) -> &[u8] {
        &self.fence
    }

    /// Errors when no lock can have this name.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.name.check()?;
        if self.lock.starts_with(b"leasehold:") {
            return Err(Error::Config(format!(
                "the key {} would be one of leasehold's own: take another name or key_prefix",
                shown(&self.lock)
            )));
        }
        Ok(())
    }

    /// Its slot, were it kept in a cluster.
    pub(crate) fn slot(&self) -> u16 {
        slot(&self.lock)
    }

    /// Errors when no cluster can keep this name: its keys would be in different slots.
    pub(crate) fn check_slots(&self) -> Result<(), Error> {
        if slot(&self.lock) == slot(&self.fence) {
            return Ok(());
        }
        Err(Error::Config(format!(
            "the keys of {} would be in different slots of the cluster: take the }} out of the name, or begin it \
             with a hash tag such as {{x}}",
            self.name
        )))
    }

    pub(crate) fn acquire<'a>(&'a self, id: &'a HolderId, ttl: Duration) -> Call<'a> {
        let args = [Arg::Bytes(id.as_str().as_bytes()), millis(ttl), Arg::Absent];
        Call {
            script: &ACQUIRE,
            keys: [&self.lock, &self.fence],
            args,
            replicas: None,
            asking: false,
        }
    }

    /// Acquires on one server of a quorum, under a token of the client's own.
    pub(crate) fn propose<'a>(&'a self, id: &'a HolderId, ttl: Duration, token: u64) -> Call<'a> {
        let args = [
            Arg::Bytes(id.as_str().as_bytes()),
            millis(ttl),
            Arg::Number(token),
        ];
        Call {
            script: &PROPOSE,
            keys: [&self.lock, &self.fence],
            args,
            replicas: None,
            asking: false,
        }
    }

    pub(crate) fn release<'a>(&'a self, value: &'a [u8]) -> Call<'a> {
        let args = [Arg::Bytes(value), Arg::Bytes(&self.channel), Arg::Absent];
        Call {
            script: &RELEASE,
            keys: [&self.lock, b""],
            args,
            replicas: None,
            asking: false,
        }
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
        ];
        Call {
            script: &RENEW,
            keys: [&self.lock, b""],
            args,
            replicas: None,
            asking: false,
        }
    }

    pub(crate) fn inspect(&self) -> Call<'_> {
        Call {
            script: &INSPECT,
            keys: [&self.lock, &self.fence],
            args: Default::default(),
            replicas: None,
            asking: false,
        }
    }
}

impl Acquired {
    pub(crate) fn read(reply: Reply) -> Option<Self> {
        match reply {
            Reply::List(mut items) => match items.as_mut_slice() {
                [Reply::Int(1), Reply::Int(token)] => Some(Self::Granted(FencingToken::new(
                    u64::try_from(*token).ok()?,
                ))),
                [Reply::Int(0), Reply::Text(holder), Reply::Int(ttl)] => {
                    Some(Self::Refused(std::mem::take(holder), remaining(*ttl)))
                }
                // A key that ran out within the script's own millisecond has no value any more.
                [Reply::Int(0), Reply::Nil, Reply::Int(ttl)] => {
                    Some(Self::Refused(Vec::new(), remaining(*ttl)))
                }
                [Reply::Int(2), Reply::Int(last)] => Some(Self::TooLow(u64::try_from(*last).ok()?)),
                [Reply::Int(3)] => Some(Self::Split),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Found {
    pub(crate) fn read(reply: &Reply) -> Option<Self> {
        match reply {
            Reply::Int(1) => Some(Self::Ours),
            Reply::Int(0) => Some(Self::Nobody),
            Reply::Text(_) => Some(Self::Another),
            _ => None,
        }
    }
}

/// Reads an inspection: `Some(None)` where nobody holds the lock, `None` where it cannot be read.
pub(crate) fn read_holder(reply: Reply) -> Option<Option<Holder>> {
    match reply {
        Reply::Nil => Some(None),
        Reply::List(items) => match <[Reply; 3]>::try_from(items).ok()? {
            [Reply::Text(value), Reply::Int(ttl), token] => {
                let token = match &token {
                    Reply::Text(digits) => std::str::from_utf8(digits)
                        .ok()
                        .and_then(|n| n.parse().ok()),
                    _ => None,
                };
                Some(Some(Holder::new(
                    value,
                    remaining(ttl),
                    token.map(FencingToken::new),
                )))
            }
            _ => None,
        },
        _ => None,
    }
}

/// PTTL's answer: -1 is a key without an end, -2 a key that has just gone.
fn remaining(pttl: i64) -> Option<Duration> {
    match pttl {
        -1 => None,
        left => Some(Duration::from_millis(left.try_into().unwrap_or(0))),
    }
}

/// Whole milliseconds, upwards: validity is counted from the ttl asked for, so Redis may keep the
/// key longer but not shorter.
fn millis(ttl: Duration) -> Arg<'static> {
    // A ttl that was checked fits.
    Arg::Number(u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

/// Another key of the same name. It lies in the lock key's cluster slot, and it is no other name's
/// lock key, since no lock key begins with `leasehold:`.
pub(crate) fn beside(lock: &[u8], what: &str) -> Vec<u8> {
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
        assert_eq!(keys.lock, b"lock:a");
        assert_eq!(keys.fence, b"leasehold:fence:{lock:a}");
        assert_eq!(keys.channel, b"lock_release:a");
    }

    #[test]
    fn a_hash_tag_of_the_name_is_kept() {
        assert_eq!(keys("{u1}:a").fence, b"leasehold:fence:lock:{u1}:a");
        assert_eq!(keys("{}a").fence, b"leasehold:fence:{lock:{}a}");
        assert_eq!(keys("a{b").fence, b"leasehold:fence:{lock:a{b}");
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

    #[test]
    fn answers() {
        let list = |items: &[Reply]| Reply::List(items.to_vec());
        let text = || Reply::Text(b"v".to_vec());
        assert_eq!(
            Acquired::read(list(&[Reply::Int(1), Reply::Int(7)])),
            Some(Acquired::Granted(FencingToken::new(7)))
        );
        assert_eq!(
            Acquired::read(list(&[Reply::Int(0), text(), Reply::Int(-1)])),
            Some(Acquired::Refused(b"v".to_vec(), None))
        );
        assert_eq!(
            Acquired::read(list(&[Reply::Int(0), Reply::Nil, Reply::Int(-2)])),
            Some(Acquired::Refused(Vec::new(), Some(Duration::ZERO)))
        );
        assert_eq!(Acquired::read(Reply::Int(1)), None);
        assert_eq!(Found::read(&text()), Some(Found::Another));
        let held = read_holder(list(&[text(), Reply::Int(5), Reply::Text(b"9".to_vec())]))
            .unwrap()
            .unwrap();
        assert_eq!(held.fencing_token(), Some(FencingToken::new(9)));
        assert!(read_holder(Reply::Nil).unwrap().is_none());
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
