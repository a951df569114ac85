//! The queue of one name: the waiting calls of this client in FIFO order. No I/O.
//!
//! The positions of a waiter (see [`Position`]):
//!
//! ```text
//!         join
//!           |
//!           v
//!         Behind --- becomes the first, or the contender ---+
//!                                                           v
//!    HeldLocally <--- this client acquires the name --- Contend --- granted ---> leaves, holds it
//!       |   |                                             ^  ^
//!       |   +--- ends, is shared, or a retry is due ------+  |
//!       |                                                 |  |
//!       +--- ends after a run of hand-offs ---> Yield ----+  |
//!       |                    (1 ms, or the release message)  |
//!       |                                                    |
//!       +--- handed off to the first ---> HandedOff          |
//!                                           |  |             |
//!         leaves, holds it <--- taken ------+  +-- lost -----+
//!
//!  A waiter may leave from any position. A lease handed to it then goes to the next one.
//! ```

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::holder_id::HolderId;
use crate::lease::handoff::NoHandoff;
use crate::lease::held::{HeldLease, Holding};
use crate::parker::Parker;
use crate::queue::answers::Answers;
use crate::queue::held_leases::HeldLeases;
use crate::queue::position::Position;
use crate::token::FencingToken;

#[derive(Debug, Default)]
pub(super) struct LocalQueue {
    /// The leases under which this client holds the name.
    pub(super) held: HeldLeases,
    /// The last lease that ended here, if its release was confirmed. Its release message must not
    /// wake the contender again.
    released: Option<HolderId>,
    /// Recent release messages, each with the servers that have sent it.
    pub(super) announcements: VecDeque<PartialAnnouncement>,
    pub(super) waiters: VecDeque<Waiter>,
    /// The number of waiters that share a place in Redis.
    sharing_count: usize,
    next: u64,
    /// `None` until something is recorded: there may be many names, and most have no waiters.
    answers: Option<Box<Answers>>,
    pub(super) fleet_yield: FleetYield,
}

/// Whether a waiter must let other clients go first after a run of hand-offs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FleetYield {
    #[default]
    None,
    Due,
    /// A waiter has begun to yield.
    Begun,
}

/// The server that sent a message, and how many servers must send it before it counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announcer {
    pub(crate) server: usize,
    pub(crate) needed: usize,
}

/// A message, by its hash, and the servers that have sent it, one bit each.
#[derive(Debug)]
pub(super) struct PartialAnnouncement {
    payload: u64,
    by: u64,
}

/// The most messages kept for a name.
///
/// If a message is evicted, a waiter may sleep until the backstop.
pub(super) const MAX_PARTIAL_ANNOUNCEMENTS: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Waiter {
    id: u64,
    /// Created when the waiter first sleeps; most never do.
    pub(super) parker: Option<Parker>,
    /// Woken before `parker` was created.
    pub(super) woken_early: bool,
    /// Try Redis even if this client holds the name.
    must_try: bool,
    /// The waiter uses `WaitPolicy::Wake`.
    wakes_on_release: bool,
    /// The waiter shares a place in Redis with other calls of this client.
    shares_place: bool,
    /// The terms under which a lease may be handed to it; `None` if it takes no hand-off.
    handoff_terms: Option<LeaseTerms>,
    /// The lease that was handed to it, until the waiter takes it.
    pub(super) handed: Option<HandedOff>,
}

/// A lease that was handed off, and the token of its new holder.
#[derive(Debug)]
pub(crate) struct HandedOff {
    pub(crate) hold: Arc<HeldLease>,
    pub(crate) token: FencingToken,
}

impl Waiter {
    pub(super) fn wake(&mut self) {
        match &self.parker {
            // Called under the lock that the waiter takes next. On two processors, a wake-up
            // outside of it makes a hand-off through Redis a tenth slower: the waiter starts on the
            // other processor while this thread still runs, and the server has to wait for both.
            Some(parker) => parker.unpark(),
            None => self.woken_early = true,
        }
    }
}

