//! The guard of several names that are held together.

use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::api::guard::MutexGuard;
use crate::error::Error;
use crate::holder_id::HolderId;
use crate::lost::Lost;
use crate::name::Name;
use crate::token::FencingToken;

/// The guard of a held set of names. Dropping it releases all of them.
///
/// The names share one lease and one holder id. Leases, loss and dropping work as described for
/// [`MutexGuard`], for all names together. See [`MutexAll`](crate::MutexAll).
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let guard = client.mutex_all(["stock:apples", "stock:pears"]).lock()?;
/// guard.ensure_held()?;
/// guard.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "if unused the locks are released at once"]
#[clippy::has_significant_drop]
pub struct MutexAllGuard(pub(super) MutexGuard);

impl MutexAllGuard {
    /// Returns the held names, each once, in the order in which they were acquired.
    ///
    /// They are sorted; in a cluster they are sorted by slot first.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex_all(["account:2", "account:1"]).lock()?;
    /// assert_eq!(guard.names(), ["account:1", "account:2"]);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn names(&self) -> &[Name] {
        self.0.names()
    }

    /// Returns the fencing token of `name`, which is higher than that of every earlier holder.
    ///
    /// Returns `None` if `name` is not part of this set. The tokens of two names are unrelated and
    /// may be equal. [Fencing](crate::guide::fencing) needs the token of every name: one alone does
    /// not show that another holder has changed what the other names protect.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex_all(["account:1", "account:2"]).lock()?;
    /// for name in guard.names() {
    ///     println!("{name}: {:?}", guard.fencing_token_of(name));
    /// }
    /// assert_eq!(guard.fencing_token_of("account:3"), None);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn fencing_token_of(&self, name: impl Into<Name>) -> Option<FencingToken> {
        self.0.fencing_token_of(&name.into())
    }

    /// Returns the id of the lease, which is the value of each name's key in Redis.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex_all(["account:1", "account:2"]).lock()?;
    /// let holder = client.mutex("account:2").inspect()?.expect("the guard holds it");
    /// assert_eq!(holder.holder_id(), Some(guard.holder_id()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn holder_id(&self) -> &HolderId {
        self.0.holder_id()
    }

    /// Returns true only if all names are certainly held at this moment.
    ///
    /// Reads a local clock and does no I/O. If a key was deleted or a name was released by force,
    /// the name counts as held until the next renewal.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex_all(["account:1", "account:2"]).lock()?;
    /// if guard.is_held() {
    ///     println!("both accounts are ours");
    /// }
    /// # assert!(guard.is_held());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }

    /// Returns how long all names are certainly held without a renewal; `None` if one is lost.
    ///
    /// Reads a local clock and does no I/O. If a key was deleted or a name was released by force,
    /// the name counts as held until the next renewal.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex_all(["account:1", "account:2"]).lock()?;
    /// if guard.remaining() > Some(Duration::from_secs(2)) {
    ///     println!("there is time for a step of 2 s");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn remaining(&self) -> Option<Duration> {
        self.0.remaining()
    }

    /// Returns an error unless all names are certainly held.
    ///
    /// Reads a local clock and does no I/O. If a key was deleted or a name was released by force,
    /// the name counts as held until the next renewal.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// # fn transfer(from: &str, to: &str) {}
    /// let guard = client.mutex_all(["account:1", "account:2"]).lock()?;
    /// guard.ensure_held()?;
    /// transfer("account:1", "account:2");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if one of them is not certainly held at this moment.
    pub fn ensure_held(&self) -> Result<(), Error> {
        self.0.ensure_held()
    }

    /// Returns a channel that receives one message when a name is lost, for use with `select!`.
    ///
    /// The channel is disconnected after that message, or when the names are released. Each call
    /// creates another channel, which the lease keeps until then: call this once, before a loop.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex_all(["account:1", "account:2"]).lock()?;
    /// let lost = guard.lost();
    /// // Between two steps, without waiting:
    /// if let Ok(why) = lost.try_recv() {
    ///     println!("roll back the transfer: {why}");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn lost(&self) -> Receiver<Lost> {
        self.0.lost()
    }

    /// Renews the lease of all names for the full ttl, now.
    ///
    /// Returns within the command timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex_all(["account:1", "account:2"]).auto_renew(false).lock()?;
    /// // … the first step …
    /// guard.renew()?; // the full ttl for the next one
    /// # assert!(guard.is_held());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`MutexGuard::renew`].
    pub fn renew(&self) -> Result<(), Error> {
        self.0.renew()
    }

    /// Sets the lease's ttl, for now and for later renewals.
    ///
    /// The lease lasts `ttl` from now on, whether that is longer or shorter than before. Returns
    /// within the command timeout. [`MutexGuard::set_ttl`] says what happens if Redis does not
    /// answer.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex_all(["account:1", "account:2"]).lock()?;
    /// guard.set_ttl(Duration::from_secs(60))?;
    /// # assert!(guard.remaining() > Some(Duration::from_secs(30)));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`MutexGuard::set_ttl`].
    pub fn set_ttl(&self, ttl: Duration) -> Result<(), Error> {
        self.0.set_ttl(ttl)
    }

    /// Releases all names; fails if they were not held any more.
    ///
    /// If one name was lost, the others are still released. Returns within the command
    /// timeout.
    ///
    /// ```
    /// use leasehold::Error;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    ///
    /// let guard = client.mutex_all(["account:1", "account:2"]).lock()?;
    /// if let Err(Error::Lost(lost)) = guard.unlock() {
    ///     eprintln!("check both accounts: {lost}");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`MutexGuard::unlock`].
    pub fn unlock(self) -> Result<(), Error> {
        self.0.unlock()
    }

    /// Ends the guard, but leaves all names taken until `at_least` after they were acquired.
    ///
    /// Works as described for [`MutexGuard::keep_for`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let both = client.mutex_all(["account:1", "account:2"]);
    /// both.lock()?.keep_for(Duration::from_secs(60))?;
    /// assert!(both.try_lock()?.is_err());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`MutexGuard::keep_for`].
    pub fn keep_for(self, at_least: Duration) -> Result<(), Error> {
        self.0.keep_for(at_least)
    }
}
