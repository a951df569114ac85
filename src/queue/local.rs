//! The local queue of each name: the waiting calls of this client in FIFO order. No I/O.
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
//!       |   +--- the lease ends, or a retry is due -------+  |
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

use std::cell::{Cell, OnceCell};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::holder::HolderId;
use crate::lease::handoff::HandoffDecision;
use crate::lease::held::{HeldLease, Holding};
use crate::name::{Name, NameTable};
use crate::queue::answers::Answers;
use crate::queue::fair::FairQueues;
use crate::queue::parker::Parker;
use crate::queue::position::{Position, Queue};
use crate::stats::Wake;
use crate::token::FencingToken;

/// The names that this client holds or waits for.
///
/// At most two waiters of a name send commands to Redis; often one waiter is both:
///
/// * the first in the queue,
/// * the contender: the first waiter that a release wakes, or the first in the queue if there is
///   none.
///
/// A waiter under [`WaitPolicy::Backoff`](crate::WaitPolicy) sleeps through its pauses, and must
/// not delay those behind it. All others sleep until they become one of the two.
///
/// Waking a busy waiter takes effect at its next sleep, so no wake-up is lost between an attempt
/// and the sleep after it.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    names: Mutex<NameTable<LocalQueue>>,
    /// The waiters for fair locks; each has its own place in the queue in Redis.
    pub(crate) fair_queues: FairQueues,
}

#[derive(Debug, Default)]
struct LocalQueue {
    /// The lease under which this client holds the name.
    held: Option<HeldName>,
    /// The thread that acquired it, for a warning in debug builds.
    holder: Option<std::thread::ThreadId>,
    /// The last lease released here while a call waited. Its own release message must not wake the
    /// contender again.
    released: Option<HolderId>,
    /// Release messages that fewer than the needed number of servers have sent, or just enough.
    announcements: VecDeque<PartialAnnouncement>,
    waiters: VecDeque<Waiter>,
    next: u64,
    /// `None` until the first note: most held names have no waiters, and there may be many names.
    answers: Option<Box<Answers>>,
    fleet_yield: FleetYield,
}

/// Whether the first waiter must let other clients go first after a run of hand-offs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FleetYield {
    #[default]
    None,
    Due,
    /// The first waiter is yielding now.
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
struct PartialAnnouncement {
    payload: u64,
    by: u64,
}

/// The most incomplete messages kept for a name.
///
/// If a message is evicted, a waiter may sleep until the backstop.
const MAX_PARTIAL_ANNOUNCEMENTS: usize = 64;

#[derive(Debug)]
struct HeldName {
    id: HolderId,
    /// Weak: the lease may own a user's closure, which must not be dropped under a lock.
    hold: Weak<HeldLease>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    /// Created when the waiter first sleeps; most never do.
    parker: Option<Parker>,
    /// Woken before `parker` was created.
    woken_early: bool,
    /// Why it was woken, until the waiter reads it.
    why: Option<Wake>,
    /// Try Redis even if this client holds the name.
    must_try: bool,
    /// The waiter uses `WaitPolicy::Wake`.
    wakes_on_release: bool,
    /// The terms under which a lease may be handed to it; `None` if it takes no hand-off.
    handoff_terms: Option<LeaseTerms>,
    /// The lease that was handed to it, until the waiter takes it.
    handed: Option<HandedOff>,
}

/// A lease that was handed off, and the token of its new holder.
#[derive(Debug)]
pub(crate) struct HandedOff {
    pub(crate) hold: Arc<HeldLease>,
    pub(crate) token: FencingToken,
}

/// The outcome of an attempt to hand a lease off.
pub(crate) enum HandOffOutcome {
    /// The lease has a new holder. Contains the share of the previous holder.
    Done(Holding),
    /// The lease must be renewed first.
    Renew,
    /// No waiter can take it, or it must not be handed off.
    Not,
}

/// The outcome of taking a lease that was handed off.
pub(crate) enum TakeOver {
    /// No lease was handed to this waiter.
    Nothing,
    Held(Arc<HeldLease>),
    /// The lease was lost before its waiter woke.
    Lost(HandedOff),
}

