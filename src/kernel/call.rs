//! A call that acquires a lock; its methods run on the program's thread.
//!
//! ```text
//!  New ──nobody asks, holds or waits──▶ Asking ──granted──────────────▶ Over(Lease)
//!   │                                   ▲  │  └──refused, Once─────────▶ Over(Refused)
//!   │ otherwise, or by the engine       └──┘
//!   ▼                                 refused, or no reply, and the next command is due: again
//!  Parked ◀──── refused and queued, or the next command is due later ── Asking
//!    └── outcome stored: lease, error ▶ Over      └── deadline, cancel, shutdown: removed ▶ Over
//! ```
//!
//! As long as a call has never parked, its own thread sends its commands. Once it has parked, it
//! never sends again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock::Instant;
use crate::kernel::Kernel;
use crate::kernel::answers::{ForCaller, undo_of};
use crate::kernel::command::Command;
use crate::kernel::context::Context;
use crate::kernel::effects::Effects;
use crate::kernel::entry::LockEntry;
use crate::kernel::failure::Failure;
use crate::kernel::fault::Fault;
use crate::kernel::part::PartTerms;
use crate::kernel::request::{Asked, PartRequest, RequestNo, RequestState, Sender, Serves};
use crate::kernel::waiter::{CallTerms, Outcome, Wait, Waiter, WaiterCell, WaiterNo};
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::Answer;
use crate::protocol::place::refresh_every;
use crate::wait_policy::WaitPolicy;

pub(crate) struct Call {
    pub(crate) no: WaiterNo,
    pub(crate) wants: CallTerms,
    pub(crate) start: Instant,
    /// Refusals, and when a call that waits by `Backoff` wants the next command.
    refusals: u32,
    retry_at: Instant,
    /// It has waited for another holder, or behind another call of this client.
    has_waited: bool,
    /// When its holding began.
    began: Option<Instant>,
    /// It asks for a part.
    part: Option<Box<PartTerms>>,
    state: CallState,
}

enum CallState {
    New,
    Asking(Asked),
    Parked(Arc<WaiterCell>),
    Over,
}

/// What the thread of a call does next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Sends the command, and waits for its reply until then at most.
    Send(Command, Instant),
    /// Sleeps until it is unparked, and until then at most.
    Park(Instant),
    Done(Outcome),
}

impl Call {
    pub(crate) fn new(kernel: &Kernel, wants: CallTerms, now: Instant) -> Self {
        Self {
            no: kernel.next_serial(),
            wants,
            start: now,
            refusals: 0,
            retry_at: Instant::START,
            has_waited: false,
            began: None,
            part: None,
            state: CallState::New,
        }
    }

    /// Makes the call ask for a part. If it does not wait, its first command ends it.
    pub(crate) fn of_part(self, terms: PartTerms) -> Self {
        Self {
            part: Some(Box::new(terms)),
            ..self
        }
    }

    /// The request of the call asks for a part.
    fn note_part(&self, entry: &mut LockEntry) {
        let Some(terms) = &self.part else {
            return;
        };
        for n in entry.requests.serving(&[Serves::One(self.no)]) {
            let part = &mut entry.requests.change(n).part;
            part.get_or_insert_with(|| {
                Box::new(PartRequest {
                    terms: (**terms).clone(),
                    is_sent: false,
                })
            });
        }
    }

    /// Returns whether it has waited for another holder, or behind another call of this client.
    pub(crate) fn has_waited(&self) -> bool {
        let waited = |cell: &Arc<WaiterCell>| cell.has_waited.load(Ordering::Relaxed);
        self.has_waited || self.cell().is_some_and(waited)
    }

    /// Returns when it took its lease.
    pub(crate) fn began(&self) -> Option<Instant> {
        self.began
    }

    /// The cell of a parked call.
    pub(crate) fn cell(&self) -> Option<&Arc<WaiterCell>> {
        match &self.state {
            CallState::Parked(cell) => Some(cell),
            CallState::New | CallState::Asking(_) | CallState::Over => None,
        }
    }

    /// The id of the command that this thread has under way.
    #[cfg(sim)]
    pub(crate) fn asks_as(&self) -> Option<&str> {
        match &self.state {
            CallState::Asking(asked) => Some(asked.id.as_str()),
            CallState::New | CallState::Parked(_) | CallState::Over => None,
        }
    }

