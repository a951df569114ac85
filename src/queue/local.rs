//! The names that this client holds or waits for, each with its local queue. No I/O.

use std::cell::{Cell, OnceCell};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::holder::HolderId;
use crate::lease::handoff::NoHandoff;
use crate::lease::held::{HeldLease, Holding};
use crate::name::{Name, NameTable};
use crate::protocol::place::TokenBlock;
use crate::protocol::primitive::Primitive;
use crate::queue::answers::Answers;
use crate::queue::fair::FairQueues;
use crate::queue::local_queue::{Announcer, FleetYield, HandedOff, LocalQueue};
use crate::queue::parker::Parker;
use crate::queue::position::{Position, Queue};
use crate::queue::sets::SetQueue;
use crate::random;
use crate::stats::Wake;
use crate::token::FencingToken;

/// How long a release can leave a lock free for other programs, although clients wait in its queue.
const OPEN_FOR: Duration = Duration::from_millis(2);

/// How long after that the waiters ask for the lock themselves, or up to twice as long: the client
/// that left it open may have died.
const GRANTED_WITHIN: Duration = Duration::from_millis(20);

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
    /// The waiters for sets of names; each has a place in one queue in Redis at a time.
    pub(crate) sets: SetQueue,
    /// The places of locks with a local queue: at most one for each name.
    pub(crate) cohorts: FairQueues,
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
        let id = queue.join(handoff_terms, wakes_on_release);
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
        names
            .get(name)
            .is_some_and(|queue| queue.held.is_held_by_us())
    }

    /// Hands a lease off at `now` to the first waiter for its name; returns the share of the
    /// previous holder.
    ///
    /// Only the holder with `token` can do so.
    pub(crate) fn hand_off(
        &self,
        hold: &Arc<HeldLease>,
        token: FencingToken,
        has_renewed: bool,
        now: Instant,
    ) -> Result<Holding, NoHandoff> {
        let mut names = self.names.lock();
        let queue = names.get_mut(hold.keys.key(0).name);
        let queue = queue.ok_or(NoHandoff::Release)?;
        let (before, parker) = queue.hand_off(hold, token, has_renewed, now)?;
        // Outside the lock: the waiter needs no reply from Redis and continues at once.
        drop(names);
        if let Some(parker) = parker {
            parker.unpark();
        }
        Ok(before)
    }

    /// Returns whether any call waits for the name.
    pub(crate) fn anybody_for(&self, name: &Name) -> bool {
        self.count_for(name) > 0
    }

    /// Returns how many calls wait for the name in the local queue.
    pub(crate) fn count_for(&self, name: &Name) -> usize {
        let names = self.names.lock();
        names.get(name).map_or(0, |queue| queue.waiters.len())
    }

    /// Returns a lease of this client beside which Redis refuses the name to another, `is_shared` or
    /// not, if there is one.
    ///
    /// Never one of a semaphore, which may have permits for further calls.
    pub(crate) fn excludes(&self, name: &Name, is_shared: bool) -> Option<Arc<HeldLease>> {
        let hold = self
            .names
            .lock()
            .get(name)?
            .held
            .excludes(is_shared)?
            .clone();
        // Upgraded and dropped outside the lock: the lease may own a user's closure.
        hold.upgrade()
    }

    /// Records that this client now holds the names of `hold`.
    ///
    /// Returns the leases that held some of them and had no recorded end. Redis never grants a name
    /// that is held, so those leases are lost.
    pub(crate) fn granted(&self, hold: &Arc<HeldLease>) -> Vec<Weak<HeldLease>> {
        let names = hold.keys.names.iter();
        let before = names.flat_map(|name| {
            self.granted_one(name, &hold.id, Arc::downgrade(hold), hold.is_shared())
        });
        before.collect()
    }

    /// Records that `hold` shares its names from now on.
    pub(crate) fn share(&self, hold: &HeldLease) {
        let mut names = self.names.lock();
        for name in hold.keys.names.iter() {
            if let Some(queue) = names.get_mut(name) {
                queue.held.share(&hold.id);
            }
        }
    }

    fn granted_one(
        &self,
        name: &Name,
        id: &HolderId,
        hold: Weak<HeldLease>,
        is_shared: bool,
    ) -> Vec<Weak<HeldLease>> {
        let mut names = self.names.lock();
        let queue = match names.get_mut(name) {
            Some(queue) => queue,
            None => names
                .entry(name.clone())
                .or_insert_with(|| LocalQueue::of(name)),
        };
        queue.granted(id.clone(), hold, is_shared)
    }

    /// Makes other clients go first when `hold` ends, after a run of hand-offs.
    pub(crate) fn yield_to_fleet(&self, hold: &HeldLease) {
        if let Some(queue) = self.names.lock().get_mut(hold.keys.key(0).name) {
            queue.fleet_yield = FleetYield::Due;
        }
    }

    /// Records that a lease has ended, and wakes waiters of each of its names to try Redis.
    ///
    /// `released` is when a release confirmed that it was held until then.
    pub(crate) fn ended(&self, hold: &HeldLease, released: Option<Instant>) {
        for name in hold.keys.names.iter() {
            self.ended_one(name, &hold.id, released);
        }
    }

    fn ended_one(&self, name: &Name, id: &HolderId, released: Option<Instant>) {
        let mut names = self.names.lock();
        let Some(queue) = names.get_mut(name) else {
            return;
        };
        queue.ended(id, released);
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
        self.sets.ask_now(name, Wake::Message);
        let mut names = self.names.lock();
        let queue = names.get_mut(name)?;
        if let Some(hold) = queue.held.find(payload) {
            return Some(hold.clone());
        }
        // The call with the place asks for all that share it.
        if !self.cohorts.refresh_now(name, Wake::Message) || !queue.contender_shares_place() {
            queue.announced(payload, announcer);
        }
        None
    }

    /// Returns the places for a kind of lock.
    pub(crate) fn queues_of(&self, keys: &Arc<dyn Primitive>) -> &FairQueues {
        match keys.has_local_queue() {
            true => &self.cohorts,
            false => &self.fair_queues,
        }
    }

    /// Records that Redis has granted the lock to `id`; ignored if no call waits under it.
    pub(crate) fn granted_by_message(&self, id: &HolderId, tokens: TokenBlock) {
        self.fair_queues.granted(id, tokens);
        self.cohorts.granted(id, tokens);
        self.sets.granted(id);
    }

    /// Records that a release of this client has left the lock free for a moment. Returns when this
    /// client asks for it again.
    pub(crate) fn leave_open(&self, name: &Name, now: Instant) -> Instant {
        let until = now.after(OPEN_FOR);
        self.cohorts.left_open(name, until, Instant::NEVER);
        until
    }

    /// Handles the message that the release of `id` has left the lock free for a moment, although
    /// clients wait in its queue.
    ///
    /// Returns the lease if this client still holds it, as [`announced`](Self::announced) does.
    pub(crate) fn left_open(
        &self,
        name: &Name,
        id: &[u8],
        announcer: Announcer,
        now: Instant,
    ) -> Option<Weak<HeldLease>> {
        let granted_by = now.after(GRANTED_WITHIN.mul_f64(1.0 + random::chance()));
        self.cohorts
            .left_open(name, now.after(OPEN_FOR), granted_by);
        self.sets.left_open(name, granted_by);
        let is_placed = self.cohorts.shared(name).is_taken;
        let mut names = self.names.lock();
        let queue = names.get_mut(name)?;
        match is_placed && queue.contender_shares_place() {
            true => queue.held.find(id).cloned(),
            // Nobody grants to a call without a place: it must use the moment.
            false => queue.announced(id, announcer),
        }
    }

    /// Wakes the contender of the name to try Redis, since its subscription is now live.
    pub(crate) fn wake_to_retry(&self, name: &Name, why: Wake) {
        if name.is_of_semaphore() {
            // All semaphores share one subscription.
            let names = self.fair_queues.names().into_iter();
            for name in names.filter(Name::is_of_semaphore) {
                self.fair_queues.refresh_now(&name, why);
            }
            return;
        }
        self.fair_queues.refresh_now(name, why);
        self.sets.ask_now(name, why);
        let is_placed = self.cohorts.refresh_now(name, why);
        if let Some(queue) = self.names.lock().get_mut(name)
            && !(is_placed && queue.contender_shares_place())
        {
            queue.wake_contender(why);
        }
    }

    /// Returns the names that any call waits for.
    pub(crate) fn waiting(&self) -> Vec<Name> {
        let mut waiting = self.fair_queues.names();
        waiting.extend(self.sets.names());
        let names = self.names.lock();
        let plain = names.iter().filter(|(_, queue)| !queue.waiters.is_empty());
        waiting.extend(plain.map(|(name, _)| name.clone()));
        waiting
    }

    /// Returns whether any call waits.
    pub(crate) fn anybody(&self) -> bool {
        let names = self.names.lock();
        names.values().any(|queue| !queue.waiters.is_empty())
            || self.fair_queues.anybody()
            || self.sets.anybody()
    }

    /// Returns whether no name has an entry.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.names.lock().is_empty()
    }

    /// Wakes all waiters; returns how many.
    pub(crate) fn wake_all(&self) -> usize {
        let placed = self.fair_queues.wake_all() + self.sets.wake_all();
        // Their calls wait in the local queues, too.
        self.cohorts.wake_all();
        let mut names = self.names.lock();
        let waiters = names.values_mut().flat_map(|queue| &mut queue.waiters);
        waiters.map(|waiter| waiter.wake(Wake::Turn)).count() + placed
    }

    /// Returns how many leases this client holds, and how many of its calls sleep for a name.
    pub(crate) fn count(&self) -> (u64, u64) {
        let names = self.names.lock();
        let held: usize = names.values().map(|queue| queue.held.len()).sum();
        let waiters = names.values().flat_map(|queue| &queue.waiters);
        let asleep = waiters.filter(|waiter| waiter.parker.is_some());
        let asleep = asleep.count() + self.fair_queues.count() + self.sets.count();
        (held as u64, asleep as u64)
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

    /// Records whether the waiter shares a place in Redis with other calls of this client.
    pub(crate) fn set_shares_place(&self, shares_place: bool) {
        self.with_queue(|queue| {
            if let Some(waiter) = queue.waiter(self.id) {
                waiter.shares_place = shares_place;
            }
        });
    }

    /// Takes the lease that was handed to the waiter, if one was, and leaves the queue with it.
    ///
    /// Returns it as an error if the lease was lost before the waiter woke.
    pub(crate) fn take(
        &self,
        now: Instant,
        max_hold: Duration,
        holding: impl FnOnce(FencingToken) -> Holding,
    ) -> Option<Result<Arc<HeldLease>, HandedOff>> {
        let taken = self.with_queue(|queue| queue.take(self.id, now, max_hold, holding));
        self.has_left.set(matches!(taken, Some(Ok(_))));
        taken
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
        let handed = queue.leave(self.id);
        if queue.is_idle() {
            names.remove(self.name);
        }
        handed
    }
}

