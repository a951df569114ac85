//! The connection that hears: SUBSCRIBE, its confirmations, and the messages.

use std::time::Duration;

use redis::{PushKind, Value};

use crate::clock::Instant;
use crate::error::{library_text, words};
use crate::lease::state::FIRST_RENEWAL_AFTER;
use crate::logging;
use crate::protocol::fair::read_grant;
use crate::queue::local::Announcer;
use crate::redis::Connection;
use crate::runtime::endpoint::Endpoint;
use crate::runtime::state::Runtime;
use crate::runtime::subscriber::PROBE;
use crate::stats::Wake;

/// How long the thread waits for a message before it looks around: for the probe's silence, for
/// subscriptions that nobody uses, and for those whose wake-up could not be published.
pub(in crate::runtime) const POLL_EVERY: Duration = Duration::from_millis(500);

/// The most SUBSCRIBEs in one write, for the same reason as in a batch.
const MOST_TOGETHER: usize = 256;

/// The connection that hears.
pub(in crate::runtime) struct PubSub<'a> {
    runtime: &'a Runtime,
    endpoint: &'a Endpoint,
    connection: Connection,
    /// A refusal was logged as such; one is enough for a connection.
    has_warned: bool,
    /// When the timer thread is to be rung for a grant that was heard: by this thread, which is awake, and a moment later,
    /// so that none runs beside the new holder.
    rings_at: Option<Instant>,
}

impl<'a> PubSub<'a> {
    pub(in crate::runtime) fn new(
        runtime: &'a Runtime,
        endpoint: &'a Endpoint,
        connection: Connection,
    ) -> Self {
        Self {
            runtime,
            endpoint,
            connection,
            has_warned: false,
            rings_at: None,
        }
    }

    /// Whether it leads to the server that takes the locks now, as far as is known.
    pub(in crate::runtime) fn is_current(&self) -> bool {
        self.endpoint.server.is_current(&self.connection)
    }

    /// Waits for a message for a while.
    pub(in crate::runtime) fn hear(&mut self) -> Result<(), String> {
        let now = Instant::now();
        if self.rings_at.is_some_and(|at| at <= now) {
            self.rings_at = None;
            self.runtime.timer.ring(Instant::NEVER);
        }
        let pause = self.rings_at.map_or(POLL_EVERY, |at| now.until(at));
        match self.connection.message(now.after(pause.min(POLL_EVERY))) {
            Ok((channel, payload)) => self.heard(&channel, &payload),
            Err(error) if error.is_timeout() => {}
            Err(error) => return Err(library_text(&error)),
        }
        Ok(())
    }

    fn heard(&mut self, channel: &[u8], payload: &[u8]) {
        let this = &self.endpoint.subscriber;
        let mut state = this.state.lock();
        if channel == this.control {
            if payload == PROBE {
                state.unheard = None;
            } else if let Some((id, token)) = read_grant(payload) {
                drop(state);
                let now = Instant::now();
                // A ring that is about to come, or late, would leave the new holder without: it is put off.
                if self
                    .rings_at
                    .is_none_or(|at| at <= now.after(FIRST_RENEWAL_AFTER / 4))
                {
                    let at = now.after(FIRST_RENEWAL_AFTER);
                    self.rings_at = Some(at);
                    self.runtime.timer.ring(at);
                }
                self.runtime.waiters.fair_queues.granted(&id, token);
            }
            return;
        }
        let Some(name) = state
            .channels
            .get(channel)
            .map(|channel| channel.name.clone())
        else {
            return;
        };
        drop(state);
        let voice = Announcer {
            server: self
                .endpoint
                .server
                .member
                .as_ref()
                .map_or(0, |member| member.index),
            needed: self.runtime.deployment.size().needed,
        };
        let suspected_meanwhile = self.runtime.waiters.announced(&name, payload, voice);
        if let Some(hold) = suspected_meanwhile.and_then(|hold| hold.upgrade()) {
            // Somebody says that a lease of ours was released: ask whether it still is ours.
            hold.lease(|lease| lease.suspect(Instant::now()));
            self.runtime.reschedule(&hold);
        }
    }

    /// True if every channel was confirmed.
    pub(in crate::runtime) fn subscribe(&mut self, channels: &[Vec<u8>]) -> Result<bool, String> {
        self.exchange("SUBSCRIBE", channels)
    }

    pub(in crate::runtime) fn unsubscribe(&mut self, channels: &[Vec<u8>]) -> Result<(), String> {
        self.exchange("UNSUBSCRIBE", channels).map(|_| ())
    }

