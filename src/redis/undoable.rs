//! The release of a lease that an acquiring call may leave behind, and the known state of the call
//! at each server.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::protocol::primitive::{AtRelease, Primitive};
use crate::protocol::script::Call;

/// A lease that an unanswered call may leave behind on a server.
pub(crate) struct Undoable<'a> {
    pub(crate) keys: &'a Arc<dyn Primitive>,
    pub(crate) id: &'a HolderId,
    pub(crate) ttl: Duration,
    pub(crate) votes: Option<&'a Arc<ServerVotes>>,
}

impl Undoable<'_> {
    pub(super) fn release(&self) -> Call<'_> {
        self.keys
            .release(self.id.as_str().as_bytes(), AtRelease::Plain)
    }

    /// The known state of the acquiring command at a server.
    pub(super) fn vote(&self, server: usize) -> Vote {
        self.votes.map_or(Vote::Asked, |votes| votes.vote(server))
    }

    pub(super) fn pending_release(&self) -> PendingRelease {
        PendingRelease {
            keys: Arc::clone(self.keys),
            id: self.id.clone(),
            until: Instant::now().after(self.ttl),
            votes: self.votes.cloned(),
        }
    }
}

/// The known state of an acquiring command at one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    /// The command was not sent to the server.
    NotAsked,
    /// It was sent: it may have run, or may run later.
    Asked,
    Granted,
    /// It ran and acquired nothing, or it certainly will not run.
    Refused,
}

/// The known state of one acquiring command at each server.
///
/// A release skips the servers that acquired nothing. "Key not found" is proof only if the command
/// is known to have run.
#[derive(Debug)]
pub(crate) struct ServerVotes(Mutex<Box<[Vote]>>);

impl ServerVotes {
    pub(crate) fn new(servers: usize) -> Self {
        Self(Mutex::new(vec![Vote::NotAsked; servers].into()))
    }

    pub(crate) fn note(&self, server: usize, vote: Vote) {
        if let Some(slot) = self.0.lock().get_mut(server) {
            *slot = vote;
        }
    }

    pub(crate) fn vote(&self, server: usize) -> Vote {
        let votes = self.0.lock();
        votes.get(server).copied().unwrap_or(Vote::NotAsked)
    }
}

/// A release that must be repeated until the key is certainly gone from a server.
#[derive(Clone, Debug)]
pub(crate) struct PendingRelease {
    pub(crate) keys: Arc<dyn Primitive>,
    pub(crate) id: HolderId,
    /// When the key has certainly expired.
    pub(crate) until: Instant,
    pub(crate) votes: Option<Arc<ServerVotes>>,
}

impl PendingRelease {
    /// Returns true if the acquiring command may still run at this server.
    pub(crate) fn may_yet_run(&self, server: usize) -> bool {
        let votes = self.votes.as_ref();
        votes.is_none_or(|votes| votes.vote(server) == Vote::Asked)
    }
}
