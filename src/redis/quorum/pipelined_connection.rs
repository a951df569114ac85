//! A connection to one server of a quorum, with its queue of replies that no caller has read yet.

use std::collections::VecDeque;
use std::sync::Arc;

use redis::RedisResult;

use crate::clock::Instant;
use crate::protocol::script::Call;
use crate::protocol::verb::Verb;
use crate::redis::conn::connection::{CallResult, Connection, is_no_script};
use crate::redis::undoable::{PendingRelease, ServerVotes};

/// The command that an unread reply will answer: tells the thread that reads the reply what to do
/// with it.
#[derive(Debug)]
pub(crate) enum PendingReply {
    /// A command whose reply needs no action.
    Nothing,
    Acquire(Arc<ServerVotes>),
    /// A release. `may_precede_acquire` was determined when the release was sent: if the acquiring
    /// command may run after the release, "key not found" proves nothing.
    Release {
        release: PendingRelease,
        may_precede_acquire: bool,
    },
}

pub(crate) struct PipelinedConnection {
    connection: Connection,
    /// The scripts whose source was sent over this connection: from then on the digest is enough.
    known_scripts: Vec<&'static str>,
    pending: VecDeque<(PendingReply, Verb)>,
}

impl PipelinedConnection {
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            connection,
            known_scripts: Vec::new(),
            pending: VecDeque::new(),
        }
    }

    /// The number of unread replies.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Returns the entry for a release that is sent over this connection next. An acquire whose
    /// reply is still unread on this connection runs before the release.
    pub(super) fn pending_reply_to(&self, release: PendingRelease, server: usize) -> PendingReply {
        let acquire = release.votes.as_ref();
        let is_behind = acquire.is_some_and(|acquire| {
            self.pending.iter().any(|(pending, _)| match pending {
                PendingReply::Acquire(of) => Arc::ptr_eq(of, acquire),
                _ => false,
            })
        });
        PendingReply::Release {
            may_precede_acquire: !is_behind && release.may_yet_run(server),
            release,
        }
    }

    /// Sends `call` without waiting for its reply.
    pub(super) fn send(
        &mut self,
        call: &Call<'_>,
        pending: PendingReply,
        until: Instant,
    ) -> RedisResult<()> {
        let is_known = self.known_scripts.contains(&call.script.name);
        if !is_known {
            self.known_scripts.push(call.script.name);
        }
        self.pending.push_back((pending, call.verb));
        self.connection.write(until, |buffer| match is_known {
            true => call.pack_by_sha(buffer),
            false => call.pack_by_source(buffer),
        })
    }

    pub(super) fn ping(&mut self, until: Instant) -> RedisResult<()> {
        self.pending.push_back((PendingReply::Nothing, Verb::Ping));
        let ping = redis::cmd("PING");
        self.connection
            .write(until, |buffer| ping.write_packed_command(buffer))
    }

    /// Reads the next reply and returns it with its entry. Also returns the entry on an error; the
    /// connection must then not be used again.
    pub(crate) fn receive(&mut self, until: Instant) -> (PendingReply, CallResult) {
        let (pending, verb) = self.next_pending();
        let answer = self.connection.answer_to(until, verb);
        (pending, self.noted(answer))
    }

    /// Like [`receive`](Self::receive), but returns `None` if the reply has not arrived yet. Reads
    /// from the socket at most `reads` times.
    pub(super) fn receive_at_hand(
        &mut self,
        reads: &mut u32,
    ) -> Option<(PendingReply, CallResult)> {
        let value = self.connection.answer_at_hand(reads).transpose()?;
        let (pending, verb) = self.next_pending();
        let answer = value.and_then(|value| self.connection.meaning_of(value, verb));
        Some((pending, self.noted(answer)))
    }

    /// Returns the answer. If the server has lost a script, it may have lost all of them: their
    /// sources are sent again.
    fn noted(&mut self, answer: CallResult) -> CallResult {
        if answer.as_ref().is_ok_and(is_no_script) {
            self.known_scripts.clear();
        }
        answer
    }

    fn next_pending(&mut self) -> (PendingReply, Verb) {
        // A caller reads only as many replies as it has sent commands.
        let next = self.pending.pop_front();
        next.unwrap_or((PendingReply::Nothing, Verb::Ping))
    }

    /// The connection, for [`wait_for_any`](crate::redis::conn::connection::wait_for_any).
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Returns the connection for another use, while no reply is pending.
    pub(in crate::redis) fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Closes the connection and returns the entries of its unread replies. Before closing it,
    /// sends `undo`, if given, behind the commands that got no reply.
    pub(super) fn abandon(
        self,
        undo: Option<&Call<'_>>,
    ) -> impl Iterator<Item = PendingReply> + use<> {
        if let Some(undo) = undo {
            self.connection.undo_behind([*undo]);
        }
        self.pending.into_iter().map(|(pending, _)| pending)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;
    use crate::config::Config;
    use crate::holder_id::HolderId;
    use crate::protocol::keys::Keys;
    use crate::protocol::mutex::MutexKeys;
    use crate::redis::quorum::Quorum;
    use crate::redis::quorum::tests::add_idle_connection;
    use crate::url::Address;

    const LONG: Duration = Duration::from_secs(60);

    /// Any reader of the reply notices it: the call itself, a later call, or the undo of a round.
    #[test]
    fn source_is_sent_again_after_the_server_has_lost_a_script() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let config = Config {
            connect_timeout: LONG,
            ..Config::default()
        };
        let address = Address::parse(&url).unwrap();
        let quorum = Quorum::new(vec![address], "quorum of one".into(), &config);
        let server = &quorum.members.servers[0];
        let mut peer = add_idle_connection(server, &listener);
        let mut connection = server.member.as_ref().unwrap().take_idle().unwrap();
        let keys = MutexKeys::of(Keys::new("a".into(), "lock:", "lock_release:"));
        let id = HolderId::fresh("x");
        let renewal = keys.renew(&id, LONG, false);
        let until = Instant::now().after(LONG);
        connection
            .send(&renewal, PendingReply::Nothing, until)
            .unwrap();
        assert!(!connection.known_scripts.is_empty());
        peer.write_all(b"-NOSCRIPT No matching script.\r\n")
            .unwrap();
        assert!(connection.receive(until).1.is_ok());
        assert!(connection.known_scripts.is_empty());
    }
}
