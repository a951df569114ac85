//! Sends scripts to one server and returns their replies or faults.

use redis::RedisResult;

use crate::cause::WAIT;
use crate::clock::Instant;
use crate::error::Error;
use crate::error_reply::meaning;
use crate::kernel::fault::Fault;
use crate::protocol::answer::Answer;
use crate::protocol::script::{Call, ScriptForm, pack_wait};
use crate::protocol::verb::Verb;
use crate::redis::combine::{Behind, Combined};
use crate::redis::conn::callers::Cap;
use crate::redis::conn::connection::Replied;
use crate::redis::conn::pool::PooledConnection;
use crate::redis::fault::NodeFault;
use crate::redis::server::Server;
use crate::replicas::Replicas;

/// What an acquiring call does if it gets no reply: it is passed the fault and the instant before
/// it was sent, and passes on the undo to be written behind it, if there is one.
pub(crate) type Unanswered<'a, 'b> =
    &'a mut (dyn FnMut(&Fault, Instant, &mut dyn FnMut(Call<'_>)) + 'b);

impl Server {
    /// Sends `call` and waits for its reply, at most for the command timeout and at most until
    /// `until`. The reply to WAIT, and a second try with the script's source, have the command
    /// timeout again. If no reply comes, `unanswered` decides on an undo, which is written
    /// behind the call on the same connection, unless only a part of the call was written.
    ///
    /// Also returns the instant before the call was sent: a lease counts from then.
    pub(super) fn call_or_undo(
        &self,
        call: Call<'_>,
        until: Instant,
        cap_rule: Cap,
        unanswered: Option<Unanswered<'_, '_>>,
    ) -> Result<(Answer, Instant), NodeFault> {
        let is_write = call.verb.writes();
        let is_stopped = call.verb.is_stopped_by_breaker();
        let _admission = is_stopped.then(|| self.admit_stopped()).transpose()?;
        // WAIT must follow on the call's own connection, and ASKING must directly precede the call.
        // Other calls must not wait behind a long reply.
        let may_combine = call.replicas.is_none() && !call.asking && !call.verb.lists_holders();
        let entered = self.pool.enter();
        if may_combine && entered.is_one_of_many(cap_rule) {
            match self.pool.combine(&call, until, cap_rule) {
                Some(sent) if sent.must_be_sent_again() => {}
                Some(sent) => return self.read(&call, sent, until, unanswered),
                None => {}
            }
        }
        let (mut pooled, sent) = self.connection_before(until, cap_rule, is_write)?;
        let first = ScriptForm::Digest;
        let mut answer = self.run(&mut pooled, &call, first, sent, until);
        if let Ok((reply, _)) = &answer
            && let Some(form) = first.after(reply)
        {
            answer = self.run(&mut pooled, &call, form, Instant::now(), until);
        }
        match answer {
            Ok((answer, waited)) => {
                let reply = answer
                    .map_err(|error| self.node_fault(&call, &error))
                    .and_then(|reply| Ok(self.acknowledged(reply, waited, call.replicas)?));
                let is_write = is_answered_write(&call, &reply);
                self.settle(pooled, sent, NodeFault::not_served_in(&reply), is_write);
                Ok((reply?, sent))
            }
            Err(error) => {
                let name = call.script.name;
                let fault = self.no_answer(error, sent, until, name, true, is_write);
                if let Some(unanswered) = unanswered {
                    let mut connection = pooled.keep();
                    unanswered(&fault, sent, &mut |undo| {
                        connection.undo_behind(undo.asking(call.asking));
                    });
                }
                Err(fault.into())
            }
        }
    }

