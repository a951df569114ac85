//! Who holds a lock: the holder id, and what can be seen of a holder from outside.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::escape::Escaped;
use crate::random;
use crate::token::FencingToken;

/// The name of one lease: `<owner>:<uuid v4>`, the value of the lock's key in Redis.
///
/// Fresh for every acquiring command that is sent, so that no late command of an earlier attempt
/// can touch a later lease. [`as_str`](Self::as_str) gives it exactly, for comparing with Redis;
/// `Display` escapes what is not printable, since another program may have written the key. `Debug` and the
/// crate's log lines give only its [short form](Self::short): whoever knows the whole id can release the lock.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HolderId(Arc<str>);

impl HolderId {
    pub(crate) fn fresh(owner: &str) -> Self {
        let mut digits = [0; uuid::fmt::Hyphenated::LENGTH];
        let uuid = random::uuid().hyphenated().encode_lower(&mut digits);
        let mut id = String::with_capacity(owner.len() + 1 + uuid.len());
        id.push_str(owner);
        id.push(':');
        id.push_str(uuid);
        Self(id.into())
    }

    /// Reads a lock key's value; `None` if it was not written by a leasehold client.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let (owner, uuid) = text.rsplit_once(':')?;
        (!owner.is_empty() && Uuid::try_parse(uuid).is_ok()).then(|| Self(text.into()))
    }

    /// The whole id, as it stands in Redis.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part that says whose lease it is: `<host>/<pid>` unless the builder names an owner.
    pub fn owner(&self) -> &str {
        // Both ways to make an id put a colon behind the owner.
        self.0.rsplit_once(':').map_or("", |(owner, _)| owner)
    }

    /// The owner and the id's first eight digits, for people: what is not printable is escaped, and a long
    /// owner cut.
    pub fn short(&self) -> impl fmt::Display + '_ {
        let owner = self.owner();
        let end = (owner.len() + 9).min(self.0.len());
        let digits = self.0.get(owner.len()..end).unwrap_or_default();
        Short(owner, digits)
    }
}

impl fmt::Display for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Escaped::whole(self.0.as_bytes()).fmt(f)
    }
}

/// An owner, and the id's first digits with the colon before them.
struct Short<'a>(&'a str, &'a str);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(owner, digits) = self;
        write!(f, "{}{digits}", Escaped::name(owner.as_bytes()))
    }
}

impl fmt::Debug for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HolderId({}…)", self.short())
    }
}

impl AsRef<str> for HolderId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Who holds a lock at this moment, as [`Mutex::inspect`](crate::Mutex::inspect) saw it.
///
/// A holder that is no leasehold client is partly unknown: its value is whatever it wrote.
#[derive(Clone)]
pub struct Holder {
    value: Vec<u8>,
    id: Option<HolderId>,
    remaining: Option<Duration>,
    fencing_token: Option<FencingToken>,
}

impl Holder {
    pub(crate) fn new(
        value: Vec<u8>,
        remaining: Option<Duration>,
        fencing_token: Option<FencingToken>,
    ) -> Self {
        Self {
            id: HolderId::parse(&value),
            value,
            remaining,
            fencing_token,
        }
    }

    /// Whose lease it is; `None` for a foreign holder.
    pub fn owner(&self) -> Option<&str> {
        self.id.as_ref().map(HolderId::owner)
    }

    /// The lease's id; `None` for a foreign holder.
    pub fn holder_id(&self) -> Option<&HolderId> {
        self.id.as_ref()
    }

    /// The key's value, whoever wrote it.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// How long the key will live unless renewed; `None` if it has no end.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// The last fencing token drawn for the name. It is this holder's, unless a foreign client took
    /// the lock since, or the holder may [hand the lock on](crate::Mutex::local_handoffs): then it is the last of those
    /// that were reserved for that. `None` if no token was drawn within the last day.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.fencing_token
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A foreign value may be that client's secret, just as a holder id is ours.
        let start = self
            .value
            .get(..self.value.len().min(8))
            .unwrap_or_default();
        let mut holder = f.debug_struct("Holder");
        match &self.id {
            Some(id) => holder.field("holder_id", id),
            None => holder.field("value", &format_args!("{}…", Escaped::whole(start))),
        };
        holder
            .field("remaining", &self.remaining)
            .field("fencing_token", &self.fencing_token)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoke() {
        let id = HolderId::fresh("web:1/7");
        assert_eq!(id.owner(), "web:1/7");
        assert_eq!(HolderId::parse(id.as_str().as_bytes()), Some(id.clone()));
        assert_eq!(id.short().to_string().len(), "web:1/7".len() + 9);
        assert_ne!(id, HolderId::fresh("web:1/7"));
    }

    #[test]
    fn debug_keeps_the_secret() {
        let id = HolderId::fresh("a");
        assert!(!format!("{id:?}").contains(id.as_str()));
        let holder = Holder::new(id.as_str().into(), None, None);
        assert!(!format!("{holder:?}").contains(id.as_str()));
    }

    #[test]
    fn foreign_values_are_no_ids() {
        for value in [
            &b"v"[..],
            b"",
            b"\xff:\xff",
            b"a:b",
            b":123e4567-e89b-12d3-a456-426614174000",
        ] {
            assert_eq!(HolderId::parse(value), None, "{value:?}");
        }
    }
}
