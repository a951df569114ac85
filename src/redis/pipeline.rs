//! A pipeline: the connection on which the engine's thread sends commands to a server, without ever
//! waiting for it.
//!
//! ```text
//!            a command is queued             a dialer has made a connection, or one is idle
//! +--------+ ------------------> +------------+ -----------------------------> +------+
//! | closed |                     | connecting |                                | open |
//! +--------+ <------------------ +------------+                                +------+
//!    ^        no connection in time, or none is possible                           |
//!    +-----------------------------------------------------------------------------+
//!      the oldest reply is late, an error, a reply that does not fit, another master;
//!      or nothing is unanswered, and the connection was lent
//! ```
//!
//! A command ends exactly once: answered, not run (its last byte was not written), or unknown. One
//! whose script the server does not know ends, too: its owner decides whether it is sent again.

mod link;
mod request;

use std::cell::Cell;
use std::collections::VecDeque;
use std::mem;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::task::Waker;

use redis::{RedisResult, ServerError};

use crate::clock::Instant;
use crate::error::Cause;
use crate::kernel::fault::Fault;
use crate::protocol::answer::Answer;
use crate::protocol::reply::Reply;
use crate::protocol::script::{ScriptForm, pack_wait};
use crate::protocol::verb::Verb;
use crate::redis::conn::socket::timed_out;
use crate::redis::fault::NodeFault;
use crate::redis::pipeline::link::{Line, Link};
pub(crate) use crate::redis::pipeline::request::{Ended, Job, Request};
use crate::redis::server::Server;
use crate::replicas::Replicas;

/// The most commands without a reply on one connection.
const MOST_UNANSWERED: usize = 4096;

/// The most bytes that are packed and not written.
const MOST_UNWRITTEN: u64 = 1024 * 1024;

/// The most commands that one turn packs, and the most replies that it reads. The engine looks for
/// lost leases between its turns.
const MOST_IN_TURN: usize = 512;

/// The most reads from the socket in one turn. Nearly all of them are of 2 KiB.
const MOST_READS: u32 = 32;

/// The most commands for which replicas are waited for together.
const MOST_IN_BATCH: usize = 256;

pub(crate) struct Pipeline<J> {
    pub(crate) server: Arc<Server>,
    /// Wakes the thread that calls [`turn`](Self::turn).
    waker: Waker,
    link: Link,
    queued: VecDeque<Queued<J>>,
    sent: VecDeque<Sent<J>>,
    /// Commands with an answer that counts only if replicas have acknowledged it.
    unacknowledged: Vec<(J, Instant, Answer)>,
    /// Commands that have ended; their owner takes them out.
    pub(crate) ended: Vec<Ended<J>>,
    /// Somebody wants the connection although no command is queued.
    is_wanted: Cell<bool>,
    /// When the first caller that has wanted it since the last one was made gives up.
    wanted_by: Cell<Instant>,
    /// Since the last connection was lost: the attempts to make one that have failed, and when the
    /// next one is due.
    down: Option<(u32, Instant)>,
    /// Why the last connection was lost, or could not be made.
    why_down: Option<Cause>,
    /// How many connections it has had.
    connections: u64,
}

/// The state of a pipeline's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineState {
    Up,
    /// It is being made for the first time, or after the server had closed an idle one.
    Connecting,
    /// It has failed, and none could be made since.
    Down,
}

struct Queued<J> {
    job: J,
    form: ScriptForm,
}

struct Sent<J> {
    queued: Queued<J>,
    verb: Verb,
    /// The name of the command or script.
    name: &'static str,
    replicas: Option<Replicas>,
    at: Instant,
    /// How many bytes were packed on the connection up to the command's last one.
    end: u64,
    /// The reply to its ASKING is missing.
    is_asking: bool,
    /// The error reply to its ASKING.
    not_asked: Option<ServerError>,
}

