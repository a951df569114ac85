//! The semaphore: its settings, and the calls that acquire its permits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::calls::{ENDLESS, wait_limit};
use crate::api::guards::SemaphorePermit;
use crate::api::mutex::Mutex;
use crate::api::sections::section_calls;
use crate::api::settings::lock_settings;
use crate::client::acquire::WaitLimit;
use crate::client::list::MOST_HOLDERS;
use crate::client::query::query;
use crate::client::shutdown::Core;
use crate::error::Error;
use crate::held::Held;
use crate::holder_id::HolderId;
use crate::logging;
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::permits_out::PermitsOut;
use crate::protocol::primitive::{AtRelease, Primitive};
use crate::protocol::semaphore::SemaphoreKeys;
use crate::redis::Cap;
use crate::taken::Taken;

/// A number of permits that calls share, across processes and machines.
///
/// [`Client::semaphore`](crate::Client::semaphore) makes it. Making, cloning and configuring a
/// semaphore is cheap and does no I/O. Setters consume and return the semaphore and never fail: the
/// first call that acquires reports an invalid value. Available for one server, Sentinel and
/// Cluster. Over a quorum of independent servers, the first call fails with [`Error::Config`].
///
/// A semaphore has nothing to do with the locks of the same name, even if it has a single permit.
///
/// # Leases
///
/// The permits of a call have a lease, like a lock, which a background thread renews. The permits
/// of a process that crashes come back after the [`ttl`](Self::ttl): waiting calls get them when it
/// ends. A holder that loses its permits finds out as described for [`Lease`](crate::Lease#loss).
/// Redis drops permits by the clock of its master. After a failover to a replica whose clock is
/// ahead or behind, they end earlier or later by as much.
///
/// # Order
///
/// Permits are granted in the order in which Redis received the calls, across all processes. A
/// release grants them to the calls that have waited longest and notifies their clients. The calls
/// then return without another round trip. If permits are free and no call waits, acquiring takes
/// one round trip. [`try_acquire`](Self::try_acquire) never overtakes.
///
/// A call that wants [many](Self::many) permits is not overtaken either. While it is the first in
/// the queue, free permits that are too few for it stay unused.
///
/// A process that is killed, stopped or cut off while it waits keeps its place for at most 3 s from
/// its last refresh, or for the ttl if that is shorter. Until then, `try_acquire` is refused even
/// if permits are free, and the place can delay other waiting calls. The place of a killed process
/// delays them only if a grant was on its way to it, in a cluster, or if the user of the other
/// clients lacks `+pubsub|numsub`.
///
/// # Different numbers
///
/// The number of permits is not stored in Redis. Each call waits until its permits and those that
/// are out are at most the number in *its* client. If one client says 5 and another 10, at most 10
/// permits are out, and the client with 5 gets none while 5 or more are out. No permit is revoked.
/// Calls keep their order: while the call with 5 is the first in the queue, calls with 10 wait
/// behind it.
///
/// ```
/// use std::time::Duration;
///
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let api = client.semaphore("api.example.com", 10).ttl(Duration::from_secs(30));
/// match api.try_acquire_for(Duration::from_secs(5))? {
///     Ok(permit) => println!("calling, with {} permit", permit.count()),
///     Err(taken) => println!("not calling: {taken}"),
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct Semaphore {
    lock: Mutex,
    /// The same keys as those of `lock`.
    keys: Arc<SemaphoreKeys>,
    name: Name,
    permits: u32,
    many: u32,
}

impl Semaphore {
    pub(super) fn new(core: Arc<Core>, name: Name, permits: u32) -> Self {
        let many = 1;
        let lock = core.runtime.keys(name.clone());
        let keys = Arc::new(SemaphoreKeys::of(lock, permits, many));
        let primitive = Arc::clone(&keys) as Arc<dyn Primitive>;
        Self {
            // The queue in Redis decides which call is next, not this client.
            lock: Mutex::new(core, primitive).local_handoffs(0),
            keys,
            name,
            permits,
            many,
        }
    }

