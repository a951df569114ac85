//! One server: a call is sent, and comes back as an answer or a fault.

use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, ServerError};

use crate::clock::Instant;
use crate::config::Config;
use crate::error::{Cause, Error, Meaning, meaning, words};
use crate::health::HealthPart;
use crate::logging;
use crate::name::shown;
use crate::protocol::expected::Expected;
use crate::protocol::script::{Call, Reply, pack_wait};
use crate::redis::combine::Combined;
use crate::redis::conn::callers::Cap;
use crate::redis::conn::connection::{Connection, is_hang_up, reply};
use crate::redis::conn::connector::{Connector, OnFailure};
use crate::redis::conn::dial::ConnectError;
use crate::redis::conn::pool::{ConnectRequest, GetError, Pool, PooledConnection};
use crate::redis::fault::Fault;
use crate::redis::health::ServerHealth;
use crate::redis::quorum::member::Member;
use crate::redis::sentinel::Sentinels;
use crate::redis::spin::Spin;
use crate::redis::undoable::Undoable;
use crate::replicas::Replicas;
use crate::stats::Histogram;
use crate::url::{Address, Target};

/// A server, or the master that sentinels name: one place where locks are kept.
pub(crate) struct Server {
    pub(in crate::redis) pool: Arc<Pool>,
    pub(crate) condition: ServerHealth,
    /// What it is as one of a quorum.
    pub(crate) member: Option<Member>,
    /// From a command to its answer.
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
            // A server of a quorum is left aside instead.
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

