//! Who waits for a name in this client, first come first served, and whether the client holds it. No I/O.

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
use crate::queue::answers::{Answers, Span};
use crate::queue::fair::FairQueues;
use crate::queue::parker::Parker;
use crate::stats::Wake;
use crate::token::FencingToken;

/// What this client knows of the names that somebody holds or waits for here.
///
/// Two waiters of a name talk to Redis, and are mostly one: the first in the queue, and the contender. The
/// contender is the first that releases wake, or the first in the queue if they wake none. A waiter under
/// [`WaitPolicy::Backoff`](crate::WaitPolicy) sleeps through its pauses, and those behind it must not. The
/// others sleep until they become one of the two.
///
/// A bell that is rung while its waiter is busy stays rung, so a wake is never lost between a look and the
/// sleep after it.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    names: Mutex<NameTable<Queue>>,
    /// Those who wait for fair locks, each of whom has a place of its own in Redis.
    pub(crate) fair_queues: FairQueues,
}

#[derive(Debug, Default)]
struct Queue {
    /// The lease that this client holds.
    held: Option<HeldName>,
    /// Who took it, for a warning in debug builds.
    holder: Option<std::thread::ThreadId>,
    /// The last lease released here while somebody waited: its own message is no news.
    released: Option<HolderId>,
    /// Releases that not enough servers have announced yet, or just enough.
    announcements: VecDeque<PartialAnnouncement>,
    waiters: VecDeque<Waiter>,
    next: u64,
    /// `None` until there is something to note: most held names have no waiters, and there may be many.
    answers: Option<Box<Answers>>,
    fleet_yield: FleetYield,
}

/// After a run of hand-offs others come first: the first here waits until the release is heard, as they do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FleetYield {
    #[default]
    None,
    Due,
    /// The first in the queue does so now.
    Begun,
}

/// Which server says something, and how many must say the same before it counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announcer {
    pub(crate) server: usize,
    pub(crate) needed: usize,
}

/// An announcement, by its hash, and who has made it, by bits.
#[derive(Debug)]
struct PartialAnnouncement {
    payload: u64,
    by: u64,
}

/// So many announcements of a name may be incomplete at a time. What is crowded out costs a waiter
/// the backstop.
const MAX_PARTIAL_ANNOUNCEMENTS: usize = 64;

#[derive(Debug)]
struct HeldName {
    id: HolderId,
    /// Weak: a hold may own a user's closure, which must not be dropped under a lock.
    hold: Weak<HeldLease>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    /// Hung up when its waiter first sleeps: most never do.
    parker: Option<Parker>,
    /// Rung before the bell was hung up.
    woken_early: bool,
    /// Why it was rung, until its waiter is awake.
    why: Option<Wake>,
    /// Look at Redis whatever this client knows.
    must_try: bool,
    /// It waits under `WaitPolicy::Wake`.
    wakes_on_release: bool,
    /// On which terms a lease may be handed to it.
    handoff_terms: Option<LeaseTerms>,
    /// The lease that was handed to it, until its waiter is awake.
    handed: Option<HandedOff>,
}

/// A lease that was handed on, and the token of its new holder.
#[derive(Debug)]
pub(crate) struct HandedOff {
    pub(crate) hold: Arc<HeldLease>,
    pub(crate) token: FencingToken,
}

/// What came of an attempt to hand a lease on.
pub(crate) enum HandOffOutcome {
    /// It has a new holder. This was the tenure of the one before.
    Done(Holding),
    /// Renew it first.
    Renew,
    /// Nobody is there for it, or it must not be.
    Not,
}

/// What has become of a lease that was handed on.
pub(crate) enum TakeOver {
    /// There was none.
    Nothing,
    Held(Arc<HeldLease>),
    /// Lost before its waiter woke.
    Lost(HandedOff),
}

impl Waiter {
    fn wake(&mut self, why: Wake) {
        // What was rung for nothing but a look around may since be rung for something.
        if self.why.is_none_or(|before| before == Wake::Turn) {
            self.why = Some(why);
        }
        match &self.parker {
            // Under the lock that the waiter takes next. Where two processors serve all, a hand-off through Redis takes
            // a tenth longer otherwise: the waiter begins elsewhere, beside this thread, and the server waits for both.
            Some(parker) => parker.unpark(),
            None => self.woken_early = true,
        }
    }
}

impl Queue {
    fn answers(&mut self) -> &mut Answers {
        self.answers.get_or_insert_default()
    }

    fn is_idle(&self) -> bool {
        self.held.is_none() && self.waiters.is_empty()
    }

    /// Whether this announcement has just become one that counts.
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

    /// Where the contender stands.
    fn contender(&self) -> usize {
        let mut waiters = self.waiters.iter();
        waiters
            .position(|waiter| waiter.wakes_on_release)
            .unwrap_or(0)
    }

