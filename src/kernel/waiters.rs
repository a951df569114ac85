//! The parked calls of a line: by number, in their order, and by instant.
//!
//! Calls in the line share a request; each other one has its own.

use std::ops::RangeInclusive;

use crate::clock::Instant;
use crate::kernel::indexed::{Indexed, Keyed};
use crate::kernel::waiter::{Waiter, WaiterNo};

#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// `None` if nobody waits: most entries have a lease only.
    lists: Option<Box<Lists>>,
}

#[derive(Debug, Default)]
struct Lists {
    calls: Indexed<ParkedCall>,
    in_line: usize,
    /// How many are woken by messages, and have waited.
    listeners: usize,
}

#[derive(Debug)]
struct ParkedCall {
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
enum WaiterKey {
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

impl WaiterKey {
    /// The keys of all calls, in the order of a walk.
    fn all() -> RangeInclusive<Self> {
        Self::In(List::Line, i64::MIN)..=Self::In(List::Own, i64::MAX)
    }

    fn instant(self) -> Option<Instant> {
        match self {
            Self::Start(at) | Self::Ask(at) | Self::Deadline(at) => Some(at),
            Self::In(..) | Self::Woken(..) | Self::HasAsked => None,
        }
    }

    /// The keys of all calls of a list.
    fn all_in(list: List) -> RangeInclusive<Self> {
        Self::In(list, i64::MIN)..=Self::In(list, i64::MAX)
    }

    /// The keys of the calls in the line that messages wake.
    fn woken() -> RangeInclusive<Self> {
        Self::Woken(List::Line, i64::MIN)..=Self::Woken(List::Line, i64::MAX)
    }
}

impl Keyed for ParkedCall {
    type Key = WaiterKey;

