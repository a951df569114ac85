//! The settings of a client and of a lock, and their validation.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::cancel::CancelToken;
use crate::error::Error;
use crate::lost::Lost;
use crate::renewed::Renewed;
use crate::replicas::Replicas;
use crate::thread_group::ThreadGroup;
use crate::validity::validity;
use crate::wait_policy::WaitPolicy;

pub(crate) const SHORTEST_TTL: Duration = Duration::from_millis(10);

/// Scripts calculate with doubles, which are exact up to 2^53.
const LONGEST_TTL: Duration = Duration::from_millis((1 << 53) - 1);

const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);

const LONGEST_TIMEOUT: Duration = Duration::from_secs(3600);

const HANDOFFS: u32 = 32;

/// An acquire reserves at most 64 fencing tokens: one for the acquiring holder, and one for each
/// hand-off. A token is the clock in µs, or the last token plus 1 if that is higher. Larger
/// reservations could move the tokens far ahead of the clock.
const MOST_HANDOFFS: u32 = 63;

/// The settings of a client.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) ttl: Duration,
    pub(crate) key_prefix: String,
    pub(crate) channel_prefix: String,
    pub(crate) owner: Arc<str>,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) unreachable_for: Duration,
    pub(crate) max_connections: usize,
    pub(crate) replicas: Option<Replicas>,
    /// Calls wait in queues in Redis, unless over a quorum.
    pub(crate) queues: bool,
    pub(crate) linger: Duration,
    /// Failures in a row that open the circuit breaker; zero disables it.
    pub(crate) breaker_after: u32,
    pub(crate) shared_stats: bool,
    /// The threads that make the client's connections.
    pub(crate) dialers: ThreadGroup,
}

impl Default for Config {
    fn default() -> Self {
        let owner = format!("{}/{}", host(), std::process::id());
        Self {
            ttl: Duration::from_secs(10),
            key_prefix: "lock:".into(),
            channel_prefix: "lock_release:".into(),
            owner: owner.into(),
            connect_timeout: Duration::from_secs(1),
            command_timeout: Duration::from_secs(1),
            unreachable_for: Duration::from_secs(10),
            max_connections: 32,
            replicas: None,
            queues: true,
            linger: Duration::ZERO,
            breaker_after: 5,
            shared_stats: false,
            dialers: ThreadGroup::default(),
        }
    }
}

impl Config {
    /// Returns an error if one setting is invalid, whatever the others are.
    pub(crate) fn check_values(&self) -> Result<(), Error> {
        check_ttl(self.ttl)?;
        for (what, timeout) in [
            ("connect_timeout", self.connect_timeout),
            ("command_timeout", self.command_timeout),
        ] {
            if timeout < Duration::from_millis(1) || timeout > LONGEST_TIMEOUT {
                return wrong(format!(
                    "{what} must be between 1 ms and 1 h, not {timeout:?}"
                ));
            }
        }
        if self.unreachable_for.is_zero() {
            return wrong("unreachable_for must be longer than zero");
        }
        if self.max_connections == 0 {
            return wrong("max_connections must be at least 1");
        }
        if self.owner.is_empty() || self.owner.len() > 1024 {
            return wrong(format!(
                "owner must have 1 to 1024 bytes, not {}",
                self.owner.len()
            ));
        }
        Ok(())
    }

    /// Returns the name of the connections in `CLIENT LIST`, in characters that Redis takes.
    pub(crate) fn connection_name(&self) -> String {
        let owner = self.owner.replace(|c: char| !c.is_ascii_graphic(), "_");
        format!("leasehold:{owner}")
    }

    /// Returns an error if two valid settings contradict each other.
    pub(crate) fn check_rules(&self) -> Result<(), Error> {
        if let Some(replicas) = self.replicas.filter(|replicas| replicas.wanted > 0) {
            replicas.check(self.command_timeout)?;
        }
        if self.key_prefix == self.channel_prefix && self.key_prefix.is_empty() {
            return wrong("key_prefix and channel_prefix must not both be empty");
        }
        Ok(())
    }
}

