//! The settings that a client is made with.

use std::fmt;
use std::time::Duration;

use crate::config::Config;
use crate::error::Error;
use crate::url::{Deployment, Target};

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
    url: Option<String>,
    quorum: Option<Vec<String>>,
    config: Config,
}

impl ClientBuilder {
    /// Where Redis is; see [`Client::open`](crate::Client::open) for the forms. Needed.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// The servers of a quorum, instead of a [`url`](Self::url); see
    /// [`Client::quorum`](crate::Client::quorum).
    pub fn quorum<U: Into<String>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        self.quorum = Some(urls.into_iter().map(Into::into).collect());
        self
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

    /// The settings, if they can work.
    pub(crate) fn check(self) -> Result<(Config, Deployment), Error> {
        let wrong = |what: &str| Err(Error::Config(what.into()));
        let deployment = match (self.url, self.quorum) {
            (None, None) => {
                return wrong("no URL was given: ClientBuilder::url(\"redis://…\")");
            }
            (Some(_), Some(_)) => return wrong("take either url or quorum, not both"),
            (Some(url), None) => Deployment::One(Box::new(Target::parse(&url)?)),
            (None, Some(urls)) => Deployment::quorum(&urls)?,
        };
        self.config.check()?;
        Ok((self.config, deployment))
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password.
        let target = self.url.as_deref().and_then(|url| Target::parse(url).ok());
        f.debug_struct("ClientBuilder")
            .field("server", &target.map(|target| target.label()))
            .field("config", &self.config)
            .finish()
    }
}
