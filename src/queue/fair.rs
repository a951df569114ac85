//! The calls of this client that wait in queues in Redis. No I/O, no clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Instant;
use crate::holder::HolderId;
use crate::name::{Name, NameTable};
use crate::protocol::place::{Refreshed, TokenBlock};
use crate::protocol::primitive::{Admission, Primitive};
use crate::queue::answers::Answers;
use crate::queue::fair_queue::{FairQueue, FairWaiter, RefreshPace, WaitingReply};
use crate::queue::parker::Parker;
use crate::queue::position::{Grant, Position, Queue};
use crate::queue::recent::RecentRefusals;

pub(crate) use crate::queue::recent::SharedPlace;
use crate::stats::Wake;

/// The places of this client's calls in the queues in Redis, as far as known.
///
/// A holder id is granted at most once. A grant counts only while its call waits under that id: a
/// call whose place is gone enters again under another.
#[derive(Debug, Default)]
pub(crate) struct FairQueues {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The queues of each admission, whose scripts alone can refresh them.
    queues: [NameTable<FairQueue>; Admission::ALL.len()],
    /// The lock that each holder id waits for: a grant message names none.
    owners: HashMap<HolderId, (Admission, Name)>,
    next_serial: u64,
    recent: RecentRefusals,
}

impl State {
    /// The queues of locks that have one holder at a time.
    fn exclusive(&mut self) -> &mut NameTable<FairQueue> {
        &mut self.queues[Admission::Exclusive as usize]
    }
}

/// A call's waiter; dropping it removes it here, not in Redis.
#[derive(Debug)]
pub(crate) struct FairTicket<'a> {
    fair_queues: &'a FairQueues,
    admission: Admission,
    name: &'a Name,
    serial: u64,
    parker: Parker,
}

