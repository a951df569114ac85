//! The places of a line's requests in the queue in Redis: when they are refreshed, what a refresh
//! finds, and how a grant becomes a lease.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::holder_id::HolderId;
use crate::kernel::answers::{Win, fits, too_short, untaken};
use crate::kernel::command::Listens;
use crate::kernel::event::{IdFate, KnownHolder, LineEvent};
use crate::kernel::failure::{Failure, Refused};
use crate::kernel::fault::{Fault, unexpected};
use crate::kernel::held::Grant;
use crate::kernel::line::Line;
use crate::kernel::request::{Confirming, Place, RequestNo, RequestState, Serves};
use crate::kernel::requests::Receiver;
use crate::kernel::steps::decided;
use crate::kernel::undo::Proof;
use crate::kernel::waiter::{Outcome, Wait, WaiterNo};
use crate::lease::state::LeaseState;
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::{Answer, KeyState};
use crate::protocol::place::{Refreshed, TokenBlock, provisional, provisional_of, refresh_every};
use crate::wait_policy::{Backoff, RECONNECT, WaitPolicy};

/// The least time from a command to the refresh that the expiry of the lock makes due.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// Pauses between attempts without a queue, while messages do not arrive.
pub(crate) const UNSUBSCRIBED: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

impl Line {
    /// The call has a place in the queue.
    pub(super) fn queued(
        &mut self,
        n: RequestNo,
        (id, listens): (&HolderId, Listens),
        sent: Instant,
        remaining: Option<Duration>,
        ev: &mut LineEvent<'_>,
    ) {
        let again = self.take_again(n);
        let at = self.refresh_at(n, sent, remaining, ev.now).min(again);
        let ttl = self.requests[n].terms.ttl;
        self.requests.change(n).state = RequestState::Queued(Place {
            id: id.clone(),
            seen: sent,
            refresh_at: at,
            regular: sent.after(self.refreshes_every(ttl)),
            // A place lasts much longer than this.
            slack: Duration::from_millis(100).min(provisional(ttl) / 4),
            refreshing: false,
            listens,
        });
        self.touch_refresh(n);
    }

    fn touch_refresh(&mut self, n: RequestNo) {
        if let RequestState::Queued(place) = &self.requests[n].state {
            let (at, latest) = (place.refresh_at, place.awake_by());
            self.touch(at, latest);
        }
    }

    fn refreshes_every(&self, ttl: Duration) -> Duration {
        if self.is_listening {
            refresh_every(ttl)
        } else {
            // No message announces a grant: only a refresh finds it.
            refresh_every(ttl) / 4
        }
    }

    /// Returns when a place is refreshed after a reply that says that it waits.
    fn refresh_at(
        &self,
        n: RequestNo,
        sent: Instant,
        remaining: Option<Duration>,
        now: Instant,
    ) -> Instant {
        let request = &self.requests[n];
        let ttl = request.terms.ttl;
        if let Some(at) = self.backs_off_until(request.serves) {
            return at.min(sent.after(refresh_every(ttl)));
        }
        next_attempt(
            sent.after(self.refreshes_every(ttl)),
            now,
            remaining,
            sent.after(SHORTEST_PAUSE),
        )
    }

    /// Returns when the call at the front wants the next command, if it waits by `Backoff` and no
    /// call behind it by `Wake`.
    pub(super) fn backs_off_until(&self, serves: Serves) -> Option<Instant> {
        let waiter = match serves {
            Serves::Line => self.waiters.front(),
            Serves::One(no) => self.waiters.get(no),
            Serves::Nobody => None,
        }?;
        let backs_off = matches!(waiter.wait, Wait::Queue(WaitPolicy::Backoff(_)));
        (backs_off && !self.wakes(serves)).then_some(waiter.retry_at)
    }

    /// The pause of a call that was at the front, until `at`, holds nobody else up: that call has
    /// left, or one that does not wait for pauses has come.
    pub(super) fn end_pause(&mut self, at: Instant, ev: &LineEvent<'_>) {
        let until = match self.backs_off_until(Serves::Line) {
            Some(until) => until,
            None => self.asks_from().max(ev.now),
        };
        let of_line = self.requests.serving(&[Serves::Line]);
        let is_its =
            |n: &RequestNo| matches!(self.requests[*n].state, RequestState::Due(due) if due == at);
        let paused = of_line.into_iter().find(is_its);
        if let Some(n) = paused.filter(|_| until < at) {
            self.set_due(n, until);
        }
    }

