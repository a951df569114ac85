//! The guard of permits that are held.

use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::api::guard::MutexGuard;
use crate::error::Error;
use crate::holder::HolderId;
use crate::lock::release::Unlocked;
use crate::lost::Lost;
use crate::name::Name;
use crate::token::FencingToken;

/// The permits of a semaphore that a call has acquired. Dropping it releases them.
///
/// Its permits share one lease and are released together. Leases, loss and dropping work as
/// described for [`MutexGuard`]. See [`Semaphore`](crate::Semaphore).
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let permit = client.semaphore("api.example.com", 10).many(2).acquire()?;
/// assert_eq!(permit.count(), 2);
/// permit.ensure_held()?;
/// permit.release()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "if unused the permits are released at once"]
#[clippy::has_significant_drop]
pub struct SemaphorePermit {
    guard: MutexGuard,
    name: Name,
    count: u32,
}

impl SemaphorePermit {
    pub(super) fn new(guard: MutexGuard, name: &Name, count: u32) -> Self {
        Self {
            guard,
            name: name.clone(),
            count,
        }
    }

    /// Returns how many permits these are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the semaphore's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the number of this grant, unique among all grants of the semaphore.
    ///
    /// Numbers rise in the order of the grants: use it in logs and idempotency keys. It is no fence
    /// for a semaphore with more than one permit: a resource that takes only the highest number
    /// would refuse holders that are alive.
    pub fn fencing_token(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// Returns the id of the lease, its member of the sorted set in Redis.
    ///
    /// It begins with the number of permits and a space.
    pub fn holder_id(&self) -> &HolderId {
        self.guard.holder_id()
    }

    /// Returns true only if the permits are certainly held at this moment. Local, no I/O.
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// Returns how long the permits are certainly held without a renewal; `None` if they are lost.
    ///
    /// Local, no I/O.
    pub fn remaining(&self) -> Option<Duration> {
        self.guard.remaining()
    }

    /// Returns an error unless the permits are certainly held. Local, no I/O.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if they are not certainly held at this moment.
    pub fn ensure_held(&self) -> Result<(), Error> {
        self.guard.ensure_held()
    }

    /// Returns a channel that receives one message when the permits are lost, like
    /// [`MutexGuard::lost`].
    pub fn lost(&self) -> Receiver<Lost> {
        self.guard.lost()
    }

    /// Renews the lease for the full ttl, now. Returns within the command timeout.
    ///
    /// # Errors
    ///
    /// The errors of [`MutexGuard::renew`].
    pub fn renew(&self) -> Result<(), Error> {
        self.guard.renew()
    }

    /// Sets another ttl, like [`MutexGuard::set_ttl`].
    ///
    /// # Errors
    ///
    /// The errors of [`MutexGuard::set_ttl`].
    pub fn set_ttl(&self, ttl: Duration) -> Result<(), Error> {
        self.guard.set_ttl(ttl)
    }

    /// Releases the permits and reports whether they were still held.
    ///
    /// Returns within the command timeout.
    ///
    /// # Errors
    ///
    /// The errors of [`MutexGuard::unlock`].
    pub fn release(self) -> Result<Unlocked, Error> {
        self.guard.unlock()
    }
}