impl Waiter {
    fn wake(&mut self, why: Wake) {
        // A later, more specific reason replaces `Turn`.
        if self.why.is_none_or(|before| before == Wake::Turn) {
            self.why = Some(why);
        }
        match &self.parker {
            // Called under the lock that the waiter takes next. On two processors, a wake-up
            // outside of it makes a hand-off through Redis a tenth slower: the waiter starts on the
            // other processor beside this thread, and the server has to wait for both.
            Some(parker) => parker.unpark(),
            None => self.woken_early = true,
        }
    }
}

impl LocalQueue {
    fn answers_mut(&mut self) -> &mut Answers {
        self.answers.get_or_insert_default()
    }

    fn is_idle(&self) -> bool {
        self.held.is_none() && self.waiters.is_empty()
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
        if let Some(heard) = self
            .announcements
            .iter_mut()
            .find(|heard| heard.payload == payload)
        {
            let is_new = heard.by & bit == 0;
            heard.by |= bit;
            return is_new && heard.by.count_ones() as usize == announcer.needed;
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

    /// The indices of the waiters that send commands to Redis.
    fn active(&self) -> [usize; 2] {
        [0, self.contender()]
    }

    fn wake(&mut self, n: usize, must_try: bool, why: Wake) {
        if let Some(waiter) = self.waiters.get_mut(n) {
            waiter.must_try |= must_try;
            waiter.wake(why);
        }
    }

    fn wake_active(&mut self, why: Wake) {
        for n in self.active() {
            self.wake(n, false, why);
        }
    }

    /// Removes a waiter, and wakes those that must send commands to Redis from now on.
    fn remove(&mut self, n: usize) -> Option<Waiter> {
        let id = |queue: &Self, n| Some(queue.waiters.get(n)?.id);
        let before = self.active().map(|n| id(self, n));
        let waiter = self.waiters.remove(n);
        // The waiter may have been woken and leaves without the name: pass the wake-up on, so that
        // the next one tries Redis even if this client holds the name by then.
        let left_without = self.held.is_none();
        for n in self.active() {
            if !before.contains(&id(self, n)) {
                self.wake(n, left_without, Wake::Turn);
            }
        }
        waiter
    }
}

/// A waiter's place in the queue of a name; dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct QueueTicket<'a> {
    waiters: &'a Waiters,
    name: &'a Name,
    id: u64,
    parker: OnceCell<Parker>,
    has_left: Cell<bool>,
}

impl Waiters {
    /// Joins the end of the queue of `name`.
    ///
    /// A lease may be handed to the waiter under `handoff_terms`. Releases wake it if
    /// `wakes_on_release` is true.
    pub(crate) fn join<'a>(
        &'a self,
        name: &'a Name,
        handoff_terms: Option<LeaseTerms>,
        wakes_on_release: bool,
    ) -> QueueTicket<'a> {
        let mut names = self.names.lock();
        let queue = names.entry(name.clone()).or_default();
        let id = queue.next;
        queue.next += 1;
        queue.waiters.push_back(Waiter {
            id,
            parker: None,
            woken_early: false,
            why: None,
            must_try: false,
            wakes_on_release,
            handoff_terms,
            handed: None,
        });
        QueueTicket {
            waiters: self,
            name,
            id,
            parker: OnceCell::new(),
            has_left: Cell::new(false),
        }
    }

    /// Returns whether the calling thread acquired the lease that holds `name`.
    ///
    /// Always false in release builds, which do not record the thread.
    pub(crate) fn is_held_by_us(&self, name: &Name) -> bool {
        let names = self.names.lock();
        let queue = names.get(name).filter(|queue| queue.held.is_some());
        queue.is_some_and(|queue| queue.holder == Some(std::thread::current().id()))
    }

    /// Hands a lease off at `now` to the first waiter for its name.
    ///
    /// Only the holder with `token` can do so.
    pub(crate) fn hand_off(
        &self,
        hold: &Arc<HeldLease>,
        token: FencingToken,
        has_renewed: bool,
        now: Instant,
    ) -> HandOffOutcome {
        let mut names = self.names.lock();
        let Some(queue) = names.get_mut(hold.keys.key(0).name) else {
            return HandOffOutcome::Not;
        };
        let held = queue.held.as_ref();
        if held.is_none_or(|held| held.hold.as_ptr() != Arc::as_ptr(hold)) {
            return HandOffOutcome::Not;
        }
        let first = queue.waiters.front_mut();
        let Some(first) = first.filter(|first| first.handed.is_none()) else {
            return HandOffOutcome::Not;
        };
        let Some(terms) = &first.handoff_terms else {
            return HandOffOutcome::Not;
        };
        let (token, before) = match hold.hand_on(token, terms, has_renewed, now) {
            (HandoffDecision::HandOff(token), Some(before)) => (token, before),
            (HandoffDecision::Renew, _) => return HandOffOutcome::Renew,
            _ => return HandOffOutcome::Not,
        };
        first.handed = Some(HandedOff {
            hold: Arc::clone(hold),
            token,
        });
        match first.parker.clone() {
            Some(parker) => {
                // Outside the lock: the waiter needs no reply from Redis and continues at once.
                drop(names);
                parker.unpark();
            }
            None => first.woken_early = true,
        }
        HandOffOutcome::Done(before)
    }

    /// Returns whether any call waits for the name.
    pub(crate) fn anybody_for(&self, name: &Name) -> bool {
        let names = self.names.lock();
        names
            .get(name)
            .is_some_and(|queue| !queue.waiters.is_empty())
    }

    /// Returns the lease under which this client holds the name, if it does.
    pub(crate) fn holder(&self, name: &Name) -> Option<Arc<HeldLease>> {
        let hold = self.names.lock().get(name)?.held.as_ref()?.hold.clone();
        // Upgraded and dropped outside the lock: the lease may own a user's closure.
        hold.upgrade()
    }

    /// Records that this client now holds the names of `hold`.
    ///
    /// Returns the leases that held some of them and had no recorded end. Redis never grants a name
    /// that is held, so those leases are lost.
    pub(crate) fn granted(&self, hold: &Arc<HeldLease>) -> Vec<Weak<HeldLease>> {
        let names = hold.keys.names.iter();
        let before = names.filter_map(|name| self.held(name, &hold.id, Arc::downgrade(hold)));
        before.collect()
    }

    fn held(&self, name: &Name, id: &HolderId, hold: Weak<HeldLease>) -> Option<Weak<HeldLease>> {
        let mut names = self.names.lock();
        let queue = match names.get_mut(name) {
            Some(queue) => queue,
            None => names.entry(name.clone()).or_default(),
        };
        if cfg!(debug_assertions) {
            queue.holder = Some(std::thread::current().id());
        }
        let held = HeldName {
            id: id.clone(),
            hold,
        };
        queue.fleet_yield = FleetYield::None;
        queue.answers = None;
        queue.held.replace(held).map(|before| before.hold)
    }

    /// Makes other clients go first when `hold` ends, after a run of hand-offs.
    pub(crate) fn yield_to_fleet(&self, hold: &HeldLease) {
        if let Some(queue) = self.names.lock().get_mut(hold.keys.key(0).name) {
            queue.fleet_yield = FleetYield::Due;
        }
    }

    /// Records that a lease has ended, and wakes waiters of each of its names to try Redis.
    pub(crate) fn ended(&self, hold: &HeldLease, released: bool) {
        for name in hold.keys.names.iter() {
            self.ended_one(name, &hold.id, released);
        }
    }

    fn ended_one(&self, name: &Name, id: &HolderId, released: bool) {
        let mut names = self.names.lock();
        let Some(queue) = names.get_mut(name) else {
            return;
        };
        if queue.held.as_ref().is_some_and(|held| held.id == *id) {
            queue.held = None;
            queue.released = released.then(|| id.clone());
            if released && !queue.waiters.is_empty() {
                // For the waiters here, the name counts as held by another call until now.
                queue
                    .answers_mut()
                    .refused(Instant::now(), Some(Duration::ZERO));
            }
            queue.wake_active(Wake::Local);
        }
        if queue.is_idle() {
            names.remove(name);
        }
    }

    /// Handles a release message.
    ///
    /// Returns the lease if the message names one that this client still holds: the lease may be
    /// lost, so Redis must be asked about it.
    pub(crate) fn announced(
        &self,
        name: &Name,
        payload: &[u8],
        announcer: Announcer,
    ) -> Option<Weak<HeldLease>> {
        // The release of a fair lock is announced only if no call was granted it, so the lock is
        // free.
        self.fair_queues.refresh_now(name, Wake::Message);
        let mut names = self.names.lock();
        let queue = names.get_mut(name)?;
        let is = |id: &HolderId| id.as_str().as_bytes() == payload;
        match &queue.held {
            Some(held) => is(&held.id).then(|| held.hold.clone()),
            // Its waiters were woken when this client recorded the end.
            None if queue.released.as_ref().is_some_and(is) => {
                if std::mem::take(&mut queue.fleet_yield) == FleetYield::Begun {
                    queue.wake_active(Wake::Turn);
                }
                None
            }
            None => {
                if queue.completes_announcement(payload, announcer) {
                    queue.wake(queue.contender(), true, Wake::Message);
                }
                None
            }
        }
    }

    /// Wakes the contender of the name to try Redis, since its subscription is now live.
    pub(crate) fn wake_to_retry(&self, name: &Name, why: Wake) {
        self.fair_queues.refresh_now(name, why);
        if let Some(queue) = self.names.lock().get_mut(name) {
            queue.wake(queue.contender(), true, why);
        }
    }

    /// Returns the names that any call waits for.
    pub(crate) fn waiting(&self) -> Vec<Name> {
        let mut waiting = self.fair_queues.names();
        let names = self.names.lock();
        let plain = names.iter().filter(|(_, queue)| !queue.waiters.is_empty());
        waiting.extend(plain.map(|(name, _)| name.clone()));
        waiting
    }

    /// Returns whether any call waits.
    pub(crate) fn anybody(&self) -> bool {
        let names = self.names.lock();
        names.values().any(|queue| !queue.waiters.is_empty()) || self.fair_queues.anybody()
    }

    /// Returns whether no name has an entry.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.names.lock().is_empty()
    }

    /// Wakes all waiters; returns how many.
    pub(crate) fn wake_all(&self) -> usize {
        let fair = self.fair_queues.wake_all();
        let mut names = self.names.lock();
        let waiters = names.values_mut().flat_map(|queue| &mut queue.waiters);
        waiters.map(|waiter| waiter.wake(Wake::Turn)).count() + fair
    }

    /// Returns how many names this client holds, and how many of its calls sleep for a name.
    pub(crate) fn count(&self) -> (u64, u64) {
        let names = self.names.lock();
        let held = names.values().filter(|queue| queue.held.is_some());
        let waiters = names.values().flat_map(|queue| &queue.waiters);
        let asleep = waiters.filter(|waiter| waiter.parker.is_some());
        let asleep = asleep.count() + self.fair_queues.count();
        (held.count() as u64, asleep as u64)
    }
}

