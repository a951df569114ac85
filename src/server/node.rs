//! One Redis server: how a connection to it is made, and one trip over a connection.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{Connection, ErrorKind, RedisError, RedisResult, ServerError, Value};

use crate::config::Config;
use crate::error::Cause;
use crate::expected::Expected;
use crate::scripts::{Call, Reply};
use crate::server::sentinel::Sentinels;
use crate::server::slot_map::SlotMap;
use crate::url::{Address, Target};

/// How long the undo behind an unanswered command may take to be written: it must not add to the
/// caller's deadline, and where the socket's buffer is full the undo is sent elsewhere anyway.
const UNDO_WRITE: Duration = Duration::from_millis(1);

/// Socket timeouts are counted in the kernel's ticks, up to 10 ms and mostly 4.
const TICK: Duration = Duration::from_millis(4);

/// Of a buffer of commands, in bytes.
const LARGE: usize = 16 * 1024;

/// Where a server is, and what its connections are like.
pub(crate) struct Node {
    origin: Origin,
    pub(crate) label: String,
    connection_name: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    /// How many connections to it are open.
    open: Arc<AtomicU64>,
}

enum Origin {
    Server(Box<redis::Client>),
    Sentinels(Arc<Sentinels>),
    /// One node of a cluster.
    Member(Box<redis::Client>, Weak<SlotMap>),
}

/// A connection that is logged on. Any error of reading or writing ends it: after a read that timed
/// out the client library would swallow the late reply, and take the next one for it.
pub(crate) struct Wire {
    connection: Connection,
    /// What both of the socket's timeouts are set to.
    timeout: Duration,
    /// Where commands are written before they are sent, kept for the next.
    buffer: Vec<u8>,
    /// Of which generation of its pool it is; set by the pool.
    pub(crate) generation: u64,
    /// Counts it among those of its node, for as long as it is there.
    open: Option<Open>,
}

struct Open(Arc<AtomicU64>);

