//! The settings that a client is made with.

use std::time::Duration;
use std::{fmt, mem};

use crate::config::Config;
use crate::error::Error;
use crate::replicas::Replicas;
#[cfg(feature = "tls")]
use crate::tls::{ClientCert, Tls};
use crate::url::Target;

/// Settings to make a [`Client`](crate::Client) with. Setters never fail; [`build`](Self::build) checks.
///
/// ```no_run
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
#[must_use = "nothing is made until `build`"]
pub struct ClientBuilder {
    place: Option<Place>,
    /// Two places of different kinds were set: one of them is a mistake.
    has_two_places: bool,
    config: Config,
    #[cfg(feature = "tls")]
    tls: Tls,
}

/// Where Redis is, in the words that it was given in.
#[derive(Clone)]
enum Place {
    Url(String),
    Cluster(Vec<String>),
    Sentinel(Vec<String>, String),
    Quorum(Vec<String>),
}

impl Place {
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
    /// Where Redis is; see [`Client::open`](crate::Client::open) for the forms. This or one of the
    /// next three is needed, and no two of them.
    pub fn url(self, url: impl Into<String>) -> Self {
        self.at(Place::Url(url.into()))
    }

    fn at(mut self, place: Place) -> Self {
        let is_another = |before: &Place| mem::discriminant(before) != mem::discriminant(&place);
        self.has_two_places |= self.place.as_ref().is_some_and(is_another);
        self.place = Some(place);
        self
    }

    /// Whether it is known where Redis is.
    pub(crate) fn has_place(&self) -> bool {
        self.place.is_some()
    }