    /// Returns what the result of a combined call means for its caller.
    fn read(
        &self,
        call: &Call<'_>,
        sent: Combined,
        until: Instant,
        unanswered: Option<Unanswered<'_, '_>>,
    ) -> Result<(Answer, Instant), NodeFault> {
        let Combined {
            at: sent,
            answer,
            has_read,
            behind,
        } = sent;
        // Only the call that reads the batch's replies counts the failure of their connection:
        // otherwise it would count once for each call. A failed write of the batch counts for none.
        let is_write = call.verb.writes();
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                let name = call.script.name;
                let fault = self.no_answer(error, sent, until, name, has_read, is_write);
                if let Some(unanswered) = unanswered {
                    unanswered(&fault, sent, &mut |undo| match &behind {
                        Behind::Connection(connection) => connection.lock().undo_behind(undo),
                        Behind::Reader(combined) => {
                            let mut packed = Vec::new();
                            undo.pack(ScriptForm::Source, &mut packed);
                            combined.leave_undo(packed);
                        }
                    });
                }
                return Err(fault.into());
            }
        };
        let reply = answer.map_err(|error| self.node_fault(call, &error));
        match NodeFault::not_served_in(&reply) {
            Some(cause) => self.failed_by(Some(cause), is_write),
            None => self.answered(sent, is_answered_write(call, &reply)),
        }
        Ok((reply?, sent))
    }

    /// Sends a script, followed by WAIT in the same write if replicas must acknowledge it, and
    /// reads all replies.
    fn run(
        &self,
        pooled: &mut PooledConnection<'_>,
        call: &Call<'_>,
        form: ScriptForm,
        now: Instant,
        until: Instant,
    ) -> RedisResult<(Replied, Option<Replied>)> {
        let first_until = now.after(self.command_timeout()).min(until);
        let connection = pooled.connection();
        connection.write(first_until, |buffer| {
            call.pack(form, buffer);
            if let Some(replicas) = &call.replicas {
                pack_wait(replicas, buffer);
            }
        })?;
        let answer = if call.asking {
            // If ASKING itself was refused, its error is the one to report, unless the call ran:
            // the node had become the owner.
            let asked = connection.answer_to(first_until, Verb::Asking)?;
            let answer = connection.answer_to(first_until, call.verb)?;
            answer.or_else(|error| asked.and(Err(error)))
        } else {
            connection.answer_to(first_until, call.verb)?
        };
        if call.replicas.is_none() {
            return Ok((answer, None));
        }
        let until = Instant::now().after(self.command_timeout()).min(until);
        Ok((answer, Some(connection.answer_to(until, Verb::Count)?)))
    }

    /// Returns an error if too few replicas acknowledged a script, by the reply to WAIT.
    pub(super) fn acknowledged(
        &self,
        answer: Answer,
        waited: Option<Replied>,
        replicas: Option<Replicas>,
    ) -> Result<Answer, Fault> {
        let (Some(replicas), Some(waited), true) = (replicas, waited, answer.is_done()) else {
            return Ok(answer);
        };
        let acknowledged = match waited {
            Ok(Answer::Count(n)) => usize::try_from(n).unwrap_or(usize::MAX),
            Ok(_) => 0,
            // The script has run.
            Err(error) if meaning(&error).may_pass() => {
                return Err(Fault::Unknown(self.passing(WAIT, &error, false)));
            }
            Err(error) => {
                return Err(Fault::NotReplicated(
                    self.refused(WAIT, &error, || "it needs +wait".into()),
                ));
            }
        };
        if acknowledged < replicas.wanted {
            return Err(Fault::NotReplicated(Error::NotReplicated {
                server: self.label().to_owned(),
                acknowledged,
                wanted: replicas.wanted,
            }));
        }
        Ok(answer)
    }
}

/// Returns whether the reply shows that the server accepts writes, or that it cannot serve them
/// now.
pub(super) fn is_answered_write<T>(call: &Call<'_>, reply: &Result<T, NodeFault>) -> bool {
    let says_nothing = match reply {
        Ok(_) => false,
        Err(NodeFault::Redirected(..) | NodeFault::NoScript) => true,
        Err(NodeFault::Fault(fault)) => fault.refuses_writes(),
    };
    call.verb.writes() && !says_nothing
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::Duration;

    use super::*;

    use crate::config::Config;
    use crate::holder_id::HolderId;
    use crate::protocol::keys::Keys;
    use crate::protocol::mutex::MutexKeys;
    use crate::redis::conn::connector::Connector;
    use crate::url::Address;

    /// Longer than the breaker stays open.
    const LONG: Duration = Duration::from_secs(60);

    /// Returns a listener, and a client's server at it for which one connection may be made.
    fn listener_and_server(command_timeout: Duration) -> (TcpListener, Server) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let config = Config {
            breaker_after: 1,
            max_connections: 1,
            connect_timeout: LONG,
            command_timeout,
            ..Config::default()
        };
        let connector = Connector::to_server(Address::parse(&url).unwrap(), None, &config);
        (listener, Server::new(connector, &config, None))
    }

    /// Accepts a connection and replies to its log-on.
    fn accept(listener: &TcpListener) -> TcpStream {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"+OK\r\n+OK\r\n+OK\r\n").unwrap();
        stream
    }

    #[test]
    fn running_out_of_connections_is_no_failure_of_the_server() {
        let short = Duration::from_millis(50);
        let (listener, server) = listener_and_server(short);
        thread::scope(|scope| {
            let accepting = scope.spawn(|| accept(&listener));
            let until = Instant::now().after(LONG);
            let in_use = server.acquire_connection(until, Cap::Counted, true);
            let _in_use = in_use.unwrap_or_else(|fault| panic!("{fault:?}"));
            let _stream = accepting.join().unwrap();
            // The call has all the time of a command.
            let fault = server.ping(Instant::now().after(short));
            let Err(Fault::NotRun(cause)) = fault else {
                panic!("{fault:?}");
            };
            assert!(cause.is_of_client(), "{cause}");
            assert!(!server.health.is_open() && !server.health.is_failing());
        });
    }

    #[test]
    fn call_that_ran_without_asking_is_done() {
        let (listener, server) = listener_and_server(LONG);
        let keys = MutexKeys::of(Keys::new("a".into(), "lock:", "lock_release:"));
        let id = HolderId::fresh("x");
        thread::scope(|scope| {
            let replying = scope.spawn(|| {
                let mut stream = accept(&listener);
                let mut bytes = [0; 1024];
                while !bytes.windows(6).any(|six| six == b"ASKING") {
                    assert!(stream.read(&mut bytes).unwrap() > 0);
                }
                stream.write_all(b"-NOPERM no asking\r\n:1\r\n").unwrap();
                stream
            });
            let call = keys.renew(&id, LONG, false).asking(true);
            let until = Instant::now().after(LONG);
            let outcome = server.call_or_undo(call, until, Cap::Counted, None);
            assert!(outcome.is_ok_and(|(answer, _)| answer.is_done()));
            drop(replying.join().unwrap());
        });
    }
}
