//! The holder id, and what other clients can see of a holder.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::cause::Rounded;
use crate::escape::Escaped;
use crate::random;
use crate::token::FencingToken;

/// The id of one lease: `<owner>:<uuid v4>`, the value of the lock's key in Redis.
///
/// The id of a lease of permits has their number and a space before the owner.
///
/// Every acquiring command gets a new id, so a late command of an earlier attempt cannot touch a
/// later lease.
///
/// [`as_str`](Self::as_str) returns the exact id, for comparison with Redis. `Display` escapes
/// unprintable characters, because another program may have written the key. `Debug` and the
/// crate's log records contain only the [short form](Self::short): anyone who knows the whole id
/// can release the lock.
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
    /// The offset of the owner in the text: an id of permits begins with their number and a space.
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

    /// Returns a new id of `permits` permits: `<permits> <owner>:<uuid v4>`.
    pub(crate) fn fresh_of_permits(permits: u32, owner: &str) -> Self {
        let number = format!("{permits} ");
        Self {
            owner_at: number.len(),
            ..Self::fresh(&(number + owner))
        }
    }

    /// Parses a lock key's value; returns `None` if no leasehold client wrote it.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let (owner, uuid) = text.rsplit_once(':')?;
        (!owner.is_empty() && Uuid::try_parse(uuid).is_ok()).then(|| Self {
            text: text.into(),
            owner_at: 0,
        })
    }

    /// Parses an id of permits; returns it and their number.
    fn parse_of_permits(member: &[u8]) -> Option<(Self, u32)> {
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

/// A holder of permits, as [`Semaphore::holders`](crate::Semaphore::holders) found it.
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let api = client.semaphore("api.example.com", 10);
/// let permit = api.acquire()?;
/// for holder in api.holders()? {
///     println!("{holder}"); // web-1/4711:ef052da9, 1 permit, for another 9.9 s
/// }
/// # assert_eq!(api.holders()?.len(), 1);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(PartialEq))]
pub struct PermitHolder {
    id: HolderId,
    permits: u32,
    remaining: Duration,
}

impl PermitHolder {
    /// Returns the holder with this holder id; `None` if no leasehold client wrote it.
    pub(crate) fn new(member: &[u8], remaining: Duration) -> Option<Self> {
        let (id, permits) = HolderId::parse_of_permits(member)?;
        Some(Self {
            id,
            permits,
            remaining,
        })
    }

    /// Returns the owner: `<host>/<pid>`, unless
    /// [`ClientBuilder::owner`](crate::ClientBuilder::owner) sets another.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let api = client.semaphore("api.example.com", 10);
    /// let permit = api.acquire()?;
    /// for holder in api.holders()? {
    ///     println!("the API is being called by {}", holder.owner());
    /// }
    /// # assert!(!api.holders()?[0].owner().is_empty());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn owner(&self) -> &str {
        self.id.owner()
    }

    /// Returns the holder id, which is a member of the sorted set in Redis.
    ///
    /// It begins with the number of permits and a space.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let api = client.semaphore("api.example.com", 10);
    /// let permit = api.acquire()?;
    /// assert_eq!(api.holders()?[0].holder_id(), permit.holder_id());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn holder_id(&self) -> &HolderId {
        &self.id
    }

    /// Returns how many permits it holds.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let memory = client.semaphore("worker-7:gigabytes", 64).many(12);
    /// let permit = memory.acquire()?;
    /// assert_eq!(memory.holders()?[0].permits(), 12);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Returns how long it holds them without a renewal.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let api = client.semaphore("api.example.com", 10);
    /// let permit = api.acquire()?;
    /// if let Some(first) = api.holders()?.first() {
    ///     println!("{} may have died: see again in {:?}", first.owner(), first.remaining());
    /// }
    /// # assert!(!api.holders()?[0].remaining().is_zero());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn remaining(&self) -> Duration {
        self.remaining
    }
}