impl FairQueues {
    /// Adds a waiter for the fair lock of `keys`, which sleeps on `parker`.
    pub(crate) fn join<'a>(
        &'a self,
        admission: Admission,
        keys: &'a Arc<dyn Primitive>,
        pace: RefreshPace,
        parker: Parker,
    ) -> FairTicket<'a> {
        let name = keys.key(0).name;
        let mut state = self.state.lock();
        let serial = state.next_serial;
        state.next_serial += 1;
        let queue = state.queues[admission as usize].entry(name.clone());
        let queue = queue.or_insert_with(|| FairQueue::new(keys));
        let waiter = FairWaiter::new(serial, parker.clone(), pace);
        queue.waiters.push(waiter);
        FairTicket {
            fair_queues: self,
            admission,
            name,
            serial,
            parker,
        }
    }

    /// Records that Redis has granted the lock to `id`; ignored if no call waits under it.
    pub(crate) fn granted(&self, id: &HolderId, tokens: TokenBlock) {
        // Outside the lock: the waiter needs no reply from Redis and continues at once.
        if let Some(parker) = self.grant(id, tokens) {
            parker.unpark();
        }
    }

    /// Records a grant; returns the parker of its call.
    fn grant(&self, id: &HolderId, tokens: TokenBlock) -> Option<Parker> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let (admission, name) = state.owners.get(id)?;
        let queue = state.queues[*admission as usize].get_mut(name)?;
        let waiter = queue.with_id(id)?;
        let is_first = waiter.note_grant(tokens, true);
        is_first.then(|| waiter.parker.clone())
    }

    /// Makes a refresh of the places of `name` due at once. Returns whether there is one.
    pub(crate) fn refresh_now(&self, name: &Name, why: Wake) -> bool {
        let mut has_place = false;
        for queues in &mut self.state.lock().queues {
            if let Some(queue) = queues.get_mut(name) {
                queue.refresh_now(why);
                has_place |= queue.has_place();
            }
        }
        has_place
    }

    /// Records that a release has left the lock free for a moment. This client asks for it again at
    /// `until`; its place is refreshed at `refresh_at`.
    pub(crate) fn left_open(&self, name: &Name, until: Instant, refresh_at: Instant) {
        let mut state = self.state.lock();
        state.recent.left_open(name, until);
        if let Some(queue) = state.exclusive().get_mut(name) {
            queue.refresh_at(refresh_at);
        }
    }

    /// Records that this client was refused the lock at `now`.
    pub(crate) fn note_refused(&self, name: &Name, now: Instant) {
        self.state.lock().recent.refused(name, now);
    }

    /// Returns what this client knows about a name whose calls share a place.
    pub(crate) fn shared(&self, name: &Name) -> SharedPlace {
        let mut state = self.state.lock();
        let queue = state.exclusive().get(name);
        let is_taken = queue.is_some_and(FairQueue::has_place);
        SharedPlace {
            is_taken,
            ..state.recent.of(name)
        }
    }

    /// Takes the place that a call has left to others, which have left, too. The caller must leave
    /// the queue in Redis with the keys of that call.
    pub(crate) fn take_left(&self, name: &Name) -> Option<(Arc<dyn Primitive>, HolderId)> {
        let mut state = self.state.lock();
        let queues = state.exclusive();
        let queue = queues.get_mut(name)?;
        let id = queue.left.take()?.id?;
        let keys = Arc::clone(&queue.keys);
        if queue.waiters.is_empty() {
            queues.remove(name);
        }
        state.owners.remove(&id);
        Some((keys, id))
    }

    pub(crate) fn names(&self) -> Vec<Name> {
        let state = self.state.lock();
        state
            .queues
            .iter()
            .flat_map(HashMap::keys)
            .cloned()
            .collect()
    }

    /// Returns how many calls have a place in Redis.
    pub(crate) fn count(&self) -> usize {
        let state = self.state.lock();
        let queues = state.queues.iter().flat_map(HashMap::values);
        let waiters = queues.flat_map(|queue| &queue.waiters);
        let have_place = waiters.filter(|waiter| waiter.seen_waiting.is_some());
        have_place.count()
    }

    pub(crate) fn anybody(&self) -> bool {
        !self.state.lock().queues.iter().all(HashMap::is_empty)
    }

    /// Wakes all waiters; returns how many.
    pub(crate) fn wake_all(&self) -> usize {
        let mut state = self.state.lock();
        let mut count = 0;
        for queue in state.queues.iter_mut().flat_map(HashMap::values_mut) {
            queue.no_refresh_before = Instant::START;
            let waiters = queue.waiters.iter();
            count += waiters.map(|waiter| waiter.parker.unpark()).count();
        }
        count
    }

    /// Removes all holder ids, and returns those that must leave the queue in Redis.
    ///
    /// These are places, and grants that no call has taken.
    pub(crate) fn leave_all(&self) -> Vec<(Arc<dyn Primitive>, HolderId)> {
        let mut state = self.state.lock();
        state.owners.clear();
        let mut left = Vec::new();
        for queue in state.queues.iter_mut().flat_map(HashMap::values_mut) {
            // A call whose first reply is outstanding leaves by itself.
            let waiters = queue.waiters.iter_mut().chain(&mut queue.left);
            let there = waiters.filter(|waiter| waiter.seen_waiting.is_some());
            let ids = there.filter_map(|waiter| waiter.id.take());
            left.extend(ids.map(|id| (Arc::clone(&queue.keys), id)));
        }
        left
    }
}

