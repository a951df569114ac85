//! A connection: writes commands and reads replies, each by a deadline.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::socket2::{SockAddr, SockRef};
use redis::{RedisError, RedisResult, ServerError};

use super::reader::{Limit, Reader};
use super::socket::{timed_out, wait_for_sockets};
use super::stream::{Deadlines, Stream};
use crate::clock::{Instant, nap};
use crate::error_reply::takes_no_writes;
use crate::protocol::answer::Answer;
use crate::protocol::redirect::Redirect;
use crate::protocol::reply::Reply;
use crate::protocol::script::{Call, ScriptForm};
use crate::protocol::verb::Verb;
use crate::resolver::Peer;
use crate::url::Address;
use crate::violation::ViolationKind;

/// A message must end within this time after it was first found unfinished. A subscription waits
/// for no reply, so no other deadline stops a peer that sends its bytes one by one.
const MESSAGE_WITHIN: Duration = Duration::from_secs(1);

/// The most reads for one [`Connection::answer_at_hand`]: while a peer keeps sending, no read times
/// out.
pub(crate) const MOST_READS: u32 = 16;

/// A buffer of commands larger than this, in bytes, is not kept.
const LARGE: usize = 16 * 1024;

/// The answer to a call, or the server's error.
pub(crate) type Replied = Result<Answer, ServerError>;

/// A reply, or why none came.
pub(crate) type CallResult = RedisResult<Replied>;

/// A connection to a server. After an error it must not be used for another command: a late reply
/// would be taken for the next one.
pub(crate) struct Connection {
    stream: Stream,
    /// Its address, if its host is a name.
    peer: Option<Peer>,
    reader: Box<Reader>,
    /// The buffer in which commands are packed, kept for the next ones.
    buffer: Vec<u8>,
    /// True if the end of what was last written may be missing.
    is_cut_off: bool,
    /// When the current message was first found unfinished.
    message_since: Option<Instant>,
    /// The generation of its pool to which it belongs; set by the pool.
    pub(crate) generation: u64,
    /// Its server was compared with that of an older connection, or there was none; set by the
    /// pool.
    pub(super) is_compared: bool,
    /// Counts the connection as open until it is dropped; set by the connector.
    pub(crate) open: Option<Arc<()>>,
}

