//! The releases that have ended: what a shutdown has found, and which may have to be repeated.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::engine::ServerNo;
use crate::kernel::undo::PendingRelease;

/// The most recent releases that are kept: enough for the seconds in which two servers are masters.
const MOST_RECENT: usize = 4096;

/// How many ended releases are remembered, and for how long: replies to commands that were sent
/// before are read by then.
const MOST_ENDED: usize = 1000;
const ENDED_FOR: Duration = Duration::from_secs(10);

/// The last releases that have ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// A replica may become the master.
    pub(super) keeps_recent: bool,
    /// Recent releases that were answered, to be repeated if another server becomes the master.
    pub(super) recent: VecDeque<PendingRelease>,
    /// Releases that have ended, and when: a reply that was sent before may still name their ids.
    ended: VecDeque<(Instant, ServerNo, HolderId)>,
}

impl Ended {
    pub(super) fn note(&mut self, server: ServerNo, id: &HolderId, now: Instant) {
        let old = now.before(ENDED_FOR);
        while let Some((at, ..)) = self.ended.front()
            && (*at < old || self.ended.len() >= MOST_ENDED)
        {
            self.ended.pop_front();
        }
        self.ended.push_back((now, server, id.clone()));
    }

    /// Keeps a release that was answered: a replica that becomes the master may not have it.
    pub(super) fn note_recent(&mut self, release: PendingRelease) {
        if !self.keeps_recent {
            return;
        }
        self.recent.push_back(release);
        if self.recent.len() > MOST_RECENT {
            self.recent.pop_front();
        }
    }

    /// Returns whether a release of this id has ended.
    pub(super) fn has(&self, id: &HolderId) -> bool {
        self.ended.iter().any(|(.., ended)| ended == id)
    }

    /// Returns whether a release of this id at a server has ended since then.
    pub(super) fn has_since(&self, server: ServerNo, id: &[u8], since: Instant) -> bool {
        let mut ended = self.ended.iter().rev().take_while(|(at, ..)| *at >= since);
        ended.any(|(_, of, ended)| *of == server && ended.as_str().as_bytes() == id)
    }
}

/// The releases of a shutdown, counted by their results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) released: usize,
    pub(crate) already_lost: usize,
    pub(crate) unreleased: usize,
}

/// The leases whose releases a shutdown counts.
#[derive(Debug, Default)]
pub(super) struct Counting {
    pub(super) tally: Tally,
    /// Those that too few servers have answered about.
    open: HashMap<HolderId, Counted>,
}

/// The releases of a lease that a shutdown counts.
#[derive(Debug, Default)]
struct Counted {
    /// The servers without an answer.
    open: usize,
    /// Those at which the lease was released.
    released: usize,
    needed: usize,
}

impl Counting {
    /// Adds one release of a lease; `needed` of them must find it.
    pub(super) fn add(&mut self, id: &HolderId, needed: usize) {
        let counted = self.open.entry(id.clone()).or_default();
        self.tally.unreleased += usize::from(counted.open == 0);
        counted.open += 1;
        counted.needed = needed;
    }

    /// Counts the answer of a server.
    pub(super) fn count(&mut self, id: &HolderId, was_released: bool) {
        let Some(counted) = self.open.get_mut(id) else {
            return;
        };
        counted.open -= 1;
        counted.released += usize::from(was_released);
        let is_released = counted.released >= counted.needed;
        if is_released || counted.open == 0 {
            self.open.remove(id);
            self.tally.unreleased -= 1;
            match is_released {
                true => self.tally.released += 1,
                false => self.tally.already_lost += 1,
            }
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.open.is_empty()
    }
}
