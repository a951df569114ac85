//! One call to all servers of a quorum: sends it to each, and reads replies until they decide it.
//! Undoes an acquire that was not won.
//!
//! ```text
//! choose --> connect --> send --> read <----+
//!               |                  |  |     | a reply, or a server failed,
//!               |                  |  +-----+ and further votes can decide
//!   out of time |                  |
//!    or too few | connections      | decided, or out of time
//!               v                  v
//!              end: undo an acquire that was not won; repeat a release where it was not sent
//! ```
//!
//! A server in the round:
//!
//! ```text
//! chosen --> connected --> asked --> voted
//!    |           |           |
//!    +-----------+-----------+--> failed: no connection, no reply or an error reply
//! ```

mod connect;
mod fault;
mod names;
mod undo;

use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, RedisResult};

use crate::clock::Instant;
use crate::error::Cause;
use crate::protocol::answer::Answer;
use crate::protocol::script::Call;
use crate::protocol::verb::Verb;
use crate::redis::conn::connection::{MOST_READS, Replied, is_no_script, wait_for_any};
use crate::redis::conn::socket::timed_out;
use crate::redis::fault::Fault;
use crate::redis::quorum::member::Member;
use crate::redis::quorum::members::Members;
use crate::redis::quorum::pipelined_connection::{PendingReply, PipelinedConnection};
use crate::redis::quorum::votes::{Verdict, Votes};
use crate::redis::server::Server;
use crate::redis::undoable::{Undoable, Vote};

/// A server that takes part in the round, and its connection until the connection fails.
struct Slot<'a> {
    server: &'a Server,
    member: &'a Member,
    connection: Option<PipelinedConnection>,
    /// The socket may have something to read.
    is_ready: bool,
    /// The server did not know the script and was sent its source.
    sent_source: bool,
}

impl Slot<'_> {
    /// The connection, if it has unread replies.
    fn unread(&self) -> Option<&PipelinedConnection> {
        let connection = self.connection.as_ref();
        connection.filter(|connection| connection.pending() > 0)
    }
}

pub(super) struct Round<'a> {
    members: &'a Members,
    call: Option<Call<'a>>,
    began: Instant,
    until: Instant,
    undoable: Option<&'a Undoable<'a>>,
    verb: Verb,
    votes: Votes,
    /// In the order in which they are read.
    slots: Vec<Slot<'a>>,
    /// When the call was sent.
    sent: Option<Instant>,
    /// Until when a call that is won still waits for the other votes: see [`Round::patience`].
    patient_until: Instant,
    /// The servers that gave no vote, and why.
    faults: Vec<(&'a Server, Fault)>,
    /// How many servers have replied without an error.
    answers: usize,
    /// True if a server refused because an earlier call of this client is still being undone.
    is_in_own_way: bool,
    /// The slots whose servers refused because the lock key contains the id of this call.
    with_own_id: Vec<usize>,
}

impl<'a> Round<'a> {
    /// Returns a round that sends `call`, or PING if there is none.
    pub(in crate::redis) fn new(
        members: &'a Members,
        call: Option<Call<'a>>,
        until: Instant,
        undoable: Option<&'a Undoable<'a>>,
    ) -> Self {
        let verb = call.as_ref().map_or(Verb::Ping, |call| call.verb);
        Self {
            members,
            began: Instant::now(),
            until,
            undoable,
            slots: Vec::with_capacity(members.size.all),
            verb,
            votes: Votes::new(verb, members.size),
            call,
            sent: None,
            patient_until: Instant::START,
            faults: Vec::new(),
            answers: 0,
            is_in_own_way: false,
            with_own_id: Vec::new(),
        }
    }

    pub(super) fn run(&mut self) -> Result<(Answer, Instant), Fault> {
        self.choose();
        let connected = self.connect();
        // A release is sent to every server that can be reached.
        let is_release = matches!(self.verb, Verb::Release { .. });
        let is_hopeless = self.votes.is_decided() && !is_release;
        if connected.is_ok() && !is_hopeless {
            self.send();
            self.read();
            self.check_names();
        }
        let verdict = self.votes.verdict();
        let mut fault = None;
        match (self.verb, &verdict) {
            (Verb::Acquire(_), _) if !self.with_own_id.is_empty() => fault = self.undo_own_id(),
            (Verb::Acquire(_), _) if !self.votes.is_won() => drop(self.undo()),
            (Verb::Release { .. }, Verdict::Decided(_)) => self.repeat(),
            _ => {}
        }
        for slot in self.slots.drain(..) {
            if let Some(connection) = slot.connection {
                slot.member.put_back(connection);
            }
        }
        connected?;
        match (fault, verdict, self.sent) {
            (None, Verdict::Decided(answer), Some(sent)) => Ok((answer, sent)),
            (Some(fault), ..) => Err(fault),
            _ => Err(self.fault()),
        }
    }

    pub(super) fn was_sent(&self) -> bool {
        self.sent.is_some()
    }

    /// Returns whether the round had nearly the whole command timeout.
    pub(super) fn had_time(&self, command_timeout: Duration) -> bool {
        self.began.until(self.until) >= command_timeout / 10 * 9
    }

