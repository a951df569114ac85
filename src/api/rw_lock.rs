//! The read-write lock: several readers, or one writer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::calls::{ENDLESS, acquire, wait_limit};
use crate::api::guards::{RwLockReadGuard, RwLockWriteGuard};
use crate::api::mutex::Mutex;
use crate::api::sections::section_calls;
use crate::api::settings::lock_settings;
use crate::client::acquire::{WaitLimit, is_held_by_us};
use crate::client::query::query;
use crate::client::shutdown::Core;
use crate::config::Settings;
use crate::error::Error;
use crate::held::Held;
use crate::holder::Holder;
use crate::logging;
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::primitive::Primitive;
use crate::protocol::rw_lock::RwLockKeys;
use crate::redis::Cap;
use crate::taken::Taken;
use crate::token::FencingToken;

/// A lock that several readers hold together, or one writer alone, across processes and machines.
///
/// [`Client::rw_lock`](crate::Client::rw_lock) makes it. It has the settings of [`Mutex`], except
/// for local hand-offs, and its leases behave as described there. Available for one server,
/// Sentinel and Cluster. Over a quorum of independent servers, the first call that locks fails with
/// [`Error::Config`].
///
/// # Fairness
///
/// Calls that wait have entries in the same queue in Redis as those of a
/// [`FairMutex`](crate::FairMutex) of this name, and are granted the lock in the order in which
/// they entered. Readers that are neighbours in the queue get it together. A reader goes behind a
/// writer that waits, even while other readers hold the lock. So neither side starves. Readers that
/// arrive later do not delay a writer: it waits only for calls ahead of it in the queue and for
/// the current holders.
///
/// `FairMutex` states the limits for processes that die, pauses and lost messages. They apply here,
/// too. What it says about `try_lock` applies to `try_read` and `try_write`. A reader that crashes
/// keeps writers out until its own lease ends, whatever other readers do.
///
/// # Other locks of this name
///
/// A writer holds the name exactly as a mutex does. Readers exclude every [`Mutex`], `FairMutex`
/// and [`MutexAll`](crate::MutexAll) of the name, and every program that acquires its key with
/// `SET NX`; each of these excludes readers. A `Mutex` and a set wait in the same queue. The first
/// attempt of a `Mutex` acquires a free lock even if calls wait in the queue.
///
/// # Fencing tokens
///
/// A writer's token is higher than that of every holder before it. A reader has the last token
/// drawn for the name, that of the last writer, and shares it with the other readers.
///
/// A reader's token is no version of the data. After a restart from a snapshot, or a failover that
/// lost the last writes, a reader finds the token of an earlier writer again. So let each writer
/// store its token with the data. A cache can use that as a version, as `examples/catalogue.rs`
/// does:
///
/// - Hold a read guard, and read the token that is stored with the data. Use a page whose stamp
///   equals it.
/// - Otherwise load the page under that guard, and put it into the cache with that token as its
///   stamp. The cache rejects a stamp that is lower than its own.
///
/// Such a page is current if both of these hold:
///
/// - Every writer stores a token that it has drawn. A program that locks with `SET NX` draws none.
/// - No writer writes after it has lost the lock. A resource that checks tokens accepts such a late
///   write until the next writer writes.
///
/// So limit the age of pages, too.
///
/// Before the first writer, and once no token was drawn for 24 to 25 hours, the first reader draws
/// a token that the others share.
///
/// # Not reentrant
///
/// A thread that reads again under its own read guard may wait for ever: for a writer that waits
/// for the first guard. A debug build logs a warning. A read guard cannot become a write guard,
/// because two readers that tried it would wait for each other. Drop it, call
/// [`write`](Self::write), and read the data again: another writer may have been in between. The
/// new guard's token does not show that: keep a version with the data, and compare versions.
/// A write guard can become a read guard: [`RwLockWriteGuard::downgrade`].
///
/// ```
/// use std::time::Duration;
///
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let catalogue = client.rw_lock("catalogue");
/// let reading = catalogue.read()?;
/// println!("filling the cache, as of token {}", reading.fencing_token());
/// drop(reading);
/// if let Ok(writing) = catalogue.try_write_for(Duration::from_secs(5))? {
///     println!("updating under token {}", writing.fencing_token());
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct RwLock {
    core: Arc<Core>,
    /// The keys of readers, for the calls that only a read-write lock has.
    keys: Arc<RwLockKeys>,
    /// The same object as `keys`, for the calls of every kind of lock.
    reader: Arc<dyn Primitive>,
    writer: Arc<dyn Primitive>,
    settings: Settings,
}

