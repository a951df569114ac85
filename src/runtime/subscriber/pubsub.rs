//! A subscribed connection: its commands, their replies, and the messages. Nothing here waits.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::clock::Instant;
use crate::error_reply::{library_text, words};
use crate::protocol::reply::Reply;
use crate::redis::{Connection, Output};

/// A connection on which the subscriber thread receives messages.
pub(super) struct PubSub {
    connection: Connection,
    output: Output,
    /// How many commands have no reply.
    unanswered: usize,
    /// How long the next reply may take.
    timeout: Duration,
    /// When the next reply must have come.
    answer_by: Instant,
}

/// A message or confirmation that has arrived.
pub(crate) enum Received {
    /// A message, with its channel and its payload.
    Message(Vec<u8>, Vec<u8>),
    /// The confirmation of SUBSCRIBE for this channel.
    Subscribed(Vec<u8>),
    /// The confirmation of UNSUBSCRIBE, or the reply to PING.
    Done,
    Refused(String),
    /// A message of RESP3 that was not asked for.
    Other,
}

impl PubSub {
    pub(super) fn new(mut connection: Connection, timeout: Duration) -> Self {
        connection.accept_long();
        Self {
            connection,
            output: Output::default(),
            unanswered: 0,
            timeout,
            answer_by: Instant::NEVER,
        }
    }

    /// Sends the command for each of the channels, without waiting for the replies.
    pub(super) fn send(&mut self, verb: &str, channels: &[Vec<u8>]) -> Result<(), String> {
        for channel in channels {
            self.add(redis::cmd(verb).arg(channel));
        }
        self.send_rest()
    }

    pub(super) fn ping(&mut self) -> Result<(), String> {
        self.add(&redis::cmd("PING"));
        self.send_rest()
    }

    fn add(&mut self, command: &redis::Cmd) {
        self.output
            .pack(|bytes| command.write_packed_command(bytes));
        if self.unanswered == 0 {
            self.answer_by = Instant::now().after(self.timeout);
        }
        self.unanswered += 1;
    }

    /// Sends as much as the socket takes of the bytes that are left.
    fn send_rest(&mut self) -> Result<(), String> {
        let sent = self.output.flush(&mut self.connection);
        sent.map_err(|error| library_text(&error))
    }

    /// Returns whether the socket must take more bytes.
    pub(super) fn has_unsent(&self) -> bool {
        !self.output.is_written()
    }

    /// Returns whether all commands have a reply.
    pub(super) fn is_answered(&self) -> bool {
        self.unanswered == 0
    }

    /// Returns the next message or reply, if all of it has arrived. Reads at most once, and only if
    /// the socket `is_ready`, which is then set to false. Fails if a reply or the end of a message
    /// is late.
    ///
    /// A server may send messages before a reply, without end: they extend no deadline.
    pub(super) fn next(&mut self, is_ready: &mut bool) -> Result<Option<Received>, String> {
        if *is_ready {
            self.send_rest()?;
        }
        let failed = |error| library_text(&error);
        if let Some(value) = self.connection.value_at_hand(is_ready).map_err(failed)? {
            let received = read(value).filter(|it| !it.is_reply() || self.unanswered > 0);
            let received = received.ok_or_else(|| failed(self.connection.malformed()))?;
            if received.is_reply() {
                self.unanswered -= 1;
                self.answer_by = Instant::now().after(self.timeout);
            }
            return Ok(Some(received));
        }
        if self.unanswered > 0 && Instant::now() >= self.answer_by {
            Err(format!("no reply in {:?}", self.timeout))
        } else {
            Ok(None)
        }
    }

    /// Returns when [`next`](Self::next) must be called, although nothing has arrived.
    pub(super) fn due(&self) -> Instant {
        let message_due = self.connection.message_due();
        if self.is_answered() {
            message_due
        } else {
            message_due.min(self.answer_by)
        }
    }
}

impl AsFd for PubSub {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

impl Received {
    fn is_reply(&self) -> bool {
        matches!(self, Self::Subscribed(_) | Self::Done | Self::Refused(_))
    }
}

/// Reads what arrives on a subscribed connection. Returns `None` for anything that Redis does not
/// send there.
pub(crate) fn read(reply: Reply) -> Option<Received> {
    let is_push = matches!(reply, Reply::Push(_));
    let items = match reply {
        Reply::Error(error) => return Some(Received::Refused(words(&error))),
        Reply::Status(text) if text == "PONG" => return Some(Received::Done),
        Reply::List(items) | Reply::Push(items) => items,
        _ => return None,
    };
    let mut items = items.into_iter();
    let Reply::Text(kind) = items.next()? else {
        return None;
    };
    match (kind.as_slice(), items.next(), items.next(), items.next()) {
        (b"pong", Some(_), None, _) => Some(Received::Done),
        (b"message", Some(Reply::Text(channel)), Some(Reply::Text(payload)), None) => {
            Some(Received::Message(channel, payload))
        }
        (b"subscribe", Some(Reply::Text(channel)), Some(Reply::Int(0..)), None) => {
            Some(Received::Subscribed(channel))
        }
        (b"unsubscribe", Some(Reply::Text(_)), Some(Reply::Int(0..)), None) => Some(Received::Done),
        (b"message" | b"subscribe" | b"unsubscribe", ..) => None,
        _ => is_push.then_some(Received::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::redis::conn::read_reply;

    #[test]
    fn malformed_reply_to_subscribe_is_rejected() {
        let read = |text: &str| read(read_reply(text.as_bytes()).unwrap().unwrap());
        for text in [
            "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
            ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
        ] {
            let read = read(text);
            assert!(matches!(read, Some(Received::Subscribed(of)) if of == b"c"));
        }
        for text in [
            "*3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:0\r\n",
            "*2\r\n$4\r\npong\r\n$0\r\n\r\n",
            "+PONG\r\n",
        ] {
            assert!(matches!(read(text), Some(Received::Done)), "{text}");
        }
        let message = "*3\r\n$7\r\nmessage\r\n$1\r\nd\r\n$1\r\np\r\n";
        assert!(matches!(read(message), Some(Received::Message(..))));
        let refused = "-NOPERM no\r\n";
        assert!(matches!(read(refused), Some(Received::Refused(_))));
        for text in [
            "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:-1\r\n",
            "*4\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n:1\r\n",
            "*2\r\n$7\r\nmessage\r\n$1\r\nc\r\n",
            "*1\r\n$4\r\npong\r\n",
            "*0\r\n",
            "+OK\r\n",
            ":1\r\n",
            "$-1\r\n",
        ] {
            assert!(read(text).is_none(), "{text}");
        }
    }
}
