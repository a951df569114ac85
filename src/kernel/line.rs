//! The line of a name: the calls that wait, the requests that ask on their behalf, and what Redis
//! last said.
//!
//! ```text
//! the line: one request for all its calls; it exists while somebody waits and this client does not
//!           hold the name alone. A lease goes to the front; its end makes somebody ask again.
//! own:      calls of kinds whose calls have a place each: one request for each of them.
//! ```

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::event::{LineEvent, Own};
use crate::kernel::failure::{Failure, Refused};
use crate::kernel::held::HeldLease;
use crate::kernel::last_reply::LastReply;
use crate::kernel::request::{Asked, Request, RequestNo, RequestState, Serves};
use crate::kernel::request_index::Requests;
use crate::kernel::steps::decided;
use crate::kernel::waiter::{Outcome, Waiter, WaiterNo};
use crate::kernel::waiters::Waiters;
use crate::mutant::{Mutant, is_on};
use crate::protocol::place::Next;
use crate::token::FencingToken;

/// How long first commands join the queue after a refusal, a grant or a plain release: they do not
/// overtake.
const CONTENDED_FOR: Duration = Duration::from_secs(1);

/// After a plain release, programs outside the queue have this long to take the lock.
pub(super) const FREE_FOR: Duration = Duration::from_millis(2);

/// The client that a plain release names may have died: the others ask from this time after its
/// message on, at a random moment of the next 20 ms, or of 4 ms for each client that waits.
const OTHERS_AFTER: Duration = Duration::from_millis(20);
const OTHERS_WITHIN: Duration = Duration::from_millis(20);
const FOR_EACH: Duration = Duration::from_millis(4);

#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) waiters: Waiters,
    pub(crate) requests: Requests,
    pub(crate) last: LastReply,
    /// When others were last known to want the name; after a plain release, until when no call of
    /// the line asks.
    contended: Instant,
    /// When the calls look that a plain release did not name; `NEVER` if none was announced.
    pub(super) after_plain: Instant,
    /// Messages arrive, as far as is known.
    pub(super) is_listening: bool,
    /// Lower bounds of when the engine must look, and of when it must be awake for that.
    pub(super) next: Instant,
    pub(super) latest: Instant,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            waiters: Waiters::default(),
            requests: Requests::default(),
            last: LastReply::default(),
            contended: Instant::START,
            after_plain: Instant::NEVER,
            is_listening: false,
            next: Instant::NEVER,
            latest: Instant::NEVER,
        }
    }
}

/// Questions.
impl Line {
    /// Returns whether it asks, waits, or has what it waits for.
    pub(super) fn is_busy(&self, own: Own) -> bool {
        self.waiters.in_line() > 0 || own.line_waits || self.line_request().is_some()
    }

    /// Returns whether a command was sent under this id, and has no reply yet.
    pub(super) fn asks_as(&self, id: &HolderId) -> bool {
        let mut sent = self.requests.sent();
        sent.any(|n| self.requests[n].id() == Some(id))
    }

    /// Returns whether a call waits or asks.
    pub(super) fn is_asked_for(&self) -> bool {
        !(self.requests.is_empty() && self.waiters.is_empty())
    }

    /// Records that others wanted the name at `at`, or that it is left to other programs until
    /// then.
    pub(super) fn note_contended(&mut self, at: Instant) {
        self.contended = self.contended.max(at);
    }

    pub(super) fn contended_until(&self) -> Instant {
        match self.contended {
            Instant::START => Instant::START,
            contended => contended.after(CONTENDED_FOR),
        }
    }

    /// Returns from when on the line may ask.
    pub(super) fn asks_from(&self) -> Instant {
        self.contended
    }

    /// Returns whether a call of this client waits for the name, as far as Redis has said: then a
    /// call that does not wait is refused, so that it does not get the name first. A call that
    /// waits only behind the first command of another one has not been refused by anybody. Walks
    /// over the calls up to the first such one.
    pub(super) fn is_waited_for(&self, now: Instant) -> bool {
        let is_said = self.last.has_refused() && !self.last.has_failed();
        is_said && self.waiters.walk().any(|waiter| waiter.is_ahead(now))
    }

    /// Returns what Redis last said about the holder, unless its lease has ended since.
    pub(super) fn last_holder(&self, now: Instant) -> Option<Refused> {
        self.last.refusal().filter(|refused| now < refused.until)
    }

    /// Returns why a call that began at `start` fails.
    pub(super) fn failure(&self, start: Instant) -> Failure {
        self.last.failure(start, self.requests.under_way())
    }