    /// Returns whether a majority has answered, even if the answers do not decide the call.
    pub(super) fn has_answers(&self) -> bool {
        self.answers >= self.members.size.needed
    }

    /// Counts `server` as failed because of `fault`.
    fn note_fault(&mut self, server: &'a Server, fault: Fault) {
        self.faults.push((server, fault));
        self.votes.count(None);
    }

    /// Chooses the servers to ask, the fastest first: those that are up, or all if these are fewer
    /// than a majority. A release skips the servers on which its acquire took nothing.
    fn choose(&mut self) {
        let members = self.members;
        let present = members.each().filter(|(_, member)| !member.is_down());
        let is_enough = present.count() >= members.size.needed;
        for (server, member) in members.each() {
            let vote = self.undoable.map(|undoable| undoable.vote(member.index));
            let took_nothing = matches!(vote, Some(Vote::NotAsked | Vote::Refused));
            if took_nothing && matches!(self.verb, Verb::Release { .. }) {
                self.votes.count(Some(Answer::Gone));
            } else if is_enough && member.is_down() {
                let cause = Cause::text("down; skipped until it replies again");
                self.note_fault(server, Fault::NotRun(cause));
            } else {
                self.slots.push(Slot {
                    server,
                    member,
                    connection: None,
                    // At first only replies that are buffered already are read; `wait` sets this.
                    is_ready: false,
                    sent_source: false,
                });
            }
        }
        // Cached, because other threads change these values meanwhile.
        self.slots
            .sort_by_cached_key(|slot| (slot.member.is_down(), slot.member.latency()));
    }

    /// Sends the call to every server that has a connection.
    fn send(&mut self) {
        let now = Instant::now();
        self.sent = Some(now);
        self.patient_until = self.until.min(now.after(self.patience()));
        let by = now.after(self.write_timeout(now));
        for n in 0..self.slots.len() {
            let Some(Slot {
                member,
                connection: Some(connection),
                ..
            }) = self.slots.get_mut(n)
            else {
                continue;
            };
            let votes = self.undoable.and_then(|undoable| undoable.votes);
            let pending = match (self.verb, self.undoable, votes) {
                (Verb::Acquire(_) | Verb::Renew, _, Some(votes)) => {
                    votes.note(member.index, Vote::Asked);
                    PendingReply::Acquire(Arc::clone(votes))
                }
                (Verb::Release { .. }, Some(undoable), _) => {
                    connection.pending_reply_to(undoable.pending_release(), member.index)
                }
                _ => PendingReply::Nothing,
            };
            let sent = match &self.call {
                Some(call) => connection.send(call, pending, by),
                None => connection.ping(by),
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
        let mut is_last = false;
        loop {
            for n in 0..self.slots.len() {
                if self.is_over() {
                    return;
                }
                if let Some(answer) = self.read_one(n, began) {
                    self.count(n, answer);
                }
            }
            let has_all = !self.slots.iter().any(|slot| slot.unread().is_some());
            if self.is_over() || has_all || is_last {
                break;
            }
            let until = match self.votes.is_decided() {
                true => self.patient_until,
                false => self.until,
            };
            // After the deadline, sockets are read once more: this thread may have been paused
            // while replies arrived.
            is_last = Instant::now() >= until;
            if let Err(error) = self.wait(until) {
                return self.lose_unread(&error);
            }
        }
        if !self.votes.is_decided() {
            self.lose_unread(&timed_out().into());
        }
    }

    /// Returns how long a call that is won waits for the other votes.
    ///
    /// A change of ttl does: each server that may run it later limits all later renewals. The wait
    /// must not end the lease.
    fn patience(&self) -> Duration {
        let change = self.undoable.filter(|_| self.verb == Verb::Renew);
        change.map_or(Duration::ZERO, |change| change.ttl / 4)
    }

    /// Returns whether the call waits for no further vote.
    fn is_over(&self) -> bool {
        self.votes.is_decided() && !(self.votes.is_won() && Instant::now() < self.patient_until)
    }

    /// Counts the answer of the n-th server.
    fn count(&mut self, n: usize, answer: Answer) {
        self.answers += 1;
        let own = self.undoable.and_then(|undoable| undoable.votes);
        let vote = match answer {
            answer if own.is_some_and(|own| own.found_own_id(&answer)) => {
                self.with_own_id.push(n);
                None
            }
            Answer::Refused(refusal) if self.members.is_abandoned(&refusal.holder) => {
                self.is_in_own_way = true;
                None
            }
            Answer::TooLow(counter) => {
                self.members.tokens.learn(counter);
                Some(answer)
            }
            answer => Some(answer),
        };
        self.votes.count(vote);
    }

    /// Waits until a connection may have something to read, at most until `until`. Notes which.
    fn wait(&mut self, until: Instant) -> RedisResult<()> {
        let unread = self.slots.iter().filter_map(Slot::unread);
        let connections: Vec<_> = unread.map(PipelinedConnection::connection).collect();
        let mut ready = wait_for_any(&connections, until)?.into_iter();
        for slot in &mut self.slots {
            slot.is_ready = slot.unread().is_some() && ready.next() == Some(true);
        }
        Ok(())
    }

    /// Fails every connection that still has unread replies.
    fn lose_unread(&mut self, error: &RedisError) {
        for n in 0..self.slots.len() {
            if self.slots.get(n).and_then(Slot::unread).is_some() {
                self.lose(n, error.clone());
            }
        }
    }

    /// Returns how long all writes together may take: a quarter of the remaining time if more
    /// servers are connected than needed, otherwise all of it.
    fn write_timeout(&self, now: Instant) -> Duration {
        let left = now.until(self.until);
        let slots = self.slots.iter().filter(|slot| slot.connection.is_some());
        if slots.count() > self.votes.missing() {
            left / 4
        } else {
            left
        }
    }

    /// Reads the reply of the n-th server if it has arrived, after unread replies of earlier calls.
    fn read_one(&mut self, n: usize, began: Instant) -> Option<Answer> {
        loop {
            let slot = self.slots.get_mut(n)?;
            let (server, member) = (slot.server, slot.member);
            let connection = slot.connection.as_mut()?;
            if connection.pending() == 0 {
                return None;
            }
            let mut reads = if slot.is_ready { MOST_READS } else { 0 };
            let (pending, answer) = connection.receive_at_hand(&mut reads)?;
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    member.settle(pending, None);
                    self.lose(n, error);
                    return None;
                }
            };
            if connection.pending() > 0 {
                member.settle(pending, Some(&answer));
                continue;
            }
            let Some(call) = self
                .call
                .filter(|_| is_no_script(&answer) && !slot.sent_source)
            else {
                member.settle(pending, Some(&answer));
                return self.answered(server, member, began, answer);
            };
            // Nothing ran, so sending the call again is safe.
            slot.sent_source = true;
            if let Err(error) = connection.send(&call, pending, self.until) {
                self.lose(n, error);
                return None;
            }
        }
    }