    /// Sends a command for each channel, and reads every answer: a refusal too is only an answer.
    ///
    /// The server may send pushes and messages before an answer, without an end: they extend no
    /// deadline, and do not keep the thread from stopping.
    fn exchange(&mut self, verb: &'static str, channels: &[Vec<u8>]) -> Result<bool, String> {
        let failed = |error| library_text(&error);
        let mut confirmed = 0;
        for some in channels.chunks(MOST_TOGETHER) {
            let command = |channel: &Vec<u8>| redis::cmd(verb).arg(channel).get_packed_command();
            let commands: Vec<u8> = some.iter().flat_map(command).collect();
            let timeout = self.endpoint.server.command_timeout();
            let until = Instant::now().after(timeout);
            self.connection.send(until, &commands).map_err(failed)?;
            let mut open = some.iter();
            let mut is_late = false;
            while let Some(channel) = open.as_slice().first() {
                if self.endpoint.subscriber.is_stopping() {
                    return Ok(false);
                }
                if is_late {
                    return Err(format!("no confirmation of {verb} in {timeout:?}"));
                }
                // Any error here ends the connection, so no late answer is ever taken for another one.
                let answer = read(
                    self.connection.receive(until).map_err(failed)?,
                    verb,
                    channel,
                );
                match answer.ok_or_else(|| failed(self.connection.malformed()))? {
                    Answer::Message(channel, payload) => {
                        self.heard(&channel, &payload);
                        is_late = Instant::now() >= until;
                    }
                    Answer::Done => {
                        open.next();
                        confirmed += 1;
                        if verb == "SUBSCRIBE" {
                            self.confirmed(channel);
                        }
                    }
                    Answer::Refused(why) => {
                        open.next();
                        self.refused(verb, &why);
                    }
                    Answer::Other => is_late = Instant::now() >= until,
                }
            }
        }
        Ok(confirmed == channels.len())
    }

    fn refused(&mut self, verb: &str, why: &str) {
        let level = if self.has_warned {
            log::Level::Debug
        } else {
            log::Level::Warn
        };
        self.has_warned = true;
        logging::record!(
            level,
            "{verb} was refused, waiters look again by themselves: {why} (it needs +{} on their channels)",
            verb.to_ascii_lowercase()
        );
    }

    /// Releases on `channel` are heard from now on; those before now were not.
    fn confirmed(&self, channel: &[u8]) {
        // Of several that confirm at once, exactly one is to complete the majority.
        let _confirming = self.runtime.endpoints.confirming.lock();
        let mut state = self.endpoint.subscriber.state.lock();
        let Some(confirmed) = state.channels.get_mut(channel) else {
            return;
        };
        confirmed.live.set(Some(Instant::now()));
        let name = confirmed.name.clone();
        let why = match std::mem::replace(&mut confirmed.was_live, true) {
            true => Wake::Reconnect,
            false => Wake::Turn,
        };
        drop(state);
        let needed = self.runtime.deployment.size().needed;
        if needed == 1 || self.runtime.endpoints.hearing(channel) == needed {
            self.runtime.waiters.wake_to_retry(&name, why);
        }
    }
}

impl Drop for PubSub<'_> {
    fn drop(&mut self) {
        if self.rings_at.is_some() {
            self.runtime.timer.ring(Instant::NEVER);
        }
    }
}

pub(crate) enum Answer {
    Message(Vec<u8>, Vec<u8>),
    Done,
    Refused(String),
    Other,
}

/// Reads what may be the answer to `verb` of a channel, or a message that came before it. `None` for
/// what Redis does not send then.
pub(crate) fn read(value: Value, verb: &str, channel: &[u8]) -> Option<Answer> {
    let (kind, data) = match value {
        Value::ServerError(error) => return Some(Answer::Refused(words(&error))),
        Value::Array(mut items) if !items.is_empty() => match items.remove(0) {
            Value::BulkString(kind) => (String::from_utf8(kind).ok()?, items),
            _ => return None,
        },
        Value::Push { kind, data } => {
            let kind = match kind {
                PushKind::Message => "message",
                PushKind::Subscribe => "subscribe",
                PushKind::Unsubscribe => "unsubscribe",
                // RESP3 lets a server say more than it was asked for.
                _ => return Some(Answer::Other),
            };
            (kind.to_owned(), data)
        }
        _ => return None,
    };
    let is_verb = kind.eq_ignore_ascii_case(verb);
    match <[Value; 2]>::try_from(data).ok()? {
        [Value::BulkString(channel), Value::BulkString(payload)] if kind == "message" => {
            Some(Answer::Message(channel, payload))
        }
        [Value::BulkString(of), Value::Int(0..)] if is_verb && of == channel => Some(Answer::Done),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_redis_sends_then_is_an_answer_to_a_subscription() {
        let read = |text: &str| {
            let value = redis::parse_redis_value(text.as_bytes()).unwrap();
            read(value, "SUBSCRIBE", b"c")
        };
        for text in [
            "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
            ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
        ] {
            assert!(matches!(read(text), Some(Answer::Done)), "{text}");
        }
        let message = "*3\r\n$7\r\nmessage\r\n$1\r\nd\r\n$1\r\np\r\n";
        assert!(matches!(read(message), Some(Answer::Message(..))));
        let refused = "-NOPERM no\r\n";
        assert!(matches!(read(refused), Some(Answer::Refused(_))));
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
