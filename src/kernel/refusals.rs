//! A refusal, and a reply that grants nothing and names no holder: when the request asks again, and
//! which calls that delays or ends.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::Cause;
use crate::kernel::answers::ForCaller;
use crate::kernel::command::Attempt;
use crate::kernel::event::{KnownHolder, LineEvent};
use crate::kernel::failure::{Failure, Refused};
use crate::kernel::line::Line;
use crate::kernel::places::{UNSUBSCRIBED, next_attempt};
use crate::kernel::request::{Busy, Flight, Request, RequestNo, RequestState, Sender, Serves};
use crate::kernel::requests::Receiver;
use crate::kernel::undo::Proof;
use crate::kernel::waiter::{Outcome, Wait, WaiterNo};
use crate::mutant::{Mutant, is_on};
use crate::protocol::refusal::RefusedName;
use crate::wait_policy::{WaitPolicy, jittered};

/// The pause after a refusal that was caused by a command of this client that nobody owns.
const OWN_ID_PAUSE: Duration = Duration::from_millis(50);

/// Returns why a call fails that began at `since`, if nobody was known to have the lock until now.
pub(crate) fn no_holder_since(since: Instant, cause: &'static str) -> Failure {
    Failure::Unreachable {
        since: Some(since),
        cause: Some(Cause::text(cause)),
    }
}

impl Line {
    /// The reply to the acquiring command refuses the lock.
    pub(super) fn refused(
        &mut self,
        n: RequestNo,
        flight: &Flight,
        by: RefusedName,
        (sent, known): (Instant, KnownHolder),
        ev: &mut LineEvent<'_>,
    ) -> ForCaller {
        let is_own_id = by.holder == flight.id.as_str().as_bytes();
        if is_own_id && flight.attempt.enters() {
            // Its place was granted at once, or the command has run twice: a refresh finds the
            // grant.
            self.requests.change(n).again = ev.now;
            return self.refused_by_nobody(n, flight, &by, (sent, known), ev);
        }
        if is_own_id {
            ev.undo(&self.requests[n], &flight.id, Proof::KeySeen);
            self.due_after_failure(n, ev);
            return ForCaller::GoesOn;
        }
        // An attempt for a deadline is made because the command of the line has no reply.
        let is_for_deadline = match self.requests[n].serves {
            Serves::One(no) => self.waiters.is_in_line(no),
            Serves::Line | Serves::Nobody => false,
        };
        if self.is_of_nobody(&by, known, is_for_deadline) {
            return self.refused_by_nobody(n, flight, &by, (sent, known), ev);
        }
        self.requests.change(n).busy = None;
        let remaining = by.remaining;
        let refused = self.last.refused(sent, ev.now, Arc::new(by));
        self.note_waited(n, ev);
        self.note_contended(ev.now);
        let mut request = self.requests.change(n);
        request.failures = 0;
        request.refusals += 1;
        let is_once = request.once;
        drop(request);
        if is_once {
            return self.refused_once(n, flight, refused, ev);
        }
        let used_up = self.count_refusal(self.requests[n].serves, sent, ev.now);
        if let Attempt::Enter(listens) = flight.attempt {
            self.queued(n, (&flight.id, listens), sent, remaining, ev);
        } else {
            ev.forget(&flight.id);
            self.due_after_refusal(n, remaining, ev);
        }
        if let Some(no) = used_up {
            self.end_waiter(no, Outcome::Refused(Some(refused)), ev);
            self.retire_own(no, ev);
        }
        ForCaller::Refused(None)
    }

    /// A command of this client that nobody owns has the lock: no refusal, because the lock is free
    /// once that command is undone, or somebody's once its reply is read.
    fn refused_by_nobody(
        &mut self,
        n: RequestNo,
        flight: &Flight,
        by: &RefusedName,
        (sent, known): (Instant, KnownHolder),
        ev: &mut LineEvent<'_>,
    ) -> ForCaller {
        self.last.answered(sent, ev.now);
        self.requests.change(n).failures = 0;
        if let Attempt::Enter(listens) = flight.attempt {
            self.queued(n, (&flight.id, listens), sent, by.remaining, ev);
            // A call whose last attempt this was needs another one.
            self.plan_last_attempts();
            return ForCaller::GoesOn;
        }
        ev.forget(&flight.id);
        let mut request = self.requests.change(n);
        request.refusals += 1;
        let can_queue = request.lock.queue().is_some() && !request.once;
        drop(request);
        let pause = if can_queue || known.is_undone {
            Duration::ZERO
        } else {
            OWN_ID_PAUSE
        };
        self.set_due(n, ev.now.after(pause));
        ForCaller::GoesOn
    }

    /// Returns whether a command of this client, which nobody here owns, caused a refusal because
    /// of a name.
    pub(super) fn is_of_nobody(
        &self,
        by: &RefusedName,
        known: KnownHolder,
        is_for_deadline: bool,
    ) -> bool {
        if is_on(Mutant::OwnIdRefuses) {
            return false;
        }
        if by.names_holder() {
            let is_abandoned = |request: &Request| {
                let is_unanswered = matches!(request.state, RequestState::Sent);
                let id = request.id().map(|id| id.as_str().as_bytes());
                id == Some(&by.holder)
                    && (request.serves == Serves::Nobody || is_for_deadline && is_unanswered)
            };
            if known.is_released || !known.is_own {
                return known.is_released;
            }
            let mut may_be_its = self.requests.serving(&[Serves::Nobody]);
            if is_for_deadline {
                may_be_its.extend(self.requests.sent());
            }
            return may_be_its
                .into_iter()
                .any(|n| is_abandoned(&self.requests[n]));
        }
        known.has_unanswered || !self.requests.serving(&[Serves::Nobody]).is_empty()
    }

