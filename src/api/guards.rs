//! The guards of held locks and permits.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::api::lease::Lease;
use crate::error::Error;
use crate::holder_id::HolderId;
use crate::name::Name;
use crate::protocol::primitive::Primitive;
use crate::token::FencingToken;

/// The guard of a held lock. Dropping it releases the lock.
///
/// The guard of a [`Mutex`](crate::Mutex) and of a [`FairMutex`](crate::FairMutex). Its
/// [`Lease`] has the calls that all guards share, and describes loss and release.
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let guard = client.mutex("nightly-report").lock()?;
/// for page in 0..100 {
///     guard.ensure_held()?;
///     println!("page {page}, token {}", guard.fencing_token());
/// }
/// guard.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "if unused the lock is released at once"]
#[clippy::has_significant_drop]
pub struct MutexGuard {
    lease: Lease,
}

/// The guard of a held set of names. Dropping it releases all of them.
///
/// Its [`Lease`] is held while each name is. See [`MutexAll`](crate::MutexAll).
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let guard = client.mutex_all(["stock:apples", "stock:pears"]).lock()?;
/// guard.ensure_held()?;
/// guard.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "if unused the locks are released at once"]
#[clippy::has_significant_drop]
pub struct MutexAllGuard {
    lease: Lease,
}

/// The guard of a reader. Dropping it releases the lock for this reader only.
///
/// Its [`Lease`] has the calls that all guards share. See [`RwLock`](crate::RwLock).
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let catalogue = client.rw_lock("catalogue");
/// let (one, two) = (catalogue.read()?, catalogue.read()?);
/// one.ensure_held()?;
/// println!("read as of token {}", one.fencing_token());
/// assert_eq!(one.fencing_token(), two.fencing_token());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "if unused the lock is released at once"]
#[clippy::has_significant_drop]
pub struct RwLockReadGuard {
    lease: Lease,
}

/// The guard of a writer, which holds the lock alone. Dropping it releases the lock.
///
/// Its [`Lease`] has the calls that all guards share. See [`RwLock`](crate::RwLock).
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let guard = client.rw_lock("catalogue").write()?;
/// println!("writing under token {}", guard.fencing_token());
/// let guard = guard.downgrade(); // admits other readers, but no writer in between
/// guard.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "if unused the lock is released at once"]
#[clippy::has_significant_drop]
pub struct RwLockWriteGuard {
    lease: Lease,
    reader: Arc<dyn Primitive>,
}

/// The guard of the permits that a call has acquired. Dropping it releases them.
///
/// The permits share one [`Lease`] and are released together. See
/// [`Semaphore`](crate::Semaphore).
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
#[must_use = "if unused the permits are released at once"]
#[clippy::has_significant_drop]
pub struct SemaphorePermit {
    lease: Lease,
    count: u32,
}

impl MutexGuard {
    pub(super) fn new(lease: Lease) -> Self {
        Self { lease }
    }
}

impl MutexAllGuard {
    pub(super) fn new(lease: Lease) -> Self {
        Self { lease }
    }

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
        self.lease.names()
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
        self.lease.fencing_token_of(&name.into())
    }

    /// Returns the holder id of `name`, which is the value of its key.
    ///
    /// Returns `None` if `name` is not part of this set.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex_all(["account:1", "account:2"]).lock()?;
    /// let holder = client.mutex("account:2").inspect()?.expect("it is held");
    /// assert_eq!(holder.holder_id(), guard.holder_id_of("account:2"));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn holder_id_of(&self, name: impl Into<Name>) -> Option<&HolderId> {
        self.lease.holder_id_of(&name.into())
    }
}

impl RwLockReadGuard {
    pub(super) fn new(lease: Lease) -> Self {
        Self { lease }
    }
}

impl RwLockWriteGuard {
    pub(super) fn new(lease: Lease, reader: Arc<dyn Primitive>) -> Self {
        Self { lease, reader }
    }

    /// Makes this writer a reader. No other call can write in between.
    ///
    /// The lease is renewed for the full ttl, and keeps its holder id and its token. Readers at the
    /// front of the queue are granted the lock, too. Returns once Redis has answered, and within
    /// the command timeout.
    ///
    /// This cannot fail. If Redis does not answer, every later renewal repeats the request. Until
    /// one has run, other readers are kept out. Without [`auto_renew`](crate::RwLock::auto_renew)
    /// that can last until the lease ends. If the lock is lost, the new guard reports it like every
    /// other guard.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let catalogue = client.rw_lock("catalogue");
    /// let writing = catalogue.write()?;
    /// // … change the catalogue …
    /// let reading = writing.downgrade(); // … and read it: no other writer came in between
    /// assert!(catalogue.try_read()?.is_ok());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn downgrade(self) -> RwLockReadGuard {
        let Self { lease, reader } = self;
        lease.downgrade(&reader);
        RwLockReadGuard { lease }
    }
}

impl SemaphorePermit {
    pub(super) fn new(lease: Lease, count: u32) -> Self {
        Self { lease, count }
    }

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
}

/// Implements what all guards share, with the name of the call that releases, what it releases, and
/// the line of its example that acquires `guard`.
macro_rules! guards {
    ($($guard:ident: $release:ident, $what:literal, $acquire:literal;)+) => {$(
        impl $guard {
            #[doc = concat!("Releases ", $what, "; fails if the lease was over.")]
            ///
            /// Returns within the command timeout. Does nothing after
            /// [`keep_for`](Lease::keep_for).
            ///
            /// ```
            /// use leasehold::Error;
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            ///
            #[doc = $acquire]
            /// // … work …
            #[doc = concat!(
                "if let Err(Error::Lost(lost)) = guard.", stringify!($release), "() {"
            )]
            ///     eprintln!("check the work, it may have overlapped with another holder: {lost}");
            /// }
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            ///
            /// # Errors
            ///
            /// [`Lease`](Lease#release) lists them.
            pub fn $release(self) -> Result<(), Error> {
                self.lease.release()
            }
        }

        impl Deref for $guard {
            type Target = Lease;

            fn deref(&self) -> &Lease {
                &self.lease
            }
        }

        impl fmt::Debug for $guard {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.fmt_as(stringify!($guard), f)
            }
        }
    )+};
}

guards!(
    MutexGuard: unlock, "the lock", r#"let guard = client.mutex("report").lock()?;"#;
    MutexAllGuard: unlock, "all names", r#"let guard = client.mutex_all(["a", "b"]).lock()?;"#;
    RwLockReadGuard: unlock, "the lock", r#"let guard = client.rw_lock("report").read()?;"#;
    RwLockWriteGuard: unlock, "the lock", r#"let guard = client.rw_lock("report").write()?;"#;
    SemaphorePermit: release, "the permits", r#"let guard = client.semaphore("api", 10).acquire()?;"#;
);
