//! The wait loop of every kind of lock: acts on the call's [`Position`] until the call ends.
//!
//! A call waits in the local queue of this client, by a place in the queue in Redis, or in both.
//! The calls of a mutex share one place: one of them has it, and the others are behind that call.
//! A set of names on one server waits by its own place (`set_place.rs`), in no local queue.
//!
//! ```text
//! position? <------------------------ Woken or TimedOut -------------------------+
//!    |                                                                           |
//!    |  the local queue decides                                                  |
//!    +-- Behind -------- sleep; shortly before the deadline, if the replies to   |
//!    |                   other calls do not suffice, have the shared place       |
//!    |                   refreshed, or try Redis: granted --> Acquired           |
//!    |                   otherwise ----------------------------------------------+
//!    +-- HeldLocally --- sleep until the holder wakes this call, or a timeout ---+
//!    +-- Yield --------- sleep for 1 ms, or until the release message -----------+
//!    +-- HandedOff ----- take the lease --> Acquired                             |
//!    |                   lost before that ---------------------------------------+
//!    |  the place in Redis decides                                               |
//!    +-- Placed -------- sleep until a grant, or until the next refresh is due --+
//!    +-- Refresh ------- refresh all places of this client for the lock ---------+
//!    +-- Granted ------- still valid, or renewed --> Acquired                    |
//!    |                   lapsed -------------------------------------------------+
//!    |  neither does: the call is among those that ask Redis                     |
//!    +-- Contend ------- after a plain release: sleep for 2 ms ------------------+
//!                        due to join the calls that share a place: the position  |
//!                        by that place decides                                   |
//!                        another call has just taken the shared place -----------+
//!                        else try Redis: granted --> Acquired                    |
//!                        refused, with a place now, or able to take one ---------+
//!                        refused another name than before: join its local queue; |
//!                        under `Wake`, try again --------------------------------+
//!                        otherwise: sleep until a release, the end of the ttl or |
//!                        the backstop -------------------------------------------+
//!                        split vote, or no reply: sleep for a backoff -----------+
//!
//! From any of them: --> None once the deadline has passed and the name is known to be taken, or
//!                       the policy allows no more attempts
//!                   --> Err once Redis has been silent for too long, after a shutdown, or once
//!                       the call is cancelled
//! ```

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::Error;
use crate::lease::held::HeldLease;
use crate::lock::ask::Tried;
use crate::lock::replies::Over;
use crate::lock::sleep::SleepEnd::{self, TimedOut, Woken};
use crate::lock::waiting_call::WaitingCall;
use crate::queue::position::Position;
use crate::wait_policy::WaitPolicy;

/// How long the first waiter lets other clients go first after a run of hand-offs.
///
/// Longer than a pub/sub message takes. The yield ends early when this client receives the release
/// message, since the other clients receive it at the same time.
const FLEET_YIELD: Duration = Duration::from_millis(1);

