//! The calls of this client that wait for sets of names, each by a place in the queue of one name
//! at a time. No I/O, no clock.
//!
//! The states of a set, which the replies to its calls decide:
//!
//! ```text
//!            first refusal                 granted, but a higher name refuses
//! no place ----------------> queued, -------------------------------------> queued, keeps
//!   |  ^                     keeps nothing <---------- after 5 s ----------- all lower names
//!   |  |                       |       |                                      |         |
//!   |  +-- the place, or a name that it keeps, is gone: another holder id ----+         |
//!   |                                  |                                                |
//!   +--- all are free ---> held <------+--- granted, and all others free ---------------+
//! ```

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::name::Name;
use crate::parker::Parker;
use crate::protocol::primitive::{PartOfSet, Primitive};
use crate::queue::answers::Answers;
use crate::queue::name_places::{RefreshPace, WaitingReply};
use crate::queue::position::{Position, Queue};
use crate::sync::Mutex;

/// How long a set keeps names while it waits for others.
///
/// The limit ends a deadlock: a program that holds a name and locks a lower one can wait for a name
/// that the set keeps, while the set waits for the name that the program holds.
const KEEPS_FOR: Duration = Duration::from_secs(5);

/// The places of this client's sets, as far as known.
#[derive(Debug, Default)]
pub(crate) struct SetQueue {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiters: HashMap<u64, SetWaiter>,
    next_serial: u64,
}

#[derive(Debug)]
struct SetWaiter {
    keys: Arc<dyn Primitive>,
    parker: Parker,
    /// The holder id of the place in Redis, or of the call under way. A set that starts over uses
    /// another.
    id: Option<HolderId>,
    /// `None` before the first reply under the id.
    has: Option<PartOfSet>,
    /// Since when the set keeps names.
    keeps_since: Option<Instant>,
    /// When the set must ask again.
    due: Instant,
    /// When it must ask again because of the last plain release. The reply to a call that ran
    /// before does not change this.
    after_plain: Instant,
    /// The set must ask at once.
    must_ask: bool,
    answers: Answers,
}

/// A set's waiter; dropping it removes it here, not in Redis.
#[derive(Debug)]
pub(crate) struct SetTicket<'a> {
    queue: &'a SetQueue,
    serial: u64,
    parker: Parker,
    pace: RefreshPace,
    refusals: Cell<u32>,
}

impl SetWaiter {
    fn name(&self) -> Option<&Name> {
        self.keys.names.get(self.has?.waits_for)
    }

    fn wake(&mut self) {
        self.must_ask = true;
        self.parker.unpark();
    }
}

impl SetQueue {
    /// Adds a waiter for the set of `keys`.
    pub(crate) fn join<'a>(
        &'a self,
        keys: &Arc<dyn Primitive>,
        pace: RefreshPace,
    ) -> SetTicket<'a> {
        let mut state = self.state.lock();
        let (serial, parker) = (state.next_serial, Parker::new());
        state.next_serial += 1;
        let waiter = SetWaiter {
            keys: Arc::clone(keys),
            parker: parker.clone(),
            id: None,
            has: None,
            keeps_since: None,
            due: Instant::NEVER,
            after_plain: Instant::NEVER,
            must_ask: false,
            answers: Answers::default(),
        };
        state.waiters.insert(serial, waiter);
        SetTicket {
            queue: self,
            serial,
            parker,
            pace,
            refusals: Cell::new(0),
        }
    }

    /// Wakes the set that waits under `id`: Redis has granted it a name.
    pub(crate) fn granted(&self, id: &HolderId) {
        let mut state = self.state.lock();
        let mut waiters = state.waiters.values_mut();
        if let Some(waiter) = waiters.find(|waiter| waiter.id.as_ref() == Some(id)) {
            waiter.wake();
        }
    }

    /// Wakes the sets that wait for `name`: it may be free.
    pub(crate) fn ask_now(&self, name: &Name) {
        let mut state = self.state.lock();
        let waiters = state.waiters.values_mut();
        for waiter in waiters.filter(|waiter| waiter.name() == Some(name)) {
            waiter.wake();
        }
    }

    /// Makes the set that waits under the id `first` ask again at `first_at` after a plain release,
    /// and the others that wait for `name` at `others_at`.
    pub(crate) fn ask_in_turn(
        &self,
        name: &Name,
        first: &HolderId,
        first_at: Instant,
        others_at: Instant,
    ) {
        let mut state = self.state.lock();
        for waiter in state.waiters.values_mut() {
            let at = match waiter.id.as_ref() == Some(first) {
                true => first_at,
                false if waiter.name() == Some(name) => others_at,
                false => continue,
            };
            waiter.after_plain = at;
            waiter.parker.unpark();
        }
    }

    /// Returns the names for which sets have a place.
    pub(crate) fn names(&self) -> Vec<Name> {
        let state = self.state.lock();
        let names = state.waiters.values().filter_map(SetWaiter::name);
        names.cloned().collect()
    }

    /// Returns how many sets have a place in Redis.
    pub(crate) fn count(&self) -> usize {
        let state = self.state.lock();
        let waiters = state.waiters.values();
        waiters.filter(|waiter| waiter.has.is_some()).count()
    }

    #[cfg(test)]
    pub(crate) fn anybody(&self) -> bool {
        !self.state.lock().waiters.is_empty()
    }

    /// Wakes all waiters; returns how many.
    pub(crate) fn wake_all(&self) -> usize {
        let mut state = self.state.lock();
        let waiters = state.waiters.values_mut();
        waiters.map(SetWaiter::wake).count()
    }

    /// Removes all holder ids with a place, and returns them: they must leave Redis.
    pub(crate) fn leave_all(&self) -> Vec<(Arc<dyn Primitive>, HolderId)> {
        let mut state = self.state.lock();
        let waiters = state.waiters.values_mut();
        // A set whose first reply is outstanding leaves by itself.
        let ids = waiters.filter_map(|waiter| {
            waiter.has.take()?;
            Some((Arc::clone(&waiter.keys), waiter.id.take()?))
        });
        ids.collect()
    }
}

