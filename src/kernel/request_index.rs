//! The requests of an entry: by number, by whom they serve, and by when the engine must look.
//!
//! A request is found, added, changed and removed in O(log n).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut, Index, RangeInclusive};
use std::time::Duration;

use crate::clock::Instant;
use crate::kernel::request::{RefreshGroup, Request, RequestNo, RequestState, Sender, Serves};
use crate::kernel::steps::visited;

#[derive(Debug, Default)]
pub(super) struct Requests {
    by_no: BTreeMap<RequestNo, Box<Request>>,
    index: BTreeSet<(Key, RequestNo)>,
}

/// Under what a request is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Serves(Serves),
    /// When its next command is due.
    Due(Instant),
    /// When the engine has something to do for its place or its grant.
    Act(Instant),
    /// When the engine must be awake for that.
    Latest(Instant),
    /// When it looks again after the command that is under way.
    Again(Instant),
    /// When its command was sent, which has no reply yet.
    Sent(Instant),
    /// When the last command was sent from which something is known; `START` if there is none.
    Known(Instant),
    /// When the thread of a call has sent its command: for the line, or for itself.
    OfCaller(bool, Instant),
    /// It has a place, which is being refreshed or not.
    Queued,
    /// It has a place that the next refresh of its group includes.
    Refresh(RefreshGroup),
    /// Its next command is due, and the end of an undo makes that sooner.
    Retry,
    /// It was granted the lock, which its call has got.
    Won,
}

/// A request that is being changed: afterwards it is found under its new state.
pub(super) struct Change<'a> {
    request: &'a mut Request,
    index: &'a mut BTreeSet<(Key, RequestNo)>,
    before: Keys,
}

type Keys = [Option<Key>; 9];

fn keys(request: &Request) -> Keys {
    let mut keys = [const { None }; 9];
    keys[0] = Some(Key::Serves(request.serves));
    let (act, latest) = match &request.state {
        RequestState::Due(at) => {
            let is_sooner = request.once || request.lock.queue().is_none();
            keys[1] = is_sooner.then_some(Key::Retry);
            keys[2] = Some(Key::Due(*at));
            (Instant::NEVER, *at)
        }
        RequestState::Queued(place) => {
            keys[1] = Some(Key::Queued);
            if place.refreshing {
                (Instant::NEVER, Instant::NEVER)
            } else {
                keys[2] = request.group().map(Key::Refresh);
                (place.refresh_at, place.awake_by())
            }
        }
        RequestState::Confirming(grant) if !grant.renewing => (grant.retry_at, grant.retry_at),
        RequestState::Confirming(_) | RequestState::Sent | RequestState::Won(_) => {
            (Instant::NEVER, Instant::NEVER)
        }
    };
    keys[3] = (act < Instant::NEVER).then_some(Key::Act(act));
    keys[4] = (latest < Instant::NEVER).then_some(Key::Latest(latest));
    let is_won = matches!(request.state, RequestState::Won(_));
    let is_under_way = match &request.state {
        RequestState::Queued(place) => place.refreshing,
        RequestState::Sent => true,
        RequestState::Due(_) | RequestState::Won(_) | RequestState::Confirming(_) => false,
    };
    keys[7] = is_under_way.then_some(Key::Again(request.again));
    keys[8] = Some(Key::Known(match (&request.state, &request.flight) {
        (RequestState::Queued(place), _) => place.seen,
        (_, Some(flight)) => flight.sent,
        _ => Instant::START,
    }));
    if let Some(flight) = &request.flight {
        let is_sent = matches!(request.state, RequestState::Sent);
        keys[5] = is_sent.then_some(Key::Sent(flight.sent));
        let is_caller_s = matches!(flight.sender, Sender::Caller(_)) && !is_won;
        let is_of_line = request.serves == Serves::Line;
        keys[6] = is_caller_s.then_some(Key::OfCaller(is_of_line, flight.sent));
    }
    if is_won && request.serves == Serves::Nobody {
        keys[1] = Some(Key::Won);
    }
    keys
}

impl Requests {
    pub(super) fn is_empty(&self) -> bool {
        self.by_no.is_empty()
    }

