//! A call's place in the queue in Redis: the commands that take, keep, use and leave it.

use std::sync::Arc;

use crate::clock::Instant;
use crate::error::{Cause, Error};
use crate::holder_id::HolderId;
use crate::lease::release::Release;
use crate::lease::state::LeaseState;
use crate::lock::attempt::{Attempt, Attempted, TTL_TOO_SHORT};
use crate::logging;
use crate::parker::Parker;
use crate::protocol::answer::Answer;
use crate::protocol::place::{Refreshed, provisional, provisional_of, refresh_every};
use crate::protocol::primitive::{Acquire, NewPlace, Primitive, Queueing, Reached, RedisQueue};
use crate::protocol::refusal::RefusedName;
use crate::queue::name_places::{RefreshPace, WaitingReply};
use crate::queue::place_ticket::PlaceTicket;
use crate::queue::position::Grant;
use crate::redis::{Cap, Fault};
use crate::runtime::subscriber::Inbox;
use crate::wait_policy::WaitPolicy;

/// A call's place in the queue in Redis, once it has one.
///
/// [`end`](Self::end) must be called before it is dropped.
pub(crate) struct Place<'a> {
    attempt: &'a Attempt<'a>,
    queue_keys: &'a dyn RedisQueue,
    pub(crate) ticket: PlaceTicket<'a>,
}

impl<'a> Place<'a> {
    pub(crate) fn new(
        attempt: &'a Attempt<'a>,
        queue_keys: &'a dyn RedisQueue,
        parker: Parker,
    ) -> Self {
        let places = attempt.runtime.waiters.places_of(attempt.keys);
        Self {
            attempt,
            queue_keys,
            ticket: places.join(
                queue_keys.admission(),
                attempt.keys,
                refresh_pace(attempt),
                parker,
            ),
        }
    }

    /// Returns the id under which the call must [`enter`](Self::enter) now; `None` if another call
    /// of this client has taken the place that its calls share.
    pub(crate) fn begin_entering(&self) -> Option<HolderId> {
        let Attempt { runtime, keys, .. } = self.attempt;
        let id = keys.fresh_id(&runtime.config.owner);
        // Before sending: the lock may be granted before the reply arrives.
        self.ticket.begin_entering(&id).then_some(id)
    }

    /// Acquires the lock, or a place at the end of the queue if it is refused.
    ///
    /// A grant reserves this number of `tokens`. Also returns when the command was sent.
    pub(crate) fn enter(&self, id: HolderId, tokens: u64) -> Result<(Attempted, Instant), Fault> {
        let Attempt { runtime, keys, .. } = self.attempt;
        logging::trace!(
            name:% = keys, holder:% = id.as_str();
            "enter the queue of {keys} as {}", id.as_str()
        );
        runtime.meters.counters.attempts.up();
        let inbox = inbox(self.attempt, self.attempt.settings.wait == WaitPolicy::Wake);
        let ttl = self.attempt.terms.ttl;
        let call = keys.acquire(Acquire {
            id: &id,
            ttl,
            tokens,
            proposed: None,
            queueing: Queueing::Join(new_place(self.attempt, &inbox)),
        });
        let answer = self.attempt.send(call, keys, &id, None);
        if let Ok((Answer::Refused(refusal), sent)) = answer {
            if refusal.holder == id.as_str().as_bytes()
                && refusal.remaining.is_none_or(|left| left > provisional(ttl))
            {
                // This call is the holder itself, for longer than a grant to its new place lasts.
                // So the first run of the command acquired the free lock, and a proxy or the
                // network ran it again. With a ttl of at most 3 s this looks the same as a grant:
                // the call then counts as waiting, and its next refresh finds the lease.
                self.ticket.note_not_entered();
                return Err(self.attempt.undo(
                    keys,
                    &id,
                    Cause::text("the queue_enter script ran twice"),
                ));
            }
            let reply = waiting_reply(self.attempt, sent, Instant::now());
            self.ticket.note_entered(reply, refusal.remaining);
            return Ok((Attempted::Refused(Arc::new(refusal)), sent));
        }
        match answer {
            Ok((Answer::Granted(granted), sent)) => {
                self.ticket.forget_id();
                let hold = (self.attempt)
                    .hold_granted(id, granted, sent, None, tokens)
                    .inspect_err(|_| self.ticket.note_not_entered())?;
                Ok((Attempted::Acquired(hold), sent))
            }
            Ok(_) => {
                self.ticket.note_not_entered();
                Err(self.attempt.undo_unread(keys, &id))
            }
            Err(fault) => {
                self.ticket.note_not_entered();
                let was_sent =
                    |error: &Error| !matches!(error, Error::Closed | Error::Thread { .. });
                if matches!(&fault, Fault::Rejected(error) if was_sent(error)) {
                    // The script may have made the place before its grant to another waiter failed.
                    leave(self.attempt, keys, id);
                }
                Err(fault)
            }
        }
    }

