//! A connection that commands are written to and replies are read from, each by an instant.

use std::os::fd::AsFd as _;
use std::time::Duration;

use redis::{Msg, RedisError, RedisResult, ServerError, Value};

use super::input::Input;
use super::socket::{timed_out, wait_to_read};
use super::stream::Stream;
use crate::clock::Instant;
use crate::protocol::expected::Expected;
use crate::protocol::script::{Call, Reply};
use crate::redis::conn::open::Open;
use crate::url::Address;

/// A message that began must have ended within this: on a subscription nobody waits for an answer, so nothing else ends
/// one that trickles.
const MESSAGE_WITHIN: Duration = Duration::from_secs(1);

/// How often a connection is read in a row for what is there already.
const MOST_READS: u32 = 16;

/// Of a buffer of commands, in bytes.
const LARGE: usize = 16 * 1024;

/// A connection that is logged on. Any error ends it: an answer that comes too late would be taken for the next one.
pub(crate) struct Connection {
    stream: Stream,
    input: Box<Input>,
    /// Where commands are written before they are sent, kept for the next.
    buffer: Vec<u8>,
    /// Since when a part of a message has been there.
    message_since: Option<Instant>,
    /// Of which generation of its pool it is; set by the pool.
    pub(crate) generation: u64,
    /// Counts it among those of its node, for as long as it is there.
    pub(crate) open: Option<Open>,
}

impl Connection {
    /// Connects, without logging on, by `until`.
    pub(in crate::redis) fn connect(
        address: &Address,
        until: Instant,
        accepted: impl FnOnce(),
    ) -> RedisResult<Self> {
        Ok(Self {
            stream: Stream::connect(address, until, accepted)?,
            input: Box::default(),
            buffer: Vec::new(),
            message_since: None,
            generation: 0,
            open: None,
        })
    }

