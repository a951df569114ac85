//! The connection of a pipeline: how it is made, how it ends, and the commands left unanswered.

use std::mem;
use std::time::Duration;

use redis::{RedisError, RedisResult};

use crate::cause::WAIT;
use crate::clock::Instant;
use crate::error::Cause;
use crate::error_reply::library_text;
use crate::kernel::fault::Fault;
use crate::logging;
use crate::redis::conn::connection::Connection;
use crate::redis::conn::output::Output;
use crate::redis::conn::pool::{ConnectRequest, IsLent, Pool};
use crate::redis::pipeline::Pipeline;
use crate::redis::pipeline::request::Job;
use crate::replicas::Replicas;
use crate::wait_policy::Backoff;

/// The pause between attempts to connect to a server of a quorum after a failure.
const PROBE: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(4)).jitter(0.5);

/// The connection of a pipeline.
pub(super) enum Link {
    Closed,
    Connecting {
        request: ConnectRequest,
        since: Instant,
    },
    Open(Box<Line>),
}

/// An open connection, with the commands that are packed for it.
pub(super) struct Line {
    pub(super) connection: Connection,
    /// It is the last one of the pool.
    pub(super) is_lent: IsLent,
    pub(super) output: Output,
    /// The WAIT behind the last batch, and when its reply began to be the next one.
    pub(super) wait: Option<(Replicas, Instant)>,
    /// The last turn has left replies in the buffer.
    pub(super) has_more: bool,
    /// The server has replied that it cannot serve now: nothing more is sent.
    pub(super) is_rejected: bool,
}

impl Line {
    pub(super) fn new(connection: Connection, is_lent: IsLent) -> Self {
        Self {
            connection,
            is_lent,
            output: Output::default(),
            wait: None,
            has_more: false,
            is_rejected: false,
        }
    }

    /// Writes as much as the socket takes.
    pub(super) fn flush(&mut self) -> RedisResult<()> {
        self.output.flush(&mut self.connection)
    }
}

impl<J: Job> Pipeline<J> {
    /// Makes a connection for the queued commands: returns the new state.
    pub(super) fn connect(&mut self, now: Instant) -> Link {
        let timeout = self.server.command_timeout();
        let pool = &self.server.pool;
        let wanted_by = self.queued.iter().map(|queued| queued.job.wanted_by());
        let wanted_by = wanted_by.fold(self.wanted_by.replace(Instant::NEVER), Instant::min);
        let (request, since) = match mem::replace(&mut self.link, Link::Closed) {
            Link::Connecting { request, since } => (Some(request), since),
            _ => (None, now),
        };
        let late_at = since.after(timeout);
        let until = wanted_by.min(late_at);
        let new_request = || pool.request(until, self.waker.clone());
        let request = match request {
            Some(request) => {
                request.note_end(until);
                request
            }
            None => new_request(),
        };
        let refusal = if self.server.is_retired() {
            Pool::no_slot_left()
        } else {
            let made = match self.server.number {
                // The first failure: the others of a quorum serve.
                Some(_) => request.poll().map(|made| made.map(|made| (made, false))),
                None => request.lend(),
            };
            match made {
                Some(Ok((connection, is_lent))) => {
                    if self.server.is_current(connection.generation) {
                        (self.down, self.why_down) = (None, None);
                        self.connections += 1;
                        return Link::Open(Box::new(Line::new(connection, is_lent)));
                    }
                    self.close(connection, is_lent);
                    let request = new_request();
                    return Link::Connecting { request, since };
                }
                Some(Err(refusal)) => refusal,
                None if now < late_at => return Link::Connecting { request, since },
                None => pool.last_failure(),
            }
        };
        self.failed(now, refusal.cause.clone());
        let fault = (self.server).not_connected(refusal, since, late_at, true);
        for queued in mem::take(&mut self.queued) {
            self.end(queued.job, now, Err(fault.clone().into()));
        }
        Link::Closed
    }

    /// Notes that the connection has failed, or that none could be made.
    fn failed(&mut self, now: Instant, why: Cause) {
        let failures = self
            .down
            .map_or(0, |(failures, _)| failures.saturating_add(1));
        self.down = Some((failures, now.after(PROBE.pause(failures))));
        self.why_down = Some(why);
    }

    /// Ends a connection that works, or that leads to a server that does not serve now.
    pub(super) fn leave(&mut self, line: Line) {
        let Line {
            connection,
            is_lent,
            is_rejected,
            output,
            ..
        } = line;
        let generation = connection.generation;
        if self.server.is_current(generation) && !is_rejected {
            if is_lent {
                self.server.pool.give_back(connection);
            }
            return;
        }
        self.close(connection, is_lent);
        if is_rejected {
            self.server.failed();
            self.server.pool.suspect(generation);
        }
        // A refusal that may pass is why the client connects again.
        let refusal = (self.server.health.last_error()).filter(|cause| {
            let refusal = cause.refusal();
            refusal.is_some_and(|refusal| !refusal.may_last)
        });
        let cause = refusal.unwrap_or_else(|| Cause::text("the server may have been replaced"));
        self.end_unanswered(output.written(), |_, _| cause.clone());
    }

    /// Ends a connection that has failed.
    pub(super) fn fail(&mut self, line: Line, error: RedisError) {
        let is_unanswered = self.has_replies_left(&line) || !self.unacknowledged.is_empty();
        self.close(line.connection, line.is_lent);
        // A server may close a connection that is idle.
        if is_unanswered {
            let (server, text) = (self.server.label(), library_text(&error));
            logging::debug!(server = server; "{server} has not replied: {text}");
            self.failed(Instant::now(), error.clone().into());
            if error.is_connection_dropped() {
                self.server.pool.note_closed(&error.clone().into());
            }
            self.server.failed();
            self.server.pool.forget_idle();
        }
        let now = Instant::now();
        let cause = |sent: Instant, name| Cause::lost_reply(error.clone(), sent.until(now), name);
        self.end_unanswered(line.output.written(), cause);
    }

    pub(super) fn close(&self, connection: Connection, is_lent: IsLent) {
        drop(connection);
        if is_lent {
            self.server.pool.lost();
        }
    }

    /// Ends the commands without a reply. Those up to the byte `written` may have run. `cause` is
    /// passed when each was sent, and its name.
    pub(super) fn end_unanswered(
        &mut self,
        written: u64,
        cause: impl Fn(Instant, &'static str) -> Cause,
    ) {
        let unacknowledged = mem::take(&mut self.unacknowledged).into_iter();
        let unacknowledged = unacknowledged.map(|(job, sent, _)| (job, sent, WAIT, true));
        let sent = mem::take(&mut self.sent).into_iter();
        let sent = sent.map(|sent| (sent.queued.job, sent.at, sent.name, sent.end <= written));
        for (job, sent, name, may_have_run) in unacknowledged.chain(sent) {
            let fault = if may_have_run {
                Fault::Unknown(cause(sent, name))
            } else {
                Fault::NotRun(cause(sent, name))
            };
            self.end(job, sent, Err(fault.into()));
        }
    }
}
