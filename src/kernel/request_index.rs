//! The requests of a line: by number, by whom they serve, and by when the engine must look.

use std::ops::{Index, RangeInclusive};
use std::time::Duration;

use crate::clock::Instant;
use crate::kernel::indexed::{Change, Indexed, Keyed};
use crate::kernel::request::{RefreshGroup, Request, RequestNo, RequestState, Sender, Serves};

#[derive(Debug, Default)]
pub(crate) struct Requests(Indexed<Request>);

/// Under what a request is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RequestKey {
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
}

impl RequestKey {
    fn instant(self) -> Option<Instant> {
        match self {
            Self::Due(at)
            | Self::Act(at)
            | Self::Latest(at)
            | Self::Again(at)
            | Self::Sent(at)
            | Self::Known(at)
            | Self::OfCaller(_, at) => Some(at),
            Self::Serves(_) | Self::Queued | Self::Refresh(_) | Self::Retry => None,
        }
    }
}

impl Keyed for Request {
    type Key = RequestKey;

    fn keys(&self, mut found: impl FnMut(RequestKey)) {
        found(RequestKey::Serves(self.serves));
        let (mut act, mut latest) = (Instant::NEVER, Instant::NEVER);
        let mut known = self
            .flight
            .as_ref()
            .map_or(Instant::START, |flight| flight.sent);
        match &self.state {
            RequestState::Due(at) => {
                if self.once || self.lock.queue().is_none() {
                    found(RequestKey::Retry);
                }
                found(RequestKey::Due(*at));
                latest = *at;
            }
            RequestState::Queued(place) => {
                found(RequestKey::Queued);
                known = place.seen;
                if place.refreshing {
                    found(RequestKey::Again(self.again));
                } else {
                    self.group()
                        .into_iter()
                        .for_each(|group| found(RequestKey::Refresh(group)));
                    (act, latest) = (place.refresh_at, place.awake_by());
                }
            }
            RequestState::Sent => {
                found(RequestKey::Again(self.again));
                let flight = self.flight.as_ref();
                flight
                    .into_iter()
                    .for_each(|flight| found(RequestKey::Sent(flight.sent)));
            }
            RequestState::Confirming(grant) if !grant.renewing => {
                (act, latest) = (grant.retry_at, grant.retry_at);
            }
            RequestState::Confirming(_) | RequestState::Won(_) => {}
        }
        if act < Instant::NEVER {
            found(RequestKey::Act(act));
        }
        if latest < Instant::NEVER {
            found(RequestKey::Latest(latest));
        }
        found(RequestKey::Known(known));
        if let Some(flight) = &self.flight
            && matches!(flight.sender, Sender::Caller(_))
            && !matches!(self.state, RequestState::Won(_))
        {
            found(RequestKey::OfCaller(
                self.serves == Serves::Line,
                flight.sent,
            ));
        }
    }
}

impl Requests {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn get(&self, no: RequestNo) -> Option<&Request> {
        self.0.get(no)
    }

    /// Returns the number if there is a request with it.
    pub(super) fn existing(&self, no: RequestNo) -> Option<RequestNo> {
        self.get(no).map(|_| no)
    }

    /// Adds a request.
    pub(super) fn push(&mut self, request: Request) -> RequestNo {
        let no = request.no;
        self.0.insert(no, request);
        no
    }

