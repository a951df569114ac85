//! The builder of a client, with its settings.

mod logon;

use std::time::Duration;
use std::{fmt, mem};

use crate::address_map::AddressMap;
use crate::config::Config;
use crate::credentials::CredentialsSource;
use crate::error::Error;
use crate::logging;
use crate::replicas::Replicas;
#[cfg(feature = "tls")]
use crate::tls::Tls;
use crate::url::{Logon, Target, cleaned};

/// Makes a [`Client`](crate::Client) with settings of your choice.
///
/// Setters never fail: [`build`](Self::build) checks the settings.
///
/// ```
/// use std::time::Duration;
/// use leasehold::Client;
///
/// let client = Client::builder()
///     .url("redis://redis.internal:6379")
///     .owner("booking-api-7")
///     .ttl(Duration::from_secs(30))
///     .build()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Default)]
#[must_use = "no client is made before `build` is called"]
pub struct ClientBuilder {
    source: Option<UrlSource>,
    /// Whether two different kinds of deployment were set: one of them is a mistake.
    has_two_sources: bool,
    /// Whether the servers are those of the environment, which setters override.
    is_source_from_env: bool,
    /// The credentials of the environment, for servers whose URL has no password.
    logon: Logon,
    /// Where the credentials of the servers come from, and those of the sentinels.
    credentials: Option<CredentialsSource>,
    sentinel_credentials: Option<CredentialsSource>,
    /// Whether connections to sentinels are encrypted; `None` means what the URL says.
    #[cfg(feature = "tls")]
    sentinel_tls: Option<bool>,
    /// The same, from the environment: for the sentinels set so far, if nothing else says it.
    #[cfg(feature = "tls")]
    sentinel_tls_of_env: Option<bool>,
    /// Where announced addresses are reached, or why the pairs are invalid.
    address_map: Option<Result<AddressMap, Error>>,
    config: Config,
    #[cfg(feature = "tls")]
    tls: Tls,
}

/// The servers of the deployment, as the caller named them.
#[derive(Clone)]
enum UrlSource {
    Url(String),
    Cluster(Vec<String>),
    Sentinel(Vec<String>, String),
    Quorum(Vec<String>),
}

impl UrlSource {
    fn urls(&mut self) -> Vec<&mut String> {
        match self {
            Self::Url(url) => vec![url],
            Self::Sentinel(urls, master) => urls.iter_mut().chain([master]).collect(),
            Self::Cluster(urls) | Self::Quorum(urls) => urls.iter_mut().collect(),
        }
    }

    fn target(&self) -> Result<Target, Error> {
        match self {
            Self::Url(url) => Target::parse(url),
            Self::Cluster(nodes) => Target::cluster(nodes),
            Self::Sentinel(sentinels, master) => Target::sentinel(sentinels, master),
            Self::Quorum(urls) => Target::quorum(urls),
        }
    }
}

