//! A holder of permits, as other clients see it.

use std::fmt;
use std::time::Duration;

use crate::cause::Rounded;
use crate::holder_id::HolderId;

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
    /// Parses a member of the sorted set; `None` if it is not the id of a semaphore's lease.
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

    /// Returns how many permits this holder has.
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

    /// Returns how long this holder keeps its permits without a renewal.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let api = client.semaphore("api.example.com", 10);
    /// let permit = api.acquire()?;
    /// if let Some(first) = api.holders()?.first() {
    ///     println!("{} may have died: check again in {:?}", first.owner(), first.remaining());
    /// }
    /// # assert!(!api.holders()?[0].remaining().is_zero());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn remaining(&self) -> Duration {
        self.remaining
    }
}

/// The owner and the first eight digits of the uuid; then how many permits the holder has, and how
/// long it keeps them without a renewal.
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

#[cfg(test)]
mod tests {
    use super::*;

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
        // Ids with the same text are equal, although `parse` takes the number for a part of the
        // owner.
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
}