impl FairTicket<'_> {
    fn with_queue<T>(&self, act: impl FnOnce(&mut FairQueue) -> T) -> T {
        self.with_owners(|queue, _| act(queue))
    }

    fn with_waiter<T>(&self, act: impl FnOnce(&mut FairWaiter) -> T) -> T {
        self.with_queue(|queue| act(queue.waiter(self.serial)))
    }

    fn with_owners<T>(
        &self,
        act: impl FnOnce(&mut FairQueue, &mut HashMap<HolderId, (Admission, Name)>) -> T,
    ) -> T {
        let State { queues, owners, .. } = &mut *self.fair_queues.state.lock();
        // The waiter keeps the queue in the table until the ticket is dropped.
        let queue = queues[self.admission as usize].get_mut(self.name);
        act(queue.expect("a queue with a waiter in it"), owners)
    }

    /// Records that the call is about to enter under `id`. From now on a grant to it counts.
    pub(crate) fn begin_entering(&self, id: &HolderId) {
        self.with_owners(|queue, owners| {
            owners.insert(id.clone(), (self.admission, self.name.clone()));
            queue.waiter(self.serial).wait_under(Some(id.clone()));
        });
    }

    /// Records the reply to a command that made a place. The lock is held for `remaining` more.
    pub(crate) fn note_entered(&self, reply: WaitingReply, remaining: Option<Duration>) {
        self.with_queue(|queue| {
            let waiter = queue.waiter(self.serial);
            waiter.refused(reply, remaining);
            if waiter.pace.backoff.is_some() {
                queue.wake_without_place();
            }
        });
    }

    /// Returns whether the call has a place, or is entering.
    pub(crate) fn has_place(&self) -> bool {
        self.with_waiter(|waiter| waiter.id.is_some())
    }

    /// Leaves the place to the other calls of this client that share it, if `others_wait`.
    ///
    /// Returns an id that must leave the queue because no call shares its place.
    pub(crate) fn hand_over(&self, others_wait: bool) -> Option<HolderId> {
        self.with_owners(|queue, owners| {
            let id = queue.hand_over(self.serial, others_wait)?;
            owners.remove(&id);
            Some(id)
        })
    }

    /// Ends the wait under the current id: a grant to it no longer counts.
    ///
    /// Returns the id, unless the call has none.
    pub(crate) fn forget_id(&self) -> Option<HolderId> {
        self.with_owners(|queue, owners| {
            let id = queue.waiter(self.serial).wait_under(None)?;
            owners.remove(&id);
            Some(id)
        })
    }

    /// Returns whether any call of this client for the name can receive a grant message.
    pub(crate) fn any_subscribed(&self) -> bool {
        let is_subscribed = |waiter: &FairWaiter| waiter.pace.backoff.is_none();
        self.with_queue(|queue| queue.waiters.iter().any(is_subscribed))
    }

    /// How many replies said that the call waits.
    pub(crate) fn refusals(&self) -> u32 {
        self.with_waiter(|waiter| waiter.refusals)
    }

    /// Takes the grant to the call, if there is one; its id then counts no longer.
    pub(crate) fn take_grant(&self) -> Option<Grant> {
        let grant = self.with_waiter(|waiter| waiter.grant())?;
        self.forget_id();
        Some(grant)
    }

    /// Records the replies to a refresh of `ids`.
    pub(crate) fn note_refreshed(
        &self,
        ids: &[HolderId],
        answers: &[Refreshed],
        reply: WaitingReply,
    ) {
        self.with_owners(|queue, owners| {
            for id in queue.note_refreshed(ids, answers, reply) {
                owners.remove(&id);
            }
        });
    }

    /// Leaves a refresh that is due to the other waiters: no reply could arrive before this one's
    /// deadline.
    pub(crate) fn pass_refresh_on(&self, why: Wake) {
        self.with_queue(|queue| queue.pass_refresh_on(self.serial, why));
    }

    /// Records that a refresh failed; none is due again before `no_refresh_before`.
    pub(crate) fn note_not_refreshed(&self, why: Wake, no_refresh_before: Instant) {
        self.with_queue(|queue| queue.note_not_refreshed(why, no_refresh_before));
    }
}

impl Queue for FairTicket<'_> {
    /// The caller must report the outcome of a refresh with
    /// [`note_refreshed`](Self::note_refreshed) or
    /// [`note_not_refreshed`](Self::note_not_refreshed), or pass it on.
    fn position(&self, now: Instant, _must_try: bool) -> Position {
        let position = self.with_queue(|queue| queue.position(self.serial, now));
        if let Position::Granted(_) = position {
            self.forget_id();
        }
        position
    }

    fn parker(&self) -> &Parker {
        &self.parker
    }

    fn take_wake(&self) -> Option<Wake> {
        // The reason is counted with the refresh, which one call does for all.
        None
    }

    fn about_to_try(&self, now: Instant) -> bool {
        self.with_queue(|queue| queue.answers.asked(now));
        // No lease of a fair lock is handed off: its queue is in Redis.
        false
    }

    fn answers(&self) -> Answers {
        self.with_queue(|queue| queue.answers)
    }

    fn update_answers(&self, act: &mut dyn FnMut(&mut Answers)) {
        self.with_queue(|queue| act(&mut queue.answers));
    }
}