impl QueueTicket<'_> {
    fn with_queue<T>(&self, act: impl FnOnce(&mut LocalQueue) -> T) -> T {
        let mut names = self.waiters.names.lock();
        // The waiter keeps the queue in the table until the ticket is dropped.
        act(names
            .get_mut(self.name)
            .expect("a queue with a waiter in it"))
    }

    /// Takes the lease that was handed to the waiter, and leaves the queue with it.
    pub(crate) fn take(
        &self,
        now: Instant,
        max_hold: Duration,
        holding: impl FnOnce(FencingToken) -> Holding,
    ) -> TakeOver {
        let mut names = self.waiters.names.lock();
        let Some(queue) = names.get_mut(self.name) else {
            return TakeOver::Nothing;
        };
        let first = queue.waiters.front_mut();
        let Some(first) = first.filter(|first| first.id == self.id) else {
            return TakeOver::Nothing;
        };
        let Some(handed) = first.handed.take() else {
            return TakeOver::Nothing;
        };
        if !handed.hold.take(holding(handed.token), now, max_hold) {
            return TakeOver::Lost(handed);
        }
        // The next waiter sleeps on: it can do nothing while this client holds the name, and the
        // end of that wakes it.
        let waiter = queue.waiters.pop_front();
        if cfg!(debug_assertions) {
            queue.holder = Some(std::thread::current().id());
        }
        drop(names);
        drop(waiter);
        self.has_left.set(true);
        TakeOver::Held(handed.hold)
    }

    /// Leaves the queue.
    ///
    /// Returns a lease that was handed to the waiter; the caller must pass it on.
    pub(crate) fn leave(&self) -> Option<HandedOff> {
        if self.has_left.replace(true) {
            return None;
        }
        let mut names = self.waiters.names.lock();
        let queue = names.get_mut(self.name)?;
        let n = queue
            .waiters
            .iter()
            .position(|waiter| waiter.id == self.id)?;
        let waiter = queue.remove(n);
        if queue.is_idle() {
            names.remove(self.name);
        }
        drop(names);
        waiter?.handed
    }
}

