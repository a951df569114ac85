//! The wait loop of a fair lock: keeps a place in the queue in Redis until the lock is granted.
//!
//! ```text
//!              +------ no place <----- place expired, or grant lapsed -----+
//!              |                                                           |
//!              v                                                           |
//!            Enter --- queue was empty ----------------------> Acquired    |
//!              |                                                           |
//!              v                                                           |
//!            Sleep <--- still waiting ----- Refresh                        |
//!              |                              ^   |                        |
//!              +-- due, or wake-up -----------+   +-- no longer in queue --+
//!              |                                                           |
//!              +-- grant message, or found by a refresh --> Take           |
//!                                                            |             |
//!                              valid, or renewed if not -----+--> Acquired |
//!                              no longer ours ---------------+-------------+
//!
//!  Leaves the queue from any state: deadline or attempts used up (None), silence of Redis or
//!  shutdown (Err).
//! ```

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Instant, nap};
use crate::error::{Cause, Error};
use crate::holder::HolderId;
use crate::lease::held::HeldLease;
use crate::lease::state::LeaseState;
use crate::lease::undo::Undo;
use crate::lock::attempt::Attempt;
use crate::lock::wait_state::WaitState;
use crate::logging;
use crate::protocol::answer::{Answer, Refreshed};
use crate::protocol::fair::{provisional, refresh_every};
use crate::protocol::keys::QueueKeys;
use crate::protocol::one_or_many::OneOrMany;
use crate::queue::fair::{FairStep, FairTicket, Grant, RefreshPace};
use crate::redis::{Cap, Fault, Undoable};
use crate::stats::Wake;
use crate::token::FencingToken;
use crate::wait_policy::{Backoff, WaitPolicy};

/// A call waiting for a fair lock.
pub(crate) struct FairWait<'a> {
    attempt: &'a Attempt<'a>,
    queue_keys: &'a QueueKeys,
    ticket: FairTicket<'a>,
    deadline: Instant,
    pub(crate) state: WaitState<'a>,
}

impl<'a> FairWait<'a> {
    pub(crate) fn new(
        attempt: &'a Attempt<'a>,
        queue_keys: &'a QueueKeys,
        deadline: Instant,
    ) -> Self {
        let pace = RefreshPace {
            every: refresh_every(attempt.terms.ttl),
            backoff: match attempt.settings.wait {
                WaitPolicy::Wake => None,
                WaitPolicy::Backoff(backoff) => Some(backoff),
            },
        };
        Self {
            attempt,
            queue_keys,
            ticket: attempt.runtime.waiters.fair_queues.join(attempt.keys, pace),
            deadline,
            state: WaitState::new(attempt, deadline),
        }
    }

    /// How many replies said that the lock is held, or that other calls are ahead.
    pub(crate) fn refusals(&self) -> u32 {
        self.ticket.refusals()
    }

    /// Waits for the lock; returns `None` at the deadline or when the attempts are used up.
    pub(crate) fn run(&mut self) -> Result<Option<Arc<HeldLease>>, Error> {
        let outcome = self.wait();
        if !matches!(outcome, Ok(Some(_)))
            && let Some(id) = self.ticket.forget_id()
        {
            self.leave_queue(id);
        }
        outcome
    }

    fn wait(&mut self) -> Result<Option<Arc<HeldLease>>, Error> {
        loop {
            self.attempt.runtime.check_open()?;
            let now = Instant::now();
            let is_over = self.is_over(now);
            match self.ticket.step(now) {
                FairStep::Take(grant) => {
                    if let Some(hold) = self.take_grant(grant)? {
                        return Ok(Some(hold));
                    }
                }
                FairStep::Refresh(_, why) if is_over => {
                    self.ticket.note_not_refreshed(why, now);
                    return Ok(None);
                }
                _ if is_over => return Ok(None),
                FairStep::Refresh(_, why) if self.is_too_late(now) => {
                    // Leave the refresh to waiters with a later deadline.
                    self.ticket.note_not_refreshed(why, now);
                    self.park(self.deadline);
                }
                FairStep::Enter if self.is_too_late(now) => self.park(self.deadline),
                FairStep::Enter => {
                    if let Some(hold) = self.enter()? {
                        return Ok(Some(hold));
                    }
                }
                FairStep::Refresh(ids, why) => self.refresh(&ids, why)?,
                FairStep::Sleep(_) if now >= self.deadline => {
                    return Err(self.attempt.unreachable_for_others(now));
                }
                FairStep::Sleep(until) => self.sleep(until)?,
            }
        }
    }

    /// Returns whether the wait ends without the lock.
    ///
    /// A deadline ends it only after a reply showed that the lock is held.
    fn is_over(&self, now: Instant) -> bool {
        let is_used_up = |backoff: Backoff| {
            backoff
                .limit()
                .is_some_and(|limit| self.refusals() >= limit)
        };
        let is_used_up = match self.attempt.settings.wait {
            WaitPolicy::Backoff(backoff) => is_used_up(backoff),
            WaitPolicy::Wake => false,
        };
        is_used_up || now >= self.deadline && self.is_taken()
    }