    /// A call has parked behind its request: its policy decides when that asks again.
    pub(super) fn pace(&mut self, no: WaiterNo, ev: &mut LineEvent<'_>) {
        let front = self.waiters.front().map(|front| (front.no, front.retry_at));
        if let Some((_, at)) = front.filter(|_| self.wakes(Serves::Line)) {
            self.end_pause(at, ev);
        }
        for n in self.requests.serving(&[Serves::Line, Serves::One(no)]) {
            let serves = self.requests[n].serves;
            let wakes = self.wakes(serves);
            let until = self.backs_off_until(serves);
            let is_its = serves == Serves::One(no) || front.is_some_and(|(front, _)| front == no);
            let mut request = self.requests.change(n);
            let is_woken = request.woken;
            match &mut request.state {
                // Its place needs an inbox now.
                RequestState::Queued(place) if wakes && place.listens == Listens::No => {
                    place.refresh_at = ev.now;
                    request.again = ev.now;
                    drop(request);
                    self.touch(ev.now, ev.now);
                }
                RequestState::Queued(place) => {
                    place.refresh_at =
                        until.map_or(place.refresh_at, |at| at.min(place.refresh_at));
                    drop(request);
                    self.touch_refresh(n);
                }
                // The pause of another call, or the end of a lease, has made it due then.
                RequestState::Due(_) if is_woken || !is_its => {}
                RequestState::Due(at) => *at = until.map_or(*at, |until| until.max(*at)),
                _ => {}
            }
        }
    }

    /// A grant to a place, or one that is too old: a renewal must confirm it.
    pub(super) fn confirm_first(
        &mut self,
        n: RequestNo,
        id: &HolderId,
        tokens: TokenBlock,
        in_queue: bool,
        ev: &mut LineEvent<'_>,
    ) {
        let longest = self.requests[n].key_may_get();
        ev.ids.push(IdFate::InUse(id.clone(), n));
        self.requests.change(n).state = RequestState::Confirming(Confirming {
            id: id.clone(),
            tokens,
            in_queue,
            longest,
            retry_at: ev.now,
            renewing: false,
        });
        self.touch(ev.now, ev.now);
    }

