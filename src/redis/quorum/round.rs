//! One call to all servers of a quorum: sent to each, read until the replies decide it, and undone
//! if it failed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, RedisResult};

use crate::clock::Instant;
use crate::error::Cause;
use crate::protocol::answer::Answer;
use crate::protocol::script::Call;
use crate::protocol::verb::Verb;
use crate::redis::conn::connection::{is_hang_up, wait_for_any};
use crate::redis::conn::pool::ConnectRequest;
use crate::redis::fault::Fault;
use crate::redis::quorum::Quorum;
use crate::redis::quorum::member::{Member, is_no_script};
use crate::redis::quorum::pipelined_connection::{PendingReply, PipelinedConnection};
use crate::redis::quorum::votes::{Verdict, Votes};
use crate::redis::server::Server;
use crate::redis::undoable::{Undoable, Vote};

/// Once a majority is connected, how long a call still waits for connections it started itself. A
/// server that is only a little slower to connect then takes part in the first lock.
const GRACE: Duration = Duration::from_millis(10);

/// A server taking part in the round, and its connection until that fails.
struct Slot<'a> {
    server: &'a Server,
    member: &'a Member,
    line: Option<PipelinedConnection>,
    /// The server did not know the script and was sent its source.
    has_taught: bool,
}

pub(in crate::redis) struct Round<'a> {
    quorum: &'a Quorum,
    call: Option<Call<'a>>,
    until: Instant,
    undoable: Option<&'a Undoable<'a>>,
    verb: Verb,
    votes: Votes,
    /// In the order in which they are read.
    slots: Vec<Slot<'a>>,
    /// When the call was sent.
    sent: Option<Instant>,
    /// The servers that gave no vote, and why.
    faults: Vec<(&'a Server, Fault)>,
}

impl<'a> Round<'a> {
    /// A round that sends `call`, or PING if there is none.
    pub(in crate::redis) fn new(
        quorum: &'a Quorum,
        call: Option<Call<'a>>,
        until: Instant,
        undoable: Option<&'a Undoable<'a>>,
    ) -> Self {
        let verb = call.as_ref().map_or(Verb::Ping, |call| call.verb);
        Self {
            quorum,
            until,
            undoable,
            slots: Vec::with_capacity(quorum.size.all),
            verb,
            votes: Votes::new(verb, quorum.size),
            call,
            sent: None,
            faults: Vec::new(),
        }
    }

    pub(in crate::redis) fn run(mut self) -> Result<(Answer, Instant), Fault> {
        self.choose();
        let connected = self.connect();
        // A release is sent to every server that can be reached.
        let is_release = matches!(self.verb, Verb::Release { .. });
        let is_hopeless = self.votes.is_decided() && !is_release;
        if connected.is_ok() && !is_hopeless {
            self.write();
            self.read();
        }
        let verdict = self.votes.verdict();
        match (self.verb, &verdict) {
            (Verb::Acquire(_), _) if !self.votes.is_won() => self.undo(),
            (Verb::Release { .. }, Verdict::Decided(_)) => self.repeat(),
            _ => {}
        }
        for slot in self.slots.drain(..) {
            if let Some(line) = slot.line {
                let is_unread = line.pending() > 0;
                slot.member.keep(line);
                if is_unread {
                    slot.member.is_unread();
                }
            }
        }
        connected?;
        match (verdict, self.sent) {
            (Verdict::Decided(answer), Some(sent)) => Ok((answer, sent)),
            _ => Err(self.fault()),
        }
    }

    /// The known state of the lease's acquiring command at a server.
    fn vote(&self, member: &Member) -> Vote {
        let votes = self.undoable.and_then(|undoable| undoable.votes);
        votes.map_or(Vote::Asked, |votes| votes.vote(member.index))
    }

    /// Counts `server` as failed because of `fault`.
    fn fault_of(&mut self, server: &'a Server, fault: Fault) {
        self.faults.push((server, fault));
        self.votes.count(None);
    }

    /// Chooses the servers to ask, the fastest first: those that are up, or all if these are fewer
    /// than a majority.
    fn choose(&mut self) {
        let quorum = self.quorum;
        let present = quorum.peers().filter(|(_, member)| !member.is_aside());
        let is_enough = present.count() >= quorum.size.needed;
        for (server, member) in quorum.peers() {
            let took_nothing = matches!(self.vote(member), Vote::NotAsked | Vote::Refused);
            if took_nothing && matches!(self.verb, Verb::Release { .. }) {
                self.votes.count(Some(Answer::Gone));
            } else if is_enough && member.is_aside() {
                let cause = Cause::text("down; skipped until it replies again");
                self.fault_of(server, Fault::NotRun(cause));
            } else {
                self.slots.push(Slot {
                    server,
                    member,
                    line: None,
                    has_taught: false,
                });
            }
        }
        self.slots
            .sort_by_key(|slot| (slot.member.is_aside(), slot.member.pace()));
    }

