//! The replies about a name, and what a waiting call may report at its deadline. No I/O, no clock.
//!
//! At its deadline a call reports either that the name is taken (`None`) or that Redis is
//! unreachable (`Err`).

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::protocol::place::Refreshed;
use crate::protocol::refusal::RefusedName;

/// How long before its deadline a call makes its last attempt, unless the call is short or the
/// server distant. Most servers reply in this time.
const LAST_ATTEMPT: Duration = Duration::from_millis(250);

/// The reply to a command that was sent less than this before the deadline may still be on its way,
/// even from a nearby server that works: its thread or ours may have to wait for a processor.
const IN_FLIGHT: Duration = Duration::from_millis(50);

/// A call does not return `None` on a refusal older than this without trying once more.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// The time during which a call waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: Instant,
    pub(crate) deadline: Instant,
    /// How long the last reply to this call took; zero before the first.
    pub(crate) last_reply_took: Duration,
}

impl Span {
    /// Returns whether the reply to a command sent at `sent` is overdue at the deadline.
    ///
    /// Judges by the last reply to this call, and by the last reply to any waiter for the name,
    /// which took `took`. Until it is overdue, a command counts neither as answered nor as
    /// unanswered. Otherwise many waiters would fail on a working server.
    fn is_overdue(self, sent: Instant, took: Duration) -> bool {
        let half = self.start.until(self.deadline) / 2;
        let usual = self.last_reply_took.max(took).saturating_mul(2);
        sent.after(usual.max(IN_FLIGHT).min(half)) <= self.deadline
    }

    /// When the call makes its last attempt.
    ///
    /// Earlier than [`has_time`](Self::has_time) requires: a call to a distant server would wake up
    /// too late otherwise.
    pub(crate) fn last_attempt(self) -> Instant {
        let half = self.start.until(self.deadline) / 2;
        let before = LAST_ATTEMPT.max(self.last_reply_took.saturating_mul(3));
        self.deadline.before(before.min(half))
    }

    /// When a call that was refused at `now` must try again, even without a wake-up.
    pub(crate) fn asks_again_by(self, now: Instant) -> Instant {
        let last_attempt = self.last_attempt();
        if now < last_attempt && now.after(FRESH_FOR) < self.deadline {
            last_attempt
        } else {
            Instant::NEVER
        }
    }

    /// Returns whether a command sent at `now` can be answered before the deadline, judging by the
    /// last reply.
    ///
    /// On a working server, a command cut off by the deadline would turn a refusal into an error.
    pub(crate) fn has_time(self, now: Instant) -> bool {
        now.after(self.last_reply_took.saturating_mul(2)) < self.deadline
    }
}

/// What Redis last said about a name to the waiters of this client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    refused: Option<LastRefusal>,
    unanswered: Option<Unanswered>,
    /// How long the last reply took.
    reply_took: Duration,
}

/// The last refusal of a name.
#[derive(Clone, Debug)]
pub(crate) struct LastRefusal {
    at: Instant,
    /// When the key expires, by the reply.
    pub(crate) until: Instant,
    /// The refusal itself and its arrival; `None` if it did not come from Redis.
    pub(crate) said: Option<(Arc<RefusedName>, Instant)>,
}

impl LastRefusal {
    /// The refusal that arrived at `arrived` to a command sent at `sent`.
    pub(crate) fn new(sent: Instant, arrived: Instant, by: &Arc<RefusedName>) -> Self {
        Self {
            at: sent,
            until: end(sent, by.remaining),
            said: Some((Arc::clone(by), arrived)),
        }
    }
}

fn end(sent: Instant, remaining: Option<Duration>) -> Instant {
    remaining.map_or(Instant::NEVER, |remaining| sent.after(remaining))
}

/// A command sent since the last reply.
#[derive(Clone, Copy, Debug)]
struct Unanswered {
    since: Instant,
    /// No reply will come. While false, one may still arrive.
    has_failed: bool,
}

impl Answers {
    /// Records that a waiter sends a command at `now`.
    pub(crate) fn asked(&mut self, now: Instant) {
        self.unanswered.get_or_insert(Unanswered {
            since: now,
            has_failed: false,
        });
    }