    /// Where some nodes of a Redis Cluster are, who know the others: `host[:port]`, or a URL with
    /// what is needed to log on to any node.
    ///
    /// ```no_run
    /// # use leasehold::Client;
    /// let client = Client::builder().cluster(["10.0.0.1:7000", "10.0.0.2:7000"]).build()?;
    /// let nodes = ["rediss://ann:s3cret@n1.example", "rediss://ann:s3cret@n2.example"];
    /// let client = Client::builder().cluster(nodes).build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn cluster(self, nodes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let nodes = nodes.into_iter().map(Into::into).collect();
        self.at(Place::Cluster(nodes))
    }

    /// Where the sentinels are, `host[:port]` or a URL with what is needed to log on to them, and
    /// the name of the master, or a URL with the name in the host's place and what is needed to log
    /// on to the master.
    ///
    /// ```no_run
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
        let sentinels = sentinels.into_iter().map(Into::into).collect();
        self.at(Place::Sentinel(sentinels, master.into()))
    }

    /// The certificate authorities to trust, as PEM: one certificate or several, one behind the other.
    /// They take the place of the system's, for every connection of the client: to sentinels too.
    /// Needs a URL with TLS (`rediss://`). Only with the feature `tls`.
    ///
    /// ```no_run
    /// use leasehold::Client;
    ///
    /// let client = Client::builder()
    ///     .url("rediss://redis.internal:6379")
    ///     .tls_root(std::fs::read("/etc/redis/ca.pem")?)
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls_root(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls.root = Some(pem.into());
        self
    }

    /// The certificate that the client shows to servers that ask for one, and its private key, as
    /// PEM. Certificates of authorities in between may follow the client's own. The key must not be
    /// encrypted; it is never printed. Needs a URL with TLS (`rediss://`). Only with the feature
    /// `tls`.
    ///
    /// ```no_run
    /// use std::fs::read;
    /// use leasehold::Client;
    ///
    /// let client = Client::builder()
    ///     .url("rediss://redis.internal:6379")
    ///     .tls_root(read("/etc/redis/ca.pem")?)
    ///     .tls_client_cert(read("/etc/redis/client.pem")?, read("/etc/redis/client.key")?)
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls_client_cert(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.tls.client = Some(ClientCert {
            chain: certificate.into(),
            key: key.into(),
        });
        self
    }

    /// The servers of a quorum, instead of a [`url`](Self::url); see
    /// [`Client::quorum`](crate::Client::quorum).
    pub fn quorum<U: Into<String>>(self, urls: impl IntoIterator<Item = U>) -> Self {
        self.at(Place::Quorum(urls.into_iter().map(Into::into).collect()))
    }

    /// How long a lease lasts unless renewed, for locks that do not set their own. Short: a crashed
    /// holder is soon replaced. Long: a slow network or a paused process does not cost the lock.
    /// From 10 ms. Defaults to 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.config.ttl = ttl;
        self
    }

    /// How often a held lease is renewed. At most nine tenths of the ttl. Defaults to a third of
    /// it, which leaves time for two more tries; locks with a ttl of their own always take a third
    /// of that unless they set an interval too.
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.config.renew_every = Some(interval);
        self
    }

    /// What stands before the name in the lock's key. All programs that share a lock must agree.
    /// Defaults to `lock:`.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.config.key_prefix = prefix.into();
        self
    }

    /// What stands before the name in the channel that a release is announced on. All programs that
    /// share a lock must agree. Defaults to `lock_release:`.
    pub fn channel_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.config.channel_prefix = prefix.into();
        self
    }

    /// The name of our connections in `CLIENT LIST`: printable ASCII without spaces. Defaults to
    /// `leasehold:<host>/<pid>`.
    pub fn connection_name(mut self, name: impl Into<String>) -> Self {
        self.config.connection_name = name.into();
        self
    }

    /// Who holds our locks, for people who look: the first part of every holder id, 1 to 1024
    /// bytes. Defaults to `<host>/<pid>`.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.config.owner = owner.into().into();
        self
    }

    /// How long making one connection may take, 1 ms to 1 h. Defaults to 1 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout;
        self
    }

    /// How long one command may take, 1 ms to 1 h: the longest that `try_lock`, `unlock` and
    /// dropping a guard block. Keep it well below the ttl. Defaults to 1 s.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.config.command_timeout = timeout;
        self
    }

    /// How long Redis may say nothing before a waiting `lock` gives up. `Duration::MAX` waits out
    /// any outage. Defaults to 10 s.
    pub fn unreachable_for(mut self, silence: Duration) -> Self {
        self.config.unreachable_for = silence;
        self
    }

    /// How long a waiter sleeps at the most before it looks again unasked (shortened by up to a
    /// quarter at random): what a lost message can cost. From 10 ms. Defaults to 1 s.
    pub fn backstop(mut self, longest: Duration) -> Self {
        self.config.backstop = longest;
        self
    }

    /// How many connections calls that lock may have in use together. Releases and our own threads
    /// never wait for one and may go above it. Defaults to 32.
    pub fn max_connections(mut self, most: usize) -> Self {
        self.config.max_connections = most;
        self
    }

    /// The longest time for which a call spins before it sleeps until Redis replies: it yields its
    /// processor (`sched_yield`) over and over. Zero never spins. Defaults to zero.
    ///
    /// A processor that goes idle between a command and its reply can need longer to come back than a
    /// server nearby needs to reply. Measure before you set this, for it can go either way:
    ///
    /// - On one machine it saved a third of the time of a lock and unlock.
    /// - On another, a virtual machine with two cores, it saved nothing, and the client used 1.4 to 2.1 times the
    ///   processor time. In a container with a CPU quota of 20 %, a lock and unlock took 320 to 349 µs
    ///   instead of 133 to 162 µs, because the quota is charged for the spinning.
    ///
    /// Only a call that is alone in its client spins, and only about as long as replies have taken so
    /// far: a value of 150 µs suits a server in the same rack. While other threads want the processor,
    /// calls sleep at once. A thread that waits for a *lock* never spins.
    pub fn spin(mut self, longest: Duration) -> Self {
        self.config.spin = longest;
        self
    }

    /// How many replicas must have acknowledged every lease, for locks that do not say so
    /// themselves: see [`Mutex::min_replicas`](crate::Mutex::min_replicas). Defaults to none.
    pub fn min_replicas(mut self, count: usize, within: Duration) -> Self {
        self.config.replicas = Some(Replicas {
            wanted: count,
            within,
        });
        self
    }

    /// After how many failures in a row a server is not asked any more for a while, and calls to it
    /// fail at once with [`Error::CircuitOpen`]: for 1 s, and twice as long each time that the call
    /// after it fails too, up to 30 s. A call that ran out of its own short time is no failure of the
    /// server. Renewals and releases go to it regardless; the first answer to anything ends it, and
    /// while anybody waits, holds or has something to undo, a probe goes out every 500 ms. 0 never
    /// stops asking. Defaults to 5. `examples/fail_fast.rs` turns it into a 503 with a `Retry-After`.
    pub fn breaker(mut self, failures: u32) -> Self {
        self.config.breaker_after = failures;
        self
    }

    /// Whether this client adds what it counts to the hash that all clients of the same Redis share:
    /// once a second from a thread of its own, and a last time when it ends, if Redis answers then.
    /// What could not be added while Redis was away is added when it is back.
    /// [`Client::shared_stats`](crate::Client::shared_stats) reads it. The user of Redis needs
    /// `~lock_stats +hincrby` for that. Defaults to false.
    ///
    /// The fields are those of [`Totals`](crate::Totals), under their names. In a cluster the hash
    /// is where its key belongs, over a quorum on the first server.
    pub fn shared_stats(mut self, on: bool) -> Self {
        self.config.shared_stats = on;
        self
    }

    /// The key of that hash, for readers that expect another name. Choose one that is no lock's key.
    /// Defaults to `lock_stats`.
    pub fn shared_stats_key(mut self, key: impl Into<String>) -> Self {
        self.config.shared_stats_key = key.into();
        self
    }

    /// The settings, if they can work.
    pub(crate) fn check(self) -> Result<(Config, Target), Error> {
        let Some(place) = self.place else {
            return Err(Error::Config(
                "no URL was given: ClientBuilder::url(\"redis://…\")".into(),
            ));
        };
        if self.has_two_places {
            return Err(Error::Config(
                "take only one of url, cluster, sentinel and quorum".into(),
            ));
        }
        self.config.check()?;
        let target = place.target()?;
        #[cfg(feature = "tls")]
        let target = target.with_tls(&self.tls)?;
        Ok((self.config, target))
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password.
        let target = self.place.as_ref().and_then(|place| place.target().ok());
        let mut shown = f.debug_struct("ClientBuilder");
        shown.field("server", &target.map(|target| target.label()));
        #[cfg(feature = "tls")]
        shown.field("tls", &self.tls);
        shown.field("config", &self.config).finish()
    }
}