    /// Gets connections: as many as a majority needs, and others that are ready about as soon.
    fn connect(&mut self) -> Result<(), Fault> {
        let mut wanted: Vec<(usize, ConnectRequest<'_>)> = Vec::new();
        for (n, slot) in self.slots.iter_mut().enumerate() {
            slot.line = slot.member.take_line();
            if slot.line.is_none() {
                wanted.push((
                    n,
                    slot.server.request_connection().map_err(Fault::Rejected)?,
                ));
            }
        }
        if !wanted.is_empty() {
            self.wait_for(wanted);
        }
        if Instant::now() >= self.until {
            // Too late for a reply: sending would only leave something to undo.
            return Err(self.fault());
        }
        Ok(())
    }

    fn wait_for(&mut self, mut wanted: Vec<(usize, ConnectRequest<'_>)>) {
        let start = Instant::now();
        let enough = self.quorum.size.needed.min(self.slots.len());
        let mut by = self.until;
        let mut had_enough = false;
        loop {
            let mut failed = Vec::new();
            wanted.retain(|(n, wish)| match (wish.poll(), self.slots.get_mut(*n)) {
                (Some(Ok(connection)), Some(slot)) => {
                    slot.line = Some(PipelinedConnection::new(connection));
                    false
                }
                (Some(Err(connect_error)), Some(slot)) => {
                    slot.member.mark_down();
                    failed.push((slot.server, slot.server.connect_error(connect_error)));
                    false
                }
                _ => true,
            });
            for (server, fault) in failed {
                self.fault_of(server, fault);
            }
            let now = Instant::now();
            let at_hand = self.slots.iter().filter(|slot| slot.line.is_some()).count();
            if at_hand >= enough && !had_enough {
                had_enough = true;
                by = by.min(now.after(GRACE.max(start.until(now))));
            }
            if had_enough {
                // The call that requested them first waits for these.
                wanted.retain(|(_, wish)| !wish.is_late);
            }
            let is_hopeless = at_hand + wanted.len() < enough;
            let patience = now.until(by);
            match wanted.first() {
                Some((_, wish)) if !is_hopeless && !patience.is_zero() => {
                    // With several pending, all are polled once a millisecond.
                    let slice = Duration::from_millis(if wanted.len() == 1 { 250 } else { 1 });
                    wish.wait(slice.min(patience));
                }
                _ => break,
            }
        }
        for n in (0..self.slots.len()).rev() {
            if self.slots.get(n).is_some_and(|slot| slot.line.is_none()) {
                let Slot { server, .. } = self.slots.remove(n);
                if self
                    .faults
                    .iter()
                    .all(|(other, _)| !std::ptr::eq(*other, server))
                {
                    server.failed();
                    let cause = server.pool.last_failure();
                    self.fault_of(server, Fault::NotRun(cause));
                }
            }
        }
    }

    /// Sends the call to every server that has a connection.
    fn write(&mut self) {
        let now = Instant::now();
        self.sent = Some(now);
        let by = now.after(self.patience(now));
        for n in 0..self.slots.len() {
            let Some(Slot {
                member,
                line: Some(line),
                ..
            }) = self.slots.get_mut(n)
            else {
                continue;
            };
            let owed = match (self.verb, self.undoable) {
                (Verb::Acquire(_), Some(undoable)) => match undoable.votes {
                    Some(votes) => {
                        votes.note(member.index, Vote::Asked);
                        PendingReply::Acquire(Arc::clone(votes))
                    }
                    None => PendingReply::Nothing,
                },
                (Verb::Release { .. }, Some(undoable)) => {
                    line.owed_to_release(undoable.pending_release(), member.index)
                }
                _ => PendingReply::Nothing,
            };
            let sent = match &self.call {
                Some(call) => line.send(call, owed, by),
                None => line.ping(by),
            };
            if let Err(error) = sent {
                self.lose(n, error);
            }
        }
    }

    /// Reads replies until they decide the call or the time is up. Reads from any server with data:
    /// one that hangs or sends slowly delays no other.
    fn read(&mut self) {
        let began = Instant::now();
        // Earlier reads may have buffered more than one reply.
        let mut ready = vec![false; self.slots.len()];
        loop {
            for n in 0..self.slots.len() {
                let is_ready = ready.get(n).is_some_and(|is_ready| *is_ready);
                if self.votes.is_decided() {
                    return;
                }
                if let Some(answer) = self.read_one(n, began, is_ready) {
                    self.count(answer);
                }
            }
            let is_over = self.votes.is_decided() || self.unread().next().is_none();
            if is_over || Instant::now() >= self.until {
                break;
            }
            match self.wait() {
                Ok(now_ready) => ready = now_ready,
                Err(error) => return self.lose_unread(&error),
            }
        }
        if !self.votes.is_decided() {
            self.lose_unread(&io::Error::from(io::ErrorKind::TimedOut).into());
        }
    }

    /// Counts a server's answer.
    fn count(&mut self, answer: Answer) {
        let vote = match answer {
            Answer::Refused(refusal) if self.quorum.is_abandoned(&refusal.holder) => None,
            Answer::TooLow(counter) => {
                self.quorum.learn(counter);
                Some(answer)
            }
            answer => Some(answer),
        };
        self.votes.count(vote);
    }

    /// The connections with unread replies.
    fn unread(&self) -> impl Iterator<Item = (usize, &PipelinedConnection)> {
        let slots = self.slots.iter().enumerate();
        let lines = slots.filter_map(|(n, slot)| Some((n, slot.line.as_ref()?)));
        lines.filter(|(_, line)| line.pending() > 0)
    }

    /// Waits until a connection may have something to read; returns which.
    fn wait(&self) -> RedisResult<Vec<bool>> {
        let (indices, wires): (Vec<_>, Vec<_>) = self
            .unread()
            .map(|(n, line)| (n, line.connection()))
            .unzip();
        let mut ready = vec![false; self.slots.len()];
        for (n, is_ready) in indices.into_iter().zip(wait_for_any(&wires, self.until)?) {
            if let Some(slot) = ready.get_mut(n) {
                *slot = is_ready;
            }
        }
        Ok(ready)
    }

    /// Fails every connection that still has unread replies.
    fn lose_unread(&mut self, error: &RedisError) {
        let unread: Vec<usize> = self.unread().map(|(n, _)| n).collect();
        for n in unread {
            self.lose(n, error.clone());
        }
    }

    /// How long writing to one server may take: a quarter of the time if there are more servers
    /// than needed.
    fn patience(&self, now: Instant) -> Duration {
        let left = now.until(self.until);
        let slots = self.slots.iter().filter(|slot| slot.line.is_some());
        if slots.count() > self.votes.missing() {
            left / 4
        } else {
            left
        }
    }

    /// Reads the reply of the n-th server if it is there, after unread replies of earlier calls.
    fn read_one(&mut self, n: usize, began: Instant, is_ready: bool) -> Option<Answer> {
        loop {
            let Slot {
                server,
                member,
                line,
                has_taught,
            } = self.slots.get_mut(n)?;
            let (server, member) = (*server, *member);
            let line = line.as_mut().filter(|line| line.pending() > 0)?;
            let (owed, answer) = line.receive_at_hand(is_ready)?;
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    member.settle(owed, None);
                    self.lose(n, error);
                    return None;
                }
            };
            let now = Instant::now();
            let is_unknown = is_no_script(&answer);
            if is_unknown {
                line.forget_taught();
            }
            if line.pending() > 0 {
                member.settle(owed, Some(&answer));
                continue;
            }
            if let (true, Some(call)) = (is_unknown && !*has_taught, &self.call) {
                // Nothing ran, so sending the call again is safe.
                *has_taught = true;
                if let Err(error) = line.send(call, owed, self.until) {
                    self.lose(n, error);
                    return None;
                }
                continue;
            }
            server.answered(self.sent.unwrap_or(now));
            if let Some(sent) = self.sent {
                member.answered_after(sent.until(now), began.until(now));
            }
            member.settle(owed, Some(&answer));
            let error = match answer {
                Ok(answer) => return Some(answer),
                Err(error) => error,
            };
            let fault = match &self.call {
                Some(call) => server.fault(call, &error),
                None => server.refusal("PING", &error, || "it needs +ping".into()),
            };
            if let Fault::NotRun(_) = fault {
                server.failed();
                member.mark_down();
            }
            self.fault_of(server, fault);
            return None;
        }
    }

