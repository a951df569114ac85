//! The wait loop of every kind of lock: takes the action of the call's [`Position`] until it ends.
//!
//! A call waits in the local queue of this client, by a place in the queue in Redis, or in both:
//! then the place counts once the local queue lets the call contend.
//!
//! ```text
//! position? <------------------------ Woken, or TimedOut before the deadline ----+
//!    |                                                                           |
//!    |  in the local queue                                                       |
//!    +-- Behind -------- sleep; shortly before the deadline, try Redis if the ---+
//!    |                   replies to others do not suffice                        |
//!    +-- HeldLocally --- sleep until the holder wakes this call, or backstop ----+
//!    +-- Yield --------- sleep for 1 ms, or until the release message -----------+
//!    +-- HandedOff ----- take the lease --> Acquired                             |
//!    |                   lost before that ---------------------------------------+
//!    |  in the queue in Redis                                                    |
//!    +-- Placed -------- sleep until a grant, or until the next refresh is due --+
//!    +-- Refresh ------- refresh all places of this client ----------------------+
//!    +-- Granted ------- still valid, or renewed --> Acquired                    |
//!    |                   lapsed -------------------------------------------------+
//!    |  in both                                                                  |
//!    +-- Contend ------- try Redis: granted --> Acquired                         |
//!                        refused, with a place in Redis now ---------------------+
//!                        refused: join that name's queue, sleep until a release, |
//!                        the end of the ttl or the backstop ---------------------+
//!                        split vote, or no reply: sleep for a backoff -----------+
//!
//! From any of them: --> None once the deadline has passed and the name is known to be taken, or
//!                       the policy allows no more attempts
//!                   --> Err once Redis has been silent for too long, or after a shutdown
//! ```

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::Error;
use crate::holder::HolderId;
use crate::lease::handoff::HandoffRun;
use crate::lease::held::HeldLease;
use crate::lease::state::LeaseState;
use crate::lock::attempt::{Attempt, Attempted, SPLIT_VOTE_BACKOFF};
use crate::lock::place::Place;
use crate::lock::release::pass_on_unclaimed;
use crate::lock::waiting_call::SleepEnd::{self, TimedOut, Woken};
use crate::lock::waiting_call::{Over, WaitingCall};
use crate::protocol::one_or_many::OneOrMany;
use crate::protocol::place::{Refreshed, TokenBlock};
use crate::queue::position::{Grant, Position};
use crate::redis::Fault;
use crate::stats::Wake;
use crate::wait_policy::WaitPolicy;

/// How long the first waiter lets other clients go first after a run of hand-offs.
///
/// Longer than a pub/sub message takes. The yield ends early when this client receives the release
/// message, since the other clients receive it at the same time.
const FLEET_YIELD: Duration = Duration::from_millis(1);

/// The outcome of an attempt after which the call keeps waiting.
enum Tried {
    /// A refusal. The call was in the queue of another name before if it `has_moved`.
    Refused {
        has_moved: bool,
        remaining: Option<Duration>,
    },
    /// A sleep: there was no reply, or a split vote.
    Slept(SleepEnd),
}