/// The settings of one lock. `None` uses the client's setting, or the default if the client has
/// none.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    pub(crate) ttl: Option<Duration>,
    pub(crate) renew_every: Option<Duration>,
    pub(crate) no_renewal: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) trace_id: Option<Arc<str>>,
    pub(crate) wait: WaitPolicy,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) handoffs: Option<u32>,
    pub(crate) linger: Option<Duration>,
    pub(crate) cancel: Option<CancelToken>,
    pub(crate) on_lost: Option<Arc<OnLost>>,
    pub(crate) on_renew: Option<Arc<OnRenew>>,
}

pub(crate) type OnLost = dyn Fn(&Lost) + Send + Sync;
pub(crate) type OnRenew = dyn Fn(&Renewed) + Send + Sync;

impl Settings {
    /// Returns the terms of the leases to acquire, or an error if a setting is invalid.
    pub(crate) fn terms(&self, config: &Config) -> Result<LeaseTerms, Error> {
        let ttl = self.ttl.unwrap_or(config.ttl);
        check_ttl(ttl)?;
        if let Some(every) = self.renew_every {
            check_renew_every(every, ttl)?;
        }
        if self.max_hold.is_some_and(|max| max.is_zero()) {
            return wrong("max_hold must be longer than zero");
        }
        if let WaitPolicy::Backoff(backoff) = &self.wait {
            backoff.check()?;
        }
        let replicas = self
            .replicas
            .or(config.replicas)
            .filter(|replicas| replicas.wanted > 0);
        if let Some(replicas) = &replicas {
            replicas.check(config.command_timeout)?;
        }
        let handoffs = self.handoffs.unwrap_or(HANDOFFS).min(MOST_HANDOFFS);
        // A lease that lingers is handed off: the client's setting is for locks that can be.
        let linger = match handoffs {
            0 => self.linger.unwrap_or_default(),
            _ => self.linger.unwrap_or(config.linger),
        };
        check_linger(linger, handoffs, ttl)?;
        Ok(LeaseTerms {
            ttl,
            renew_every: (!self.no_renewal).then(|| self.interval(ttl)),
            max_hold: self.max_hold.unwrap_or(Duration::MAX),
            replicas,
            handoffs,
            linger,
        })
    }

    /// Returns the interval of renewals. A longer one than leaves time for a renewal is shortened.
    fn interval(&self, ttl: Duration) -> Duration {
        let every = self.renew_every.unwrap_or(ttl / 3);
        every.min(longest_interval(ttl))
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("ttl", &self.ttl)
            .field("renew_every", &self.renew_every)
            .field("auto_renew", &!self.no_renewal)
            .field("max_hold", &self.max_hold)
            .field("trace_id", &self.trace_id)
            .field("wait", &self.wait)
            .field("min_replicas", &self.replicas)
            .field("local_handoffs", &self.handoffs)
            .field("linger", &self.linger)
            .field("cancel_on", &self.cancel)
            .finish_non_exhaustive()
    }
}

/// The terms under which a lease is acquired.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTerms {
    pub(crate) ttl: Duration,
    /// `None`: no background renewal.
    pub(crate) renew_every: Option<Duration>,
    pub(crate) max_hold: Duration,
    pub(crate) replicas: Option<Replicas>,
    /// How many times in a row the lease may be handed to another holder of the same client.
    pub(crate) handoffs: u32,
    /// For how long the client keeps the lease after the end of a holding.
    pub(crate) linger: Duration,
}

impl LeaseTerms {
    /// Returns how many fencing tokens an acquire reserves: one for each hand-off if other calls
    /// wait behind it, or may come while the lease lingers.
    pub(crate) fn tokens(&self, others_wait: bool) -> u64 {
        if others_wait || !self.linger.is_zero() {
            u64::from(self.handoffs) + 1
        } else {
            1
        }
    }
}

