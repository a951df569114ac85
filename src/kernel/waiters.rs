//! The parked calls of an entry: by number, in their order, and by instant.
//!
//! Calls in the line share a request; each other one has its own. A call is found, added and
//! removed in O(log n).

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::Instant;
use crate::kernel::steps::visited;
use crate::kernel::waiter::{Waiter, WaiterNo};

#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// `None` if nobody waits: most entries have a lease only.
    lists: Option<Box<Lists>>,
}

#[derive(Debug, Default)]
struct Lists {
    by_no: BTreeMap<WaiterNo, Box<Parked>>,
    index: BTreeSet<(Key, WaiterNo)>,
    in_line: usize,
    /// How many are woken by messages, and have waited.
    listeners: usize,
}

#[derive(Debug)]
struct Parked {
    waiter: Waiter,
    list: List,
    /// Its place in the list.
    order: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum List {
    Line,
    Own,
}

/// Under what a call is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    In(List, i64),
    /// It is woken by messages.
    Woken(List, i64),
    Start(Instant),
    /// The client asks once more for its deadline then.
    Ask(Instant),
    /// The client has asked for its deadline, or knew enough.
    HasAsked,
    Deadline(Instant),
}

impl Parked {
    fn keys(&self) -> [Option<Key>; 5] {
        let waiter = &self.waiter;
        let ask = match (waiter.ask_at, waiter.deadline) {
            (Instant::NEVER, Instant::NEVER) => None,
            (Instant::NEVER, _) => Some(Key::HasAsked),
            (at, _) => Some(Key::Ask(at)),
        };
        let is_woken = waiter.wait.is_woken();
        [
            Some(Key::In(self.list, self.order)),
            is_woken.then_some(Key::Woken(self.list, self.order)),
            Some(Key::Start(waiter.start)),
            ask,
            (waiter.deadline < Instant::NEVER).then_some(Key::Deadline(waiter.deadline)),
        ]
    }

    fn is_listener(&self) -> bool {
        self.waiter.wait.is_woken() && self.waiter.cell.has_waited()
    }
}

