//! A quorum: several independent servers, a majority of which decides. The engine sends the
//! commands of locks to them; here is what one thread asks all of them, and waits for.

mod fault;
mod names;

use std::sync::Arc;
use std::time::Duration;

use redis::RedisResult;

use crate::clock::Instant;
use crate::config::Config;
use crate::holder_id::is_same_holder;
use crate::kernel::fault::Fault;
use crate::logging;
use crate::majority::Majority;
use crate::protocol::answer::Answer;
use crate::protocol::primitive::{AtRelease, Primitive};
use crate::protocol::script::ScriptForm;
use crate::quorum::round::Undecided;
use crate::quorum::votes::{Verdict, Votes};
use crate::redis::conn::callers::Cap;
use crate::redis::conn::connection::{MOST_READS, Replied, wait_for_any};
use crate::redis::conn::connector::Connector;
use crate::redis::conn::pool::PooledConnection;
use crate::redis::conn::socket::timed_out;
use crate::redis::fault::NodeFault;
use crate::redis::health::ServerHealth;
use crate::redis::pipeline::Request;
use crate::redis::quorum::names::Names;
use crate::redis::server::Server;
use crate::sync::Mutex;
use crate::thread_group::ThreadGroup;
use crate::url::Address;

/// Several independent servers as one deployment.
pub(crate) struct Quorum {
    pub(super) servers: Vec<Arc<Server>>,
    pub(super) size: Majority,
    /// The addresses of all servers, for messages.
    pub(super) label: String,
    /// The health of the majority, with one circuit breaker for all servers.
    pub(crate) health: ServerHealth,
    pub(super) command_timeout: Duration,
    names: Arc<Mutex<Names>>,
    dialers: ThreadGroup,
}

/// What the servers have said to a call.
struct Replies {
    votes: Votes,
    faults: Vec<(usize, Fault)>,
    answers: usize,
}

/// A server that has been asked, and the connection on which its reply is expected.
struct Asked<'a> {
    number: usize,
    server: &'a Server,
    pooled: PooledConnection<'a>,
    is_ready: bool,
    form: ScriptForm,
}

impl Quorum {
    pub(crate) fn new(addresses: Vec<Address>, label: String, config: &Config) -> Self {
        let servers = addresses.into_iter().enumerate().map(|(number, address)| {
            let connector = Connector::to_server(address, None, config);
            Arc::new(Server::new(connector, config, Some(number)))
        });
        let servers: Vec<_> = servers.collect();
        let size = Majority::of(servers.len());
        if size.all.is_multiple_of(2) {
            logging::warn!(
                "a quorum of {} servers needs {} of them, as many as one of {} servers: \
                 use an odd number",
                size.all,
                size.needed,
                size.all + 1
            );
        }
        Self {
            servers,
            size,
            label,
            health: ServerHealth::new(config.breaker_after),
            command_timeout: config.command_timeout,
            names: Arc::default(),
            dialers: config.dialers.clone(),
        }
    }

    /// Sends `request` to all servers, and waits at most until `until` for enough replies to decide
    /// it.
    pub(crate) fn ask(&self, request: &Request<'_>, until: Instant) -> Result<Answer, Fault> {
        self.ask_noting(request, until, &mut Vec::new())
    }

    /// Releases a lock that its holder has under this value, or under another id of the same lease:
    /// a member that has joined it has a number of its own.
    pub(crate) fn release_holder(
        &self,
        lock: &dyn Primitive,
        value: &[u8],
        until: Instant,
    ) -> Result<Answer, Fault> {
        let mut answers = Vec::new();
        let request = Request::Call(lock.release(value, AtRelease::Usual));
        let end = self.ask_noting(&request, until, &mut answers);
        let mut released = answers
            .iter()
            .filter(|(_, answer)| answer.is_done())
            .count();
        let joined: Vec<(usize, Vec<u8>)> = answers
            .into_iter()
            .filter_map(|(number, answer)| match answer {
                Answer::Foreign(found) if is_same_holder(&found, value) => Some((number, found)),
                _ => None,
            })
            .collect();
        for (n, (number, found)) in joined.iter().enumerate() {
            let now = Instant::now();
            // A server that hangs must leave time for the others.
            let by = now.after(now.until(until) / (joined.len() - n) as u32);
            let call = lock.release(found, AtRelease::Usual);
            let answer = self.servers[*number].call_or_undo(call, by, Cap::Exempt, None);
            released += usize::from(answer.is_ok_and(|(answer, _)| answer.is_done()));
        }
        if released >= self.size.needed {
            Ok(Answer::Ours)
        } else {
            end
        }
    }

