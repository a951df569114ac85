//! One server: sends a call and returns its reply or a fault.

use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, ServerError};

use crate::clock::Instant;
use crate::config::Config;
use crate::error::{Cause, Error};
use crate::error_reply::{Meaning, meaning, words};
use crate::health::HealthPart;
use crate::logging;
use crate::name::shown;
use crate::protocol::answer::Answer;
use crate::protocol::reply::Reply;
use crate::protocol::script::{Call, pack_wait};
use crate::protocol::verb::Verb;
use crate::redis::combine::Combined;
use crate::redis::conn::callers::Cap;
use crate::redis::conn::connection::{Connection, is_hang_up, reply};
use crate::redis::conn::connector::{Connector, OnFailure};
use crate::redis::conn::dial::ConnectError;
use crate::redis::conn::pool::{ConnectRequest, GetError, Pool, PooledConnection};
use crate::redis::fault::{Fault, NodeFault, Redirect};
use crate::redis::health::ServerHealth;
use crate::redis::quorum::member::Member;
use crate::redis::sentinel::Sentinels;
use crate::redis::spin::Spin;
use crate::redis::undoable::Undoable;
use crate::replicas::Replicas;
use crate::stats::Histogram;
use crate::url::{Address, Target};

/// A server, or the master that sentinels name.
pub(crate) struct Server {
    pub(in crate::redis) pool: Arc<Pool>,
    pub(crate) condition: ServerHealth,
    /// Its state as a member of a quorum.
    pub(crate) member: Option<Member>,
    /// The time from a command to its reply.
    pub(crate) latency: Histogram,
    spin: Spin,
}

impl Server {
    pub(crate) fn new(
        target: Target,
        config: &Config,
        member: Option<Member>,
    ) -> Result<Self, Error> {
        let node =
            Connector::new(target, config).map_err(|error| Error::Config(error.to_string()))?;
        Ok(Self::at(node, config, member))
    }

    /// A node of a cluster.
    pub(in crate::redis) fn member(
        address: Address,
        on_failure: OnFailure,
        config: &Config,
    ) -> Self {
        let node = Connector::member(address, on_failure, config);
        Self::at(node, config, None)
    }

    fn at(node: Connector, config: &Config, member: Option<Member>) -> Self {
        Self {
            pool: Arc::new(Pool::new(node, config.max_connections)),
            // A quorum marks a failing member down instead of opening a breaker.
            condition: ServerHealth::new(if member.is_some() {
                0
            } else {
                config.breaker_after
            }),
            member,
            latency: Histogram::default(),
            spin: Spin::new(config.spin),
        }
    }

