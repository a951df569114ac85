//! One server: its connections and its health.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::RedisError;

use crate::clock::Instant;
use crate::config::Config;
use crate::error::{Cause, Error};
use crate::health::{HealthPart, HealthState};
use crate::kernel::fault::Fault;
use crate::logging;
use crate::protocol::probe::Probe;
use crate::redis::conn::callers::Cap;
use crate::redis::conn::connection::Connection;
use crate::redis::conn::connector::Connector;
use crate::redis::conn::dial::ConnectError;
use crate::redis::conn::pool::{Pool, PooledConnection};
use crate::redis::fault::NodeFault;
use crate::redis::health::{Admission, ServerHealth};
use crate::stats::Histogram;
use crate::sync::Mutex;
use crate::violation::Violation;

/// A server, or the master that sentinels name.
pub(crate) struct Server {
    pub(super) pool: Arc<Pool>,
    pub(crate) health: ServerHealth,
    /// Its number among the servers of a quorum.
    pub(crate) number: Option<usize>,
    /// The time from a command to its reply.
    pub(crate) latency: Histogram,
    /// The last release that failed, if the server has served no write since.
    ignored_release: Mutex<Option<IgnoredRelease>>,
    /// Whether that is known, read without the lock.
    ignores_releases: AtomicBool,
}

/// A release that a server did not serve.
#[derive(Clone, Debug)]
pub(crate) struct IgnoredRelease {
    pub(crate) cause: Cause,
    /// Whether the server replied that it cannot serve now. Another release then finds out at once
    /// whether it can.
    pub(crate) was_refused: bool,
}

impl Server {
    /// With `number`, it is one of the servers of a quorum.
    pub(super) fn new(connector: Connector, config: &Config, number: Option<usize>) -> Self {
        Self {
            pool: Arc::new(Pool::new(connector, config.max_connections)),
            // The servers of a quorum share one breaker.
            health: ServerHealth::new(match number {
                Some(_) => 0,
                None => config.breaker_after,
            }),
            number,
            latency: Histogram::default(),
            ignored_release: Mutex::default(),
            ignores_releases: AtomicBool::new(false),
        }
    }

    /// The server's address for messages.
    pub(crate) fn label(&self) -> &str {
        &self.pool.connector.label
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        self.pool.connector.command_timeout
    }

    /// Records a reply, and returns the connection to the pool. If the server did not serve the
    /// call, as `not_served` says, the connection is closed instead. See
    /// [`answered`](Self::answered) for `is_write`.
    pub(super) fn settle(
        &self,
        pooled: PooledConnection<'_>,
        sent: Instant,
        not_served: Option<&Cause>,
        is_write: bool,
    ) {
        if let Some(cause) = not_served {
            pooled.reject();
            self.failed_by(Some(cause), is_write);
        } else {
            self.pool.pass_on(pooled);
            self.answered(sent, is_write);
        }
    }

    /// Records that no reply came. Pass `counts` unless another call reports this failure, too.
    /// Only that of a write counts towards the breaker.
    pub(super) fn no_answer(
        &self,
        error: RedisError,
        sent: Instant,
        until: Instant,
        command: &str,
        counts: bool,
        is_write: bool,
    ) -> Fault {
        // A server whose reply is too large can be reached.
        let is_servers_fault = if error.is_timeout() {
            self.had_time(sent, until)
        } else {
            !Violation::is_too_large(&error)
        };
        let counts = counts && is_servers_fault;
        let is_closed = error.is_connection_dropped();
        let cause = Cause::lost_reply(error, sent.until(Instant::now()), command);
        if is_closed {
            self.pool.note_closed(&cause);
        }
        self.failed_by(Some(&cause), counts && is_write);
        if counts {
            self.pool.forget_idle();
        }
        Fault::Unknown(cause)
    }

    /// Returns whether a call from `from` to `until` had nearly the whole command timeout.
    fn had_time(&self, from: Instant, until: Instant) -> bool {
        from.until(until) >= self.command_timeout() / 10 * 9
    }