    /// Where those stand who talk to Redis.
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

    /// Takes a place out of the queue. A waiter that talks to Redis from now on is woken.
    fn remove(&mut self, n: usize) -> Option<Waiter> {
        let id = |queue: &Self, n| Some(queue.waiters.get(n)?.id);
        let before = self.active().map(|n| id(self, n));
        let waiter = self.waiters.remove(n);
        // A wake that reached the place is not lost with it: where its waiter leaves without the name, the next one
        // looks whatever it knows.
        let left_without = self.held.is_none();
        for n in self.active() {
            if !before.contains(&id(self, n)) {
                self.wake(n, left_without, Wake::Turn);
            }
        }
        waiter
    }
}

/// What a waiter is to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// Others came before.
    Behind,
    /// A lease was handed to it: take that.
    HandedOff,
    /// It may ask Redis, but others in the fleet come before: wait a moment.
    Yield,
    /// Ask Redis.
    Contend,
    /// It may ask Redis, but this client holds the name: Redis would refuse.
    HeldLocally,
}

/// A waiter's place in the queue of a name; dropping it leaves.
#[derive(Debug)]
pub(crate) struct QueueTicket<'a> {
    waiters: &'a Waiters,
    name: &'a Name,
    id: u64,
    parker: OnceCell<Parker>,
    has_left: Cell<bool>,
}

impl Waiters {
    /// Goes to the end of the queue, where a lease may be handed to it on the terms that it `wants`. Whether it
    /// `hears`: releases wake it.
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

    /// Whether the calling thread took the lease by which this client holds the name, if that is kept.
    pub(crate) fn is_held_by_us(&self, name: &Name) -> bool {
        let names = self.names.lock();
        let queue = names.get(name).filter(|queue| queue.held.is_some());
        queue.is_some_and(|queue| queue.holder == Some(std::thread::current().id()))
    }