impl<J: Job> Pipeline<J> {
    pub(crate) fn new(server: Arc<Server>, waker: Waker) -> Self {
        Self {
            server,
            waker,
            link: Link::Closed,
            queued: VecDeque::new(),
            sent: VecDeque::new(),
            unacknowledged: Vec::new(),
            ended: Vec::new(),
            is_wanted: Cell::new(false),
            wanted_by: Cell::new(Instant::NEVER),
            down: None,
            why_down: None,
            connections: 0,
        }
    }

    /// Returns the state of the connection. If there is none, one is made from now on, with pauses
    /// while that fails. The first of those that want it gives up at `wanted_by`.
    pub(crate) fn want_line(&self, wanted_by: Instant) -> LineState {
        self.is_wanted.set(true);
        self.wanted_by.set(self.wanted_by.get().min(wanted_by));
        self.line_state()
    }

    pub(crate) fn line_state(&self) -> LineState {
        match &self.link {
            Link::Open(line) if !line.is_rejected => LineState::Up,
            _ if self.down.is_some() => LineState::Down,
            _ => LineState::Connecting,
        }
    }

    /// Returns why there is no connection.
    pub(crate) fn why_down(&self) -> Fault {
        let known = self.why_down.clone();
        Fault::NotRun(known.unwrap_or_else(|| self.server.pool.last_failure().cause))
    }

    /// Wants no connection any more unless a command is queued.
    pub(crate) fn end_probing(&mut self) {
        self.is_wanted.set(false);
        self.down = None;
    }

    /// Queues a command; [`turn`](Self::turn) sends it.
    pub(crate) fn push(&mut self, job: J) {
        let form = ScriptForm::Digest;
        self.queued.push_back(Queued { job, form });
    }

    /// Sends commands again, before those that are queued, with the source of their scripts.
    pub(crate) fn push_by_source(&mut self, jobs: Vec<J>) {
        for job in jobs.into_iter().rev() {
            let form = ScriptForm::Source;
            self.queued.push_front(Queued { job, form });
        }
    }

    /// Ends all commands: those that were written may have run.
    pub(crate) fn abort(&mut self, now: Instant) {
        self.drop_queued(now, |_| false);
        if self.is_busy()
            && let Link::Open(line) = mem::replace(&mut self.link, Link::Closed)
        {
            self.close(line.connection, line.is_lent);
            let cause = Cause::text("the client was shut down");
            self.end_unanswered(line.output.written(), |_, _| cause.clone());
        }
    }

    /// Ends the commands that are not written and not `wanted` any more.
    pub(crate) fn drop_queued(&mut self, now: Instant, wanted: impl Fn(&J) -> bool) {
        for queued in mem::take(&mut self.queued) {
            if wanted(&queued.job) {
                self.queued.push_back(queued);
                continue;
            }
            let fault = Fault::NotRun(Cause::text("the client was shut down"));
            self.end(queued.job, now, Err(fault.into()));
        }
    }

    pub(super) fn end(&mut self, job: J, sent: Instant, end: Result<Answer, NodeFault>) {
        let link = self.connections;
        self.ended.push(Ended {
            job,
            sent,
            end,
            link,
        });
    }

    /// Returns whether a command has not ended.
    pub(crate) fn is_busy(&self) -> bool {
        let is_waiting = matches!(&self.link, Link::Open(line) if line.wait.is_some());
        is_waiting || !self.queued.is_empty() || !self.sent.is_empty()
    }

    /// Returns the socket, and whether it must be written.
    pub(crate) fn socket(&self) -> Option<(BorrowedFd<'_>, bool)> {
        match &self.link {
            Link::Open(line) => Some((line.connection.as_fd(), !line.output.is_written())),
            Link::Closed | Link::Connecting { .. } => None,
        }
    }

