//! The client, which makes locks and owns the connections and threads that they share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::builder::ClientBuilder;
use crate::api::fair_mutex::FairMutex;
use crate::api::mutex::Mutex;
use crate::api::mutex_all::MutexAll;
use crate::api::rw_lock::RwLock;
use crate::api::semaphore::Semaphore;
use crate::client::list::ListPage;
use crate::client::list::{list, list_permits};
use crate::client::query::query;
use crate::client::release::release_lingering;
use crate::client::shutdown::{Core, ShutdownReport, shutdown};
use crate::clock::Instant;
use crate::error::Error;
use crate::health::{Health, HealthState};
use crate::held::Held;
use crate::name::Name;
use crate::protocol::cohort::CohortKeys;
use crate::protocol::fair::FairMutexKeys;
use crate::protocol::mutex::MutexKeys;
use crate::protocol::rw_lock::RwLockKeys;
use crate::redis::Deployment;
use crate::runtime::Runtime;
use crate::set::names::SetNames;
use crate::stats::{Stats, Totals};
use crate::thread_group::ThreadGroup;

/// A handle to the Redis servers that keep the locks; makes locks and renews those that are held.
///
/// Cloning is cheap. All clones are one client: they share one connection pool and one set of
/// threads. Create one client per process and clone it where it is needed. Two clients in one
/// process work too, but a lock moves between them only through Redis, not by a
/// [local hand-off](Mutex::local_handoffs).
///
/// # Threads and shutdown
///
/// Threads start when first needed. Locks and guards keep the client's connections and threads
/// alive. Dropping the last client, lock or guard, on any thread, ends and joins the threads,
/// except those that are still connecting. This takes at most one command timeout, or three if a
/// cancelled call still waits for a reply. [`shutdown`](Self::shutdown) ends the threads although
/// locks and guards still exist. [Threads](crate::guide::threads) lists the threads.
///
/// ```
/// use leasehold::Client;
///
/// let client = Client::open("redis://127.0.0.1:6379")?;
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let guard = client.mutex("account:123").lock()?;
/// // … no other client holds `account:123` here …
/// guard.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct Client {
    core: Arc<Core>,
}

impl Client {
    /// Returns a client of the Redis or Valkey at `url`, with the default settings.
    ///
    /// Does no I/O: call [`ping`](Self::ping) to check that the server answers.
    ///
    /// | deployment | URL |
    /// |---|---|
    /// | one server | `redis://[user:password@]host[:port][/db]` |
    /// | one server, Unix socket | `redis+unix:///path?db=…&user=…&pass=…` |
    /// | Sentinel | `redis+sentinel://[user:password@]host[:port],host[:port]/name[/db]` |
    /// | Cluster | `redis+cluster://[user:password@]host[:port],host[:port]` |
    /// | quorum | `redis+quorum://[user:password@]host[:port],host[:port],host[:port][/db]` |
    ///
    /// In the user and password, write `/` as `%2F`, `?` as `%3F`, `#` as `%23`, `@` as `%40`, `:`
    /// as `%3A` and `%` as `%25`: the password `p@ss` is `p%40ss`.
    ///
    /// `rediss` in place of `redis` encrypts with TLS (feature `tls`). `valkey` and `valkeys` mean
    /// the same as `redis` and `rediss`. `?protocol=resp3` selects that protocol, and `?db=2` a
    /// database. A user without a password, as in `redis://ann@host`, logs on with an empty one.
    ///
    /// With Sentinel, `name` is the master's name, and the user and password are the master's. The
    /// default port of a sentinel is 26379. If the sentinels need their own credentials, append
    /// `?sentinel_user=…&sentinel_pass=…`. The scheme is for the master and the sentinels;
    /// `?sentinel_tls=no` reaches sentinels without TLS, of a master with it, and
    /// `?sentinel_tls=yes` the reverse. The client follows the master when it moves.
    ///
    /// With Cluster, the URL lists some of the nodes; the client learns the others from them. Each
    /// name is kept by the master of its slot. The client follows a slot that moves, and a replica
    /// that is promoted.
    ///
    /// With a quorum, all servers have the same user, password, database and protocol; see
    /// [`quorum`](Self::quorum), which takes a URL for each.
    ///
    /// ```
    /// use leasehold::Client;
    ///
    /// let client = Client::open("rediss://booking:s3cret@redis.internal:6379")?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the URL cannot be used.
    pub fn open(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder().url(url.as_ref()).build()
    }