impl Waiters {
    pub(super) fn len(&self) -> usize {
        self.lists.as_ref().map_or(0, |lists| lists.by_no.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lists.is_none()
    }

    pub(super) fn in_line(&self) -> usize {
        self.lists.as_ref().map_or(0, |lists| lists.in_line)
    }

    pub(super) fn get(&self, no: WaiterNo) -> Option<&Waiter> {
        self.parked(no).map(|it| &it.waiter)
    }

    pub(super) fn is_in_line(&self, no: WaiterNo) -> bool {
        self.parked(no).is_some_and(|it| it.list == List::Line)
    }

    fn parked(&self, no: WaiterNo) -> Option<&Parked> {
        self.lists.as_ref()?.by_no.get(&no).map(|it| &**it)
    }

    // ------------------------------------------------------------------ the lists

    pub(super) fn push_front(&mut self, waiter: Waiter) {
        let first = self.first(Key::In(List::Line, i64::MIN));
        let order = match first {
            Some((Key::In(List::Line, first), _)) => first - 1,
            _ => 0,
        };
        self.add(waiter, List::Line, order);
    }

    pub(super) fn push_back(&mut self, waiter: Waiter) {
        self.push_last(waiter, List::Line);
    }

    /// Adds a call that has a request of its own.
    pub(super) fn push_own(&mut self, waiter: Waiter) {
        self.push_last(waiter, List::Own);
    }

    fn push_last(&mut self, waiter: Waiter, list: List) {
        let all = (Key::In(list, i64::MIN), 0)..=(Key::In(list, i64::MAX), WaiterNo::MAX);
        let lists = self.lists.get_or_insert_default();
        let order = match lists.index.range(all).next_back() {
            Some((Key::In(_, last), _)) => last + 1,
            _ => 0,
        };
        self.add(waiter, list, order);
    }

    fn add(&mut self, waiter: Waiter, list: List, order: i64) {
        let no = waiter.no;
        let parked = Parked {
            waiter,
            list,
            order,
        };
        let lists = self.lists.get_or_insert_default();
        let keys = parked.keys().into_iter().flatten();
        lists.index.extend(keys.map(|key| (key, no)));
        lists.in_line += usize::from(list == List::Line);
        lists.listeners += usize::from(parked.is_listener());
        lists.by_no.insert(no, Box::new(parked));
    }

    pub(super) fn remove(&mut self, no: WaiterNo) -> Option<Waiter> {
        let lists = self.lists.as_mut()?;
        let parked = *lists.by_no.remove(&no)?;
        for key in parked.keys().into_iter().flatten() {
            lists.index.remove(&(key, no));
        }
        lists.in_line -= usize::from(parked.list == List::Line);
        lists.listeners -= usize::from(parked.is_listener());
        self.lists.take_if(|lists| lists.by_no.is_empty());
        Some(parked.waiter)
    }

    /// Changes a call, and finds it under its new instants.
    pub(super) fn change<T>(
        &mut self,
        no: WaiterNo,
        act: impl FnOnce(&mut Waiter) -> T,
    ) -> Option<T> {
        let lists = self.lists.as_mut()?;
        let parked = lists.by_no.get_mut(&no)?;
        visited(1);
        let (before, was_listener) = (parked.keys(), parked.is_listener());
        let result = act(&mut parked.waiter);
        let after = parked.keys();
        lists.listeners += usize::from(parked.is_listener());
        lists.listeners -= usize::from(was_listener);
        for (before, after) in before.into_iter().zip(after) {
            if before != after {
                if let Some(before) = before {
                    lists.index.remove(&(before, no));
                }
                lists.index.extend(after.map(|after| (after, no)));
            }
        }
        Some(result)
    }

    pub(super) fn front(&self) -> Option<&Waiter> {
        match self.first(Key::In(List::Line, i64::MIN))? {
            (Key::In(List::Line, _), no) => self.get(no),
            _ => None,
        }
    }

    /// Returns the first call in the line that messages wake.
    pub(super) fn first_woken(&self) -> Option<&Waiter> {
        match self.first(Key::Woken(List::Line, i64::MIN))? {
            (Key::Woken(List::Line, _), no) => self.get(no),
            _ => None,
        }
    }

    /// Returns a call that needs messages: one that has waited, or any that messages wake. Walks
    /// over the calls.
    pub(super) fn listener(&self, any: bool) -> Option<&Waiter> {
        if self.lists.as_ref()?.listeners == 0 && !any {
            return None;
        }
        let woken = self.from(Key::Woken(List::Line, i64::MIN));
        let woken = woken.take_while(|(key, _)| matches!(key, Key::Woken(..)));
        let mut woken = woken.filter_map(|(_, no)| self.get(*no));
        woken.find(|waiter| any || waiter.cell.has_waited())
    }

    /// Walks over all calls: those in the line first, each list in its order.
    pub(super) fn walk(&self) -> impl Iterator<Item = &Waiter> {
        let all = self.from(Key::In(List::Line, i64::MIN));
        let all = all.take_while(|(key, _)| matches!(key, Key::In(..)));
        all.filter_map(|(_, no)| self.get(*no))
    }

    /// Returns the numbers of all calls, in the order of a walk.
    pub(super) fn numbers(&self) -> Vec<WaiterNo> {
        self.walk().map(|waiter| waiter.no).collect()
    }

    // ------------------------------------------------------------------ by instant

    /// Returns when the call began that has waited for the longest.
    pub(super) fn first_start(&self) -> Option<Instant> {
        match self.first(Key::Start(Instant::START))? {
            (Key::Start(start), _) => Some(start),
            _ => None,
        }
    }

    /// Returns the calls in the order of their begins, and when each began.
    pub(super) fn by_start(&self) -> impl Iterator<Item = (WaiterNo, Instant)> {
        self.from(Key::Start(Instant::START))
            .map_while(|(key, no)| match key {
                Key::Start(start) => Some((*no, *start)),
                _ => None,
            })
    }

    /// Returns when the client asks next for the deadline of a call.
    pub(super) fn first_ask(&self) -> Option<Instant> {
        match self.first(Key::Ask(Instant::START))? {
            (Key::Ask(at), _) => Some(at),
            _ => None,
        }
    }

    /// Returns the first deadline of all calls.
    pub(super) fn first_deadline(&self) -> Instant {
        match self.first(Key::Deadline(Instant::START)) {
            Some((Key::Deadline(first), _)) => first,
            _ => Instant::NEVER,
        }
    }

    /// Returns the calls for whose deadlines the client asks at `now`.
    pub(super) fn asks_by(&self, now: Instant) -> Vec<WaiterNo> {
        let asks = self.from(Key::Ask(Instant::START));
        let due = asks.take_while(|(key, _)| matches!(key, Key::Ask(at) if *at <= now));
        due.map(|(_, no)| *no).collect()
    }

    /// Returns the calls for whose deadlines the client asks no more.
    pub(super) fn have_asked(&self) -> Vec<WaiterNo> {
        let asked = self.from(Key::HasAsked);
        let asked = asked.take_while(|(key, _)| *key == Key::HasAsked);
        asked.map(|(_, no)| *no).collect()
    }

    fn first(&self, from: Key) -> Option<(Key, WaiterNo)> {
        let lists = self.lists.as_ref()?;
        lists.index.range((from, 0)..).next().copied()
    }

    fn from(&self, from: Key) -> impl Iterator<Item = &(Key, WaiterNo)> {
        let index = self.lists.iter().map(|lists| &lists.index);
        let found = index.flat_map(move |index| index.range((from, 0)..));
        found.inspect(|_| visited(1))
    }
}
