//! The servers of a quorum, and what the client knows of them together.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::redis::quorum::member::Member;
use crate::redis::quorum::tokens::Tokens;
use crate::redis::quorum::votes::Majority;
use crate::redis::server::Server;
use crate::sync::Mutex;

/// How many of this client's most recently abandoned acquiring attempts are remembered.
const MAX_ABANDONED: usize = 256;

/// Several independent servers.
pub(crate) struct Members {
    pub(in crate::redis) servers: Vec<Arc<Server>>,
    pub(in crate::redis) size: Majority,
    pub(in crate::redis) tokens: Tokens,
    /// Holder ids of the attempts that failed last: a key with such an id is not held by anyone.
    abandoned: Mutex<VecDeque<HolderId>>,
}

impl Members {
    pub(super) fn new(servers: Vec<Arc<Server>>) -> Self {
        Self {
            size: Majority::of(servers.len()),
            servers,
            tokens: Tokens::default(),
            abandoned: Mutex::default(),
        }
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (&Server, &Member)> {
        let servers = self
            .servers
            .iter()
            .map(|server| (&**server, server.member.as_ref()));
        servers.filter_map(|(server, member)| Some((server, member?)))
    }

    /// Returns when the majority stopped replying; see `ServerHealth::silent_since`.
    pub(in crate::redis) fn silent_since(&self, now: Instant, start: Instant) -> Instant {
        let each = |server: &Arc<Server>| server.health.silent_since(now, start);
        let mut since: Vec<Instant> = self.servers.iter().map(each).collect();
        // The servers that replied most recently come first.
        since.sort_unstable_by(|a, b| b.cmp(a));
        since.get(self.size.needed - 1).copied().unwrap_or(now)
    }

    /// Returns whether too few servers for a majority have answered since their last failure.
    pub(in crate::redis) fn is_failing(&self) -> bool {
        let answering = self.servers.iter().filter(|it| !it.health.is_failing());
        answering.count() < self.size.needed
    }

    /// Records an attempt of this client that is being undone.
    pub(super) fn note_abandoned(&self, id: &HolderId) {
        let mut abandoned = self.abandoned.lock();
        if abandoned.len() == MAX_ABANDONED {
            abandoned.pop_front();
        }
        abandoned.push_back(id.clone());
    }

    /// Returns whether `value` is the holder id of an attempt of this client that is being undone.
    pub(super) fn is_abandoned(&self, value: &[u8]) -> bool {
        let abandoned = self.abandoned.lock();
        abandoned.iter().any(|id| id.as_str().as_bytes() == value)
    }
}
