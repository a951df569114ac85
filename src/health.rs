//! The state of servers, subscriptions and renewals, for operators and load balancers.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::clock;
use crate::error::Error;

/// The state of a client's servers, subscriptions and renewals; see [`Client::health`](crate::Client::health).
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let health = client.health();
/// let status = if health.is_healthy() { 200 } else { 503 };
/// println!("{status}\n{health}");
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Health {
    /// The servers, all of which were just checked, unless a circuit breaker admits no call yet.
    ///
    /// One server, the known masters of a cluster, or all servers of a quorum.
    pub servers: Vec<HealthPart>,
    /// The subscriptions to releases and grants, one for each server in use.
    ///
    /// While one fails, waiters retry after pauses instead of being woken.
    pub subscribers: Vec<HealthPart>,
    /// The renewal of held leases, one for each server in use.
    pub renewers: Vec<HealthPart>,
    /// How many servers must work: a majority of a quorum, otherwise all of them.
    pub needed: usize,
}

/// The state of one server, or of the subscription or the renewals there.
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// for part in client.health().servers {
///     println!("{}: {} since {:?}", part.server, part.state, part.since);
///     if let Some(error) = part.last_error {
///         println!("its last error: {error}");
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HealthPart {
    /// The server, or the one that the thread talks to, without its password.
    pub server: String,
    /// Whether it works.
    pub state: HealthState,
    /// When it last began to fail, or to work again; if it has never failed, when the client added
    /// it.
    pub since: SystemTime,
    /// The last failure, even if it works again.
    pub last_error: Option<String>,
    /// How long the server took to serve this check; `None` if it did not, and for a thread.
    pub latency: Option<Duration>,
    /// The state of the server's circuit breaker.
    ///
    /// Always `Closed` for a thread. The servers of a quorum share one.
    pub breaker: BreakerState,
}

/// Whether a server, a subscription or renewals work.
///
/// ```
/// use leasehold::HealthState;
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
///
/// let health = client.health();
/// let failing = health.servers.iter().filter(|part| part.state == HealthState::Fails).count();
/// println!("{failing} of {} servers fail, {} are needed", health.servers.len(), health.needed);
/// # assert_eq!((failing, health.needed), (0, 1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HealthState {
    /// It has had nothing to do yet, or it renews leases and has none left after a failure.
    Idle,
    /// Its last operation succeeded. A server has accepted a write since its last failure.
    Works,
    /// Its last operation failed. A server has accepted no write since then.
    Fails,
}

/// The state of a server's circuit breaker.
///
/// ```
/// use leasehold::BreakerState;
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
///
/// for part in client.health().servers {
///     if let BreakerState::Open { retry_in } = part.breaker {
///         println!("calls to {} fail at once for the next {retry_in:?}", part.server);
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerState {
    /// Calls are sent to the server.
    Closed,
    /// Calls that do not wait fail at once with [`Error::CircuitOpen`].
    Open {
        /// The time until the next call is sent.
        retry_in: Duration,
    },
}

impl Health {
    /// Returns the state in a child of the process that made the client: it has no threads, and
    /// must not use the connections of its parent.
    pub(crate) fn in_child(server: &str) -> Self {
        Self {
            servers: vec![HealthPart {
                server: server.to_owned(),
                state: HealthState::Fails,
                since: clock::wall_time(),
                last_error: Some(Error::Forked.to_string()),
                latency: None,
                breaker: BreakerState::Closed,
            }],
            subscribers: Vec::new(),
            renewers: Vec::new(),
            needed: 1,
        }
    }

    /// Returns whether locks can be acquired and kept.
    ///
    /// True if at least [`needed`](Self::needed) servers accept writes and can renew leases. Subscribers do
    /// not count, because without them waiters are only slower.
    ///
    /// A single `false` may be a failover. A load balancer may prefer to report 503 only after the
    /// second `false` in a row.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let status = if client.health().is_healthy() { 200 } else { 503 };
    /// # assert_eq!(status, 200);
    /// ```
    pub fn is_healthy(&self) -> bool {
        let renews = |server: &HealthPart| {
            let of_it = |renewer: &&HealthPart| renewer.server == server.server;
            let renewer = self.renewers.iter().find(of_it);
            renewer.is_none_or(|renewer| renewer.state != HealthState::Fails)
        };
        let works = |server: &&HealthPart| server.state == HealthState::Works && renews(server);
        let works = self.servers.iter().filter(works).count();
        works >= self.needed && works > 0
    }
}

impl fmt::Display for Health {
    /// Writes one line for each part, without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            ("server", &self.servers),
            ("subscriber", &self.subscribers),
            ("renewer", &self.renewers),
        ];
        for (kind, parts) in kinds {
            for part in parts {
                writeln!(f, "{kind} {part}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for HealthState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Works => "working",
            Self::Fails => "failing",
        })
    }
}

impl fmt::Display for BreakerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed"),
            Self::Open { retry_in } => write!(f, "open, retry in {} ms", retry_in.as_millis()),
        }
    }
}

impl fmt::Display for HealthPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.server, self.state)?;
        if let Ok(age) = clock::wall_time().duration_since(self.since) {
            write!(f, " for {} s", age.as_secs())?;
        }
        if let Some(latency) = self.latency {
            write!(f, ", replied in {latency:?}")?;
        }
        if self.breaker != BreakerState::Closed {
            write!(f, ", circuit breaker {}", self.breaker)?;
        }
        if let Some(error) = &self.last_error {
            write!(f, ", last error: {error}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(server: &str, state: HealthState) -> HealthPart {
        HealthPart {
            server: server.into(),
            state,
            since: SystemTime::now(),
            last_error: None,
            latency: None,
            breaker: BreakerState::Closed,
        }
    }

    fn health(servers: &[HealthState], needed: usize) -> Health {
        let name = |n: usize| format!("s{n}");
        let parts = servers.iter().enumerate();
        Health {
            servers: parts.map(|(n, state)| part(&name(n), *state)).collect(),
            subscribers: vec![part("s0", HealthState::Fails)],
            renewers: vec![part("s0", HealthState::Idle)],
            needed,
        }
    }

    #[test]
    fn one_working_server_is_healthy() {
        let works = health(&[HealthState::Works], 1);
        assert!(works.is_healthy());
        assert!(works.to_string().contains("server s0 working for 0 s"));
        assert!(!health(&[HealthState::Fails], 1).is_healthy());
    }

    #[test]
    fn a_quorum_needs_its_majority() {
        use HealthState::{Fails, Works};
        assert!(health(&[Works, Works, Fails], 2).is_healthy());
        assert!(!health(&[Works, Fails, Fails], 2).is_healthy());
        let mut two = health(&[Works, Works, Fails], 2);
        two.renewers = vec![part("s0", Fails)];
        assert!(!two.is_healthy(), "one of the two cannot renew");
    }

    #[test]
    fn without_servers_nothing_is_healthy() {
        assert!(!health(&[], 0).is_healthy());
    }
}
