//! A subscribed connection: SUBSCRIBE, its confirmations, and the messages.

use std::time::Duration;

use redis::{PushKind, Value};

use crate::clock::Instant;
use crate::error_reply::{library_text, words};
use crate::lease::status::FIRST_RENEWAL_AFTER;
use crate::logging;
use crate::protocol::place::{read_grant, read_next, read_refresh};
use crate::queue::local_queue::Announcer;
use crate::redis::Connection;
use crate::runtime::endpoint::Endpoint;
use crate::runtime::state::Runtime;
use crate::runtime::subscriber::PROBE;

/// How long the thread waits for a message before it checks for a lost probe, for unused
/// subscriptions, and for new channels whose wake-up could not be published.
pub(in crate::runtime) const POLL_EVERY: Duration = Duration::from_millis(500);

/// The most SUBSCRIBEs in one write: their replies must fit into the socket buffers.
const MAX_BATCH: usize = 256;

/// The connection on which the subscriber thread receives messages.
pub(in crate::runtime) struct PubSub<'a> {
    runtime: &'a Runtime,
    endpoint: &'a Endpoint,
    connection: Connection,
    /// A refusal was logged as a warning: once for each connection.
    has_warned: bool,
    /// When this thread wakes the engine for a received grant; `None` if it need not. The delay
    /// keeps the engine from competing with the new holder for a core.
    wakes_timer_at: Option<Instant>,
}

impl<'a> PubSub<'a> {
    pub(in crate::runtime) fn new(
        runtime: &'a Runtime,
        endpoint: &'a Endpoint,
        mut connection: Connection,
    ) -> Self {
        connection.accept_long();
        Self {
            runtime,
            endpoint,
            connection,
            has_warned: false,
            wakes_timer_at: None,
        }
    }

    /// Returns true if, as far as is known, the connection leads to the server that grants the
    /// locks now.
    pub(in crate::runtime) fn is_current(&self) -> bool {
        self.endpoint.server.is_current(&self.connection)
    }

    /// Waits up to `POLL_EVERY` for a message, and handles it.
    pub(in crate::runtime) fn receive(&mut self) -> Result<(), String> {
        let now = Instant::now();
        if self.wakes_timer_at.is_some_and(|at| at <= now) {
            self.wakes_timer_at = None;
            self.runtime.timer.wake_if_due(Instant::NEVER);
        }
        let pause = self.wakes_timer_at.map_or(POLL_EVERY, |at| now.until(at));
        match self.connection.message(now.after(pause.min(POLL_EVERY))) {
            Ok((channel, payload)) => self.handle(&channel, &payload),
            Err(error) if error.is_timeout() => {}
            Err(error) => return Err(library_text(&error)),
        }
        Ok(())
    }

    fn handle(&mut self, channel: &[u8], payload: &[u8]) {
        let this = &self.endpoint.subscriber;
        let mut state = this.state.lock();
        if channel == this.control {
            if payload == PROBE {
                state.probe_sent = None;
            } else if let Some((id, tokens)) = read_grant(payload) {
                drop(state);
                let now = Instant::now();
                // Replaces a wake-up that is late or almost due: it would come before the new lease
                // is due. If another lease is due before the new wake-up, `wake_if_due` wakes the
                // engine now.
                if self
                    .wakes_timer_at
                    .is_none_or(|at| at <= now.after(FIRST_RENEWAL_AFTER / 4))
                {
                    let at = now.after(FIRST_RENEWAL_AFTER);
                    self.wakes_timer_at = Some(at);
                    self.runtime.timer.wake_if_due(at);
                }
                self.runtime.waiters.granted_by_message(&id, tokens);
            } else if let Some(id) = read_refresh(payload) {
                drop(state);
                // Only own places. A place that the calls of a client share wants the lock
                // exclusively, and the script has just granted it to others.
                self.runtime.waiters.own_places.refresh_place_now(&id);
            }
            return;
        }
        let channel = state.channels.get(channel);
        let Some(name) = channel.map(|channel| channel.name.clone()) else {
            return;
        };
        drop(state);
        let member = self.endpoint.server.member.as_ref();
        let announcer = Announcer {
            server: member.map_or(0, |member| member.index),
            needed: self.runtime.deployment.size().needed,
        };
        let waiters = &self.runtime.waiters;
        let still_held = match read_next(payload) {
            Some(next) => waiters.announced_plain(&name, payload, &next, announcer, Instant::now()),
            None => waiters.announced(&name, payload, announcer),
        };
        if let Some(hold) = still_held.and_then(|hold| hold.upgrade()) {
            // The message says that this lease was released.
            self.runtime.suspect(&hold);
        }
    }

    /// Subscribes to `channels`; returns true if the server confirmed all of them.
    pub(in crate::runtime) fn subscribe(&mut self, channels: &[Vec<u8>]) -> Result<bool, String> {
        self.exchange("SUBSCRIBE", channels)
    }

    pub(in crate::runtime) fn unsubscribe(&mut self, channels: &[Vec<u8>]) -> Result<(), String> {
        self.exchange("UNSUBSCRIBE", channels).map(|_| ())
    }