impl Open {
    fn new(count: &Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Node {
    pub(crate) fn new(target: Target, config: &Config) -> Result<Self, RedisError> {
        let label = target.label();
        let origin = match target {
            Target::Server(address) => Origin::Server(Box::new(redis::Client::open(address.info)?)),
            Target::Sentinel(sentinel) => Origin::Sentinels(Arc::new(Sentinels::new(sentinel)?)),
            Target::Cluster(_) | Target::Quorum(_) => {
                return Err((ErrorKind::Client, "several servers are not one").into());
            }
        };
        Ok(Self::with(label, origin, config))
    }

    pub(crate) fn member(
        address: Address,
        map: Weak<SlotMap>,
        config: &Config,
    ) -> Result<Self, RedisError> {
        let client = Box::new(redis::Client::open(address.info)?);
        let origin = Origin::Member(client, map);
        Ok(Self::with(address.label, origin, config))
    }

    fn with(label: String, origin: Origin, config: &Config) -> Self {
        Self {
            origin,
            label,
            connection_name: config.connection_name.clone(),
            connect_timeout: config.connect_timeout,
            command_timeout: config.command_timeout,
            open: Arc::default(),
        }
    }

    pub(crate) fn is_member(&self) -> bool {
        matches!(self.origin, Origin::Member(..))
    }

    /// A command or a connection failed: in a cluster another node may be about to take over.
    pub(crate) fn failed(&self) {
        if let Origin::Member(_, map) = &self.origin
            && let Some(map) = map.upgrade()
        {
            map.doubt();
        }
    }

    pub(crate) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        match &self.origin {
            Origin::Server(_) | Origin::Member(..) => None,
            Origin::Sentinels(sentinels) => Some(sentinels),
        }
    }

    /// Connects and logs on. Name resolution and a unix socket know no timeout, so this may hang:
    /// only a dialer calls it. `moved` is called if it turns out on the way that the master is
    /// another server than before.
    pub(crate) fn connect(&self, moved: impl FnOnce()) -> RedisResult<Wire> {
        match &self.origin {
            Origin::Server(client) => self.log_on(client),
            Origin::Member(client, _) => self.log_on(client).inspect_err(|_| self.failed()),
            Origin::Sentinels(sentinels) => {
                let (master, has_moved) = sentinels.master(self.connect_timeout)?;
                if has_moved {
                    moved();
                }
                let client = redis::Client::open(master)?;
                let wire = self.log_on(&client).and_then(check_role);
                if wire.is_err() {
                    // Sentinels may know better by now.
                    sentinels.doubt();
                }
                wire
            }
        }
    }

    pub(crate) fn connections(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    fn log_on(&self, client: &redis::Client) -> RedisResult<Wire> {
        let connection = client.get_connection_with_timeout(self.connect_timeout)?;
        let mut wire = Wire::new(connection, self.command_timeout)?;
        wire.open = Some(Open::new(&self.open));
        let mut name = redis::cmd("CLIENT");
        name.arg("SETNAME").arg(&self.connection_name);
        // A user without the right to name its connection locks all the same.
        wire.write(|buffer| name.write_packed_command(buffer))?;
        let _ = wire.answer_to(Expected::Ok)?;
        Ok(wire)
    }
}

/// Refuses a server that does not believe to be the master. One that does not let us ask is taken at
/// the sentinels' word.
fn check_role(mut wire: Wire) -> RedisResult<Wire> {
    match is_master(wire.trip(|buffer| redis::cmd("ROLE").write_packed_command(buffer))?) {
        Some(true) => Ok(wire),
        Some(false) => Err((
            ErrorKind::Client,
            "the server that the sentinels name as the master is a replica",
        )
            .into()),
        None => Err(malformed()),
    }
}

/// Reads the answer to ROLE; `None` for one that Redis does not give.
fn is_master(answer: Value) -> Option<bool> {
    let role = match answer {
        Value::ServerError(_) => return Some(true),
        Value::Array(role) => role.into_iter().next()?,
        _ => return None,
    };
    match role {
        Value::BulkString(role) if role == b"master" => Some(true),
        Value::BulkString(role) if role == b"slave" || role == b"sentinel" => Some(false),
        _ => None,
    }
}

impl Wire {
    pub(crate) fn new(connection: Connection, timeout: Duration) -> RedisResult<Self> {
        // The library removes its timeouts once it is logged on.
        let mut wire = Self {
            connection,
            timeout: Duration::ZERO,
            buffer: Vec::new(),
            generation: 0,
            open: None,
        };
        wire.set_timeout(timeout)?;
        Ok(wire)
    }

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
        self.write(pack)?;
        self.answer()
    }

    /// Reads one answer, on a connection that subscribes to nothing.
    pub(crate) fn answer(&mut self) -> RedisResult<Value> {
        loop {
            match self.receive()? {
                // What RESP3 lets a server say unasked must not be taken for an answer.
                Value::Push { .. } => {}
                answer => return Ok(answer),
            }
        }
    }

    /// Reads the answer to a command that has these replies. Another one is an error of the connection:
    /// nothing that is read on it after that can be believed.
    pub(crate) fn answer_to(
        &mut self,
        expected: Expected,
    ) -> RedisResult<Result<Reply, ServerError>> {
        check(self.answer()?, expected)
    }

    /// Reads one answer if it is there already, whole. The client library does not tell.
    pub(crate) fn answer_at_hand(&mut self, _is_ready: bool) -> RedisResult<Option<Value>> {
        Ok(None)
    }

    /// Sends what `pack` writes, without reading the answer.
    pub(crate) fn write(&mut self, pack: impl FnOnce(&mut Vec<u8>)) -> RedisResult<()> {
        self.buffer.clear();
        pack(&mut self.buffer);
        let sent = self.connection.send_packed_command(&self.buffer);
        if self.buffer.capacity() > LARGE {
            // For a name of unusual length; most are short, and there may be many connections.
            self.buffer = Vec::new();
        }
        sent
    }

    /// Sends commands without reading their answers.
    pub(crate) fn send(&mut self, commands: &[u8]) -> RedisResult<()> {
        self.connection.send_packed_command(commands)
    }

    /// Sends all of them in one write.
    pub(crate) fn send_all<'a, I>(&mut self, commands: I) -> RedisResult<()>
    where
        I: Iterator<Item = &'a [u8]>,
    {
        self.write(|buffer| commands.for_each(|command| buffer.extend_from_slice(command)))
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
        self.timeout = Duration::ZERO;
        if !self.buffer.is_empty() && self.set_timeout(UNDO_WRITE).is_ok() {
            // They are sent elsewhere too, so a failure here needs no answer.
            let _ = self.connection.send_packed_command(&self.buffer);
        }
    }
}

/// Whether the other end is gone, so that other connections to it are most likely dead too.
pub(crate) fn is_hang_up(error: &RedisError) -> bool {
    error.is_connection_dropped()
}

/// The error of a connection on which something else was read than a reply to what was sent.
pub(crate) fn malformed() -> RedisError {
    (ErrorKind::Parse, "malformed reply").into()
}

/// Reads an answer that is no error.
pub(crate) fn reply(value: Value) -> Result<Reply, ServerError> {
    match value {
        Value::ServerError(error) => Err(error),
        value => Ok(Reply::from(value)),
    }
}

/// Reads an answer to a command that has these replies.
pub(crate) fn check(value: Value, expected: Expected) -> RedisResult<Result<Reply, ServerError>> {
    let answer = reply(value);
    match &answer {
        Ok(reply) if !expected.fits(reply) => Err(malformed()),
        _ => Ok(answer),
    }
}

/// Why there is no connection.
#[derive(Clone, Debug)]
pub(crate) struct NoWire {
    pub(crate) cause: Cause,
    /// It stays so until somebody changes a setting, as after a wrong password.
    pub(crate) is_final: bool,
    /// The server or the network is the reason, and not that the caller had little time.
    pub(crate) is_the_servers: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_role_is_believed_to_be_one() {
        let read = |text: &str| is_master(redis::parse_redis_value(text.as_bytes()).unwrap());
        assert_eq!(read("*3\r\n$6\r\nmaster\r\n:9\r\n*0\r\n"), Some(true));
        assert_eq!(read("*1\r\n$5\r\nslave\r\n"), Some(false));
        assert_eq!(read("-NOPERM no\r\n"), Some(true), "it may not be asked");
        for text in [":1\r\n", "$-1\r\n", "*0\r\n", "+OK\r\n", "*1\r\n:1\r\n"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
