//! A waiter's use of a name's channel, on one server or on all servers of the name.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::clock::Instant;
use crate::protocol::keys::Key;
use crate::redis::{Deployment, Majority};
use crate::runtime::endpoint::Endpoint;
use crate::runtime::subscriber::Live;

/// A waiter's use of a name's channel, on all servers that own the name.
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

    /// Returns true if a majority of servers has delivered every release since `at`, and still
    /// does.
    pub(crate) fn is_subscribed_since(&self, at: Instant) -> bool {
        let live = self
            .parts
            .iter()
            .filter(|part| part.is_subscribed_since(at));
        live.count() >= self.size.needed
    }

    /// Returns true if, as far as is known, its servers still own the name.
    pub(crate) fn is_current(&self, deployment: &Deployment) -> bool {
        let owns = |part: &Part<'_>| deployment.owns(&part.endpoint.server, part.key);
        self.parts.iter().all(owns)
    }
}

impl<'a> Part<'a> {
    /// Registers a user of a name's channel. When the server confirms the subscription, the name's
    /// contender retries: releases between its last attempt and the confirmation did not arrive.
    pub(in crate::runtime) fn subscribe(endpoint: Arc<Endpoint>, key: Key<'a>) -> Self {
        let live = endpoint.subscriber.add_user(key);
        Self {
            endpoint,
            key,
            live,
        }
    }

    fn is_subscribed_since(&self, at: Instant) -> bool {
        let is_live = self.live.lock().is_some_and(|since| since <= at);
        is_live && !self.endpoint.subscriber.mute.load(Ordering::SeqCst)
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        self.endpoint.subscriber.remove_user(self.key.channel);
    }
}