impl WaitingCall<'_> {
    /// Waits for the lock; returns `None` at the deadline or when the attempts are used up.
    pub(crate) fn run(&mut self) -> Result<Option<Arc<HeldLease>>, Error> {
        let outcome = self.run_to_outcome();
        if matches!(outcome, Ok(Some(_))) {
            self.count_wake(false);
        }
        outcome
    }

    fn run_to_outcome(&mut self) -> Result<Option<Arc<HeldLease>>, Error> {
        let Err(Over(outcome)) = self.run_until_over();
        if matches!(outcome, Ok(Some(_))) || self.attempt.is_ended() {
            return outcome;
        }
        // A hand-off or a grant may have arrived since the call last read its position: take it.
        let place = self.place.as_ref();
        let hold = match place.and_then(|place| place.ticket.take_grant()) {
            Some(grant) => match self.take_grant(grant) {
                Ok(hold) => hold,
                Err(Over(outcome)) => return outcome,
            },
            None => self.take_hand_off(),
        };
        hold.map_or(outcome, |hold| Ok(Some(hold)))
    }

    fn run_until_over(&mut self) -> Result<Infallible, Over> {
        // Not read from the clock, to save time: the call has just started.
        let mut now = self.attempt.start;
        let mut must_try = false;
        loop {
            self.attempt.check_not_ended()?;
            let end = self.act_on_position(now, must_try)?;
            must_try = matches!(end, TimedOut);
            now = Instant::now();
            let is_at_deadline = now >= self.attempt.deadline;
            if self.is_used_up() || is_at_deadline && self.is_taken() {
                return Err(Over(Ok(None)));
            }
        }
    }

    /// Takes the action of the call's position; returns how its sleep ended.
    fn act_on_position(&mut self, now: Instant, must_try: bool) -> Result<SleepEnd, Over> {
        Ok(match self.position(now, must_try) {
            Position::Behind => self.behind(now)?,
            Position::HeldLocally => {
                self.log_waiting_once(None);
                self.ensure_subscribed()?;
                self.count_wake(true);
                // The holder wakes this call. Under `Wake`, the timeout is for a wake-up that was
                // missed. Under `Backoff`, it is the pause of the policy.
                self.sleep_after_refusal(true, None, Instant::NEVER)
            }
            Position::Yield => self.park(FLEET_YIELD),
            Position::HandedOff => match self.take_hand_off() {
                Some(hold) => return Err(Over(Ok(Some(hold)))),
                // The lease was lost before this call took it: ask Redis.
                None => Woken,
            },
            Position::Placed(_) if now >= self.attempt.deadline => {
                return Err(self.over_at_deadline(now));
            }
            Position::Placed(until) if self.shares_place => {
                self.sleep_by_shared_place(now, until)?
            }
            Position::Placed(until) => self.sleep_while_others_ask(now, until)?,
            Position::Refresh(ids) => self.refresh(now, &ids)?,
            Position::Granted(grant) => match self.take_grant(grant)? {
                Some(hold) => return Err(Over(Ok(Some(hold)))),
                None => TimedOut,
            },
            Position::Contend => self.contend(now)?,
        })
    }

    /// Sleeps until `until` while this call, or one ahead of it, has the place that they share.
    ///
    /// Shortly before its deadline, the call makes one refresh of the place due at once if the
    /// replies so far do not suffice for an outcome at the deadline.
    fn sleep_by_shared_place(&mut self, now: Instant, until: Instant) -> Result<SleepEnd, Over> {
        let last_attempt = self.span().last_attempt();
        if now < last_attempt {
            return self.sleep_while_others_ask(now, until.min(last_attempt));
        }
        if !self.has_refreshed_early && self.needs_own_reply() {
            self.has_refreshed_early = true;
            let shared_places = &self.attempt.runtime.waiters.shared_places;
            shared_places.refresh_now(self.name());
            return Ok(TimedOut);
        }
        self.sleep_while_others_ask(now, until)
    }

    /// Returns whether the replies so far do not suffice for an outcome at the deadline.
    fn needs_own_reply(&self) -> bool {
        // After a split vote nobody holds the name.
        let answers = self.queue().answers();
        let needs_reply = self.splits > 0 || answers.needs_another_reply(self.span());
        needs_reply && self.attempt.held_here().is_none()
    }

    /// Waits behind other calls of this client.
    ///
    /// Shortly before the deadline, tries Redis if the replies to the others do not suffice. If
    /// they share a place, the call that has it asks instead.
    fn behind(&mut self, now: Instant) -> Result<SleepEnd, Over> {
        self.log_waiting_once(None);
        let deadline = self.attempt.deadline;
        if self.shared().is_some_and(|shared| shared.is_taken) {
            return match now < deadline {
                true => self.sleep_by_shared_place(now, deadline),
                false => Err(self.over_at_deadline(now)),
            };
        }
        let last_attempt = self.span().last_attempt();
        if now < last_attempt {
            return self.sleep_while_others_ask(now, last_attempt);
        }
        if self.attempt.silence.is_too_long(now) || now < deadline && !self.needs_own_reply() {
            return self.sleep_while_others_ask(now, deadline);
        }
        if now >= deadline && self.is_taken() {
            return Err(Over(Ok(None)));
        }
        Ok(match self.try_once(now)? {
            Tried::Refused { .. } => TimedOut,
            Tried::NotRefused(end) => end,
        })
    }

    /// Tries Redis; after a refusal, sleeps until a release or a timeout.
    fn contend(&mut self, now: Instant) -> Result<SleepEnd, Over> {
        if self.is_too_late(now) {
            return Ok(self.park_until(self.attempt.deadline));
        }
        if let Some(shared) = self.shared() {
            if now < shared.contended {
                return Ok(self.park_until(shared.contended));
            }
            if self.join_queue_if_due(shared, now) {
                return self.act_on_position(now, true);
            }
        }
        let (has_moved, remaining) = match self.try_once(now)? {
            Tried::Refused {
                has_moved,
                remaining,
            } => (has_moved, remaining),
            Tried::NotRefused(end) => return Ok(end),
        };
        // A subscription that was live before the attempt receives every release after it. One that
        // becomes live later wakes this call to try again.
        let subscription = self.ensure_subscribed()?;
        let is_subscribed =
            subscription.is_some_and(|subscription| subscription.is_subscribed_since(now));
        let is_placed = self.place.as_ref().map(|place| place.ticket.has_place());
        let enters = || {
            self.shares_place
                && self.attempt.settings.wait == WaitPolicy::Wake
                && !self.attempt.is_held_alone()
        };
        if self.set_place.is_some() || is_placed.unwrap_or_else(enters) {
            // The place says how long to sleep. A call that has none yet enters the queue.
            return Ok(TimedOut);
        }
        if has_moved && self.attempt.settings.wait == WaitPolicy::Wake {
            // A release before this call joined the queue has not woken it: try at once.
            self.back_off_after_move();
            return Ok(Woken);
        }
        let latest = self.span().asks_again_by(Instant::now());
        Ok(self.sleep_after_refusal(is_subscribed, remaining, latest))
    }
}

#[cfg(test)]
mod tests;