/// Returns an error if Redis or the scripts cannot represent `ttl`, or if it is too short.
pub(crate) fn check_ttl(ttl: Duration) -> Result<(), Error> {
    if ttl < SHORTEST_TTL {
        return wrong(format!(
            "ttl must be at least 10 ms, not {ttl:?}: a round trip may take longer"
        ));
    }
    if ttl > LONGEST_TTL {
        return wrong(format!(
            "ttl must be at most {LONGEST_TTL:?}, not {ttl:?}: scripts cannot handle a longer one"
        ));
    }
    Ok(())
}

fn check_renew_every(every: Duration, ttl: Duration) -> Result<(), Error> {
    let longest = ttl / 10 * 9;
    if every < SHORTEST_INTERVAL || every > longest {
        return wrong(format!(
            "renew_every must be between 1 ms and {longest:?} with a ttl of {ttl:?}, not \
             {every:?}: a third of the ttl leaves time for two retries"
        ));
    }
    Ok(())
}

/// Returns the longest interval of the renewals of a lease with this ttl: nine tenths of its
/// validity.
pub(crate) fn longest_interval(ttl: Duration) -> Duration {
    validity(ttl) / 10 * 9
}

fn check_linger(linger: Duration, handoffs: u32, ttl: Duration) -> Result<(), Error> {
    if linger > ttl / 3 {
        return wrong(format!(
            "linger must be at most a third of the ttl, {:?} with a ttl of {ttl:?}, not {linger:?}",
            ttl / 3
        ));
    }
    if !linger.is_zero() && handoffs == 0 {
        return wrong("linger needs local_handoffs of at least 1: the lease is handed off");
    }
    Ok(())
}

fn wrong<T>(what: impl Into<String>) -> Result<T, Error> {
    Err(Error::Config(what.into()))
}

fn host() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn the_default_lease_lasts_10_s_and_is_renewed_every_third() {
        let config = Config::default();
        config.check_values().unwrap();
        config.check_rules().unwrap();
        let terms = Settings::default().terms(&config).unwrap();
        assert_eq!(terms.ttl, ms(10_000));
        assert_eq!(terms.renew_every, Some(ms(10_000) / 3));
    }

    #[test]
    fn validity_allows_for_a_clock_that_is_slewed() {
        let hour = Duration::from_secs(3600);
        for (ttl, margin) in [
            (ms(10), ms(1)),
            (ms(10_000), ms(1_000)),
            (ms(111_111), ms(111_111) / 10),
            (ms(112_000), ms(1_120 + 10_000)),
            (hour, ms(36_000 + 10_000)),
        ] {
            assert_eq!(ttl - validity(ttl), margin + ms(2), "{ttl:?}");
        }
        assert!(validity(SHORTEST_TTL) > Duration::ZERO);
    }

    #[test]
    fn invalid_times_are_rejected() {
        let config = Config::default();
        for ttl in [ms(0), ms(9), LONGEST_TTL + ms(1), Duration::MAX] {
            let settings = Settings {
                ttl: Some(ttl),
                ..Settings::default()
            };
            assert!(
                matches!(settings.terms(&config), Err(Error::Config(_))),
                "{ttl:?}"
            );
        }
        let renewed_every = |every| {
            let settings = Settings {
                renew_every: Some(every),
                ..Settings::default()
            };
            settings.terms(&config)
        };
        for every in [ms(0), ms(9_001), Duration::MAX] {
            let error = renewed_every(every).unwrap_err().to_string();
            assert!(error.contains("between 1 ms and 9s with"), "{error}");
        }
        let shortened = renewed_every(ms(8_900)).unwrap().renew_every;
        assert_eq!(shortened, Some(ms(8_998) / 10 * 9));
        for ttl in [SHORTEST_TTL, ms(300), ms(10_000), LONGEST_TTL] {
            // A third of the ttl leaves time for a renewal with every ttl.
            assert!(ttl / 3 < longest_interval(ttl), "{ttl:?}");
        }
        for timeout in [Duration::ZERO, Duration::MAX] {
            assert!(
                Config {
                    command_timeout: timeout,
                    ..Config::default()
                }
                .check_values()
                .is_err()
            );
        }
        assert!(
            Config {
                unreachable_for: Duration::MAX,
                ..Config::default()
            }
            .check_values()
            .is_ok()
        );
    }
}
