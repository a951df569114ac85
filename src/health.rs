//! Whether what locks need works, for people and for load balancers.

use std::fmt;
use std::time::{Duration, SystemTime};

/// How a client's servers and threads do, as [`Client::health`](crate::Client::health) found it.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1")?;
/// let health = client.health();
/// let status = if health.is_healthy() { 200 } else { 503 };
/// println!("{status}\n{health}");
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Health {
    /// Each server, which was just asked: one, all masters of a cluster that are known, or all of a
    /// quorum.
    pub servers: Vec<HealthPart>,
    /// What hears releases, for each server in use. While it fails, waiters look again by themselves.
    pub subscribers: Vec<HealthPart>,
    /// What renews held leases, for each server in use.
    pub renewers: Vec<HealthPart>,
    /// How many servers must work: a majority of a quorum, else all of them.
    pub needed: usize,
}

/// One thing that works or fails.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HealthPart {
    /// Of which server, without its password.
    pub server: String,
    /// Whether it works.
    pub state: HealthState,
    /// Since when it is in this state.
    pub since: SystemTime,
    /// The last thing that went wrong, even where it works again.
    pub last_error: Option<String>,
    /// How long a server took to answer just now.
    pub latency: Option<Duration>,
    /// Whether calls to a server are let through.
    pub breaker: BreakerState,
}

/// Whether a part works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HealthState {
    /// It has had nothing to do so far.
    Idle,
    /// It did what it last had to do.
    Works,
    /// It did not.
    Fails,
}

/// Whether calls to a server are let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerState {
    /// They are.
    Closed,
    /// They fail at once with [`Error::CircuitOpen`](crate::Error::CircuitOpen).
    Open {
        /// When the next is let through.
        retry_in: Duration,
    },
}

impl Health {
    /// Whether locks can be taken and kept: as many servers answer as are needed, and none of those
    /// fails to renew. What hears releases does not count: without it waiters are slower, and that
    /// is all.
    ///
    /// A busy program may want to be told 503 only after the second `false` in a row: a single one
    /// may be a failover.
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
    /// A line for each part, without anything secret.
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

impl fmt::Display for HealthPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            HealthState::Idle => "is idle",
            HealthState::Works => "works",
            HealthState::Fails => "fails",
        };
        write!(f, "{} {state}", self.server)?;
        if let Ok(age) = self.since.elapsed() {
            write!(f, " since {} s", age.as_secs())?;
        }
        if let Some(latency) = self.latency {
            write!(f, ", answered in {latency:?}")?;
        }
        if let BreakerState::Open { retry_in } = self.breaker {
            write!(f, ", is not asked for {} ms", retry_in.as_millis())?;
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
    fn smoke() {
        let works = health(&[HealthState::Works], 1);
        assert!(works.is_healthy());
        assert!(works.to_string().contains("server s0 works since 0 s"));
        assert!(!health(&[HealthState::Fails], 1).is_healthy());
    }

    #[test]
    fn a_quorum_needs_its_majority() {
        use HealthState::{Fails, Works};
        assert!(health(&[Works, Works, Fails], 2).is_healthy());
        assert!(!health(&[Works, Fails, Fails], 2).is_healthy());
        let mut two = health(&[Works, Works, Fails], 2);
        two.renewers = vec![part("s0", Fails)];
        assert!(!two.is_healthy(), "one of them does not renew");
    }

    #[test]
    fn no_server_is_no_health() {
        assert!(!health(&[], 0).is_healthy());
    }
}