    /// Handles the failure of the n-th connection before its reply came.
    fn lose(&mut self, n: usize, error: RedisError) {
        let Some(Slot {
            server,
            member,
            line,
            ..
        }) = self.slots.get_mut(n)
        else {
            return;
        };
        let (server, member) = (*server, *member);
        let line = line.take();
        server.failed();
        if is_hang_up(&error) {
            server.forget_idle();
        }
        member.mark_down();
        if let Some(line) = line {
            let undo = match (self.verb, self.undoable) {
                (Verb::Acquire(_), Some(undoable)) => Some(undoable.release()),
                _ => None,
            };
            for owed in line.abandon(undo.as_ref()) {
                member.settle(owed, None);
            }
        }
        let now = Instant::now();
        let cause = Cause::lost_reply(error, self.sent.unwrap_or(now).until(now));
        self.fault_of(server, Fault::Unknown(cause));
    }

    /// Undoes an acquiring call on every server that did not certainly refuse it. If the connection
    /// works, the release follows the call on it.
    fn undo(&mut self) {
        let (Some(undoable), Some(_)) = (self.undoable, self.sent) else {
            return;
        };
        self.quorum.note_abandoned(undoable.id);
        let mut answering = Vec::new();
        for n in 0..self.slots.len() {
            let Some(Slot { member, line, .. }) = self.slots.get_mut(n) else {
                continue;
            };
            let member = *member;
            let votes = undoable.votes;
            let vote = votes.map_or(Vote::Asked, |votes| votes.vote(member.index));
            match (vote, line) {
                (Vote::NotAsked | Vote::Refused, _) => {}
                (_, None) => member.undo(undoable.pending_release()),
                (_, Some(line)) => {
                    let owed = line.owed_to_release(undoable.pending_release(), member.index);
                    match line.send(&undoable.release(), owed, self.until) {
                        Ok(()) if vote == Vote::Granted => answering.push(n),
                        Ok(()) => {}
                        Err(error) => self.lose(n, error),
                    }
                }
            }
        }
        // Waits for the servers that granted: then this client's next attempt does not meet its own
        // key.
        for n in answering {
            let has_time = Instant::now() < self.until;
            let Some(Slot { member, line, .. }) = self.slots.get_mut(n) else {
                continue;
            };
            let member = *member;
            let Some(open) = line.as_mut().filter(|_| has_time) else {
                continue;
            };
            let (owed, answer) = open.receive(self.until);
            member.settle(owed, answer.as_ref().ok());
            if let Err(error) = answer {
                self.lose(n, error);
            }
        }
    }

