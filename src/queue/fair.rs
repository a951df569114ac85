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
    lines: NameTable<QueueKeys>,
    /// Whose holder id it is: a grant names no lock.
    owners: HashMap<HolderId, Name>,
    next: u64,
}

/// Those who wait for one name, in the order in which they came.
#[derive(Debug)]
struct QueueKeys {
    keys: Arc<Keys>,
    fair_queues: Vec<FairWaiter>,
    /// One of them is refreshing the places of all.
    refreshing: Option<u64>,
    /// The last refresh went unanswered: none before then.
    not_before: Instant,
    /// A refresh is due at once, since the lock may be free or a grant unheard.
    look: Option<Wake>,
    answers: Answers,
}

#[derive(Debug)]
struct FairWaiter {
    /// Of a call, which may have one holder id after the other.
    turn: u64,
    id: Option<HolderId>,
    bell: Parker,
    /// When the last command was sent whose answer said that it waits: no grant is older. `None` until the first
    /// answer.
    proof: Option<Instant>,
    /// When it is refreshed.
    due: Instant,
    pace: RefreshPace,
    granted: Option<FencingToken>,
    /// By a message.
    is_heard: bool,
    refusals: u32,
}

/// A call's place; dropping it forgets the place here, not in Redis.
#[derive(Debug)]
pub(crate) struct FairTicket<'a> {
    fair_queues: &'a FairQueues,
    name: &'a Name,
    turn: u64,
    bell: Parker,
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
    pub(crate) proof: Instant,
    /// Its client was told, and did not have to ask.
    pub(crate) is_heard: bool,
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
        self.proof = self.proof.max(Some(sent));
        self.refusals = self.refusals.saturating_add(1);
        self.due = self.pace.next(sent, self.refusals);
    }

    /// Whether it has a place in Redis, and no grant yet.
    fn waits(&self) -> bool {
        self.id.is_some() && self.proof.is_some() && self.granted.is_none()
    }
}

impl QueueKeys {
    /// Wakes one to see to a look that nobody sees to.
    fn hand_look_on(&self) {
        if self.look.is_some()
            && self.refreshing.is_none()
            && let Some(first) = self.fair_queues.iter().find(|place| place.waits())
        {
            first.bell.ring();
        }
    }
}

impl State {
    fn look(&mut self, name: &Name, why: Wake) {
        if let Some(line) = self.lines.get_mut(name) {
            // What is to be looked at for nothing may since be looked at for something.
            if line.look.is_none_or(|before| before == Wake::Turn) {
                line.look = Some(why);
            }
            line.hand_look_on();
        }
    }

    /// Returns what wakes its call.
    fn grant(&mut self, id: &HolderId, token: FencingToken) -> Option<Parker> {
        let name = self.owners.get(id)?;
        let mut fair_queues = self.lines.get_mut(name)?.fair_queues.iter_mut();
        let place = fair_queues.find(|place| place.id.as_ref() == Some(id))?;
        if place.granted.is_some() {
            return None;
        }
        place.granted = Some(token);
        place.is_heard = true;
        Some(place.bell.clone())
    }
}

impl FairQueues {
    /// A call begins to wait.
    pub(crate) fn join<'a>(&'a self, keys: &'a Arc<Keys>, pace: RefreshPace) -> FairTicket<'a> {
        let name = keys.key(0).name;
        let bell = Parker::new();
        let mut state = self.state.lock();
        let turn = state.next;
        state.next += 1;
        let line = state
            .lines
            .entry(name.clone())
            .or_insert_with(|| QueueKeys {
                keys: Arc::clone(keys),
                fair_queues: Vec::new(),
                refreshing: None,
                not_before: Instant::START,
                look: None,
                answers: Answers::default(),
            });
        line.fair_queues.push(FairWaiter {
            turn,
            id: None,
            bell: bell.clone(),
            proof: None,
            due: Instant::NEVER,
            pace,
            granted: None,
            is_heard: false,
            refusals: 0,
        });
        FairTicket {
            fair_queues: self,
            name,
            turn,
            bell,
        }
    }

    /// Redis has made `id` the holder. Ignored unless a call waits under it.
    pub(crate) fn granted(&self, id: &HolderId, token: FencingToken) {
        let bell = self.state.lock().grant(id, token);
        // Outside the lock, since its waiter has nothing to ask anybody: it goes on at once.
        if let Some(bell) = bell {
            bell.ring();
        }
    }

    /// The places of `name` are to be refreshed at once.
    pub(crate) fn look(&self, name: &Name, why: Wake) {
        self.state.lock().look(name, why);
    }