    /// Returns whether this call may report at its deadline that another call has the lock.
    fn is_taken(&self) -> bool {
        self.ticket.is_taken(self.state.span()) || self.attempt.held_here().is_some()
    }

    fn is_too_late(&self, now: Instant) -> bool {
        self.state.is_too_late(now, || self.is_taken())
    }

    /// Acquires the lock, or a place at the end of the queue (returns `None`).
    fn enter(&mut self) -> Result<Option<Arc<HeldLease>>, Error> {
        let Attempt {
            runtime,
            keys,
            terms,
            ..
        } = self.attempt;
        let id = HolderId::fresh(&runtime.config.owner);
        logging::trace!(
            name:% = keys, holder:% = id.as_str();
            "enter the queue of {keys} as {}", id.as_str()
        );
        runtime.meters.counters.attempts.up();
        let inbox = self.inbox();
        let call = self.queue_keys.enter(keys, &id, terms.ttl, Some(&inbox));
        let undoable = Undoable {
            keys,
            id: &id,
            ttl: terms.ttl,
            votes: None,
        };
        let until = self.attempt.reply_deadline(self.deadline);
        // Before sending: the lock may be granted before the reply arrives.
        self.ticket.begin_entering(&id);
        self.ticket.answers(|answers| answers.asked(Instant::now()));
        let answer = runtime.deployment.call_or_undo(
            call.acknowledged_by(terms.replicas),
            until,
            Cap::Counted,
            Some(&undoable),
        );
        self.attempt.note_sent(&answer);
        self.read_entry(&id, answer)
    }

    /// Handles the reply to entering the queue under `id`: a grant, a place, or a failure.
    fn read_entry(
        &mut self,
        id: &HolderId,
        answer: Result<(Answer, Instant), Fault>,
    ) -> Result<Option<Arc<HeldLease>>, Error> {
        let (attempt, keys, terms) = (self.attempt, self.attempt.keys, self.attempt.terms);
        let undo = |cause| attempt.undo(keys, id, cause);
        let fault = match answer {
            Ok((Answer::Granted(tokens), sent)) => {
                self.ticket.forget_id();
                let now = Instant::now();
                match LeaseState::granted(sent, now, &terms) {
                    Some(lease) => return self.hold(id.clone(), tokens, lease, now).map(Some),
                    None => undo(Cause::text(
                        "the reply took as long as the lease: ttl too short",
                    )),
                }
            }
            Ok((Answer::Refused(refusal), sent)) => {
                self.ticket.note_entered(sent, refusal.remaining);
                self.state.note_reply(sent, Instant::now());
                self.state.log_waiting_once(0, refusal.remaining);
                self.ensure_subscribed()?;
                return Ok(None);
            }
            Ok(_) => undo(Cause::text("unexpected reply to the fair_enter script")),
            Err(Fault::Unknown(cause)) => undo(cause),
            Err(Fault::NotReplicated(error)) => {
                undo(Cause::text("not acknowledged"));
                Fault::Rejected(error)
            }
            Err(fault) => fault,
        };
        // What the command may have done is undone, or the place expires.
        self.ticket.forget_id();
        let pause = self.handle_fault(fault)?;
        self.park(Instant::now().after(pause));
        Ok(None)
    }

    /// The channel on which this client receives grants; empty if the policy is not `Wake`.
    fn inbox(&self) -> Vec<u8> {
        match self.attempt.settings.wait {
            WaitPolicy::Wake => self.attempt.runtime.inbox(self.attempt.keys.key(0)),
            WaitPolicy::Backoff(_) => Vec::new(),
        }
    }

    /// Refreshes the places of all calls of this client that wait for the name.
    fn refresh(&mut self, ids: &[HolderId], why: Wake) -> Result<(), Error> {
        let Attempt { runtime, keys, .. } = self.attempt;
        let counts = runtime.meters.woke(why);
        // All places of this client share one channel.
        let inbox = match self.ticket.any_subscribed() {
            true => runtime.inbox(keys.key(0)),
            false => Vec::new(),
        };
        let values: Vec<Vec<u8>> = ids.iter().map(|id| id.as_str().into()).collect();
        let call = self.queue_keys.refresh(keys, &inbox, &values);
        let until = self.attempt.reply_deadline(self.deadline);
        self.ticket.answers(|answers| answers.asked(Instant::now()));
        let answer = runtime
            .deployment
            .call_or_undo(call, until, Cap::Counted, None);
        self.attempt.note_sent(&answer);
        let fault = match answer {
            Ok((Answer::Places(answers), sent)) => {
                self.ticket.note_refreshed(ids, &answers, sent);
                self.state.note_reply(sent, Instant::now());
                if counts && answers.iter().all(|answer| *answer == Refreshed::Waiting) {
                    runtime.meters.counters.spurious_wakes.up();
                }
                return self.ensure_subscribed();
            }
            Ok(_) => Fault::Unknown(Cause::text("unexpected reply to the fair_refresh script")),
            Err(fault) => fault,
        };
        let pause = self.handle_fault(fault);
        // Another call may have a later deadline.
        let until = Instant::now().after(*pause.as_ref().unwrap_or(&Duration::ZERO));
        self.ticket.note_not_refreshed(why, until);
        pause.map(|_| ())
    }

