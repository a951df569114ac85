//! A waiter's use of a name's channel, and since when that is heard.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Instant;
use crate::protocol::kind::Key;
use crate::redis::Majority;
use crate::runtime::Runtime;
use crate::runtime::endpoint::Endpoint;

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
    pub(crate) fn is_current(&self, runtime: &Runtime) -> bool {
        self.parts.iter().all(|part| part.is_current(runtime))
    }
}

impl Part<'_> {
    fn hears_since(&self, at: Instant) -> bool {
        self.live.is_on_since(at) && !self.endpoint.subscriber.mute.load(Ordering::SeqCst)
    }

    /// Whether its server still keeps the name, as far as is known.
    pub(crate) fn is_current(&self, runtime: &Runtime) -> bool {
        runtime.owns(&self.endpoint, self.key)
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        let mut state = self.endpoint.subscriber.state.lock();
        if let Some(channel) = state.channels.get_mut(self.key.channel) {
            channel.users -= 1;
            if channel.users == 0 {
                channel.idle = Some(Instant::now());
            }
        }
    }
}

/// Since when releases on a channel are heard, in nanoseconds of our clock.
#[derive(Debug)]
pub(in crate::runtime) struct Live(AtomicU64);

impl Live {
    const NOT: u64 = u64::MAX;

    pub(in crate::runtime) fn set(&self, since: Option<Instant>) {
        self.0
            .store(since.map_or(Self::NOT, Instant::as_nanos), Ordering::SeqCst);
    }

    pub(in crate::runtime) fn is_on(&self) -> bool {
        self.0.load(Ordering::SeqCst) != Self::NOT
    }

    fn is_on_since(&self, at: Instant) -> bool {
        self.0.load(Ordering::SeqCst) <= at.as_nanos()
    }
}

impl Default for Live {
    fn default() -> Self {
        Self(AtomicU64::new(Self::NOT))
    }
}