impl LocalQueue {
    /// Returns the empty queue of a name that this many leases can hold at a time.
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self {
            held: HeldLeases::with_capacity(capacity),
            ..Self::default()
        }
    }

    pub(super) fn answers(&self) -> Answers {
        self.answers.as_deref().cloned().unwrap_or_default()
    }

    pub(super) fn answers_mut(&mut self) -> &mut Answers {
        self.answers.get_or_insert_default()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.waiters.is_empty()
    }

    /// Records a message; returns whether enough servers have now sent it.
    fn completes_announcement(&mut self, payload: &[u8], announcer: Announcer) -> bool {
        if announcer.needed <= 1 {
            return true;
        }
        let mut hasher = DefaultHasher::new();
        hasher.write(payload);
        let payload = hasher.finish();
        let bit = 1 << (announcer.server % 64);
        let mut announcements = self.announcements.iter_mut();
        if let Some(announcement) =
            announcements.find(|announcement| announcement.payload == payload)
        {
            let is_new = announcement.by & bit == 0;
            announcement.by |= bit;
            return is_new && announcement.by.count_ones() as usize == announcer.needed;
        }
        if self.announcements.len() == MAX_PARTIAL_ANNOUNCEMENTS {
            self.announcements.pop_front();
        }
        self.announcements
            .push_back(PartialAnnouncement { payload, by: bit });
        false
    }

    /// The index of the contender.
    fn contender(&self) -> usize {
        let mut waiters = self.waiters.iter();
        waiters
            .position(|waiter| waiter.wakes_on_release)
            .unwrap_or(0)
    }

    /// The indices of the first waiter and of the contender among those that share a place in
    /// Redis. Some may not share one: a call for a set in several slots waits in no queue in Redis.
    fn active_for_place(&self) -> Option<[usize; 2]> {
        // Without a search: in a quorum nobody shares a place, and the queue may be long.
        if !self.anybody_shares_place() {
            return None;
        }
        let sharing = || {
            self.waiters
                .iter()
                .enumerate()
                .filter(|(_, it)| it.shares_place)
        };
        let (first, _) = sharing().next()?;
        let contender = sharing().find(|(_, waiter)| waiter.wakes_on_release);
        Some([first, contender.map_or(first, |(n, _)| n)])
    }

    /// Records that a waiter shares a place in Redis with other calls of this client.
    pub(super) fn share_place(&mut self, id: u64) {
        if let Some(waiter) = self.waiter(id)
            && !std::mem::replace(&mut waiter.shares_place, true)
        {
            self.sharing_count += 1;
        }
    }

    /// Returns whether any waiter shares a place in Redis.
    pub(super) fn anybody_shares_place(&self) -> bool {
        self.sharing_count > 0
    }

    /// Returns whether a waiter other than this one shares a place in Redis.
    pub(super) fn others_share_place(&self, id: u64) -> bool {
        let shares_itself = || {
            let mut waiters = self.waiters.iter();
            waiters.any(|waiter| waiter.id == id && waiter.shares_place)
        };
        self.sharing_count > 1 || self.sharing_count == 1 && !shares_itself()
    }

    /// Returns whether the contender shares a place in Redis with other calls of this client.
    pub(super) fn contender_shares_place(&self) -> bool {
        let contender = self.waiters.get(self.contender());
        contender.is_some_and(|waiter| waiter.shares_place)
    }

    /// The indices of the waiters that send commands to Redis.
    fn active(&self) -> [usize; 4] {
        let contender = self.contender();
        let [first_sharing, contender_sharing] = self.active_for_place().unwrap_or([0, contender]);
        [0, contender, first_sharing, contender_sharing]
    }

    fn wake(&mut self, n: usize, must_try: bool) {
        if let Some(waiter) = self.waiters.get_mut(n) {
            waiter.must_try |= must_try;
            waiter.wake();
        }
    }

    pub(super) fn wake_active(&mut self) {
        for n in self.active() {
            self.wake(n, false);
        }
    }

    /// Adds a waiter at the end; returns its number.
    ///
    /// A lease may be handed to it under `handoff_terms`. Releases wake it if `wakes_on_release`.
    pub(super) fn join(
        &mut self,
        handoff_terms: Option<LeaseTerms>,
        wakes_on_release: bool,
    ) -> u64 {
        let id = self.next;
        self.next += 1;
        self.waiters.push_back(Waiter {
            id,
            wakes_on_release,
            handoff_terms,
            ..Waiter::default()
        });
        id
    }

    pub(super) fn waiter(&mut self, id: u64) -> Option<&mut Waiter> {
        self.waiters.iter_mut().find(|waiter| waiter.id == id)
    }

    fn remove(&mut self, n: usize) -> Option<Waiter> {
        let left = self.waiters.remove(n)?;
        self.sharing_count -= usize::from(left.shares_place);
        Some(left)
    }

    /// Removes a waiter, and wakes those that must send commands to Redis from now on.
    ///
    /// Returns a lease that was handed to the waiter.
    pub(super) fn leave(&mut self, id: u64) -> Option<HandedOff> {
        let id_at = |queue: &Self, n: usize| Some(queue.waiters.get(n)?.id);
        let before = self.active().map(|n| id_at(self, n));
        let n = self.waiters.iter().position(|waiter| waiter.id == id)?;
        let left = self.remove(n)?;
        // The waiter may have been woken and leaves without the name: pass the wake-up on, so that
        // the next one tries Redis even if this client then holds the name.
        let left_without = !self.held.is_full();
        for n in self.active() {
            if !before.contains(&id_at(self, n)) {
                self.wake(n, left_without);
            }
        }
        left.handed
    }

    /// Returns what the waiter must do; `must_try` asks for an attempt even if this client holds
    /// the name.
    pub(super) fn position(&mut self, id: u64, must_try: bool) -> Position {
        let (is_full, is_alone) = (self.held.is_full(), self.held.excludes(true).is_some());
        let is_own = |n: &usize| self.waiters.get(*n).is_some_and(|waiter| waiter.id == id);
        let n = self.active().into_iter().find(is_own);
        let Some(waiter) = n.and_then(|n| self.waiters.get_mut(n)) else {
            return Position::Behind;
        };
        if waiter.handed.is_some() {
            return Position::HandedOff;
        }
        // The readers of this client and of others can share the name without end. So while only
        // readers hold it here, a call that can have a place in Redis waits there.
        let waits_here = match waiter.shares_place {
            true => is_alone,
            false => is_full,
        };
        if !waits_here && self.fleet_yield == FleetYield::Due {
            self.fleet_yield = FleetYield::Begun;
            return Position::Yield;
        }
        let must_try = std::mem::take(&mut waiter.must_try) || must_try;
        if must_try || !waits_here {
            Position::Contend
        } else {
            Position::HeldLocally
        }
    }

    /// Hands `hold` off at `now` to the first waiter.
    ///
    /// Returns the [`Holding`] of the previous holder, and the parker to wake the waiter with.
    /// Only the holder with `token` can do so.
    pub(super) fn hand_off(
        &mut self,
        hold: &Arc<HeldLease>,
        token: FencingToken,
        has_renewed: bool,
        now: Instant,
    ) -> Result<(Holding, Option<Parker>), NoHandoff> {
        let first = self.waiters.front_mut().ok_or(NoHandoff::Release)?;
        let terms = match &first.handoff_terms {
            Some(terms) if first.handed.is_none() && self.held.contains(hold) => terms,
            _ => return Err(NoHandoff::Release),
        };
        let (token, before) = hold.hand_off(token, terms, has_renewed, now)?;
        first.handed = Some(HandedOff {
            hold: Arc::clone(hold),
            token,
        });
        first.woken_early |= first.parker.is_none();
        Ok((before, first.parker.clone()))
    }

    /// Takes the lease that was handed to the waiter, if one was, and removes the waiter.
    ///
    /// Returns the hand-off as an error if the lease was lost before the waiter woke.
    pub(super) fn take(
        &mut self,
        id: u64,
        now: Instant,
        max_hold: Duration,
        holding: impl FnOnce(FencingToken) -> Holding,
    ) -> Option<Result<Arc<HeldLease>, HandedOff>> {
        let first = self.waiters.front_mut().filter(|first| first.id == id)?;
        let handed = first.handed.take()?;
        if !handed.hold.take(holding(handed.token), now, max_hold) {
            return Some(Err(handed));
        }
        self.held.note_thread(&handed.hold.id);
        // The next waiter sleeps on: it can do nothing while this client holds the name, and the
        // end of that wakes it.
        self.remove(0);
        Some(Ok(handed.hold))
    }

    /// Records that this client now holds the name; returns the leases that this evicts;
    /// see `HeldLeases::insert`.
    pub(super) fn granted(
        &mut self,
        id: HolderId,
        hold: Weak<HeldLease>,
        is_shared: bool,
    ) -> Vec<Weak<HeldLease>> {
        self.fleet_yield = FleetYield::None;
        self.answers = None;
        let evicted = self.held.insert(id, hold, is_shared);
        if is_shared && !evicted.is_empty() {
            // The end of the evicted writer wakes nobody. Calls that waited for it without a place
            // can have one now.
            self.wake_active();
        }
        evicted
    }

    /// Records that the lease with this holder id shares the name from now on.
    pub(super) fn share(&mut self, id: &HolderId) {
        self.held.share(id);
        // Calls that waited for its end without a place can have one now.
        self.wake_active();
    }

    /// Records that a lease has ended, and wakes waiters to try Redis.
    pub(super) fn ended(&mut self, id: &HolderId, released: Option<Instant>) {
        if !self.held.remove(id) {
            return;
        }
        self.released = released.map(|_| id.clone());
        if let Some(now) = released
            && !self.waiters.is_empty()
        {
            // For the waiters here, the name counts as held by another call until now.
            self.answers_mut().refused(now, now, Some(Duration::ZERO));
        }
        self.wake_active();
    }

    /// Handles a release message about a lease that this client does not hold.
    pub(super) fn announced(&mut self, payload: &[u8], announcer: Announcer) {
        let released = self.released.as_ref();
        if self.held.is_full() {
            // The message is about an older lease.
        } else if released.is_some_and(|id| id.as_str().as_bytes() == payload) {
            // Its waiters were woken when this client recorded the end.
            if std::mem::take(&mut self.fleet_yield) == FleetYield::Begun {
                self.wake_active();
            }
        } else if self.completes_announcement(payload, announcer) {
            self.wake_contender();
        }
    }

    /// Wakes the contender to try Redis.
    pub(super) fn wake_contender(&mut self) {
        self.wake(self.contender(), true);
    }
}
