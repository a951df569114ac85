//! A connection to a server of a quorum, with the answers on it that nobody has waited for.

use std::collections::VecDeque;
use std::sync::Arc;

use redis::{RedisResult, ServerError};

use crate::clock::Instant;
use crate::protocol::expected::Expected;
use crate::protocol::script::{Call, Reply};
use crate::redis::conn::connection::Connection;
use crate::redis::undoable::{PendingRelease, ServerVotes};

/// What an answer is about, for whoever comes to read it.
#[derive(Debug)]
pub(crate) enum PendingReply {
    /// Nothing that matters later.
    Nothing,
    Acquire(Arc<ServerVotes>),
    /// Of a release. If the acquire may run after it, as judged when the release is sent, finding
    /// nothing proves nothing.
    Release {
        promise: PendingRelease,
        may_overtake: bool,
    },
}

pub(crate) struct PipelinedConnection {
    connection: Connection,
    /// The scripts whose text was sent over it: from then on their digest will do.
    known_scripts: Vec<&'static str>,
    owed: VecDeque<(PendingReply, Expected)>,
    buffer: Vec<u8>,
}

impl PipelinedConnection {
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            connection,
            known_scripts: Vec::new(),
            owed: VecDeque::new(),
            buffer: Vec::new(),
        }
    }

    /// How many answers are unread.
    pub(crate) fn pending(&self) -> usize {
        self.owed.len()
    }

    /// The answer owed to a release that is sent over this line next. An acquire whose answer is
    /// unread on the same line runs before it.
    pub(crate) fn owed_to_release(&self, promise: PendingRelease, server: usize) -> PendingReply {
        let acquire = promise.votes.as_ref();
        let is_behind = acquire.is_some_and(|acquire| {
            let is_it = |owed: &PendingReply| matches!(owed, PendingReply::Acquire(of) if Arc::ptr_eq(of, acquire));
            self.owed.iter().any(|(owed, _)| is_it(owed))
        });
        PendingReply::Release {
            may_overtake: !is_behind && promise.may_yet_run(server),
            promise,
        }
    }

    /// Sends `call` without waiting for its answer.
    pub(crate) fn send(
        &mut self,
        call: &Call<'_>,
        owed: PendingReply,
        until: Instant,
    ) -> RedisResult<()> {
        self.buffer.clear();
        if self.known_scripts.contains(&call.script.name) {
            call.pack_by_sha(&mut self.buffer);
        } else {
            self.known_scripts.push(call.script.name);
            call.pack_by_source(&mut self.buffer);
        }
        self.owed.push_back((owed, call.expected()));
        self.connection.send(until, &self.buffer)
    }

    /// The server has forgotten the scripts: their texts are sent again.
    pub(crate) fn forget_taught(&mut self) {
        self.known_scripts.clear();
    }

    pub(crate) fn ping(&mut self, until: Instant) -> RedisResult<()> {
        self.buffer.clear();
        redis::cmd("PING").write_packed_command(&mut self.buffer);
        self.owed.push_back((PendingReply::Nothing, Expected::Pong));
        self.connection.send(until, &self.buffer)
    }

    /// Reads the next answer, and says what it is about; what it is about is returned even where no
    /// answer comes, and then the line is of no more use.
    pub(crate) fn receive(
        &mut self,
        until: Instant,
    ) -> (PendingReply, RedisResult<Result<Reply, ServerError>>) {
        let (owed, expected) = self.next_owed();
        (owed, self.connection.answer_to(until, expected))
    }

    /// As [`receive`](Self::receive), if the answer is there already; `is_ready` where there may be something to read.
    pub(crate) fn receive_at_hand(
        &mut self,
        is_ready: bool,
    ) -> Option<(PendingReply, RedisResult<Result<Reply, ServerError>>)> {
        let answer = self.connection.answer_at_hand(is_ready).transpose()?;
        let (owed, expected) = self.next_owed();
        Some((
            owed,
            answer.and_then(|answer| self.connection.check(answer, expected)),
        ))
    }

    fn next_owed(&mut self) -> (PendingReply, Expected) {
        // Nothing is read that was not asked for.
        let next = self.owed.pop_front();
        next.unwrap_or((PendingReply::Nothing, Expected::Pong))
    }

    /// For [`wait_for_any`](crate::redis::conn::connection::wait_for_any).
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Takes out what is unread, of a line that is of no more use.
    pub(crate) fn abandon(
        self,
        undo: Option<&Call<'_>>,
    ) -> impl Iterator<Item = PendingReply> + use<> {
        if let Some(undo) = undo {
            self.connection.undo_behind([*undo]);
        }
        self.owed.into_iter().map(|(owed, _)| owed)
    }
}