    /// Sends a command for each channel and reads every reply. A refusal is a reply, not an error.
    ///
    /// A server may send pushes and messages before a reply, without end. They extend no deadline
    /// and do not keep the thread from stopping.
    fn exchange(&mut self, verb: &'static str, channels: &[Vec<u8>]) -> Result<bool, String> {
        let failed = |error| library_text(&error);
        let mut confirmed = 0;
        for chunk in channels.chunks(MAX_BATCH) {
            let pack = |buffer: &mut Vec<u8>| {
                for channel in chunk {
                    redis::cmd(verb).arg(channel).write_packed_command(buffer);
                }
            };
            let timeout = self.endpoint.server.command_timeout();
            let until = Instant::now().after(timeout);
            self.connection.write(until, pack).map_err(failed)?;
            let mut unconfirmed = chunk.iter();
            let mut is_late = false;
            while let Some(channel) = unconfirmed.as_slice().first() {
                if self.endpoint.subscriber.is_stopping() {
                    return Ok(false);
                }
                if is_late {
                    return Err(format!("no confirmation of {verb} in {timeout:?}"));
                }
                // Any error ends the connection, so no late reply is ever matched to another
                // command.
                let answer = read(
                    self.connection.receive(until).map_err(failed)?,
                    verb,
                    channel,
                );
                match answer.ok_or_else(|| failed(self.connection.malformed()))? {
                    Received::Message(channel, payload) => {
                        self.handle(&channel, &payload);
                        is_late = Instant::now() >= until;
                    }
                    Received::Done => {
                        unconfirmed.next();
                        confirmed += 1;
                        if verb == "SUBSCRIBE" {
                            self.confirmed(channel);
                        }
                    }
                    Received::Refused(why) => {
                        unconfirmed.next();
                        self.refused(verb, &why);
                    }
                    Received::Other => is_late = Instant::now() >= until,
                }
            }
        }
        Ok(confirmed == channels.len())
    }

    fn refused(&mut self, verb: &str, why: &str) {
        let has_warned = std::mem::replace(&mut self.has_warned, true);
        logging::record!(
            if has_warned {
                log::Level::Debug
            } else {
                log::Level::Warn
            },
            server = self.endpoint.server.label();
            "{} refused {verb}, waiters retry on a timer: {why} (grant +{} on the channels)",
            self.endpoint.server.label(),
            verb.to_ascii_lowercase()
        );
    }

    /// Records that releases on `channel` arrive from now on; earlier ones may have been missed.
    fn confirmed(&self, channel: &[u8]) {
        // If several servers confirm at once, exactly one must complete the majority.
        let _confirming = self.runtime.endpoints.confirming.lock();
        let mut state = self.endpoint.subscriber.state.lock();
        let Some(confirmed) = state.channels.get_mut(channel) else {
            return;
        };
        *confirmed.live.lock() = Some(Instant::now());
        let (name, has_several_names) = (confirmed.name.clone(), confirmed.has_several_names);
        drop(state);
        let needed = self.runtime.deployment.size().needed;
        if needed == 1 || self.runtime.endpoints.subscribed(channel) == needed {
            let waiters = &self.runtime.waiters;
            waiters.wake_to_retry(&name);
            if has_several_names {
                waiters.own_places.refresh_channel(channel);
            }
        }
    }
}

impl Drop for PubSub<'_> {
    fn drop(&mut self) {
        if self.wakes_timer_at.is_some() {
            self.runtime.timer.wake_if_due(Instant::NEVER);
        }
    }
}

pub(crate) enum Received {
    Message(Vec<u8>, Vec<u8>),
    Done,
    Refused(String),
    Other,
}

/// Reads the reply to `verb` for a channel, or a message that came before it. Returns `None` for
/// anything that Redis does not send at this point.
pub(crate) fn read(value: Value, verb: &str, channel: &[u8]) -> Option<Received> {
    let (kind, data) = match value {
        Value::ServerError(error) => return Some(Received::Refused(words(&error))),
        Value::Array(mut items) if !items.is_empty() => match items.remove(0) {
            Value::BulkString(kind) => (String::from_utf8(kind).ok()?, items),
            _ => return None,
        },
        Value::Push { kind, data } => {
            let kind = match kind {
                PushKind::Message => "message",
                PushKind::Subscribe => "subscribe",
                PushKind::Unsubscribe => "unsubscribe",
                // With RESP3 a server may push other messages.
                _ => return Some(Received::Other),
            };
            (kind.to_owned(), data)
        }
        _ => return None,
    };
    let is_verb = kind.eq_ignore_ascii_case(verb);
    match <[Value; 2]>::try_from(data).ok()? {
        [Value::BulkString(channel), Value::BulkString(payload)] if kind == "message" => {
            Some(Received::Message(channel, payload))
        }
        [Value::BulkString(of), Value::Int(0..)] if is_verb && of == channel => {
            Some(Received::Done)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_reply_to_subscribe_is_rejected() {
        let read = |text: &str| {
            let value = redis::parse_redis_value(text.as_bytes()).unwrap();
            read(value, "SUBSCRIBE", b"c")
        };
        for text in [
            "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
            ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
        ] {
            assert!(matches!(read(text), Some(Received::Done)), "{text}");
        }
        let message = "*3\r\n$7\r\nmessage\r\n$1\r\nd\r\n$1\r\np\r\n";
        assert!(matches!(read(message), Some(Received::Message(..))));
        let refused = "-NOPERM no\r\n";
        assert!(matches!(read(refused), Some(Received::Refused(_))));
        for text in [
            "*3\r\n$9\r\nsubscribe\r\n$1\r\nd\r\n:1\r\n",
            "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:-1\r\n",
            "*3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:0\r\n",
            "*2\r\n$7\r\nmessage\r\n$1\r\nc\r\n",
            "*0\r\n",
            "+OK\r\n",
            ":1\r\n",
            "$-1\r\n",
        ] {
            assert!(read(text).is_none(), "{text}");
        }
    }
}