    /// A grant message for a request.
    pub(super) fn granted_by_message(
        &mut self,
        no: RequestNo,
        id: &HolderId,
        tokens: TokenBlock,
        ev: &mut LineEvent<'_>,
    ) -> Option<Win<'static>> {
        let n = self.requests.existing(no)?;
        let request = &self.requests[n];
        if request.id() != Some(id) {
            return None;
        }
        let seen = match (&request.state, &request.flight) {
            (RequestState::Queued(place), _) => place.seen,
            // A grant proves that the command has run.
            (RequestState::Sent, Some(flight)) => flight.sent,
            _ => return None,
        };
        self.requests.change(n).woken = true;
        self.grant(n, (id, tokens), seen, ev)
    }

    /// A place was granted the lock; validity counts from `seen`, never from a refresh.
    fn grant(
        &mut self,
        n: RequestNo,
        (id, tokens): (&HolderId, TokenBlock),
        seen: Instant,
        ev: &mut LineEvent<'_>,
    ) -> Option<Win<'static>> {
        self.note_contended(ev.now);
        self.last.silent_since = None;
        self.requests.change(n).failures = 0;
        let receiver = self.receiver(&self.requests[n]);
        if receiver == Receiver::Nobody || ev.is_closed {
            if self.requests[n].caller().is_some() {
                // The client is closed: the end of the caller's command gives it back.
                return None;
            }
            // The grant shows that its acquiring command has run.
            let request = self.requests.remove(n);
            ev.undo(&request, id, Proof::AnyAnswer);
            return None;
        }
        let asked = self.requests[n].terms;
        let terms = self.receiver_terms(&self.requests[n]);
        let lasts = provisional_of(refresh_every(asked.ttl)).min(asked.ttl);
        let lease = LeaseState::granted(seen, ev.now, lasts.min(terms.ttl), &untaken(&terms));
        match lease.filter(|_| fits(&asked, &terms) && terms.replicas.is_none()) {
            Some(mut lease) => {
                lease.may_last(lasts);
                Some(self.win(n, (id, tokens, true), lease, &terms, ev))
            }
            None => {
                self.confirm_first(n, id, tokens, true, ev);
                None
            }
        }
    }

    /// A request gets its lease. It stays, as `Won`, until its acquiring command has ended.
    fn win(
        &mut self,
        n: RequestNo,
        (id, tokens, in_queue): (&HolderId, TokenBlock, bool),
        lease: LeaseState,
        terms: &LeaseTerms,
        ev: &mut LineEvent<'_>,
    ) -> Win<'static> {
        let grant = Grant {
            id: id.clone(),
            tokens,
            lease,
            terms: *terms,
            in_queue,
            part: self.requests[n]
                .part
                .as_ref()
                .map(|it| it.terms.part.clone()),
            taker: None,
        };
        let receiver = self.receiver(&self.requests[n]);
        self.count_wake(n, receiver, ev);
        ev.forget(id);
        Win {
            lock: Arc::clone(&self.requests[n].lock),
            grant,
            receiver,
            request: Some(n),
        }
    }

    /// Applies the end of a refresh. Returns its result for each place, and the last refusal;
    /// [`place_found`](Self::place_found) applies that to one after the other.
    pub(super) fn refreshed(
        &mut self,
        of: &[(RequestNo, HolderId)],
        end: Result<Answer, Fault>,
        (sent, known): (Instant, KnownHolder),
        ev: &mut LineEvent<'_>,
    ) -> Option<(Vec<Refreshed>, Option<Refused>)> {
        decided(of.len());
        let (found, by) = match end {
            Ok(Answer::Places(found, by)) if found.len() == of.len() => (found, by),
            end => {
                let fault = end.err().unwrap_or_else(|| Fault::Unknown(unexpected()));
                self.not_refreshed(of, &fault, sent, ev);
                return None;
            }
        };
        self.last.answered(sent, ev.now);
        let waits = found
            .iter()
            .any(|place| matches!(place, Refreshed::Waiting(_)));
        let counts = !self.is_of_nobody(&by, known, false) || is_on(Mutant::OwnIdRefusesPlaces);
        let refused = (waits && counts).then(|| {
            let by = self.last.with_age(Arc::new(by), ev.now);
            self.note_contended(ev.now);
            self.last.refused(sent, ev.now, by)
        });
        Some((found, refused))
    }

    /// Applies what a refresh has found of a place. One that was granted or given up in the
    /// meantime is left alone.
    pub(super) fn place_found(
        &mut self,
        (no, id): &(RequestNo, HolderId),
        found: Refreshed,
        (sent, by): (Instant, &Option<Refused>),
        ev: &mut LineEvent<'_>,
    ) -> Option<Win<'static>> {
        let (n, seen) = self.place(*no, id)?;
        self.requests.change(n).failures = 0;
        match found {
            Refreshed::Waiting(remaining) => self.still_waits(n, sent, remaining, by, ev),
            Refreshed::Granted(token) => {
                let from_refresh = is_on(Mutant::GrantCountsFromRefresh);
                let seen = if from_refresh { sent } else { seen };
                return self.grant(n, (id, TokenBlock::one(token)), seen, ev);
            }
            Refreshed::Gone => {
                ev.forget(id);
                self.set_due(n, ev.now);
                self.retire(n, ev);
            }
        }
        None
    }

    /// Returns the request that has this place, and when the place was last seen to wait.
    fn place(&self, no: RequestNo, id: &HolderId) -> Option<(RequestNo, Instant)> {
        let n = self.requests.existing(no)?;
        match &self.requests[n].state {
            RequestState::Queued(place) if place.id == *id => Some((n, place.seen)),
            _ => None,
        }
    }

    fn still_waits(
        &mut self,
        n: RequestNo,
        sent: Instant,
        remaining: Option<Duration>,
        by: &Option<Refused>,
        ev: &mut LineEvent<'_>,
    ) {
        self.note_waited(n, ev);
        let no = self.requests[n].no;
        let regular = sent.after(self.refreshes_every(self.requests[n].terms.ttl));
        if let RequestState::Queued(place) = &mut self.requests.change(n).state {
            place.seen = place.seen.max(sent);
            place.regular = place.regular.max(regular);
            place.refreshing = false;
        }
        if let Some(no) = self.count_refusal(self.requests[n].serves, sent, ev.now) {
            self.end_waiter(no, Outcome::Refused(by.clone()), ev);
            self.retire_of(no, ev);
        }
        // That may have ended the last call which it served.
        let Some(n) = self.requests.existing(no) else {
            return;
        };
        let again = self.take_again(n);
        let at = self.refresh_at(n, sent, remaining, ev.now).min(again);
        if let RequestState::Queued(place) = &mut self.requests.change(n).state {
            place.refresh_at = at;
        }
        self.touch_refresh(n);
    }

    fn not_refreshed(
        &mut self,
        of: &[(RequestNo, HolderId)],
        fault: &Fault,
        sent: Instant,
        ev: &mut LineEvent<'_>,
    ) {
        for (no, id) in of {
            let Some((n, _)) = self.place(*no, id) else {
                continue;
            };
            if let Fault::Rejected(error) = fault {
                let failure = Failure::Rejected(error.clone());
                if is_on(Mutant::RejectedRefreshIsForgotten) {
                    ev.forget(id)
                } else {
                    ev.undo(&self.requests[n], id, Proof::AnyAnswer)
                }
                self.fail(n, false, failure, ev);
                continue;
            }
            let mut request = self.requests.change(n);
            let at = ev.now.after(request.pause_after_failure());
            if let RequestState::Queued(place) = &mut request.state {
                place.refreshing = false;
                place.refresh_at = at;
            }
            drop(request);
            self.touch(at, at);
            self.note_silence(sent, fault.clone(), ev);
        }
    }

    /// Applies the end of a renewal that confirms a grant under `terms`.
    pub(super) fn confirmed(
        &mut self,
        (no, id): (RequestNo, &HolderId),
        terms: &LeaseTerms,
        end: Result<Answer, Fault>,
        sent: Instant,
        ev: &mut LineEvent<'_>,
    ) -> Option<Win<'static>> {
        let n = self.requests.existing(no)?;
        let (tokens, in_queue, longest) = match &self.requests[n].state {
            RequestState::Confirming(it) if it.id == *id => (it.tokens, it.in_queue, it.longest),
            _ => return None,
        };
        match (end.as_ref().ok().and_then(Answer::key_state), end) {
            (Some(KeyState::Ours), _) => {
                if ev.is_closed {
                    // Its caller's reply ends it.
                    return None;
                }
                let wanted = self.receiver_terms(&self.requests[n]);
                if !fits(terms, &wanted) {
                    self.confirm_first(n, id, tokens, in_queue, ev);
                    return None;
                }
                let Some(mut lease) = LeaseState::acquired(sent, ev.now, &untaken(&wanted)) else {
                    // The reply took as long as the lease.
                    self.note_silence(sent, Fault::Unknown(too_short()), ev);
                    self.confirmed_too_late(n, id, ev);
                    return None;
                };
                lease.may_last(longest);
                return Some(self.win(n, (id, tokens, in_queue), lease, &wanted, ev));
            }
            (Some(KeyState::Gone | KeyState::Foreign), _) => {
                self.last.answered(sent, ev.now);
                if self.requests[n].flight.is_some() {
                    // Its acquiring command is still under way: that ends it.
                    self.requests.change(n).state = RequestState::Sent;
                    return None;
                }
                // A master that a failover has set back may grant its place once more.
                ev.undo(&self.requests[n], id, Proof::AnyAnswer);
                self.set_due(n, ev.now);
                self.retire(n, ev);
            }
            (None, Err(Fault::NotReplicated(error) | Fault::Rejected(error))) => {
                if self.requests[n].caller().is_none() {
                    self.requests.change(n).flight = None;
                    ev.undo(&self.requests[n], id, Proof::AnyAnswer);
                    self.fail(n, false, Failure::Rejected(error), ev);
                } else {
                    self.retry_confirming(n, ev);
                }
            }
            (None, end) => {
                let fault = end.err().unwrap_or_else(|| Fault::Unknown(unexpected()));
                self.note_silence(sent, fault, ev);
                self.retry_confirming(n, ev);
            }
        }
        None
    }

    /// Others get the lock: through this link it cannot be held.
    fn confirmed_too_late(&mut self, n: RequestNo, id: &HolderId, ev: &mut LineEvent<'_>) {
        if self.requests[n].flight.is_some() {
            return self.retry_confirming(n, ev);
        }
        ev.undo(&self.requests[n], id, Proof::AnyAnswer);
        self.due_after_failure(n, ev);
        self.retire(n, ev);
    }

    fn retry_confirming(&mut self, n: RequestNo, ev: &mut LineEvent<'_>) {
        let mut request = self.requests.change(n);
        let failures = request.failures;
        request.failures = failures.saturating_add(1);
        let at = ev.now.after(RECONNECT.pause(failures));
        if let RequestState::Confirming(grant) = &mut request.state {
            grant.renewing = false;
            grant.retry_at = at;
        }
        drop(request);
        self.touch(at, at);
    }
}

pub(crate) fn next_attempt(
    regular: Instant,
    arrived: Instant,
    remaining: Option<Duration>,
    earliest: Instant,
) -> Instant {
    // No message announces the expiry of a key. Redis rounds the remaining time down to whole ms.
    let expiry = remaining.map_or(Instant::NEVER, |remaining| {
        let rounded_up = remaining.saturating_add(Duration::from_millis(1));
        arrived.after(rounded_up)
    });
    expiry.max(earliest).min(regular)
}