    /// The same, and adds the answers of the servers.
    fn ask_noting(
        &self,
        request: &Request<'_>,
        until: Instant,
        answers: &mut Vec<(usize, Answer)>,
    ) -> Result<Answer, Fault> {
        let verb = request.verb();
        let mut replies = Replies {
            votes: Votes::new(verb, self.size),
            faults: Vec::new(),
            answers: 0,
        };
        let sent = Instant::now();
        let mut asked = self.ask_each(request, until, &mut replies);
        loop {
            match replies.votes.verdict() {
                Verdict::Decided(answer) => return Ok(answer),
                Verdict::Open if !asked.is_empty() => {}
                Verdict::Open | Verdict::Split | Verdict::Unknown => {
                    return Err(self.too_few(&replies));
                }
            }
            wait(&mut asked, until);
            let is_late = Instant::now() >= until;
            for mut one in std::mem::take(&mut asked) {
                match one.read(request, until) {
                    Ok(None) if !is_late => asked.push(one),
                    Ok(Some(answer)) => {
                        let number = one.number;
                        match one.settle(request, answer, sent) {
                            Ok(answer) => {
                                replies.answers += 1;
                                answers.push((number, answer.clone()));
                                replies.votes.count(Some(answer));
                            }
                            Err(fault) => replies.failed(number, fault),
                        }
                    }
                    end => {
                        let error = end.err().unwrap_or_else(|| timed_out().into());
                        let (name, is_write) = (request.name(), verb.writes());
                        let fault =
                            (one.server).no_answer(error, sent, until, name, true, is_write);
                        replies.failed(one.number, fault);
                    }
                }
            }
        }
    }

    /// Writes the call to each server that can be reached.
    fn ask_each<'a>(
        &'a self,
        request: &Request<'_>,
        until: Instant,
        replies: &mut Replies,
    ) -> Vec<Asked<'a>> {
        let is_write = request.verb().writes();
        let mut asked = Vec::new();
        let mut servers: Vec<(usize, &Arc<Server>)> = self.servers.iter().enumerate().collect();
        // Those that can be reached come first.
        servers.sort_by_key(|(_, server)| server.health.is_failing());
        for (n, (number, server)) in servers.into_iter().enumerate() {
            let now = Instant::now();
            // A server that hangs must leave time for the others.
            let part = now.until(until) / (self.size.all - n + 1) as u32;
            let pooled = server.acquire_connection(now.after(part), Cap::Exempt, is_write);
            let mut pooled = match pooled {
                Ok(pooled) => pooled,
                Err(fault) => {
                    replies.failed(number, fault);
                    continue;
                }
            };
            let by = now.after(self.command_timeout).min(until);
            let connection = pooled.connection();
            let form = ScriptForm::Digest;
            match connection.write(by, |buffer| request.pack(form, buffer)) {
                Ok(()) => asked.push(Asked {
                    number,
                    server,
                    pooled,
                    is_ready: false,
                    form,
                }),
                Err(error) => replies.failed(number, Fault::Unknown(error.into())),
            }
        }
        asked
    }

    /// Returns why too few servers have decided a call.
    fn too_few(&self, replies: &Replies) -> Fault {
        let has_run = replies.faults.iter().any(|(_, it)| it.may_have_run());
        self.undecided(&Undecided {
            size: self.size,
            faults: &replies.faults,
            answers: replies.answers,
            is_in_own_way: false,
            was_sent: replies.answers > 0 || has_run,
            is_proposal: false,
        })
    }
}

impl Replies {
    fn failed(&mut self, number: usize, fault: Fault) {
        self.faults.push((number, fault));
        self.votes.count(None);
    }
}

impl Asked<'_> {
    /// Returns the reply, if it has arrived.
    fn read(&mut self, request: &Request<'_>, until: Instant) -> RedisResult<Option<Replied>> {
        let mut reads = if self.is_ready { MOST_READS } else { 0 };
        let connection = self.pooled.connection();
        let Some(reply) = connection.answer_at_hand(&mut reads)? else {
            return Ok(None);
        };
        let answer = connection.meaning_of(reply, request.verb())?;
        if let Some(form) = self.form.after(&answer) {
            self.form = form;
            connection.write(until, |buffer| request.pack(form, buffer))?;
            return Ok(None);
        }
        Ok(Some(answer))
    }

    /// Returns the vote of the server, or why it has none.
    fn settle(
        self,
        request: &Request<'_>,
        answer: Replied,
        sent: Instant,
    ) -> Result<Answer, Fault> {
        let Self { server, pooled, .. } = self;
        let answer = answer.map_err(|error| request.fault(server, &error));
        let is_write = request.verb().writes() && answer.is_ok();
        server.settle(pooled, sent, NodeFault::not_served_in(&answer), is_write);
        Ok(answer?)
    }
}

/// Waits until a connection may have something to read, at most until `until`. Notes which.
fn wait(asked: &mut [Asked<'_>], until: Instant) {
    let connections = asked.iter_mut().map(|one| &*one.pooled.connection());
    let connections: Vec<_> = connections.collect();
    let ready = wait_for_any(&connections, until).unwrap_or_default();
    let mut ready = ready.into_iter();
    for one in asked {
        one.is_ready = ready.next() != Some(false);
    }
}
