//! The place of a set, in the queue of one of its names at a time, and the command that asks for
//! all names.

use std::sync::Arc;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::lock::attempt::{Attempt, Attempted};
use crate::lock::place::{inbox, leave, new_place, refresh_pace, waiting_reply};
use crate::logging;
use crate::protocol::answer::Answer;
use crate::protocol::primitive::{AcquireSet, PartOfSet, SetQueues};
use crate::queue::sets::SetTicket;
use crate::redis::Fault;
use crate::wait_policy::WaitPolicy;

/// A set's place in a queue in Redis, once it has one. Dropping it leaves the queue and releases
/// the names that the set keeps.
pub(crate) struct SetPlace<'a> {
    attempt: &'a Attempt<'a>,
    queues: &'a dyn SetQueues,
    pub(crate) ticket: SetTicket<'a>,
}

impl<'a> SetPlace<'a> {
    pub(crate) fn new(attempt: &'a Attempt<'a>, queues: &'a dyn SetQueues) -> Self {
        let pace = refresh_pace(attempt);
        Self {
            attempt,
            queues,
            ticket: attempt.runtime.waiters.sets.join(attempt.keys, pace),
        }
    }

    /// Asks for all names: acquires them, joins the queue of one, or refreshes the place there.
    ///
    /// Also returns when the command was sent.
    pub(crate) fn ask(&self) -> Result<(Attempted, Instant), Fault> {
        let Attempt { runtime, keys, .. } = self.attempt;
        let fresh = || HolderId::fresh(&runtime.config.owner);
        let (id, has, keeps) = self.ticket.begin_call(Instant::now(), fresh);
        logging::trace!(
            name:% = keys, holder:% = id.as_str(); "ask for {keys} as {}", id.as_str()
        );
        runtime.meters.counters.attempts.up();
        match (self.send(&id, has, keeps), has) {
            (Ok((Answer::Queued(refusal, kept), sent)), _) => {
                let reply = waiting_reply(self.attempt, sent, Instant::now());
                let has = PartOfSet {
                    waits_for: refusal.name,
                    kept,
                };
                self.ticket.note_queued(has, reply, refusal.remaining);
                Ok((Attempted::Refused(Arc::new(refusal)), sent))
            }
            (Ok((Answer::Granted(tokens), sent)), _) => {
                self.ticket.forget_id();
                let hold = self.attempt.hold_granted(id, tokens, sent, None, 1)?;
                Ok((Attempted::Acquired(hold), sent))
            }
            // The set's place has expired, or a name that it kept was deleted. It has nothing, and
            // starts over with a new id.
            (Ok((Answer::Gone, _)), Some(_)) => {
                self.ticket.forget_id();
                self.ask()
            }
            (Ok(_), _) => {
                self.ticket.forget_id();
                Err(self.attempt.undo_unread(keys, &id))
            }
            // The command did not run, so the set keeps its id and its place.
            (Err(fault @ (Fault::NotRun(_) | Fault::Open(_))), _) => Err(fault),
            (Err(fault), _) => {
                // A rejected command can leave the set its place and some names. After
                // `Fault::Unknown`, `send` has already undone the command.
                let had_place = self.ticket.forget_id().is_some();
                if had_place && matches!(fault, Fault::Rejected(_)) {
                    leave(self.attempt, self.attempt.keys, id);
                }
                Err(fault)
            }
        }
    }

    fn send(
        &self,
        id: &HolderId,
        has: Option<PartOfSet>,
        keeps: bool,
    ) -> Result<(Answer, Instant), Fault> {
        let attempt = self.attempt;
        let inbox = inbox(attempt, attempt.settings.wait == WaitPolicy::Wake);
        let rest = self.queues.rest(keeps, new_place(attempt, &inbox));
        let call = self.queues.acquire(AcquireSet {
            id,
            ttl: attempt.terms.ttl,
            has,
            rest: &rest,
        });
        attempt.send(call, attempt.keys, id, None)
    }
}

impl Drop for SetPlace<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.ticket.forget_id() {
            leave(self.attempt, self.attempt.keys, id);
        }
    }
}
