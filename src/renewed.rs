//! The argument of `on_renew` callbacks.

use std::fmt;
use std::time::Duration;

use crate::cause::Rounded;
use crate::holder_id::HolderId;
use crate::name::Name;
use crate::token::FencingToken;

/// A renewal that Redis confirmed.
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// # let (sender, renewals) = leasehold::crossbeam_channel::unbounded();
/// let nightly = client.mutex("nightly").on_renew(move |renewed| {
///     println!("{renewed}"); // nightly renewed by web-1/4711:1b9d6bcd, for another 9.9 s
/// #   sender.send(()).unwrap();
/// });
/// # let guard = nightly.lock()?;
/// # guard.renew()?;
/// # renewals.recv().unwrap();
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Renewed {
    pub(crate) name: Name,
    pub(crate) holder_id: HolderId,
    pub(crate) fencing_token: FencingToken,
    pub(crate) remaining: Duration,
    pub(crate) took: Duration,
}

impl Renewed {
    /// Returns the lock's name; for a set of names, the first.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// # let (sender, renewals) = leasehold::crossbeam_channel::unbounded();
    /// let nightly = client.mutex("nightly").on_renew(move |renewed| {
    ///     println!("renewed {}", renewed.name());
    /// #   sender.send(renewed.name().clone()).unwrap();
    /// });
    /// # let guard = nightly.lock()?;
    /// # guard.renew()?;
    /// # assert_eq!(renewals.recv().unwrap(), "nightly");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the id of the renewed lease.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// # let (sender, renewals) = leasehold::crossbeam_channel::unbounded();
    /// let nightly = client.mutex("nightly").on_renew(move |renewed| {
    ///     println!("the lease {} continues", renewed.holder_id().short());
    /// #   sender.send(renewed.holder_id().clone()).unwrap();
    /// });
    /// # let guard = nightly.lock()?;
    /// # guard.renew()?;
    /// # assert_eq!(renewals.recv().unwrap(), *guard.holder_id());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn holder_id(&self) -> &HolderId {
        &self.holder_id
    }

    /// Returns the holder's fencing token for [`name`](Self::name). A renewal does not change it.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// # let (sender, renewals) = leasehold::crossbeam_channel::unbounded();
    /// let nightly = client.mutex("nightly").on_renew(move |renewed| {
    ///     println!("renewed under the token {}", renewed.fencing_token());
    /// #   sender.send(renewed.fencing_token()).unwrap();
    /// });
    /// # let guard = nightly.lock()?;
    /// # guard.renew()?;
    /// # assert_eq!(renewals.recv().unwrap(), guard.fencing_token());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn fencing_token(&self) -> FencingToken {
        self.fencing_token
    }

    /// Returns how much longer the lease was certain to last when the reply arrived.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// # let (sender, renewals) = leasehold::crossbeam_channel::unbounded();
    /// let nightly = client.mutex("nightly").on_renew(move |renewed| {
    ///     if renewed.remaining() < Duration::from_secs(2) {
    ///         eprintln!("{} has little time left: Redis is slow", renewed.name());
    ///     }
    /// #   sender.send(()).unwrap();
    /// });
    /// # let guard = nightly.lock()?;
    /// # guard.renew()?;
    /// # renewals.recv().unwrap();
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn remaining(&self) -> Duration {
        self.remaining
    }

    /// Returns the time from sending the renewal to the reply that confirmed it.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// # let (sender, renewals) = leasehold::crossbeam_channel::unbounded();
    /// let nightly = client.mutex("nightly").on_renew(move |renewed| {
    ///     println!("Redis confirmed the renewal in {:?}", renewed.took());
    /// #   sender.send(()).unwrap();
    /// });
    /// # let guard = nightly.lock()?;
    /// # guard.renew()?;
    /// # renewals.recv().unwrap();
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn took(&self) -> Duration {
        self.took
    }
}

/// The lock's name, the holder, and how much longer the lease was certain to last.
impl fmt::Display for Renewed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (holder, left) = (self.holder_id.short(), Rounded(self.remaining));
        write!(f, "{} renewed by {holder}, for another {left}", self.name)
    }
}