    /// Refreshes the places `ids`: those of all calls of this client that wait for the name.
    ///
    /// A later grant to one of them reserves this number of `tokens`. Returns the state of each
    /// place with what those that wait are refused by, and when the command was sent. The caller
    /// must report the outcome to the ticket.
    pub(crate) fn refresh(
        &self,
        ids: &[HolderId],
        tokens: u64,
    ) -> Result<(Vec<Refreshed>, Arc<RefusedName>, Instant), Fault> {
        let runtime = self.attempt.runtime;
        // All places of this client share one channel.
        let inbox = inbox(self.attempt, self.ticket.any_subscribed());
        let values: Vec<Vec<u8>> = ids.iter().map(|id| id.as_str().into()).collect();
        let call = (self.queue_keys).refresh(tokens, &inbox.channel, &values);
        let until = self.attempt.silence.reply_deadline();
        let answer = runtime
            .deployment
            .call_or_undo(call, until, Cap::Counted, None);
        self.attempt.silence.note_sent(&answer);
        match answer? {
            (Answer::Places(found, by), sent) => Ok((found, Arc::new(by), sent)),
            _ => {
                let cause = Cause::text("unexpected reply to the queue_refresh script");
                Err(Fault::Unknown(cause))
            }
        }
    }

    /// Returns the provisional lease of a grant, unless Redis must confirm it.
    ///
    /// Redis must confirm it if replicas must acknowledge it, or if less than half of its time may
    /// be left.
    pub(crate) fn lease(&self, grant: &Grant, now: Instant) -> Option<LeaseState> {
        let terms = &self.attempt.terms;
        if terms.replicas.is_some() {
            return None;
        }
        let lasts = provisional_of(grant.refresh_every).min(terms.ttl);
        LeaseState::granted(grant.seen_waiting, now, lasts, terms)
    }

    /// Renews a grant; returns `None` if it has lapsed.
    pub(crate) fn confirm(&self, id: &HolderId) -> Result<Option<LeaseState>, Fault> {
        let (keys, terms) = (self.attempt.keys, &self.attempt.terms);
        let call = keys.renew(id, terms.ttl, false);
        let (answer, sent) = self.attempt.runtime.deployment.call_or_undo(
            call.acknowledged_by(terms.replicas),
            self.attempt.silence.reply_deadline(),
            Cap::Exempt,
            None,
        )?;
        let Answer::Ours(_) = answer else {
            return Ok(None);
        };
        match LeaseState::acquired(sent, Instant::now(), terms) {
            Some(lease) => Ok(Some(lease)),
            None => Err(Fault::Unknown(Cause::text(TTL_TOO_SHORT))),
        }
    }

    /// Ends the wait. A shared place passes to another call of this client if `others_wait`;
    /// otherwise the call leaves the queue.
    pub(crate) fn end(self, others_wait: bool) {
        if let Some(id) = self.ticket.hand_over(others_wait) {
            leave(self.attempt, self.attempt.keys, id);
        }
    }
}

/// Returns how often the places of a call are refreshed.
pub(crate) fn refresh_pace(attempt: &Attempt<'_>) -> RefreshPace {
    RefreshPace {
        every: refresh_every(attempt.terms.ttl),
        backoff: match attempt.settings.wait {
            WaitPolicy::Wake => None,
            WaitPolicy::Backoff(backoff) => Some(backoff),
        },
    }
}

/// Returns the inbox for grants of the first name; an empty one unless a call `can_receive` them.
pub(crate) fn inbox(attempt: &Attempt<'_>, can_receive: bool) -> Inbox {
    match can_receive {
        true => attempt.runtime.inbox(attempt.keys.key(0)),
        false => Inbox::default(),
    }
}

/// Describes a new place; a grant to it is published to `inbox`.
pub(crate) fn new_place<'a>(attempt: &Attempt<'_>, inbox: &'a Inbox) -> NewPlace<'a> {
    NewPlace {
        inbox: &inbox.channel,
        reached: match attempt.runtime.deployment.counts_listeners() {
            false => Reached::Always,
            true if inbox.is_starting => Reached::Soon,
            true => Reached::WhileListening,
        },
    }
}

/// Describes a reply that says that the call waits.
pub(crate) fn waiting_reply(
    attempt: &Attempt<'_>,
    sent: Instant,
    arrived: Instant,
) -> WaitingReply {
    WaitingReply {
        sent,
        arrived,
        is_listening: inbox(attempt, true).is_live,
    }
}

/// Removes the place `id` from the queue. If it was granted the lock, releases the lock.
pub(crate) fn leave(attempt: &Attempt<'_>, keys: &Arc<dyn Primitive>, id: HolderId) {
    let until = Instant::now().after(attempt.terms.ttl);
    let release = Release::of_place(Arc::clone(keys), id, until);
    attempt.runtime.release(release);
}
