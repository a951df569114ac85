//! The fair lock: first come, first served, across all processes.

use std::sync::Arc;
use std::time::Duration;

use crate::api::guards::MutexGuard;
use crate::api::mutex::Mutex;
use crate::api::sections::section_calls;
use crate::api::settings::lock_settings;
use crate::client::shutdown::Core;
use crate::error::Error;
use crate::holder::Holder;
use crate::name::Name;
use crate::protocol::primitive::Primitive;
use crate::taken::Taken;
use crate::token::FencingToken;

/// A lock that is granted to the call that has waited longest, across all processes.
///
/// [`Client::fair_mutex`](crate::Client::fair_mutex) makes it. It has the settings and calls of
/// [`Mutex`], except for local hand-offs, and behaves like it except as described below. Available
/// for one server, Sentinel and Cluster. Over a quorum of independent servers, the first call that
/// locks fails with [`Error::Config`].
///
/// # Fairness
///
/// Every waiting call has its own place in a queue in Redis, in the order in which Redis received
/// the calls. The release script makes the first call in the queue the holder and notifies its
/// client. The call then returns with the lock, without another round trip. A new call enters the
/// queue behind all others. If the lock is free and the queue empty, acquiring takes one round
/// trip, as with [`Mutex`]. `try_lock` never goes ahead of waiting calls.
///
/// Plain and fair locks with the same name exclude each other and wait in the same queue. The first
/// attempt of a [`Mutex::lock`] acquires a free lock even if calls wait in the queue. While a call
/// for the fair lock has one of the first 100 places there, a release leaves the lock free only in
/// these cases, and then until the next refresh:
///
/// - The grant fails or reaches no client.
/// - A reader of the [`RwLock`](crate::RwLock) of this name is next.
/// - An operator calls [`Mutex::force_unlock`].
/// - A plain lock or a set is released while its slot of a cluster moves, or by a client that is
///   built with [`queues(false)`](crate::ClientBuilder::queues).
///
/// Programs outside the queue may get the lock before a call behind 100 clients that wait for the
/// plain lock: see [sharing a lock](crate::guide::wire_format#sharing-a-lock-with-other-programs).
///
/// # Processes that die, pauses and lost messages
///
/// Each client refreshes the places of all its waiting threads every 0.9 s, or more often if the
/// ttl is shorter than 4 s, in a single command. A place that was not refreshed for 3 s, or for the
/// ttl if that is shorter, is skipped. A call that was paused for longer rejoins at the back of the
/// queue.
///
/// A lock that was granted after a wait first has a lease of at most 3 s, the time that the place
/// still had. The new holder's first renewal extends the lease to the full ttl. The client sends it
/// a few milliseconds after the grant, even without [`auto_renew`](Self::auto_renew).
///
/// - A process that is killed while it waits usually delays no other waiting call. Its connections
///   close, so the server knows that no client listens for the grant, and grants the lock to the
///   next call. If a grant was on its way to the process, the lock is taken for at most 3 s,
///   counted from the last refresh of its place.
/// - A process that is stopped, or whose machine fails or loses its network, delays the others by
///   at most 3 s, counted from its last refresh. In a cluster, or if the user lacks
///   `+pubsub|numsub`, so does a process that is killed: the server cannot tell whether its client
///   listens.
/// - [`try_lock`](Self::try_lock) returns [`Taken`] while the place of a killed or
///   stopped process lasts, even if the lock is free: for at most 3 s after the last refresh of
///   that process.
/// - A lost message or a deleted key delays the others by at most 0.9 s, until the next refresh. An
///   expiry delays nobody.
/// - A client whose subscription is broken refreshes four times as often. The calls behind it may
///   be granted the lock first, but only until its next refresh. From then on its call is next.
///
/// # Calls that receive no messages
///
/// A call learns of its grant from a refresh if Redis forbids subscribing or publishing, or if the
/// call uses [`WaitPolicy::Backoff`](crate::WaitPolicy::Backoff). Such calls are not strictly
/// first come, first served:
///
/// - If the lock is released while the call is first in the queue, the calls behind it may be
///   granted the lock until its next refresh. From then on the call is next. Its grant leaves the
///   lock unused until the refresh that reports the grant.
/// - A lock that is free goes to the call that refreshes first.
///
/// # Settings
///
/// Some settings of [`Mutex`] have further effects here:
///
/// - `renew_every`, `auto_renew`: after a wait, the first renewal is sent a few milliseconds after
///   the grant, even without `auto_renew`, and extends the lease to the full ttl. A lock that is
///   released before then needs no renewal.
/// - `wait_policy`: with [`WaitPolicy::Backoff`](crate::WaitPolicy::Backoff) a call keeps its
///   place. So no pause is longer than 0.9 s, and less if the ttl is shorter than 4 s. Each reply
///   that the call must wait longer counts as one attempt.
/// - `min_replicas`: a call that was granted the lock after a wait renews it before it returns,
///   because replicas acknowledge only renewals and acquires of a free lock.
///
/// ```
/// use std::time::Duration;
///
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let printer = client.fair_mutex("printer:2");
/// if let Ok(guard) = printer.try_lock_for(Duration::from_secs(60))? {
///     println!("printing under token {}", guard.fencing_token());
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct FairMutex(Mutex);

impl FairMutex {
    pub(super) fn new(core: Arc<Core>, keys: Arc<dyn Primitive>) -> Self {
        // The queue in Redis decides which call is next, not this client.
        Self(Mutex::new(core, keys).local_handoffs(0))
    }
}

lock_settings!(
    FairMutex,
    r#"let printer = client.fair_mutex("printer")"#,
    "let guard = printer.lock()?;",
    0.settings
);

