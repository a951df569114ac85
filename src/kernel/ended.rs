//! The releases that have ended: what a shutdown has found, and which may have to be repeated.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::bounds::{Bound, at_most};
use crate::kernel::undo::PendingRelease;

/// The most releases that are repeated after a failover. Beyond that, the oldest are forgotten: at
/// a master that has not run one, its key stays for its ttl.
const MOST_RECENT: usize = 65_536;

/// Only as many are repeated that are older than a command timeout: a new master must not run those
/// of a whole ttl, of each client, before anything else.
const MOST_RECENT_OLD: usize = 4096;

/// How many ended releases are remembered, and for how long: replies to commands that were sent
/// before are read by then.
const MOST_ENDED: usize = 1000;
const ENDED_FOR: Duration = Duration::from_secs(10);

/// The last releases that have ended.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// For how long recent releases are kept at least; `None` if no replica may become the master.
    pub(super) keeps_recent: Option<Duration>,
    /// Recent releases that were answered, and when, to be repeated if another server becomes the
    /// master.
    pub(super) recent: VecDeque<(Instant, PendingRelease)>,
    /// Releases that have ended, and when: a reply that was sent before may still name their ids.
    ended: VecDeque<(Instant, HolderId)>,
    /// The ids of the recent releases that were too many.
    #[cfg(sim)]
    pub(crate) forgotten: std::collections::HashSet<HolderId>,
}

impl Ended {
    pub(super) fn note(&mut self, id: &HolderId, now: Instant) {
        let old = now.before(ENDED_FOR);
        while let Some((at, _)) = self.ended.front()
            && (*at < old || self.ended.len() >= at_most(Bound::Ended, MOST_ENDED))
        {
            self.ended.pop_front();
        }
        self.ended.push_back((now, id.clone()));
    }

    /// Keeps a release that was answered: a replica that becomes the master may not have it.
    pub(super) fn note_recent(&mut self, release: PendingRelease, now: Instant) {
        let Some(kept_for) = self.keeps_recent else {
            return;
        };
        self.recent.push_back((now, release));
        let old = now.before(kept_for);
        while let Some((at, _)) = self.recent.front()
            && (self.recent.len() > at_most(Bound::Recent, MOST_RECENT)
                || self.recent.len() > MOST_RECENT_OLD && *at < old)
        {
            let _oldest = self.recent.pop_front();
            #[cfg(sim)]
            (self.forgotten).extend(_oldest.map(|(_, release)| release.id));
        }
    }

    /// Returns whether a release of this id has ended.
    pub(super) fn has(&self, id: &HolderId) -> bool {
        self.ended.iter().any(|(_, ended)| ended == id)
    }

    /// Returns whether a release of this id has ended since then.
    pub(super) fn has_since(&self, id: &[u8], since: Instant) -> bool {
        let mut ended = self.ended.iter().rev().take_while(|(at, _)| *at >= since);
        ended.any(|(_, ended)| ended.as_str().as_bytes() == id)
    }
}

/// The releases of a shutdown, counted by their results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) released: usize,
    pub(crate) already_lost: usize,
    pub(crate) unreleased: usize,
}

impl Tally {
    /// Counts the first answer about a lease.
    pub(super) fn count(&mut self, was_released: bool) {
        self.unreleased -= 1;
        if was_released {
            self.released += 1
        } else {
            self.already_lost += 1
        }
    }
}