impl RwLock {
    pub(super) fn new(core: Arc<Core>, reader: Arc<RwLockKeys>, writer: Arc<RwLockKeys>) -> Self {
        let settings = Settings {
            // The queue in Redis decides which call is next, not this client.
            handoffs: Some(0),
            ..Settings::default()
        };
        Self {
            core,
            reader: Arc::clone(&reader) as Arc<dyn Primitive>,
            keys: reader,
            writer,
            settings,
        }
    }
}

lock_settings!(
    RwLock,
    r#"let catalogue = client.rw_lock("catalogue")"#,
    "let guard = catalogue.read()?;",
    settings
);

/// Reading.
impl RwLock {
    /// Acquires the lock for reading, waiting behind all calls that entered the queue earlier.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let reading = client.rw_lock("catalogue").read()?;
    /// // … other readers may be here, too, but no writer …
    /// reading.unlock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::lock`], and [`Error::Config`] over a quorum.
    pub fn read(&self) -> Result<RwLockReadGuard, Error> {
        let guard = self.acquire_read(WaitLimit::Endless)?;
        Ok(guard.expect(ENDLESS))
    }

    /// Acquires the lock for reading if no writer holds it and no call waits; otherwise says who
    /// has it.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// match client.rw_lock("catalogue").try_read()? {
    ///     Ok(_reading) => println!("filling the cache"),
    ///     Err(taken) => println!("serving the old page: {taken}"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::try_lock`] and [`read`](Self::read).
    pub fn try_read(&self) -> Result<Result<RwLockReadGuard, Taken>, Error> {
        self.acquire_read(WaitLimit::None)
    }

    /// Acquires the lock for reading, waiting for at most `limit`.
    ///
    /// Returns [`Taken`] if the lock was not granted in that time. The rule of
    /// [`Mutex::try_lock_for`] decides between `Taken` and an error. A call that gives up leaves
    /// the queue.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let limit = Duration::from_millis(200);
    /// match client.rw_lock("catalogue").try_read_for(limit)? {
    ///     Ok(_reading) => println!("filling the cache"),
    ///     Err(taken) => println!("serving the old page: {taken}"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::try_lock_for`] and [`read`](Self::read).
    pub fn try_read_for(&self, limit: Duration) -> Result<Result<RwLockReadGuard, Taken>, Error> {
        self.acquire_read(wait_limit(limit))
    }

    fn acquire_read(&self, limit: WaitLimit) -> Result<Result<RwLockReadGuard, Taken>, Error> {
        if cfg!(debug_assertions) {
            // Takes locks, which a thread of the parent may have had at a fork.
            self.core.runtime.process.check()?;
            self.warn_of_reading_again(limit);
        }
        let lease = acquire(&self.core, &self.reader, &self.settings, limit)?;
        Ok(lease.map(RwLockReadGuard::new))
    }

    /// Warns, in debug builds, of a call that may wait for a writer that waits for this thread.
    fn warn_of_reading_again(&self, limit: WaitLimit) {
        let name = self.reader.key(0).name;
        let (is_held_by_us, must_wait) = match limit {
            WaitLimit::None => (false, false),
            _ => is_held_by_us(&self.core.runtime, &self.reader),
        };
        // Under this thread's write guard the call waits, and the wait itself logs a warning.
        if is_held_by_us && !must_wait {
            logging::warn!(
                name:% = name;
                "this thread reads {name} again under its own guard: the call waits for ever if a \
                 writer waits for that guard"
            );
        }
    }
}

