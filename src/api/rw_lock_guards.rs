//! The guards of a read-write lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::api::guard::MutexGuard;
use crate::error::Error;
use crate::holder_id::HolderId;
use crate::lost::Lost;
use crate::name::Name;
use crate::protocol::primitive::Primitive;
use crate::token::FencingToken;

/// The guard of a reader. Dropping it releases the lock for this reader only.
///
/// Leases, loss and dropping work as described for [`MutexGuard`]. See [`RwLock`](crate::RwLock).
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let guard = client.rw_lock("catalogue").read()?;
/// guard.ensure_held()?;
/// println!("read as of token {}", guard.fencing_token());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "if unused the lock is released at once"]
#[clippy::has_significant_drop]
pub struct RwLockReadGuard {
    pub(super) guard: MutexGuard,
}

/// The guard of a writer, which holds the lock alone. Dropping it releases the lock.
///
/// Leases, loss and dropping work as described for [`MutexGuard`]. See [`RwLock`](crate::RwLock).
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
    guard: MutexGuard,
    reader: Arc<dyn Primitive>,
}

impl RwLockReadGuard {
    /// Returns the fencing token: the last one drawn for the name, that of the last writer.
    ///
    /// Readers share it with each other. The next writer's token is higher.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let catalogue = client.rw_lock("catalogue");
    /// let (one, two) = (catalogue.read()?, catalogue.try_read()?.expect("readers share it"));
    /// assert_eq!(one.fencing_token(), two.fencing_token());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn fencing_token(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// Returns the id of the lease, which is a member of the sorted set of readers in Redis.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let reading = client.rw_lock("catalogue").read()?;
    /// println!("reading as {}", reading.holder_id().short());
    /// # assert!(!reading.holder_id().owner().is_empty());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn holder_id(&self) -> &HolderId {
        self.guard.holder_id()
    }
}

impl RwLockWriteGuard {
    pub(super) fn new(guard: MutexGuard, reader: Arc<dyn Primitive>) -> Self {
        Self { guard, reader }
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
        let Self { guard, reader } = self;
        guard.downgrade(reader);
        RwLockReadGuard { guard }
    }

    /// Returns the fencing token, which is higher than that of every earlier holder.
    ///
    /// Pass it to the resource that the lock protects.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let catalogue = client.rw_lock("catalogue");
    /// let first_token = catalogue.write()?.fencing_token();
    /// assert!(catalogue.write()?.fencing_token() > first_token);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn fencing_token(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// Returns the id of the lease, which is the value of the lock's key in Redis.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let catalogue = client.rw_lock("catalogue");
    /// let writing = catalogue.write()?;
    /// let held = catalogue.inspect()?.expect("the guard holds it");
    /// assert_eq!(held.holders()[0].holder_id(), Some(writing.holder_id()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn holder_id(&self) -> &HolderId {
        self.guard.holder_id()
    }
}