    /// Sets how many permits a call acquires: all of them or none. Defaults to 1.
    ///
    /// With 0, or more than the semaphore has, the first call fails with [`Error::Config`].
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let memory = client.semaphore("worker-7:gigabytes", 64);
    /// let permit = memory.many(12).acquire()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn many(mut self, permits: u32) -> Self {
        let lock = self.lock.core.runtime.keys(self.name.clone());
        self.many = permits;
        self.keys = Arc::new(SemaphoreKeys::of(lock, self.permits, permits));
        self.lock.keys = Arc::clone(&self.keys) as Arc<dyn Primitive>;
        self
    }
}

lock_settings!(
    Semaphore,
    r#"let api = client.semaphore("api.example.com", 10)"#,
    "let permit = api.acquire()?;",
    lock.settings
);

/// Acquiring.
impl Semaphore {
    /// Acquires the permits, waiting behind all earlier calls until they are granted.
    ///
    /// The call waits through other holders and outages of Redis. It gives up only if Redis has not
    /// answered for [`unreachable_for`](crate::ClientBuilder::unreachable_for).
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let permit = client.semaphore("api.example.com", 10).acquire()?;
    /// // … at most 10 calls at a time, from all processes together …
    /// permit.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::lock`], and [`Error::Config`] if the numbers of permits are invalid,
    /// or over a quorum.
    pub fn acquire(&self) -> Result<SemaphorePermit, Error> {
        let permit = self.acquire_within(WaitLimit::Endless)?;
        Ok(permit.expect(ENDLESS))
    }

    /// Acquires the permits if they are free and no call waits; otherwise says how many are out.
    ///
    /// Returns within the command timeout, 1 s unless set.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// match client.semaphore("api.example.com", 10).try_acquire()? {
    ///     Ok(_permit) => println!("calling"),
    ///     Err(taken) => println!("not calling: {taken}"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::try_lock`] and [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> Result<Result<SemaphorePermit, Taken>, Error> {
        self.acquire_within(WaitLimit::None)
    }

    /// Acquires the permits, waiting for at most `limit`.
    ///
    /// Returns [`Taken`] if they were not granted in that time. The rule of
    /// [`Mutex::try_lock_for`] decides between `Taken` and an error, without its first condition:
    /// it does not matter whether this client holds permits. A call that gives up leaves the queue.
    /// Permits granted at that moment pass to the next call.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let limit = Duration::from_secs(5);
    /// match client.semaphore("api.example.com", 10).try_acquire_for(limit)? {
    ///     Ok(_permit) => println!("calling"),
    ///     Err(taken) => println!("no permit was free for 5 s: {taken}"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::try_lock_for`] and [`acquire`](Self::acquire).
    pub fn try_acquire_for(
        &self,
        limit: Duration,
    ) -> Result<Result<SemaphorePermit, Taken>, Error> {
        self.acquire_within(wait_limit(limit))
    }

    fn acquire_within(&self, limit: WaitLimit) -> Result<Result<SemaphorePermit, Taken>, Error> {
        let lease = self.lock.acquire(limit)?;
        Ok(lease.map(|lease| SemaphorePermit::new(lease, self.many)))
    }
}

section_calls!(
    Semaphore, SemaphorePermit, release, "client.semaphore(\"report\", 2)",
    acquire: with, try_acquire: try_with,
);

/// For operators.
impl Semaphore {
    /// Returns the semaphore's name.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let api = client.semaphore("api.example.com", 10);
    /// println!("waiting for {}", api.name());
    /// # assert_eq!(api.name(), "api.example.com");
    /// ```
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Asks Redis how many permits are free: the number of permits less those that are out.
    ///
    /// Returns 0 if more permits than that are out, because other clients have a higher number.
    /// Calls that wait in the queue do not count. Returns within the command timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let api = client.semaphore("api.example.com", 10);
    /// let permit = api.acquire()?;
    /// assert_eq!(api.available()?, 9);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::inspect`].
    pub fn available(&self) -> Result<u32, Error> {
        let out = self.permits_out(0)?.out;
        Ok(self
            .permits
            .saturating_sub(u32::try_from(out).unwrap_or(u32::MAX)))
    }