impl SetTicket<'_> {
    fn with_waiter<T>(&self, act: impl FnOnce(&mut SetWaiter) -> T) -> T {
        let mut state = self.queue.state.lock();
        let waiter = state.waiters.get_mut(&self.serial);
        act(waiter.expect("only dropping the ticket removes its waiter"))
    }

    /// Records that the call is about to ask at `now`; `fresh` is its id unless it has one.
    ///
    /// Returns its id, what the set has under that id, and whether it keeps the names below the one
    /// that it must wait for.
    pub(crate) fn begin_call(
        &self,
        now: Instant,
        fresh: impl FnOnce() -> HolderId,
    ) -> (HolderId, Option<PartOfSet>, bool) {
        self.with_waiter(|waiter| {
            waiter.must_ask = false;
            waiter.after_plain = Instant::NEVER;
            let has_kept_enough = (waiter.keeps_since).is_some_and(|at| at.after(KEEPS_FOR) <= now);
            let keeps = waiter.has.is_some() && !has_kept_enough;
            (
                waiter.id.get_or_insert_with(fresh).clone(),
                waiter.has,
                keeps,
            )
        })
    }

    /// Records the reply that the set waits: what it has, and for how long the name that it waits
    /// for is held, `None` if without end.
    pub(crate) fn note_queued(
        &self,
        has: PartOfSet,
        reply: WaitingReply,
        remaining: Option<Duration>,
    ) {
        self.refusals.set(self.refusals.get().saturating_add(1));
        let next = self.pace.next(reply, remaining, self.refusals.get());
        self.with_waiter(|waiter| {
            waiter.has = Some(has);
            waiter.keeps_since = match has.kept {
                0 => None,
                _ => waiter.keeps_since.or(Some(reply.sent)),
            };
            let keeps_until = waiter
                .keeps_since
                .map_or(Instant::NEVER, |at| at.after(KEEPS_FOR));
            waiter.due = next.min(keeps_until);
        });
    }

    /// Ends the wait under the current id. Returns the id if a reply has said that it has a place.
    pub(crate) fn forget_id(&self) -> Option<HolderId> {
        self.with_waiter(|waiter| {
            waiter.keeps_since = None;
            let id = waiter.id.take();
            waiter.has.take().and(id)
        })
    }
}

impl Queue for SetTicket<'_> {
    fn position(&self, now: Instant, _must_try: bool) -> Position {
        self.with_waiter(|waiter| {
            let due = waiter.due.min(waiter.after_plain);
            match waiter.has {
                Some(_) if !waiter.must_ask && now < due => Position::Placed(due),
                _ => Position::Contend,
            }
        })
    }

    fn parker(&self) -> &Parker {
        &self.parker
    }

    fn about_to_try(&self, now: Instant) -> bool {
        self.with_waiter(|waiter| waiter.answers.asked(now));
        // No lease of a set is handed off.
        false
    }

    fn answers(&self) -> Answers {
        self.with_waiter(|waiter| waiter.answers.clone())
    }

    fn update_answers(&self, act: &mut dyn FnMut(&mut Answers)) {
        self.with_waiter(|waiter| act(&mut waiter.answers));
    }
}

