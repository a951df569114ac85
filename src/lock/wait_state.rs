//! State common to both wait loops: subscription, failures in a row, and the last reply time.

use std::time::Duration;

use crate::clock::Instant;
use crate::error::Error;
use crate::lock::attempt::Attempt;
use crate::logging;
use crate::queue::answers::Span;
use crate::redis::Fault;
use crate::runtime::subscriber::subscription::Subscription;
use crate::wait_policy::WaitPolicy;

/// The part of a wait that does not depend on the kind of queue.
pub(crate) struct WaitState<'a> {
    attempt: &'a Attempt<'a>,
    deadline: Instant,
    pub(crate) subscription: Option<Subscription<'a>>,
    /// Commands without a reply, in a row.
    failures: u32,
    /// The time that the last reply took.
    last_reply_took: Duration,
    /// The call has waited; this was logged, or need not be.
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

    /// Subscribes to releases of the name with index `name_index`, if the policy is `Wake`.
    ///
    /// Returns the subscription, or `None` under `Backoff`.
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
        // After a failover, the subscription to the previous server is useless.
        let is_current =
            |subscription: &Subscription<'_>| subscription.is_current(&runtime.deployment);
        if !self.subscription.as_ref().is_some_and(is_current) && settings.wait == WaitPolicy::Wake
        {
            let until = self.attempt.reply_deadline(self.deadline);
            self.subscription = Some(runtime.subscribe(keys.key(name_index), until)?);
        }
        Ok(self.subscription.as_ref())
    }

    /// Records the reply that arrived at `now` to a command sent at `sent`.
    pub(crate) fn note_reply(&mut self, sent: Instant, now: Instant) {
        self.failures = 0;
        self.last_reply_took = sent.until(now);
    }

    /// Returns whether a further command could not be answered in time and none is needed.
    ///
    /// None is needed if the lock `is_taken`.
    pub(crate) fn is_too_late(&self, now: Instant, is_taken: impl FnOnce() -> bool) -> bool {
        !self.span().has_time(now) && is_taken()
    }

    /// The time from the start of the call to its deadline.
    pub(crate) fn span(&self) -> Span {
        Span {
            start: self.attempt.start,
            deadline: self.deadline,
            last_reply_took: self.last_reply_took,
        }
    }

    /// Records that a command got no reply, and returns how long to pause.
    pub(crate) fn pause_after_fault(&mut self, fault: Fault) -> Result<Duration, Error> {
        let failures = self.failures;
        let pause = self.attempt.pause_after(fault, failures, self.deadline)?;
        self.failures = failures.saturating_add(1);
        Ok(pause)
    }

    /// Returns whether the call should report a refusal instead of `error`.
    ///
    /// This is so once its deadline has passed and the lock `is_taken`.
    pub(crate) fn is_refusal_better(&self, error: &Error, is_taken: impl FnOnce() -> bool) -> bool {
        error.is_unreachable() && Instant::now() >= self.deadline && is_taken()
    }

    /// Logs, once, that this call waits for the name with index `name_index`.
    pub(crate) fn log_waiting_once(&mut self, name_index: usize, remaining: Option<Duration>) {
        if std::mem::replace(&mut self.has_waited, true) {
            return;
        }
        self.attempt.log_refused("waiting", remaining);
        let name = self.attempt.keys.key(name_index).name;
        if cfg!(debug_assertions) && self.attempt.runtime.waiters.is_held_by_us(name) {
            logging::warn!(
                name:% = name;
                "this thread waits for {name}, which it locked itself: locks are not reentrant"
            );
        }
    }
}