    /// Returns why a call for a part fails, which began at `start` and does not wait.
    pub(super) fn failure_of_part(&self, start: Instant) -> Failure {
        if self.last.has_failed() {
            self.failure(start)
        } else {
            Failure::Restart
        }
    }

    /// Returns when a call gives up because of what Redis says, or because it is silent.
    pub(super) fn gives_up_at(
        &self,
        start: Instant,
        own: Own,
        unreachable_for: Duration,
    ) -> Instant {
        if own.alone {
            Instant::NEVER
        } else {
            let under_way = self.requests.under_way();
            self.last.gives_up_at(start, under_way, unreachable_for)
        }
    }

    // ------------------------------------------------------------------ when to look

    /// Notes that the engine must look at the entry at `at`, and be awake for that by `latest`.
    pub(super) fn touch(&mut self, at: Instant, latest: Instant) {
        self.next = self.next.min(at);
        self.latest = self.latest.min(latest);
    }

    // ------------------------------------------------------------------ the parked calls

    /// Returns whether release messages wake a parked call that a request serves.
    pub(super) fn wakes(&self, serves: Serves) -> bool {
        match serves {
            Serves::Line => self.waiters.first_woken().is_some(),
            Serves::One(no) => (self.waiters.get(no)).is_some_and(|waiter| waiter.wait.is_woken()),
            Serves::Nobody => false,
        }
    }

    /// Removes a waiting call from its list. Its pause holds nobody else up.
    pub(super) fn remove_waiter(&mut self, no: WaiterNo, ev: &LineEvent<'_>) -> Option<Waiter> {
        let was_in_line = self.waiters.is_in_line(no);
        let waiter = self.waiters.remove(no)?;
        if was_in_line {
            self.end_pause(waiter.retry_at, ev);
        }
        Some(waiter)
    }

    /// Ends a parked call: its outcome is stored, and its thread is woken.
    pub(super) fn end_waiter(&mut self, no: WaiterNo, outcome: Outcome, ev: &mut LineEvent<'_>) {
        if let Some(waiter) = self.remove_waiter(no, ev) {
            decided(1);
            *waiter.cell.outcome.lock() = Some(outcome);
            ev.fx.wake.push(waiter.cell);
        }
    }
}

/// The ends of calls and requests.
impl Line {
    /// Returns what a call reports at its deadline. `is_excluded`: this client has the lock.
    pub(super) fn at_deadline(
        &self,
        is_excluded: bool,
        [start, deadline]: [Instant; 2],
    ) -> Outcome {
        if is_excluded {
            return Outcome::Refused(None);
        }
        if self.last.says_taken(start, deadline) {
            Outcome::Refused(self.last.refusal())
        } else {
            Outcome::Failed(self.failure(start))
        }
    }

    /// The thread of a call has not sent its command.
    pub(super) fn not_sent(&mut self, asked: &Asked) {
        // The engine ends the command of a thread that stands still.
        let is_its = |n: &RequestNo| {
            let flight = self.requests[*n].flight.as_ref();
            flight.is_some_and(|flight| flight.id == asked.id)
        };
        if let Some(n) = self.requests.existing(asked.no).filter(is_its) {
            self.requests.remove(n);
        }
    }

    /// A lease was handed to the call at the front, under this token.
    pub(super) fn handed_off(
        &mut self,
        no: WaiterNo,
        (lease, token): (&Arc<HeldLease>, FencingToken),
        ev: &mut LineEvent<'_>,
    ) {
        ev.fx.wakes += 1;
        self.waiters.change(no, |waiter| waiter.note_waited());
        self.end_waiter(no, Outcome::Lease(Arc::clone(lease), token), ev);
        self.retire_of(no, ev);
    }

    /// A lease of this client has left: somebody must ask at that instant.
    pub(super) fn ask_from(&mut self, when: Instant, ev: &mut LineEvent<'_>) {
        self.serve(when, ev);
        let stays_later = is_on(Mutant::LaterAttemptStaysLater);
        for n in self.requests.serving(&[Serves::Line]) {
            let mut request = self.requests.change(n);
            request.woken = true;
            match &mut request.state {
                RequestState::Due(due) if !stays_later => *due = (*due).min(when),
                // That lease may be what refuses it.
                RequestState::Sent => request.again = request.again.min(when),
                _ => {}
            }
        }
        // The end of one of several permits that nobody waits for is no work for the engine.
        if !stays_later && self.is_asked_for() {
            self.touch(when, when);
        }
    }