/// Implements the calls that both guards have in common with [`MutexGuard`].
///
/// `$guard_example` is the line of the examples that acquires `guard`.
macro_rules! guard_calls {
    ($guard:ident, $guard_example:literal) => {
        impl $guard {
            /// Returns the lock's name.
            ///
            /// ```
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            #[doc = $guard_example]
            /// println!("{} is ours", guard.name());
            /// # assert_eq!(guard.name(), "catalogue");
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            pub fn name(&self) -> &Name {
                self.guard.name()
            }

            /// Returns true only if the lock is certainly held at this moment.
            ///
            /// Reads a local clock and does no I/O. If the key was deleted or the lock was released
            /// by force, the lock counts as held until the next renewal.
            ///
            /// ```
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            /// # let pages = ["title", "chapter 1"];
            #[doc = $guard_example]
            /// for page in pages {
            ///     if !guard.is_held() {
            ///         break; // the catalogue may be changing
            ///     }
            ///     println!("{page}");
            /// }
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            pub fn is_held(&self) -> bool {
                self.guard.is_held()
            }

            /// Returns how long the lock is certainly held without a renewal; `None` if it is lost.
            ///
            /// Reads a local clock and does no I/O. If the key was deleted or the lock was released
            /// by force, the lock counts as held until the next renewal.
            ///
            /// ```
            /// # use std::time::Duration;
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            #[doc = $guard_example]
            /// if guard.remaining() > Some(Duration::from_secs(2)) {
            ///     println!("there is time for a step of 2 s");
            /// }
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            pub fn remaining(&self) -> Option<Duration> {
                self.guard.remaining()
            }

            /// Returns an error unless the lock is certainly held.
            ///
            /// Reads a local clock and does no I/O. If the key was deleted or the lock was released
            /// by force, the lock counts as held until the next renewal.
            ///
            /// ```
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            /// # fn next_page() {}
            #[doc = $guard_example]
            /// guard.ensure_held()?;
            /// next_page();
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            ///
            /// # Errors
            ///
            /// [`Error::Lost`] if the lock is not certainly held at this moment.
            pub fn ensure_held(&self) -> Result<(), Error> {
                self.guard.ensure_held()
            }

            /// Returns a channel that receives one message when the lock is lost, for `select!`.
            ///
            /// The channel is disconnected after that message, or when the lock is released. Each
            /// call creates another channel, which the lease keeps until then: call this once,
            /// before a loop.
            ///
            /// ```
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            #[doc = $guard_example]
            /// let lost = guard.lost();
            /// // Between two steps, without blocking:
            /// if let Ok(why) = lost.try_recv() {
            ///     println!("stop: {why}");
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
            #[doc = $guard_example]
            /// // … one page …
            /// guard.renew()?; // the full ttl for the next one
            /// # assert!(guard.is_held());
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
            /// The lease lasts `ttl` from now on, whether that is longer or shorter than before.
            /// Returns within the command timeout. [`MutexGuard::set_ttl`] says what happens if
            /// Redis does not answer.
            ///
            /// ```
            /// # use std::time::Duration;
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            #[doc = $guard_example]
            /// guard.set_ttl(Duration::from_secs(60))?;
            /// # assert!(guard.remaining() > Some(Duration::from_secs(30)));
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            ///
            /// # Errors
            ///
            /// The errors of [`MutexGuard::set_ttl`].
            pub fn set_ttl(&self, ttl: Duration) -> Result<(), Error> {
                self.guard.set_ttl(ttl)
            }

            /// Releases the lock; fails if it was not held any more.
            ///
            /// Returns within the command timeout.
            ///
            /// ```
            /// use leasehold::Error;
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            ///
            #[doc = $guard_example]
            /// if let Err(Error::Lost(lost)) = guard.unlock() {
            ///     eprintln!("check the catalogue, a writer may have changed it: {lost}");
            /// }
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            ///
            /// # Errors
            ///
            /// The errors of [`MutexGuard::unlock`].
            pub fn unlock(self) -> Result<(), Error> {
                self.guard.unlock()
            }

            /// Ends the guard, but leaves the lock taken until `at_least` after it was acquired.
            ///
            /// Works as described for [`MutexGuard::keep_for`]. A reader keeps writers out until
            /// that time. The lock's key can last longer: until the leases of other readers end, or
            /// until this reader's lease would have ended without this call. Locks of other kinds
            /// with this name, such as a [`Mutex`](crate::Mutex), wait until the key expires.
            ///
            /// ```
            /// # use std::time::Duration;
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            #[doc = $guard_example]
            /// guard.keep_for(Duration::from_secs(60))?;
            /// assert!(client.rw_lock("catalogue").try_write()?.is_err());
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

        impl fmt::Debug for $guard {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.guard.fmt_as(stringify!($guard), f)
            }
        }
    };
}

guard_calls!(
    RwLockReadGuard,
    r#"let guard = client.rw_lock("catalogue").read()?;"#
);
guard_calls!(
    RwLockWriteGuard,
    r#"let guard = client.rw_lock("catalogue").write()?;"#
);
