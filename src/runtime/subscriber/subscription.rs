//! A waiter's use of a name's channel, and since when that is heard.

use std::sync::Arc;

use crate::clock::Instant;
use crate::protocol::kind::Key;
use crate::redis::{Deployment, Majority};
use crate::runtime::endpoint::Endpoint;
use crate::runtime::subscriber::Live;

/// A waiter's use of a name's channel, on all servers that keep the name.
pub(crate) struct Subscription<'a> {
    parts: Vec<Part<'a>>,
    size: Majority,
}

/// A waiter's use of a channel on one server.
pub(crate) struct Part<'a> {
    pub(in crate::runtime) endpoint: Arc<Endpoint>,
    pub(in crate::runtime) key: Key<'a>,
    pub(in crate::runtime) live: Arc<Live>,
}

impl<'a> Subscription<'a> {
    pub(crate) fn of(parts: Vec<Part<'a>>, size: Majority) -> Self {
        Self { parts, size }
    }

    /// Whether every release since `at` was heard from a majority, and is at this moment.
    pub(crate) fn hears_since(&self, at: Instant) -> bool {
        let heard = self.parts.iter().filter(|part| part.hears_since(at));
        heard.count() >= self.size.needed
    }

    /// Whether its servers still keep the name, as far as is known.
    pub(crate) fn is_current(&self, deployment: &Deployment) -> bool {
        self.parts.iter().all(|part| part.is_current(deployment))
    }
}

impl<'a> Part<'a> {
    /// Wants to hear the releases of a name. Once they are heard, the name's first waiter is told to
    /// look: a release between its last look and then was not heard.
    pub(in crate::runtime) fn subscribe(
        endpoint: Arc<Endpoint>,
        key: Key<'a>,
        until: Instant,
    ) -> Self {
        let subscriber = &endpoint.subscriber;
        let (live, wake) = subscriber.add_user(key);
        if wake && endpoint.server.member.is_some() {
            // One of several may hang, and the others be enough.
            endpoint.io.wake();
        } else if wake {
            subscriber.wake(&endpoint.server, b"subscribe", until);
        }
        endpoint.io.probe();
        Self {
            endpoint,
            key,
            live,
        }
    }

    fn hears_since(&self, at: Instant) -> bool {
        self.live.is_on_since(at) && !self.endpoint.subscriber.is_mute()
    }

    /// Whether its server still keeps the name, as far as is known.
    pub(crate) fn is_current(&self, deployment: &Deployment) -> bool {
        deployment.owns(&self.endpoint.server, self.key)
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        self.endpoint.subscriber.remove_user(self.key.channel);
    }
}