impl Queue for QueueTicket<'_> {
    fn position(&self, _now: Instant, must_try: bool) -> Position {
        self.with_queue(|queue| {
            let held = queue.held.is_some();
            let is_own = |n: &usize| {
                queue
                    .waiters
                    .get(*n)
                    .is_some_and(|waiter| waiter.id == self.id)
            };
            let Some(n) = queue.active().into_iter().find(is_own) else {
                return Position::Behind;
            };
            let Some(waiter) = queue.waiters.get_mut(n) else {
                return Position::Behind;
            };
            if waiter.handed.is_some() {
                return Position::HandedOff;
            }
            if !held && queue.fleet_yield == FleetYield::Due {
                queue.fleet_yield = FleetYield::Begun;
                return Position::Yield;
            }
            let must_try = std::mem::take(&mut waiter.must_try) || must_try;
            if must_try || !held {
                Position::Contend
            } else {
                Position::HeldLocally
            }
        })
    }

    fn parker(&self) -> &Parker {
        self.parker.get_or_init(|| {
            let parker = Parker::new();
            self.with_queue(|queue| {
                let waiter = queue.waiters.iter_mut().find(|waiter| waiter.id == self.id);
                if let Some(waiter) = waiter {
                    let woken_early = std::mem::take(&mut waiter.woken_early);
                    waiter.parker = Some(parker.clone());
                    if woken_early {
                        waiter.wake(Wake::Turn);
                    }
                }
            });
            parker
        })
    }

    fn take_wake(&self) -> Option<Wake> {
        self.with_queue(|queue| {
            let mut waiters = queue.waiters.iter_mut();
            waiters.find(|waiter| waiter.id == self.id)?.why.take()
        })
    }

    fn about_to_try(&self, now: Instant) -> bool {
        self.with_queue(|queue| {
            let others_wait = queue.waiters.len() > 1;
            if others_wait {
                // For the others: this waiter is busy until its reply arrives.
                queue.answers_mut().asked(now);
            }
            others_wait
        })
    }

    fn answers(&self) -> Answers {
        self.with_queue(|queue| queue.answers.as_deref().copied().unwrap_or_default())
    }

    fn update_answers(&self, act: &mut dyn FnMut(&mut Answers)) {
        self.with_queue(|queue| act(queue.answers_mut()));
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::answers::Span;

    const NOW: Instant = Instant::START;

    const ALONE: Announcer = Announcer {
        server: 0,
        needed: 1,
    };

    fn is_woken(ticket: &QueueTicket<'_>) -> bool {
        ticket.parker().is_unparked()
    }

    #[test]
    fn the_next_waiter_contends_after_the_first_leaves_and_the_lease_ends() {
        let (waiters, name, id) = (Waiters::default(), Name::from("a"), HolderId::fresh("o"));
        let first = waiters.join(&name, None, true);
        let second = waiters.join(&name, None, true);
        assert_eq!(first.position(NOW, false), Position::Contend);
        assert_eq!(second.position(NOW, true), Position::Behind);
        waiters.held(&name, &id, Weak::new());
        drop(first);
        assert!(is_woken(&second));
        assert_eq!(second.position(NOW, false), Position::HeldLocally);
        assert_eq!(second.position(NOW, true), Position::Contend);
        waiters.ended_one(&name, &id, true);
        assert!(is_woken(&second));
        assert_eq!(second.position(NOW, false), Position::Contend);
        drop(second);
        assert!(waiters.names.lock().is_empty());
    }

    /// Returns a queue with one waiter for each item, under `Wake` if true and `Backoff` if false.
    fn queue<'a, const N: usize>(
        waiters: &'a Waiters,
        name: &'a Name,
        wakes_on_release: [bool; N],
    ) -> [QueueTicket<'a>; N] {
        wakes_on_release.map(|wakes| waiters.join(name, None, wakes))
    }

    #[test]
    fn the_first_waiter_under_wake_contends_behind_waiters_under_backoff() {
        let (waiters, name, id) = (Waiters::default(), Name::from("a"), HolderId::fresh("o"));
        let [first, backs_off, contender, next] =
            queue(&waiters, &name, [false, false, true, true]);
        let turns =
            || [&first, &backs_off, &contender, &next].map(|ticket| ticket.position(NOW, false));
        let woken_now = || [&first, &backs_off, &contender, &next].map(is_woken);
        use Position::{Behind, Contend, HeldLocally};
        assert_eq!(turns(), [Contend, Behind, Contend, Behind]);
        waiters.announced(&name, b"foreign", ALONE);
        assert_eq!(woken_now(), [false, false, true, false]);
        waiters.wake_to_retry(&name, Wake::Reconnect);
        assert_eq!(woken_now(), [false, false, true, false]);
        waiters.held(&name, &id, Weak::new());
        turns();
        assert_eq!(turns(), [HeldLocally, Behind, HeldLocally, Behind]);
        waiters.ended_one(&name, &id, true);
        assert_eq!(woken_now(), [true, false, true, false]);
    }

    #[test]
    fn a_waiter_that_becomes_first_or_contender_is_woken() {
        let (waiters, name) = (Waiters::default(), Name::from("a"));
        let [first, second, contender, next] = queue(&waiters, &name, [false, false, true, true]);
        drop(contender);
        assert_eq!([&first, &second, &next].map(is_woken), [false, false, true]);
        drop(first);
        assert_eq!([&second, &next].map(is_woken), [true, false]);
        assert_eq!(next.position(NOW, false), Position::Contend);
        drop(next);
        assert!(!is_woken(&second), "it was active before");
        let joins = waiters.join(&name, None, true);
        assert_eq!(joins.position(NOW, false), Position::Contend);
        drop(second);
        assert!(!is_woken(&joins), "it was active before");
    }

    #[test]
    fn a_release_wakes_one_waiter() {
        let (waiters, name, id) = (Waiters::default(), Name::from("a"), HolderId::fresh("o"));
        waiters.held(&name, &id, Weak::new());
        let tickets: Vec<_> = (0..3).map(|_| waiters.join(&name, None, true)).collect();
        waiters.ended_one(&name, &id, true);
        assert_eq!(tickets.iter().filter(|ticket| is_woken(ticket)).count(), 1);
    }

    #[test]
    fn a_contender_that_leaves_passes_its_wake_up_on() {
        let (waiters, name) = (Waiters::default(), Name::from("a"));
        let first = waiters.join(&name, None, true);
        let second = waiters.join(&name, None, true);
        assert!(waiters.announced(&name, b"foreign", ALONE).is_none());
        drop(first);
        assert!(is_woken(&second));
        waiters.held(&name, &HolderId::fresh("o"), Weak::new());
        assert_eq!(
            second.position(NOW, false),
            Position::Contend,
            "even though the name is held"
        );
        assert_eq!(second.position(NOW, false), Position::HeldLocally, "once");
    }

    #[test]
    fn a_release_message_wakes_the_contender_once_and_unless_the_name_is_held() {
        let (waiters, name) = (Waiters::default(), Name::from("a"));
        let (ours, next) = (HolderId::fresh("o"), HolderId::fresh("o"));
        let first = waiters.join(&name, None, true);
        waiters.held(&name, &ours, Weak::new());
        assert!(
            waiters
                .announced(&name, ours.as_str().as_bytes(), ALONE)
                .is_some()
        );
        assert!(waiters.announced(&name, b"older", ALONE).is_none());
        assert!(!is_woken(&first), "an older lease, ended before ours began");
        waiters.ended_one(&name, &ours, true);
        assert!(is_woken(&first));
        assert!(
            waiters
                .announced(&name, ours.as_str().as_bytes(), ALONE)
                .is_none()
        );
        assert!(
            !is_woken(&first),
            "it was woken when the release was confirmed"
        );
        assert!(
            waiters
                .announced(&name, next.as_str().as_bytes(), ALONE)
                .is_none()
        );
        assert!(is_woken(&first));
        assert!(waiters.announced(&Name::from("b"), b"x", ALONE).is_none());
    }

    #[test]
    fn a_release_counts_once_a_majority_has_announced_it() {
        let (waiters, name) = (Waiters::default(), Name::from("a"));
        let first = waiters.join(&name, None, true);
        let by = |server, payload: &[u8]| {
            waiters.announced(&name, payload, Announcer { server, needed: 2 });
            is_woken(&first)
        };
        assert!(!by(0, b"x"));
        assert!(!by(0, b"x"), "the same server again");
        assert!(!by(1, b"y"), "another lease");
        assert!(by(2, b"x"));
        assert!(!by(1, b"x"), "it has counted already");
        for n in 0..MAX_PARTIAL_ANNOUNCEMENTS {
            by(0, &n.to_le_bytes());
        }
        let queue = &waiters.names.lock()[&name];
        assert_eq!(queue.announcements.len(), MAX_PARTIAL_ANNOUNCEMENTS);
    }

    #[test]
    fn after_a_run_of_hand_offs_the_first_waiter_yields_until_the_release_message() {
        let (waiters, name, id) = (Waiters::default(), Name::from("a"), HolderId::fresh("o"));
        let heard = || waiters.announced(&name, id.as_str().as_bytes(), ALONE);
        let ends = || {
            waiters.held(&name, &id, Weak::new());
            waiters.names.lock().get_mut(&name).unwrap().fleet_yield = FleetYield::Due;
            waiters.ended_one(&name, &id, true);
        };
        let first = waiters.join(&name, None, true);
        ends();
        assert!(is_woken(&first));
        assert_eq!(first.position(NOW, false), Position::Yield);
        assert!(!is_woken(&first));
        heard();
        assert!(is_woken(&first));
        assert_eq!(first.position(NOW, false), Position::Contend);

        ends();
        heard();
        assert!(is_woken(&first));
        assert_eq!(
            first.position(NOW, false),
            Position::Contend,
            "the message came before the yield"
        );

        ends();
        assert_eq!(first.position(NOW, false), Position::Yield);
        assert_eq!(first.position(NOW, false), Position::Contend, "once");
    }

    #[test]
    fn the_end_of_an_older_lease_changes_nothing() {
        let (waiters, name) = (Waiters::default(), Name::from("a"));
        let (older, newer) = (HolderId::fresh("o"), HolderId::fresh("o"));
        assert!(waiters.held(&name, &older, Weak::new()).is_none());
        assert!(waiters.held(&name, &newer, Weak::new()).is_some(), "lost");
        waiters.ended_one(&name, &older, true);
        assert!(
            waiters
                .announced(&name, newer.as_str().as_bytes(), ALONE)
                .is_some(),
            "held"
        );
    }

    #[test]
    fn a_refusal_counts_for_every_waiter_that_had_joined_by_then() {
        let (waiters, name, id) = (Waiters::default(), Name::from("a"), HolderId::fresh("o"));
        let first = waiters.join(&name, None, true);
        assert!(!first.about_to_try(NOW));
        let second = waiters.join(&name, None, true);
        assert!(first.about_to_try(NOW));
        let since = |start: Instant| Span {
            start,
            deadline: start.after(Duration::from_secs(60)),
            last_reply_took: Duration::ZERO,
        };
        let at = Instant::now();
        first.update_answers(&mut |answers| answers.refused(at, Some(Duration::ZERO)));
        assert!(second.answers().is_taken(since(at)));
        assert!(
            !second
                .answers()
                .is_taken(since(at.after(Duration::from_nanos(1))))
        );
        waiters.held(&name, &id, Weak::new());
        assert!(!second.answers().is_taken(since(at)));
        waiters.ended_one(&name, &id, false);
        assert!(
            !second.answers().is_taken(since(at)),
            "its end is not certain"
        );
        waiters.held(&name, &id, Weak::new());
        waiters.ended_one(&name, &id, true);
        assert!(second.answers().is_taken(since(at)));
    }
}
