//! A name that is held, and its holders, as other clients see them.

use std::fmt;

use crate::holder::Holder;
use crate::name::Name;
use crate::token::FencingToken;

/// A held lock or semaphore with its holders.
///
/// [`Client::list`](crate::Client::list), [`Client::list_permits`](crate::Client::list_permits),
/// [`RwLock::inspect`](crate::RwLock::inspect) and
/// [`Semaphore::inspect`](crate::Semaphore::inspect) return it.
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// # let _guard = client.mutex("account:123").lock()?;
/// for held in client.list("account:")? {
///     println!("{held}"); // account:123 is held by web-1/4711:1b9d6bcd, for another 8.2 s
/// }
/// # assert_eq!(client.list("account:")?.len(), 1);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Held {
    name: Name,
    kind: HeldKind,
    permits: u64,
    holders: Vec<Holder>,
    fencing_token: Option<FencingToken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldKind {
    Exclusive,
    Readers,
    Permits,
}

impl Held {
    /// `holders` are the one that excludes others, or the readers.
    pub(crate) fn of_lock(name: Name, is_shared: bool, holders: Vec<Holder>) -> Self {
        Self {
            name,
            kind: if is_shared {
                HeldKind::Readers
            } else {
                HeldKind::Exclusive
            },
            permits: holders.len() as u64,
            fencing_token: holders.first().and_then(Holder::fencing_token),
            holders,
        }
    }

    pub(crate) fn of_permits(
        name: Name,
        permits: u64,
        holders: Vec<Holder>,
        fencing_token: Option<FencingToken>,
    ) -> Self {
        Self {
            name,
            kind: HeldKind::Permits,
            permits,
            holders,
            fencing_token,
        }
    }

    /// Returns the name of the lock or semaphore.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex("account:123").lock()?;
    /// let held = client.list("account:")?;
    /// assert_eq!(held[0].name(), guard.name());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the holders, sorted by when their leases end.
    ///
    /// Of readers and of holders of permits, these are the first 10,000, or fewer if their ids are
    /// long: the reply of Redis has at most 1 MiB, enough for 900 ids of the greatest length.
    /// [`Client::list`](crate::Client::list) does not ask for readers: there, one
    /// [`Holder`](Holder::is_shared) stands for all of them.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let permit = client.semaphore("api.example.com", 10).acquire()?;
    /// for held in client.list_permits("api.")? {
    ///     for holder in held.holders() {
    ///         println!("{}: {} of them are held by {holder}", held.name(), holder.permits());
    ///     }
    /// }
    /// # assert_eq!(client.list_permits("api.")?[0].holders().len(), 1);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// Returns true if readers hold the lock, or if it is a semaphore.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let reading = client.rw_lock("catalogue").read()?;
    /// let held = client.rw_lock("catalogue").inspect()?.expect("a reader holds it");
    /// assert!(held.is_shared());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn is_shared(&self) -> bool {
        self.kind != HeldKind::Exclusive
    }

    /// Returns how many permits are out. Each holder of a lock counts as one.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let permit = client.semaphore("worker-7:gigabytes", 64).many(12).acquire()?;
    /// let held = client.list_permits("worker-7:")?;
    /// assert_eq!(held[0].permits(), 12);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn permits(&self) -> u64 {
        self.permits
    }

    /// Returns the last fencing token that was drawn; `None` if none was for 25 hours.
    ///
    /// It may be `None` after 24 hours. [`Holder::fencing_token`] says when it is not that of a
    /// holder.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let permit = client.semaphore("api.example.com", 10).acquire()?;
    /// let held = client.list_permits("api.")?;
    /// assert_eq!(held[0].fencing_token(), Some(permit.fencing_token()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.fencing_token
    }
}

/// The name, for a semaphore the number of permits that are out, and the holders, separated by
/// semicolons.
impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, permits, .. } = self;
        let plural = if *permits == 1 { "" } else { "s" };
        let mut separator = ":";
        match self.kind {
            HeldKind::Permits => write!(f, "{name}: {permits} permit{plural} out")?,
            // One holder may stand for all readers, however many there are.
            HeldKind::Readers if !self.holders.iter().any(Holder::is_shared) => {
                write!(f, "{name} is held by {permits} reader{plural}")?;
            }
            HeldKind::Readers | HeldKind::Exclusive => {
                write!(f, "{name} is held by")?;
                separator = "";
            }
        }
        for holder in &self.holders {
            write!(f, "{separator} {holder}")?;
            separator = ";";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::holder::READERS;
    use crate::holder_id::HolderId;

    #[test]
    fn display_distinguishes_one_holder_readers_and_permits() {
        let left = Duration::from_millis(1_500);
        let id = HolderId::fresh("a");
        let holder = Holder::new(id.as_str().into(), Some(left), None);
        let one = format!("{}, for another 1.5 s", id.short());
        let two = vec![holder.clone(); 2];
        let of_permits = HolderId::fresh_of_permits(2, "b");
        let of_permits = of_permits.as_str().as_bytes();
        let of_permits = Holder::of_permits(of_permits, left).unwrap();
        let all = Holder::new(READERS.into(), Some(left), None);
        for (held, expected) in [
            (
                Held::of_lock("n".into(), false, vec![holder.clone()]),
                format!("n is held by {one}"),
            ),
            (
                Held::of_lock("n".into(), true, vec![holder]),
                format!("n is held by 1 reader: {one}"),
            ),
            (
                Held::of_lock("n".into(), true, two),
                format!("n is held by 2 readers: {one}; {one}"),
            ),
            (
                Held::of_lock("n".into(), true, vec![all]),
                "n is held by readers, for another 1.5 s".into(),
            ),
            (
                Held::of_permits("n".into(), 2, vec![of_permits.clone()], None),
                format!("n: 2 permits out: {of_permits}"),
            ),
        ] {
            assert_eq!(held.to_string(), expected);
        }
    }
}
