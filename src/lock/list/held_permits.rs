//! The permits of a semaphore that are out, as a list shows them.

use std::fmt;

use crate::name::Name;
use crate::permit_holder::PermitHolder;
use crate::protocol::permits_out::PermitsOut;
use crate::token::FencingToken;

/// A semaphore with permits that are out, as [`Client::list_permits`](crate::Client::list_permits)
/// found it.
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// # let _permit = client.semaphore("api.example.com", 10).acquire()?;
/// for held in client.list_permits("api.")? {
///     println!("{}: {} permits, {} holders", held.name(), held.permits(), held.holders().len());
///     // api.example.com: 1 permit out: web-1/4711:1b9d6bcd, 1 permit, for another 9.9 s
///     println!("{held}");
/// }
/// # assert_eq!(client.list_permits("api.")?.len(), 1);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct HeldPermits {
    name: Name,
    found: PermitsOut,
}

#[cfg(feature = "serde")]
impl serde::Serialize for HeldPermits {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = to.serialize_struct("HeldPermits", 4)?;
        fields.serialize_field("name", self.name())?;
        fields.serialize_field("permits", &self.permits())?;
        fields.serialize_field("holders", self.holders())?;
        fields.serialize_field("fencing_token", &self.last_fencing_token())?;
        fields.end()
    }
}

impl HeldPermits {
    pub(crate) fn new(name: Name, found: PermitsOut) -> Self {
        Self { name, found }
    }

    /// Returns the semaphore's name.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let permit = client.semaphore("api.example.com", 10).acquire()?;
    /// let held = client.list_permits("api.")?;
    /// assert_eq!(held[0].name(), permit.name());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns how many permits are out.
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
        self.found.out
    }

    /// Returns the holders, sorted by when their leases end: the first 10,000 if there are more.
    ///
    /// Returns fewer if their ids are long.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let permit = client.semaphore("api.example.com", 10).acquire()?;
    /// for held in client.list_permits("api.")? {
    ///     for holder in held.holders() {
    ///         println!("{}: {} has {}", held.name(), holder.owner(), holder.permits());
    ///     }
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn holders(&self) -> &[PermitHolder] {
        &self.found.holders
    }

    /// Returns the last fencing token that was drawn; `None` if no token was drawn within the last
    /// day.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let permit = client.semaphore("api.example.com", 10).acquire()?;
    /// let held = client.list_permits("api.")?;
    /// assert_eq!(held[0].last_fencing_token(), Some(permit.fencing_token()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn last_fencing_token(&self) -> Option<FencingToken> {
        self.found.last_token
    }
}

/// The name and the number of permits that are out, then the holders, separated by semicolons.
impl fmt::Display for HeldPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let out = self.permits();
        let plural = if out == 1 { "" } else { "s" };
        write!(f, "{}: {out} permit{plural} out", self.name)?;
        for (at, holder) in self.holders().iter().enumerate() {
            write!(f, "{}{holder}", if at == 0 { ": " } else { "; " })?;
        }
        Ok(())
    }
}