/// Writing.
impl RwLock {
    /// Acquires the lock for writing, waiting behind all calls that entered the queue earlier.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let writing = client.rw_lock("catalogue").write()?;
    /// println!("changing the catalogue under token {}", writing.fencing_token());
    /// writing.unlock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::lock`], and [`Error::Config`] over a quorum.
    pub fn write(&self) -> Result<RwLockWriteGuard, Error> {
        let guard = self.acquire_write(WaitLimit::Endless)?;
        Ok(guard.expect(ENDLESS))
    }

    /// Acquires the lock for writing if it is free and no call waits; otherwise returns [`Taken`].
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let catalogue = client.rw_lock("catalogue");
    /// # let reading = catalogue.read()?;
    /// match catalogue.try_write()? {
    ///     Ok(_writing) => println!("changing the catalogue"),
    ///     Err(taken) => println!("postponed: {taken}"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::try_lock`] and [`write`](Self::write).
    pub fn try_write(&self) -> Result<Result<RwLockWriteGuard, Taken>, Error> {
        self.acquire_write(WaitLimit::None)
    }

    /// Acquires the lock for writing, waiting for at most `limit`.
    ///
    /// Returns [`Taken`] if the lock was not granted in that time. The rule of
    /// [`Mutex::try_lock_for`] decides between `Taken` and an error. A call that gives up leaves
    /// the queue.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let limit = Duration::from_secs(5);
    /// match client.rw_lock("catalogue").try_write_for(limit)? {
    ///     Ok(_writing) => println!("changing the catalogue"),
    ///     Err(taken) => println!("postponed: {taken}"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::try_lock_for`] and [`write`](Self::write).
    pub fn try_write_for(&self, limit: Duration) -> Result<Result<RwLockWriteGuard, Taken>, Error> {
        self.acquire_write(wait_limit(limit))
    }

    fn acquire_write(&self, limit: WaitLimit) -> Result<Result<RwLockWriteGuard, Taken>, Error> {
        let lease = acquire(&self.core, &self.writer, &self.settings, limit)?;
        Ok(lease.map(|lease| RwLockWriteGuard::new(lease, Arc::clone(&self.reader))))
    }
}

section_calls!(
    RwLock, RwLockReadGuard, unlock, "client.rw_lock(\"report\")",
    read: read_with, try_read: try_read_with,
);

section_calls!(
    RwLock, RwLockWriteGuard, unlock, "client.rw_lock(\"report\")",
    write: write_with, try_write: try_write_with,
);

/// For operators.
impl RwLock {
    /// Returns the lock's name.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let catalogue = client.rw_lock("catalogue");
    /// println!("waiting for {}", catalogue.name());
    /// # assert_eq!(catalogue.name(), "catalogue");
    /// ```
    pub fn name(&self) -> &Name {
        self.reader.key(0).name
    }

    /// Asks Redis for the holders of the lock; returns `None` if it is free.
    ///
    /// It is [shared](Held::is_shared) if readers hold it. Returns within the command timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// match client.rw_lock("catalogue").inspect()? {
    ///     Some(held) if held.is_shared() => println!("read by {} readers", held.holders().len()),
    ///     Some(held) => println!("being changed by {}", held.holders()[0]),
    ///     None => println!("free"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::inspect`], and [`Error::Config`] over a quorum.
    pub fn inspect(&self) -> Result<Option<Held>, Error> {
        let deployment = &self.core.runtime.deployment;
        self.core.runtime.process.check()?;
        self.core.runtime.check(&self.reader)?;
        let ask = |until| deployment.call(self.keys.holders(), until, Cap::Counted);
        Ok(match query(&self.core.runtime, ask)? {
            Answer::Holders { is_shared, holders } if !holders.is_empty() => {
                Some(Held::of_lock(self.name().clone(), is_shared, holders))
            }
            _ => None,
        })
    }