    pub(crate) fn begin(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Step {
        let lock = Arc::clone(&self.wants.lock);
        kernel.with_entry(&lock, now, fx, |entry, cx| self.begin_in(entry, cx))
    }

    fn begin_in(&mut self, entry: &mut LockEntry, cx: &mut Context<'_>) -> Step {
        if cx.shared.is_closed() {
            return self.over(Outcome::Failed(Failure::Closed));
        }
        // A part is a lease of its own.
        if self.part.is_none()
            && let Some((lease, token)) = entry.relock(&self.wants, cx)
        {
            self.began = Some(cx.now);
            return self.over(Outcome::Lease(lease, token));
        }
        let is_once = self.wants.wait == Wait::Once;
        if is_once && self.is_excluded(entry, cx) {
            return self.over(Outcome::Refused(None));
        }
        let competes = self.part.as_ref().is_some_and(|part| part.competes);
        if is_once
            && !competes
            && let Some(refused) = entry.refuses_once(&*self.wants.lock, cx.now)
        {
            return self.over(Outcome::Refused(refused));
        }
        let in_line = !is_once && self.wants.lock.has_local_queue();
        let must_wait = in_line && (entry.line_is_busy() || cx.now < entry.asks_from());
        if self.wants.by_engine || cx.shared.limits.engine_sends || must_wait {
            return self.park(entry, false, cx);
        }
        let serves = if in_line {
            Serves::Line
        } else {
            Serves::One(self.no)
        };
        let n = entry.request(serves, &self.wants.lock, self.wants.terms, cx);
        entry.requests.change(n).once = is_once;
        self.note_part(entry);
        self.send(entry, n, cx)
    }

    /// Returns whether a lease of this client makes Redis refuse the lock.
    fn is_excluded(&self, entry: &LockEntry, cx: &mut Context<'_>) -> bool {
        let own = entry.excludes(self.wants.lock.is_shared());
        own.is_some_and(|lease| lease.covers(cx.now))
    }

    fn send(&mut self, entry: &mut LockEntry, n: RequestNo, cx: &mut Context<'_>) -> Step {
        entry.requests.change(n).terms = self.wants.terms;
        let sender = Sender::Caller(self.no);
        let (command, asked) = entry.send(n, sender, Some(&self.wants.wait), cx);
        self.state = CallState::Asking(asked);
        let limits = &cx.shared.limits;
        let gives_up = entry.gives_up_at(self.start, limits.unreachable_for);
        let until = cx.now.after(limits.command_timeout);
        Step::Send(command, until.min(self.wants.deadline).min(gives_up))
    }

    /// The end of the command that this thread sent at `sent`.
    ///
    /// If that left an undo in the effects, the caller writes it behind the command on the same
    /// connection, without waiting, and closes the connection.
    pub(crate) fn replied(
        &mut self,
        kernel: &Kernel,
        end: Result<Answer, Fault>,
        sent: Instant,
        now: Instant,
        fx: &mut Effects,
    ) -> Step {
        let CallState::Asking(asked) = std::mem::replace(&mut self.state, CallState::Over) else {
            unreachable!("a call sends only while it asks");
        };
        let lock = Arc::clone(&self.wants.lock);
        kernel.with_entry(&lock, now, fx, |entry, cx| {
            let taker = Some(self.wants.taker());
            let answer = entry.answered(&asked, end, sent, taker, cx);
            let was_refused = matches!(answer, ForCaller::Refused(_));
            if was_refused {
                self.note_refused(cx);
            }
            match answer {
                ForCaller::Holds(lease, token) => {
                    self.began = Some(cx.now);
                    return self.over(Outcome::Lease(lease, token));
                }
                ForCaller::Over(outcome) | ForCaller::Refused(Some(outcome)) => {
                    return self.finish(entry, outcome, cx);
                }
                ForCaller::IsUndoneLate => cx.fx.undo = Some(undo_of(&asked.lock, &asked.id)),
                ForCaller::GoesOn | ForCaller::Refused(None) => {}
            }
            if self.part.is_some() && self.wants.wait == Wait::Once {
                entry.retire_of(self.no, cx);
                return self.over(Outcome::Failed(entry.failure_of_part(self.start)));
            }
            let step = self.next_step(entry, &asked, was_refused, cx);
            // The request may serve nobody any more: whoever applies an answer ends it then.
            entry.retire_of(self.no, cx);
            step
        })
    }

    /// The thread of the call has not sent its command, and does not send it any more.
    pub(crate) fn not_sent(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) {
        let CallState::Asking(asked) = std::mem::replace(&mut self.state, CallState::Over) else {
            return;
        };
        kernel.with_entry(&asked.lock, now, fx, |entry, cx| {
            cx.shared.forget_id(&asked.id);
            // The engine ends the command of a thread that stands still.
            let is_its = |n: &RequestNo| {
                let flight = entry.requests[*n].flight.as_ref();
                flight.is_some_and(|flight| flight.id == asked.id)
            };
            if let Some(n) = entry.requests.existing(asked.no).filter(is_its) {
                entry.requests.remove(n);
            }
        });
    }

    fn note_refused(&mut self, cx: &Context<'_>) {
        if let Wait::Queue(WaitPolicy::Backoff(backoff)) = &self.wants.wait {
            let pause = backoff.pause(self.refusals);
            // In a queue, it takes its place before others have waited for longer.
            let longest = match self.wants.lock.queue() {
                Some(_) => refresh_every(self.wants.terms.ttl),
                None => Duration::MAX,
            };
            self.retry_at = cx.now.after(pause.min(longest));
        }
        self.refusals += 1;
        self.has_waited = true;
    }

    /// The call goes on: it sends again if that is due at once, and parks otherwise.
    fn next_step(
        &mut self,
        entry: &mut LockEntry,
        asked: &Asked,
        was_refused: bool,
        cx: &mut Context<'_>,
    ) -> Step {
        if cx.shared.is_closed() {
            return self.over(Outcome::Failed(Failure::Closed));
        }
        if was_refused && self.wants.wait.is_used_up(self.refusals) {
            return self.over(Outcome::Refused(entry.last.refusal()));
        }
        if let Some(outcome) = self.gives_up(entry, cx) {
            return self.over(outcome);
        }
        let request = entry.requests.existing(asked.no);
        if let Some(n) = request
            && entry.requests[n].is_part_over()
            && matches!(entry.requests[n].state, RequestState::Due(_))
        {
            entry.requests.remove(n);
            return self.over(Outcome::Failed(Failure::Restart));
        }
        if let Some(n) = request
            && self.retry_at <= cx.now
            && matches!(entry.requests[n].state, RequestState::Due(at) if at <= cx.now)
            && !(entry.requests[n].serves == Serves::Line && entry.line_waits())
        {
            return self.send(entry, n, cx);
        }
        self.park(entry, true, cx)
    }

    /// Returns the outcome of a call whose deadline has passed, or for which Redis was silent for
    /// too long.
    fn gives_up(&self, entry: &LockEntry, cx: &Context<'_>) -> Option<Outcome> {
        let deadline = self.wants.deadline;
        if cx.now >= deadline {
            let span = [self.start, deadline];
            return Some(entry.at_deadline(&*self.wants.lock, span, cx.now));
        }
        let gives_up = entry.gives_up_at(self.start, cx.shared.limits.unreachable_for);
        (cx.now >= gives_up).then(|| Outcome::Failed(entry.failure(self.start).after_long()))
    }

    fn park(&mut self, entry: &mut LockEntry, at_front: bool, cx: &mut Context<'_>) -> Step {
        let cell = Arc::new(WaiterCell {
            signal: self.part.as_ref().and_then(|part| part.signal.clone()),
            ..WaiterCell::new()
        });
        let CallTerms {
            lock,
            terms,
            wait,
            deadline,
            ..
        } = self.wants.clone();
        let ask_at = entry.last.ask_at(self.start, deadline);
        let waiter = Waiter {
            no: self.no,
            cell: Arc::clone(&cell),
            lock,
            terms,
            wait,
            start: self.start,
            deadline,
            ask_at,
            retry_at: self.retry_at,
            refusals: self.refusals,
        };
        if self.has_waited {
            waiter.note_waited();
        }
        entry.park(waiter, at_front, cx);
        self.note_part(entry);
        entry.pace(self.no, cx);
        self.state = CallState::Parked(cell);
        Step::Park(deadline)
    }

    fn over(&mut self, outcome: Outcome) -> Step {
        self.state = CallState::Over;
        Step::Done(outcome)
    }

    /// Takes what the call was given. If the lease was lost before this thread ran, the call waits
    /// again.
    fn finish(&mut self, entry: &mut LockEntry, outcome: Outcome, cx: &mut Context<'_>) -> Step {
        let Outcome::Lease(lease, token) = &outcome else {
            return self.over(outcome);
        };
        if cx.change(lease, |it, now| it.take(*token, self.wants.taker(), now)) {
            self.began = Some(cx.now);
            return self.over(outcome);
        }
        entry.give_up(lease, *token, cx);
        if cx.shared.is_closed() {
            return self.over(Outcome::Failed(Failure::Closed));
        }
        match self.gives_up(entry, cx) {
            Some(outcome) => self.over(outcome),
            None if self.part.is_some() => self.over(Outcome::Failed(Failure::Restart)),
            None => self.park(entry, true, cx),
        }
    }

    /// The thread was unparked, or a nap is over, or the deadline has come.
    pub(crate) fn woken(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Step {
        let CallState::Parked(cell) = &self.state else {
            unreachable!("a call sleeps only while it is parked");
        };
        self.has_waited |= cell.has_waited.load(Ordering::Relaxed);
        if cell.outcome.lock().is_none() && now < self.wants.deadline {
            return Step::Park(self.wants.deadline);
        }
        let cell = Arc::clone(cell);
        let lock = Arc::clone(&self.wants.lock);
        kernel.with_entry(&lock, now, fx, |entry, cx| {
            let outcome = cell.outcome.lock().take();
            match outcome {
                Some(outcome) => self.finish(entry, outcome, cx),
                None => {
                    entry.leave(self.no, cx);
                    let span = [self.start, self.wants.deadline];
                    self.over(entry.at_deadline(&*self.wants.lock, span, cx.now))
                }
            }
        })
    }

    /// The thread of the call unwinds: what it has or gets is released by the engine.
    pub(crate) fn abandon(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) {
        let outcome = self.leave(kernel, Failure::Cancelled, now, fx);
        if let Outcome::Lease(lease, token) = outcome {
            kernel.unlock_later(&lease, token, now, fx);
        }
    }

    /// The call is cancelled or given up. An outcome that is already stored wins.
    pub(crate) fn leave(
        &mut self,
        kernel: &Kernel,
        failure: Failure,
        now: Instant,
        fx: &mut Effects,
    ) -> Outcome {
        let state = std::mem::replace(&mut self.state, CallState::Over);
        let lock = Arc::clone(&self.wants.lock);
        let looks_first = is_on(Mutant::CancelLooksFirst);
        let early = match &state {
            CallState::Parked(cell) if looks_first => cell.outcome.lock().take(),
            _ => None,
        };
        kernel.with_entry(&lock, now, fx, |entry, cx| match state {
            CallState::Parked(cell) => {
                let outcome = if looks_first {
                    early
                } else {
                    cell.outcome.lock().take()
                };
                if let Some(Outcome::Lease(lease, token)) = &outcome {
                    if !cx.change(lease, |it, now| it.take(*token, self.wants.taker(), now)) {
                        entry.give_up(lease, *token, cx);
                        return Outcome::Failed(failure);
                    }
                    self.began = Some(cx.now);
                }
                if outcome.is_none() {
                    entry.leave(self.no, cx);
                }
                outcome.unwrap_or(Outcome::Failed(failure))
            }
            CallState::Asking(asked) => {
                // Its thread has left in the middle of its command, by a panic.
                let cause = crate::error::Cause::text("the call has ended");
                let end = Err(Fault::Unknown(cause));
                let answer = entry.answered(&asked, end, cx.now, None, cx);
                entry.retire_of(self.no, cx);
                match answer {
                    // The grant message was faster.
                    ForCaller::Over(outcome @ Outcome::Lease(..))
                        if !is_on(Mutant::PanicForgetsTheLease) =>
                    {
                        outcome
                    }
                    _ => Outcome::Failed(failure),
                }
            }
            CallState::New | CallState::Over => Outcome::Failed(failure),
        })
    }
}