    /// Queues the release for servers it could not be sent to.
    fn repeat(&self) {
        let Some(undoable) = self.undoable else {
            return;
        };
        for (server, member) in self.quorum.peers() {
            let was_sent = self
                .slots
                .iter()
                .any(|slot| std::ptr::eq(slot.server, server));
            if !was_sent {
                member.undo(undoable.pending_release());
            }
        }
    }

    /// Why the round has no outcome.
    fn fault(&self) -> Fault {
        let size = self.quorum.size;
        let mut nevers = self.faults.iter().filter_map(|(_, fault)| match fault {
            Fault::Rejected(error) => Some(error),
            _ => None,
        });
        if nevers.clone().count() > size.all - size.needed
            && let Some(error) = nevers.next()
        {
            return Fault::Rejected(error.clone());
        }
        let mut causes: Vec<(String, Vec<&str>)> = Vec::new();
        for (server, fault) in &self.faults {
            let words = fault.without_server();
            match causes.iter_mut().find(|(cause, _)| *cause == words) {
                Some((_, servers)) => servers.push(server.label()),
                None => causes.push((words, vec![server.label()])),
            }
        }
        let causes: Vec<String> = causes
            .iter()
            .map(|(cause, servers)| format!("{cause} ({})", servers.join(", ")))
            .collect();
        let cause = Cause::text(format!(
            "{} of {} servers answered, {} needed: {}",
            size.all - self.faults.len().min(size.all),
            size.all,
            size.needed,
            if causes.is_empty() {
                "no time left to ask".into()
            } else {
                causes.join("; ")
            }
        ));
        let cause = match self.no_redis() {
            Some(of_too_many) => cause.with_kind_of(of_too_many),
            None => cause,
        };
        match self.verb {
            // An acquiring call has been undone.
            Verb::Acquire(_) => Fault::NotRun(cause),
            _ if self.sent.is_none() => Fault::NotRun(cause),
            _ => Fault::Unknown(cause),
        }
    }

    /// Returns a cause if too many servers are not Redis for a majority.
    fn no_redis(&self) -> Option<&Cause> {
        let spare = self.quorum.size.all - self.quorum.size.needed;
        let causes = || self.faults.iter().filter_map(|(_, fault)| fault.cause());
        let not_redis = causes().filter(|cause| cause.is_not_redis()).nth(spare);
        not_redis.or_else(|| causes().filter(|cause| cause.is_malformed()).nth(spare))
    }
}
