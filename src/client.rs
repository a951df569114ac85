//! The client: where locks are made, and what outlives them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::builder::ClientBuilder;
use crate::clock::Instant;
use crate::error::Error;
use crate::fair_mutex::FairMutex;
use crate::health::{Health, HealthState};
use crate::list::{Held, list};
use crate::mutex::Mutex;
use crate::mutex_all::MutexAll;
use crate::name::Name;
use crate::server::{Fault, Servers};
use crate::shutdown::{Core, ShutdownReport, shutdown};
use crate::stats::{Stats, Totals};
use crate::threads::Shared;

/// A connection to the Redis that keeps the locks: makes locks, and looks after those that are held.
///
/// Cloning is cheap, and all clones are one client: one pool of connections, one set of threads.
/// Make one for a process and clone it to where it is needed. Two clients in a process work just as
/// well, but do not hand locks to each other without a trip to Redis.
///
/// # Threads and the end
///
/// Threads start when first needed. Locks and guards keep the client's machinery alive; when the
/// last client, lock and guard is dropped, from whichever thread, the threads are ended and joined,
/// for at most one command timeout. [`shutdown`](Self::shutdown) does so at once.
///
/// ```no_run
/// use leasehold::Client;
///
/// let client = Client::open("redis://127.0.0.1:6379")?;
/// let guard = client.mutex("account:123").lock()?;
/// // … nobody else in the fleet is here …
/// guard.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct Client {
    core: Arc<Core>,
}

impl Client {
    /// A client of the Redis or Valkey at `url`, with the default settings. No I/O: use
    /// [`ping`](Self::ping) to see whether it answers.
    ///
    /// URLs are `redis://[user:password@]host[:port][/db]`, the same with `rediss` for TLS (feature
    /// `tls`), and `redis+unix:///path?db=…&user=…&pass=…`; `valkey` may stand for `redis`, and
    /// `?protocol=resp3` asks for that protocol.
    ///
    /// With Sentinel: `redis+sentinel://[user:password@]host[:port],host[:port]/name[/db]`, the port
    /// being 26379 unless given, and the user and password those of the master. Sentinels that want
    /// a password of their own get it by `?sentinel_user=…&sentinel_pass=…`. The master is then
    /// whichever server they say it is, and is followed when it moves.
    ///
    /// With Redis Cluster: `redis+cluster://[user:password@]host[:port],host[:port]`, some of its
    /// nodes; the others are learnt from them. Each name is kept by the master of its slot, which is
    /// followed when the slot moves or a replica takes over.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the URL cannot be used.
    pub fn open(url: &str) -> Result<Self, Error> {
        Self::builder().url(url).build()
    }