    /// Has a connection made, if none lies idle, without waiting for it.
    pub(in crate::redis) fn wish(&self) -> Result<ConnectRequest<'_>, Error> {
        self.pool.wish()
    }

    /// What lies idle is most likely dead too.
    pub(in crate::redis) fn forget_idle(&self) {
        self.pool.forget_idle();
    }

    /// Where it is, for people.
    pub(crate) fn label(&self) -> &str {
        &self.pool.node.label
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        self.pool.node.command_timeout
    }

    /// Sends `call` and waits for its answer until `until`, and never longer than the command
    /// timeout. Where no answer comes, its undo is written behind the call on the same connection.
    /// With the answer comes the instant before the call was sent, once there was a connection: a
    /// lease counts from then.
    pub(crate) fn call_or_undo(
        &self,
        call: Call<'_>,
        until: Instant,
        cap_rule: Cap,
        undoable: Option<&Undoable<'_>>,
    ) -> Result<(Reply, Instant), Fault> {
        if cap_rule == Cap::Counted {
            self.condition.admit(self.label())?;
        }
        // Replicas are waited for on the connection, and ASKING is about the command behind it.
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
            // A trip that cannot be answered in time would only leave something to be undone.
            self.pool.pass_on(pooled);
            return Err(Fault::NotRun(Cause::silence("no time was left to ask")));
        }
        // Several would want the processor themselves.
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
                let answer = answer
                    .map_err(|error| self.fault(&call, &error))
                    .and_then(|reply| self.acknowledged(reply, waited, call.replicas));
                self.settle(pooled, sent, answer).map(|reply| (reply, sent))
            }
            Err(error) => {
                if let Some(undoable) = undoable {
                    let undo = undoable.release().asking(call.asking);
                    pooled.keep().undo_behind([undo]);
                }
                Err(self.no_answer(error, sent, until))
            }
        }
    }

    /// What it means that `answer` came of a call that was sent along with others.
    fn read(
        &self,
        call: &Call<'_>,
        sent: Combined,
        until: Instant,
    ) -> Result<(Reply, Instant), Fault> {
        let Combined {
            at: sent,
            answer,
            has_read,
        } = sent;
        let answer = answer.map_err(|error| match has_read {
            true => self.no_answer(error, sent, until),
            // One connection that fails is one failure of the server.
            false => {
                let cause = Cause::lost_reply(error, sent.until(Instant::now()));
                self.failed_by(Some(&cause), false);
                Fault::Unknown(cause)
            }
        })?;
        let answer = answer.map_err(|error| self.fault(call, &error));
        match &answer {
            Err(Fault::NotRun(cause)) => self.failed_by(Some(cause), false),
            _ => self.answered(sent),
        }
        answer.map(|reply| (reply, sent))
    }

    /// Sends a command that is no script; `name` is what an error calls it, and `read` knows its replies.
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
                let answer = answer.map_err(|error| self.refused_or_not_now(name, &error, rights));
                self.settle(pooled, sent, answer)
            }
            Err(error) => Err(self.no_answer(error, sent, until)),
        }
    }

    /// Notes how the server did, and keeps the connection if it leads to one that works.
    fn settle<T>(
        &self,
        pooled: PooledConnection<'_>,
        sent: Instant,
        answer: Result<T, Fault>,
    ) -> Result<T, Fault> {
        if let Err(Fault::NotRun(cause)) = &answer {
            let generation = pooled.generation();
            drop(pooled);
            self.pool.suspect(generation);
            // It answers, so nobody waits for it in vain.
            self.failed_by(Some(cause), false);
        } else {
            self.pool.pass_on(pooled);
            self.answered(sent);
        }
        answer
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

    /// Whether a caller with the time from `from` to `until` gave the server all that it may take.
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

    /// Sends a script, with the command that waits for replicas behind it in the same write, and
    /// reads the answers to all.
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
            Result<Reply, ServerError>,
            Option<Result<Reply, ServerError>>,
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
                // Where ASKING itself was refused, that is what is to be said.
                true => {
                    let asked = connection.answer_to(first_until, Expected::Ok)?;
                    asked.and(connection.answer_to(first_until, call.expected())?)
                }
                false => connection.answer_to(first_until, call.expected())?,
            };
            if call.replicas.is_none() {
                return Ok((answer, None));
            }
            let until = Instant::now().after(self.command_timeout()).min(until);
            Ok((answer, Some(connection.answer_to(until, Expected::Count)?)))
        };
        // Replicas acknowledge in their own time, which says nothing about other replies.
        if is_alone && call.replicas.is_none() {
            self.spin.read(read)
        } else {
            read()
        }
    }

    /// Whether enough replicas have what a script did, by the answer to the command behind it.
    pub(in crate::redis) fn acknowledged(
        &self,
        reply: Reply,
        waited: Option<Result<Reply, ServerError>>,
        replicas: Option<Replicas>,
    ) -> Result<Reply, Fault> {
        let (Some(replicas), Some(waited), true) = (replicas, waited, reply.is_done()) else {
            return Ok(reply);
        };
        let acknowledged = match waited {
            Ok(Reply::Int(n)) => usize::try_from(n).unwrap_or(0),
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
        Ok(reply)
    }

    /// What it means that there is no connection.
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

    /// What an error answer to `call` means for its caller.
    pub(in crate::redis) fn fault(&self, call: &Call<'_>, error: &ServerError) -> Fault {
        // Of several names a script says which one, from 1.
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

    pub(in crate::redis) fn refusal(
        &self,
        command: &'static str,
        error: &ServerError,
        rights: impl FnOnce() -> String,
    ) -> Fault {
        let elsewhere = Fault::elsewhere(error).filter(|_| self.pool.node.is_member());
        match elsewhere {
            Some(elsewhere) => elsewhere,
            None => self.refused_or_not_now(command, error, rights),
        }
    }

    /// What an error answer to `command` means, which needs these `rights`.
    fn refused_or_not_now(
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

    /// A connection for a thread that keeps it, apart from the pool.
    pub(crate) fn connection(&self, until: Instant) -> Result<Connection, Fault> {
        Ok(self.acquire_connection(until, Cap::Exempt)?.keep())
    }

    /// The master has moved to where its sentinels now know it.
    pub(crate) fn moved(&self) {
        self.condition.reset();
        self.pool.move_on();
    }

    /// Who knows the master, if that may change.
    pub(crate) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        self.pool.node.sentinels()
    }

    /// Whether `wire` leads to the server that takes the locks now, as far as is known.
    pub(crate) fn is_current(&self, connection: &Connection) -> bool {
        connection.generation == self.pool.generation()
    }

    /// Redis answered something that was sent at `sent`.
    pub(crate) fn answered(&self, sent: Instant) {
        let now = Instant::now();
        let trip = sent.until(now);
        self.latency.record(trip);
        self.pool.combiner.took(trip);
        if self.condition.answered(now) {
            logging::info!(server = self.label(); "calls go to {} again", self.label());
        }
    }

    /// A command did not get an answer that counts.
    pub(crate) fn failed(&self) {
        self.failed_by(None, false);
    }

    fn failed_by(&self, cause: Option<&Cause>, counts: bool) {
        if self.condition.failed(cause, counts) {
            let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
            logging::warn!(
                server = self.label();
                "{} has failed again and again, calls fail at once until it answers{cause}", self.label()
            );
        }
        self.pool.node.failed();
    }

    /// Asks it for a sign of life.
    pub(crate) fn ping(&self, until: Instant, cap_rule: Cap) -> Result<Reply, Fault> {
        let pong = |reply: Reply| Some(reply).filter(|reply| Expected::Pong.fits(reply));
        self.command("PING", &[], until, cap_rule, pong)
    }

    /// Asks it for a sign of life, and says how it does.
    pub(in crate::redis) fn health(&self, until: Instant) -> HealthPart {
        let asked = Instant::now();
        let latency = match self.ping(until, Cap::Exempt) {
            // An answer, be it that the user may not ask.
            Ok(_) | Err(Fault::Rejected(_)) => Some(asked.until(Instant::now())),
            Err(_) => None,
        };
        self.condition.part(self.label(), latency)
    }

    /// Whether nothing has been answered since something failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.condition.is_failing()
    }

    /// Whether calls fail at once.
    pub(crate) fn is_open(&self) -> bool {
        self.condition.is_open()
    }

    /// It keeps no slot of its cluster any more.
    pub(in crate::redis) fn retire(&self) {
        self.pool.retire();
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.pool.is_retired()
    }

    /// Since when Redis has not answered, for a caller that has asked since `start`; since `now` if
    /// nothing has failed since its last answer.
    pub(crate) fn silent_since(&self, now: Instant, start: Instant) -> Instant {
        self.condition.silent_since(now, start)
    }

    /// How many connections to it are open.
    pub(crate) fn connections(&self) -> u64 {
        self.pool.node.connections()
    }

    /// The connections are closed; what is out is closed when it comes back.
    pub(crate) fn close(&self) {
        if let Some(member) = &self.member {
            member.close();
        }
        self.pool.close();
    }
}