    /// Asks Redis for the permits that are out and their holders; `None` if none are.
    ///
    /// Returns within the command timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let api = client.semaphore("api.example.com", 10);
    /// # let permit = api.acquire()?;
    /// if let Some(held) = api.inspect()? {
    ///     println!("{} permits are out", held.permits());
    ///     for holder in held.holders() {
    ///         println!("{holder}"); // web-1/4711:ef052da9, 1 permit, for another 9.9 s
    ///     }
    ///     # assert_eq!(held.fencing_token(), Some(permit.fencing_token()));
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::inspect`].
    pub fn inspect(&self) -> Result<Option<Held>, Error> {
        let held = self.permits_out(MOST_HOLDERS)?.of(self.name.clone());
        Ok(Some(held).filter(|held| held.permits() > 0))
    }

    /// Returns the length of the queue of this semaphore in Redis, across all processes.
    ///
    /// Each waiting call has a place in it. The place of a dead process counts until the queue
    /// moves past it, or for 6 s if no other call waits. Returns within the command timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let api = client.semaphore("api.example.com", 10);
    /// println!("{} calls wait for a permit", api.waiting()?);
    /// # assert_eq!(api.waiting()?, 0);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::inspect`]. The call needs the permission `+llen`.
    pub fn waiting(&self) -> Result<u64, Error> {
        self.lock.queue_length()
    }

    /// Returns how long the first call in the queue has waited; `None` if no call waits.
    ///
    /// The time is by the server's clock. Returns within the command timeout.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let api = client.semaphore("api.example.com", 10);
    /// if api.longest_wait()? > Some(Duration::from_secs(30)) {
    ///     eprintln!("somebody has waited for a permit for more than 30 s");
    /// }
    /// # assert_eq!(api.longest_wait()?, None);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::inspect`]. The call needs the permissions `+lindex`, `+hget` and
    /// `+time`.
    pub fn longest_wait(&self) -> Result<Option<Duration>, Error> {
        self.lock.longest_wait()
    }

    /// Releases the permits of this holder on its behalf; returns true if it had any.
    ///
    /// [`inspect`](Self::inspect) lists the holders, each with its
    /// [`holder_id`](crate::Holder::holder_id). The permits are granted to the first calls in the
    /// queue. Returns within the command timeout.
    ///
    /// Use it only if you know that the holder is dead. A live one finds out at its next renewal.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// # let is_dead = |_: &str| true;
    /// let api = client.semaphore("api.example.com", 10);
    /// # let permit = api.acquire()?;
    /// if let Some(held) = api.inspect()? {
    ///     for id in held.holders().iter().filter_map(|holder| holder.holder_id()) {
    ///         if is_dead(id.owner()) {
    ///             api.force_release(id)?;
    ///         }
    ///     }
    /// }
    /// # assert_eq!(api.available()?, 10);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::inspect`]. After [`Error::Unreachable`] the permits may have been
    /// released.
    pub fn force_release(&self, holder: &HolderId) -> Result<bool, Error> {
        self.lock.check()?;
        self.lock.core.runtime.check_not_closed()?;
        let call = self
            .keys
            .release(holder.as_str().as_bytes(), AtRelease::Usual);
        let is_released = self.lock.release_by(call)?;
        if is_released {
            logging::warn!(
                name:% = self.name;
                "forced the release of permits of {}, held by {}", self.name, holder.short()
            );
        }
        Ok(is_released)
    }

    fn permits_out(&self, holders: u32) -> Result<PermitsOut, Error> {
        let runtime = &self.lock.core.runtime;
        self.lock.check()?;
        let call = || self.keys.inspect_permits(holders);
        let ask = |until| runtime.deployment.call(call(), until, Cap::Counted);
        match query(runtime, ask)? {
            Answer::Permits(found) => Ok(found),
            _ => Ok(PermitsOut::default()),
        }
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("name", &self.name)
            .field("permits", &self.permits)
            .field("many", &self.many)
            .field("settings", &self.lock.settings)
            .finish()
    }
}