    /// # Panics
    ///
    /// If there is none with this number.
    pub(super) fn change(&mut self, no: RequestNo) -> Change<'_, Request> {
        self.0.change(no).expect(MISSING)
    }

    /// # Panics
    ///
    /// If there is none with this number.
    pub(super) fn remove(&mut self, no: RequestNo) -> Request {
        self.0.remove(no).expect(MISSING)
    }

    /// Walks over all requests, in the order of their numbers.
    pub(crate) fn walk(&self) -> impl Iterator<Item = &Request> {
        self.0.walk()
    }

    /// Returns the numbers of all requests. Walks over them.
    pub(super) fn numbers(&self) -> Vec<RequestNo> {
        self.walk().map(|request| request.no).collect()
    }

    // ------------------------------------------------------------------ by state

    /// Returns the requests that serve one of these, in the order of their numbers.
    pub(super) fn serving(&self, of: &[Serves]) -> Vec<RequestNo> {
        let of = of.iter().map(|serves| RequestKey::Serves(*serves));
        let mut found: Vec<RequestNo> = of.flat_map(|key| self.under(key..=key)).collect();
        found.sort_unstable();
        found
    }

    /// Returns whether a request has a place in the queue.
    pub(super) fn has_place(&self) -> bool {
        self.first(RequestKey::Queued..=RequestKey::Queued)
            .is_some()
    }

    /// Returns the requests whose places the next refresh of a group includes.
    pub(super) fn to_refresh(&self, group: RefreshGroup) -> Vec<RequestNo> {
        let key = RequestKey::Refresh(group);
        self.under(key..=key).collect()
    }

    /// Returns the requests whose next commands are due, and that the end of an undo makes sooner.
    pub(super) fn to_retry(&self) -> Vec<RequestNo> {
        self.under(RequestKey::Retry..=RequestKey::Retry).collect()
    }

    /// Returns the requests whose commands were sent, and have no reply yet.
    pub(super) fn sent(&self) -> impl Iterator<Item = RequestNo> {
        self.under(RequestKey::Sent(Instant::START)..=RequestKey::Sent(Instant::NEVER))
    }

    // ------------------------------------------------------------------ by instant

    /// Returns when the engine must look at a request, and by when it must be awake for that.
    pub(super) fn next(&self) -> [Instant; 2] {
        let first = |key: fn(Instant) -> RequestKey| {
            self.first_at(key, Instant::START).unwrap_or(Instant::NEVER)
        };
        [
            first(RequestKey::Due).min(first(RequestKey::Act)),
            first(RequestKey::Latest),
        ]
    }

    /// Returns the requests whose next commands are due, in the order of their numbers.
    pub(super) fn to_ask(&self, now: Instant) -> Vec<RequestNo> {
        self.by_then(RequestKey::Due, now)
    }

    /// Returns the requests whose places or grants are due, in the order of their numbers.
    pub(super) fn to_act(&self, now: Instant) -> Vec<RequestNo> {
        self.by_then(RequestKey::Act, now)
    }

    /// Returns the requests that look later than `at`, in the order of their numbers.
    pub(super) fn later_than(&self, at: Instant) -> Vec<RequestNo> {
        let after = at.after(Duration::from_nanos(1));
        let acts = self.under(RequestKey::Act(after)..=RequestKey::Act(Instant::NEVER));
        let mut later = self.unplaced_later_than(at);
        later.extend(acts);
        later.sort_unstable();
        later
    }

    /// Returns those of them that have no place, or whose places are being refreshed.
    pub(super) fn unplaced_later_than(&self, at: Instant) -> Vec<RequestNo> {
        let after = at.after(Duration::from_nanos(1));
        let due = self.under(RequestKey::Due(after)..=RequestKey::Due(Instant::NEVER));
        let again = self.under(RequestKey::Again(after)..=RequestKey::Again(Instant::NEVER));
        due.chain(again).collect()
    }

    /// Returns whether nothing is known of a request since then.
    pub(super) fn has_missed(&self, since: Instant) -> bool {
        let keys = RequestKey::Known(Instant::START)..=RequestKey::Known(since);
        self.first(keys).is_some()
    }

    /// Returns when the first of the commands was sent that have no reply yet.
    pub(super) fn under_way(&self) -> Option<Instant> {
        self.first_at(RequestKey::Sent, Instant::START)
    }

    /// Returns when the first of the commands was sent, from then on, that the threads of calls
    /// have under way: for the line, or for themselves.
    pub(super) fn first_of_callers(&self, of_line: bool, from: Instant) -> Option<Instant> {
        self.first_at(|at| RequestKey::OfCaller(of_line, at), from)
    }

    /// Returns the requests whose commands the threads of calls have sent between these instants.
    pub(super) fn of_callers(&self, of_line: bool, [from, to]: [Instant; 2]) -> Vec<RequestNo> {
        if from > to {
            return Vec::new();
        }
        let keys = RequestKey::OfCaller(of_line, from)..=RequestKey::OfCaller(of_line, to);
        self.under(keys).collect()
    }

    /// Returns a place of each group that a refresh can include.
    pub(super) fn first_places(&self) -> Vec<RequestNo> {
        let groups = RefreshGroup::ALL.into_iter();
        let first = groups.filter_map(|group| {
            let key = RequestKey::Refresh(group);
            self.0.first(key..=key)
        });
        first.map(|(_, no)| no).collect()
    }

    /// Returns the requests that have a key of one kind up to `now`, in the order of their numbers.
    fn by_then(&self, key: impl Fn(Instant) -> RequestKey, now: Instant) -> Vec<RequestNo> {
        let mut due: Vec<RequestNo> = self.under(key(Instant::START)..=key(now)).collect();
        due.sort_unstable();
        due
    }

    /// Returns the first instant, from then on, of the keys of one kind.
    fn first_at(&self, key: impl Fn(Instant) -> RequestKey, from: Instant) -> Option<Instant> {
        self.first(key(from)..=key(Instant::NEVER))?.instant()
    }

    fn first(&self, keys: RangeInclusive<RequestKey>) -> Option<RequestKey> {
        self.0.first(keys).map(|(key, _)| key)
    }

    fn under(&self, keys: RangeInclusive<RequestKey>) -> impl Iterator<Item = RequestNo> {
        self.0.range(keys).map(|(_, no)| no)
    }
}

const MISSING: &str = "the number is that of a request";

impl Index<RequestNo> for Requests {
    type Output = Request;

    fn index(&self, no: RequestNo) -> &Request {
        self.get(no).expect(MISSING)
    }
}