    /// The refusal of a call that leaves at its first one, or of an attempt for a deadline.
    fn refused_once(
        &mut self,
        n: RequestNo,
        flight: &Flight,
        by: Refused,
        ev: &mut LineEvent<'_>,
    ) -> ForCaller {
        let request = self.requests.remove(n);
        ev.forget(&flight.id);
        let outcome = Outcome::Refused(Some(by));
        if let Sender::Caller(_) = flight.sender {
            return ForCaller::Refused(Some(outcome));
        }
        if let Serves::One(no) = request.serves
            && (self.waiters.get(no)).is_some_and(|waiter| waiter.wait == Wait::Once)
        {
            self.end_waiter(no, outcome, ev);
        }
        ForCaller::GoesOn
    }

    /// The next command after a refusal without a place.
    pub(super) fn due_after_refusal(
        &mut self,
        n: RequestNo,
        remaining: Option<Duration>,
        ev: &mut LineEvent<'_>,
    ) {
        let again = self.take_again(n);
        let request = &self.requests[n];
        let backstop = ev.limits.backstop;
        let at = match self.backs_off_until(request.serves) {
            Some(at) => at,
            None if request.lock.has_local_queue() && request.lock.queue().is_some() => {
                ev.now.max(self.asks_from())
            }
            None if request.lock.queue().is_some() => ev.now,
            None => {
                let pause = if self.is_listening {
                    jittered(backstop)
                } else {
                    UNSUBSCRIBED
                        .pause(request.refusals.saturating_sub(1))
                        .min(backstop)
                };
                next_attempt(ev.now.after(pause), ev.now, remaining, ev.now).min(again)
            }
        };
        self.set_due(n, at);
    }

    /// Counts a refusal for the call that waits by `Backoff`. Returns its number after its last
    /// attempt.
    pub(super) fn count_refusal(
        &mut self,
        serves: Serves,
        sent: Instant,
        now: Instant,
    ) -> Option<WaiterNo> {
        let no = match serves {
            Serves::Line => self.waiters.front()?.no,
            Serves::One(no) if self.waiters.is_in_line(no) => return None,
            Serves::One(no) => no,
            Serves::Nobody => return None,
        };
        let is_last = self.waiters.change(no, |waiter| {
            let Wait::Queue(WaitPolicy::Backoff(backoff)) = &waiter.wait else {
                return false;
            };
            // An earlier command was not its own attempt.
            if sent < waiter.retry_at {
                return false;
            }
            waiter.retry_at = now.after(backoff.pause(waiter.refusals));
            waiter.refusals += 1;
            let limit = backoff.limit();
            limit.is_some_and(|limit| waiter.refusals >= limit)
        });
        is_last.filter(|is_last| *is_last).map(|_| no)
    }
}

impl Line {
    /// Nothing was taken, and nobody is known to have the lock: the next command comes after the
    /// pause.
    pub(super) fn busy(
        &mut self,
        n: RequestNo,
        flight: &Flight,
        (pause, cause): (Duration, &'static str),
        sent: Instant,
        ev: &mut LineEvent<'_>,
    ) {
        ev.forget_attempt(&flight.id);
        if pause.is_zero() {
            return self.ask_again(n, sent, ev);
        }
        let by = Arc::new(RefusedName {
            name: 0,
            holder: Vec::new(),
            remaining: Some(Duration::ZERO),
            detail: None,
        });
        let refused = self.last.busy(sent, ev.now, by);
        self.note_waited(n, ev);
        if self.requests[n].is_part_over() {
            return self.refuse_part(n, refused, ev);
        }
        let at = ev.now.after(pause);
        let mut request = self.requests.change(n);
        request.failures = 0;
        request.again = Instant::NEVER;
        let since = request.busy.map_or(sent, |busy| busy.since);
        let is_too_long = since.until(ev.now) >= ev.limits.unreachable_for;
        request.busy = (!is_too_long).then_some(Busy { since, until: at });
        drop(request);
        if is_too_long {
            self.fail(n, false, no_holder_since(since, cause), ev);
            return;
        }
        self.set_due(n, at);
        // A call that waits for its first reply only leaves if no time is left for another attempt.
        if let Receiver::Waiter(no) = self.receiver(&self.requests[n])
            && self.requests[n].serves == Serves::One(no)
            && let Some(waiter) = self.waiters.get(no)
            && waiter.wait == Wait::Once
            && at >= waiter.deadline
        {
            self.end_waiter(no, Outcome::Refused(Some(refused)), ev);
            self.retire_own(no, ev);
        }
    }

    /// The command said nothing about the lock: the next one is sent at once.
    fn ask_again(&mut self, n: RequestNo, sent: Instant, ev: &mut LineEvent<'_>) {
        if let Some(part) = &mut self.requests.change(n).part {
            part.is_sent = false;
        }
        if is_on(Mutant::TooLowIsRefused) {
            return self.due_after_refusal(n, None, ev);
        }
        self.last.answered(sent, ev.now);
        self.set_due(n, ev.now);
    }

    /// A part was not granted: its call ends, if it has not left.
    fn refuse_part(&mut self, n: RequestNo, refused: Refused, ev: &mut LineEvent<'_>) {
        let receiver = self.receiver(&self.requests[n]);
        self.set_due(n, ev.now);
        if let Receiver::Waiter(no) = receiver {
            self.end_waiter(no, Outcome::Refused(Some(refused)), ev);
            self.retire_own(no, ev);
        }
    }
}
