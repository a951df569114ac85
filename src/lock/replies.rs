//! The replies to a waiting call, and the outcome that they allow at its deadline.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::Error;
use crate::lease::held::HeldLease;
use crate::lock::waiting_call::WaitingCall;
use crate::protocol::refusal::RefusedName;
use crate::queue::answers::{Answers, Span};
use crate::redis::Fault;
use crate::wait_policy::WaitPolicy;

/// The end of a wait, with the outcome of the call. Returned in an `Err`, so that `?` passes it on.
pub(crate) struct Over(pub(crate) Result<Option<Arc<HeldLease>>, Error>);

impl From<Error> for Over {
    fn from(error: Error) -> Self {
        Self(Err(error))
    }
}

impl WaitingCall<'_> {
    /// How many replies said that the lock is held, or that other calls are ahead.
    pub(crate) fn refusals(&self) -> u32 {
        let place = self.place.as_ref();
        let by_place = place.map_or(0, |place| place.ticket.refusals());
        self.refusals.saturating_add(by_place)
    }

    /// Returns whether the policy allows no more attempts.
    pub(crate) fn is_used_up(&self) -> bool {
        let limit = match self.attempt.settings.wait {
            WaitPolicy::Wake => None,
            WaitPolicy::Backoff(backoff) => backoff.limit(),
        };
        limit.is_some_and(|limit| self.refusals() >= limit)
    }

    /// Returns whether this call may report at its deadline that another holder has the name.
    pub(crate) fn is_taken(&self) -> bool {
        // In this order: before a lease held here ends, its end is recorded as a refusal.
        self.attempt.held_here().is_some() || self.queue().answers().is_taken(self.span())
    }

    /// Returns the end of a call at its deadline, `now`, if others ask on its behalf.
    pub(crate) fn over_at_deadline(&self, now: Instant) -> Over {
        Over(match self.is_taken() {
            true => Ok(None),
            false => Err(self.attempt.silence.error_for_others(now)),
        })
    }

    /// Returns whether a further command could not be answered in time and none is needed.
    pub(crate) fn is_too_late(&self, now: Instant) -> bool {
        !self.span().has_time(now) && self.is_taken()
    }

    /// The time from the start of the call to its deadline.
    pub(crate) fn span(&self) -> Span {
        Span {
            start: self.attempt.start,
            deadline: self.attempt.deadline,
            last_reply_took: self.last_reply_took,
        }
    }

    /// Records what Redis said, for all calls of this client that wait with this one.
    pub(crate) fn update_answers(&self, mut act: impl FnMut(&mut Answers)) {
        self.queues()
            .for_each(|queue| queue.update_answers(&mut act));
    }

    /// Records that the call is about to ask Redis; returns whether other calls of this client wait
    /// in the queue.
    pub(crate) fn about_to_try(&self, now: Instant) -> bool {
        let queues = self.queues();
        queues.fold(false, |others_wait, queue| {
            queue.about_to_try(now) | others_wait
        })
    }

    /// Records the refusal that arrived now to a command sent at `sent`.
    pub(crate) fn note_refusal(&mut self, sent: Instant, by: &Arc<RefusedName>) {
        let arrived = Instant::now();
        self.update_answers(|answers| answers.refused_by(sent, arrived, by));
        self.note_refused(sent, arrived);
    }

    /// Records the split vote that arrived now on a command sent at `sent`: nobody has a majority.
    pub(crate) fn note_split(&mut self, sent: Instant) {
        let arrived = Instant::now();
        self.update_answers(|answers| answers.refused(sent, arrived, Some(Duration::ZERO)));
        self.note_refused(sent, arrived);
    }

    fn note_refused(&mut self, sent: Instant, arrived: Instant) {
        self.note_reply(sent, arrived);
        if self.shares_place {
            let shared_places = &self.attempt.runtime.waiters.shared_places;
            shared_places.note_contended(self.name(), arrived);
        }
    }

    /// Records the reply that arrived at `arrived` to a command sent at `sent`.
    pub(crate) fn note_reply(&mut self, sent: Instant, arrived: Instant) {
        self.attempt.silence.note_reply();
        self.last_reply_took = sent.until(arrived);
    }

    /// Records a command without a reply, and returns how long to pause.
    ///
    /// At the deadline an earlier refusal is a better outcome than the fault, if it still counts.
    pub(crate) fn pause_after(&self, fault: Fault) -> Result<Duration, Over> {
        let now = Instant::now();
        // A command with no time left is not sent: that says nothing about the server.
        let is_unsent = matches!(fault, Fault::NotRun(_)) && now >= self.attempt.deadline;
        let was_taken = is_unsent && self.is_taken();
        if !was_taken {
            self.update_answers(|answers| answers.failed(now));
        }
        self.attempt.silence.pause_after(fault).map_err(|error| {
            let is_at_deadline = Instant::now() >= self.attempt.deadline;
            let is_taken = || was_taken || is_at_deadline && self.is_taken();
            Over(match error {
                error if error.is_unreachable() && is_taken() => Ok(None),
                error => Err(error),
            })
        })
    }
}