    pub(crate) fn names(&self) -> Vec<Name> {
        self.state.lock().lines.keys().cloned().collect()
    }

    /// How many calls wait.
    pub(crate) fn count(&self) -> usize {
        let state = self.state.lock();
        let fair_queues = state.lines.values().flat_map(|line| &line.fair_queues);
        fair_queues.filter(|place| place.proof.is_some()).count()
    }

    pub(crate) fn anybody(&self) -> bool {
        !self.state.lock().lines.is_empty()
    }

    /// Wakes everybody; returns how many.
    pub(crate) fn ring_all(&self) -> usize {
        let mut state = self.state.lock();
        let mut count = 0;
        for line in state.lines.values_mut() {
            line.not_before = Instant::START;
            line.fair_queues.iter().for_each(|place| place.bell.ring());
            count += line.fair_queues.len();
        }
        count
    }

    /// Takes everybody out of line. Returns what is to be left in Redis: places, and grants that nobody has seen.
    pub(crate) fn leave_all(&self) -> Vec<(Arc<Keys>, HolderId)> {
        let mut state = self.state.lock();
        state.owners.clear();
        let mut left = Vec::new();
        for line in state.lines.values_mut() {
            // Whoever's first answer is still on its way leaves by itself.
            let there = line
                .fair_queues
                .iter_mut()
                .filter(|place| place.proof.is_some());
            left.extend(there.filter_map(|place| Some((Arc::clone(&line.keys), place.id.take()?))));
        }
        left
    }
}

impl FairTicket<'_> {
    fn line<T>(&self, act: impl FnOnce(&mut QueueKeys) -> T) -> T {
        let mut state = self.fair_queues.state.lock();
        // Our place keeps the line there until the spot is dropped.
        act(state
            .lines
            .get_mut(self.name)
            .expect("a line with a place in it"))
    }

    fn place<T>(&self, act: impl FnOnce(&mut FairWaiter) -> T) -> T {
        self.line(|line| act(self.own(&mut line.fair_queues)))
    }

    fn own<'p>(&self, fair_queues: &'p mut [FairWaiter]) -> &'p mut FairWaiter {
        let mut fair_queues = fair_queues.iter_mut();
        // Taken out only when the spot is dropped.
        fair_queues
            .find(|place| place.turn == self.turn)
            .expect("the place of a spot")
    }

    /// What the call sleeps on.
    pub(crate) fn bell(&self) -> &Parker {
        &self.bell
    }

    /// The call is about to ask for a place under `id`. From now on a grant to it counts.
    pub(crate) fn enters(&self, id: &HolderId) {
        let mut state = self.fair_queues.state.lock();
        state.owners.insert(id.clone(), self.name.clone());
        drop(state);
        self.place(|place| {
            place.id = Some(id.clone());
            place.proof = None;
            place.granted = None;
        });
    }

    /// What was sent at `sent` has made a place, while somebody holds the lock for `remaining` more.
    pub(crate) fn entered(&self, sent: Instant, remaining: Option<Duration>) {
        self.line(|line| {
            line.answers.refused(sent, remaining);
            self.own(&mut line.fair_queues).refused(sent);
        });
    }

    /// The call does not wait under its id any more: a grant to that does not count from now on. Returns the id, unless
    /// it was taken from the call.
    pub(crate) fn leaves(&self) -> Option<HolderId> {
        let id = self.place(|place| {
            place.proof = None;
            place.granted = None;
            place.id.take()
        })?;
        self.fair_queues.state.lock().owners.remove(&id);
        Some(id)
    }

    /// Whether any of its client's calls for the name hears of a grant.
    pub(crate) fn anybody_hears(&self) -> bool {
        self.line(|line| {
            line.fair_queues
                .iter()
                .any(|place| place.pace.backoff.is_none())
        })
    }

    /// Notes, or tells, what Redis last said to any call of this client that waits for the name.
    pub(crate) fn answers<T>(&self, act: impl FnOnce(&mut Answers) -> T) -> T {
        self.line(|line| act(&mut line.answers))
    }

    /// As [`Answers::is_taken`].
    pub(crate) fn is_taken(&self, span: Span) -> bool {
        self.answers(|answers| answers.is_taken(span))
    }

    /// How often Redis said that it waits.
    pub(crate) fn refusals(&self) -> u32 {
        self.place(|place| place.refusals)
    }

    /// What to do at `now`. A refresh that this asks for is told of by [`refreshed`](Self::refreshed) in any case.
    pub(crate) fn step(&self, now: Instant) -> FairStep {
        let step = self.line(|line| {
            let place = self.own(&mut line.fair_queues);
            let (Some(id), Some(proof)) = (&place.id, place.proof) else {
                return FairStep::Enter;
            };
            let every = place.pace.every;
            if let Some(token) = place.granted {
                let id = id.clone();
                return FairStep::Take(Grant {
                    id,
                    token,
                    proof,
                    is_heard: place.is_heard,
                });
            }
            let due = if line.look.is_some() { now } else { place.due };
            let due = due.max(line.not_before);
            if due > now {
                return FairStep::Sleep(due);
            }
            if line.refreshing.is_some() {
                // Its end rings for whoever has something to do then.
                return FairStep::Sleep(now.after(REFRESH_AT_LEAST.min(every)));
            }
            line.refreshing = Some(self.turn);
            let why = line.look.take().unwrap_or(Wake::Backstop);
            let waiting = line.fair_queues.iter().filter(|place| place.waits());
            FairStep::Refresh(waiting.filter_map(|place| place.id.clone()).collect(), why)
        });
        if let FairStep::Take(_) = step {
            self.leaves();
        }
        step
    }

    /// The refresh of `ids` that was sent at `sent` got these answers.
    pub(crate) fn refreshed(&self, ids: &[HolderId], answers: &[Refreshed], sent: Instant) {
        let is_taken = answers.contains(&Refreshed::Waiting);
        let answers: HashMap<_, _> = ids.iter().zip(answers).collect();
        let mut gone = Vec::new();
        self.line(|line| {
            match is_taken {
                // For how long, it does not say.
                true => line.answers.refused(sent, Some(Duration::ZERO)),
                false => line.answers.answered(),
            }
            line.refreshing = None;
            line.not_before = Instant::START;
            // Others have got their grant, or have given up, meanwhile.
            for place in line.fair_queues.iter_mut().filter(|place| place.waits()) {
                match place.id.as_ref().and_then(|id| answers.get(id)) {
                    Some(Refreshed::Waiting) => place.refused(sent),
                    Some(Refreshed::Granted(token)) => {
                        place.granted = Some(*token);
                        place.is_heard = false;
                        place.bell.ring();
                    }
                    Some(Refreshed::Gone) => {
                        gone.extend(place.id.take());
                        place.proof = None;
                        place.bell.ring();
                    }
                    None => {}
                }
            }
            line.hand_look_on();
        });
        let mut state = self.fair_queues.state.lock();
        for id in gone {
            state.owners.remove(&id);
        }
    }

    /// Nothing came of a refresh for that reason, and none is to be tried before `not_before`.
    pub(crate) fn not_refreshed(&self, why: Wake, not_before: Instant) {
        self.line(|line| {
            line.refreshing = None;
            line.not_before = not_before;
            line.look.get_or_insert(why);
        });
    }
}

