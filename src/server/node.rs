//! One Redis server: how a connection to it is made, and one trip over a connection.

use std::time::Duration;

use redis::{Connection, ConnectionLike, RedisError, RedisResult, Value};

use crate::config::Config;
use crate::error::Cause;
use crate::scripts::{Call, Reply};
use crate::url::Address;

/// How long the undo behind an unanswered command may take to be written: it must not add to the
/// caller's deadline, and where the socket's buffer is full the undo is sent elsewhere anyway.
const UNDO_WRITE: Duration = Duration::from_millis(1);

/// Socket timeouts are counted in the kernel's ticks, up to 10 ms and mostly 4.
const TICK: Duration = Duration::from_millis(4);

/// Of a buffer of commands, in bytes.
const LARGE: usize = 16 * 1024;

/// Where a server is, and what its connections are like.
pub(crate) struct Node {
    client: redis::Client,
    pub(crate) label: String,
    connection_name: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
}

/// A connection that is logged on. Any error of reading or writing ends it: after a read that timed
/// out the client library would swallow the late reply, and take the next one for it.
pub(crate) struct Wire {
    connection: Connection,
    /// What both of the socket's timeouts are set to.
    timeout: Duration,
    /// Where commands are written before they are sent, kept for the next.
    buffer: Vec<u8>,
}

impl Node {
    pub(crate) fn new(address: Address, config: &Config) -> Result<Self, RedisError> {
        Ok(Self {
            client: redis::Client::open(address.info)?,
            label: address.label,
            connection_name: config.connection_name.clone(),
            connect_timeout: config.connect_timeout,
            command_timeout: config.command_timeout,
        })
    }

    /// Connects and logs on. Name resolution and a unix socket know no timeout, so this may hang:
    /// only a dialer calls it.
    pub(crate) fn connect(&self) -> RedisResult<Wire> {
        let connection = self
            .client
            .get_connection_with_timeout(self.connect_timeout)?;
        // The library removes its timeouts once it is logged on.
        let mut wire = Wire {
            connection,
            timeout: Duration::ZERO,
            buffer: Vec::new(),
        };
        wire.set_timeout(self.command_timeout)?;
        let mut name = redis::cmd("CLIENT");
        name.arg("SETNAME").arg(&self.connection_name);
        // A user without the right to name its connection locks all the same.
        wire.trip(|buffer| name.write_packed_command(buffer))?;
        Ok(wire)
    }
}

impl Wire {
    /// Sets how long a read or a write may take, to within the kernel's tick.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) -> RedisResult<()> {
        // Zero would be an error.
        let timeout = timeout.max(Duration::from_millis(1));
        // Two system calls for less than the kernel can tell apart would be half the cost of ours.
        if timeout.abs_diff(self.timeout) > TICK || self.timeout.is_zero() {
            self.connection.set_read_timeout(Some(timeout))?;
            self.connection.set_write_timeout(Some(timeout))?;
            self.timeout = timeout;
        }
        Ok(())
    }

    /// Sends the command that `pack` writes, and reads its answer.
    pub(crate) fn trip(&mut self, pack: impl FnOnce(&mut Vec<u8>)) -> RedisResult<Value> {
        self.buffer.clear();
        pack(&mut self.buffer);
        let answer = self.connection.req_packed_command(&self.buffer);
        if self.buffer.capacity() > LARGE {
            // For a name of unusual length; most are short, and there may be many connections.
            self.buffer = Vec::new();
        }
        answer
    }

    /// Sends commands without reading their answers.
    pub(crate) fn send(&mut self, commands: &[u8]) -> RedisResult<()> {
        self.connection.send_packed_command(commands)
    }

    /// Reads one answer, or a message where there is a subscription.
    pub(crate) fn receive(&mut self) -> RedisResult<Value> {
        self.connection.recv_response()
    }

    /// Waits for a message for as long as the timeout says. Unlike [`receive`](Self::receive) this
    /// may time out and be called again.
    pub(crate) fn message(&mut self) -> RedisResult<(Vec<u8>, Vec<u8>)> {
        // Dropping a `PubSub` unsubscribes, and waits for the answer to that.
        let mut listener = std::mem::ManuallyDrop::new(self.connection.as_pubsub());
        let message = listener.get_message()?;
        Ok((message.get_channel()?, message.get_payload_bytes().to_vec()))
    }

    /// Writes `undo` behind a command whose answer did not come, and closes the connection: this
    /// undo cannot overtake the command, and runs right after it if that runs late.
    pub(crate) fn undo_behind(mut self, undo: &Call<'_>) {
        self.timeout = Duration::ZERO;
        if self.set_timeout(UNDO_WRITE).is_ok() {
            // It is sent elsewhere too, so a failure here needs no answer.
            self.buffer.clear();
            undo.pack_by_source(&mut self.buffer);
            let _ = self.connection.send_packed_command(&self.buffer);
        }
    }
}

/// Whether the other end is gone, so that other connections to it are most likely dead too.
pub(crate) fn is_hang_up(error: &RedisError) -> bool {
    error.is_connection_dropped()
}

/// Reads an answer that is no error.
pub(crate) fn reply(value: Value) -> Result<Reply, redis::ServerError> {
    match value {
        Value::ServerError(error) => Err(error),
        value => Ok(Reply::from(value)),
    }
}

/// Why there is no connection.
#[derive(Clone, Debug)]
pub(crate) struct NoWire {
    pub(crate) cause: Cause,
    /// It stays so until somebody changes a setting, as after a wrong password.
    pub(crate) is_final: bool,
}
