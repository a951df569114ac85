//! What a call keeps while it waits, for whichever lock: what it hears, how often it got no answer, and whether it said so.

use std::time::Duration;

use crate::clock::Instant;
use crate::error::Error;
use crate::lock::attempt::Attempt;
use crate::logging;
use crate::queue::answers::Span;
use crate::redis::Fault;
use crate::runtime::subscriber::Subscription;
use crate::wait_policy::WaitPolicy;

pub(crate) struct WaitState<'a> {
    attempt: &'a Attempt<'a>,
    deadline: Instant,
    pub(crate) subscription: Option<Subscription<'a>>,
    /// Commands without an answer in a row.
    failures: u32,
    /// How long the last answer took.
    last_reply_took: Duration,
    /// It waits, and that was logged, or need not be any more.
    pub(crate) has_waited: bool,
}

impl<'a> WaitState<'a> {
    pub(crate) fn new(attempt: &'a Attempt<'a>, deadline: Instant) -> Self {
        Self {
            attempt,
            deadline,
            subscription: None,
            failures: 0,
            last_reply_took: Duration::ZERO,
            has_waited: false,
        }
    }

    /// Wants to hear of the releases of its `on`-th name, where the policy says so.
    pub(crate) fn ensure_subscribed(
        &mut self,
        name_index: usize,
    ) -> Result<Option<&Subscription<'a>>, Error> {
        let Attempt {
            runtime,
            keys,
            settings,
            ..
        } = self.attempt;
        // One that hears what the server before announces is of no more use.
        let is_current = |subscription: &Subscription<'_>| subscription.is_current(runtime);
        if !self.subscription.as_ref().is_some_and(is_current) && settings.wait == WaitPolicy::Wake
        {
            let until = self.attempt.reply_deadline(self.deadline);
            self.subscription = Some(runtime.subscribe(keys.key(name_index), until)?);
        }
        Ok(self.subscription.as_ref())
    }

    /// Redis answered at `now` what was asked at `sent`.
    pub(crate) fn note_reply(&mut self, sent: Instant, now: Instant) {
        self.failures = 0;
        self.last_reply_took = sent.until(now);
    }

    /// Whether it is too late to ask, for a call that has an answer already: the lock `is_taken`.
    pub(crate) fn is_too_late(&self, now: Instant, is_taken: impl FnOnce() -> bool) -> bool {
        !self.span().has_time(now, self.last_reply_took) && is_taken()
    }

    /// From when until when it waits.
    pub(crate) fn span(&self) -> Span {
        Span {
            start: self.attempt.start,
            deadline: self.deadline,
        }
    }

    /// Notes that there was no answer: how long to pause.
    pub(crate) fn pause_after_fault(&mut self, fault: Fault) -> Result<Duration, Error> {
        let failures = self.failures;
        let pause = self.attempt.pause_after(fault, failures, self.deadline)?;
        self.failures = failures.saturating_add(1);
        Ok(pause)
    }

    /// Whether a refusal in this very call is a better answer than `error`: its deadline has come, and the lock
    /// `is_taken`.
    pub(crate) fn is_refusal_better(&self, error: &Error, is_taken: impl FnOnce() -> bool) -> bool {
        error.is_unreachable() && Instant::now() >= self.deadline && is_taken()
    }

    /// Logs, once, that this call waits for its `on`-th name.
    pub(crate) fn log_waiting_once(&mut self, name_index: usize, remaining: Option<Duration>) {
        if std::mem::replace(&mut self.has_waited, true) {
            return;
        }
        self.attempt.log_refused("waiting", remaining);
        let name = self.attempt.keys.key(name_index).name;
        if cfg!(debug_assertions) && self.attempt.runtime.waiters.is_held_by_us(name) {
            logging::warn!(
                name:% = name;
                "this thread waits for {name}, which it took itself: locks are not reentrant"
            );
        }
    }
}