    /// Requests a connection without waiting for it; a dialer starts if none is idle.
    pub(in crate::redis) fn request_connection(&self) -> Result<ConnectRequest<'_>, Error> {
        self.pool.request()
    }

    /// Closes the idle connections, which are most likely dead too.
    pub(in crate::redis) fn forget_idle(&self) {
        self.pool.forget_idle();
    }

    /// The server's address for messages.
    pub(crate) fn label(&self) -> &str {
        &self.pool.node.label
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        self.pool.node.command_timeout
    }

    /// Sends `call` and waits for its reply until `until`, and at most for the command timeout. If
    /// no reply comes, the undo is written behind the call on the same connection.
    ///
    /// Also returns the instant before the call was sent: a lease counts from then.
    pub(in crate::redis) fn call_or_undo(
        &self,
        call: Call<'_>,
        until: Instant,
        cap_rule: Cap,
        undoable: Option<&Undoable<'_>>,
    ) -> Result<(Answer, Instant), NodeFault> {
        if cap_rule == Cap::Counted {
            self.condition.admit(self.label())?;
        }
        // WAIT must follow on the call's own connection, and ASKING must directly precede the call.
        let may_combine = call.replicas.is_none() && !call.asking;
        let entered = self.pool.enter();
        if may_combine && entered.is_one_of_many(cap_rule) {
            match self.pool.combine(&call, until, cap_rule, undoable) {
                // Nothing ran, so the same call may be sent again.
                Some(Combined {
                    answer: Ok(Err(error)),
                    ..
                }) if matches!(meaning(&error), Meaning::NoScript) => {}
                Some(sent) => return self.read(&call, sent, until),
                None => {}
            }
        }
        let mut pooled = self.acquire_connection(until, cap_rule)?;
        let sent = Instant::now();
        if sent >= until {
            // A reply could not come in time: the call would only leave something to undo.
            self.pool.pass_on(pooled);
            return Err(Fault::NotRun(Cause::silence("no time was left to ask")).into());
        }
        // Several spinning calls would compete for the processor.
        let is_alone = entered.is_alone();
        let mut answer = self.run(&mut pooled, &call, sent, until, is_alone, |buffer| {
            call.pack_by_sha(buffer)
        });
        if matches!(&answer, Ok((Err(error), _)) if matches!(meaning(error), Meaning::NoScript)) {
            // Nothing ran, so the same call may be sent again.
            answer = self.run(&mut pooled, &call, Instant::now(), until, false, |buffer| {
                call.pack_by_source(buffer)
            });
        }
        match answer {
            Ok((answer, waited)) => {
                let reply = answer
                    .map_err(|error| self.node_fault(&call, &error))
                    .and_then(|reply| Ok(self.acknowledged(reply, waited, call.replicas)?));
                self.settle(pooled, sent, NodeFault::not_run_in(&reply));
                Ok((reply?, sent))
            }
            Err(error) => {
                if let Some(undoable) = undoable {
                    let undo = undoable.release().asking(call.asking);
                    pooled.keep().undo_behind([undo]);
                }
                Err(self.no_answer(error, sent, until).into())
            }
        }
    }

    /// Returns what the result of a combined call means for its caller.
    fn read(
        &self,
        call: &Call<'_>,
        sent: Combined,
        until: Instant,
    ) -> Result<(Answer, Instant), NodeFault> {
        let Combined {
            at: sent,
            answer,
            has_read,
        } = sent;
        let answer = answer.map_err(|error| match has_read {
            true => self.no_answer(error, sent, until),
            // A connection that fails counts as one failure of the server, not one for each call.
            false => {
                let cause = Cause::lost_reply(error, sent.until(Instant::now()));
                self.failed_by(Some(&cause), false);
                Fault::Unknown(cause)
            }
        })?;
        let reply = answer.map_err(|error| self.node_fault(call, &error));
        match NodeFault::not_run_in(&reply) {
            Some(cause) => self.failed_by(Some(cause), false),
            None => self.answered(sent),
        }
        Ok((reply?, sent))
    }

    /// Sends a command that is not a script. `name` appears in errors, and `read` reads its
    /// replies.
    pub(crate) fn command<T>(
        &self,
        name: &'static str,
        args: &[&[u8]],
        until: Instant,
        cap_rule: Cap,
        read: impl FnOnce(Reply) -> Option<T>,
    ) -> Result<T, Fault> {
        let mut command = redis::cmd(name);
        command.arg(args);
        let mut pooled = self.acquire_connection(until, cap_rule)?;
        let sent = Instant::now();
        let answer = self.trip(&mut pooled, sent, until, |buffer| {
            command.write_packed_command(buffer)
        });
        let answer = answer.and_then(|answer| match answer {
            Ok(reply) => read(reply)
                .map(Ok)
                .ok_or_else(|| pooled.connection().malformed()),
            Err(error) => Ok(Err(error)),
        });
        match answer {
            Ok(answer) => {
                let rights = || {
                    let right = name.to_ascii_lowercase();
                    match args.first() {
                        Some(channel) if name == "PUBLISH" => {
                            format!("{name} needs +{right} on the channel {}", shown(channel))
                        }
                        Some(subcommand) if name == "PUBSUB" => {
                            let subcommand = shown(subcommand).to_ascii_lowercase();
                            format!("{name} needs +{right}|{subcommand}")
                        }
                        Some(key) if matches!(name, "GET" | "HGETALL" | "LLEN") => {
                            format!("{name} needs +{right} on the key {}", shown(key))
                        }
                        _ => format!("{name} needs +{right}"),
                    }
                };
                let answer = answer.map_err(|error| self.refusal(name, &error, rights));
                let not_run = match &answer {
                    Err(Fault::NotRun(cause)) => Some(cause),
                    _ => None,
                };
                self.settle(pooled, sent, not_run);
                answer
            }
            Err(error) => Err(self.no_answer(error, sent, until)),
        }
    }

    /// Records a reply, and keeps the connection unless the server cannot serve calls: then
    /// `not_run` says why.
    fn settle(&self, pooled: PooledConnection<'_>, sent: Instant, not_run: Option<&Cause>) {
        if let Some(cause) = not_run {
            let generation = pooled.generation();
            drop(pooled);
            self.pool.suspect(generation);
            // The server replies, so the failure does not count towards the breaker.
            self.failed_by(Some(cause), false);
        } else {
            self.pool.pass_on(pooled);
            self.answered(sent);
        }
    }

    fn no_answer(&self, error: RedisError, sent: Instant, until: Instant) -> Fault {
        let is_hang_up = is_hang_up(&error);
        let counts = !error.is_timeout() || self.had_time(sent, until);
        let cause = Cause::lost_reply(error, sent.until(Instant::now()));
        self.failed_by(Some(&cause), counts);
        if is_hang_up {
            self.pool.forget_idle();
        }
        Fault::Unknown(cause)
    }

    /// Returns whether a call from `from` to `until` had nearly the whole command timeout.
    fn had_time(&self, from: Instant, until: Instant) -> bool {
        from.until(until) >= self.command_timeout() / 10 * 9
    }

    fn acquire_connection(
        &self,
        until: Instant,
        cap_rule: Cap,
    ) -> Result<PooledConnection<'_>, Fault> {
        let asked = Instant::now();
        self.pool
            .acquire_connection(until, cap_rule)
            .map_err(|refusal| match refusal {
                GetError::NotYet(connect_error) if connect_error.is_final => {
                    self.connect_error(connect_error)
                }
                GetError::NotYet(connect_error) => {
                    let counts = connect_error.is_the_servers || self.had_time(asked, until);
                    self.failed_by(Some(&connect_error.cause), counts);
                    Fault::NotRun(connect_error.cause)
                }
                GetError::Never(error) => Fault::Rejected(error),
            })
    }

    /// Sends a script, followed by WAIT in the same write if replicas must acknowledge it, and
    /// reads all replies.
    #[expect(
        clippy::type_complexity,
        reason = "an answer or an error answer, to each of two commands; seen only here"
    )]
    fn run(
        &self,
        pooled: &mut PooledConnection<'_>,
        call: &Call<'_>,
        now: Instant,
        until: Instant,
        is_alone: bool,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> Result<
        (
            Result<Answer, ServerError>,
            Option<Result<Answer, ServerError>>,
        ),
        RedisError,
    > {
        let first_until = now.after(self.command_timeout()).min(until);
        let connection = pooled.connection();
        connection.write(first_until, |buffer| {
            pack(buffer);
            if let Some(replicas) = &call.replicas {
                pack_wait(replicas, buffer);
            }
        })?;
        let mut read = || {
            let answer = match call.asking {
                // If ASKING itself was refused, its error is the one to report.
                true => {
                    let asked = connection.answer_to(first_until, Verb::Asking)?;
                    asked.and(connection.answer_to(first_until, call.verb)?)
                }
                false => connection.answer_to(first_until, call.verb)?,
            };
            if call.replicas.is_none() {
                return Ok((answer, None));
            }
            let until = Instant::now().after(self.command_timeout()).min(until);
            Ok((answer, Some(connection.answer_to(until, Verb::Count)?)))
        };
        // Waiting for replicas says nothing about how fast other replies are.
        if is_alone && call.replicas.is_none() {
            self.spin.read(read)
        } else {
            read()
        }
    }

    /// Returns an error if too few replicas acknowledged a script, by the reply to WAIT.
    pub(in crate::redis) fn acknowledged(
        &self,
        answer: Answer,
        waited: Option<Result<Answer, ServerError>>,
        replicas: Option<Replicas>,
    ) -> Result<Answer, Fault> {
        let (Some(replicas), Some(waited), true) = (replicas, waited, answer.is_done()) else {
            return Ok(answer);
        };
        let acknowledged = match waited {
            Ok(Answer::Count(n)) => usize::try_from(n).unwrap_or(usize::MAX),
            Ok(_) => 0,
            Err(error) => {
                return Err(Fault::NotReplicated(self.refused(
                    "WAIT (min_replicas)",
                    &error,
                    || "it needs +wait".into(),
                )));
            }
        };
        if acknowledged < replicas.wanted {
            return Err(Fault::NotReplicated(Error::NotReplicated {
                acknowledged,
                wanted: replicas.wanted,
            }));
        }
        Ok(answer)
    }

    /// Returns the fault for a caller that got no connection.
    pub(in crate::redis) fn connect_error(&self, connect_error: ConnectError) -> Fault {
        if connect_error.is_final {
            return Fault::Rejected(Error::Refused {
                server: self.label().to_owned(),
                command: connect_error.cause.refused_step(),
                answer: connect_error.cause.to_string(),
            });
        }
        self.failed();
        Fault::NotRun(connect_error.cause)
    }

    fn trip(
        &self,
        pooled: &mut PooledConnection<'_>,
        now: Instant,
        until: Instant,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Result<Reply, ServerError>, RedisError> {
        let until = now.after(self.command_timeout()).min(until);
        Ok(reply(pooled.connection().trip(until, pack)?))
    }

    /// Returns what an error reply to `call` means for its caller.
    pub(in crate::redis) fn fault(&self, call: &Call<'_>, error: &ServerError) -> Fault {
        // With several names, a script's error begins with the number of the name, counted from 1.
        let which = error
            .details()
            .and_then(|text| text.split(' ').next()?.parse().ok());
        let which = which.map_or(0, |n: usize| n.saturating_sub(1));
        let key = |kind: usize| {
            let key = call.keys.get(kind).and_then(|keys| keys.get(which));
            shown(key.map_or(&[][..], Vec::as_slice))
        };
        match meaning(error) {
            Meaning::WrongType => Fault::Rejected(Error::WrongType { key: key(0) }),
            Meaning::BadFence => Fault::Rejected(Error::BadFence { key: key(1) }),
            _ => self.refusal(call.script.name, error, || call.rights()),
        }
    }

    /// Like [`fault`](Self::fault), for a server that may be a node of a cluster.
    pub(in crate::redis) fn node_fault(&self, call: &Call<'_>, error: &ServerError) -> NodeFault {
        let redirect = Redirect::read(error).filter(|_| self.pool.node.is_member());
        match redirect {
            Some(redirect) => NodeFault::Redirected(redirect, Cause::text(words(error))),
            None => self.fault(call, error).into(),
        }
    }

    /// Returns what an error reply to `command` means. `rights` lists the permissions that it
    /// needs.
    pub(in crate::redis) fn refusal(
        &self,
        command: &'static str,
        error: &ServerError,
        rights: impl FnOnce() -> String,
    ) -> Fault {
        match meaning(error) {
            Meaning::NotNow | Meaning::NoScript => Fault::NotRun(Cause::text(words(error))),
            _ => Fault::Rejected(self.refused(command, error, rights)),
        }
    }

    fn refused(
        &self,
        command: &'static str,
        error: &ServerError,
        rights: impl FnOnce() -> String,
    ) -> Error {
        let mut answer = words(error);
        if matches!(meaning(error), Meaning::NoRight) {
            answer = format!("{answer}; {}", rights());
        }
        let server = self.label().to_owned();
        Error::Refused {
            server,
            command,
            answer,
        }
    }

    /// Returns a connection outside of the pool, for a thread that keeps it.
    pub(crate) fn connection(&self, until: Instant) -> Result<Connection, Fault> {
        Ok(self.acquire_connection(until, Cap::Exempt)?.keep())
    }

    /// Moves on to the master that the sentinels now name.
    pub(crate) fn moved(&self) {
        self.condition.reset();
        self.pool.move_on();
    }

    /// The sentinels that name the master, if there are any.
    pub(crate) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        self.pool.node.sentinels()
    }

    /// Returns whether `connection` leads to the server that currently grants the locks, as far as
    /// known.
    pub(crate) fn is_current(&self, connection: &Connection) -> bool {
        connection.generation == self.pool.generation()
    }

    /// Records a reply to something that was sent at `sent`.
    pub(crate) fn answered(&self, sent: Instant) {
        let now = Instant::now();
        let trip = sent.until(now);
        self.latency.record(trip);
        self.pool.combiner.took(trip);
        if self.condition.answered(now) {
            logging::info!(
                server = self.label();
                "{} answers again: its circuit breaker is closed", self.label()
            );
        }
    }

    /// Records that a command got no reply that counts.
    pub(crate) fn failed(&self) {
        self.failed_by(None, false);
    }

    fn failed_by(&self, cause: Option<&Cause>, counts: bool) {
        if self.condition.failed(cause, counts) {
            let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
            logging::warn!(
                server = self.label();
                "circuit breaker open for {}: calls fail immediately until it answers{cause}",
                self.label()
            );
        }
        self.pool.node.failed();
    }

    /// Sends a PING.
    pub(crate) fn ping(&self, until: Instant, cap_rule: Cap) -> Result<(), Fault> {
        let pong = |reply| Verb::Ping.read(reply).map(drop);
        self.command("PING", &[], until, cap_rule, pong)
    }

    /// Sends a PING and returns the server's state.
    pub(in crate::redis) fn health(&self, until: Instant) -> HealthPart {
        let asked = Instant::now();
        let latency = match self.ping(until, Cap::Exempt) {
            // An error reply is a reply, too: the user may lack the permission to ping.
            Ok(_) | Err(Fault::Rejected(_)) => Some(asked.until(Instant::now())),
            Err(_) => None,
        };
        self.condition.part(self.label(), latency)
    }

    /// Returns whether something has failed since the last reply.
    pub(crate) fn is_failing(&self) -> bool {
        self.condition.is_failing()
    }

    /// Returns whether the circuit breaker is open.
    pub(crate) fn is_open(&self) -> bool {
        self.condition.is_open()
    }

    /// Retires the server: it owns no slot of its cluster any more.
    pub(in crate::redis) fn retire(&self) {
        self.pool.retire();
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.pool.is_retired()
    }

    /// Returns since when the server has not replied to a caller that began at `start`; `now` if
    /// nothing has failed since its last reply.
    pub(crate) fn silent_since(&self, now: Instant, start: Instant) -> Instant {
        self.condition.silent_since(now, start)
    }

    /// Returns how many connections to it are open.
    pub(crate) fn connections(&self) -> u64 {
        self.pool.node.connections()
    }

    /// Closes the connections; those in use are closed when they are returned.
    pub(crate) fn close(&self) {
        if let Some(member) = &self.member {
            member.close();
        }
        self.pool.close();
    }
}