    fn keys(&self, mut found: impl FnMut(WaiterKey)) {
        let waiter = &self.waiter;
        found(WaiterKey::In(self.list, self.order));
        if waiter.wait.is_woken() {
            found(WaiterKey::Woken(self.list, self.order));
        }
        found(WaiterKey::Start(waiter.start));
        if waiter.ask_at < Instant::NEVER {
            found(WaiterKey::Ask(waiter.ask_at));
        } else if waiter.deadline < Instant::NEVER {
            found(WaiterKey::HasAsked);
        }
        if waiter.deadline < Instant::NEVER {
            found(WaiterKey::Deadline(waiter.deadline));
        }
    }
}

impl ParkedCall {
    fn is_listener(&self) -> bool {
        self.waiter.wait.is_woken() && self.waiter.cell.has_waited()
    }
}

impl Waiters {
    pub(super) fn len(&self) -> usize {
        self.lists.as_ref().map_or(0, |lists| lists.calls.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lists.is_none()
    }

    pub(crate) fn in_line(&self) -> usize {
        self.lists.as_ref().map_or(0, |lists| lists.in_line)
    }

    pub(crate) fn get(&self, no: WaiterNo) -> Option<&Waiter> {
        self.parked(no).map(|it| &it.waiter)
    }

    pub(super) fn is_in_line(&self, no: WaiterNo) -> bool {
        self.parked(no).is_some_and(|it| it.list == List::Line)
    }

    fn parked(&self, no: WaiterNo) -> Option<&ParkedCall> {
        self.lists.as_ref()?.calls.get(no)
    }

    // ------------------------------------------------------------------ the lists

    pub(super) fn push_front(&mut self, waiter: Waiter) {
        let order = match self.first(WaiterKey::all_in(List::Line)) {
            Some((WaiterKey::In(_, first), _)) => first - 1,
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
        let calls = self.lists.as_ref().map(|lists| &lists.calls);
        let order = match calls.and_then(|calls| calls.last(WaiterKey::all_in(list))) {
            Some((WaiterKey::In(_, last), _)) => last + 1,
            _ => 0,
        };
        self.add(waiter, list, order);
    }

    fn add(&mut self, waiter: Waiter, list: List, order: i64) {
        let no = waiter.no;
        let parked = ParkedCall {
            waiter,
            list,
            order,
        };
        let lists = self.lists.get_or_insert_default();
        lists.in_line += usize::from(list == List::Line);
        lists.listeners += usize::from(parked.is_listener());
        lists.calls.insert(no, parked);
    }

    pub(super) fn remove(&mut self, no: WaiterNo) -> Option<Waiter> {
        let lists = self.lists.as_mut()?;
        let parked = lists.calls.remove(no)?;
        lists.in_line -= usize::from(parked.list == List::Line);
        lists.listeners -= usize::from(parked.is_listener());
        self.lists.take_if(|lists| lists.calls.is_empty());
        Some(parked.waiter)
    }

    /// Changes a call, and finds it under its new instants.
    pub(super) fn change<T>(
        &mut self,
        no: WaiterNo,
        act: impl FnOnce(&mut Waiter) -> T,
    ) -> Option<T> {
        let lists = self.lists.as_mut()?;
        let mut parked = lists.calls.change(no)?;
        let was_listener = parked.is_listener();
        let result = act(&mut parked.waiter);
        lists.listeners += usize::from(parked.is_listener());
        lists.listeners -= usize::from(was_listener);
        Some(result)
    }

    pub(super) fn front(&self) -> Option<&Waiter> {
        let (_, no) = self.first(WaiterKey::all_in(List::Line))?;
        self.get(no)
    }

    /// Returns the first call in the line that messages wake.
    pub(super) fn first_woken(&self) -> Option<&Waiter> {
        let (_, no) = self.first(WaiterKey::woken())?;
        self.get(no)
    }

    /// Returns a call that needs messages: one that has waited, or any that messages wake. Walks
    /// over the calls.
    pub(super) fn listener(&self, any: bool) -> Option<&Waiter> {
        if self.lists.as_ref()?.listeners == 0 && !any {
            return None;
        }
        let woken = WaiterKey::Woken(List::Line, i64::MIN)..=WaiterKey::Woken(List::Own, i64::MAX);
        self.of(woken)
            .find(|waiter| any || waiter.cell.has_waited())
    }

    /// Walks over all calls: those in the line first, each list in its order.
    pub(crate) fn walk(&self) -> impl Iterator<Item = &Waiter> {
        self.of(WaiterKey::all())
    }

    /// Returns the numbers of all calls, in the order of a walk.
    pub(super) fn numbers(&self) -> Vec<WaiterNo> {
        let all = self.keys(WaiterKey::all());
        all.map(|(_, no)| no).collect()
    }

    // ------------------------------------------------------------------ by instant

    /// Returns when the call began that has waited for the longest.
    pub(super) fn first_start(&self) -> Option<Instant> {
        self.first_at(WaiterKey::Start)
    }

    /// Returns the calls in the order of their begins, and when each began.
    pub(super) fn by_start(&self) -> impl Iterator<Item = (WaiterNo, Instant)> {
        let all = self.keys(WaiterKey::Start(Instant::START)..=WaiterKey::Start(Instant::NEVER));
        all.filter_map(|(key, no)| Some((no, key.instant()?)))
    }

    /// Returns when the client asks next for the deadline of a call.
    pub(super) fn first_ask(&self) -> Option<Instant> {
        self.first_at(WaiterKey::Ask)
    }

    /// Returns the first deadline of all calls.
    pub(super) fn first_deadline(&self) -> Instant {
        self.first_at(WaiterKey::Deadline).unwrap_or(Instant::NEVER)
    }

    /// Returns the calls for whose deadlines the client asks at `now`.
    pub(super) fn asks_by(&self, now: Instant) -> Vec<WaiterNo> {
        let due = self.keys(WaiterKey::Ask(Instant::START)..=WaiterKey::Ask(now));
        due.map(|(_, no)| no).collect()
    }

    /// Returns the calls for whose deadlines the client asks no more.
    pub(super) fn have_asked(&self) -> Vec<WaiterNo> {
        let asked = self.keys(WaiterKey::HasAsked..=WaiterKey::HasAsked);
        asked.map(|(_, no)| no).collect()
    }

    fn first(&self, keys: RangeInclusive<WaiterKey>) -> Option<(WaiterKey, WaiterNo)> {
        self.lists.as_ref()?.calls.first(keys)
    }

    /// Returns the first instant of the keys of one kind.
    fn first_at(&self, key: fn(Instant) -> WaiterKey) -> Option<Instant> {
        let (first, _) = self.first(key(Instant::START)..=key(Instant::NEVER))?;
        first.instant()
    }

    /// Returns those of these keys that calls have, in their order, with the numbers of the calls.
    fn keys(&self, of: RangeInclusive<WaiterKey>) -> impl Iterator<Item = (WaiterKey, WaiterNo)> {
        let lists = self.lists.iter();
        lists.flat_map(move |lists| lists.calls.range(of.clone()))
    }

    /// Returns the calls that have one of these keys, in the order of the keys.
    fn of(&self, keys: RangeInclusive<WaiterKey>) -> impl Iterator<Item = &Waiter> {
        self.keys(keys).filter_map(|(_, no)| self.get(no))
    }
}