impl ClientBuilder {
    /// Sets the URL of the deployment, in one of the forms of
    /// [`Client::open`](crate::Client::open).
    ///
    /// Exactly one of `url`, [`cluster`](Self::cluster), [`sentinel`](Self::sentinel) and
    /// [`quorum`](Self::quorum) is required.
    ///
    /// ```
    /// # use leasehold::Client;
    /// let client = Client::builder().url("redis://redis.internal:6379/2").build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn url(self, url: impl Into<String>) -> Self {
        self.with_source(UrlSource::Url(url.into()))
    }

    fn with_source(mut self, mut source: UrlSource) -> Self {
        for url in source.urls() {
            let (clean, removed) = cleaned(url);
            if let Some(removed) = removed {
                // The URL may contain a password.
                logging::warn!("a URL of a server was taken, but {removed}: correct the setting");
                *url = clean.to_owned();
            }
        }
        let is_another =
            |before: &UrlSource| mem::discriminant(before) != mem::discriminant(&source);
        let is_override = mem::take(&mut self.is_source_from_env);
        self.has_two_sources |= !is_override && self.source.as_ref().is_some_and(is_another);
        self.source = Some(source);
        self.logon = Logon::default();
        #[cfg(feature = "tls")]
        {
            self.sentinel_tls_of_env = None;
        }
        self
    }

    /// Returns whether the servers have been set.
    pub(super) fn has_source(&self) -> bool {
        self.source.is_some()
    }

    /// Notes that the environment has set the servers.
    pub(super) fn source_is_from_env(mut self) -> Self {
        self.is_source_from_env = true;
        self
    }

    /// Sets the credentials of the servers set so far whose URL has no password.
    pub(super) fn fill_in_logon(mut self, logon: Logon) -> Self {
        self.logon = logon;
        self
    }

    /// Returns whether the servers have been set by URLs with TLS.
    #[cfg(feature = "tls")]
    pub(super) fn has_tls(&self) -> bool {
        let target = self.source.as_ref().map(UrlSource::target);
        let target = target.map(|target| self.with_sentinel_tls(target?));
        target.is_some_and(|target| target.is_ok_and(|mut target| target.has_tls()))
    }

    /// Returns whether sentinels are set, and neither their URL nor the builder says whether they
    /// have TLS.
    pub(super) fn lacks_sentinel_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        if self.sentinel_tls.is_some() {
            return false;
        }
        let target = self.source.as_ref().map(UrlSource::target);
        target.is_some_and(|target| target.is_ok_and(|target| target.lacks_sentinel_tls()))
    }

    /// Sets whether the sentinels set so far have TLS.
    #[cfg(feature = "tls")]
    pub(super) fn fill_in_sentinel_tls(mut self, on: bool) -> Self {
        self.sentinel_tls_of_env = Some(on);
        self
    }

    #[cfg(feature = "tls")]
    fn with_sentinel_tls(&self, target: Target) -> Result<Target, Error> {
        match self.sentinel_tls.or(self.sentinel_tls_of_env) {
            Some(on) => target.with_sentinel_tls(on),
            None => Ok(target),
        }
    }

    /// Sets some nodes of a Redis Cluster; the client learns the others from them.
    ///
    /// Each is `host[:port]`, or a URL with the credentials, which are used for all nodes.
    ///
    /// ```
    /// # use leasehold::Client;
    /// let client = Client::builder().cluster(["10.0.0.1:7000", "10.0.0.2:7000"]).build()?;
    /// let nodes = ["rediss://ann:s3cret@n1.example", "rediss://ann:s3cret@n2.example"];
    /// let client = Client::builder().cluster(nodes).build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn cluster(self, nodes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.with_source(UrlSource::Cluster(strings(nodes)))
    }

    /// Sets the sentinels and the name of the master that they monitor.
    ///
    /// Each sentinel is `host[:port]`, or a URL with the credentials for the sentinels. `master` is
    /// the master's name, or a URL with that name in place of the host and the credentials for the
    /// master.
    ///
    /// Sentinels without a scheme have TLS if the master's URL begins with `rediss://`. If a
    /// sentinel's URL does, the master needs a scheme, too: `rediss://`, or `redis://` if it has no
    /// TLS.
    ///
    /// ```
    /// # use leasehold::Client;
    /// let client = Client::builder().sentinel(["10.0.0.1", "10.0.0.2"], "mymaster").build()?;
    /// let master = "redis://ann:s3cret@mymaster/2";
    /// let client = Client::builder().sentinel(["10.0.0.1", "10.0.0.2"], master).build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn sentinel(
        self,
        sentinels: impl IntoIterator<Item = impl Into<String>>,
        master: impl Into<String>,
    ) -> Self {
        self.with_source(UrlSource::Sentinel(strings(sentinels), master.into()))
    }

    /// Sets the servers of a quorum, one URL each; see [`Client::quorum`](crate::Client::quorum).
    ///
    /// ```
    /// # use leasehold::Client;
    /// let servers = ["redis://one:6379", "redis://two:6379", "redis://three:6379"];
    /// let client = Client::builder().quorum(servers).build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn quorum<U: Into<String>>(self, urls: impl IntoIterator<Item = U>) -> Self {
        self.with_source(UrlSource::Quorum(strings(urls)))
    }

    /// Sets how long a lease lasts unless it is renewed, for locks without their own ttl.
    ///
    /// With a short ttl, a crashed holder is soon replaced. With a long ttl, a holder keeps its
    /// lock over longer pauses and outages. At least 10 ms. Defaults to 10 s.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::Client;
    /// # let server = leasehold::testing::Server::start();
    /// # let url = server.url();
    /// let client = Client::builder().url(url).ttl(Duration::from_secs(30)).build()?;
    /// let guard = client.mutex("report").lock()?;
    /// assert!(guard.remaining() > Some(Duration::from_secs(20)));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.config.ttl = ttl;
        self
    }

    /// Sets the prefix of the lock keys: a key is the prefix and the lock's name.
    ///
    /// All programs that share a lock must use the same prefix. Defaults to `lock:`.
    ///
    /// With an empty prefix, or one that begins with a brace, some names in braces are rejected:
    /// the other keys of `{x}` would be those of `x`.
    ///
    /// ```
    /// # use leasehold::Client;
    /// # let server = leasehold::testing::Server::start();
    /// # let url = server.url();
    /// let client = Client::builder().url(url).key_prefix("shop:lock:").build()?;
    /// let guard = client.mutex("account:123").lock()?; // the key shop:lock:account:123
    /// # assert!(server.keys().contains(&"shop:lock:account:123".to_owned()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.config.key_prefix = prefix.into();
        self
    }

    /// Sets the prefix of the release channels: a channel is the prefix and the lock's name.
    ///
    /// A release is published on this channel. All programs that share a lock must use the same
    /// prefix. Programs that use the same names in different databases of a server should use
    /// different ones: channels belong to the server, so a release in one database wakes the
    /// waiters of the name in all of them. Defaults to `lock_release:`.
    ///
    /// ```
    /// # use leasehold::Client;
    /// # let url = "redis://redis.internal:6379";
    /// // A release of `account:123` is published on shop:release:account:123.
    /// let client = Client::builder().url(url).channel_prefix("shop:release:").build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn channel_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.config.channel_prefix = prefix.into();
        self
    }

    /// Sets the owner, the first part of every holder id, by which operators recognise a holder.
    ///
    /// In `CLIENT LIST`, the connections of the client are called `leasehold:<owner>`, with `_` for
    /// what is not printable ASCII. 1 to 1024 bytes. Defaults to `<host>/<pid>`.
    ///
    /// ```
    /// # use leasehold::Client;
    /// # let server = leasehold::testing::Server::start();
    /// # let url = server.url();
    /// let client = Client::builder().url(url).owner("booking-api-7").build()?;
    /// let guard = client.mutex("seat:12A").lock()?;
    /// assert_eq!(guard.holder_id().owner(), "booking-api-7");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.config.owner = owner.into().into();
        self
    }

    /// Sets how long opening one connection may take, 1 ms to 1 h. Defaults to 1 s.
    ///
    /// If a server accepts connections and does not reply to the log-on in that time, the limit of
    /// the next one is eight times as long, up to 30 s: the server may have more new connections
    /// than it can serve. No call waits beyond its own deadline because of this.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::Client;
    /// # let url = "redis://redis.internal:6379";
    /// let timeout = Duration::from_millis(300);
    /// let client = Client::builder().url(url).connect_timeout(timeout).build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout;
        self
    }

    /// Sets how long one command may take, 1 ms to 1 h. Defaults to 1 s.
    ///
    /// `try_lock`, `unlock` and dropping a guard block for at most this time. Keep it well below
    /// the ttl.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::Client;
    /// # let url = "redis://redis.internal:6379";
    /// // A request that finds Redis hanging fails after 300 ms.
    /// let timeout = Duration::from_millis(300);
    /// let client = Client::builder().url(url).command_timeout(timeout).build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.config.command_timeout = timeout;
        self
    }

    /// Sets how long Redis may be unreachable before `lock` gives up. Defaults to 10 s.
    ///
    /// The time counts from the start of the call or from the last answer of Redis, whichever is
    /// later. If Redis answers other calls, but every command of this call fails, it counts from
    /// the first of them. A call with its own deadline gives up at the earlier of the two.
    /// `Duration::MAX` waits for as long as the outage lasts.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::Client;
    /// # let url = "redis://redis.internal:6379";
    /// // A batch job that waits through a restart of Redis.
    /// let outage = Duration::from_secs(300);
    /// let client = Client::builder().url(url).unreachable_for(outage).build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn unreachable_for(mut self, silence: Duration) -> Self {
        self.config.unreachable_for = silence;
        self
    }

    /// Sets how many connections calls that acquire locks may use at the same time.
    ///
    /// Releases and background threads may exceed this limit, so they never wait for it. Over
    /// a quorum, all calls that lock share one connection to each server. Defaults to 32.
    ///
    /// ```
    /// # use leasehold::Client;
    /// # let url = "redis://redis.internal:6379";
    /// let client = Client::builder().url(url).max_connections(8).build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn max_connections(mut self, most: usize) -> Self {
        self.config.max_connections = most;
        self
    }

    /// Sets how many replicas must acknowledge every lease, for locks without their own setting.
    ///
    /// See [`Mutex::min_replicas`](crate::Mutex::min_replicas). Defaults to none.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::Client;
    /// # let url = "redis://redis.internal:6379";
    /// // Both replicas know each lease before its holder does.
    /// let within = Duration::from_millis(100);
    /// let client = Client::builder().url(url).min_replicas(2, within).build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn min_replicas(mut self, count: usize, within: Duration) -> Self {
        self.config.replicas = Some(Replicas {
            wanted: count,
            within,
        });
        self
    }

    /// Sets for how long mutexes without their own setting keep a lease after `unlock`.
    ///
    /// See [`Mutex::linger`](crate::Mutex::linger). Other kinds of lock never linger. Defaults to
    /// zero.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::Client;
    /// # let url = "redis://redis.internal:6379";
    /// let client = Client::builder().url(url).linger(Duration::from_millis(2)).build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn linger(mut self, longest: Duration) -> Self {
        self.config.linger = longest;
        self
    }

    /// Sets how many failed attempts in a row open a server's circuit breaker. Defaults to 5.
    ///
    /// A failed attempt is a write that got no connection, no reply within the command timeout, or
    /// an [error that may pass](crate::guide::outages#errors-that-may-pass). Calls repeat an attempt
    /// that failed early, and concurrent attempts count each, so fewer calls than attempts can open
    /// the breaker. These do not count:
    ///
    /// - a call that only reads, such as [`inspect`](crate::Mutex::inspect): its answer would not
    ///   close the breaker;
    /// - a call that hit its own, shorter deadline;
    /// - a renewal or release in the background that got no reply.
    ///
    /// 0 disables the breaker.
    ///
    /// While the breaker is open, one call or probe is sent at a time, and at most one starts in a
    /// second. All other calls that do not wait, such as `try_lock`, fail at once with
    /// [`Error::CircuitOpen`], `try_lock_for` fails with it at its deadline, and `lock` waits.
    /// Renewals, releases and reads bypass the breaker.
    ///
    /// Only an answered write closes it: a server whose writes are paused, and a replica, answer
    /// reads and grant no lock. Each failing server of a quorum is probed at intervals of up to
    /// 4 s.
    ///
    /// `examples/fail_fast.rs` answers HTTP requests with 503 and `Retry-After` on that error.
    ///
    /// ```
    /// # use leasehold::Client;
    /// # let url = "redis://redis.internal:6379";
    /// let client = Client::builder().url(url).breaker(3).build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn breaker(mut self, failures: u32) -> Self {
        self.config.breaker_after = failures;
        self
    }

    /// Sets whether this client adds its counters to `lock_stats`, a hash that all clients share.
    ///
    /// Defaults to false. A background thread adds them every two seconds, and a last time when the
    /// client ends, if Redis answers then. An addition without a reply, or that Redis refused, is
    /// not sent again, so the hash may miss some counts. It never has too many.
    /// [`Client::shared_stats`](crate::Client::shared_stats) reads the hash. The Redis user needs
    /// `~lock_stats +hincrby`.
    ///
    /// The hash has the fields of [`Totals`](crate::Totals), under the same names. In a cluster the
    /// key is in its own slot; over a quorum it is on the first server.
    ///
    /// ```
    /// # use leasehold::Client;
    /// # let url = "redis://redis.internal:6379";
    /// let client = Client::builder().url(url).shared_stats(true).build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn shared_stats(mut self, on: bool) -> Self {
        self.config.shared_stats = on;
        self
    }

    /// Sets whether calls wait in queues in Redis.
    ///
    /// Defaults to true. Set it to false for a Redis user that lacks the [permissions for
    /// queues](crate::guide::operations#permissions-of-the-redis-user). With queues, a call that
    /// needs a missing permission fails with [`Error::Refused`].
    ///
    /// Without queues, a [`Mutex`](crate::Mutex) and a [`MutexAll`](crate::MutexAll) wait as they
    /// do over a quorum: a release wakes one waiter of each client, and the first to ask gets the
    /// lock. Such a client ignores the queue in which other clients wait, and its releases grant
    /// the lock to none of them: they ask again at once. A [`FairMutex`](crate::FairMutex), an
    /// [`RwLock`](crate::RwLock) and a [`Semaphore`](crate::Semaphore) need queues, and their calls
    /// fail with [`Error::Config`].
    ///
    /// ```
    /// # use leasehold::Client;
    /// # let url = "redis://redis.internal:6379";
    /// let client = Client::builder().url(url).queues(false).build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn queues(mut self, on: bool) -> Self {
        self.config.queues = on;
        self
    }

    /// Replaces addresses that sentinels or nodes of a cluster announce.
    ///
    /// Each pair has an announced `host:port`, and the one at which this machine reaches it. The
    /// pair `("*", "name")` is for all other addresses, and keeps their ports; without it, they are
    /// used as they are. In a cluster, the pairs also apply to the nodes that the URL names.
    ///
    /// Servers behind network address translation, as in containers, may announce addresses that
    /// only reach them from inside. Where possible, let the servers announce other addresses
    /// instead, with `cluster-announce-ip` or `replica-announce-ip`. With TLS, a server's
    /// certificate must name the second address. Replaces the map of an earlier call of this or of
    /// [`address_map_with`](Self::address_map_with).
    ///
    /// ```
    /// # use leasehold::Client;
    /// let client = Client::builder()
    ///     .sentinel(["localhost:26379"], "mymaster")
    ///     .address_map([("10.0.0.7:6379", "localhost:7001"), ("10.0.0.8:6379", "localhost:7002")])
    ///     .build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn address_map(
        mut self,
        pairs: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>,
    ) -> Self {
        let pairs = pairs.into_iter().map(|(from, to)| (from.into(), to.into()));
        let pairs: Vec<(String, String)> = pairs.collect();
        self.address_map = Some(AddressMap::of_pairs(&pairs));
        self
    }

    /// Replaces addresses that sentinels or nodes of a cluster announce, by a closure.
    ///
    /// See [`address_map`](Self::address_map), which takes pairs. The closure is called with the
    /// host and the port of each announced address, and returns where that is reached, or `None` to
    /// use it as it is.
    ///
    /// ```
    /// # use leasehold::Client;
    /// let client = Client::builder()
    ///     .cluster(["gateway:7000"])
    ///     .address_map_with(|_, port| Some(("gateway".into(), port)))
    ///     .build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn address_map_with(
        mut self,
        lookup: impl Fn(&str, u16) -> Option<(String, u16)> + Send + Sync + 'static,
    ) -> Self {
        self.address_map = Some(Ok(AddressMap::new(lookup)));
        self
    }

    /// Returns the settings if they are valid.
    pub(crate) fn check(self) -> Result<(Config, Target), Error> {
        let Some(source) = &self.source else {
            return Err(Error::Config(
                "no server is set: call ClientBuilder::url, cluster, sentinel or quorum".into(),
            ));
        };
        if self.has_two_sources {
            return Err(Error::Config(
                "set only one of url, cluster, sentinel and quorum".into(),
            ));
        }
        self.config.check_values()?;
        let mut target = source.target()?;
        #[cfg(feature = "tls")]
        {
            target = self.with_sentinel_tls(target)?;
        }
        target = match &self.credentials {
            None => target.fill_in_logon(&self.logon),
            // The password comes from there, and may be for the user of the environment.
            Some(credentials) => target.with_credentials(credentials)?.fill_in_logon(&Logon {
                user: self.logon.user,
                ..Logon::default()
            }),
        };
        if let Some(credentials) = &self.sentinel_credentials {
            target = target.with_sentinel_credentials(credentials)?;
        }
        if let Some(map) = self.address_map {
            target = target.with_address_map(&map?)?;
        }
        self.config.check_rules()?;
        #[cfg(feature = "tls")]
        let target = target.with_tls(&self.tls)?;
        Ok((self.config, target))
    }

    /// Returns an error if one setting of leases or calls is invalid, whatever the others are.
    pub(super) fn check_values(&self) -> Result<(), Error> {
        self.config.check_values()
    }
}

fn strings(items: impl IntoIterator<Item = impl Into<String>>) -> Vec<String> {
    items.into_iter().map(Into::into).collect()
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password.
        let target = self.source.as_ref().and_then(|source| source.target().ok());
        let mut shown = f.debug_struct("ClientBuilder");
        shown.field("server", &target.map(|target| target.label()));
        #[cfg(feature = "tls")]
        shown.field("tls", &self.tls);
        shown.field("config", &self.config).finish()
    }
}