    /// Returns the length of the queue of this name in Redis, across all processes.
    ///
    /// It is the queue of the [`Mutex`] and the [`FairMutex`](crate::FairMutex) of this name, too:
    /// [`Mutex::waiting`] lists the calls that have a place in it. Returns within the command
    /// timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let catalogue = client.rw_lock("catalogue");
    /// println!("{} calls are in the queue", catalogue.waiting()?);
    /// # assert_eq!(catalogue.waiting()?, 0);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`inspect`](Self::inspect). The call needs the permission `+llen`.
    pub fn waiting(&self) -> Result<u64, Error> {
        self.as_mutex().queue_length()
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
    /// let catalogue = client.rw_lock("catalogue");
    /// if catalogue.longest_wait()? > Some(Duration::from_secs(30)) {
    ///     eprintln!("a reader or a writer has waited for more than 30 s");
    /// }
    /// # assert_eq!(catalogue.longest_wait()?, None);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`inspect`](Self::inspect). The call needs the permissions `+lindex`, `+hget`
    /// and `+time`.
    pub fn longest_wait(&self) -> Result<Option<Duration>, Error> {
        self.as_mutex().longest_wait()
    }

    /// Returns the last fencing token that was drawn for the name, whether it is held or free now.
    ///
    /// Returns `None` if no token was drawn for 25 hours, and may do so after 24. Returns within
    /// the command timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let catalogue = client.rw_lock("catalogue");
    /// let writing = catalogue.write()?;
    /// assert_eq!(catalogue.last_fencing_token()?, Some(writing.fencing_token()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::last_fencing_token`].
    pub fn last_fencing_token(&self) -> Result<Option<FencingToken>, Error> {
        self.as_mutex().last_fencing_token()
    }

    /// Releases the lock on behalf of its writer or of all its readers; returns true if it did.
    ///
    /// All readers lose the lock, including those that are granted it while this call runs. The
    /// first calls in the queue are granted the lock. Use this call only if you know that the
    /// holders are dead: [`Mutex::force_unlock`] says how a live one finds out.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let catalogue = client.rw_lock("catalogue");
    /// # server.hold("catalogue").forget();
    /// // The machine that held the lock has burnt down, and its ttl is a day.
    /// if catalogue.force_unlock()? {
    ///     println!("the next calls in the queue have the lock");
    /// }
    /// # assert!(catalogue.inspect()?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::force_unlock`].
    pub fn force_unlock(&self) -> Result<bool, Error> {
        self.as_mutex().force_unlock()
    }

    /// Releases the lock if `holder` still holds it; returns true if it was released.
    ///
    /// `holder` is the writer or one of the readers that [`inspect`](Self::inspect) has shown. The
    /// other readers keep the lock. Returns within the command timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let catalogue = client.rw_lock("catalogue");
    /// # let is_dead = |_: &leasehold::Holder| true;
    /// # let _reading = catalogue.read()?;
    /// if let Some(held) = catalogue.inspect()? {
    ///     for reader in held.holders().iter().filter(|reader| is_dead(reader)) {
    ///         catalogue.force_unlock_from(reader)?;
    ///     }
    /// }
    /// # assert!(catalogue.inspect()?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::force_unlock`].
    pub fn force_unlock_from(&self, holder: &Holder) -> Result<bool, Error> {
        // The release script of the writers' side ends the lease of a reader, too.
        self.as_mutex().force_unlock_from(holder)
    }

    /// Returns a mutex of this name: its calls for operators use the same key, queue and fence.
    fn as_mutex(&self) -> Mutex {
        Mutex::new(Arc::clone(&self.core), Arc::clone(&self.writer))
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock")
            .field("name", &self.reader.names)
            .field("settings", &self.settings)
            .finish()
    }
}