impl Drop for FairTicket<'_> {
    fn drop(&mut self) {
        self.leaves();
        let mut state = self.fair_queues.state.lock();
        let Some(line) = state.lines.get_mut(self.name) else {
            return;
        };
        line.fair_queues.retain(|place| place.turn != self.turn);
        // After a panic in the midst of it.
        line.refreshing = line.refreshing.filter(|turn| *turn != self.turn);
        line.hand_look_on();
        if line.fair_queues.is_empty() {
            state.lines.remove(self.name);
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

    fn rung(spot: &FairTicket<'_>) -> bool {
        spot.bell().is_rung()
    }

    /// Asks at that instant and gets a place.
    fn enter(spot: &FairTicket<'_>, sent: u64) -> HolderId {
        let id = HolderId::fresh("o");
        spot.enters(&id);
        spot.entered(at(sent), None);
        id
    }

    fn grant(id: &HolderId, n: u64, proof: u64) -> FairStep {
        FairStep::Take(Grant {
            id: id.clone(),
            token: token(n),
            proof: at(proof),
            is_heard: true,
        })
    }

    #[test]
    fn smoke() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let spot = fair_queues.join(&keys, PACE);
        assert_eq!(spot.step(at(0)), FairStep::Enter);
        let id = enter(&spot, 10);
        assert_eq!((fair_queues.count(), spot.refusals()), (1, 1));
        assert_eq!(spot.step(at(11)), FairStep::Sleep(at(910)));
        assert_eq!(
            spot.step(at(910)),
            FairStep::Refresh(vec![id.clone()], Wake::Backstop)
        );
        spot.refreshed(std::slice::from_ref(&id), &[Refreshed::Waiting], at(911));
        assert_eq!(spot.step(at(912)), FairStep::Sleep(at(1811)));
        fair_queues.granted(&id, token(7));
        assert!(rung(&spot));
        assert_eq!(
            spot.step(at(913)),
            grant(&id, 7, 911),
            "it may be as old as the last answer"
        );
        assert_eq!(spot.leaves(), None, "the grant is the call's");
        drop(spot);
        let state = fair_queues.state.lock();
        assert!(state.lines.is_empty() && state.owners.is_empty());
    }

    #[test]
    fn a_grant_may_come_before_the_answer_that_it_waits() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let spot = fair_queues.join(&keys, PACE);
        let id = HolderId::fresh("o");
        spot.enters(&id);
        fair_queues.granted(&id, token(7));
        assert_eq!(
            spot.step(at(20)),
            FairStep::Enter,
            "nothing is known of its place yet"
        );
        spot.entered(at(10), None);
        assert_eq!(spot.step(at(20)), grant(&id, 7, 10));
    }

    #[test]
    fn a_grant_to_any_other_id_is_ignored() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let spot = fair_queues.join(&keys, PACE);
        let before = enter(&spot, 10);
        assert_eq!(spot.leaves(), Some(before.clone()));
        let id = enter(&spot, 20);
        fair_queues.granted(&before, token(7));
        fair_queues.granted(&HolderId::fresh("o"), token(8));
        assert!(!rung(&spot));
        assert_eq!(spot.step(at(21)), FairStep::Sleep(at(920)));
        fair_queues.granted(&id, token(9));
        fair_queues.granted(&id, token(10));
        assert_eq!(spot.step(at(22)), grant(&id, 9, 20), "once");
        fair_queues.granted(&id, token(11));
        assert_eq!(spot.step(at(23)), FairStep::Enter, "for good");
    }

    #[test]
    fn one_refreshes_for_all_and_an_answer_counts_for_its_own_id() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let spots: Vec<_> = (0..4).map(|_| fair_queues.join(&keys, PACE)).collect();
        let ids: Vec<_> = spots.iter().map(|spot| enter(spot, 0)).collect();
        let FairStep::Refresh(asked, _) = spots[2].step(at(900)) else {
            panic!()
        };
        assert_eq!(asked, ids);
        assert_eq!(
            spots[0].step(at(901)),
            FairStep::Sleep(at(1801)),
            "one at a time"
        );
        fair_queues.granted(&ids[1], token(7));
        let late = enter(&spots[3], 902);
        use Refreshed::{Gone, Granted, Waiting};
        spots[2].refreshed(&asked, &[Gone, Gone, Waiting, Granted(token(8))], at(900));
        assert_eq!(spots[0].step(at(903)), FairStep::Enter);
        assert_eq!(
            spots[1].step(at(903)),
            grant(&ids[1], 7, 0),
            "the message came first"
        );
        assert_eq!(spots[2].step(at(903)), FairStep::Sleep(at(1800)));
        assert_eq!(
            spots[3].step(at(903)),
            FairStep::Sleep(at(1802)),
            "it waits as another by now"
        );
        fair_queues.granted(&late, token(9));
        assert_eq!(spots[3].step(at(904)), grant(&late, 9, 902));
    }

    #[test]
    fn a_look_is_seen_to_whoever_leaves() {
        let (fair_queues, keys) = (FairQueues::default(), keys());
        let (first, second) = (fair_queues.join(&keys, PACE), fair_queues.join(&keys, PACE));
        let name = keys.key(0).name;
        let id = enter(&first, 0);
        fair_queues.look(name, Wake::Message);
        assert!(rung(&first));
        assert_eq!(
            first.step(at(1)),
            FairStep::Refresh(vec![id.clone()], Wake::Message)
        );
        enter(&second, 2);
        fair_queues.look(name, Wake::Message);
        assert!(!rung(&second), "one is on its way");
        first.refreshed(&[id], &[Refreshed::Granted(token(7))], at(1));
        assert!(rung(&second), "that one may have been too early");
        first.step(at(3));
        drop(first);
        assert!(rung(&second), "nobody has seen to it yet");
        assert!(matches!(
            second.step(at(4)),
            FairStep::Refresh(_, Wake::Message)
        ));
        second.not_refreshed(Wake::Message, at(50));
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
            asks.refreshed(std::slice::from_ref(&id), &[answer], at(sent));
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
        enters.enters(&asking);
        fair_queues.granted(&id, token(7));
        let left: Vec<_> = fair_queues
            .leave_all()
            .into_iter()
            .map(|(_, id)| id)
            .collect();
        assert_eq!(left, [id], "a grant that nobody has seen is passed on");
        assert_eq!(waits.leaves(), None);
        assert_eq!(enters.leaves(), Some(asking), "by itself, once it knows");
    }
}