impl Drop for SetTicket<'_> {
    fn drop(&mut self) {
        self.queue.state.lock().waiters.remove(&self.serial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::all::MutexAllKeys;
    use crate::protocol::keys::Layout;
    use crate::queue::places::tests::{PACE, at, sent_at};

    fn keys() -> Arc<dyn Primitive> {
        let names = ["a", "b"].map(Name::from).to_vec();
        MutexAllKeys::of(names, "lock:", "r:", Layout::OneServer, true)
    }

    /// Asks at `now` and is queued; returns the id and whether the set kept the lower names.
    fn ask(ticket: &SetTicket<'_>, now: u64, waits_for: usize, kept: usize) -> (HolderId, bool) {
        let (id, _, keeps) = ticket.begin_call(at(now), || HolderId::fresh("o"));
        ticket.note_queued(PartOfSet { waits_for, kept }, sent_at(now), None);
        (id, keeps)
    }

    #[test]
    fn a_set_asks_again_when_it_is_woken_or_its_place_needs_a_refresh() {
        let (sets, keys) = (SetQueue::default(), keys());
        let ticket = sets.join(&keys, PACE);
        assert_eq!(ticket.position(at(0), false), Position::Contend);
        let (id, keeps) = ask(&ticket, 10, 1, 0);
        assert!(!keeps, "after its first refusal");
        assert_eq!(sets.names(), ["b"].map(Name::from));
        let placed = Position::Placed(at(910));
        assert_eq!(ticket.position(at(11), false), placed);
        sets.ask_now(&"a".into());
        sets.granted(&HolderId::fresh("o"));
        assert_eq!(ticket.position(at(12), false), placed);
        sets.granted(&id);
        assert!(ticket.parker().is_unparked());
        assert_eq!(ticket.position(at(13), false), Position::Contend);
        assert_eq!(ask(&ticket, 13, 0, 0), (id, true));
        sets.ask_now(&"a".into());
        assert_eq!(ticket.position(at(14), false), Position::Contend);
    }

    /// The reply to a call that ran before the release does not postpone that.
    #[test]
    fn a_set_asks_soon_after_a_plain_release() {
        let (sets, keys) = (SetQueue::default(), keys());
        let ticket = sets.join(&keys, PACE);
        let (id, _, _) = ticket.begin_call(at(10), || HolderId::fresh("o"));
        sets.ask_in_turn(&"b".into(), &id, at(13), at(40));
        let part = PartOfSet {
            waits_for: 1,
            kept: 0,
        };
        ticket.note_queued(part, sent_at(10), None);
        let placed_until = |until| Position::Placed(at(until));
        assert_eq!(ticket.position(at(12), false), placed_until(13));
        ask(&ticket, 13, 1, 0);
        assert_eq!(ticket.position(at(14), false), placed_until(913));
        let other = HolderId::fresh("o");
        sets.ask_in_turn(&"a".into(), &other, at(15), at(40));
        assert_eq!(ticket.position(at(14), false), placed_until(913));
        sets.ask_in_turn(&"b".into(), &other, at(15), at(40));
        assert_eq!(ticket.position(at(14), false), placed_until(40));
    }

    #[test]
    fn a_set_keeps_names_for_5_s() {
        let (sets, keys) = (SetQueue::default(), keys());
        let ticket = sets.join(&keys, PACE);
        ask(&ticket, 0, 0, 0);
        for now in (1_000..5_600).step_by(900) {
            assert!(ask(&ticket, now, 1, 1).1, "{now} ms");
        }
        assert_eq!(
            ticket.position(at(5_600), false),
            Position::Placed(at(6_000)),
            "sooner than a refresh"
        );
        assert!(!ask(&ticket, 6_000, 1, 0).1);
        assert!(ask(&ticket, 6_900, 1, 1).1, "it may begin again");
    }

    #[test]
    fn a_set_leaves_once_and_begins_again_under_another_id() {
        let (sets, keys) = (SetQueue::default(), keys());
        let ticket = sets.join(&keys, PACE);
        let first = ticket.begin_call(at(0), || HolderId::fresh("o")).0;
        assert!(sets.leave_all().is_empty(), "by itself, after its reply");
        assert_eq!(ticket.forget_id(), None, "it may have no place");
        let (second, _) = ask(&ticket, 10, 0, 0);
        assert!(first != second);
        assert_eq!(ticket.forget_id(), Some(second));
        let (third, _) = ask(&ticket, 20, 0, 0);
        let left: Vec<_> = sets.leave_all().into_iter().map(|(_, id)| id).collect();
        assert_eq!(left, [third]);
        assert_eq!((ticket.forget_id(), sets.count()), (None, 0));
        drop(ticket);
        assert!(!sets.anybody());
    }
}