    /// A client of a quorum: several servers that know nothing of each other, each lock being held
    /// by whoever has it on a majority of them (Redlock). No I/O. Each URL is one of a single server,
    /// as for [`open`](Self::open), and every client must be given the same servers.
    ///
    /// A minority of the servers may be dead, hung or slow. See the
    /// [crate's documentation](crate#a-quorum-of-servers) for what this gives and what not. Take an
    /// odd number of servers, 3 or 5: an even one tolerates no more failures than one server less,
    /// and is warned about. A quorum of one is allowed, for tests.
    ///
    /// ```no_run
    /// use leasehold::Client;
    ///
    /// let client = Client::quorum(["redis://one:6379", "redis://two:6379", "redis://three:6379"])?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if a URL cannot be used, is not one of a single server or is named twice,
    /// or if there is none.
    pub fn quorum<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        Self::builder().quorum(urls).build()
    }

    /// A client with the settings in the environment. No I/O.
    ///
    /// | variable | what | default |
    /// |---|---|---|
    /// | `REDIS_URL` | the URL; then the next five are not read | |
    /// | `REDIS_HOST`, `REDIS_PORT` | where Redis is | `127.0.0.1`, `6379` |
    /// | `REDIS_USERNAME`, `REDIS_PASSWORD` | whom to log on as | nobody |
    /// | `REDIS_DB` | the database's number | `0` |
    /// | `LOCK_TTL_MS` | [`ttl`](ClientBuilder::ttl) in ms | `10000` |
    /// | `LOCK_RENEW_INTERVAL_MS` | [`renew_every`](ClientBuilder::renew_every) in ms | a third of the ttl |
    /// | `LOCK_KEY_PREFIX` | [`key_prefix`](ClientBuilder::key_prefix) | `lock:` |
    /// | `LOCK_CONNECTION_NAME` | [`connection_name`](ClientBuilder::connection_name) | `leasehold:<host>/<pid>` |
    ///
    /// An empty variable counts as one that is not set.
    ///
    /// # Errors
    ///
    /// [`Error::Config`], naming the variable and what it expects.
    pub fn from_env() -> Result<Self, Error> {
        Self::builder().with_env()?.build()
    }

    /// Settings to make a client with.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.core.shared
    }

    /// The lock called `name`. No I/O; two locks with one name are the same lock.
    pub fn mutex(&self, name: impl Into<Name>) -> Mutex {
        let keys = self.shared().keys(name.into());
        Mutex::new(Arc::clone(&self.core), Arc::new(keys))
    }

    /// The fair lock called `name`: first come, first served, in all processes together. No I/O.
    ///
    /// Fair and plain locks with one name keep each other out. Over a quorum it is an error of the first call that locks.
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1")?;
    /// let guard = client.fair_mutex("printer").lock()?; // behind those who came before
    /// guard.unlock()?; // to the first of those who wait
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn fair_mutex(&self, name: impl Into<Name>) -> FairMutex {
        let keys = self.shared().keys(name.into()).fair();
        FairMutex::new(Arc::clone(&self.core), Arc::new(keys))
    }

    /// The lock of several names at once, all of them or none. No I/O. A name that is given twice
    /// counts once; no name at all is an error of the first call that locks.
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1")?;
    /// let guard = client.mutex_all(["account:1", "account:2"]).lock()?;
    /// // … nobody else holds either of them, alone or with others …
    /// guard.unlock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn mutex_all<N: Into<Name>>(&self, names: impl IntoIterator<Item = N>) -> MutexAll {
        let names = names.into_iter().map(Into::into).collect();
        let keys = self.shared().keys_of_all(names);
        MutexAll::new(Arc::clone(&self.core), Arc::new(keys))
    }

    /// Asks Redis for a sign of life, and says how long it took. Returns within the command timeout.
    /// In a cluster it is enough that one of the masters gives one.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if there is none, [`Error::Refused`] if Redis does not let us in,
    /// [`Error::Closed`] after a shutdown.
    pub fn ping(&self) -> Result<Duration, Error> {
        let servers = &self.shared().servers;
        self.ask(|until| {
            let sent = Instant::now();
            servers.ping(until).map(|_| sent.until(Instant::now()))
        })
    }

    /// What this client has counted and does now. No I/O; also after a shutdown.
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1")?;
    /// let stats = client.stats();
    /// println!("{stats}");
    /// if stats.contention_rate() > 0.05 {
    ///     eprintln!("more than one lock in twenty is waited for, p99 {:?}", stats.wait.p99);
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        self.shared().stats()
    }

    /// What all clients that [share their statistics](ClientBuilder::shared_stats) have counted so
    /// far; those of the last second may be missing. All zero where nobody has. This client need not
    /// share its own; where it does, the hash that it adds to is the one that is read. Returns within
    /// the command timeout.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if Redis does not answer, [`Error::Refused`] if it does not let us
    /// read (the user needs `~lock_stats +hgetall`) or the key holds something else than a hash,
    /// [`Error::Closed`] after a shutdown.
    pub fn shared_stats(&self) -> Result<Totals, Error> {
        self.ask(|until| self.shared().shared_totals(until))
    }

    /// Asks within the command timeout, twice where the first time met a dead connection.
    fn ask<T>(&self, ask: impl Fn(Instant) -> Result<T, Fault>) -> Result<T, Error> {
        let shared = self.shared();
        shared.check_open()?;
        let until = Instant::now().after(shared.servers.command_timeout());
        let mut again = true;
        loop {
            match ask(until) {
                Ok(answer) => return Ok(answer),
                // A connection that had died unnoticed says nothing about Redis.
                Err(Fault::NoAnswer(_)) if again && Instant::now() < until => again = false,
                Err(fault) => return Err(shared.servers.error(fault)),
            }
        }
    }

    /// How the servers and our threads do. Asks each server once, all of them together, and returns
    /// within the command timeout. Goes through an open circuit breaker, and closes it where the
    /// server answers.
    pub fn health(&self) -> Health {
        let shared = self.shared();
        let until = Instant::now().after(shared.servers.command_timeout());
        let (servers, needed) = shared.servers.health(until);
        let sites = shared.sites.all();
        let subscribers = sites.iter().map(|site| {
            let condition = &site.subscriber.condition;
            condition.part(site.server.label(), None)
        });
        let renewers = sites.iter().map(|site| {
            let mut part = site.io.condition.part(site.server.label(), None);
            if part.state == HealthState::Fails && !shared.timer.watches_any() {
                // What could not be renewed is over.
                part.state = HealthState::Idle;
            }
            part
        });
        Health {
            subscribers: subscribers.collect(),
            renewers: renewers.collect(),
            servers,
            needed,
        }
    }

    /// Every lock that is held now and whose name begins with `prefix`, by name; an empty one is the
    /// beginning of all. For an operator: it goes through all keys of the database (`SCAN`, page by
    /// page, each within the command timeout), whatever the prefix. What is taken or released
    /// meanwhile may be in it or not.
    ///
    /// In a cluster it asks every master. Of a quorum it asks all servers, a minority of which need not
    /// answer, and lists what a majority has.
    ///
    /// Every string key that begins with the [`key_prefix`](ClientBuilder::key_prefix) counts as a
    /// lock, and none that begins with `leasehold:`.
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1")?;
    /// for held in client.list("account:")? {
    ///     println!("{} is held by {:?}", held.name(), held.holder().owner());
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`], [`Error::Refused`] (it needs the right `+scan`, beside those of
    /// [`Mutex::inspect`]), [`Error::Closed`].
    pub fn list(&self, prefix: impl AsRef<[u8]>) -> Result<Vec<Held>, Error> {
        list(self.shared(), prefix.as_ref())
    }

    /// Ends the client: refuses new calls, sends waiting ones away with [`Error::Closed`], tells
    /// every holder [`Lost::ShutDown`](crate::Lost::ShutDown), releases what they held without
    /// waiting for them, and joins the threads. A program that wants its holders to finish waits for
    /// them first.
    ///
    /// Returns when that is done, or after `within` plus at most one command timeout; leases whose
    /// release was not confirmed by then are left to their ttl. Works from any thread, a callback
    /// included (that thread is then left to end by itself). A second call does nothing.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let client = leasehold::Client::open("redis://127.0.0.1")?;
    /// let report = client.shutdown(Duration::from_secs(5))?;
    /// assert!(report.is_clean(), "{report:?}");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// None at present; what could not be done is in the report.
    pub fn shutdown(&self, within: Duration) -> Result<ShutdownReport, Error> {
        Ok(shutdown(self.shared(), within))
    }
}

impl ClientBuilder {
    /// Makes the client. No I/O.
    ///
    /// # Errors
    ///
    /// [`Error::Config`], naming the setting and what it expects.
    pub fn build(self) -> Result<Client, Error> {
        let (config, deployment) = self.check()?;
        let servers = Servers::new(deployment, &config)?;
        let shared = Shared::new(config, servers);
        Ok(Client {
            core: Arc::new(Core { shared }),
        })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("server", &self.shared().servers.label())
            .field("owner", &self.shared().config.owner)
            .finish_non_exhaustive()
    }
}