impl Drop for FairTicket<'_> {
    fn drop(&mut self) {
        self.forget_id();
        let mut state = self.fair_queues.state.lock();
        let queues = &mut state.queues[self.admission as usize];
        let Some(queue) = queues.get_mut(self.name) else {
            return;
        };
        queue.remove(self.serial);
        if queue.waiters.is_empty() && queue.left.is_none() {
            queues.remove(self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::fair::FairMutexKeys;
    use crate::protocol::keys::Keys;
    use crate::queue::answers::Span;
    use crate::token::FencingToken;

    const PACE: RefreshPace = RefreshPace {
        every: Duration::from_millis(900),
        backoff: None,
    };

    const WAITING: Refreshed = Refreshed::Waiting(None);

    fn at(n: u64) -> Instant {
        Instant::START.after(Duration::from_millis(n))
    }

    fn keys() -> Arc<dyn Primitive> {
        FairMutexKeys::of(Keys::new("a".into(), "lock:", "r:"))
    }

    fn token(n: u64) -> FencingToken {
        FencingToken::new(n)
    }

    fn tokens(n: u64) -> TokenBlock {
        TokenBlock::one(token(n))
    }

    fn sent_at(sent: u64) -> WaitingReply {
        WaitingReply {
            sent: at(sent),
            arrived: at(sent + 1),
            is_listening: true,
        }
    }

    fn is_woken(ticket: &FairTicket<'_>) -> bool {
        ticket.parker().is_unparked()
    }

    /// Enters with a command sent at `sent`, and gets a place.
    fn enter(ticket: &FairTicket<'_>, sent: u64) -> HolderId {
        let id = HolderId::fresh("o");
        ticket.begin_entering(&id);
        ticket.note_entered(sent_at(sent), None);
        id
    }

    fn grant(id: &HolderId, n: u64, seen_waiting: u64) -> Position {
        Position::Granted(Grant {
            id: id.clone(),
            tokens: tokens(n),
            seen_waiting: at(seen_waiting),
            refresh_every: PACE.every,
            by_message: true,
        })
    }

    #[test]
    fn a_waiter_enters_refreshes_and_takes_its_grant() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let ticket = fair_queues.join(Admission::Exclusive, &keys, PACE, Parker::new());
        assert_eq!(ticket.position(at(0), false), Position::Contend);
        let id = enter(&ticket, 10);
        assert_eq!((fair_queues.count(), ticket.refusals()), (1, 1));
        assert_eq!(ticket.position(at(11), false), Position::Placed(at(910)));
        assert_eq!(
            ticket.position(at(910), false),
            Position::Refresh(vec![id.clone()], Wake::Backstop)
        );
        ticket.note_refreshed(std::slice::from_ref(&id), &[WAITING], sent_at(911));
        assert_eq!(ticket.position(at(912), false), Position::Placed(at(1811)));
        fair_queues.granted(&id, tokens(7));
        assert!(is_woken(&ticket));
        assert_eq!(
            ticket.position(at(913), false),
            grant(&id, 7, 911),
            "it may be as old as the last reply"
        );
        assert_eq!(ticket.forget_id(), None, "the call has taken the grant");
        drop(ticket);
        let state = fair_queues.state.lock();
        assert!(state.queues.iter().all(HashMap::is_empty) && state.owners.is_empty());
    }

    #[test]
    fn a_grant_can_arrive_before_the_reply_to_entering() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let ticket = fair_queues.join(Admission::Exclusive, &keys, PACE, Parker::new());
        let id = HolderId::fresh("o");
        ticket.begin_entering(&id);
        fair_queues.granted(&id, tokens(7));
        assert_eq!(
            ticket.position(at(20), false),
            Position::Contend,
            "nothing is known of its place yet"
        );
        ticket.note_entered(sent_at(10), None);
        assert_eq!(ticket.position(at(20), false), grant(&id, 7, 10));
    }

    #[test]
    fn a_grant_to_any_other_id_is_ignored() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let ticket = fair_queues.join(Admission::Exclusive, &keys, PACE, Parker::new());
        let before = enter(&ticket, 10);
        assert_eq!(ticket.forget_id(), Some(before.clone()));
        let id = enter(&ticket, 20);
        fair_queues.granted(&before, tokens(7));
        fair_queues.granted(&HolderId::fresh("o"), tokens(8));
        assert!(!is_woken(&ticket));
        assert_eq!(ticket.position(at(21), false), Position::Placed(at(920)));
        fair_queues.granted(&id, tokens(9));
        fair_queues.granted(&id, tokens(10));
        assert_eq!(
            ticket.position(at(22), false),
            grant(&id, 9, 20),
            "the first grant counts"
        );
        fair_queues.granted(&id, tokens(11));
        assert_eq!(
            ticket.position(at(23), false),
            Position::Contend,
            "the id is used up"
        );
    }

    #[test]
    fn one_waiter_refreshes_for_all_and_a_reply_counts_for_its_id_only() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let tickets: Vec<_> = (0..4)
            .map(|_| fair_queues.join(Admission::Exclusive, &keys, PACE, Parker::new()))
            .collect();
        let ids: Vec<_> = tickets.iter().map(|ticket| enter(ticket, 0)).collect();
        let Position::Refresh(asked, _) = tickets[2].position(at(900), false) else {
            panic!()
        };
        assert_eq!(asked, ids);
        assert_eq!(
            tickets[0].position(at(901), false),
            Position::Placed(at(1801)),
            "one at a time"
        );
        fair_queues.granted(&ids[1], tokens(7));
        let late = enter(&tickets[3], 902);
        use Refreshed::{Gone, Granted};
        tickets[2].note_refreshed(
            &asked,
            &[Gone, Gone, WAITING, Granted(token(8))],
            sent_at(900),
        );
        assert_eq!(tickets[0].position(at(903), false), Position::Contend);
        assert_eq!(
            tickets[1].position(at(903), false),
            grant(&ids[1], 7, 0),
            "the message came first"
        );
        assert_eq!(
            tickets[2].position(at(903), false),
            Position::Placed(at(1800))
        );
        assert_eq!(
            tickets[3].position(at(903), false),
            Position::Placed(at(1802)),
            "it waits under another id by now"
        );
        fair_queues.granted(&late, tokens(9));
        assert_eq!(tickets[3].position(at(904), false), grant(&late, 9, 902));
    }

    #[test]
    fn a_refresh_is_due_when_the_lock_expires_and_sooner_without_a_subscription() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let ticket = fair_queues.join(Admission::Exclusive, &keys, PACE, Parker::new());
        let id = HolderId::fresh("o");
        let next = |is_listening, remaining: Option<u64>| {
            ticket.begin_entering(&id);
            let reply = WaitingReply {
                is_listening,
                ..sent_at(100)
            };
            ticket.note_entered(reply, remaining.map(Duration::from_millis));
            ticket.position(at(101), false)
        };
        for (is_listening, remaining, due) in [
            (true, None, 1_000),
            (true, Some(5_000), 1_000),
            (true, Some(300), 402),
            (true, Some(0), 110),
            (false, None, 325),
            (false, Some(5_000), 325),
            (false, Some(100), 202),
        ] {
            let position = next(is_listening, remaining);
            assert_eq!(position, Position::Placed(at(due)), "{remaining:?}");
        }
    }

    #[test]
    fn a_due_refresh_is_run_by_another_waiter_if_one_leaves() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let (first, second) = (
            fair_queues.join(Admission::Exclusive, &keys, PACE, Parker::new()),
            fair_queues.join(Admission::Exclusive, &keys, PACE, Parker::new()),
        );
        let name = keys.key(0).name;
        let id = enter(&first, 0);
        fair_queues.refresh_now(name, Wake::Message);
        assert!(is_woken(&first));
        assert_eq!(
            first.position(at(1), false),
            Position::Refresh(vec![id.clone()], Wake::Message)
        );
        enter(&second, 2);
        fair_queues.refresh_now(name, Wake::Message);
        assert!(!is_woken(&second), "a refresh is in flight");
        first.note_refreshed(&[id], &[Refreshed::Granted(token(7))], sent_at(1));
        assert!(is_woken(&second), "that refresh may have been too early");
        first.position(at(3), false);
        drop(first);
        assert!(is_woken(&second), "no waiter has run it yet");
        assert!(matches!(
            second.position(at(4), false),
            Position::Refresh(_, Wake::Message)
        ));
        second.note_not_refreshed(Wake::Message, at(50));
        assert_eq!(second.position(at(5), false), Position::Placed(at(50)));
        assert!(matches!(
            second.position(at(50), false),
            Position::Refresh(_, Wake::Message)
        ));
    }

    /// It has slept since before the last reply, which told that the lock expires soon.
    #[test]
    fn waiter_that_would_oversleep_a_refresh_is_woken_if_another_leaves() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let [first, second] =
            [(); 2].map(|()| fair_queues.join(Admission::Exclusive, &keys, PACE, Parker::new()));
        let ids = [enter(&first, 0), enter(&second, 0)].to_vec();
        assert!(matches!(
            first.position(at(900), false),
            Position::Refresh(..)
        ));
        assert_eq!(second.position(at(901), false), Position::Placed(at(1_801)));
        let expires_soon = Refreshed::Waiting(Some(Duration::from_millis(50)));
        first.note_refreshed(&ids, &[expires_soon; 2], sent_at(901));
        assert_eq!(first.position(at(903), false), Position::Placed(at(953)));
        assert!(!is_woken(&second));
        drop(first);
        assert!(is_woken(&second));
        assert_eq!(second.position(at(904), false), Position::Placed(at(953)));
        assert!(matches!(
            second.position(at(953), false),
            Position::Refresh(..)
        ));
    }

    #[test]
    fn waiter_without_time_for_a_reply_passes_a_due_refresh_on_at_once() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let [first, second, third] =
            [(); 3].map(|()| fair_queues.join(Admission::Exclusive, &keys, PACE, Parker::new()));
        let ids = [&first, &second, &third]
            .map(|ticket| enter(ticket, 0))
            .to_vec();
        let refresh = |why| Position::Refresh(ids.clone(), why);
        assert_eq!(first.position(at(900), false), refresh(Wake::Backstop));
        first.pass_refresh_on(Wake::Backstop);
        assert!(is_woken(&second) && !is_woken(&first));
        assert_eq!(second.position(at(901), false), refresh(Wake::Backstop));
        second.pass_refresh_on(Wake::Backstop);
        assert!(is_woken(&third) && !is_woken(&first) && !is_woken(&second));
        let endless = Position::Placed(Instant::NEVER);
        assert_eq!(first.position(at(902), false), endless);
        assert_eq!(third.position(at(902), false), refresh(Wake::Backstop));
        third.note_refreshed(&ids, &[WAITING; 3], sent_at(902));
        fair_queues.refresh_now(keys.key(0).name, Wake::Message);
        assert!(is_woken(&third) && !is_woken(&first));
        fair_queues.granted(&ids[0], tokens(7));
        assert!(is_woken(&first));
        assert_eq!(first.position(at(903), false), grant(&ids[0], 7, 902));
    }

    #[test]
    fn refusal_counts_for_every_waiter_that_had_joined_before_it() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let [asks, waits] =
            [(); 2].map(|()| fair_queues.join(Admission::Exclusive, &keys, PACE, Parker::new()));
        let since = |start| Span {
            start: at(start),
            deadline: at(5_000),
            last_reply_took: Duration::ZERO,
        };
        asks.update_answers(&mut |answers| answers.refused(at(10), at(10), None));
        assert!(waits.answers().is_taken(since(10)) && !waits.answers().is_taken(since(11)));
    }

    #[test]
    fn at_shutdown_every_waiter_leaves_once() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let (waits, enters) = (
            fair_queues.join(Admission::Exclusive, &keys, PACE, Parker::new()),
            fair_queues.join(Admission::Exclusive, &keys, PACE, Parker::new()),
        );
        let id = enter(&waits, 0);
        let asking = HolderId::fresh("o");
        enters.begin_entering(&asking);
        fair_queues.granted(&id, tokens(7));
        let left: Vec<_> = fair_queues
            .leave_all()
            .into_iter()
            .map(|(_, id)| id)
            .collect();
        assert_eq!(left, [id], "a grant that no call has taken is passed on");
        assert_eq!(waits.forget_id(), None);
        assert_eq!(
            enters.forget_id(),
            Some(asking),
            "by itself, after its reply"
        );
    }
}
