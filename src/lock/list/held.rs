//! A held lock, as a list shows it.

use std::fmt;

use crate::holder::Holder;
use crate::name::Name;
#[cfg(feature = "serde")]
use crate::serialize::{HOLDER_FIELDS, write_holder};

/// A held lock and its holder, as [`Client::list`](crate::Client::list) found them.
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
    pub(super) name: Name,
    pub(super) holder: Holder,
}

/// The name, and the fields of the [`Holder`].
#[cfg(feature = "serde")]
impl serde::Serialize for Held {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = to.serialize_struct("Held", 1 + HOLDER_FIELDS)?;
        fields.serialize_field("name", self.name())?;
        write_holder(&mut fields, self.holder())?;
        fields.end()
    }
}

impl Held {
    /// Returns the lock's name.
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

    /// Returns the holder.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex("account:123").lock()?;
    /// let held = client.list("account:")?;
    /// assert_eq!(held[0].holder().holder_id(), Some(guard.holder_id()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn holder(&self) -> &Holder {
        &self.holder
    }
}

/// The name, and the [`Holder`].
impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is held by {}", self.name, self.holder)
    }
}
