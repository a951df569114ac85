//! The calls of this client that wait for fair locks, each with its place in the queue in Redis. No I/O, no clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Instant;
use crate::holder::HolderId;
use crate::name::{Name, NameTable};
use crate::protocol::fair::Refreshed;
use crate::protocol::kind::Keys;
use crate::queue::answers::{Answers, Span};
use crate::queue::parker::Parker;
use crate::stats::Wake;
use crate::token::FencingToken;
use crate::wait_policy::Backoff;

/// How long nobody looks at a refresh that is on its way.
const REFRESH_AT_LEAST: Duration = Duration::from_secs(1);

/// Where the calls of this client stand in the queues of fair locks, as far as is known.
///
/// A holder id is granted at most once, and counts only for as long as it is the one that its call waits under: one
/// whose place is gone waits under another.
#[derive(Debug, Default)]
pub(crate) struct FairQueues {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queues: NameTable<NameQueue>,
    /// Whose holder id it is: a grant names no lock.
    owners: HashMap<HolderId, Name>,
    next_serial: u64,
}

/// Those who wait for one name, in the order in which they came.
#[derive(Debug)]
struct NameQueue {
    keys: Arc<Keys>,
    waiters: Vec<FairWaiter>,
    /// One of them is refreshing the places of all.
    refreshing: Option<u64>,
    /// The last refresh went unanswered: none before then.
    no_refresh_before: Instant,
    /// A refresh is due at once, since the lock may be free or a grant unheard.
    refresh_now: Option<Wake>,
    answers: Answers,
}

#[derive(Debug)]
struct FairWaiter {
    /// Of a call, which may have one holder id after the other.
    serial: u64,
    id: Option<HolderId>,
    parker: Parker,
    /// When the last command was sent whose answer said that it waits: no grant is older. `None` until the first
    /// answer.
    seen_waiting: Option<Instant>,
    /// When it is refreshed.
    due: Instant,
    pace: RefreshPace,
    granted: Option<FencingToken>,
    /// By a message.
    by_message: bool,
    refusals: u32,
}

/// A call's place; dropping it forgets the place here, not in Redis.
#[derive(Debug)]
pub(crate) struct FairTicket<'a> {
    fair_queues: &'a FairQueues,
    name: &'a Name,
    serial: u64,
    parker: Parker,
}

/// How long after one refresh the next is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefreshPace {
    pub(crate) every: Duration,
    /// Where its call hears of no grant.
    pub(crate) backoff: Option<Backoff>,
}

/// A lock that was passed to a call.
#[derive(Debug, PartialEq)]
pub(crate) struct Grant {
    pub(crate) id: HolderId,
    pub(crate) token: FencingToken,
    /// Before it was granted: it lasts its provisional time from then.
    pub(crate) seen_waiting: Instant,
    /// Its client was told, and did not have to ask.
    pub(crate) by_message: bool,
}

/// What a call is to do next.
#[derive(Debug, PartialEq)]
pub(crate) enum FairStep {
    /// It has no place.
    Enter,
    Take(Grant),
    /// Refresh these, which are all of its client's; it looks around for this reason.
    Refresh(Vec<HolderId>, Wake),
    Sleep(Instant),
}

impl RefreshPace {
    fn next(&self, sent: Instant, refusals: u32) -> Instant {
        let pause = self
            .backoff
            .map(|backoff| backoff.pause(refusals.saturating_sub(1)));
        sent.after(self.every.min(pause.unwrap_or(Duration::MAX)))
    }
}

impl FairWaiter {
    /// A command sent at `sent` was answered: it waits.
    fn refused(&mut self, sent: Instant) {
        self.seen_waiting = self.seen_waiting.max(Some(sent));
        self.refusals = self.refusals.saturating_add(1);
        self.due = self.pace.next(sent, self.refusals);
    }