    /// Returns a client of several independent servers (the Redlock algorithm).
    ///
    /// A client holds a lock once a majority of the servers has granted it, so a minority may be
    /// dead, hung or slow. See [the guarantees and limits](crate::guide::quorum).
    ///
    /// Each URL names a single server, as for [`open`](Self::open). Every client must use the same
    /// servers. Use 3 or 5: an even number tolerates no more failures than the odd number below it,
    /// so the client logs a warning. A quorum of one is allowed, for tests. Does no I/O.
    ///
    /// ```
    /// use leasehold::Client;
    ///
    /// let servers = ["redis://one:6379", "redis://two:6379", "redis://three:6379"];
    /// let client = Client::quorum(servers)?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if there is no URL or more than 63, or if one is invalid, names more than
    /// one server or is given twice.
    pub fn quorum<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        Self::builder().quorum(urls).build()
    }

    /// Returns a client with the settings read from environment variables.
    ///
    /// Reads the files that the variables name, to check them, and does no other I/O. Each
    /// connection reads them again, so they can be replaced while the client runs.
    ///
    /// | variable | setting | default |
    /// |---|---|---|
    /// | `REDIS_URL` | the URL, in one of the forms of [`open`](Self::open) | |
    /// | `REDIS_URLS` | the URLs of a [`quorum`](Self::quorum), separated by commas or spaces | |
    /// | `REDIS_HOST`, `REDIS_PORT` | the server's host and port | `127.0.0.1`, `6379` |
    /// | `REDIS_USERNAME`, `REDIS_PASSWORD` | the credentials, for a URL without a password | none |
    /// | `REDIS_PASSWORD_FILE` | the file that contains the password, in place of `REDIS_PASSWORD`; see [`password_file`](ClientBuilder::password_file) | none |
    /// | `REDIS_DB` | the database number | `0` |
    /// | `REDIS_TLS_CA` | the PEM file for [`tls_root_file`](ClientBuilder::tls_root_file) | the system's authorities |
    /// | `REDIS_SENTINEL_TLS` | [`sentinel_tls`](ClientBuilder::sentinel_tls): `yes` or `no`, for a URL that does not say it | as for the master |
    /// | `REDIS_TLS_CERT`, `REDIS_TLS_KEY` | the PEM files for [`tls_client_cert_files`](ClientBuilder::tls_client_cert_files) | none |
    /// | `LOCK_TTL_MS` | [`ttl`](ClientBuilder::ttl) in ms | `10000` |
    /// | `LOCK_CONNECT_TIMEOUT_MS` | [`connect_timeout`](ClientBuilder::connect_timeout) in ms | `1000` |
    /// | `LOCK_COMMAND_TIMEOUT_MS` | [`command_timeout`](ClientBuilder::command_timeout) in ms | `1000` |
    /// | `LOCK_UNREACHABLE_FOR_MS` | [`unreachable_for`](ClientBuilder::unreachable_for) in ms | `10000` |
    /// | `LOCK_KEY_PREFIX` | [`key_prefix`](ClientBuilder::key_prefix) | `lock:` |
    ///
    /// All values must be UTF-8. An empty variable counts as unset.
    ///
    /// `REDIS_HOST`, `REDIS_PORT` and `REDIS_DB` are ignored if `REDIS_URL` or `REDIS_URLS` is set.
    /// If none of `REDIS_URL`, `REDIS_URLS` and `REDIS_HOST` is set, a log record at level `INFO`
    /// says so and names the server that the client uses.
    ///
    /// `REDIS_HOST` may have the form `host:port`, and `REDIS_PORT` the form that Kubernetes sets,
    /// `tcp://10.0.0.1:6379`, of which the client takes the port. Quotes around a value and a line
    /// break at its end are removed, with a log record at level `WARN`; quotes are kept in a user,
    /// password or prefix.
    ///
    /// `REDIS_USERNAME` and `REDIS_PASSWORD` fill in each URL that has no password, whatever its
    /// scheme, and are ignored for the others. A user in the URL stays. With Sentinel, the two are
    /// the credentials of the master.
    ///
    /// The files for TLS need a URL with TLS (`rediss://`) and the feature `tls`.
    /// `REDIS_SENTINEL_TLS` is for sentinels whose URL has no `sentinel_tls`, and is ignored
    /// otherwise.
    ///
    /// ```
    /// use leasehold::Client;
    ///
    /// // REDIS_URL=redis://redis.internal:6379 LOCK_TTL_MS=30000
    /// let client = Client::from_env()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if a variable is invalid, if `REDIS_URL` and `REDIS_URLS` or
    /// `REDIS_PASSWORD` and `REDIS_PASSWORD_FILE` are both set, or if only one of `REDIS_TLS_CERT`
    /// and `REDIS_TLS_KEY` is set. The message names the variables.
    pub fn from_env() -> Result<Self, Error> {
        Self::builder().with_env()?.build()
    }

    /// Returns a builder, for a client with other settings than the defaults.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::Client;
    /// let client = Client::builder()
    ///     .url("redis://redis.internal:6379")
    ///     .ttl(Duration::from_secs(30))
    ///     .build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    fn runtime(&self) -> &Arc<Runtime> {
        &self.core.runtime
    }

    /// Returns the lock called `name`. Does no I/O.
    ///
    /// Two locks with the same name are the same lock.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex("account:123").lock()?;
    /// assert!(client.mutex(format!("account:{}", 123)).try_lock()?.is_err()); // the same lock
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn mutex(&self, name: impl Into<Name>) -> Mutex {
        let runtime = self.runtime();
        let keys = runtime.keys(name.into());
        let keys = if runtime.has_queues() {
            CohortKeys::of(keys)
        } else {
            MutexKeys::of(keys)
        };
        Mutex::new(Arc::clone(&self.core), keys)
    }

    /// Returns the fair lock called `name`: first come, first served, across all processes.
    ///
    /// Fair and plain locks with the same name exclude each other. Over a quorum, the first call
    /// that locks fails with [`Error::Config`]. Does no I/O.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.fair_mutex("printer").lock()?; // behind all earlier waiters
    /// drop(guard); // grants the lock to the first waiter
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn fair_mutex(&self, name: impl Into<Name>) -> FairMutex {
        let keys = self.runtime().keys(name.into());
        FairMutex::new(Arc::clone(&self.core), FairMutexKeys::of(keys))
    }

    /// Returns the read-write lock called `name`: several readers, or one writer.
    ///
    /// A writer holds the lock as a mutex of the same name does. Over a quorum, the first call that
    /// locks fails with [`Error::Config`]. Does no I/O.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let catalogue = client.rw_lock("catalogue");
    /// {
    ///     let reading = catalogue.read()?; // alongside other readers
    ///     reading.ensure_held()?;
    /// }
    /// let writing = catalogue.write()?; // alone
    /// writing.unlock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn rw_lock(&self, name: impl Into<Name>) -> RwLock {
        let name = name.into();
        let [reader, writer] = [true, false]
            .map(|reads| Arc::new(RwLockKeys::of(self.runtime().keys(name.clone()), reads)));
        RwLock::new(Arc::clone(&self.core), reader, writer)
    }

    /// Returns the lock of several names, which acquires all of them or none. Does no I/O.
    ///
    /// Duplicate names count once. Without any name, the first call that locks fails with
    /// [`Error::Config`].
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let accounts = ["account:1", "account:2"];
    /// let guard = client.mutex_all(&accounts).lock()?;
    /// // … no other client holds either name …
    /// guard.unlock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn mutex_all<N: Into<Name>>(&self, names: impl IntoIterator<Item = N>) -> MutexAll {
        let names = names.into_iter().map(Into::into).collect();
        let runtime = self.runtime();
        let names = SetNames::of(
            names,
            &runtime.config.key_prefix,
            &runtime.config.channel_prefix,
            runtime.deployment.layout(),
            runtime.has_queues(),
        );
        MutexAll::new(Arc::clone(&self.core), names)
    }

    /// Returns the semaphore called `name`, with this many permits. Does no I/O.
    ///
    /// It is independent of the locks of that name. A call never gets a permit if more than
    /// `permits` would then be out. Clients may pass different numbers, as during a deployment: see
    /// [`Semaphore`]. The first call fails with [`Error::Config`] if `permits` is 0 or more than
    /// 2³¹ − 1, or over a quorum.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let permit = client.semaphore("api.example.com", 10).acquire()?;
    /// // … at most 10 calls at a time, from all processes together …
    /// permit.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn semaphore(&self, name: impl Into<Name>, permits: u32) -> Semaphore {
        Semaphore::new(Arc::clone(&self.core), name.into(), permits)
    }

    /// Sends a `PING` and returns how long the reply took.
    ///
    /// The time includes connecting, if no connection is idle. Returns within the command timeout.
    /// In a cluster, a reply from any one master is enough. Over a quorum, a majority must reply.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let took = client.ping()?;
    /// println!("Redis replied in {took:?}");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Unreachable`] if no server replies, or over a quorum no majority.
    /// - [`Error::Refused`] if Redis refuses the credentials or the command.
    /// - [`Error::Closed`] after a shutdown.
    pub fn ping(&self) -> Result<Duration, Error> {
        self.runtime().process.check()?;
        let deployment = &self.runtime().deployment;
        query(self.runtime(), |until| {
            let sent = Instant::now();
            deployment.ping(until).map(|_| sent.until(Instant::now()))
        })
    }

    /// Returns a snapshot of this client's counters and gauges.
    ///
    /// Does no I/O, and also works after a shutdown. In a fork of the process, only
    /// [`totals`](Stats::totals) are those of the client; the rest is zero.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let stats = client.stats();
    /// println!("{stats}");
    /// if stats.totals.contention_rate() > 0.05 {
    ///     eprintln!("more than one lock in twenty had to wait, p99 {:?}", stats.wait.p99);
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn stats(&self) -> Stats {
        if self.runtime().process.is_forked() {
            self.runtime().stats_in_child()
        } else {
            self.runtime().stats()
        }
    }

    /// Returns the totals of all clients that share their statistics.
    ///
    /// Clients share with [`ClientBuilder::shared_stats`], every two seconds, so the last two may
    /// be missing, and what a crash or a lost reply took with it. All counters are zero if no
    /// client has shared any. This client need not share its own. Over a quorum, the first server
    /// has the hash. Returns within the command timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let all = client.shared_stats()?;
    /// println!("{} locks acquired by all clients, {} lost", all.acquired(), all.lost());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Unreachable`] if Redis, or the first server of a quorum, does not answer.
    /// - [`Error::Refused`] if the user may not read the hash (it needs `~lock_stats +hgetall`), or
    ///   if the key is not a hash.
    /// - [`Error::Closed`] after a shutdown.
    pub fn shared_stats(&self) -> Result<Totals, Error> {
        self.runtime().process.check()?;
        query(self.runtime(), |until| self.runtime().shared_totals(until))
    }

    /// Checks every server once and reports the state of servers, subscriptions and renewals.
    ///
    /// Sends all servers at once a write that changes nothing, to a key that begins with
    /// `leasehold:probe`, and returns within the command timeout. A refused connection is tried
    /// again until then, so the call takes the whole time if a server is down. A replica, and a
    /// server whose writes are paused, fail. If the user's permissions forbid the write, any reply
    /// suffices.
    ///
    /// While a server's circuit breaker is open, a check is one of the calls of which at most one
    /// starts in a second; without a check the report states what is known. The answer closes the
    /// breaker of its server, but not the one that the servers of a quorum share. In a fork of the
    /// process, no server works.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let health = client.health();
    /// if !health.is_healthy() {
    ///     eprintln!("{health}"); // a line for each of them
    /// }
    /// # assert!(health.is_healthy());
    /// ```
    pub fn health(&self) -> Health {
        let runtime = self.runtime();
        if runtime.process.is_forked() {
            return Health::in_child(runtime.deployment.label());
        }
        let until = Instant::now().after(runtime.deployment.command_timeout());
        let (servers, needed) = runtime.deployment.check_health(until);
        let mut endpoints = runtime.endpoints.all();
        // A replaced server is used no more, and its endpoint stays until slots move again.
        endpoints.retain(|endpoint| !endpoint.server.is_retired());
        let subscribers = endpoints.iter().map(|endpoint| {
            let health = &endpoint.subscriber.health;
            health.part(endpoint.server.label(), None)
        });
        let renewers = endpoints.iter().map(|endpoint| {
            let mut part = endpoint.renewals.part(endpoint.server.label(), None);
            if part.state == HealthState::Fails && !runtime.kernel.has_leases() {
                // The leases that could not be renewed have ended.
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

    /// Returns all held locks whose name begins with `prefix`, sorted by name.
    ///
    /// An empty prefix matches every name. The call is meant for operators: it iterates over all
    /// keys of the database with `SCAN`, whatever the prefix is. Each command takes at most the
    /// command timeout; the whole call can take far longer. Locks that are acquired or released
    /// meanwhile may be missing or listed.
    ///
    /// In a cluster the call asks every master. Over a quorum it asks all servers, tolerates a
    /// minority without a reply, and lists the locks that a majority has.
    ///
    /// Every string key that begins with the [`key_prefix`](ClientBuilder::key_prefix) counts as a
    /// lock, except keys that no lock can have, such as those that begin with `leasehold:`.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// for held in client.list("account:")? {
    ///     println!("{} is held by {:?}", held.name(), held.holders()[0].owner());
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Unreachable`] if Redis does not answer, or if the scan of a server does not end:
    ///   a cursor comes twice in a row, or it has taken ten minutes for its replies.
    /// - [`Error::CircuitOpen`] while the circuit breaker of a quorum is open.
    /// - [`Error::Refused`] if a permission is missing: `+scan`, or one that [`Mutex::inspect`]
    ///   needs.
    /// - [`Error::Closed`] after a shutdown.
    pub fn list(&self, prefix: impl AsRef<[u8]>) -> Result<Vec<Held>, Error> {
        self.list_pages(prefix, |_| {})
    }

    /// Like [`list`](Self::list), and calls `act` with each page of the scan.
    ///
    /// The scan continues when `act` returns. So `act` can show how far it is, or slow it down.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// // Takes at most 5 % of the server's time.
    /// let held = client.list_pages("account:", |page| std::thread::sleep(page.took * 19))?;
    /// println!("{} accounts are locked", held.len());
    /// # assert!(held.is_empty());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`list`](Self::list).
    pub fn list_pages(
        &self,
        prefix: impl AsRef<[u8]>,
        act: impl FnMut(&ListPage<'_>),
    ) -> Result<Vec<Held>, Error> {
        list(self.runtime(), prefix.as_ref(), act)
    }

    /// Returns all semaphores whose name begins with `prefix` and that have permits out, sorted by
    /// name.
    ///
    /// Meant for operators, like [`list`](Self::list), and scans all keys in the same way. Over a
    /// quorum the list is empty.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// for held in client.list_permits("api.")? {
    ///     println!("{} permits of {} are out", held.permits(), held.name());
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`list`](Self::list). The call also needs the permissions `+time` and
    /// `+zrangebyscore`.
    pub fn list_permits(&self, prefix: impl AsRef<[u8]>) -> Result<Vec<Held>, Error> {
        self.list_permits_pages(prefix, |_| {})
    }

    /// Like [`list_permits`](Self::list_permits), and calls `act` with each page of the scan.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let held = client.list_permits_pages("api.", |page| {
    ///     println!("{:.0} % are scanned", page.progress * 100.0);
    /// })?;
    /// # assert!(held.is_empty());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`list_permits`](Self::list_permits).
    pub fn list_permits_pages(
        &self,
        prefix: impl AsRef<[u8]>,
        act: impl FnMut(&ListPage<'_>),
    ) -> Result<Vec<Held>, Error> {
        list_permits(self.runtime(), prefix.as_ref(), act)
    }

    /// Shuts the client down: releases all held locks, wakes all waiters and joins the threads.
    ///
    /// - New calls, and calls that wait for a lock, fail with [`Error::Closed`].
    /// - Each guard's `lost` channel receives [`Lost::ShutDown`](crate::Lost::ShutDown), and its
    ///   lock is released at once. The call does not wait for holders to finish. If holders must
    ///   finish, drain the workers first, as below.
    ///
    /// Returns when all releases are confirmed and the threads have ended, or after `within` plus
    /// at most one command timeout. Leases whose release was not confirmed in that time expire
    /// after their ttl. This includes leases that an unanswered call may have acquired. The call
    /// works on any thread. On a callback's thread, that thread is not joined and ends after the
    /// callback. A second call returns an empty report at once, even while the first one runs.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let report = client.shutdown(Duration::from_secs(5));
    /// assert!(report.is_clean(), "{report:?}");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// To let holders finish, first cancel the calls that wait. Otherwise a worker in `lock` keeps
    /// waiting, and `join` waits for that worker.
    ///
    /// ```
    /// use leasehold::{CancelToken, Error};
    /// # use std::{thread, time::Duration};
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    ///
    /// let stopping = CancelToken::new();
    /// let order = client.mutex("order:7").cancel_on(&stopping);
    /// # let _other = server.hold("order:7");
    /// let worker = thread::spawn(move || order.lock().map(|guard| { /* … work … */ }));
    /// // On SIGTERM:
    /// stopping.cancel(); // waiting calls fail with `Error::Cancelled`; holders go on
    /// assert!(matches!(worker.join().unwrap(), Err(Error::Cancelled)));
    /// client.shutdown(Duration::from_secs(5));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// In a child of the process that made the client, does nothing and returns an empty report:
    /// the leases and threads are those of the parent.
    pub fn shutdown(&self, within: Duration) -> ShutdownReport {
        shutdown(self.runtime(), within)
    }

    /// Releases all leases that [linger](crate::Mutex::linger): nobody here holds them.
    ///
    /// For a program that is about to pause. Returns when Redis has confirmed the releases, within
    /// the command timeout for each.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let index = client.mutex("index").linger(Duration::from_secs(1));
    /// index.lock()?.unlock()?;
    /// client.release_lingering()?;
    /// assert!(index.inspect()?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The first error of a release, after all were tried. What Redis has not confirmed is repeated
    /// in the background.
    ///
    /// - [`Error::Unreachable`]: no reply to the release came in time.
    /// - [`Error::Refused`]: Redis refused it.
    /// - [`Error::Lost`]: a lease had been lost before.
    /// - [`Error::Forked`]: this process is a child of the one that made the client.
    pub fn release_lingering(&self) -> Result<(), Error> {
        self.runtime().process.check()?;
        release_lingering(self.runtime())
    }
}

// Not in the builder's file: this file imports that one, and no two files import each other.
impl ClientBuilder {
    /// Makes the client. Does no I/O.
    ///
    /// ```
    /// use std::time::Duration;
    /// use leasehold::{Client, Error};
    ///
    /// let one_ms = Duration::from_millis(1);
    /// let outcome = Client::builder().url("redis://redis.internal:6379").ttl(one_ms).build();
    /// assert!(matches!(outcome, Err(Error::Config(_)))); // a ttl is at least 10 ms
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if a setting is invalid; the message names it and what it expects.
    /// [`Error::Shortage`] if the process has no file descriptor left for the client's own pipe.
    pub fn build(self) -> Result<Client, Error> {
        let (mut config, target) = self.check()?;
        // Clients made from clones of one builder must not share the threads that connect.
        config.dialers = ThreadGroup::default();
        let deployment = Deployment::new(target, &config)?;
        let runtime = Runtime::new(config, deployment)?;
        Ok(Client {
            core: Arc::new(Core { runtime }),
        })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("server", &self.runtime().deployment.label())
            .field("owner", &self.runtime().config.owner)
            .finish_non_exhaustive()
    }
}