impl Queue for QueueTicket<'_> {
    fn position(&self, _now: Instant, must_try: bool) -> Position {
        self.with_queue(|queue| queue.position(self.id, must_try))
    }

    fn parker(&self) -> &Parker {
        self.parker.get_or_init(|| {
            let parker = Parker::new();
            self.with_queue(|queue| {
                if let Some(waiter) = queue.waiter(self.id) {
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
        self.with_queue(|queue| queue.waiter(self.id)?.why.take())
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
        self.with_queue(|queue| queue.answers())
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
    use crate::protocol::fair::FairMutexKeys;
    use crate::protocol::keys::Keys;
    use crate::protocol::place::TokenBlock;
    use crate::protocol::primitive::{Admission, Primitive};
    use crate::protocol::semaphore::SemaphoreKeys;
    use crate::queue::answers::Span;
    use crate::queue::fair::FairTicket;
    use crate::queue::fair_queue::{RefreshPace, WaitingReply};
    use crate::queue::held_leases::HeldLeases;
    use crate::queue::local_queue::MAX_PARTIAL_ANNOUNCEMENTS;

    const NOW: Instant = Instant::START;

    const ALONE: Announcer = Announcer {
        server: 0,
        needed: 1,
    };

    fn is_woken(ticket: &QueueTicket<'_>) -> bool {
        ticket.parker().is_unparked()
    }

    #[test]
    fn two_leases_of_a_name_with_room_for_two_make_the_third_call_wait() {
        let (waiters, name) = (Waiters::default(), Name::from("a"));
        let ids = [(); 3].map(|()| HolderId::fresh("o"));
        let third = waiters.join(&name, None, true);
        waiters.names.lock().get_mut(&name).unwrap().held = HeldLeases::with_capacity(2);
        for id in &ids[..2] {
            assert_eq!(third.position(NOW, false), Position::Contend);
            assert!(
                waiters
                    .granted_one(&name, id, Weak::new(), false)
                    .is_empty()
            );
        }
        assert_eq!(third.position(NOW, false), Position::HeldLocally);
        assert_eq!(waiters.count(), (2, 0), "two leases of one name");
        waiters.ended_one(&name, &ids[0], Some(NOW));
        assert!(is_woken(&third));
        assert_eq!(third.position(NOW, false), Position::Contend);
        assert!(
            waiters
                .granted_one(&name, &ids[2], Weak::new(), false)
                .is_empty()
        );
        drop(third);
        let is_held = |id: &HolderId| waiters.announced(&name, id.as_str().as_bytes(), ALONE);
        assert_eq!(
            [0, 1, 2].map(|n| is_held(&ids[n]).is_some()),
            [false, true, true]
        );
        ids.iter().for_each(|id| waiters.ended_one(&name, id, None));
        assert!(waiters.is_idle());
    }

    #[test]
    fn permits_of_this_client_keep_none_of_its_calls_from_trying() {
        let (waiters, lock) = (Waiters::default(), Name::from("a"));
        let semaphore = lock.clone().of_semaphore();
        let ids = [(); 4].map(|()| HolderId::fresh("o"));
        for id in &ids[..3] {
            let evicted = waiters.granted_one(&semaphore, id, Weak::new(), false);
            assert!(evicted.is_empty());
        }
        assert!(
            !waiters.is_held_by_us(&semaphore),
            "no call waits for itself"
        );
        let evicted = waiters.granted_one(&lock, &ids[3], Weak::new(), false);
        assert!(evicted.is_empty(), "the lock of that name is another");
        assert_eq!(waiters.is_held_by_us(&lock), cfg!(debug_assertions));
        assert_eq!(waiters.count(), (4, 0));
        for (n, id) in ids.iter().enumerate() {
            let name = if n < 3 { &semaphore } else { &lock };
            waiters.ended_one(name, id, None);
        }
        assert!(waiters.is_idle());
    }

    #[test]
    fn restored_subscription_refreshes_the_places_of_all_semaphores() {
        let waiters = Waiters::default();
        let semaphore = |name: &str| -> Arc<dyn Primitive> {
            let lock = Keys::new(name.into(), "lock:", "r:");
            Arc::new(SemaphoreKeys::of(lock, 2, 1))
        };
        let keys = [
            semaphore("a"),
            semaphore("b"),
            FairMutexKeys::of(Keys::new("c".into(), "lock:", "r:")),
        ];
        let pace = RefreshPace {
            every: Duration::from_secs(1),
            backoff: None,
        };
        let reply = WaitingReply {
            sent: NOW,
            arrived: NOW,
            is_listening: true,
        };
        let tickets = keys.each_ref().map(|keys| {
            let ticket = waiters
                .fair_queues
                .join(Admission::Exclusive, keys, pace, Parker::new());
            ticket.begin_entering(&HolderId::fresh("o"));
            ticket.note_entered(reply, None);
            ticket
        });
        waiters.wake_to_retry(keys[0].key(0).name, Wake::Reconnect);
        let is_due =
            |ticket: &FairTicket<'_>| matches!(ticket.position(NOW, false), Position::Refresh(..));
        assert_eq!(tickets.each_ref().map(is_due), [true, true, false]);
    }

    #[test]
    fn grant_wakes_a_call_that_also_waits_in_the_local_queue() {
        let (waiters, keys) = (Waiters::default(), Keys::new("a".into(), "lock:", "r:"));
        let fair = FairMutexKeys::of(keys);
        let local = waiters.join(fair.key(0).name, None, true);
        let pace = RefreshPace {
            every: Duration::from_secs(1),
            backoff: None,
        };
        let place =
            waiters
                .fair_queues
                .join(Admission::Exclusive, &fair, pace, local.parker().clone());
        let id = HolderId::fresh("o");
        place.begin_entering(&id);
        let tokens = TokenBlock::one(FencingToken::new(7));
        waiters.fair_queues.granted(&id, tokens);
        assert!(is_woken(&local));
    }

    #[test]
    fn waiter_without_a_place_hears_that_the_lock_was_left_open() {
        let (waiters, name) = (Waiters::default(), Name::from("a"));
        let all = waiters.join(&name, None, true);
        let is_open = || waiters.left_open(&name, b"foreign", ALONE, NOW).is_none();
        assert!(is_open() && is_woken(&all));
        // Beside a place of this client.
        let keys = FairMutexKeys::of(Keys::new("a".into(), "lock:", "r:"));
        let pace = RefreshPace {
            every: Duration::from_secs(1),
            backoff: None,
        };
        let (cohorts, parker) = (&waiters.cohorts, Parker::new());
        let place = cohorts.join(Admission::Exclusive, &keys, pace, parker);
        place.begin_entering(&HolderId::fresh("o"));
        assert!(is_open() && is_woken(&all));
        waiters.announced(&name, b"foreign", ALONE);
        assert!(is_woken(&all));
        waiters.wake_to_retry(&name, Wake::Reconnect);
        assert!(is_woken(&all));
        all.set_shares_place(true);
        is_open();
        waiters.announced(&name, b"foreign", ALONE);
        waiters.wake_to_retry(&name, Wake::Reconnect);
        assert!(!is_woken(&all), "the call with the place asks");
    }

    #[test]
    fn the_next_waiter_contends_after_the_first_leaves_and_the_lease_ends() {
        let (waiters, name, id) = (Waiters::default(), Name::from("a"), HolderId::fresh("o"));
        let first = waiters.join(&name, None, true);
        let second = waiters.join(&name, None, true);
        assert_eq!(first.position(NOW, false), Position::Contend);
        assert_eq!(second.position(NOW, true), Position::Behind);
        waiters.granted_one(&name, &id, Weak::new(), false);
        drop(first);
        assert!(is_woken(&second));
        assert_eq!(second.position(NOW, false), Position::HeldLocally);
        assert_eq!(second.position(NOW, true), Position::Contend);
        waiters.ended_one(&name, &id, Some(NOW));
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
        waiters.granted_one(&name, &id, Weak::new(), false);
        turns();
        assert_eq!(turns(), [HeldLocally, Behind, HeldLocally, Behind]);
        waiters.ended_one(&name, &id, Some(NOW));
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
        waiters.granted_one(&name, &id, Weak::new(), false);
        let tickets: Vec<_> = (0..3).map(|_| waiters.join(&name, None, true)).collect();
        waiters.ended_one(&name, &id, Some(NOW));
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
        waiters.granted_one(&name, &HolderId::fresh("o"), Weak::new(), false);
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
        waiters.granted_one(&name, &ours, Weak::new(), false);
        assert!(
            waiters
                .announced(&name, ours.as_str().as_bytes(), ALONE)
                .is_some()
        );
        assert!(waiters.announced(&name, b"older", ALONE).is_none());
        assert!(!is_woken(&first), "an older lease, ended before ours began");
        waiters.ended_one(&name, &ours, Some(NOW));
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
            waiters.granted_one(&name, &id, Weak::new(), false);
            waiters.names.lock().get_mut(&name).unwrap().fleet_yield = FleetYield::Due;
            waiters.ended_one(&name, &id, Some(NOW));
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
        assert!(
            waiters
                .granted_one(&name, &older, Weak::new(), false)
                .is_empty()
        );
        assert!(
            !waiters
                .granted_one(&name, &newer, Weak::new(), false)
                .is_empty(),
            "lost"
        );
        waiters.ended_one(&name, &older, Some(NOW));
        assert!(
            waiters
                .announced(&name, newer.as_str().as_bytes(), ALONE)
                .is_some(),
            "held"
        );
    }

    #[test]
    fn refusal_counts_for_every_waiter_that_had_joined_before_it() {
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
        first.update_answers(&mut |answers| answers.refused(at, at, Some(Duration::ZERO)));
        assert!(second.answers().is_taken(since(at)));
        assert!(
            !second
                .answers()
                .is_taken(since(at.after(Duration::from_nanos(1))))
        );
        waiters.granted_one(&name, &id, Weak::new(), false);
        assert!(!second.answers().is_taken(since(at)));
        waiters.ended_one(&name, &id, None);
        assert!(
            !second.answers().is_taken(since(at)),
            "its end is not certain"
        );
        waiters.granted_one(&name, &id, Weak::new(), false);
        waiters.ended_one(&name, &id, Some(at));
        assert!(second.answers().is_taken(since(at)));
    }
}
