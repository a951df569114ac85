//! The holder of a lock, as other clients see it.

use std::fmt;
use std::time::Duration;

use crate::cause::Rounded;
use crate::escape::Escaped;
use crate::holder_id::HolderId;
use crate::token::FencingToken;

/// The value of a lock's key while readers hold it. It is no holder id: those end in a uuid.
pub(crate) const READERS: &[u8] = b"leasehold:readers";

/// The longest value that the scripts return whole, in bytes.
const LONGEST_VALUE: usize = 1088;

/// A holder of a lock or of permits, as another client sees it.
///
/// [`Mutex::inspect`](crate::Mutex::inspect) returns it, and [`Held`](crate::Held) contains all
/// holders of a name.
///
/// [`owner`](Self::owner) and [`holder_id`](Self::holder_id) return `None` if the holder is not a
/// leasehold client, or if this `Holder` stands for [all readers](Self::is_shared) of a lock.
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
    /// `None` for a lock.
    permits: Option<u32>,
    remaining: Option<Duration>,
    fencing_token: Option<FencingToken>,
    lingers: bool,
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
            permits: None,
            remaining,
            fencing_token,
            lingers: false,
        }
    }

    /// The client that asks keeps the lease, and nobody holds it.
    pub(crate) fn lingering(self, lingers: bool) -> Self {
        Self { lingers, ..self }
    }

    /// Parses a member of a semaphore's sorted set; `None` if it is not the id of its lease.
    pub(crate) fn of_permits(member: &[u8], remaining: Duration) -> Option<Self> {
        let (id, permits) = HolderId::parse_of_permits(member)?;
        Some(Self {
            seen: member.to_vec(),
            id: Some(id),
            permits: Some(permits),
            remaining: Some(remaining),
            fencing_token: None,
            lingers: false,
        })
    }

    /// Returns the owner of the lease.
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

    /// Returns the id of the lease.
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
    /// Every holder id of a leasehold client is shorter. A reader and a holder of permits have
    /// their id here.
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

    /// Returns true if this stands for all readers of an [`RwLock`](crate::RwLock).
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

    /// Returns only the first 8 bytes, escaped: another program's value may be a secret with which
    /// anyone could release its lock.
    fn start(&self) -> Escaped<'_> {
        Escaped::whole(self.seen.get(..self.seen.len().min(8)).unwrap_or_default())
    }

    /// Returns how many permits of a semaphore this holder has. The holder of a lock has 1.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let memory = client.semaphore("worker-7:gigabytes", 64).many(12);
    /// let permit = memory.acquire()?;
    /// let held = memory.inspect()?.expect("some permits are out");
    /// assert_eq!(held.holders()[0].permits(), 12);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn permits(&self) -> u32 {
        self.permits.unwrap_or(1)
    }

    /// Returns how long the lease lasts without a renewal; `None` if the key does not expire.
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

    /// Returns the last fencing token drawn for the name.
    ///
    /// `None` if no token was drawn for 25 hours, perhaps after 24, and for permits, whose last
    /// token [`Held::fencing_token`](crate::Held::fencing_token) returns. Otherwise it is the
    /// holder's token, with two exceptions:
    ///
    /// - If tokens are reserved for [local hand-offs](crate::Mutex::local_handoffs), it is the last
    ///   of them.
    /// - If the holder is not a leasehold client, it is the token of an earlier holder. If readers
    ///   share the lock, it is the token of the last writer, or one that a reader drew.
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

    /// Returns true if nobody holds the lock: its lease [lingers](crate::Mutex::linger).
    ///
    /// Only the client that keeps the lease knows that. Others see a holder.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let index = client.mutex("index").linger(Duration::from_secs(1));
    /// index.lock()?.unlock()?;
    /// assert!(index.inspect()?.is_some_and(|holder| holder.is_lingering()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn is_lingering(&self) -> bool {
        self.lingers
    }
}

/// The owner and the first eight digits of the uuid, or the escaped start of the value; the number
/// of permits, if the holder has some; and how long the lease lasts without a renewal.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.id {
            Some(id) => id.short().fmt(f)?,
            None if self.is_shared() => f.write_str("readers")?,
            None => write!(f, "another program ({}…)", self.start())?,
        }
        if let Some(permits) = self.permits {
            let plural = if permits == 1 { "" } else { "s" };
            write!(f, ", {permits} permit{plural}")?;
        }
        match self.remaining {
            Some(remaining) => write!(f, ", for another {}", Rounded(remaining))?,
            None => f.write_str(", without an end")?,
        }
        if self.lingers {
            f.write_str(", lingering")
        } else {
            Ok(())
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
            .field("permits", &self.permits())
            .field("remaining", &self.remaining)
            .field("fencing_token", &self.fencing_token)
            .field("lingering", &self.lingers)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_of_a_holder_does_not_show_the_whole_id() {
        let id = HolderId::fresh("a");
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
    fn id_of_permits_shows_the_owner_without_their_number() {
        // The owner of a lock may begin like an id of permits.
        assert_eq!(HolderId::fresh("2 web/7").owner(), "2 web/7");
        let id = HolderId::fresh_of_permits(12, "2 web/7");
        let found = Holder::of_permits(id.as_str().as_bytes(), Duration::from_secs(1)).unwrap();
        assert!(id.as_str().starts_with("12 2 web/7:"), "{id}");
        for id in [&id, found.holder_id().unwrap()] {
            assert_eq!(id.owner(), "2 web/7");
            let shown = &id.as_str()["12 ".len()..][.."2 web/7:12345678".len()];
            assert_eq!(id.short().to_string(), shown);
        }
        assert_eq!((found.owner(), found.permits()), (Some("2 web/7"), 12));
        // Ids with the same text are equal, although `parse` takes the number for a part of the
        // owner.
        assert_eq!(HolderId::parse(id.as_str().as_bytes()), Some(id));
    }

    #[test]
    fn display_of_permits_names_owner_number_and_time_left() {
        let left = Duration::from_millis(9_900);
        for (permits, number) in [(1, "1 permit"), (2, "2 permits")] {
            let id = HolderId::fresh_of_permits(permits, "web-1/4711");
            let holder = Holder::of_permits(id.as_str().as_bytes(), left).unwrap();
            let expected = format!("{}, {number}, for another 9.9 s", id.short());
            assert_eq!(holder.to_string(), expected);
            assert!(expected.starts_with("web-1/4711:"), "{expected}");
        }
    }
}
