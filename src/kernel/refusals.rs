//! A refusal ends its request, and may delay or end the calls that the request serves.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::kernel::answers::ForCaller;
use crate::kernel::command::Attempt;
use crate::kernel::context::Context;
use crate::kernel::entry::LockEntry;
use crate::kernel::failure::Refused;
use crate::kernel::places::{UNSUBSCRIBED, next_attempt};
use crate::kernel::request::{Flight, Request, RequestNo, RequestState, Sender, Serves};
use crate::kernel::undo::Proof;
use crate::kernel::waiter::{Outcome, Wait, WaiterNo};
use crate::mutant::{Mutant, is_on};
use crate::name::Name;
use crate::protocol::refusal::RefusedName;
use crate::wait_policy::{WaitPolicy, jittered};

/// The pause after a refusal that was caused by a command of this client that nobody owns.
const OWN_ID_PAUSE: Duration = Duration::from_millis(50);

impl LockEntry {
    /// The reply to the acquiring command refuses the lock.
    pub(super) fn refused(
        &mut self,
        n: RequestNo,
        flight: &Flight,
        by: RefusedName,
        sent: Instant,
        cx: &mut Context<'_>,
    ) -> ForCaller {
        let is_own_id = by.holder == flight.id.as_str().as_bytes();
        if is_own_id && flight.attempt.enters() {
            // Its place was granted at once, or the command has run twice: a refresh finds the
            // grant.
            self.requests.change(n).again = cx.now;
            return self.refused_by_nobody(n, flight, &by, sent, cx);
        }
        if is_own_id {
            self.undo(&self.requests[n], &flight.id, Proof::KeySeen, cx);
            self.due_after_failure(n, cx);
            return ForCaller::GoesOn;
        }
        // An attempt for a deadline is made because the command of the line has no reply.
        let is_for_deadline = match self.requests[n].serves {
            Serves::One(no) => self.waiters.is_in_line(no),
            Serves::Line | Serves::Nobody => false,
        };
        let lock = Arc::clone(&self.requests[n].lock);
        let name = lock.key(by.name).name;
        if self.is_of_nobody((&by, name), sent, is_for_deadline, cx) {
            return self.refused_by_nobody(n, flight, &by, sent, cx);
        }
        self.requests.change(n).busy = None;
        let remaining = by.remaining;
        let refused = self.last.refused(sent, cx.now, Arc::new(by));
        self.note_waited(n, cx);
        self.note_contended(cx.now);
        let mut request = self.requests.change(n);
        request.failures = 0;
        request.refusals += 1;
        let is_once = request.once;
        drop(request);
        if is_once {
            return self.refused_once(n, flight, refused, cx);
        }
        let used_up = self.count_refusal(self.requests[n].serves, sent, cx.now);
        if let Attempt::Enter(listens) = flight.attempt {
            self.queued(n, (&flight.id, listens), sent, remaining, cx);
        } else {
            cx.shared.forget_id(&flight.id);
            self.due_after_refusal(n, remaining, cx);
        }
        if let Some(no) = used_up {
            self.end_waiter(no, Outcome::Refused(Some(refused)), cx);
            self.retire_own(no, cx);
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
        sent: Instant,
        cx: &mut Context<'_>,
    ) -> ForCaller {
        self.last.answered(sent, cx.now);
        self.requests.change(n).failures = 0;
        if let Attempt::Enter(listens) = flight.attempt {
            self.queued(n, (&flight.id, listens), sent, by.remaining, cx);
            // A call whose last attempt this was needs another one.
            self.plan_last_attempts();
            return ForCaller::GoesOn;
        }
        cx.shared.forget_id(&flight.id);
        let mut request = self.requests.change(n);
        request.refusals += 1;
        let can_queue = request.lock.queue().is_some() && !request.once;
        drop(request);
        let is_undone = cx.shared.pending.lock().has_ended(&by.holder);
        let pause = if can_queue || is_undone {
            Duration::ZERO
        } else {
            OWN_ID_PAUSE
        };
        self.set_due(n, cx.now.after(pause));
        ForCaller::GoesOn
    }

    /// Returns whether a command of this client, which nobody here owns, caused a refusal because
    /// of a name.
    pub(super) fn is_of_nobody(
        &self,
        (by, name): (&RefusedName, &Name),
        sent: Instant,
        is_for_deadline: bool,
        cx: &mut Context<'_>,
    ) -> bool {
        if is_on(Mutant::OwnIdRefuses) {
            return false;
        }
        let own = cx.shared.own_id(&by.holder);
        let request = own.and_then(|id| cx.shared.request_of(&id));
        if by.names_holder() {
            let no = request.map(|(_, no)| no);
            let is_abandoned = |request: &Request| {
                let is_unanswered = matches!(request.state, RequestState::Sent);
                let id = request.id().map(|id| id.as_str().as_bytes());
                id == Some(&by.holder)
                    && (request.serves == Serves::Nobody || is_for_deadline && is_unanswered)
            };
            // The index has no ids of those that have won.
            let mut ids = self.requests.won().into_iter().chain(no);
            let had = cx.shared.pending.lock().had_since(&by.holder, sent);
            return had || ids.any(|no| self.requests.get(no).is_some_and(is_abandoned));
        }
        cx.shared.pending.lock().has_unanswered(name)
            || !self.requests.serving(&[Serves::Nobody]).is_empty()
    }

    /// The refusal of a call that leaves at its first one, or of an attempt for a deadline.
    fn refused_once(
        &mut self,
        n: RequestNo,
        flight: &Flight,
        by: Refused,
        cx: &mut Context<'_>,
    ) -> ForCaller {
        let request = self.requests.remove(n);
        cx.shared.forget_id(&flight.id);
        let outcome = Outcome::Refused(Some(by));
        if let Sender::Caller(_) = flight.sender {
            return ForCaller::Refused(Some(outcome));
        }
        if let Serves::One(no) = request.serves
            && (self.waiters.get(no)).is_some_and(|waiter| waiter.wait == Wait::Once)
        {
            self.end_waiter(no, outcome, cx);
        }
        ForCaller::GoesOn
    }

    /// The next command after a refusal without a place.
    pub(super) fn due_after_refusal(
        &mut self,
        n: RequestNo,
        remaining: Option<Duration>,
        cx: &mut Context<'_>,
    ) {
        let again = self.take_again(n);
        let request = &self.requests[n];
        let backstop = cx.shared.limits.backstop;
        let at = match self.backs_off_until(request.serves) {
            Some(at) => at,
            None if request.lock.has_local_queue() && request.lock.queue().is_some() => {
                cx.now.max(self.asks_from())
            }
            None if request.lock.queue().is_some() => cx.now,
            None => {
                let pause = if self.is_listening {
                    jittered(backstop)
                } else {
                    UNSUBSCRIBED
                        .pause(request.refusals.saturating_sub(1))
                        .min(backstop)
                };
                next_attempt(cx.now.after(pause), cx.now, remaining, cx.now).min(again)
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
