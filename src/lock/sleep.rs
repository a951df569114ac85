//! How long a waiting call sleeps, and what ends the sleep.

use std::time::Duration;

use crate::clock::{Instant, nap};
use crate::lock::replies::Over;
use crate::lock::waiting_call::WaitingCall;
use crate::queue::position::next_attempt;
use crate::wait_policy::{Backoff, WaitPolicy, jittered};

/// The longest sleep of a subscribed waiter without a place in a queue: it bounds the delay by a
/// lost message. Shortened at random by up to a quarter.
const BACKSTOP: Duration = Duration::from_secs(1);

/// Pauses between attempts of a waiter whose subscription is not live yet.
const UNSUBSCRIBED_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// How a sleep ended.
pub(crate) enum SleepEnd {
    /// A wake-up ended it: the position has changed.
    Woken,
    /// Nothing woke the call, which now tries Redis even if this client holds the name.
    TimedOut,
}

impl WaitingCall<'_> {
    /// Counts the call's wake-up, if there was one, as its outcome is known: `is_spurious` if
    /// another holder has the name.
    pub(crate) fn count_wake(&self, is_spurious: bool) {
        if self.was_woken.take() {
            let counters = &self.attempt.runtime.meters.counters;
            counters.wakes.up();
            if is_spurious {
                counters.spurious_wakes.up();
            }
        }
    }

    /// Sleeps after a refusal until woken, or until `latest` at most.
    pub(crate) fn sleep_after_refusal(
        &self,
        is_subscribed: bool,
        remaining: Option<Duration>,
        latest: Instant,
    ) -> SleepEnd {
        let until = self.next_attempt(is_subscribed, remaining, Instant::now());
        let end = self.park_until(latest.min(until));
        self.attempt.silence.restart();
        end
    }

    /// Returns when to try again if nothing wakes the call.
    fn next_attempt(
        &self,
        is_subscribed: bool,
        remaining: Option<Duration>,
        now: Instant,
    ) -> Instant {
        let refusals = self.refusals.saturating_sub(1);
        let pause = match &self.attempt.settings.wait {
            WaitPolicy::Backoff(backoff) => return now.after(backoff.pause(refusals)),
            WaitPolicy::Wake if is_subscribed => jittered(BACKSTOP),
            WaitPolicy::Wake => UNSUBSCRIBED_BACKOFF.pause(refusals),
        };
        next_attempt(now.after(pause), now, remaining, now)
    }

    /// Sleeps while this call itself needs no reply; fails if Redis was silent for too long.
    pub(crate) fn sleep_while_others_ask(
        &self,
        now: Instant,
        until: Instant,
    ) -> Result<SleepEnd, Over> {
        let silence = &self.attempt.silence;
        if silence.is_too_long(now) {
            return Err(silence.error_for_others(now).into());
        }
        Ok(self.sleep(until.min(silence.gives_up_at(now))))
    }

    /// Sleeps for `pause`, or until woken or the deadline.
    pub(crate) fn park(&self, pause: Duration) -> SleepEnd {
        self.park_until(Instant::now().after(pause))
    }

    /// Sleeps until `until`, or until woken or the deadline.
    pub(crate) fn park_until(&self, until: Instant) -> SleepEnd {
        let until = until.min(self.attempt.deadline);
        loop {
            let end = self.sleep(until);
            if matches!(end, SleepEnd::Woken) || Instant::now() >= until || self.attempt.is_ended()
            {
                return end;
            }
        }
    }

    /// Sleeps until `until`, or until woken or the deadline, for at most `LONGEST_SLEEP`.
    fn sleep(&self, until: Instant) -> SleepEnd {
        // Reads the clock again: the call may have read its position long ago, and a sleep measured
        // from then would end too late.
        let pause = nap(Instant::now(), until.min(self.attempt.deadline));
        let parker = self.queue().parker();
        let is_woken = match &self.attempt.settings.cancel {
            Some(token) => parker.park_unless(token.receiver(), pause),
            None => parker.park_timeout(pause),
        };
        match is_woken {
            true => {
                self.was_woken.set(true);
                SleepEnd::Woken
            }
            false => SleepEnd::TimedOut,
        }
    }
}
