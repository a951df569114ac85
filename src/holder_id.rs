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
        id.push_str(&uuid[..uuid.len() - NUMBER]);
        id.push_str(FIRST);
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

    /// Returns the id under which the lease is at a member of a quorum that it has joined, for the
    /// `number`-th time.
    pub(crate) fn numbered(&self, number: u16) -> Self {
        if number == 0 {
            return self.clone();
        }
        let base = &self.text[..self.text.len() - NUMBER];
        Self {
            text: format!("{base}{number:03x}").into(),
            owner_at: self.owner_at,
        }
    }

    /// Returns the number of an id that [`numbered`](Self::numbered) has made.
    pub(crate) fn number(&self) -> u16 {
        let digits = &self.text[self.text.len() - NUMBER..];
        u16::from_str_radix(digits, 16).unwrap_or(0)
    }

    /// Returns the lease's id for the id that it has at a member of a quorum.
    pub(crate) fn base(&self) -> Self {
        if self.text.ends_with(FIRST) {
            return self.clone();
        }
        let base = &self.text[..self.text.len() - NUMBER];
        Self {
            text: format!("{base}{FIRST}").into(),
            owner_at: self.owner_at,
        }
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

    fn is_of_version_4(&self) -> bool {
        // Its 15th digit is the version.
        let uuid = self.text.len() - Hyphenated::LENGTH;
        self.text.as_bytes()[uuid + 14] == b'4'
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

/// How many of the last digits of an id are a number.
const NUMBER: usize = 3;

/// The number of a fresh id. The other digits have 110 random bits.
const FIRST: &str = "000";

/// The highest number.
pub(crate) const MOST_NUMBERS: u16 = 0xfff;

/// Returns whether two values of a lock's key are ids of one lease: they differ in their numbers at
/// most.
pub(crate) fn is_same_holder(one: &[u8], other: &[u8]) -> bool {
    if one == other {
        return true;
    }
    let ids = HolderId::parse(one).zip(HolderId::parse(other));
    ids.is_some_and(|(one, other)| {
        let of_uuid = |id: &HolderId| id.text.len() - NUMBER;
        one.text[..of_uuid(&one)] == other.text[..of_uuid(&other)]
            && one.is_of_version_4()
            && other.is_of_version_4()
    })
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
    fn numbered_ids_are_those_of_one_holder() {
        let id = HolderId::fresh("web");
        assert_eq!((id.numbered(0), id.base()), (id.clone(), id.clone()));
        let joined = id.numbered(0x1a);
        assert!(joined.as_str().ends_with("01a"));
        assert_eq!((joined.base(), joined.number()), (id.clone(), 0x1a));
        let is_same = |one: &str, other: &str| is_same_holder(one.as_bytes(), other.as_bytes());
        assert!(is_same(id.as_str(), joined.as_str()));
        assert!(!is_same(id.as_str(), HolderId::fresh("web").as_str()));
        let of_other = joined.as_str().replacen("web", "wex", 1);
        assert!(!is_same(id.as_str(), &of_other));
        assert!(!is_same("foreign-000", "foreign-001"));
        let version_1 = ["000", "001"].map(|it| format!("a:123e4567-e89b-12d3-a456-426614174{it}"));
        assert!(!is_same(&version_1[0], &version_1[1]));
        let permits = HolderId::fresh_of_permits(2, "web");
        assert_eq!(permits.numbered(7).base().owner(), "web");
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