    /// Returns when the next turn is due, if the socket does not become ready before.
    pub(crate) fn next(&self) -> Instant {
        let timeout = self.server.command_timeout();
        match &self.link {
            Link::Closed if !self.queued.is_empty() => Instant::START,
            Link::Closed if !self.is_wanted.get() => Instant::NEVER,
            Link::Closed => self.down.map_or(Instant::START, |(_, retry_at)| retry_at),
            Link::Connecting { since, .. } => since.after(timeout),
            Link::Open(line) => {
                let may_pack = line.output.is_written() && self.may_pack(line);
                if line.has_more || !self.queued.is_empty() && may_pack {
                    Instant::START
                } else {
                    self.late_at(line)
                }
            }
        }
    }

    /// Returns when the oldest reply is late.
    fn late_at(&self, line: &Line) -> Instant {
        let oldest = self.sent.front().map(|sent| sent.at);
        let oldest = oldest.or_else(|| line.wait.map(|(_, since)| since));
        oldest.map_or(Instant::NEVER, |at| at.after(self.server.command_timeout()))
    }

    fn may_pack(&self, line: &Line) -> bool {
        !line.is_rejected
            // The next batch waits for the replicas of this one.
            && line.wait.is_none()
            && self.sent.len() < MOST_UNANSWERED
            && line.output.unwritten() < MOST_UNWRITTEN
    }

    /// Reads, connects and writes what is possible at `now` without waiting.
    pub(crate) fn turn(&mut self, now: Instant, is_ready: bool) {
        let mut is_ready = is_ready;
        loop {
            match mem::replace(&mut self.link, Link::Closed) {
                Link::Open(mut line) => {
                    match self.exchange(&mut line, now, mem::take(&mut is_ready)) {
                        Ok(true) => {
                            self.link = Link::Open(line);
                            return;
                        }
                        Ok(false) => self.leave(*line),
                        Err(error) => self.fail(*line, error),
                    }
                }
                link => self.link = link,
            }
            let is_due = || self.down.is_none_or(|(_, retry_at)| retry_at <= now);
            if self.queued.is_empty() && !(self.is_wanted.get() && is_due()) {
                return;
            }
            self.link = self.connect(now);
            if !matches!(self.link, Link::Open(_)) {
                return;
            }
        }
    }

    /// Reads and writes. Returns false if the connection must not be used any more.
    fn exchange(&mut self, line: &mut Line, now: Instant, is_ready: bool) -> RedisResult<bool> {
        if !self.server.is_current(line.connection.generation) {
            // What the old server replies does not count any more.
            return Ok(false);
        }
        let is_late = self.late_at(line) <= now;
        // A reply that has arrived counts, although this thread reads it late.
        let mut reads = if is_ready || is_late || line.has_more {
            MOST_READS
        } else {
            0
        };
        let before = (self.sent.len(), line.wait.is_some());
        self.read(line, &mut reads)?;
        let has_taken = before != (self.sent.len(), line.wait.is_some());
        if !self.has_replies_left(line) && line.connection.has_surplus() {
            // The rest of them would be taken for the reply to the next command.
            return Err(line.connection.surplus());
        }
        let is_drained = reads > 0 && !line.has_more;
        // A peer that keeps sending something else does not put off the end.
        if (is_drained || !has_taken) && is_late && self.late_at(line) <= now {
            return Err(timed_out().into());
        }
        self.write(line, now)?;
        let is_done = !self.has_replies_left(line);
        Ok(!is_done || !line.is_rejected && !line.is_lent)
    }

    fn has_replies_left(&self, line: &Line) -> bool {
        !self.sent.is_empty() || line.wait.is_some()
    }