    /// Records that a command got no reply.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.asked(now);
        if let Some(asked) = &mut self.unanswered {
            asked.has_failed = true;
        }
    }

    /// Records a reply that does not say that this name is held.
    pub(crate) fn answered(&mut self) {
        self.unanswered = None;
    }

    /// Records, at `arrived`, that the name was held at some time after `sent`, for `remaining`
    /// more; `None` if without end.
    pub(crate) fn refused(&mut self, sent: Instant, arrived: Instant, remaining: Option<Duration>) {
        let refusal = LastRefusal {
            at: sent,
            until: end(sent, remaining),
            said: None,
        };
        self.note_refusal(refusal, arrived);
    }

    /// Records the refusal that arrived at `arrived` to a command sent at `sent`.
    pub(crate) fn refused_by(&mut self, sent: Instant, arrived: Instant, by: &Arc<RefusedName>) {
        self.note_refusal(LastRefusal::new(sent, arrived, by), arrived);
    }

    fn note_refusal(&mut self, refusal: LastRefusal, arrived: Instant) {
        if let Some(asked) = self.unanswered.take()
            && !asked.has_failed
        {
            self.reply_took = asked.since.until(arrived);
        }
        // The reply to a later command may have arrived first, over another connection.
        let is_last = |last: &LastRefusal| last.at <= refusal.at;
        if self.refused.as_ref().is_none_or(is_last) {
            self.refused = Some(refusal);
        }
    }

    /// Records the reply, arrived at `arrived`, to a refresh of places that was sent at `sent`.
    pub(crate) fn refreshed(
        &mut self,
        sent: Instant,
        arrived: Instant,
        found: &[Refreshed],
        by: &Arc<RefusedName>,
    ) {
        let waits = |place: &Refreshed| matches!(place, Refreshed::Waiting(_));
        if !found.iter().any(waits) {
            return self.answered();
        }
        let mut refusal = LastRefusal::new(sent, arrived, by);
        // A refresh does not read since when the holder has the lock: an earlier reply may say it.
        let before = self.refused.as_ref().and_then(|last| last.said.as_ref());
        if let Some(before) = before.filter(|(before, _)| before.holder == by.holder)
            && by.names_holder()
            && by.detail.is_none()
        {
            refusal.said = Some(before.clone());
        }
        self.note_refusal(refusal, arrived);
    }

    /// Returns the last refusal, also if it is older than the call.
    pub(crate) fn last_refusal(&self) -> Option<&LastRefusal> {
        self.refused.as_ref()
    }

    fn refusal_in(&self, span: Span) -> Option<&LastRefusal> {
        self.last_refusal()
            .filter(|refusal| refusal.at >= span.start)
    }

    /// Returns whether a call may report at its deadline that the name is taken.
    ///
    /// The last refusal is of a command sent since the call began, and one of these holds:
    ///
    /// * the key lasts until the deadline,
    /// * no command sent since the last reply is unanswered: none has failed, and none is overdue.
    pub(crate) fn is_taken(&self, span: Span) -> bool {
        let counts =
            |asked: Unanswered| asked.has_failed || span.is_overdue(asked.since, self.reply_took);
        let is_unanswered = self.unanswered.is_some_and(counts);
        self.refusal_in(span)
            .is_some_and(|refusal| refusal.until >= span.deadline || !is_unanswered)
    }

    /// Returns whether a call must try once more before its deadline.
    pub(crate) fn needs_another_reply(&self, span: Span) -> bool {
        let Some(refusal) = self.refusal_in(span) else {
            return true;
        };
        if refusal.at >= span.last_attempt() {
            return false;
        }
        match self.unanswered {
            // The attempt failed; an earlier refusal suffices if the key lasts until the deadline.
            Some(asked) if asked.has_failed => refusal.until < span.deadline,
            Some(_) => true,
            None => refusal.at.after(FRESH_FOR) < span.deadline,
        }
    }
}

#[cfg(test)]
mod tests;