    /// Sends the command that `pack` writes, and reads its answer, by `until`.
    pub(crate) fn trip(
        &mut self,
        until: Instant,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> RedisResult<Value> {
        self.write(until, pack)?;
        self.answer(until)
    }

    /// Reads one answer, by `until`, on a connection that subscribes to nothing.
    pub(crate) fn answer(&mut self, until: Instant) -> RedisResult<Value> {
        loop {
            match self.receive(until)? {
                // What RESP3 lets a server say unasked must not be taken for an answer.
                Value::Push { .. } => ensure_left(until)?,
                answer => return Ok(answer),
            }
        }
    }

    /// Reads the answer to a command that has these replies, by `until`.
    pub(crate) fn answer_to(
        &mut self,
        until: Instant,
        expected: Expected,
    ) -> RedisResult<Result<Reply, ServerError>> {
        let answer = self.answer(until)?;
        self.check(answer, expected)
    }

    /// Reads `answer`, which was read last, as that to a command with these replies. Another one is an error of the
    /// connection: nothing that is read on it after that can be believed.
    pub(crate) fn check(
        &self,
        answer: Value,
        expected: Expected,
    ) -> RedisResult<Result<Reply, ServerError>> {
        let answer = reply(answer);
        match &answer {
            Ok(reply) if !expected.fits(reply) => Err(self.malformed()),
            _ => Ok(answer),
        }
    }

    /// The error of a connection on which something else was read last than a reply to what was sent.
    pub(crate) fn malformed(&self) -> RedisError {
        self.input.misfit().into()
    }

    /// Reads one answer if it is there already, whole. For a connection that [`wait_for_any`] has found ready, and for one
    /// whose last read may have brought several.
    pub(crate) fn answer_at_hand(&mut self, is_ready: bool) -> RedisResult<Option<Value>> {
        // A peer that sends without a pause must not keep the caller from its deadline. What is left over is found ready
        // again.
        let mut reads = if is_ready { MOST_READS } else { 0 };
        loop {
            match self.input.next()? {
                Some(Value::Push { .. }) => {}
                Some(answer) => return Ok(Some(answer)),
                None if reads == 0 => return Ok(None),
                None => match self.stream.read(&mut self.input, Instant::START) {
                    Ok(()) => reads -= 1,
                    Err(error) if error.kind() == std::io::ErrorKind::TimedOut => return Ok(None),
                    Err(error) => return Err(error.into()),
                },
            }
        }
    }

    /// Sends what `pack` writes, without reading the answer.
    pub(crate) fn write(
        &mut self,
        until: Instant,
        pack: impl FnOnce(&mut Vec<u8>),
    ) -> RedisResult<()> {
        self.buffer.clear();
        pack(&mut self.buffer);
        let sent = self.stream.write(&self.buffer, until);
        if self.buffer.capacity() > LARGE {
            // For a name of unusual length; most are short, and there may be many connections.
            self.buffer = Vec::new();
        }
        Ok(sent?)
    }

    /// Sends commands without reading their answers.
    pub(crate) fn send(&mut self, until: Instant, commands: &[u8]) -> RedisResult<()> {
        Ok(self.stream.write(commands, until)?)
    }

    /// Sends all of them in one write.
    pub(crate) fn send_all<'a, I>(&mut self, until: Instant, commands: I) -> RedisResult<()>
    where
        I: Iterator<Item = &'a [u8]>,
    {
        self.write(until, |buffer| {
            commands.for_each(|command| buffer.extend_from_slice(command));
        })
    }

    /// Reads one answer, or a message where there is a subscription, by `until`. What has come by then is read even when
    /// this thread is late.
    pub(crate) fn receive(&mut self, until: Instant) -> RedisResult<Value> {
        let mut is_last = false;
        loop {
            if let Some(value) = self.input.next()? {
                return Ok(value);
            }
            if is_last {
                return Err(timed_out().into());
            }
            is_last = Instant::now() >= until;
            self.stream.read(&mut self.input, until)?;
        }
    }

    /// Waits for a message until `until`. Unlike [`receive`](Self::receive) this may time out and be called again.
    pub(crate) fn message(&mut self, until: Instant) -> RedisResult<(Vec<u8>, Vec<u8>)> {
        loop {
            match self.receive(until) {
                Ok(value) => {
                    self.message_since = None;
                    // RESP3 lets a server say more than it was asked for.
                    let is_push = matches!(value, Value::Push { .. });
                    match Msg::from_owned_value(value) {
                        Some(message) => {
                            let payload = message.get_payload_bytes().to_vec();
                            return Ok((message.get_channel()?, payload));
                        }
                        None if is_push => {}
                        None => return Err(self.malformed()),
                    }
                }
                Err(error) if error.is_timeout() => return Err(self.no_message(error)),
                Err(error) => return Err(error),
            }
            ensure_left(until)?;
        }
    }

    fn no_message(&mut self, timeout: RedisError) -> RedisError {
        if !self.input.is_within_reply() {
            self.message_since = None;
            return timeout;
        }
        let now = Instant::now();
        match self.message_since {
            Some(since) if since.until(now) >= MESSAGE_WITHIN => self.input.endless().into(),
            _ => {
                self.message_since.get_or_insert(now);
                timeout
            }
        }
    }

    /// Writes `undos` behind commands whose answers did not come, and closes the connection: they
    /// cannot overtake the commands, and run right after them if those run late.
    pub(crate) fn undo_behind<'a, I>(mut self, undos: I)
    where
        I: IntoIterator<Item = Call<'a>>,
    {
        self.buffer.clear();
        let mut known: Option<&'static str> = None;
        for undo in undos {
            // The text of a script, sent once, will do for those behind it.
            if known.replace(undo.script.name) == Some(undo.script.name) {
                undo.pack_by_sha(&mut self.buffer);
            } else {
                undo.pack_by_source(&mut self.buffer);
            }
        }
        if !self.buffer.is_empty() {
            // It must not add to the caller's deadline. They are sent elsewhere too, so a failure here needs no answer.
            let _ = self.stream.write(&self.buffer, Instant::START);
        }
    }
}

/// Waits until one of `wires` may have something to read, but no longer than `until`, and possibly shorter. Says which.
pub(crate) fn wait_for_any(wires: &[&Connection], until: Instant) -> RedisResult<Vec<bool>> {
    let sockets: Vec<_> = wires
        .iter()
        .map(|connection| connection.stream.as_fd())
        .collect();
    Ok(wait_to_read(&sockets, until)?)
}

/// A peer that sends without a pause never lets a read time out.
fn ensure_left(until: Instant) -> RedisResult<()> {
    if Instant::now() >= until {
        return Err(timed_out().into());
    }
    Ok(())
}

/// Whether the other end is gone, so that other connections to it are most likely dead too.
pub(crate) fn is_hang_up(error: &RedisError) -> bool {
    error.is_connection_dropped()
}

/// Reads an answer that is no error.
pub(crate) fn reply(value: Value) -> Result<Reply, ServerError> {
    match value {
        Value::ServerError(error) => Err(error),
        value => Ok(Reply::from(value)),
    }
}