    /// Whether it has a place in Redis, and no grant yet.
    fn waits(&self) -> bool {
        self.id.is_some() && self.seen_waiting.is_some() && self.granted.is_none()
    }
}

impl NameQueue {
    /// Wakes one to see to a look that nobody sees to.
    fn wake_one_to_refresh(&self) {
        if self.refresh_now.is_some()
            && self.refreshing.is_none()
            && let Some(first) = self.waiters.iter().find(|waiter| waiter.waits())
        {
            first.parker.unpark();
        }
    }
}

impl State {
    fn refresh_now(&mut self, name: &Name, why: Wake) {
        if let Some(queue) = self.queues.get_mut(name) {
            // What is to be looked at for nothing may since be looked at for something.
            if queue.refresh_now.is_none_or(|before| before == Wake::Turn) {
                queue.refresh_now = Some(why);
            }
            queue.wake_one_to_refresh();
        }
    }

    /// Returns what wakes its call.
    fn grant(&mut self, id: &HolderId, token: FencingToken) -> Option<Parker> {
        let name = self.owners.get(id)?;
        let mut waiters = self.queues.get_mut(name)?.waiters.iter_mut();
        let waiter = waiters.find(|waiter| waiter.id.as_ref() == Some(id))?;
        if waiter.granted.is_some() {
            return None;
        }
        waiter.granted = Some(token);
        waiter.by_message = true;
        Some(waiter.parker.clone())
    }
}

impl FairQueues {
    /// A call begins to wait.
    pub(crate) fn join<'a>(&'a self, keys: &'a Arc<Keys>, pace: RefreshPace) -> FairTicket<'a> {
        let name = keys.key(0).name;
        let parker = Parker::new();
        let mut state = self.state.lock();
        let serial = state.next_serial;
        state.next_serial += 1;
        let queue = state
            .queues
            .entry(name.clone())
            .or_insert_with(|| NameQueue {
                keys: Arc::clone(keys),
                waiters: Vec::new(),
                refreshing: None,
                no_refresh_before: Instant::START,
                refresh_now: None,
                answers: Answers::default(),
            });
        queue.waiters.push(FairWaiter {
            serial,
            id: None,
            parker: parker.clone(),
            seen_waiting: None,
            due: Instant::NEVER,
            pace,
            granted: None,
            by_message: false,
            refusals: 0,
        });
        FairTicket {
            fair_queues: self,
            name,
            serial,
            parker,
        }
    }

    /// Redis has made `id` the holder. Ignored unless a call waits under it.
    pub(crate) fn granted(&self, id: &HolderId, token: FencingToken) {
        let parker = self.state.lock().grant(id, token);
        // Outside the lock, since its waiter has nothing to ask anybody: it goes on at once.
        if let Some(parker) = parker {
            parker.unpark();
        }
    }

    /// The places of `name` are to be refreshed at once.
    pub(crate) fn refresh_now(&self, name: &Name, why: Wake) {
        self.state.lock().refresh_now(name, why);
    }

    pub(crate) fn names(&self) -> Vec<Name> {
        self.state.lock().queues.keys().cloned().collect()
    }

    /// How many calls wait.
    pub(crate) fn count(&self) -> usize {
        let state = self.state.lock();
        let waiters = state.queues.values().flat_map(|queue| &queue.waiters);
        waiters
            .filter(|waiter| waiter.seen_waiting.is_some())
            .count()
    }

    pub(crate) fn anybody(&self) -> bool {
        !self.state.lock().queues.is_empty()
    }

    /// Wakes everybody; returns how many.
    pub(crate) fn wake_all(&self) -> usize {
        let mut state = self.state.lock();
        let mut count = 0;
        for queue in state.queues.values_mut() {
            queue.no_refresh_before = Instant::START;
            queue
                .waiters
                .iter()
                .for_each(|waiter| waiter.parker.unpark());
            count += queue.waiters.len();
        }
        count
    }

