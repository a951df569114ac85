//! The subscriber thread's connection to one server: the channels of the names that calls wait for,
//! and what their messages do.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::clock::Instant;
use crate::error::Cause;
use crate::logging;
use crate::name::Name;
use crate::quorum::messages::released;
use crate::redis::Connection;
use crate::runtime::endpoint::Endpoint;
use crate::runtime::state::Runtime;
use crate::runtime::subscriber::link::{ConnectJob, Peer};
use crate::runtime::subscriber::pubsub::{PubSub, Received};
use crate::runtime::subscriber::{Ended, PROBE};

/// A server for which a call has waited.
pub(super) struct ServerPeer {
    endpoint: Arc<Endpoint>,
    /// A refusal was logged as a warning: once for each outage.
    has_warned: bool,
}

impl Peer for ServerPeer {
    fn endpoint(&self) -> Option<&Arc<Endpoint>> {
        Some(&self.endpoint)
    }

    fn is_wanted(&self) -> bool {
        self.endpoint.subscriber.state.lock().is_used()
    }

    fn connect(&self, _: &Runtime) -> ConnectJob {
        let server = Arc::clone(&self.endpoint.server);
        Box::new(move || {
            let until = Instant::now().after(server.command_timeout());
            server.connection(until).map_err(|fault| fault.to_string())
        })
    }

    fn connected(&mut self, connection: Connection) -> Result<PubSub, String> {
        let channels = self.endpoint.subscriber.connected(connection.generation);
        let mut pubsub = PubSub::new(connection, self.endpoint.server.command_timeout());
        pubsub.send("SUBSCRIBE", &channels)?;
        Ok(pubsub)
    }

    fn handle(&mut self, runtime: &Runtime, received: Received) -> Result<(), Ended> {
        let this = &self.endpoint.subscriber;
        match received {
            Received::Message(channel, payload) if channel == this.inbox => {
                self.received(runtime, &payload);
            }
            Received::Message(channel, payload) => self.announced(runtime, &channel, &payload),
            Received::Subscribed(channel) if channel == this.inbox => {
                this.inbox_answered(true);
                let server = self.endpoint.server.label();
                logging::debug!(server = server; "subscribed to releases");
            }
            Received::Subscribed(channel) => self.subscribed(runtime, &channel),
            Received::Refused(why) => {
                this.inbox_answered(false);
                self.refused(&why);
            }
            Received::Done | Received::Other => {}
        }
        Ok(())
    }

    /// Gives up a connection that other threads have found useless, cancels unused subscriptions,
    /// and subscribes to new channels.
    fn turn(&mut self, pubsub: &mut PubSub) -> Result<Instant, Ended> {
        let now = Instant::now();
        let mut state = self.endpoint.subscriber.state.lock();
        if let Some(ended) = state.must_end(&self.endpoint.server, now) {
            return Err(ended);
        }
        let unused = state.take_unused(now);
        let wanted = std::mem::take(&mut state.queue);
        let tidy_at = state.tidy_at.unwrap_or(Instant::NEVER);
        drop(state);
        pubsub.send("UNSUBSCRIBE", &unused)?;
        pubsub.send("SUBSCRIBE", &wanted)?;
        Ok(tidy_at)
    }

    fn ended(&mut self, runtime: &Runtime, ended: &Ended, is_first: bool) -> bool {
        let (this, server) = (&self.endpoint.subscriber, self.endpoint.server.label());
        let (is_failure, why) = match ended {
            Ended::Failed(why) => (true, why.as_str()),
            Ended::MayBeReplaced => (false, "the server may have been replaced"),
        };
        self.has_warned &= !is_first;
        runtime.deployment.suspect();
        let (names, is_used) = this.disconnected();
        runtime.deaf(&self.endpoint, &names);
        if !is_used {
            logging::debug!(
                server = server;
                "the subscription to releases has ended, and no call waits: {why}"
            );
            return false;
        }
        this.health.failed(Some(&Cause::text(why)), false);
        // One warning for each outage that a waiter notices, however long it lasts. No warning for
        // `MayBeReplaced`: this thread gives up a connection that works, and may do so again and
        // again while the server refuses calls.
        logging::record!(
            if is_failure && is_first { log::Level::Warn } else { log::Level::Debug },
            server = server;
            "no subscription to releases, waiters retry on a timer; reconnecting: {why}"
        );
        is_failure
    }
}

impl ServerPeer {
    pub(super) fn of(endpoint: Arc<Endpoint>) -> Self {
        Self {
            endpoint,
            has_warned: false,
        }
    }

    /// Handles a message in the client's inbox.
    fn received(&self, runtime: &Runtime, payload: &[u8]) {
        if payload == PROBE {
            self.endpoint.subscriber.state.lock().probe_sent = None;
            return;
        }
        runtime.decide_here(|kernel, fx| kernel.inbox(payload, Instant::now(), fx));
    }

    /// Handles a message on a channel of names.
    fn announced(&self, runtime: &Runtime, channel: &[u8], payload: &[u8]) {
        let now = Instant::now();
        let names = self.note_live(channel, now);
        runtime.decide_here(|kernel, fx| {
            for name in &names {
                let Some(n) = self.endpoint.server.number else {
                    kernel.announced(name, payload, now, fx);
                    continue;
                };
                let mut messages = runtime.messages.lock();
                let id = released(payload);
                if kernel.doubt(name, &id, now, fx) {
                    messages.deleted(n, payload);
                }
                if messages.heard(n, name, payload) {
                    kernel.announced(name, &id, now, fx);
                }
            }
        });
    }

    /// Records that the messages on `channel` arrive from now on; earlier ones may have been
    /// missed.
    fn subscribed(&self, runtime: &Runtime, channel: &[u8]) {
        let now = Instant::now();
        let names = self.note_live(channel, now);
        if self.endpoint.subscriber.mute.load(Ordering::SeqCst) {
            return;
        }
        for name in names {
            runtime.hears(&self.endpoint, &name, now);
        }
    }

    /// Records the arrival of a message on a channel, and returns its names.
    fn note_live(&self, channel: &[u8], now: Instant) -> Vec<Name> {
        let mut state = self.endpoint.subscriber.state.lock();
        let Some(channel) = state.channels.get_mut(channel) else {
            return Vec::new();
        };
        channel.live_since = Some(now);
        channel.names().cloned().collect()
    }

    fn refused(&mut self, why: &str) {
        let has_warned = std::mem::replace(&mut self.has_warned, true);
        let server = self.endpoint.server.label();
        logging::record!(
            if has_warned { log::Level::Debug } else { log::Level::Warn },
            server = server;
            "{server} refused SUBSCRIBE or UNSUBSCRIBE, waiters retry on a timer: {why} (grant \
             +subscribe and +unsubscribe on the channels)"
        );
    }
}

/// The server was replaced, or the thread ends.
impl Drop for ServerPeer {
    fn drop(&mut self) {
        self.endpoint.subscriber.disconnected();
    }
}