/// The value of a lock's key while readers hold it. It is no holder id: those end in a uuid.
pub(crate) const READERS: &[u8] = b"leasehold:readers";

/// The longest value that the scripts return whole, in bytes.
const LONGEST_VALUE: usize = 1088;

/// The holder of a lock, as [`Mutex::inspect`](crate::Mutex::inspect) found it.
///
/// If the holder is not a leasehold client, or if readers share the lock, there is no one owner and
/// no one id.
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let nightly = client.mutex("nightly");
/// # let guard = nightly.lock()?;
/// if let Some(holder) = nightly.inspect()? {
///     println!("held by {holder}"); // held by cron-1/4711:1b9d6bcd, for another 8.2 s
/// }
/// # assert!(nightly.inspect()?.is_some());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
#[cfg_attr(test, derive(PartialEq))]
pub struct Holder {
    seen: Vec<u8>,
    id: Option<HolderId>,
    remaining: Option<Duration>,
    fencing_token: Option<FencingToken>,
}

impl Holder {
    /// `seen` is the value as the inspect script returned it: one longer than [`LONGEST_VALUE`] is
    /// cut there, and its digest follows.
    pub(crate) fn new(
        seen: Vec<u8>,
        remaining: Option<Duration>,
        fencing_token: Option<FencingToken>,
    ) -> Self {
        Self {
            // The start of a longer value may look like an id.
            id: HolderId::parse(&seen).filter(|_| seen.len() <= LONGEST_VALUE),
            seen,
            remaining,
            fencing_token,
        }
    }

    /// Returns the owner of the lease, unless there is none.
    ///
    /// `None` if the holder is not a leasehold client, or if readers [share](Self::is_shared) the
    /// lock.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let nightly = client.mutex("nightly");
    /// # let guard = nightly.lock()?;
    /// if let Some(holder) = nightly.inspect()? {
    ///     println!("held by {}", holder.owner().unwrap_or("readers, or another program"));
    /// }
    /// # assert!(nightly.inspect()?.unwrap().owner().is_some());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn owner(&self) -> Option<&str> {
        self.id.as_ref().map(HolderId::owner)
    }

    /// Returns the id of the lease, unless there is none.
    ///
    /// `None` if the holder is not a leasehold client, or if readers [share](Self::is_shared) the
    /// lock.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let nightly = client.mutex("nightly");
    /// let guard = nightly.lock()?;
    /// let holder = nightly.inspect()?.expect("the guard holds it");
    /// assert_eq!(holder.holder_id(), Some(guard.holder_id()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn holder_id(&self) -> Option<&HolderId> {
        self.id.as_ref()
    }

    /// Returns the value of the lock's key, cut after 1088 bytes.
    ///
    /// Every holder id of a leasehold client is shorter.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let nightly = client.mutex("nightly");
    /// # let guard = nightly.lock()?;
    /// if let Some(holder) = nightly.inspect()?
    ///     && holder.holder_id().is_none()
    ///     && !holder.is_shared()
    /// {
    ///     println!("another program set the key to {}", holder.value().escape_ascii());
    /// }
    /// # assert_eq!(nightly.inspect()?.unwrap().value(), guard.holder_id().as_str().as_bytes());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn value(&self) -> &[u8] {
        self.seen.get(..LONGEST_VALUE).unwrap_or(&self.seen)
    }

    /// Returns true if the name is held by the readers of an [`RwLock`](crate::RwLock).
    ///
    /// They have no common owner and no common id: [`RwLock::inspect`](crate::RwLock::inspect)
    /// returns each of them.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let reading = client.rw_lock("catalogue").read()?;
    /// let holder = client.mutex("catalogue").inspect()?.expect("a reader holds it");
    /// assert!(holder.is_shared());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn is_shared(&self) -> bool {
        self.seen == READERS
    }

    /// Returns the argument that identifies the value in a forced release.
    pub(crate) fn seen(&self) -> &[u8] {
        &self.seen
    }

    /// Another program's value may be a secret that lets anyone release its lock.
    fn start(&self) -> Escaped<'_> {
        Escaped::whole(self.seen.get(..self.seen.len().min(8)).unwrap_or_default())
    }

    /// Returns how long the key lives without a renewal; `None` if it does not expire.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let nightly = client.mutex("nightly");
    /// # let guard = nightly.lock()?;
    /// match nightly.inspect()?.map(|holder| holder.remaining()) {
    ///     Some(Some(remaining)) => println!("if its holder has died, free in {remaining:?}"),
    ///     Some(None) => println!("held by a program that set no expiry"),
    ///     None => println!("free"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// Returns the last fencing token drawn for the name; `None` if none was within the last day.
    ///
    /// It is the holder's token, with two exceptions:
    ///
    /// - If tokens are reserved for [local hand-offs](crate::Mutex::local_handoffs), it is the last
    ///   of them.
    /// - If the holder is not a leasehold client, it is the token of an earlier holder; readers
    ///   share that of the last writer.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let nightly = client.mutex("nightly");
    /// let guard = nightly.lock()?;
    /// let holder = nightly.inspect()?.expect("the guard holds it");
    /// assert_eq!(holder.fencing_token(), Some(guard.fencing_token()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.fencing_token
    }
}