    /// The client is closed: all calls end. Those that wait for a reply end by themselves.
    pub(super) fn close_calls(&mut self, ev: &mut LineEvent<'_>) {
        let parked = self.waiters.numbers();
        let asking = self.requests.walk();
        let asking = asking.filter(|it| it.caller().is_some() && !it.once);
        ev.fx.closed += parked.len() + asking.count();
        for no in parked {
            self.end_waiter(no, Outcome::Failed(Failure::Closed), ev);
        }
    }

    /// The client is closed: all requests end that no call's thread waits for.
    pub(super) fn close_requests(&mut self, ev: &mut LineEvent<'_>) {
        for n in self.requests.numbers().into_iter().rev() {
            self.retire(n, ev);
        }
    }

    /// A mistake, for the simulation: a place asks again although it still has its turn.
    pub(super) fn forget_place(&mut self, now: Instant) {
        let is_place = |it: &&Request| matches!(it.state, RequestState::Queued(_));
        let place = self.requests.walk().find(is_place);
        if let Some(n) = place.map(|request| request.no) {
            self.set_due(n, now);
        }
    }
}

/// Messages, which make requests due.
impl Line {
    /// A release was announced; `is_of_lease` if the lock was held by another holder until then, as
    /// far as is known.
    pub(super) fn released(&mut self, is_of_lease: bool, ev: &LineEvent<'_>) {
        let was_later = if is_of_lease {
            self.last.released(ev.now)
        } else {
            self.last.cut(ev.now)
        };
        if was_later {
            self.plan_last_attempts();
        }
    }

    /// A lease of this client was released: the message is for others, and for calls that do not
    /// wait in the line.
    pub(super) fn look_beside(&mut self, ev: &mut LineEvent<'_>) {
        for n in self.requests.later_than(ev.now) {
            if self.requests[n].serves != Serves::Line {
                self.wake(n, ev.now, ev);
            }
        }
    }

    /// The lock was left free for a moment, and one place must ask for it before the others. Those
    /// are postponed if they had still to ask after the last such message: the lock was held since.
    pub(super) fn announced_plain(
        &mut self,
        next: &Next,
        first: Option<RequestNo>,
        chance: f64,
        ev: &mut LineEvent<'_>,
    ) {
        if self.last.released(ev.now) {
            self.plan_last_attempts();
        }
        self.note_contended(ev.now.after(FREE_FOR));
        let within = OTHERS_WITHIN.max(FOR_EACH * next.waiting);
        let others = OTHERS_AFTER + within.mul_f64(chance);
        let first = first.filter(|_| !is_on(Mutant::NamedPlaceAsksLater));
        if let Some(n) = first.and_then(|no| self.requests.existing(no)) {
            self.wake(n, ev.now.after(FREE_FOR), ev);
        }
        let looks_at = ev.now.after(others);
        self.after_plain = if is_on(Mutant::PlainReleasesAddUp) {
            self.after_plain.min(looks_at)
        } else {
            looks_at
        };
        self.touch(self.after_plain, self.after_plain);
    }

    /// The client that the last plain release has named may have died: the others ask.
    pub(super) fn look_after_plain(&mut self, ev: &mut LineEvent<'_>) {
        if self.after_plain > ev.now {
            return;
        }
        self.after_plain = Instant::NEVER;
        let mut others = self.requests.unplaced_later_than(ev.now);
        // A refresh includes all places of its group.
        others.extend(self.requests.first_places());
        for n in others {
            self.wake(n, ev.now, ev);
        }
    }

    /// The lock may be free, or a message may have been missed: every request looks.
    pub(super) fn look(&mut self, ev: &mut LineEvent<'_>) {
        for n in self.requests.later_than(ev.now) {
            self.wake(n, ev.now, ev);
        }
    }

    /// Makes a request look at that instant, if messages wake its call.
    fn wake(&mut self, n: RequestNo, when: Instant, ev: &LineEvent<'_>) {
        let has_caller = self.requests[n].caller().is_some();
        if !has_caller && !self.wakes(self.requests[n].serves) {
            return;
        }
        let mut request = self.requests.change(n);
        // Calls that each hold a part of a lock would all ask in the same moment again.
        let when = when.max(request.busy.map_or(ev.now, |busy| busy.until));
        match &mut request.state {
            RequestState::Due(due) => *due = (*due).min(when),
            RequestState::Queued(place) if place.refreshing => {
                request.again = request.again.min(when);
            }
            RequestState::Queued(place) => place.refresh_at = place.refresh_at.min(when),
            // It takes effect when the command ends.
            RequestState::Sent => request.again = request.again.min(when),
            RequestState::Won(_) | RequestState::Confirming(_) => return,
        }
        request.woken = true;
        drop(request);
        decided(1);
        self.touch(when, when);
    }
}