    /// Hands a lease on to the first who waits for its name, at `now`, for the holder that has `token`.
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
            (HandoffDecision::HandOffOutcome(token), Some(before)) => (token, before),
            (HandoffDecision::Renew, _) => return HandOffOutcome::Renew,
            _ => return HandOffOutcome::Not,
        };
        first.handed = Some(HandedOff {
            hold: Arc::clone(hold),
            token,
        });
        match first.parker.clone() {
            Some(parker) => {
                // Outside the lock, since its waiter has nothing to ask anybody: it goes on at once.
                drop(names);
                parker.unpark();
            }
            None => first.woken_early = true,
        }
        HandOffOutcome::Done(before)
    }

    /// Whether anybody waits for the name.
    pub(crate) fn anybody_for(&self, name: &Name) -> bool {
        let names = self.names.lock();
        names
            .get(name)
            .is_some_and(|queue| !queue.waiters.is_empty())
    }

    /// The lease by which this client holds the name, if it does.
    pub(crate) fn holder(&self, name: &Name) -> Option<Arc<HeldLease>> {
        let hold = self.names.lock().get(name)?.held.as_ref()?.hold.clone();
        // Upgraded, and dropped, outside the lock: a hold may own a user's closure.
        hold.upgrade()
    }

    /// This client holds the names of `hold` now. Returns the leases by which it held some of them
    /// until now, if it knew of no end: Redis grants no name that is held, so those are lost.
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

    /// A lease that is about to end has been handed from one to the other here: others come before the next of them.
    pub(crate) fn yield_to_fleet(&self, hold: &HeldLease) {
        if let Some(queue) = self.names.lock().get_mut(hold.keys.key(0).name) {
            queue.fleet_yield = FleetYield::Due;
        }
    }

    /// A lease of this client has ended: one waiter of each of its names looks.
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
                // Until now somebody held it, as far as those who wait here are concerned.
                queue
                    .answers()
                    .refused(Instant::now(), Some(Duration::ZERO));
            }
            queue.wake_active(Wake::Local);
        }
        if queue.is_idle() {
            names.remove(name);
        }
    }

    /// A release was announced. Returns the lease if it is one that this client still holds, which
    /// is then to be asked about.
    pub(crate) fn announced(
        &self,
        name: &Name,
        payload: &[u8],
        announcer: Announcer,
    ) -> Option<Weak<HeldLease>> {
        // Whoever passes a fair lock on announces nothing, so it is free.
        self.fair_queues.refresh_now(name, Wake::Message);
        let mut names = self.names.lock();
        let queue = names.get_mut(name)?;
        let is = |id: &HolderId| id.as_str().as_bytes() == payload;
        match &queue.held {
            Some(held) => is(&held.id).then(|| held.hold.clone()),
            // One whose end was rung for when it came.
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

    /// The contender of the name looks, because it now hears of releases.
    pub(crate) fn wake_to_retry(&self, name: &Name, why: Wake) {
        self.fair_queues.refresh_now(name, why);
        if let Some(queue) = self.names.lock().get_mut(name) {
            queue.wake(queue.contender(), true, why);
        }
    }

    /// The names that somebody waits for.
    pub(crate) fn waiting(&self) -> Vec<Name> {
        let mut waiting = self.fair_queues.names();
        let names = self.names.lock();
        let plain = names.iter().filter(|(_, queue)| !queue.waiters.is_empty());
        waiting.extend(plain.map(|(name, _)| name.clone()));
        waiting
    }

    /// Whether anybody waits.
    pub(crate) fn anybody(&self) -> bool {
        let names = self.names.lock();
        names.values().any(|queue| !queue.waiters.is_empty()) || self.fair_queues.anybody()
    }

    /// Whether nothing is kept of any name.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.names.lock().is_empty()
    }

    /// Wakes everybody; returns how many.
    pub(crate) fn wake_all(&self) -> usize {
        let fair = self.fair_queues.wake_all();
        let mut names = self.names.lock();
        let waiters = names.values_mut().flat_map(|queue| &mut queue.waiters);
        waiters.map(|waiter| waiter.wake(Wake::Turn)).count() + fair
    }

    /// How many names this client holds, and how many calls sleep until they get theirs.
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
    fn queue<T>(&self, act: impl FnOnce(&mut Queue) -> T) -> T {
        let mut names = self.waiters.names.lock();
        // Our place keeps the queue there until the ticket is dropped.
        act(names
            .get_mut(self.name)
            .expect("a queue with a waiter in it"))
    }

    /// What the waiter sleeps on.
    pub(crate) fn parker(&self) -> &Parker {
        self.parker.get_or_init(|| {
            let parker = Parker::new();
            self.queue(|queue| {
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

    /// Why the bell has rung.
    pub(crate) fn take_wake(&self) -> Option<Wake> {
        self.queue(|queue| {
            let mut waiters = queue.waiters.iter_mut();
            waiters.find(|waiter| waiter.id == self.id)?.why.take()
        })
    }

    /// What to do now. `look` asks for a look at Redis even where this client holds the name.
    pub(crate) fn position(&self, must_try: bool) -> Position {
        self.queue(|queue| {
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

    /// Takes, at `now`, the lease that was handed to it, and leaves with it.
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
        // The next one sleeps on: there is nothing that it could do while this client holds the name, and whatever
        // ends that rings for it.
        let waiter = queue.waiters.pop_front();
        if cfg!(debug_assertions) {
            queue.holder = Some(std::thread::current().id());
        }
        drop(names);
        drop(waiter);
        self.has_left.set(true);
        TakeOver::Held(handed.hold)
    }

    /// Leaves the queue. What was handed to its place is then for the caller to hand on.
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

    /// The waiter is about to ask Redis. Returns whether others wait for the name beside it.
    pub(crate) fn about_to_try(&self) -> bool {
        self.queue(|queue| {
            let others_wait = queue.waiters.len() > 1;
            if others_wait {
                // For the others: the waiter itself is busy until it is answered.
                queue.answers().asked(Instant::now());
            }
            others_wait
        })
    }

    /// Notes, or tells, what Redis last said about the name to any waiter of this client.
    pub(crate) fn answers<T>(&self, act: impl FnOnce(&mut Answers) -> T) -> T {
        self.queue(|queue| act(queue.answers()))
    }

    /// As [`Answers::is_taken`].
    pub(crate) fn is_taken(&self, span: Span) -> bool {
        self.answers(|answers| answers.is_taken(span))
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

    const ALONE: Announcer = Announcer {
        server: 0,
        needed: 1,
    };

    fn is_woken(ticket: &QueueTicket<'_>) -> bool {
        ticket.parker().is_unparked()
    }

    #[test]
    fn smoke() {
        let (waiters, name, id) = (Waiters::default(), Name::from("a"), HolderId::fresh("o"));
        let first = waiters.join(&name, None, true);
        let second = waiters.join(&name, None, true);
        assert_eq!(first.position(false), Position::Contend);
        assert_eq!(second.position(true), Position::Behind);
        waiters.held(&name, &id, Weak::new());
        drop(first);
        assert!(is_woken(&second));
        assert_eq!(second.position(false), Position::HeldLocally);
        assert_eq!(second.position(true), Position::Contend);
        waiters.ended_one(&name, &id, true);
        assert!(is_woken(&second));
        assert_eq!(second.position(false), Position::Contend);
        drop(second);
        assert!(waiters.names.lock().is_empty());
    }

    /// A queue of one waiter for each, in which only those that hear are under `Wake`.
    fn queue<'a, const N: usize>(
        waiters: &'a Waiters,
        name: &'a Name,
        wakes_on_release: [bool; N],
    ) -> [QueueTicket<'a>; N] {
        wakes_on_release.map(|wakes| waiters.join(name, None, wakes))
    }

    #[test]
    fn those_behind_one_that_does_not_hear_contend() {
        let (waiters, name, id) = (Waiters::default(), Name::from("a"), HolderId::fresh("o"));
        let [first, backs_off, contender, next] =
            queue(&waiters, &name, [false, false, true, true]);
        let turns = || [&first, &backs_off, &contender, &next].map(|ticket| ticket.position(false));
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
    fn whoever_talks_to_redis_from_now_on_is_woken_for_it() {
        let (waiters, name) = (Waiters::default(), Name::from("a"));
        let [first, second, contender, next] = queue(&waiters, &name, [false, false, true, true]);
        drop(contender);
        assert_eq!([&first, &second, &next].map(is_woken), [false, false, true]);
        drop(first);
        assert_eq!([&second, &next].map(is_woken), [true, false]);
        assert_eq!(next.position(false), Position::Contend);
        drop(next);
        assert!(!is_woken(&second), "it goes on as it did");
        let joins = waiters.join(&name, None, true);
        assert_eq!(joins.position(false), Position::Contend);
        drop(second);
        assert!(!is_woken(&joins), "it goes on as it did");
    }

    #[test]
    fn a_release_wakes_one() {
        let (waiters, name, id) = (Waiters::default(), Name::from("a"), HolderId::fresh("o"));
        waiters.held(&name, &id, Weak::new());
        let tickets: Vec<_> = (0..3).map(|_| waiters.join(&name, None, true)).collect();
        waiters.ended_one(&name, &id, true);
        assert_eq!(tickets.iter().filter(|ticket| is_woken(ticket)).count(), 1);
    }

    #[test]
    fn a_contender_that_leaves_passes_the_look_on() {
        let (waiters, name) = (Waiters::default(), Name::from("a"));
        let first = waiters.join(&name, None, true);
        let second = waiters.join(&name, None, true);
        assert!(waiters.announced(&name, b"foreign", ALONE).is_none());
        drop(first);
        assert!(is_woken(&second));
        waiters.held(&name, &HolderId::fresh("o"), Weak::new());
        assert_eq!(second.position(false), Position::Contend, "unconditional");
        assert_eq!(second.position(false), Position::HeldLocally, "once");
    }

    #[test]
    fn announcements() {
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
        assert!(!is_woken(&first), "it ended before ours began");
        waiters.ended_one(&name, &ours, true);
        assert!(is_woken(&first));
        assert!(
            waiters
                .announced(&name, ours.as_str().as_bytes(), ALONE)
                .is_none()
        );
        assert!(
            !is_woken(&first),
            "it was woken when the release was answered"
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
        assert!(!by(1, b"x"), "it has counted");
        for n in 0..MAX_PARTIAL_ANNOUNCEMENTS {
            by(0, &n.to_le_bytes());
        }
        let queue = &waiters.names.lock()[&name];
        assert_eq!(queue.announcements.len(), MAX_PARTIAL_ANNOUNCEMENTS);
    }

    #[test]
    fn after_a_run_the_first_waits_until_the_release_is_heard() {
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
        assert_eq!(first.position(false), Position::Yield);
        assert!(!is_woken(&first));
        heard();
        assert!(is_woken(&first));
        assert_eq!(first.position(false), Position::Contend);

        ends();
        heard();
        assert!(is_woken(&first));
        assert_eq!(
            first.position(false),
            Position::Contend,
            "it was heard before"
        );

        ends();
        assert_eq!(first.position(false), Position::Yield);
        assert_eq!(first.position(false), Position::Contend, "once");
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
    fn an_answer_counts_for_all_who_waited_then() {
        let (waiters, name, id) = (Waiters::default(), Name::from("a"), HolderId::fresh("o"));
        let first = waiters.join(&name, None, true);
        assert!(!first.about_to_try());
        let second = waiters.join(&name, None, true);
        assert!(first.about_to_try());
        let since = |start: Instant| Span {
            start,
            deadline: start.after(Duration::from_secs(60)),
        };
        let at = Instant::now();
        first.answers(|answers| answers.refused(at, Some(Duration::ZERO)));
        assert!(second.is_taken(since(at)));
        assert!(!second.is_taken(since(at.after(Duration::from_nanos(1)))));
        waiters.held(&name, &id, Weak::new());
        assert!(!second.is_taken(since(at)));
        waiters.ended_one(&name, &id, false);
        assert!(!second.is_taken(since(at)), "its end is not sure");
        waiters.held(&name, &id, Weak::new());
        waiters.ended_one(&name, &id, true);
        assert!(second.is_taken(since(at)));
    }
}
