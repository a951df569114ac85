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
use crate::kernel::command::Command;
use crate::kernel::event::LineEvent;
use crate::kernel::failure::Failure;
use crate::kernel::held::HeldLease;
use crate::kernel::line::Line;
use crate::kernel::part::PartTerms;
use crate::kernel::request::{Asked, PartRequest, RequestNo, RequestState, Sender, Serves};
use crate::kernel::waiter::{CallTerms, Outcome, Wait, Waiter, WaiterCell, WaiterNo};
use crate::protocol::place::refresh_every;
use crate::token::FencingToken;
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

pub(super) enum CallState {
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
    pub(super) fn with_number(no: WaiterNo, wants: CallTerms, now: Instant) -> Self {
        Self {
            no,
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
    fn note_part(&self, line: &mut Line) {
        let Some(terms) = &self.part else {
            return;
        };
        for n in line.requests.serving(&[Serves::One(self.no)]) {
            let part = &mut line.requests.change(n).part;
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

    /// Begins to ask, or to wait.
    pub(super) fn ask(&mut self, line: &mut Line, ev: &mut LineEvent<'_>) -> Step {
        let is_once = self.wants.wait == Wait::Once;
        let in_line = !is_once && self.wants.lock.has_local_queue();
        let must_wait = in_line && (line.is_busy(ev.own) || ev.now < line.asks_from());
        if self.wants.by_engine || ev.limits.engine_sends || must_wait {
            return self.park(false, line, ev);
        }
        let serves = if in_line {
            Serves::Line
        } else {
            Serves::One(self.no)
        };
        let n = line.request(serves, &self.wants.lock, self.wants.terms, ev);
        line.requests.change(n).once = is_once;
        self.note_part(line);
        self.send(n, line, ev)
    }

    fn send(&mut self, n: RequestNo, line: &mut Line, ev: &mut LineEvent<'_>) -> Step {
        line.requests.change(n).terms = self.wants.terms;
        let sender = Sender::Caller(self.no);
        let (command, asked) = line.send(n, sender, Some(&self.wants.wait), ev);
        self.state = CallState::Asking(asked);
        let gives_up = line.gives_up_at(self.start, ev.own, ev.limits.unreachable_for);
        let until = ev.now.after(ev.limits.command_timeout);
        Step::Send(command, until.min(self.wants.deadline).min(gives_up))
    }

    /// Returns the command that its thread has under way, which has ended.
    pub(super) fn take_asked(&mut self) -> Option<Asked> {
        match std::mem::replace(&mut self.state, CallState::Over) {
            CallState::Asking(asked) => Some(asked),
            state => {
                self.state = state;
                None
            }
        }
    }

    /// A reply has refused the lock.
    pub(super) fn note_refused(&mut self, now: Instant) {
        if let Wait::Queue(WaitPolicy::Backoff(backoff)) = &self.wants.wait {
            let pause = backoff.pause(self.refusals);
            // In a queue, it takes its place before others have waited for longer.
            let longest = match self.wants.lock.queue() {
                Some(_) => refresh_every(self.wants.terms.ttl),
                None => Duration::MAX,
            };
            self.retry_at = now.after(pause.min(longest));
        }
        self.refusals += 1;
        self.has_waited = true;
    }

    /// The call goes on after the end of its command: it sends again if that is due at once, and
    /// parks otherwise. `is_excluded`: a lease of this client makes Redis refuse it.
    pub(super) fn go_on(
        &mut self,
        asked: &Asked,
        (was_refused, is_excluded): (bool, bool),
        line: &mut Line,
        ev: &mut LineEvent<'_>,
    ) -> Step {
        if self.part.is_some() && self.wants.wait == Wait::Once {
            line.retire_of(self.no, ev);
            return self.over(Outcome::Failed(line.failure_of_part(self.start)));
        }
        let step = self.next_step(asked, (was_refused, is_excluded), line, ev);
        // The request may serve nobody any more: whoever applies an answer ends it then.
        line.retire_of(self.no, ev);
        step
    }

    fn next_step(
        &mut self,
        asked: &Asked,
        (was_refused, is_excluded): (bool, bool),
        line: &mut Line,
        ev: &mut LineEvent<'_>,
    ) -> Step {
        if ev.is_closed {
            return self.over(Outcome::Failed(Failure::Closed));
        }
        if was_refused && self.wants.wait.is_used_up(self.refusals) {
            return self.over(Outcome::Refused(line.last.refusal()));
        }
        if let Some(outcome) = self.gives_up(is_excluded, line, ev) {
            return self.over(outcome);
        }
        let request = line.requests.existing(asked.no);
        if let Some(n) = request
            && line.requests[n].is_part_over()
            && matches!(line.requests[n].state, RequestState::Due(_))
        {
            line.requests.remove(n);
            return self.over(Outcome::Failed(Failure::Restart));
        }
        if let Some(n) = request
            && self.retry_at <= ev.now
            && matches!(line.requests[n].state, RequestState::Due(at) if at <= ev.now)
            && !(line.requests[n].serves == Serves::Line && ev.own.line_waits)
        {
            return self.send(n, line, ev);
        }
        self.park(true, line, ev)
    }

    /// Returns the outcome of a call whose deadline has passed, or for which Redis was silent for
    /// too long.
    fn gives_up(&self, is_excluded: bool, line: &Line, ev: &LineEvent<'_>) -> Option<Outcome> {
        let deadline = self.wants.deadline;
        if ev.now >= deadline {
            return Some(line.at_deadline(is_excluded, [self.start, deadline]));
        }
        let gives_up = line.gives_up_at(self.start, ev.own, ev.limits.unreachable_for);
        (ev.now >= gives_up).then(|| Outcome::Failed(line.failure(self.start).after_long()))
    }

    fn park(&mut self, at_front: bool, line: &mut Line, ev: &mut LineEvent<'_>) -> Step {
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
        let ask_at = line.last.ask_at(self.start, deadline);
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
        line.park(waiter, at_front, ev);
        self.note_part(line);
        line.pace(self.no, ev);
        self.state = CallState::Parked(cell);
        Step::Park(deadline)
    }

    pub(super) fn over(&mut self, outcome: Outcome) -> Step {
        self.state = CallState::Over;
        Step::Done(outcome)
    }

    /// Its thread has the lease from now on.
    pub(super) fn holds(
        &mut self,
        lease: Arc<HeldLease>,
        token: FencingToken,
        now: Instant,
    ) -> Step {
        self.began_at(now);
        self.over(Outcome::Lease(lease, token))
    }

    pub(super) fn began_at(&mut self, now: Instant) {
        self.began = Some(now);
    }

    /// The lease that it was given was lost before its thread ran: the call waits again.
    pub(super) fn wait_again(
        &mut self,
        is_excluded: bool,
        line: &mut Line,
        ev: &mut LineEvent<'_>,
    ) -> Step {
        if ev.is_closed {
            return self.over(Outcome::Failed(Failure::Closed));
        }
        match self.gives_up(is_excluded, line, ev) {
            Some(outcome) => self.over(outcome),
            None if self.part.is_some() => self.over(Outcome::Failed(Failure::Restart)),
            None => self.park(true, line, ev),
        }
    }

    /// Returns the cell of a parked call whose thread was unparked, and that may have an outcome.
    pub(super) fn wakes(&mut self, now: Instant) -> Option<Arc<WaiterCell>> {
        let CallState::Parked(cell) = &self.state else {
            unreachable!("a call sleeps only while it is parked");
        };
        self.has_waited |= cell.has_waited();
        let sleeps = cell.outcome.lock().is_none() && now < self.wants.deadline;
        (!sleeps).then(|| Arc::clone(cell))
    }

    pub(super) fn take_state(&mut self) -> CallState {
        std::mem::replace(&mut self.state, CallState::Over)
    }

    pub(super) fn is_part(&self) -> bool {
        self.part.is_some()
    }

    /// Returns whether it asks Redis although another call of this client waits for the lock.
    pub(super) fn competes(&self) -> bool {
        self.part.as_ref().is_some_and(|part| part.competes)
    }
}