    /// Takes everybody out of line. Returns what is to be left in Redis: places, and grants that nobody has seen.
    pub(crate) fn leave_all(&self) -> Vec<(Arc<Keys>, HolderId)> {
        let mut state = self.state.lock();
        state.owners.clear();
        let mut left = Vec::new();
        for queue in state.queues.values_mut() {
            // Whoever's first answer is still on its way leaves by itself.
            let there = queue
                .waiters
                .iter_mut()
                .filter(|waiter| waiter.seen_waiting.is_some());
            left.extend(
                there.filter_map(|waiter| Some((Arc::clone(&queue.keys), waiter.id.take()?))),
            );
        }
        left
    }
}

impl FairTicket<'_> {
    fn with_queue<T>(&self, act: impl FnOnce(&mut NameQueue) -> T) -> T {
        let mut state = self.fair_queues.state.lock();
        // Our place keeps the line there until the spot is dropped.
        act(state
            .queues
            .get_mut(self.name)
            .expect("a queue with a waiter in it"))
    }

    fn with_waiter<T>(&self, act: impl FnOnce(&mut FairWaiter) -> T) -> T {
        self.with_queue(|queue| act(self.own_waiter(&mut queue.waiters)))
    }

    fn own_waiter<'p>(&self, waiters: &'p mut [FairWaiter]) -> &'p mut FairWaiter {
        let mut waiters = waiters.iter_mut();
        // Taken out only when the spot is dropped.
        waiters
            .find(|waiter| waiter.serial == self.serial)
            .expect("the waiter of a ticket")
    }

    /// What the call sleeps on.
    pub(crate) fn parker(&self) -> &Parker {
        &self.parker
    }

    /// The call is about to ask for a place under `id`. From now on a grant to it counts.
    pub(crate) fn begin_entering(&self, id: &HolderId) {
        let mut state = self.fair_queues.state.lock();
        state.owners.insert(id.clone(), self.name.clone());
        drop(state);
        self.with_waiter(|waiter| {
            waiter.id = Some(id.clone());
            waiter.seen_waiting = None;
            waiter.granted = None;
        });
    }

    /// What was sent at `sent` has made a place, while somebody holds the lock for `remaining` more.
    pub(crate) fn note_entered(&self, sent: Instant, remaining: Option<Duration>) {
        self.with_queue(|queue| {
            queue.answers.refused(sent, remaining);
            self.own_waiter(&mut queue.waiters).refused(sent);
        });
    }

    /// The call does not wait under its id any more: a grant to that does not count from now on. Returns the id, unless
    /// it was taken from the call.
    pub(crate) fn forget_id(&self) -> Option<HolderId> {
        let id = self.with_waiter(|waiter| {
            waiter.seen_waiting = None;
            waiter.granted = None;
            waiter.id.take()
        })?;
        self.fair_queues.state.lock().owners.remove(&id);
        Some(id)
    }

    /// Whether any of its client's calls for the name hears of a grant.
    pub(crate) fn any_subscribed(&self) -> bool {
        self.with_queue(|queue| {
            queue
                .waiters
                .iter()
                .any(|waiter| waiter.pace.backoff.is_none())
        })
    }

    /// Notes, or tells, what Redis last said to any call of this client that waits for the name.
    pub(crate) fn answers<T>(&self, act: impl FnOnce(&mut Answers) -> T) -> T {
        self.with_queue(|queue| act(&mut queue.answers))
    }

    /// As [`Answers::is_taken`].
    pub(crate) fn is_taken(&self, span: Span) -> bool {
        self.answers(|answers| answers.is_taken(span))
    }

    /// How often Redis said that it waits.
    pub(crate) fn refusals(&self) -> u32 {
        self.with_waiter(|waiter| waiter.refusals)
    }

    /// What to do at `now`. A refresh that this asks for is told of by [`refreshed`](Self::refreshed) in any case.
    pub(crate) fn step(&self, now: Instant) -> FairStep {
        let step = self.with_queue(|queue| {
            let waiter = self.own_waiter(&mut queue.waiters);
            let (Some(id), Some(seen_waiting)) = (&waiter.id, waiter.seen_waiting) else {
                return FairStep::Enter;
            };
            let every = waiter.pace.every;
            if let Some(token) = waiter.granted {
                let id = id.clone();
                return FairStep::Take(Grant {
                    id,
                    token,
                    seen_waiting,
                    by_message: waiter.by_message,
                });
            }
            let due = if queue.refresh_now.is_some() {
                now
            } else {
                waiter.due
            };
            let due = due.max(queue.no_refresh_before);
            if due > now {
                return FairStep::Sleep(due);
            }
            if queue.refreshing.is_some() {
                // Its end rings for whoever has something to do then.
                return FairStep::Sleep(now.after(REFRESH_AT_LEAST.min(every)));
            }
            queue.refreshing = Some(self.serial);
            let why = queue.refresh_now.take().unwrap_or(Wake::Backstop);
            let waiting = queue.waiters.iter().filter(|waiter| waiter.waits());
            FairStep::Refresh(
                waiting.filter_map(|waiter| waiter.id.clone()).collect(),
                why,
            )
        });
        if let FairStep::Take(_) = step {
            self.forget_id();
        }
        step
    }

    /// The refresh of `ids` that was sent at `sent` got these answers.
    pub(crate) fn note_refreshed(&self, ids: &[HolderId], answers: &[Refreshed], sent: Instant) {
        let is_taken = answers.contains(&Refreshed::Waiting);
        let answers: HashMap<_, _> = ids.iter().zip(answers).collect();
        let mut gone = Vec::new();
        self.with_queue(|queue| {
            match is_taken {
                // For how long, it does not say.
                true => queue.answers.refused(sent, Some(Duration::ZERO)),
                false => queue.answers.answered(),
            }
            queue.refreshing = None;
            queue.no_refresh_before = Instant::START;
            // Others have got their grant, or have given up, meanwhile.
            for waiter in queue.waiters.iter_mut().filter(|waiter| waiter.waits()) {
                match waiter.id.as_ref().and_then(|id| answers.get(id)) {
                    Some(Refreshed::Waiting) => waiter.refused(sent),
                    Some(Refreshed::Granted(token)) => {
                        waiter.granted = Some(*token);
                        waiter.by_message = false;
                        waiter.parker.unpark();
                    }
                    Some(Refreshed::Gone) => {
                        gone.extend(waiter.id.take());
                        waiter.seen_waiting = None;
                        waiter.parker.unpark();
                    }
                    None => {}
                }
            }
            queue.wake_one_to_refresh();
        });
        let mut state = self.fair_queues.state.lock();
        for id in gone {
            state.owners.remove(&id);
        }
    }

    /// Nothing came of a refresh for that reason, and none is to be tried before `not_before`.
    pub(crate) fn note_not_refreshed(&self, why: Wake, no_refresh_before: Instant) {
        self.with_queue(|queue| {
            queue.refreshing = None;
            queue.no_refresh_before = no_refresh_before;
            queue.refresh_now.get_or_insert(why);
        });
    }
}

