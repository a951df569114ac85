//! A release that is repeated until it has certainly run, and the report of its outcome. No I/O.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crossbeam_channel::Sender;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::protocol::answer::{Answer, KeyState};
use crate::protocol::keys::Keys;
use crate::protocol::primitive::Primitive;
use crate::protocol::verb::Verb;
use crate::redis::{Majority, ServerVotes, Verdict, Vote, Votes};
use crate::sync::Mutex;

/// A release that the engine sends, and repeats until it has certainly run.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) keys: Arc<dyn Primitive>,
    pub(crate) id: HolderId,
    /// When the release ends: the key has expired, or the caller no longer waits.
    pub(crate) until: Instant,
    /// The acquire may run after this release: a missing key then proves nothing.
    pub(crate) may_precede_acquire: bool,
    /// It was sent before: this is a repetition.
    pub(crate) was_sent: bool,
    /// A try without a reply may have removed the key.
    pub(crate) may_have_run: bool,
    /// It may end a lease. False for a place in a queue, and for a lease that has certainly ended.
    pub(crate) may_end_lease: bool,
    /// How each server of a quorum answered the acquire. A server that has not answered yet may run
    /// the acquire after the release.
    pub(crate) votes: Option<Arc<ServerVotes>>,
    /// The mark of an undo, or of a release that got no reply; dropped at the first answer. Until
    /// then Redis may refuse the lock to this client because of this lease.
    pub(crate) unanswered: Option<Arc<()>>,
    /// Counts the first answers of the servers, for a caller that waits for them.
    pub(crate) report: Option<Arc<ReleaseReport>>,
    /// `Unconfirmed` leaves it out: if it gets no answer, the caller that waits for `report` counts
    /// it or repeats it.
    pub(crate) is_counted: bool,
}

/// Counts what the servers found at a release, and sends the outcome to the caller.
#[derive(Debug)]
pub(crate) struct ReleaseReport {
    /// The votes and the caller. `None` after the outcome was sent.
    open: Mutex<Option<(Votes, Sender<KeyState>)>>,
}

impl ReleaseReport {
    pub(crate) fn new(size: Majority, sender: Sender<KeyState>) -> Self {
        let votes = Votes::new(Verb::Release { counts: false }, size);
        Self {
            open: Mutex::new(Some((votes, sender))),
        }
    }

    /// Records what one server found. Sends the outcome once it is decided.
    pub(crate) fn found(&self, found: KeyState) {
        let mut slot = self.open.lock();
        let Some((votes, _)) = slot.as_mut() else {
            return;
        };
        votes.count(Some(match found {
            KeyState::Ours => Answer::Ours(None),
            KeyState::Gone => Answer::Gone,
            KeyState::Foreign => Answer::Foreign(Vec::new()),
        }));
        if let Verdict::Decided(answer) = votes.verdict()
            && let (Some((_, sender)), Some(found)) = (slot.take(), answer.key_state())
        {
            // The caller may have timed out.
            let _ = sender.send(found);
        }
    }
}

impl Release {
    /// Returns the undo of an acquire that may still run.
    pub(crate) fn undo(keys: Arc<dyn Primitive>, id: HolderId, until: Instant) -> Self {
        Self {
            may_precede_acquire: true,
            ..Self::new(keys, id, until)
        }
    }

    /// Returns the release of what an acquire has taken. Any reply ends it.
    pub(crate) fn new(keys: Arc<dyn Primitive>, id: HolderId, until: Instant) -> Self {
        Self {
            keys,
            id,
            until,
            may_precede_acquire: false,
            was_sent: false,
            may_have_run: false,
            may_end_lease: true,
            votes: None,
            unanswered: None,
            report: None,
            is_counted: false,
        }
    }

    /// Returns the release of a place in a queue.
    pub(crate) fn of_place(keys: Arc<dyn Primitive>, id: HolderId, until: Instant) -> Self {
        Self {
            may_end_lease: false,
            ..Self::new(keys, id, until)
        }
    }

    /// Returns the same release for a part of the keys.
    pub(crate) fn part(&self, keys: &Arc<dyn Primitive>) -> Self {
        Self {
            keys: Arc::clone(keys),
            ..self.clone()
        }
    }

    /// Returns the same release for one server of a quorum.
    ///
    /// Must be called before the release is sent: an acquire whose reply comes later may have run
    /// after it.
    pub(crate) fn at_server(mut self, index: usize) -> Self {
        let votes = self.votes.take();
        self.may_precede_acquire |= votes.is_some_and(|votes| votes.vote(index) == Vote::Asked);
        self
    }
}

/// The leases whose release some servers had not confirmed when the threads ended, each with the
/// number of these servers.
#[derive(Debug, Default)]
pub(crate) struct Unconfirmed(Mutex<HashMap<HolderId, usize>>);

impl Unconfirmed {
    /// Records a lease that this number of `servers` may still have.
    pub(crate) fn note(&self, id: HolderId, servers: usize) {
        *self.0.lock().entry(id).or_default() += servers;
    }

    /// Returns how many leases may still be held: too few servers of a deployment of this `size`
    /// have released them.
    pub(crate) fn count(&self, size: Majority) -> usize {
        let servers = self.0.lock();
        let held = servers
            .values()
            .filter(|held| size.all < **held + size.needed);
        held.count()
    }
}