    /// Returns a connection. A failure counts towards the breaker if it is for a write.
    pub(super) fn acquire_connection(
        &self,
        until: Instant,
        cap_rule: Cap,
        is_write: bool,
    ) -> Result<PooledConnection<'_>, Fault> {
        let asked = Instant::now();
        self.pool
            .acquire_connection(until, cap_rule)
            .map_err(|refusal| self.not_connected(refusal, asked, until, is_write))
    }

    /// Returns a connection, and the instant before a call is sent on it. Returns a fault if no
    /// reply could come in time: the call would only leave something to undo.
    pub(super) fn connection_before(
        &self,
        until: Instant,
        cap_rule: Cap,
        is_write: bool,
    ) -> Result<(PooledConnection<'_>, Instant), Fault> {
        let pooled = self.acquire_connection(until, cap_rule, is_write)?;
        let sent = Instant::now();
        if sent >= until {
            self.pool.pass_on(pooled);
            return Err(Fault::NotRun(Cause::silence("no time was left to ask")));
        }
        Ok((pooled, sent))
    }

    /// Returns why a call that wanted a connection from `asked` until `until` did not get one.
    pub(super) fn not_connected(
        &self,
        refusal: ConnectError,
        asked: Instant,
        until: Instant,
        is_write: bool,
    ) -> Fault {
        if refusal.cause.is_of_client() {
            // The client ran out of connections, which says nothing about the server.
            return Fault::NotRun(refusal.cause);
        }
        if refusal.is_final {
            return Fault::Rejected(Error::Refused {
                server: self.label().to_owned(),
                command: refusal.cause.refused_step(),
                answer: refusal.cause.to_string(),
                retried_for: None,
            });
        }
        let is_silence = refusal.cause.is_silence();
        let counts = refusal.is_servers_fault || is_silence && self.had_time(asked, until);
        // Other calls use the connections that the server has accepted.
        let counts = counts && is_write && !self.pool.has_connection();
        self.failed_by(Some(&refusal.cause), counts);
        Fault::NotRun(refusal.cause)
    }

    /// Returns a connection outside of the pool, for a thread that keeps it. Leaves the pool its
    /// last one: no other may be available, and the holders of locks need it.
    pub(crate) fn connection(&self, until: Instant) -> Result<Connection, Fault> {
        let leaves_one = self.pool.has_connection();
        let pooled = self.acquire_connection(until, Cap::Kept { leaves_one }, false)?;
        Ok(pooled.keep())
    }

    /// Asks the sentinels, and moves on to another master if they name one. Returns true if so.
    pub(crate) fn look_for_master(&self) -> bool {
        let has_moved = self.pool.connector.look_for_master();
        if has_moved {
            self.health.reset();
            self.pool.move_on();
            self.pool.connector.moved();
        }
        has_moved
    }

    /// Returns whether the connections of this generation lead to the server that currently grants
    /// the locks, as far as known.
    pub(crate) fn is_current(&self, generation: u64) -> bool {
        self.pool.is_current(generation)
    }

    /// Returns the last release that failed, if the server has served no write since.
    pub(super) fn ignored_release(&self) -> Option<IgnoredRelease> {
        if self.ignores_releases.load(Ordering::Relaxed) {
            self.ignored_release.lock().clone()
        } else {
            None
        }
    }

    /// Records a release that began at `start` and failed, unless something else was served.
    pub(super) fn note_ignored_release(&self, start: Instant, ignored: &IgnoredRelease) {
        if !self.health.has_answered_since(start) {
            *self.ignored_release.lock() = Some(ignored.clone());
            self.ignores_releases.store(true, Ordering::Relaxed);
        }
    }

    /// Records a reply to something that was sent at `sent`. Only that to a write ends a failure.
    pub(crate) fn answered(&self, sent: Instant, is_write: bool) {
        let now = Instant::now();
        if is_write && self.ignores_releases.load(Ordering::Relaxed) {
            self.ignores_releases.store(false, Ordering::Relaxed);
        }
        let trip = sent.until(now);
        self.latency.record(trip);
        self.pool.combiner.took(trip);
        if is_write {
            self.pool.note_write();
        }
        if is_write && self.health.answered(now) {
            logging::info!(
                server = self.label();
                "{} answers again: its circuit breaker is closed", self.label()
            );
        }
    }

    /// Records a failure that does not count towards the circuit breaker.
    pub(crate) fn failed(&self) {
        self.failed_by(None, false);
    }

    /// Records a failure, which may count towards the circuit breaker.
    pub(crate) fn failed_by(&self, cause: Option<&Cause>, counts: bool) {
        if self.health.failed(cause, counts) {
            let cause = cause.map_or_else(String::new, |cause| format!(" ({cause})"));
            logging::warn!(
                server = self.label();
                "circuit breaker open for {}{cause}: calls that do not \
                 wait fail at once until it answers a write",
                self.label()
            );
        }
        self.pool.connector.failed();
    }

    /// Admits a call that the breaker stops until the admission is dropped. Returns a fault while
    /// the breaker is open, or while calls may not lock.
    pub(super) fn admit_stopped(&self) -> Result<Admission<'_>, Fault> {
        self.check_one()?;
        self.health.admit(self.label())
    }

    /// Returns a fault while the open breaker admits no call.
    pub(crate) fn admit(&self) -> Result<(), Fault> {
        self.health.admit(self.label()).map(drop)
    }

    /// Returns a fault while calls may not lock, because two servers behind the address take
    /// writes.
    pub(crate) fn check_one(&self) -> Result<(), Fault> {
        self.pool.check_one().map_err(Fault::Rejected)
    }

    /// Sends a write that changes nothing. Succeeds if the server accepts writes, or if the user's
    /// permissions forbid this one. Another refusal is a failure.
    fn probe(&self, probe: &Probe, until: Instant) -> Result<(), Fault> {
        match self.call_or_undo(probe.call(), until, Cap::Exempt, None) {
            // A node that passes the slot of the probe on answers, and says nothing about writes.
            Ok(_) | Err(NodeFault::Redirected(..) | NodeFault::NoScript) => Ok(()),
            Err(NodeFault::Fault(fault)) => {
                if fault.refuses_writes() {
                    self.failed_by(Some(&Cause::text(fault.without_server())), false);
                } else if matches!(fault, Fault::Rejected(_)) {
                    return Ok(());
                }
                Err(fault)
            }
        }
    }

    /// Sends a probe, unless the open breaker admits none, and returns the server's state.
    pub(super) fn check_health(&self, probe: &Probe, until: Instant) -> HealthPart {
        let asked = Instant::now();
        let probed = match self.health.admit(self.label()) {
            Ok(_admission) => self.probe(probe, until),
            Err(open) => Err(open),
        };
        let latency = probed.is_ok().then(|| asked.until(Instant::now()));
        let mut part = self.health.part(self.label(), latency);
        // Both servers answer, and no call may lock.
        if let Err(two) = self.pool.check_one() {
            part.state = HealthState::Fails;
            part.last_error = Some(two.to_string());
        }
        part
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.pool.is_retired()
    }

    /// Returns how many connections to it are open.
    pub(crate) fn connections(&self) -> u64 {
        self.pool.connector.connections()
    }
}