impl Drop for FairTicket<'_> {
    fn drop(&mut self) {
        self.forget_id();
        let mut state = self.fair_queues.state.lock();
        let Some(queue) = state.queues.get_mut(self.name) else {
            return;
        };
        queue.waiters.retain(|waiter| waiter.serial != self.serial);
        // After a panic in the midst of it.
        queue.refreshing = queue.refreshing.filter(|serial| *serial != self.serial);
        queue.wake_one_to_refresh();
        if queue.waiters.is_empty() {
            state.queues.remove(self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: RefreshPace = RefreshPace {
        every: Duration::from_millis(900),
        backoff: None,
    };

    fn at(n: u64) -> Instant {
        Instant::START.after(Duration::from_millis(n))
    }

    fn keys() -> Arc<Keys> {
        Arc::new(Keys::new("a".into(), "lock:", "r:").fair())
    }

    fn token(n: u64) -> FencingToken {
        FencingToken::new(n)
    }

    fn is_woken(ticket: &FairTicket<'_>) -> bool {
        ticket.parker().is_unparked()
    }

    /// Asks at that instant and gets a place.
    fn enter(ticket: &FairTicket<'_>, sent: u64) -> HolderId {
        let id = HolderId::fresh("o");
        ticket.begin_entering(&id);
        ticket.note_entered(at(sent), None);
        id
    }

    fn grant(id: &HolderId, n: u64, seen_waiting: u64) -> FairStep {
        FairStep::Take(Grant {
            id: id.clone(),
            token: token(n),
            seen_waiting: at(seen_waiting),
            by_message: true,
        })
    }

    #[test]
    fn smoke() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let ticket = fair_queues.join(&keys, PACE);
        assert_eq!(ticket.step(at(0)), FairStep::Enter);
        let id = enter(&ticket, 10);
        assert_eq!((fair_queues.count(), ticket.refusals()), (1, 1));
        assert_eq!(ticket.step(at(11)), FairStep::Sleep(at(910)));
        assert_eq!(
            ticket.step(at(910)),
            FairStep::Refresh(vec![id.clone()], Wake::Backstop)
        );
        ticket.note_refreshed(std::slice::from_ref(&id), &[Refreshed::Waiting], at(911));
        assert_eq!(ticket.step(at(912)), FairStep::Sleep(at(1811)));
        fair_queues.granted(&id, token(7));
        assert!(is_woken(&ticket));
        assert_eq!(
            ticket.step(at(913)),
            grant(&id, 7, 911),
            "it may be as old as the last answer"
        );
        assert_eq!(ticket.forget_id(), None, "the grant is the call's");
        drop(ticket);
        let state = fair_queues.state.lock();
        assert!(state.queues.is_empty() && state.owners.is_empty());
    }

    #[test]
    fn a_grant_may_come_before_the_answer_that_it_waits() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let ticket = fair_queues.join(&keys, PACE);
        let id = HolderId::fresh("o");
        ticket.begin_entering(&id);
        fair_queues.granted(&id, token(7));
        assert_eq!(
            ticket.step(at(20)),
            FairStep::Enter,
            "nothing is known of its place yet"
        );
        ticket.note_entered(at(10), None);
        assert_eq!(ticket.step(at(20)), grant(&id, 7, 10));
    }

    #[test]
    fn a_grant_to_any_other_id_is_ignored() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let ticket = fair_queues.join(&keys, PACE);
        let before = enter(&ticket, 10);
        assert_eq!(ticket.forget_id(), Some(before.clone()));
        let id = enter(&ticket, 20);
        fair_queues.granted(&before, token(7));
        fair_queues.granted(&HolderId::fresh("o"), token(8));
        assert!(!is_woken(&ticket));
        assert_eq!(ticket.step(at(21)), FairStep::Sleep(at(920)));
        fair_queues.granted(&id, token(9));
        fair_queues.granted(&id, token(10));
        assert_eq!(ticket.step(at(22)), grant(&id, 9, 20), "once");
        fair_queues.granted(&id, token(11));
        assert_eq!(ticket.step(at(23)), FairStep::Enter, "for good");
    }

    #[test]
    fn one_refreshes_for_all_and_an_answer_counts_for_its_own_id() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let tickets: Vec<_> = (0..4).map(|_| fair_queues.join(&keys, PACE)).collect();
        let ids: Vec<_> = tickets.iter().map(|ticket| enter(ticket, 0)).collect();
        let FairStep::Refresh(asked, _) = tickets[2].step(at(900)) else {
            panic!()
        };
        assert_eq!(asked, ids);
        assert_eq!(
            tickets[0].step(at(901)),
            FairStep::Sleep(at(1801)),
            "one at a time"
        );
        fair_queues.granted(&ids[1], token(7));
        let late = enter(&tickets[3], 902);
        use Refreshed::{Gone, Granted, Waiting};
        tickets[2].note_refreshed(&asked, &[Gone, Gone, Waiting, Granted(token(8))], at(900));
        assert_eq!(tickets[0].step(at(903)), FairStep::Enter);
        assert_eq!(
            tickets[1].step(at(903)),
            grant(&ids[1], 7, 0),
            "the message came first"
        );
        assert_eq!(tickets[2].step(at(903)), FairStep::Sleep(at(1800)));
        assert_eq!(
            tickets[3].step(at(903)),
            FairStep::Sleep(at(1802)),
            "it waits as another by now"
        );
        fair_queues.granted(&late, token(9));
        assert_eq!(tickets[3].step(at(904)), grant(&late, 9, 902));
    }

    #[test]
    fn a_look_is_seen_to_whoever_leaves() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let (first, second) = (fair_queues.join(&keys, PACE), fair_queues.join(&keys, PACE));
        let name = keys.key(0).name;
        let id = enter(&first, 0);
        fair_queues.refresh_now(name, Wake::Message);
        assert!(is_woken(&first));
        assert_eq!(
            first.step(at(1)),
            FairStep::Refresh(vec![id.clone()], Wake::Message)
        );
        enter(&second, 2);
        fair_queues.refresh_now(name, Wake::Message);
        assert!(!is_woken(&second), "one is on its way");
        first.note_refreshed(&[id], &[Refreshed::Granted(token(7))], at(1));
        assert!(is_woken(&second), "that one may have been too early");
        first.step(at(3));
        drop(first);
        assert!(is_woken(&second), "nobody has seen to it yet");
        assert!(matches!(
            second.step(at(4)),
            FairStep::Refresh(_, Wake::Message)
        ));
        second.note_not_refreshed(Wake::Message, at(50));
        assert_eq!(second.step(at(5)), FairStep::Sleep(at(50)));
        assert!(matches!(
            second.step(at(50)),
            FairStep::Refresh(_, Wake::Message)
        ));
    }

    #[test]
    fn an_answer_counts_for_all_who_waited_then() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let (asks, waits) = (fair_queues.join(&keys, PACE), fair_queues.join(&keys, PACE));
        let id = enter(&asks, 10);
        let since = |start| Span {
            start: at(start),
            deadline: at(5_000),
        };
        assert!(waits.is_taken(since(10)) && !waits.is_taken(since(11)));
        let refresh = |answer, sent| {
            assert!(matches!(asks.step(at(sent)), FairStep::Refresh(..)));
            asks.note_refreshed(std::slice::from_ref(&id), &[answer], at(sent));
        };
        refresh(Refreshed::Waiting, 1_000);
        assert!(waits.is_taken(since(1_000)));
        waits.answers(|answers| answers.failed(at(1_500)));
        assert!(
            !waits.is_taken(since(1_000)),
            "it does not say for how long"
        );
        refresh(Refreshed::Gone, 2_000);
        assert!(waits.is_taken(since(1_000)) && !waits.is_taken(since(1_001)));
    }

    #[test]
    fn at_the_end_everybody_leaves_once() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let (waits, enters) = (fair_queues.join(&keys, PACE), fair_queues.join(&keys, PACE));
        let id = enter(&waits, 0);
        let asking = HolderId::fresh("o");
        enters.begin_entering(&asking);
        fair_queues.granted(&id, token(7));
        let left: Vec<_> = fair_queues
            .leave_all()
            .into_iter()
            .map(|(_, id)| id)
            .collect();
        assert_eq!(left, [id], "a grant that nobody has seen is passed on");
        assert_eq!(waits.forget_id(), None);
        assert_eq!(enters.forget_id(), Some(asking), "by itself, once it knows");
    }
}