    /// Reads the replies that have arrived.
    fn read(&mut self, line: &mut Line, reads: &mut u32) -> RedisResult<()> {
        line.has_more = false;
        let mut served: Option<(Instant, bool)> = None;
        let mut outcome = Ok(());
        for n in 0..MOST_IN_TURN {
            match line.connection.answer_at_hand(reads) {
                Ok(None) => break,
                Ok(Some(reply)) => {
                    line.has_more = n + 1 == MOST_IN_TURN;
                    if let Err(error) = self.take(line, reply, &mut served) {
                        outcome = Err(error);
                        break;
                    }
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if let Some((sent, is_write)) = served {
            self.server.answered(sent, is_write);
        }
        outcome
    }

    /// Takes one reply. Notes in `served` a command that was served, and whether it was a write.
    fn take(
        &mut self,
        line: &mut Line,
        reply: Reply,
        served: &mut Option<(Instant, bool)>,
    ) -> RedisResult<()> {
        let connection = &line.connection;
        let Some(first) = self.sent.front_mut() else {
            let Some((replicas, _)) = line.wait.take() else {
                return Err(connection.malformed());
            };
            let waited = connection.meaning_of(reply, Verb::Count)?;
            for (job, sent, answer) in mem::take(&mut self.unacknowledged) {
                let waited = Some(waited.clone());
                let end = self.server.acknowledged(answer, waited, Some(replicas));
                self.end(job, sent, end.map_err(NodeFault::from));
            }
            return Ok(());
        };
        if mem::take(&mut first.is_asking) {
            first.not_asked = connection.meaning_of(reply, Verb::Asking)?.err();
            return Ok(());
        }
        let (verb, replicas) = (first.verb, first.replicas);
        let answer = connection.meaning_of(reply, verb)?;
        let is_unknown = first.queued.form.after(&answer).is_some();
        let not_asked = first.not_asked.take();
        // If ASKING was refused, its error is the one to report, unless the command ran.
        let answer = answer.map_err(|error| not_asked.unwrap_or(error));
        let job = &first.queued.job;
        let fault = |error| job.with_request(|request| request.fault(&self.server, &error));
        let end = answer.map_err(fault);
        let Some(Sent { queued, at, .. }) = self.sent.pop_front() else {
            return Ok(());
        };
        if let Some((_, since)) = &mut line.wait {
            *since = Instant::now();
        }
        let job = queued.job;
        if is_unknown {
            self.end(job, at, Err(NodeFault::NoScript));
            return Ok(());
        }
        line.is_rejected |= NodeFault::not_served_in(&end).is_some();
        if end.is_ok() {
            let (sent, is_write) = served.unwrap_or((at, false));
            *served = Some((sent, is_write || verb.writes()));
        }
        match (end, replicas) {
            (Ok(answer), Some(_)) => self.unacknowledged.push((job, at, answer)),
            (end, _) => self.end(job, at, end),
        }
        Ok(())
    }

    /// Packs queued commands, and writes what the socket takes.
    fn write(&mut self, line: &mut Line, now: Instant) -> RedisResult<()> {
        let mut batch: Option<Replicas> = None;
        let mut count = 0;
        while count < MOST_IN_TURN
            && self.may_pack(line)
            && let Some(queued) = self.queued.pop_front()
        {
            if queued.job.is_over(now) {
                let fault = Fault::NotRun(Cause::silence("no time was left to ask"));
                self.end(queued.job, now, Err(fault.into()));
                continue;
            }
            let replicas = queued.job.replicas();
            let fits = match count {
                // WAIT covers all commands before it.
                0 => replicas.is_none() || self.sent.is_empty(),
                _ => replicas == batch && (batch.is_none() || count < MOST_IN_BATCH),
            };
            if !fits {
                self.queued.push_front(queued);
                break;
            }
            let (end, verb, name, is_asking) = queued.job.with_request(|request| {
                let end = line.output.pack(|buffer| request.pack(queued.form, buffer));
                (end, request.verb(), request.name(), request.is_asking())
            });
            self.sent.push_back(Sent {
                queued,
                verb,
                name,
                replicas,
                at: now,
                end,
                is_asking,
                not_asked: None,
            });
            batch = replicas;
            count += 1;
        }
        if let Some(replicas) = batch {
            line.output.pack(|buffer| pack_wait(&replicas, buffer));
            line.wait = Some((replicas, now));
        }
        line.flush()
    }
}

#[cfg(test)]
mod tests;
