//! A quorum: several independent servers, a majority of which decides. The engine sends the
//! commands of locks to them; here is what one thread asks all of them, and waits for.

mod fault;
mod names;

use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, RedisResult};

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
use crate::redis::gather::GRACE;
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

/// Makes the vote of a server of its answer.
type FollowUp<'a> = dyn Fn(&Server, Answer) -> Result<Answer, Fault> + 'a;

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
        self.ask_all(request, until, None)
    }

    /// Releases a lock that its holder has under this value.
    ///
    /// A member that has joined the lease has another id of the same holder, which only its reply
    /// tells: that id is released there. So slow replies are waited for, too, for [`GRACE`].
    pub(crate) fn release_holder(
        &self,
        lock: &dyn Primitive,
        value: &[u8],
        until: Instant,
    ) -> Result<Answer, Fault> {
        let release_other = |server: &Server, answer| match answer {
            Answer::Foreign(found) if is_same_holder(&found, value) => {
                let now = Instant::now();
                // A server that hangs must leave time for the others.
                let by = now.after(now.until(until) / 2);
                let call = lock.release(&found, AtRelease::Usual);
                let released = server.call_or_undo(call, by, Cap::Exempt, None);
                Ok(released.map(|(answer, _)| answer)?)
            }
            answer => Ok(answer),
        };
        let request = Request::Call(lock.release(value, AtRelease::Usual));
        self.ask_all(&request, until, Some(&release_other))
    }

    /// Asks all servers. With a `follow_up`, the vote of a server is what this makes of its answer,
    /// and servers that have not answered when the others have decided get a moment more.
    fn ask_all(
        &self,
        request: &Request<'_>,
        until: Instant,
        follow_up: Option<&FollowUp<'_>>,
    ) -> Result<Answer, Fault> {
        let mut replies = Replies {
            votes: Votes::new(request.verb(), self.size),
            faults: Vec::new(),
            answers: 0,
        };
        let sent = Instant::now();
        let mut asked = self.ask_each(request, until, &mut replies);
        let mut ends_at = None;
        loop {
            let verdict = replies.votes.verdict();
            if !matches!(verdict, Verdict::Open) && ends_at.is_none() {
                let grace = follow_up.map_or(Duration::ZERO, |_| GRACE);
                ends_at = Some(until.min(Instant::now().after(grace)));
            }
            if asked.is_empty() || ends_at.is_some_and(|end| Instant::now() >= end) {
                return match verdict {
                    Verdict::Decided(answer) => Ok(answer),
                    _ => Err(self.too_few(&replies)),
                };
            }
            wait(&mut asked, ends_at.unwrap_or(until));
            let is_late = Instant::now() >= until;
            for mut one in std::mem::take(&mut asked) {
                match one.read(request, until) {
                    Ok(None) if !is_late => asked.push(one),
                    Ok(Some(answer)) => {
                        let (number, server) = (one.number, one.server);
                        let answer = one.settle(request, answer, sent);
                        let answer = answer.and_then(|answer| match follow_up {
                            Some(follow_up) => follow_up(server, answer),
                            None => Ok(answer),
                        });
                        replies.count(number, answer);
                    }
                    end => {
                        let error = end.err().unwrap_or_else(|| timed_out().into());
                        let fault = one.failed(request, error, (sent, until));
                        replies.count(one.number, Err(fault));
                    }
                }
            }
        }
    }

    /// Gets a connection to each server that can be reached, and writes the call to all of them
    /// then: none gets it long before the others because one of them is slow to connect.
    fn ask_each<'a>(
        &'a self,
        request: &Request<'_>,
        until: Instant,
        replies: &mut Replies,
    ) -> Vec<Asked<'a>> {
        let is_write = request.verb().writes();
        let mut servers: Vec<(usize, &Arc<Server>)> = self.servers.iter().enumerate().collect();
        // Those that can be reached come first.
        servers.sort_by_key(|(_, server)| server.health.is_failing());
        let mut asked = Vec::with_capacity(servers.len());
        for (n, (number, server)) in servers.into_iter().enumerate() {
            let now = Instant::now();
            // A server that hangs must leave time for the others.
            let part = now.until(until) / (self.size.all - n + 1) as u32;
            match server.acquire_connection(now.after(part), Cap::Exempt, is_write) {
                Ok(pooled) => asked.push(Asked {
                    number,
                    server,
                    pooled,
                    is_ready: false,
                    form: ScriptForm::Digest,
                }),
                Err(fault) => replies.count(number, Err(fault)),
            }
        }
        let by = Instant::now().after(self.command_timeout).min(until);
        asked.retain_mut(|one| match one.write(request, by) {
            Ok(()) => true,
            Err(error) => {
                replies.count(one.number, Err(Fault::Unknown(error.into())));
                false
            }
        });
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
    fn count(&mut self, number: usize, answer: Result<Answer, Fault>) {
        match answer {
            Ok(answer) => {
                self.answers += 1;
                self.votes.count(Some(answer));
            }
            Err(fault) => {
                self.faults.push((number, fault));
                self.votes.count(None);
            }
        }
    }
}

impl Asked<'_> {
    fn write(&mut self, request: &Request<'_>, by: Instant) -> RedisResult<()> {
        let (form, connection) = (self.form, self.pooled.connection());
        connection.write(by, |buffer| request.pack(form, buffer))
    }

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
            self.write(request, until)?;
            return Ok(None);
        }
        Ok(Some(answer))
    }

    /// Returns why it has no vote: its connection has failed, or its time is over.
    fn failed(
        &self,
        request: &Request<'_>,
        error: RedisError,
        (sent, until): (Instant, Instant),
    ) -> Fault {
        let (name, is_write) = (request.name(), request.verb().writes());
        let server = self.server;
        server.no_answer(error, sent, until, name, true, is_write)
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