/// The holders of an [`RwLock`](crate::RwLock), as [`RwLock::inspect`](crate::RwLock::inspect)
/// found them.
///
/// ```
/// use leasehold::RwHolders;
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
///
/// let catalogue = client.rw_lock("catalogue");
/// # let reading = catalogue.read()?;
/// match catalogue.inspect()? {
///     Some(RwHolders::Writer(writer)) => println!("being written by {writer}"),
///     Some(RwHolders::Readers(readers)) => println!("being read by {} readers", readers.len()),
///     None => println!("free"),
/// }
/// if let Some(holders) = catalogue.inspect()? {
///     println!("{holders}"); // readers web-1/12:1b9d6bcd, for another 8.2 s; web-2/7:ef052da9, for another 9.9 s
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(PartialEq))]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "lowercase")
)]
pub enum RwHolders {
    /// A writer, a holder of a [`Mutex`](crate::Mutex) or a [`FairMutex`](crate::FairMutex) of the
    /// same name, or another program.
    Writer(Holder),
    /// The readers, each with its own time left; at least one.
    Readers(Vec<Holder>),
}

/// The owner and the first eight digits of the id, or the escaped start of the value; then how long
/// the key lives.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.id {
            Some(id) => id.short().fmt(f)?,
            None if self.is_shared() => f.write_str("readers")?,
            None => write!(f, "another program ({}…)", self.start())?,
        }
        match self.remaining {
            Some(remaining) => write!(f, ", for another {}", Rounded(remaining)),
            None => f.write_str(", without an end"),
        }
    }
}

/// The owner and the first eight digits of the id; then how many permits it holds, and how long
/// without a renewal.
impl fmt::Display for PermitHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            permits,
            remaining,
        } = self;
        let plural = if *permits == 1 { "" } else { "s" };
        let left = Rounded(*remaining);
        write!(
            f,
            "{}, {permits} permit{plural}, for another {left}",
            id.short()
        )
    }
}