    /// Records a server's reply to the call; returns its answer unless it is an error.
    fn answered(
        &mut self,
        server: &'a Server,
        member: &Member,
        began: Instant,
        answer: Replied,
    ) -> Option<Answer> {
        let now = Instant::now();
        if let Some(sent) = self.sent {
            member.answered_after(sent.until(now), began.until(now));
        }
        let sent = self.sent.unwrap_or(now);
        let error = match answer {
            Ok(answer) => {
                server.answered(sent, self.verb.writes());
                return Some(answer);
            }
            Err(error) => error,
        };
        let fault = match &self.call {
            Some(call) => server.fault(call, &error),
            None => server.refusal("PING", &error, || "it needs +ping".into()),
        };
        match fault.cause() {
            Some(cause) => {
                server.failed_by(Some(cause), false);
                member.mark_down();
            }
            None => server.answered(sent, self.verb.writes() && !fault.refuses_writes()),
        }
        self.note_fault(server, fault);
        None
    }

    /// Handles the failure of the n-th connection before its reply came.
    fn lose(&mut self, n: usize, error: RedisError) {
        let Some(Slot {
            server,
            member,
            connection,
            ..
        }) = self.slots.get_mut(n)
        else {
            return;
        };
        let (server, member) = (*server, *member);
        let connection = connection.take();
        server.failed();
        // A call with a shorter deadline may have given the server too little time to reply.
        if !error.is_timeout() || self.had_time(server.command_timeout()) {
            server.pool.forget_idle();
            member.mark_down();
        }
        if let Some(connection) = connection {
            let is_acquire = matches!(self.verb, Verb::Acquire(_));
            let undo = self.undoable.filter(|_| is_acquire).map(Undoable::release);
            for pending in connection.abandon(undo.as_ref()) {
                member.settle(pending, None);
            }
        }
        let now = Instant::now();
        let command = self.call.map_or("PING", |call| call.script.name);
        let cause = Cause::lost_reply(error, self.sent.unwrap_or(now).until(now), command);
        self.note_fault(server, Fault::Unknown(cause));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;

    use super::*;
    use crate::config::Config;
    use crate::redis::quorum::Quorum;
    use crate::redis::quorum::tests::add_idle_connection;
    use crate::url::Address;

    /// The thread was paused from sending the call until after its deadline.
    #[test]
    fn reply_that_arrived_before_the_first_read_counts_after_the_deadline() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let config = Config {
            connect_timeout: Duration::from_secs(60),
            ..Config::default()
        };
        let address = Address::parse(&url).unwrap();
        let quorum = Quorum::new(vec![address], "quorum of one".into(), &config);
        let mut peer = add_idle_connection(&quorum.members.servers[0], &listener);
        let until = Instant::now().after(config.connect_timeout);
        let mut round = Round::new(&quorum.members, None, until, None);
        round.choose();
        assert!(round.connect().is_ok());
        round.send();
        peer.write_all(b"+PONG\r\n").unwrap();
        while !round.slots[0].is_ready {
            round.wait(until).unwrap();
        }
        round.slots[0].is_ready = false;
        round.until = Instant::now();
        round.read();
        assert!(round.has_answers());
    }
}