impl Connection {
    /// Connects within `deadlines`, without logging on. `accepted` is called when the peer has
    /// accepted the connection, before the TLS handshake.
    pub(super) fn connect(
        address: &Address,
        deadlines: impl Into<Deadlines>,
        accepted: impl FnOnce(BorrowedFd<'_>),
    ) -> RedisResult<Self> {
        let mut reader = Box::default();
        let (stream, peer) = Stream::connect(address, &mut reader, deadlines.into(), accepted)?;
        Ok(Self {
            stream,
            peer,
            reader,
            buffer: Vec::new(),
            is_cut_off: false,
            message_since: None,
            generation: 0,
            is_compared: false,
            open: None,
        })
    }

    /// Returns the addresses of the peer and of this end, for messages.
    pub(super) fn ends(&self) -> String {
        let fd = self.stream.as_fd();
        let socket = SockRef::from(&fd);
        let address = |end: io::Result<SockAddr>| end.ok().and_then(|end| end.as_socket());
        match (address(socket.peer_addr()), address(socket.local_addr())) {
            (Some(peer), Some(own)) => format!("{peer} (from {own})"),
            _ => "a unix socket".to_owned(),
        }
    }

    /// Sends the command that `pack` writes, and reads its reply, by `until`.
    pub(crate) fn trip(
        &mut self,
        until: Instant,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> RedisResult<Reply> {
        self.write(until, pack)?;
        self.answer(until)
    }

    /// Like [`trip`](Self::trip), for a command that lists what is in Redis: its reply may be long.
    pub(crate) fn long_trip(
        &mut self,
        until: Instant,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> RedisResult<Reply> {
        self.with_long_limit(|connection| connection.trip(until, pack))
    }

    /// Runs `act`, which may read one long reply.
    fn with_long_limit<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        let usual = self.reader.limit;
        self.accept_long();
        let outcome = act(self);
        self.reader.limit = usual;
        outcome
    }

    /// Accepts long replies from now on. A subscription needs this: others write its messages.
    pub(crate) fn accept_long(&mut self) {
        self.reader.limit = Limit::MOST;
    }

    /// Reads one reply, by `until`, on a connection without subscriptions.
    pub(crate) fn answer(&mut self, until: Instant) -> RedisResult<Reply> {
        loop {
            match self.receive(until)? {
                // While a peer keeps sending, no read times out.
                Reply::Push(_) if Instant::now() >= until => return Err(timed_out().into()),
                // In RESP3 a server may push values that were not requested: they must not be taken
                // for a reply.
                Reply::Push(_) => {}
                answer => return Ok(answer),
            }
        }
    }

    /// Reads the reply to a call, by `until`.
    pub(crate) fn answer_to(&mut self, until: Instant, verb: Verb) -> CallResult {
        let value = if verb.lists_holders() {
            self.with_long_limit(|connection| connection.answer(until))?
        } else {
            self.answer(until)?
        };
        self.meaning_of(value, verb)
    }

    /// Returns what `reply`, the last one read, means. A reply that the call cannot have is an
    /// error of the connection: nothing read on it afterwards can be trusted.
    pub(crate) fn meaning_of(&self, reply: Reply, verb: Verb) -> CallResult {
        match reply.into_result() {
            Ok(reply) => {
                let answer = verb.read(reply).ok_or_else(|| self.malformed())?;
                if let Some(peer) = &self.peer
                    && answer.is_done()
                {
                    peer.wrote();
                }
                Ok(Ok(answer))
            }
            Err(error) if Redirect::is_malformed(&error) => Err(self.malformed()),
            Err(error) => {
                if let Some(peer) = &self.peer
                    && takes_no_writes(&error)
                {
                    peer.refused();
                }
                Ok(Err(error))
            }
        }
    }

    /// Returns the error for a connection whose last reply does not fit the command.
    pub(crate) fn malformed(&self) -> RedisError {
        self.reader.misfit().into()
    }

    /// Returns whether bytes are left after all replies to what was sent. They would be taken for
    /// the reply to the next command, so the connection must not be used again.
    pub(crate) fn has_surplus(&self) -> bool {
        self.reader.is_within_reply()
    }

    /// Returns the error for a connection that [`has_surplus`](Self::has_surplus).
    pub(in crate::redis) fn surplus(&self) -> RedisError {
        self.reader
            .violation_by_rest(ViolationKind::Malformed)
            .into()
    }

    /// Returns one reply if all of it has arrived. An earlier read may have brought it. Reads from
    /// the socket at most `reads` times, and lowers that number; pass zero unless the connection
    /// may be ready, as [`wait_for_any`] reports.
    pub(crate) fn answer_at_hand(&mut self, reads: &mut u32) -> RedisResult<Option<Reply>> {
        loop {
            match self.next_at_hand(reads)? {
                Some(Reply::Push(_)) => {}
                answer => return Ok(answer),
            }
        }
    }

    /// Returns the next reply or message, if all of it has arrived. Reads from the socket at most
    /// `reads` times, without waiting, and lowers that number.
    fn next_at_hand(&mut self, reads: &mut u32) -> RedisResult<Option<Reply>> {
        loop {
            if let Some(value) = self.reader.next()? {
                return Ok(Some(value));
            }
            if *reads == 0 {
                return Ok(None);
            }
            match self.stream.read(&mut self.reader, Instant::START) {
                Ok(()) => *reads -= 1,
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes as much of `bytes` as is taken without waiting, and returns how much that is. What is
    /// taken may still have to be [flushed](Self::flush).
    pub(crate) fn write_some(&mut self, bytes: &[u8]) -> RedisResult<usize> {
        self.reader.limit.raise_for(bytes.len());
        Ok(self.stream.write_some(bytes)?)
    }

    /// Writes what has been taken, as far as that works without waiting. Returns whether all of it
    /// is written.
    pub(crate) fn flush(&mut self) -> RedisResult<bool> {
        Ok(self.stream.flush()?)
    }

    /// Sends what `pack` writes, without reading the reply.
    pub(crate) fn write(
        &mut self,
        until: Instant,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> RedisResult<()> {
        self.buffer.clear();
        pack(&mut self.buffer);
        self.reader.limit.raise_for(self.buffer.len());
        let sent = self.stream.write(&self.buffer, until);
        self.is_cut_off = sent.is_err();
        if self.buffer.capacity() > LARGE {
            // Only unusually long names need a large buffer, and there may be many connections.
            self.buffer = Vec::new();
        }
        Ok(sent?)
    }

    /// Reads one reply, or a message on a subscription, by `until`. After `until` it still reads
    /// once, without waiting: this thread may run late.
    pub(crate) fn receive(&mut self, until: Instant) -> RedisResult<Reply> {
        let mut is_last = false;
        loop {
            if let Some(value) = self.reader.next()? {
                return Ok(value);
            }
            if is_last {
                return Err(timed_out().into());
            }
            is_last = Instant::now() >= until;
            self.stream.read(&mut self.reader, until)?;
        }
    }

    /// Returns the next reply or message, if all of it has arrived. Reads from the socket at most
    /// once, without waiting, and only if it `is_ready`, which is then set to false. Fails if a
    /// message has been unfinished for too long.
    pub(crate) fn value_at_hand(&mut self, is_ready: &mut bool) -> RedisResult<Option<Reply>> {
        let mut reads = u32::from(*is_ready);
        let value = self.next_at_hand(&mut reads)?;
        *is_ready = value.is_some() && reads > 0;
        if value.is_some() || !self.reader.is_within_reply() {
            self.message_since = None;
            return Ok(value);
        }
        self.message_since.get_or_insert_with(Instant::now);
        if Instant::now() >= self.message_due() {
            Err(self.reader.violation_by_rest(ViolationKind::Endless).into())
        } else {
            Ok(None)
        }
    }

    /// Returns when the unfinished message must have ended; `NEVER` if there is none.
    pub(crate) fn message_due(&self) -> Instant {
        let since = self.message_since;
        since.map_or(Instant::NEVER, |since| since.after(MESSAGE_WITHIN))
    }

    /// Writes `undo` behind a command that got no reply; nothing else may follow. On the same
    /// connection an undo cannot overtake its command: if the command runs late, the undo follows.
    ///
    /// If only a part of the command was written, nothing is added: the server would take the undo
    /// for the rest of an argument, and could acquire for a holder id that nobody releases.
    pub(crate) fn undo_behind(&mut self, undo: Call<'_>) {
        let mut packed = Vec::new();
        undo.pack(ScriptForm::Source, &mut packed);
        self.write_behind(&packed);
    }

    /// Like [`undo_behind`](Self::undo_behind), for an undo that is packed.
    pub(crate) fn write_behind(&mut self, undo: &[u8]) {
        if !self.is_cut_off {
            // Without waiting: the caller's deadline may have passed. The undo is also sent
            // elsewhere, so a failure here is ignored.
            let _ = self.stream.write(undo, Instant::START);
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Waits until one of the connections may have something to read, and returns which of them are
/// ready. Returns at `until` at the latest, and possibly earlier although none is ready.
pub(crate) fn wait_for_any(connections: &[&Connection], until: Instant) -> RedisResult<Vec<bool>> {
    let sockets = connections.iter();
    let sockets = sockets.map(|connection| (connection.as_fd(), false));
    Ok(wait_for_sockets(sockets, Some(nap(Instant::now(), until)))?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    use crate::protocol::keys::Keys;
    use crate::protocol::mutex::MutexKeys;
    use crate::protocol::primitive::AtRelease;

    #[test]
    fn nothing_is_written_behind_a_part_of_a_command() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let long = Instant::now().after(Duration::from_secs(60));
        let connection = Connection::connect(&Address::parse(&url).unwrap(), long, |_| ());
        let (mut connection, mut server) = (connection.unwrap(), listener.accept().unwrap().0);

        // More than the sockets buffer.
        let command = |buffer: &mut Vec<u8>| buffer.resize(64 << 20, b'x');
        let soon = Instant::now().after(Duration::from_millis(50));
        assert!(connection.write(soon, command).is_err());
        // From now on there is room for the undo.
        let mut received = vec![0; 1 << 20];
        server.read_exact(&mut received).unwrap();
        let keys = MutexKeys::of(Keys::new("a".into(), "lock:", "lock_release:"));
        connection.undo_behind(keys.release(b"id", AtRelease::Usual));
        drop(connection);

        server.read_to_end(&mut received).unwrap();
        assert!(received.iter().all(|byte| *byte == b'x'));
    }

    #[test]
    fn a_message_that_does_not_end_is_a_violation() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let long = Instant::now().after(Duration::from_secs(60));
        let connection = Connection::connect(&Address::parse(&url).unwrap(), long, |_| ());
        let (mut connection, mut server) = (connection.unwrap(), listener.accept().unwrap().0);
        assert!(connection.value_at_hand(&mut true).unwrap().is_none());
        assert_eq!(connection.message_due(), Instant::NEVER);

        let until_unfinished = |connection: &mut Connection| {
            while connection.message_due() == Instant::NEVER {
                wait_for_any(&[connection], long).unwrap();
                assert!(connection.value_at_hand(&mut true).unwrap().is_none());
            }
        };
        server.write_all(b"$3\r\nab").unwrap();
        until_unfinished(&mut connection);
        server.write_all(b"c\r\n+").unwrap();
        let mut value = None;
        while value.is_none() {
            wait_for_any(&[&connection], long).unwrap();
            value = connection.value_at_hand(&mut true).unwrap();
        }
        // The next message has begun, and has its own time.
        until_unfinished(&mut connection);
        connection.message_since = Some(Instant::now().before(MESSAGE_WITHIN));
        assert!(connection.value_at_hand(&mut false).is_err());
    }
}
