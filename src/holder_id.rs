//! The holder id.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use uuid::Uuid;
use uuid::fmt::Hyphenated;

use crate::escape::Escaped;
use crate::random;

/// The id of one lease: `<owner>:<uuid v4>`, the value of the lock's key in Redis.
///
/// A reader's id is a member of the sorted set of readers instead. A semaphore's is
/// `<permits> <owner>:<uuid v4>`, with the number of permits of the lease, and a member of the
/// sorted set of permits.
///
/// No later lease has the same id, so a late command of an earlier attempt cannot touch a later
/// lease.
///
/// [`as_str`](Self::as_str) returns the exact id, for comparison with Redis. `Display` escapes
/// unprintable characters, because another program may have written the key. `Debug`, and the
/// crate's log records above the level TRACE, contain only the [short form](Self::short): anyone
/// who knows the whole id can release the lock.
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let account = client.mutex("account:123");
/// let guard = account.lock()?;
/// let holder = account.inspect()?.expect("the guard holds it");
/// assert_eq!(holder.holder_id(), Some(guard.holder_id()));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct HolderId {
    text: Arc<str>,
    /// The offset of the owner in the text. It is not 0 in the id of a semaphore's lease.
    owner_at: usize,
}

impl HolderId {
    pub(crate) fn fresh(owner: &str) -> Self {
        let mut digits = [0; uuid::fmt::Hyphenated::LENGTH];
        let uuid = random::uuid().hyphenated().encode_lower(&mut digits);
        let mut id = String::with_capacity(owner.len() + 1 + uuid.len());
        id.push_str(owner);
        id.push(':');
        id.push_str(uuid);
        Self {
            text: id.into(),
            owner_at: 0,
        }
    }

    /// Returns a new id for a lease of `permits` permits: `<permits> <owner>:<uuid v4>`.
    pub(crate) fn fresh_of_permits(permits: u32, owner: &str) -> Self {
        let number = format!("{permits} ");
        Self {
            owner_at: number.len(),
            ..Self::fresh(&(number + owner))
        }
    }

    /// Parses a lock key's value; returns `None` unless it is an owner, a colon and a uuid.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let (owner, uuid) = text.rsplit_once(':')?;
        // `try_parse` also takes a uuid in braces or without hyphens.
        let is_uuid = uuid.len() == Hyphenated::LENGTH && Uuid::try_parse(uuid).is_ok();
        (!owner.is_empty() && is_uuid).then(|| Self {
            text: text.into(),
            owner_at: 0,
        })
    }

    /// Parses the id of a semaphore's lease; returns it with the number of permits.
    pub(crate) fn parse_of_permits(member: &[u8]) -> Option<(Self, u32)> {
        let id = Self::parse(member)?;
        let (number, _) = id.text.split_once(' ')?;
        let (permits, owner_at) = (number.parse().ok()?, number.len() + 1);
        Some((Self { owner_at, ..id }, permits))
    }

    /// Returns the whole id, exactly as in Redis.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex("account:123").lock()?;
    /// // Compare this with the output of `redis-cli GET lock:account:123`.
    /// println!("{}", guard.holder_id().as_str());
    /// # assert!(guard.holder_id().as_str().starts_with(guard.holder_id().owner()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the owner: `<host>/<pid>`, unless
    /// [`ClientBuilder::owner`](crate::ClientBuilder::owner) sets another.
    ///
    /// ```
    /// use leasehold::Client;
    /// # let server = leasehold::testing::Server::start();
    /// # let url = server.url();
    ///
    /// let client = Client::builder().url(url).owner("billing-7").build()?;
    /// let guard = client.mutex("invoice:42").lock()?;
    /// assert_eq!(guard.holder_id().owner(), "billing-7");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn owner(&self) -> &str {
        // `fresh` and `parse` both guarantee a colon after the owner.
        let owner = self.text.rsplit_once(':').map_or("", |(owner, _)| owner);
        owner.get(self.owner_at..).unwrap_or_default()
    }

    /// Returns the owner and the first eight digits of the uuid, for display.
    ///
    /// Unprintable characters are escaped, and a long owner is truncated.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex("account:123").lock()?;
    /// println!("held as {}", guard.holder_id().short()); // held as web-3/812:1b9d6bcd
    /// # assert!(guard.holder_id().short().to_string().len() < guard.holder_id().as_str().len());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn short(&self) -> impl fmt::Display + '_ {
        let owner = self.owner();
        let start = self.owner_at + owner.len();
        let end = (start + 9).min(self.text.len());
        Short(owner, self.text.get(start..end).unwrap_or_default())
    }
}

impl fmt::Display for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Escaped::whole(self.text.as_bytes()).fmt(f)
    }
}

impl PartialEq for HolderId {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for HolderId {}

impl Hash for HolderId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

/// An owner, and a colon with the first digits of the uuid.
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
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_keeps_its_owner_and_is_unique() {
        let id = HolderId::fresh("web:1/7");
        assert_eq!(id.owner(), "web:1/7");
        assert_eq!(HolderId::parse(id.as_str().as_bytes()), Some(id.clone()));
        assert_eq!(id.short().to_string().len(), "web:1/7".len() + 9);
        assert_ne!(id, HolderId::fresh("web:1/7"));
    }

    #[test]
    fn debug_does_not_show_the_whole_id() {
        let id = HolderId::fresh("a");
        assert!(!format!("{id:?}").contains(id.as_str()));
    }

    #[test]
    fn values_of_other_programs_are_not_ids() {
        for value in [
            &b"v"[..],
            b"",
            b"\xff:\xff",
            b"a:b",
            b":123e4567-e89b-12d3-a456-426614174000",
            b"web:123e4567e89b12d3a456426614174000",
            b"web:{123e4567-e89b-12d3-a456-426614174000}",
        ] {
            assert_eq!(HolderId::parse(value), None, "{value:?}");
        }
    }
}
