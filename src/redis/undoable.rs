//! The release of a lease that an acquiring call may leave behind, and the known state of a call at
//! each server.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::protocol::answer::Answer;
use crate::protocol::primitive::{AtRelease, Primitive};
use crate::protocol::script::Call;
use crate::sync::Mutex;

/// A lease that may stay on a server if its acquire or its release gets no reply, or that a change
/// of ttl without a reply may end early.
pub(crate) struct Undoable<'a> {
    pub(crate) keys: &'a Arc<dyn Primitive>,
    pub(crate) id: &'a HolderId,
    /// How long the key may stay, or the new ttl. Its release is repeated for at most this long.
    pub(crate) ttl: Duration,
    /// `None` unless over a quorum.
    pub(crate) votes: Option<&'a Arc<ServerVotes>>,
}

impl Undoable<'_> {
    pub(super) fn release(&self) -> Call<'_> {
        self.keys
            .release(self.id.as_str().as_bytes(), AtRelease::Usual)
    }

    /// Returns the known state of the acquiring command at a server; `Asked` without votes.
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

/// The known state of an acquiring command, or of a change of ttl, at one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    /// The command was not sent to the server.
    NotAsked,
    /// It was sent: it may have run, or may run later.
    Asked,
    Granted,
    /// It ran and acquired or changed nothing, or it certainly will not run.
    Refused,
}

/// The known state of one acquiring command, or change of ttl, at each server, and its holder id.
///
/// A release skips the servers at which the command acquired nothing. If a release finds no key,
/// that is final only if the command is known to have run: otherwise the command may run later.
#[derive(Debug)]
pub(crate) struct ServerVotes {
    id: HolderId,
    votes: Mutex<Box<[Vote]>>,
}

impl ServerVotes {
    pub(crate) fn new(servers: usize, id: HolderId) -> Self {
        Self {
            id,
            votes: Mutex::new(vec![Vote::NotAsked; servers].into()),
        }
    }

    /// Returns the votes on a change of ttl of the same lease, before it is sent.
    pub(crate) fn for_change(&self) -> Arc<Self> {
        Arc::new(Self::new(self.votes.lock().len(), self.id.clone()))
    }

    /// Returns whether some server may run the command later.
    pub(crate) fn may_yet_run(&self) -> bool {
        self.votes.lock().contains(&Vote::Asked)
    }

    /// Returns whether the command was refused because the lock key contains its own id.
    pub(super) fn found_own_id(&self, answer: &Answer) -> bool {
        matches!(answer, Answer::Refused(refusal) if refusal.holder == self.id.as_str().as_bytes())
    }

    pub(crate) fn note(&self, server: usize, vote: Vote) {
        if let Some(slot) = self.votes.lock().get_mut(server) {
            *slot = vote;
        }
    }

    pub(crate) fn vote(&self, server: usize) -> Vote {
        let votes = self.votes.lock();
        votes.get(server).copied().unwrap_or(Vote::NotAsked)
    }
}

/// A release that is repeated until the key is certainly gone from a server, at most until `until`.
#[derive(Clone, Debug)]
pub(crate) struct PendingRelease {
    pub(crate) keys: Arc<dyn Primitive>,
    pub(crate) id: HolderId,
    /// When the repetition ends, whatever the server has replied.
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
