//! The subscriber thread's connection to one server: the channels of the names that calls wait for,
//! and what their messages do.

use std::sync::Arc;

use crate::clock::Instant;
use crate::error::Cause;
use crate::logging;
use crate::protocol::place::{read_grant, read_next, read_refresh};
use crate::queue::local_queue::Announcer;
use crate::redis::Connection;
use crate::runtime::endpoint::Endpoint;
use crate::runtime::state::Runtime;
use crate::runtime::subscriber::link::{ConnectJob, Peer};
use crate::runtime::subscriber::pubsub::{PubSub, Received};
use crate::runtime::subscriber::{Ended, PROBE};

/// A server for which a call has waited.
pub(super) struct ServerPeer {
    endpoint: Arc<Endpoint>,
    /// A refusal was logged as a warning: once for each connection.
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
        self.has_warned = false;
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
        runtime.deployment.suspect();
        if !this.disconnected() {
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
        } else if let Some((id, tokens)) = read_grant(payload) {
            runtime.waiters.granted_by_message(&id, tokens);
        } else if let Some(id) = read_refresh(payload) {
            // Only own places. A place that the calls of a client share wants the lock exclusively,
            // and the script has just granted it to others.
            runtime.waiters.own_places.refresh_place_now(&id);
        }
    }

    /// Handles a message on the channel of a name.
    fn announced(&self, runtime: &Runtime, channel: &[u8], payload: &[u8]) {
        let state = self.endpoint.subscriber.state.lock();
        let channel = state.channels.get(channel);
        let Some(name) = channel.map(|channel| channel.name.clone()) else {
            return;
        };
        drop(state);
        let member = self.endpoint.server.member.as_ref();
        let announcer = Announcer {
            server: member.map_or(0, |member| member.index),
            needed: runtime.deployment.size().needed,
        };
        let waiters = &runtime.waiters;
        let still_held = match read_next(payload) {
            Some(next) => waiters.announced_plain(&name, payload, &next, announcer, Instant::now()),
            None => waiters.announced(&name, payload, announcer),
        };
        if let Some(hold) = still_held.and_then(|hold| hold.upgrade()) {
            // The message says that this lease was released.
            runtime.suspect(&hold);
        }
    }

    /// Records that releases on `channel` arrive from now on; earlier ones may have been missed.
    fn subscribed(&self, runtime: &Runtime, channel: &[u8]) {
        let mut state = self.endpoint.subscriber.state.lock();
        let Some(confirmed) = state.channels.get_mut(channel) else {
            return;
        };
        *confirmed.live.lock() = Some(Instant::now());
        let (name, has_several_names) = (confirmed.name.clone(), confirmed.has_several_names);
        drop(state);
        let needed = runtime.deployment.size().needed;
        if needed == 1 || runtime.endpoints.subscribed(channel) == needed {
            let waiters = &runtime.waiters;
            waiters.wake_to_retry(&name);
            if has_several_names {
                waiters.own_places.refresh_channel(channel);
            }
        }
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