/// Acquiring.
impl FairMutex {
    /// Acquires the lock after all earlier calls.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.fair_mutex("printer").lock()?; // behind all earlier calls
    /// // … print …
    /// drop(guard); // the call that has waited longest gets it
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::lock`], and [`Error::Config`] over a quorum.
    pub fn lock(&self) -> Result<MutexGuard, Error> {
        self.0.lock()
    }

    /// Acquires the lock if it is free and no call waits for it; otherwise returns [`Taken`].
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// match client.fair_mutex("printer").try_lock()? {
    ///     Ok(_guard) => println!("printing"),
    ///     Err(taken) => println!("not printing: {taken}"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::try_lock`] and [`lock`](Self::lock).
    pub fn try_lock(&self) -> Result<Result<MutexGuard, Taken>, Error> {
        self.0.try_lock()
    }

    /// Acquires the lock, waiting for at most `limit`; returns [`Taken`] if it is not granted.
    ///
    /// The rule of [`Mutex::try_lock_for`] decides between `Taken` and an error. A call that gives
    /// up leaves the queue. A lock granted at that moment passes to the next call.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let limit = Duration::from_secs(60);
    /// match client.fair_mutex("printer").try_lock_for(limit)? {
    ///     Ok(_guard) => println!("printing"),
    ///     Err(taken) => println!("not our turn within a minute: {taken}"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::try_lock_for`] and [`lock`](Self::lock).
    pub fn try_lock_for(&self, limit: Duration) -> Result<Result<MutexGuard, Taken>, Error> {
        self.0.try_lock_for(limit)
    }
}

section_calls!(
    FairMutex, MutexGuard, unlock, "client.fair_mutex(\"report\")",
    lock: with, try_lock: try_with,
);

/// For operators.
impl FairMutex {
    /// Returns the lock's name.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let printer = client.fair_mutex("printer");
    /// println!("waiting for {}", printer.name());
    /// # assert_eq!(printer.name(), "printer");
    /// ```
    pub fn name(&self) -> &Name {
        self.0.name()
    }

    /// Asks Redis for the holder of the lock; returns `None` if it is free.
    ///
    /// Returns within the command timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// if let Some(holder) = client.fair_mutex("printer").inspect()? {
    ///     println!("used by {holder}"); // web-3/812:1b9d6bcd, for another 8.2 s
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::inspect`].
    pub fn inspect(&self) -> Result<Option<Holder>, Error> {
        self.0.inspect()
    }

    /// Returns the length of the queue of this name in Redis, across all processes.
    ///
    /// It is the queue of the [`Mutex`] and the [`RwLock`](crate::RwLock) of this name, too:
    /// [`Mutex::waiting`] lists the calls that have a place in it. Returns within the command
    /// timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let printer = client.fair_mutex("printer");
    /// println!("{} calls are in the queue", printer.waiting()?);
    /// # assert_eq!(printer.waiting()?, 0);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::inspect`]. The call needs the permission `+llen`.
    pub fn waiting(&self) -> Result<u64, Error> {
        self.0.queue_length()
    }

    /// Returns how long the first place in the queue has waited; `None` if there is none.
    ///
    /// [`Mutex::waiting`] lists the calls that have a place in it. The time is by the clock of the
    /// server. Returns within the command timeout.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let printer = client.fair_mutex("printer");
    /// if printer.longest_wait()? > Some(Duration::from_secs(30)) {
    ///     eprintln!("somebody has waited for the printer for more than 30 s");
    /// }
    /// # assert_eq!(printer.longest_wait()?, None);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::inspect`]. The call needs the permissions `+lindex`, `+hget` and
    /// `+time`.
    pub fn longest_wait(&self) -> Result<Option<Duration>, Error> {
        self.0.longest_wait()
    }

    /// Returns the last fencing token that was drawn for the name, whether it is held or free now.
    ///
    /// Returns `None` if no token was drawn for 25 hours, and may do so after 24. Returns within
    /// the command timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let printer = client.fair_mutex("printer");
    /// let guard = printer.lock()?;
    /// assert_eq!(printer.last_fencing_token()?, Some(guard.fencing_token()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::last_fencing_token`].
    pub fn last_fencing_token(&self) -> Result<Option<FencingToken>, Error> {
        self.0.last_fencing_token()
    }

    /// Releases the lock on behalf of its holder; returns true if it was released.
    ///
    /// The first call in the queue is granted the lock. Use it only if you know that the holder is
    /// dead: [`Mutex::force_unlock`] says how a live holder finds out.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let printer = client.fair_mutex("printer");
    /// # server.hold("printer").forget();
    /// // The machine that held the lock has burnt down, and the lock's ttl is a day.
    /// if printer.force_unlock()? {
    ///     println!("the next call in the queue has the printer");
    /// }
    /// # assert!(printer.inspect()?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::force_unlock`].
    pub fn force_unlock(&self) -> Result<bool, Error> {
        self.0.force_unlock()
    }

    /// Releases the lock if `holder` still holds it; returns true if it was released.
    ///
    /// Like [`force_unlock`](Self::force_unlock), but never takes the lock from any holder but the
    /// one that [`inspect`](Self::inspect) has shown. Returns within the command timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// # let is_dead = |_: &leasehold::Holder| true;
    /// let printer = client.fair_mutex("printer");
    /// # server.hold("printer").forget();
    /// if let Some(holder) = printer.inspect()?
    ///     && is_dead(&holder)
    /// {
    ///     printer.force_unlock_from(&holder)?;
    /// }
    /// # assert!(printer.inspect()?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::force_unlock`].
    pub fn force_unlock_from(&self, holder: &Holder) -> Result<bool, Error> {
        self.0.force_unlock_from(holder)
    }
}