impl WaitingCall<'_> {
    /// Waits for the lock; returns `None` at the deadline or when the attempts are used up.
    pub(crate) fn run(&mut self) -> Result<Option<Arc<HeldLease>>, Error> {
        let Err(Over(outcome)) = self.turns();
        if matches!(outcome, Ok(Some(_))) || self.attempt.runtime.is_closed() {
            return outcome;
        }
        // The lock may have been handed or granted to this call in the meantime: take it.
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

    fn turns(&mut self) -> Result<Infallible, Over> {
        // The start of the call saves reading the clock.
        let mut now = self.attempt.start;
        let mut must_try = false;
        loop {
            self.attempt.runtime.check_open()?;
            let end = self.turn(now, must_try)?;
            must_try = matches!(end, TimedOut(_));
            now = Instant::now();
            let is_at_deadline = now >= self.attempt.deadline;
            if self.is_used_up() || is_at_deadline && self.is_taken() {
                return Err(Over(Ok(None)));
            }
            self.count_wake(end);
        }
    }

    /// Does what the position of the call asks for.
    fn turn(&mut self, now: Instant, must_try: bool) -> Result<SleepEnd, Over> {
        Ok(match self.position(now, must_try) {
            Position::Behind => self.behind(now)?,
            Position::HeldLocally => {
                self.log_waiting_once(None);
                self.ensure_subscribed()?;
                self.count_spurious_wake();
                // The holder wakes this call. A timeout is for a wake-up that was missed.
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
            Position::Placed(until) => self.sleep_in_place(now, until)?,
            Position::Refresh(ids, why) => self.refresh(now, &ids, why)?,
            Position::Granted(grant) => match self.take_grant(grant)? {
                Some(hold) => return Err(Over(Ok(Some(hold)))),
                None => TimedOut(None),
            },
            Position::Contend => self.contend(now)?,
        })
    }

    /// Sleeps with a place in Redis until `until`, when its next refresh is due.
    ///
    /// A call that took the place over may have had no reply of its own: shortly before its
    /// deadline, it makes one refresh due at once.
    fn sleep_in_place(&mut self, now: Instant, until: Instant) -> Result<SleepEnd, Over> {
        let last_attempt = self.span().last_attempt();
        if !self.shares_place || self.has_hurried || !self.needs_own_reply() {
            return self.sleep_while_others_ask(now, until);
        }
        if now < last_attempt {
            return self.sleep_while_others_ask(now, until.min(last_attempt));
        }
        if let Some(name) = self.name_with_place() {
            self.has_hurried = true;
            let cohorts = &self.attempt.runtime.waiters.cohorts;
            cohorts.refresh_now(name, Wake::Turn);
        }
        Ok(TimedOut(None))
    }

    /// Returns whether the replies to the others say too little about the name at the deadline.
    fn needs_own_reply(&self) -> bool {
        // After a split vote nobody holds the name.
        let answers = self.queue().answers();
        let needs_reply = self.splits > 0 || answers.needs_another_reply(self.span());
        needs_reply && self.attempt.held_here().is_none()
    }

    /// Waits behind other calls of this client.
    ///
    /// Shortly before the deadline, tries Redis if the replies to the others do not suffice.
    fn behind(&mut self, now: Instant) -> Result<SleepEnd, Over> {
        self.log_waiting_once(None);
        let deadline = self.attempt.deadline;
        let last_attempt = self.span().last_attempt();
        if now < last_attempt {
            self.sleep_while_others_ask(now, last_attempt)
        } else if let Some(name) = self.name_with_place() {
            if now >= deadline {
                return Err(self.over_at_deadline(now));
            }
            if self.needs_own_reply() {
                // The call that has the place asks.
                let cohorts = &self.attempt.runtime.waiters.cohorts;
                cohorts.refresh_now(name, Wake::Turn);
            }
            self.sleep_while_others_ask(now, deadline)
        } else if self.attempt.silence.is_too_long(now) || now < deadline && !self.needs_own_reply()
        {
            self.sleep_while_others_ask(now, deadline)
        } else if now >= deadline && self.is_taken() {
            Err(Over(Ok(None)))
        } else {
            Ok(match self.try_once(now)? {
                Tried::Refused { .. } => TimedOut(None),
                Tried::Slept(end) => end,
            })
        }
    }

    /// Tries Redis; after a refusal, sleeps until a release or a timeout.
    fn contend(&mut self, now: Instant) -> Result<SleepEnd, Over> {
        if self.is_too_late(now) {
            return Ok(self.park_until(self.attempt.deadline));
        }
        if let Some(shared) = self.shared() {
            if now < shared.left_open_until {
                return Ok(self.park_until(shared.left_open_until));
            }
            if self.joins_queue(shared, now) {
                return self.turn(now, true);
            }
        }
        let (has_moved, remaining) = match self.try_once(now)? {
            Tried::Refused {
                has_moved,
                remaining,
            } => (has_moved, remaining),
            Tried::Slept(end) => return Ok(end),
        };
        // A subscription that was live before the attempt receives every release after it. One that
        // becomes live later wakes this call to try again.
        let subscription = self.ensure_subscribed()?;
        let is_subscribed = subscription.is_some_and(|subscription| subscription.hears_since(now));
        let is_placed = self.place.as_ref().map(|place| place.ticket.has_place());
        let enters = || {
            self.shares_place
                && self.attempt.settings.wait == WaitPolicy::Wake
                && self.attempt.held_here().is_none()
        };
        if self.set_place.is_some() || is_placed.unwrap_or_else(enters) {
            // The place says how long to sleep. A call that has none yet enters the queue.
            return Ok(TimedOut(None));
        }
        if has_moved && self.attempt.settings.wait == WaitPolicy::Wake {
            // A release before this call joined the queue woke other waiters: try at once, as if
            // it had woken this one.
            self.back_off_after_move();
            return Ok(Woken);
        }
        let latest = self.span().asks_again_by(Instant::now());
        Ok(self.sleep_after_refusal(is_subscribed, remaining, latest))
    }

    /// Tries Redis once, and records its reply.
    fn try_once(&mut self, now: Instant) -> Result<Tried, Over> {
        let tokens = self.attempt.tokens(self.about_to_try(now));
        let (tried, has_entered) = match (&self.place, &self.set_place) {
            // While this client holds the name, an attempt only checks that.
            (Some(place), _) if !self.shares_place || self.attempt.held_here().is_none() => {
                (place.enter(tokens), true)
            }
            (None, Some(set)) => (set.ask(), false),
            _ => (self.attempt.try_once(tokens), false),
        };
        match tried {
            Ok((Attempted::Acquired(hold), _)) => Err(Over(Ok(Some(hold)))),
            Ok((Attempted::Refused(name, remaining), sent)) => {
                self.splits = 0;
                let has_moved = self.move_to_queue_of(name);
                self.note_refusal(sent, remaining);
                self.count_spurious_wake();
                if !has_entered {
                    self.refusals = self.refusals.saturating_add(1);
                }
                self.log_waiting_once(remaining);
                if self.is_used_up() {
                    return Err(Over(Ok(None)));
                }
                Ok(Tried::Refused {
                    has_moved,
                    remaining,
                })
            }
            Ok((Attempted::SplitVote, sent)) => {
                self.note_refusal(sent, Some(Duration::ZERO));
                self.log_waiting_once(None);
                self.splits = self.splits.saturating_add(1);
                Ok(Tried::Slept(
                    self.park(SPLIT_VOTE_BACKOFF.pause(self.splits - 1)),
                ))
            }
            Err(Fault::Rejected(error))
                if (has_entered || self.set_place.is_some()) && self.forgoes_queue(&error) =>
            {
                Ok(Tried::Slept(TimedOut(None)))
            }
            Err(fault) => {
                let pause = self.pause_after(fault)?;
                self.park(pause);
                // The name may be free: try again even if this client holds it.
                Ok(Tried::Slept(TimedOut(None)))
            }
        }
    }

    /// Refreshes all places of this client, unless no reply can arrive before the deadline.
    fn refresh(&mut self, now: Instant, ids: &[HolderId], why: Wake) -> Result<SleepEnd, Over> {
        let Some(place) = &self.place else {
            return Ok(TimedOut(None));
        };
        if self.is_too_late(now) {
            place.ticket.pass_refresh_on(why);
            return Ok(self.park_until(self.attempt.deadline));
        }
        self.was_woken = self.attempt.runtime.meters.woke(why);
        let tokens = self.attempt.tokens(self.about_to_try(now));
        let refreshed = place.refresh(ids, tokens);
        if let Err(Fault::Rejected(error)) = &refreshed
            && self.forgoes_queue(error)
        {
            return Ok(TimedOut(None));
        }
        let Some(place) = &self.place else {
            return Ok(TimedOut(None));
        };
        match refreshed {
            Ok((found, sent)) => {
                let arrived = Instant::now();
                self.update_answers(|answers| answers.refreshed(sent, arrived, &found));
                let reply = place.waiting_reply(sent, arrived);
                place.ticket.note_refreshed(ids, &found, reply);
                self.note_reply(sent, arrived);
                if found
                    .iter()
                    .all(|place| matches!(place, Refreshed::Waiting(_)))
                {
                    self.count_spurious_wake();
                }
                self.ensure_subscribed()?;
            }
            Err(fault) => {
                let pause = self.pause_after(fault);
                // Another call may have a later deadline.
                let until = Instant::now().after(*pause.as_ref().unwrap_or(&Duration::ZERO));
                place.ticket.note_not_refreshed(why, until);
                pause?;
            }
        }
        Ok(TimedOut(None))
    }

    /// Takes a grant; returns `None` if it has lapsed, or may have and Redis confirms it.
    fn take_grant(&self, grant: Grant) -> Result<Option<Arc<HeldLease>>, Over> {
        let Some(place) = &self.place else {
            return Ok(None);
        };
        let runtime = self.attempt.runtime;
        if grant.by_message {
            runtime.meters.woke(Wake::Message);
        }
        let lease = match place.lease(&grant, Instant::now()) {
            Some(lease) => Ok(Some(lease)),
            None => self.confirm(place, &grant.id),
        };
        match lease {
            Ok(Some(lease)) => {
                let TokenBlock { first, count } = grant.tokens;
                let run = HandoffRun::new(first, count, Instant::now()).by_release();
                let tokens = OneOrMany::One(first);
                let hold = self.attempt.hold(grant.id, tokens, lease, None, run);
                Ok(Some(hold.map_err(|fault| runtime.deployment.error(fault))?))
            }
            Ok(None) => Ok(None),
            Err(over) => {
                place.leave(grant.id);
                Err(over)
            }
        }
    }

    /// Renews a grant until Redis replies; returns `None` if it has lapsed.
    fn confirm(&self, place: &Place<'_>, id: &HolderId) -> Result<Option<LeaseState>, Over> {
        loop {
            self.attempt.runtime.check_open()?;
            match place.confirm(id) {
                Ok(lease) => return Ok(lease),
                Err(fault) => self.park(self.pause_after(fault)?),
            };
        }
    }

    /// Takes the lease that was handed to this call, unless it has been lost since.
    fn take_hand_off(&mut self) -> Option<Arc<HeldLease>> {
        let Attempt { runtime, terms, .. } = self.attempt;
        let now = Instant::now();
        let holding = |token| self.attempt.holding(token, now);
        let hold = match self.local.as_ref()?.take(now, terms.max_hold, holding)? {
            Ok(hold) => hold,
            Err(handed) => {
                pass_on_unclaimed(runtime, &handed);
                return None;
            }
        };
        if terms.max_hold < Duration::MAX {
            runtime.reschedule(&hold);
        }
        self.has_waited = true;
        runtime.meters.woke(Wake::HandOff);
        self.attempt.log_granted(&hold);
        Some(hold)
    }
}

#[cfg(test)]
mod tests;
