//! The requests of an entry: by number, by whom they serve, and by when the engine must look.
//!
//! A request is found, added, changed and removed in O(log n).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut, Index, RangeInclusive};

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
    /// When the engine has something to do for it.
    Act(Instant),
    /// When the engine must be awake for that.
    Latest(Instant),
    /// When its command was sent, which has no reply yet.
    Sent(Instant),
    /// When the thread of a call has sent its command.
    OfCaller(Instant),
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

type Keys = [Option<Key>; 7];

fn keys(request: &Request) -> Keys {
    let mut keys = [const { None }; 7];
    keys[0] = Some(Key::Serves(request.serves));
    let (act, latest) = match &request.state {
        RequestState::Due(at) => {
            let is_sooner = request.once || request.lock.queue().is_none();
            keys[1] = is_sooner.then_some(Key::Retry);
            (*at, *at)
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
    if let Some(flight) = &request.flight {
        let is_sent = matches!(request.state, RequestState::Sent);
        keys[5] = is_sent.then_some(Key::Sent(flight.sent));
        let is_caller_s = matches!(flight.sender, Sender::Caller(_)) && !is_won;
        keys[6] = is_caller_s.then_some(Key::OfCaller(flight.sent));
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
        let act = match self.first(Key::Act(Instant::START)..=Key::Act(Instant::NEVER)) {
            Some(Key::Act(at)) => at,
            _ => Instant::NEVER,
        };
        let latest = match self.first(Key::Latest(Instant::START)..=Key::Latest(Instant::NEVER)) {
            Some(Key::Latest(at)) => at,
            _ => Instant::NEVER,
        };
        [act, latest]
    }

    /// Returns the requests that the engine must look at, in the order of their numbers.
    pub(super) fn to_act(&self, now: Instant) -> Vec<RequestNo> {
        let due = self.under(Key::Act(Instant::START)..=Key::Act(now));
        let mut due: Vec<RequestNo> = due.collect();
        due.sort_unstable();
        due
    }

    /// Returns when the first of the commands was sent that have no reply yet.
    pub(super) fn under_way(&self) -> Option<Instant> {
        match self.first(Key::Sent(Instant::START)..=Key::Sent(Instant::NEVER))? {
            Key::Sent(sent) => Some(sent),
            _ => None,
        }
    }

    /// Returns when the first of the commands was sent that the threads of calls have under way.
    pub(super) fn first_of_callers(&self) -> Option<Instant> {
        match self.first(Key::OfCaller(Instant::START)..=Key::OfCaller(Instant::NEVER))? {
            Key::OfCaller(sent) => Some(sent),
            _ => None,
        }
    }

    /// Returns the requests whose commands the threads of calls had sent by then.
    pub(super) fn of_callers(&self, by: Instant) -> Vec<RequestNo> {
        let sent = self.under(Key::OfCaller(Instant::START)..=Key::OfCaller(by));
        let mut sent: Vec<RequestNo> = sent.collect();
        sent.sort_unstable();
        sent
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