    /// Subscribes to releases and grants, if the policy is `Wake`.
    ///
    /// Once the subscription is live the places are refreshed: earlier messages did not arrive.
    fn ensure_subscribed(&mut self) -> Result<(), Error> {
        self.state.ensure_subscribed(0).map(drop)
    }

    /// Takes a grant; returns `None` if it has lapsed, or may have and Redis confirms it.
    fn take_grant(&mut self, grant: Grant) -> Result<Option<Arc<HeldLease>>, Error> {
        let terms = &self.attempt.terms;
        if grant.by_message {
            self.attempt.runtime.meters.woke(Wake::Message);
        }
        let tokens = OneOrMany::One(grant.token);
        let lasting = provisional(terms.ttl);
        let now = Instant::now();
        if terms.replicas.is_none()
            && let Some(lease) = LeaseState::passed(grant.seen_waiting, now, lasting, terms)
        {
            return self.hold(grant.id, tokens, lease, now).map(Some);
        }
        match self.renew_grant(&grant.id) {
            Ok(Some(lease)) => self.hold(grant.id, tokens, lease, Instant::now()).map(Some),
            Ok(None) => Ok(None),
            Err(error) => {
                self.leave_queue(grant.id);
                if self.state.is_refusal_better(&error, || self.is_taken()) {
                    return Ok(None);
                }
                Err(error)
            }
        }
    }

    /// Renews a grant that may be about to lapse, or that replicas must acknowledge.
    ///
    /// Returns `None` if the grant has lapsed.
    fn renew_grant(&mut self, id: &HolderId) -> Result<Option<LeaseState>, Error> {
        let Attempt {
            runtime,
            keys,
            terms,
            ..
        } = self.attempt;
        loop {
            runtime.check_open()?;
            let call = keys
                .renew(id, terms.ttl, false)
                .acknowledged_by(terms.replicas);
            let until = self.attempt.reply_deadline(self.deadline);
            let fault = match runtime
                .deployment
                .call_or_undo(call, until, Cap::Exempt, None)
            {
                Ok((Answer::Ours(_), sent)) => {
                    match LeaseState::granted(sent, Instant::now(), terms) {
                        Some(lease) => return Ok(Some(lease)),
                        None => Fault::Unknown(Cause::text(
                            "the reply took as long as the lease: ttl too short",
                        )),
                    }
                }
                Ok(_) => return Ok(None),
                Err(fault) => fault,
            };
            self.ticket
                .answers(|answers| answers.failed(Instant::now()));
            let pause = self.state.pause_after_fault(fault)?;
            self.park(Instant::now().after(pause));
        }
    }

    fn hold(
        &self,
        id: HolderId,
        tokens: OneOrMany<FencingToken>,
        lease: LeaseState,
        since: Instant,
    ) -> Result<Arc<HeldLease>, Error> {
        let attempt = self.attempt;
        let until = attempt.reply_deadline(self.deadline);
        let hold = attempt.hold(id, tokens, lease, None, since, until);
        hold.map_err(|fault| attempt.runtime.deployment.error(fault))
    }

    /// Leaves the queue, and passes on a grant that arrived in the meantime.
    fn leave_queue(&self, id: HolderId) {
        let Attempt {
            runtime,
            keys,
            terms,
            ..
        } = self.attempt;
        if runtime.is_closed() {
            // After a shutdown no thread does this in the background. If it fails, the place
            // expires.
            let until = Instant::now().after(runtime.deployment.command_timeout());
            let _ =
                runtime
                    .deployment
                    .call(keys.release(id.as_str().as_bytes()), until, Cap::Exempt);
            return;
        }
        let until = Instant::now().after(terms.ttl);
        runtime.undo(Undo::of_release(Arc::clone(keys), id, until));
    }

    /// Records a command without a reply, and returns how long to pause.
    ///
    /// Fails if the call must give up and no earlier refusal is the better result.
    fn handle_fault(&mut self, fault: Fault) -> Result<Duration, Error> {
        self.ticket
            .answers(|answers| answers.failed(Instant::now()));
        match self.state.pause_after_fault(fault) {
            // The deadline ends the wait, not this error.
            Err(error) if self.state.is_refusal_better(&error, || self.is_taken()) => {
                Ok(Duration::ZERO)
            }
            answer => answer,
        }
    }

    /// Sleeps while the place is in the queue; fails if Redis has been silent for too long.
    fn sleep(&self, until: Instant) -> Result<(), Error> {
        let now = Instant::now();
        if self.attempt.is_unreachable(now) {
            return Err(self.attempt.unreachable_for_others(now));
        }
        self.park(until.min(self.attempt.gives_up_at(now)));
        Ok(())
    }

    /// Sleeps until `until`, the deadline or a wake-up; no longer than the clock allows.
    fn park(&self, until: Instant) {
        let pause = nap(Instant::now(), until.min(self.deadline));
        self.ticket.parker().park_timeout(pause);
    }
}