    pub(super) fn get(&self, no: RequestNo) -> Option<&Request> {
        self.by_no.get(&no).map(|it| &**it)
    }

    /// Returns the number if there is a request with it.
    pub(super) fn existing(&self, no: RequestNo) -> Option<RequestNo> {
        self.by_no.contains_key(&no).then_some(no)
    }

    /// Adds a request, whose number is higher than all others'.
    pub(super) fn push(&mut self, request: Request) -> RequestNo {
        let no = request.no;
        let keys = keys(&request).into_iter().flatten();
        self.index.extend(keys.map(|key| (key, no)));
        self.by_no.insert(no, Box::new(request));
        no
    }

    /// # Panics
    ///
    /// If there is none with this number.
    pub(super) fn change(&mut self, no: RequestNo) -> Change<'_> {
        let request = self.by_no.get_mut(&no).expect(MISSING);
        visited(1);
        Change {
            before: keys(request),
            request,
            index: &mut self.index,
        }
    }

    /// # Panics
    ///
    /// If there is none with this number.
    pub(super) fn remove(&mut self, no: RequestNo) -> Request {
        let request = self.by_no.remove(&no).expect(MISSING);
        for key in keys(&request).into_iter().flatten() {
            self.index.remove(&(key, no));
        }
        *request
    }

    /// Walks over all requests, in the order of their numbers.
    pub(super) fn walk(&self) -> impl Iterator<Item = &Request> {
        let requests = self.by_no.values().map(|it| &**it);
        requests.inspect(|_| visited(1))
    }

    /// Returns the numbers of all requests. Walks over them.
    pub(super) fn numbers(&self) -> Vec<RequestNo> {
        self.walk().map(|request| request.no).collect()
    }

    // ------------------------------------------------------------------ by state

    /// Returns the requests that serve one of these, in the order of their numbers.
    pub(super) fn serving(&self, of: &[Serves]) -> Vec<RequestNo> {
        let of = of.iter().map(|serves| Key::Serves(*serves));
        let mut found: Vec<RequestNo> = of.flat_map(|key| self.under(key..=key)).collect();
        found.sort_unstable();
        found
    }

    /// Returns whether a request has a place in the queue.
    pub(super) fn has_place(&self) -> bool {
        self.first(Key::Queued..=Key::Queued).is_some()
    }

    /// Returns the requests whose places the next refresh of a group includes.
    pub(super) fn to_refresh(&self, group: RefreshGroup) -> Vec<RequestNo> {
        let key = Key::Refresh(group);
        self.under(key..=key).collect()
    }

    /// Returns the requests whose next commands are due, and that the end of an undo makes sooner.
    pub(super) fn to_retry(&self) -> Vec<RequestNo> {
        self.under(Key::Retry..=Key::Retry).collect()
    }

    /// Returns the requests that serve nobody, and have won.
    pub(super) fn won(&self) -> Vec<RequestNo> {
        self.under(Key::Won..=Key::Won).collect()
    }

    // ------------------------------------------------------------------ by instant

    /// Returns when the engine must look at a request, and by when it must be awake for that.
    pub(super) fn next(&self) -> [Instant; 2] {
        let due = match self.first(Key::Due(Instant::START)..=Key::Due(Instant::NEVER)) {
            Some(Key::Due(at)) => at,
            _ => Instant::NEVER,
        };
        let act = match self.first(Key::Act(Instant::START)..=Key::Act(Instant::NEVER)) {
            Some(Key::Act(at)) => at,
            _ => Instant::NEVER,
        };
        let latest = match self.first(Key::Latest(Instant::START)..=Key::Latest(Instant::NEVER)) {
            Some(Key::Latest(at)) => at,
            _ => Instant::NEVER,
        };
        [due.min(act), latest]
    }

    /// Returns the requests whose next commands are due, in the order of their numbers.
    pub(super) fn to_ask(&self, now: Instant) -> Vec<RequestNo> {
        let due = self.under(Key::Due(Instant::START)..=Key::Due(now));
        let mut due: Vec<RequestNo> = due.collect();
        due.sort_unstable();
        due
    }

    /// Returns the requests whose places or grants are due, in the order of their numbers.
    pub(super) fn to_act(&self, now: Instant) -> Vec<RequestNo> {
        let due = self.under(Key::Act(Instant::START)..=Key::Act(now));
        let mut due: Vec<RequestNo> = due.collect();
        due.sort_unstable();
        due
    }

    /// Returns the requests that look later than `at`, in the order of their numbers.
    pub(super) fn later_than(&self, at: Instant) -> Vec<RequestNo> {
        let after = at.after(Duration::from_nanos(1));
        let acts = self.under(Key::Act(after)..=Key::Act(Instant::NEVER));
        let mut later = self.unplaced_later_than(at);
        later.extend(acts);
        later.sort_unstable();
        later
    }

    /// Returns those of them that have no place, or whose places are being refreshed.
    pub(super) fn unplaced_later_than(&self, at: Instant) -> Vec<RequestNo> {
        let after = at.after(Duration::from_nanos(1));
        let due = self.under(Key::Due(after)..=Key::Due(Instant::NEVER));
        let again = self.under(Key::Again(after)..=Key::Again(Instant::NEVER));
        due.chain(again).collect()
    }

    /// Returns whether nothing is known of a request since then.
    pub(super) fn has_missed(&self, since: Instant) -> bool {
        let keys = Key::Known(Instant::START)..=Key::Known(since);
        self.first(keys).is_some()
    }

    /// Returns when the first of the commands was sent that have no reply yet.
    pub(super) fn under_way(&self) -> Option<Instant> {
        match self.first(Key::Sent(Instant::START)..=Key::Sent(Instant::NEVER))? {
            Key::Sent(sent) => Some(sent),
            _ => None,
        }
    }

    /// Returns when the first of the commands was sent, from then on, that the threads of calls
    /// have under way: for the line, or for themselves.
    pub(super) fn first_of_callers(&self, of_line: bool, from: Instant) -> Option<Instant> {
        let keys = Key::OfCaller(of_line, from)..=Key::OfCaller(of_line, Instant::NEVER);
        match self.first(keys)? {
            Key::OfCaller(_, sent) => Some(sent),
            _ => None,
        }
    }

    /// Returns the requests whose commands the threads of calls have sent between these instants.
    pub(super) fn of_callers(&self, of_line: bool, [from, to]: [Instant; 2]) -> Vec<RequestNo> {
        if from > to {
            return Vec::new();
        }
        let keys = Key::OfCaller(of_line, from)..=Key::OfCaller(of_line, to);
        self.under(keys).collect()
    }

    /// Returns a place of each group that a refresh can include.
    pub(super) fn first_places(&self) -> Vec<RequestNo> {
        let mut places = Vec::new();
        let mut from = (Key::Refresh(RefreshGroup::FIRST), 0);
        while let Some((Key::Refresh(group), no)) = self.index.range(from..).next() {
            places.push(*no);
            from = (Key::Refresh(*group), RequestNo::MAX);
        }
        places
    }

    fn first(&self, keys: RangeInclusive<Key>) -> Option<Key> {
        let (from, to) = keys.into_inner();
        let mut found = self.index.range((from, 0)..=(to, RequestNo::MAX));
        found.next().map(|(key, _)| *key)
    }

    fn under(&self, keys: RangeInclusive<Key>) -> impl Iterator<Item = RequestNo> {
        let (from, to) = keys.into_inner();
        let found = self.index.range((from, 0)..=(to, RequestNo::MAX));
        found.map(|(_, no)| *no).inspect(|_| visited(1))
    }
}

const MISSING: &str = "the number is that of a request";

impl Index<RequestNo> for Requests {
    type Output = Request;

    fn index(&self, no: RequestNo) -> &Request {
        self.get(no).expect(MISSING)
    }
}

impl Deref for Change<'_> {
    type Target = Request;

    fn deref(&self) -> &Request {
        self.request
    }
}

impl DerefMut for Change<'_> {
    fn deref_mut(&mut self) -> &mut Request {
        self.request
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let after = keys(self.request);
        if after == self.before {
            return;
        }
        let no = self.request.no;
        for (before, after) in self.before.into_iter().zip(after) {
            if before != after {
                if let Some(before) = before {
                    self.index.remove(&(before, no));
                }
                self.index.extend(after.map(|after| (after, no)));
            }
        }
    }
}
