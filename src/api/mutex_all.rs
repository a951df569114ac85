//! The lock of several names: its settings, and the calls that acquire it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::calls::{ENDLESS, acquire_set, wait_limit};
use crate::api::guards::MutexAllGuard;
use crate::api::sections::section_calls;
use crate::api::settings::lock_settings;
use crate::client::acquire::WaitLimit;
use crate::client::shutdown::Core;
use crate::config::Settings;
use crate::error::Error;
use crate::name::Name;
use crate::set::names::SetNames;
use crate::taken::Taken;

/// A lock of several names, which acquires all of them or none.
///
/// [`Client::mutex_all`](crate::Client::mutex_all) makes it. It has the settings and calls of
/// [`Mutex`](crate::Mutex), except for local hand-offs and the calls for operators: use those of
/// [`Client::mutex`](crate::Client::mutex) for each name.
///
/// A name is the same lock alone and in a set. While one client holds it alone, a call that wants
/// it as part of a set waits, and the other way round.
///
/// # All or none
///
/// A guard exists only while all names are held. A free set takes one round trip to acquire: the
/// names are asked for in ascending order, in one write, each only if the one before was granted.
/// In a cluster that is one round trip for each slot, in the order of the slots; give the names one
/// hash tag, as in `{order:7}:stock` and `{order:7}:bill`.
///
/// If a name is refused, the call gives back those below it. Until then, for one round trip, other
/// calls find these taken, although no guard exists. Of overlapping sets that are asked for at the
/// same time, one gets all its names. Over a quorum the names are asked for side by side: two
/// `try_lock` of overlapping sets at the same time can both be refused.
///
/// Sets cannot deadlock with each other, in whatever order the callers list the names.
///
/// # Waiting
///
/// A set that is refused goes through its names in ascending order. For each it waits in the queue
/// in which all calls for that name wait, and it *keeps* the names that it has got. So it waits in
/// each queue once, however busy the names are.
///
/// The cost for other calls:
///
/// - A name that a waiting set keeps is held: other calls find it taken and wait for it, although
///   no guard exists. [`Client::list`](crate::Client::list) shows it like any other lease.
/// - A thread that holds a name and locks a lower one can wait for a set that keeps the lower name
///   and waits for the thread's name: a deadlock, as with two mutexes of the standard library.
///   [`try_lock_for`](Self::try_lock_for) ends it. Lock all names of a thread in one set.
/// - A process that is killed while its set waits keeps the names for at most 3 s.
///
/// Over a quorum, and in a client that is built with
/// [`queues(false)`](crate::ClientBuilder::queues), there is no such queue. The call then holds
/// none of the names while it waits, and tries all of them again when the name that refused it is
/// released. It may wait for long if every name is in constant demand.
///
/// # Loss
///
/// Each name has its own lease and its own holder id; the leases are renewed together. If one name
/// is lost, all are lost, once and for good, and the others are released in the background. After
/// [`max_hold`](Self::max_hold) they stay taken until the guard is dropped or their ttl ends,
/// because the critical section may still run.
///
/// [`set_ttl`](crate::Lease::set_ttl) and [`renew`](crate::Lease::renew) ask Redis for each name.
/// If one of them fails, the others may have been changed.
///
/// # Fencing tokens
///
/// Each name has its own token:
/// [`fencing_token_of`](MutexAllGuard::fencing_token_of). The resource must compare all of them
/// before the first read, because another holder may have locked only one of the names since:
/// see [fencing](crate::guide::fencing).
///
/// # Settings
///
/// Callbacks run once for the whole set. `on_renew` runs when each name has been renewed once more,
/// and reports the first name. In a cluster, `min_replicas` applies to the master of each slot.
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let guard = client.mutex_all(["account:1", "account:2"]).lock()?;
/// for name in guard.names() {
///     println!("{name} under token {}", guard.fencing_token_of(name).unwrap());
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct MutexAll {
    core: Arc<Core>,
    names: Arc<SetNames>,
    settings: Settings,
}

impl MutexAll {
    pub(super) fn new(core: Arc<Core>, names: Arc<SetNames>) -> Self {
        // Sets are never handed off.
        let settings = Settings {
            handoffs: Some(0),
            ..Settings::default()
        };
        Self {
            core,
            names,
            settings,
        }
    }

    fn acquire(&self, limit: WaitLimit) -> Result<Result<MutexAllGuard, Taken>, Error> {
        let lease = acquire_set(&self.core, &self.names, &self.settings, limit)?;
        Ok(lease.map(MutexAllGuard::new))
    }
}

lock_settings!(
    MutexAll,
    r#"let seats = client.mutex_all(["seat:12A", "seat:12B"])"#,
    "let guard = seats.lock()?;",
    settings
);

/// Acquiring.
impl MutexAll {
    /// Returns the names, each once, in the order in which they are acquired.
    ///
    /// They are sorted; in a cluster they are sorted by slot first.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let accounts = client.mutex_all(["account:2", "account:1", "account:2"]);
    /// assert_eq!(accounts.names(), ["account:1", "account:2"]);
    /// ```
    pub fn names(&self) -> &[Name] {
        self.names.names()
    }

    /// Acquires all names, waiting until they are granted.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex_all(["account:1", "account:2"]).lock()?;
    /// // … claim both rows, read them, move money between the two accounts …
    /// guard.unlock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::lock`](crate::Mutex::lock), and [`Error::Config`] if there is no
    /// name.
    pub fn lock(&self) -> Result<MutexAllGuard, Error> {
        Ok(self.acquire(WaitLimit::Endless)?.expect(ENDLESS))
    }

    /// Acquires all names if they are free; returns [`Taken`] if one is held.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let seats = client.mutex_all(["seat:12A", "seat:12B"]);
    /// # let other = server.hold("seat:12B");
    /// match seats.try_lock()? {
    ///     Ok(_guard) => println!("both seats are ours"),
    ///     Err(taken) => println!("not booked: {taken}"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::try_lock`](crate::Mutex::try_lock) and [`lock`](Self::lock).
    pub fn try_lock(&self) -> Result<Result<MutexAllGuard, Taken>, Error> {
        self.acquire(WaitLimit::None)
    }

    /// Acquires all names, waiting for at most `limit`; returns [`Taken`] if one is held then.
    ///
    /// The rule of [`Mutex::try_lock_for`](crate::Mutex::try_lock_for) decides between `Taken` and
    /// an error. It applies to the name that the call waits for.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let limit = Duration::from_millis(200);
    /// match client.mutex_all(["seat:12A", "seat:12B"]).try_lock_for(limit)? {
    ///     Ok(_guard) => println!("both seats are ours"),
    ///     Err(taken) => println!("not booked: {taken}"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::try_lock_for`](crate::Mutex::try_lock_for) and [`lock`](Self::lock).
    pub fn try_lock_for(&self, limit: Duration) -> Result<Result<MutexAllGuard, Taken>, Error> {
        self.acquire(wait_limit(limit))
    }
}

impl fmt::Debug for MutexAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MutexAll")
            .field("names", &self.names.names())
            .field("settings", &self.settings)
            .finish()
    }
}

section_calls!(
    MutexAll, MutexAllGuard, unlock, "client.mutex_all([\"report:1\", \"report:2\"])",
    lock: with, try_lock: try_with,
);
