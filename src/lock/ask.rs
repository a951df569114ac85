//! The commands of a waiting call: an attempt, or a refresh of this client's places.

use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::lock::attempt::{Attempted, SPLIT_VOTE_BACKOFF};
use crate::lock::place::waiting_reply;
use crate::lock::replies::Over;
use crate::lock::sleep::SleepEnd::{self, TimedOut};
use crate::lock::waiting_call::WaitingCall;
use crate::protocol::place::Refreshed;
use crate::protocol::primitive::Queueing;

/// The outcome of [`WaitingCall::try_once`] after which the call keeps waiting.
pub(crate) enum Tried {
    /// A refusal. If it `has_moved`, the call has left the queue of another name for that of the
    /// refused name.
    Refused {
        has_moved: bool,
        remaining: Option<Duration>,
    },
    /// No refusal:
    /// * After a split vote, or a command without a reply, the call has already slept.
    /// * If another call of this client has just taken the shared place, the call goes on at once.
    NotRefused(SleepEnd),
}

impl WaitingCall<'_> {
    /// Tries Redis once, and records its reply. Sends nothing if another call of this client has
    /// taken the place that they share.
    pub(crate) fn try_once(&mut self, now: Instant) -> Result<Tried, Over> {
        let entering = match &self.place {
            // While this client holds the name alone, the attempt takes no place: it only checks
            // whether Redis refuses.
            Some(place) if !self.shares_place || !self.attempt.is_held_alone() => {
                let Some(id) = place.begin_entering() else {
                    return Ok(Tried::NotRefused(SleepEnd::Woken));
                };
                Some((place, id))
            }
            _ => None,
        };
        let tokens = self.attempt.tokens(self.about_to_try(now));
        let (tried, has_entered) = match (entering, &self.set_place) {
            (Some((place, id)), _) => (place.enter(id, tokens), true),
            (None, Some(set)) => (set.ask(), false),
            (None, None) => (self.attempt.try_once(tokens, Queueing::Barge), false),
        };
        match tried {
            Ok((Attempted::Acquired(hold), _)) => Err(Over(Ok(Some(hold)))),
            Ok((Attempted::Refused(by), sent)) => {
                self.splits = 0;
                self.split_since = None;
                let has_moved = self.move_to_queue_of(by.name);
                self.note_refusal(sent, &by);
                let remaining = by.remaining;
                self.count_wake(true);
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
                self.note_split(sent);
                let since = *self.split_since.get_or_insert(sent);
                self.attempt.silence.check_split(since)?;
                self.log_waiting_once(None);
                self.splits = self.splits.saturating_add(1);
                Ok(Tried::NotRefused(
                    self.park(SPLIT_VOTE_BACKOFF.pause(self.splits - 1)),
                ))
            }
            Err(fault) => {
                let pause = self.pause_after(fault)?;
                self.park(pause);
                // A timeout even if the pause ended with a wake-up: the name may be free in Redis,
                // so the call must try again even if this client has a lease of it.
                Ok(Tried::NotRefused(TimedOut))
            }
        }
    }

    /// Refreshes all places of this client for the name. If no reply can arrive before the deadline
    /// and the call needs none, leaves the refresh to another call, and sleeps until the deadline
    /// at most.
    pub(crate) fn refresh(&mut self, now: Instant, ids: &[HolderId]) -> Result<SleepEnd, Over> {
        let Some(place) = &self.place else {
            return Ok(TimedOut);
        };
        if self.is_too_late(now) {
            place.ticket.pass_refresh_on();
            return Ok(self.park_until(self.attempt.deadline));
        }
        let tokens = self.attempt.tokens(self.about_to_try(now));
        match place.refresh(ids, tokens) {
            Ok((found, by, sent)) => {
                let arrived = Instant::now();
                self.update_answers(|answers| answers.refreshed(sent, arrived, &found, &by));
                let reply = waiting_reply(self.attempt, sent, arrived);
                place.ticket.note_refreshed(ids, &found, reply);
                self.note_reply(sent, arrived);
                let waits = |place: &Refreshed| matches!(place, Refreshed::Waiting(_));
                self.count_wake(found.iter().all(waits));
                self.ensure_subscribed()?;
            }
            Err(fault) => {
                let pause = self.pause_after(fault);
                // If this call gives up, another one with a later deadline may refresh at once.
                let until = Instant::now().after(*pause.as_ref().unwrap_or(&Duration::ZERO));
                if let Some(place) = &self.place {
                    place.ticket.note_not_refreshed(until);
                }
                pause?;
            }
        }
        Ok(TimedOut)
    }
}
