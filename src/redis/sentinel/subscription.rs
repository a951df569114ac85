//! A subscription to the announcements of one sentinel, which proves that it lives.

use std::time::Duration;

use redis::{RedisResult, Value};

use crate::clock::Instant;
use crate::error::Cause;
use crate::redis::conn::connection::Connection;
use crate::redis::sentinel::replies::{MOVES, is_about, is_pong, is_subscribed};
use crate::url::Address;

/// How often a subscription asks for a sign of life. A proxy or a sentinel that hangs leaves the
/// connection open, and nothing else is due on it until the next failover.
const PING_EVERY: Duration = Duration::from_secs(5);

/// A confirmed subscription.
pub(crate) struct Subscription {
    connection: Connection,
    /// When the next PING is due.
    ping_at: Instant,
    /// The last PING has no reply yet.
    is_pinged: bool,
}

impl Subscription {
    /// Subscribes at the sentinel within `timeout`.
    pub(super) fn open(sentinel: &Address, timeout: Duration) -> Result<Self, Cause> {
        let until = Instant::now().after(timeout);
        let mut connection = Connection::open(sentinel, None, until, |_| ())?;
        let mut subscribe = redis::cmd("SUBSCRIBE");
        subscribe.arg(MOVES);
        connection.write(until, |buffer| subscribe.write_packed_command(buffer))?;
        // In RESP3 the confirmation is a push.
        if !is_subscribed(&connection.receive(until)?.extract_error()?) {
            return Err(connection.malformed().into());
        }
        Ok(Self {
            connection,
            ping_at: Instant::now().after(PING_EVERY),
            is_pinged: false,
        })
    }

    /// Waits at most `timeout` for an announcement. Returns true if one is about `master`. Fails if
    /// the sentinel has not replied to a PING by the time of the next one.
    pub(crate) fn wait(&mut self, master: &str, timeout: Duration) -> Result<bool, Cause> {
        let now = Instant::now();
        if now >= self.ping_at {
            if self.is_pinged {
                return Err(Cause::silence(format!(
                    "no reply to PING in {PING_EVERY:?}"
                )));
            }
            self.ping_at = now.after(PING_EVERY);
            self.is_pinged = true;
            self.connection.write(now.after(PING_EVERY), |buffer| {
                redis::cmd("PING").write_packed_command(buffer);
            })?;
        }
        match self.next(now.after(timeout)) {
            Ok(announcement) => Ok(announcement.is_some_and(|text| is_about(&text, master))),
            Err(error) if error.is_timeout() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the next announcement; `None` for the reply to a PING.
    fn next(&mut self, until: Instant) -> RedisResult<Option<Vec<u8>>> {
        let connection = &mut self.connection;
        let is_pinged = &mut self.is_pinged;
        let is_reply = |value: &Value| is_pong(value) && std::mem::take(is_pinged);
        let message = connection.message_or(until, is_reply)?;
        Ok(message.map(|message| message.get_payload_bytes().to_vec()))
    }
}
