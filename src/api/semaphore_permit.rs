//! The guard of permits that are held.

use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::api::guard::MutexGuard;
use crate::error::Error;
use crate::holder_id::HolderId;
use crate::lost::Lost;
use crate::name::Name;
use crate::token::FencingToken;

/// The guard of the permits that a call has acquired. Dropping it releases them.
///
/// The permits share one lease and are released together. Leases, loss and dropping work as
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
    pub(super) guard: MutexGuard,
    pub(super) name: Name,
    pub(super) count: u32,
}

impl SemaphorePermit {
    /// Returns how many permits these are.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let permit = client.semaphore("worker-7:gigabytes", 64).many(12).acquire()?;
    /// assert_eq!(permit.count(), 12);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the semaphore's name.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let permit = client.semaphore("api.example.com", 10).acquire()?;
    /// println!("calling {}", permit.name());
    /// # assert_eq!(permit.name(), "api.example.com");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the number of this grant, unique among all grants of the semaphore.
    ///
    /// It is for logs and idempotency keys. Numbers usually rise in the order of the grants. A call
    /// that missed the message of its grant has a number that was drawn when it learned of the
    /// grant: it is higher than those of the grants in between. The number is no fence for a
    /// semaphore with more than one permit: a resource that takes only the highest number would
    /// refuse holders that are alive.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let permit = client.semaphore("api.example.com", 10).acquire()?;
    /// println!("call {} begins", permit.fencing_token());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn fencing_token(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// Returns the id of the lease, which is a member of the sorted set of permits in Redis.
    ///
    /// It begins with the number of permits and a space.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let api = client.semaphore("api.example.com", 10);
    /// let permit = api.acquire()?;
    /// let held = api.inspect()?.expect("a permit is out");
    /// assert_eq!(held.holders()[0].holder_id(), Some(permit.holder_id()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn holder_id(&self) -> &HolderId {
        self.guard.holder_id()
    }

    /// Returns true only if the permits are certainly held at this moment.
    ///
    /// Reads a local clock and does no I/O: permits that were removed since the last renewal count
    /// as held until the next one.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// # let requests = ["GET /prices", "GET /stock"];
    /// let permit = client.semaphore("api.example.com", 10).acquire()?;
    /// for request in requests {
    ///     if !permit.is_held() {
    ///         break; // another call may have the permit
    ///     }
    ///     println!("{request}");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// Returns how long the permits are certainly held without a renewal; `None` if they are lost.
    ///
    /// Reads a local clock and does no I/O: permits that were removed since the last renewal count
    /// as held until the next one.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let permit = client.semaphore("api.example.com", 10).acquire()?;
    /// if permit.remaining() > Some(Duration::from_secs(2)) {
    ///     println!("there is time for a request of 2 s");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn remaining(&self) -> Option<Duration> {
        self.guard.remaining()
    }

    /// Returns an error unless the permits are certainly held.
    ///
    /// Reads a local clock and does no I/O: permits that were removed since the last renewal count
    /// as held until the next one.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// # fn call_the_api() {}
    /// let permit = client.semaphore("api.example.com", 10).acquire()?;
    /// permit.ensure_held()?;
    /// call_the_api();
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if they are not certainly held at this moment.
    pub fn ensure_held(&self) -> Result<(), Error> {
        self.guard.ensure_held()
    }

    /// Returns a channel that receives one message when the permits are lost, for use with
    /// `select!`.
    ///
    /// The channel is disconnected after that message, or when the permits are released. Each call
    /// creates another channel, which the lease keeps until then: call this once, before a loop.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let permit = client.semaphore("api.example.com", 10).acquire()?;
    /// let lost = permit.lost();
    /// // Between two requests, without waiting:
    /// if let Ok(why) = lost.try_recv() {
    ///     println!("stop calling: {why}");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn lost(&self) -> Receiver<Lost> {
        self.guard.lost()
    }

    /// Renews the lease for the full ttl, now. Returns within the command timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let permit = client.semaphore("api.example.com", 10).auto_renew(false).acquire()?;
    /// // … a request …
    /// permit.renew()?; // the full ttl for the next one
    /// # assert!(permit.is_held());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`MutexGuard::renew`].
    pub fn renew(&self) -> Result<(), Error> {
        self.guard.renew()
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
    /// let permit = client.semaphore("api.example.com", 10).acquire()?;
    /// // Keep the permit if Redis restarts during the request.
    /// permit.set_ttl(Duration::from_secs(60))?;
    /// # assert!(permit.remaining() > Some(Duration::from_secs(30)));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`MutexGuard::set_ttl`].
    pub fn set_ttl(&self, ttl: Duration) -> Result<(), Error> {
        self.guard.set_ttl(ttl)
    }

    /// Releases the permits; fails if they were not held any more.
    ///
    /// Returns within the command timeout.
    ///
    /// ```
    /// use leasehold::Error;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    ///
    /// let permit = client.semaphore("api.example.com", 10).acquire()?;
    /// if let Err(Error::Lost(lost)) = permit.release() {
    ///     eprintln!("more calls than allowed may have run at a time: {lost}");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`MutexGuard::unlock`].
    pub fn release(self) -> Result<(), Error> {
        self.guard.unlock()
    }

    /// Ends the guard, but leaves the permits taken until `at_least` after they were acquired.
    ///
    /// Works as described for [`MutexGuard::keep_for`]. The permits are free at that time, although
    /// their key can last longer: it contains the permits of all holders.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// // Each of the 10 permits serves one call a minute.
    /// let rate = client.semaphore("api.example.com", 10);
    /// rate.acquire()?.keep_for(Duration::from_secs(60))?;
    /// assert_eq!(rate.available()?, 9);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`MutexGuard::keep_for`].
    pub fn keep_for(self, at_least: Duration) -> Result<(), Error> {
        self.guard.keep_for(at_least)
    }
}