/// The recent releases, to be repeated if another server becomes the master.
///
/// A new master may have replicated these leases without their releases.
#[derive(Debug, Default)]
pub(crate) struct RecentReleases {
    last: VecDeque<Release>,
    /// The number of names in all of them.
    names: usize,
    /// How often they were taken.
    taken: u64,
}

impl RecentReleases {
    /// The most names kept, unless the last release alone has more: enough for the seconds in which
    /// two servers are masters. Older releases were replicated, or their keys have expired.
    const MOST: usize = 4096;

    /// Returns how often the releases were taken, for [`note`](Self::note).
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Keeps a release. Returns it if the others were taken since it began, when there had been
    /// `taken`: the old master may have answered it, and it must be repeated at once.
    pub(crate) fn note(&mut self, release: Release, taken: u64) -> Option<Release> {
        if self.taken != taken {
            return Some(release);
        }
        self.names += release.keys.names.len();
        self.last.push_back(release);
        while self.names > Self::MOST
            && self.last.len() > 1
            && let Some(oldest) = self.last.pop_front()
        {
            self.names -= oldest.keys.names.len();
        }
        None
    }

    pub(crate) fn take(&mut self, is_moved: impl Fn(&Keys) -> bool) -> Vec<Release> {
        self.taken += 1;
        let (moved, rest) = std::mem::take(&mut self.last)
            .into_iter()
            .partition::<Vec<_>, _>(|release| is_moved(&release.keys));
        self.names = rest.iter().map(|release| release.keys.names.len()).sum();
        self.last = rest.into();
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Name;
    use crate::protocol::all::MutexAllKeys;
    use crate::protocol::keys::Layout;
    use crate::protocol::mutex::MutexKeys;
    use std::time::Duration;

    fn parts() -> (Arc<dyn Primitive>, HolderId, Instant) {
        let keys = Keys::new("a".into(), "lock:", "lock_release:");
        (
            MutexKeys::of(keys),
            HolderId::fresh("o"),
            Instant::START.after(Duration::from_secs(10)),
        )
    }

    #[test]
    fn release_may_overtake_an_acquire_without_a_reply() {
        let (keys, id, until) = parts();
        let votes = Arc::new(ServerVotes::new(2, HolderId::fresh("x")));
        votes.note(0, Vote::Granted);
        votes.note(1, Vote::Asked);
        let release = Release {
            votes: Some(Arc::clone(&votes)),
            ..Release::new(keys, id, until)
        };
        let (answered, unanswered) = (release.clone().at_server(0), release.at_server(1));
        votes.note(1, Vote::Granted);
        assert!(!answered.may_precede_acquire && unanswered.may_precede_acquire);
    }

    #[test]
    fn lease_on_a_minority_of_servers_is_released() {
        let unconfirmed = Unconfirmed::default();
        let [one, two] = [(); 2].map(|()| HolderId::fresh("o"));
        unconfirmed.note(one, 1);
        unconfirmed.note(two.clone(), 1);
        unconfirmed.note(two, 1);
        assert_eq!(unconfirmed.count(Majority::of(3)), 1);
        assert_eq!(unconfirmed.count(Majority::of(1)), 2);
    }

    #[test]
    fn latest_releases_are_kept() {
        let (keys, id, until) = parts();
        let mut released = RecentReleases::default();
        for _ in 0..=RecentReleases::MOST {
            let taken = released.taken();
            released.note(Release::new(Arc::clone(&keys), id.clone(), until), taken);
        }
        assert_eq!(released.take(|_| true).len(), RecentReleases::MOST);
        assert!(released.take(|_| true).is_empty());
        let names = ["a", "b"].map(Name::from).to_vec();
        let two = MutexAllKeys::of(names, "lock:", "r:", Layout::OneServer, true);
        for keys in [&two, &two, &keys] {
            let taken = released.taken();
            released.note(Release::new(Arc::clone(keys), id.clone(), until), taken);
        }
        assert_eq!(released.names, 5);
        assert_eq!(released.take(|keys| keys.names.len() > 1).len(), 2);
        assert_eq!(released.names, 1);
    }

    #[test]
    fn latest_release_is_kept_however_many_names_it_has() {
        let (_, id, until) = parts();
        let names = (0..=RecentReleases::MOST).map(|n| Name::from(n.to_string().as_str()));
        let layout = Layout::OneServer;
        let many = MutexAllKeys::of(names.collect(), "lock:", "r:", layout, true);
        let mut released = RecentReleases::default();
        released.note(Release::new(many, id, until), 0);
        assert_eq!(released.take(|_| true).len(), 1);
    }

    /// It was sent to the old master before the client knew of the new one.
    #[test]
    fn release_that_is_answered_after_the_master_has_moved_is_repeated() {
        let (keys, id, until) = parts();
        let mut released = RecentReleases::default();
        let began = released.taken();
        assert!(released.take(|_| true).is_empty());
        let release = Release::new(keys, id, until);
        assert!(released.note(release.clone(), began).is_some());
        let began = released.taken();
        assert!(released.note(release, began).is_none());
    }
}