/// The word `writer`, `reader` or `readers`; then the holders, with semicolons between them.
impl fmt::Display for RwHolders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writer(writer) => write!(f, "writer {writer}"),
            Self::Readers(readers) => {
                let plural = if readers.len() == 1 { "" } else { "s" };
                write!(f, "reader{plural} ")?;
                for (at, reader) in readers.iter().enumerate() {
                    write!(f, "{}{reader}", if at == 0 { "" } else { "; " })?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut holder = f.debug_struct("Holder");
        match &self.id {
            Some(id) => holder.field("holder_id", id),
            None if self.is_shared() => holder.field("value", &"readers"),
            None => holder.field("value", &format_args!("{}…", self.start())),
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
        let holder = Holder::new(id.as_str().into(), None, None);
        assert!(!format!("{holder:?}").contains(id.as_str()));
    }

    #[test]
    fn display_names_the_owner_and_the_time_left_but_not_the_whole_id() {
        let id = HolderId::fresh("a");
        let second = Some(Duration::from_millis(1_500));
        let holder = Holder::new(id.as_str().into(), second, None).to_string();
        assert!(
            holder.starts_with("a:") && holder.ends_with(", for another 1.5 s"),
            "{holder}"
        );
        assert!(!holder.contains(id.as_str()));
        let holder = Holder::new(b"\x1b secret value".into(), None, None).to_string();
        assert_eq!(holder, r"another program (\x1b secret…), without an end");
    }

    #[test]
    fn id_of_permits_shows_the_owner_without_their_number() {
        // The owner of a lock may begin like an id of permits.
        assert_eq!(HolderId::fresh("2 web/7").owner(), "2 web/7");
        let id = HolderId::fresh_of_permits(12, "2 web/7");
        let found = PermitHolder::new(id.as_str().as_bytes(), Duration::from_secs(1)).unwrap();
        assert!(id.as_str().starts_with("12 2 web/7:"), "{id}");
        for id in [&id, found.holder_id()] {
            assert_eq!(id.owner(), "2 web/7");
            let shown = &id.as_str()["12 ".len()..][.."2 web/7:12345678".len()];
            assert_eq!(id.short().to_string(), shown);
        }
        assert_eq!((found.owner(), found.permits()), ("2 web/7", 12));
        // Only the text counts.
        assert_eq!(HolderId::parse(id.as_str().as_bytes()), Some(id));
    }

    #[test]
    fn display_of_permits_names_owner_number_and_time_left() {
        let left = Duration::from_millis(9_900);
        for (permits, number) in [(1, "1 permit"), (2, "2 permits")] {
            let id = HolderId::fresh_of_permits(permits, "web-1/4711");
            let holder = PermitHolder::new(id.as_str().as_bytes(), left).unwrap();
            let expected = format!("{}, {number}, for another 9.9 s", id.short());
            assert_eq!(holder.to_string(), expected);
            assert!(expected.starts_with("web-1/4711:"), "{expected}");
        }
    }

    #[test]
    fn display_of_a_read_write_lock_tells_readers_from_a_writer() {
        let id = HolderId::fresh("a");
        let left = Some(Duration::from_millis(1_500));
        let holder = Holder::new(id.as_str().into(), left, None);
        let shown = format!("{}, for another 1.5 s", id.short());
        for (holders, expected) in [
            (RwHolders::Writer(holder.clone()), format!("writer {shown}")),
            (
                RwHolders::Readers(vec![holder.clone()]),
                format!("reader {shown}"),
            ),
            (
                RwHolders::Readers(vec![holder.clone(), holder]),
                format!("readers {shown}; {shown}"),
            ),
        ] {
            assert_eq!(holders.to_string(), expected);
        }
    }

    #[test]
    fn the_start_of_a_longer_value_is_no_id() {
        let id = HolderId::fresh(&"o".repeat(LONGEST_VALUE - 37));
        let holder = Holder::new(id.as_str().into(), None, None);
        assert_eq!(holder.value().len(), LONGEST_VALUE);
        assert_eq!(holder.holder_id(), Some(&id));
        let seen = format!("{}0", id.as_str()).into_bytes();
        let holder = Holder::new(seen.clone(), None, None);
        assert_eq!(holder.value(), id.as_str().as_bytes());
        assert_eq!(holder.holder_id(), None);
        assert_eq!(holder.seen(), seen);
        // A digest that ends like an id.
        let seen = format!(
            "{}:{}",
            "o".repeat(LONGEST_VALUE),
            &id.as_str()[id.owner().len() + 1..]
        );
        assert_eq!(Holder::new(seen.into(), None, None).holder_id(), None);
    }

    #[test]
    fn values_of_other_programs_are_not_ids() {
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
