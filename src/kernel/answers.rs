//! The ends of the acquiring commands that a line has asked for. Refusals are in `refusals.rs`, the
//! ends of refreshes and confirmations in `places.rs`.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::error::Cause;
use crate::holder_id::HolderId;
use crate::kernel::command::{Command, What};
use crate::kernel::event::{IdFate, KnownHolder, LineEvent};
use crate::kernel::failure::Failure;
use crate::kernel::fault::{Fault, unexpected};
use crate::kernel::held::{Grant, HeldLease};
use crate::kernel::holder::Taker;
use crate::kernel::line::Line;
use crate::kernel::request::{Asked, Flight, Request, RequestNo, RequestState, Sender, Serves};
use crate::kernel::requests::Receiver;
use crate::kernel::undo::{Counts, Proof};
use crate::kernel::waiter::{Outcome, Wait};
use crate::lease::state::LeaseState;
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::Answer;
use crate::protocol::place::TokenBlock;
use crate::protocol::primitive::Primitive;
use crate::token::FencingToken;

/// The longest pause while a breaker is open: the answer to another command closes it.
const OPEN_PAUSE: Duration = Duration::from_millis(250);

/// What an answer means for the call whose thread sent the command.
#[derive(Debug)]
pub(super) enum ForCaller {
    /// It asks again, or waits.
    GoesOn,
    /// It holds the lease, under this token.
    Holds(Arc<HeldLease>, FencingToken),
    /// If that is a lease, it has still to take it.
    Over(Outcome),
    /// It is over if there is an outcome.
    Refused(Option<Outcome>),
    /// The engine had ended the command, which got no reply: its undo can be written behind it.
    IsUndoneLate,
}

/// The end of an acquiring command, and what its entry knows with it.
pub(super) struct AcquireEnd<'a> {
    pub(super) end: Result<Answer, Fault>,
    /// When the command was sent.
    pub(super) sent: Instant,
    /// The call whose thread reads it.
    pub(super) taker: Option<Taker<'a>>,
    /// The holder that it names.
    pub(super) known: KnownHolder,
    /// The id of the command has a lease.
    pub(super) is_held: bool,
}

/// The meaning of a command's end.
#[expect(clippy::large_enum_variant, reason = "it is moved once, at once")]
pub(super) enum Applied<'a> {
    ForCaller(ForCaller),
    Won(Win<'a>),
}

/// A lock that was granted: its lease begins, for this receiver.
pub(super) struct Win<'a> {
    pub(super) lock: Arc<dyn Primitive>,
    pub(super) grant: Grant<'a>,
    pub(super) receiver: Receiver,
    /// Its request, unless that has ended.
    pub(super) request: Option<RequestNo>,
}

impl From<ForCaller> for Applied<'_> {
    fn from(of: ForCaller) -> Self {
        Self::ForCaller(of)
    }
}

impl ForCaller {
    fn of(outcome: Option<Outcome>) -> Self {
        outcome.map_or(Self::GoesOn, Self::Over)
    }
}

impl Line {
    /// Applies the end of an acquiring command, whoever sent it.
    pub(super) fn answered<'t>(
        &mut self,
        asked: &Asked,
        it: AcquireEnd<'t>,
        ev: &mut LineEvent<'_>,
    ) -> Applied<'t> {
        let found = self.requests.existing(asked.no).filter(|n| {
            let flight = self.requests[*n].flight.as_ref();
            flight.is_some_and(|flight| flight.id == asked.id)
        });
        let Some(n) = found else {
            let (is_unanswered, sent) = (it.end.is_err(), it.sent);
            if let Err(fault) = &it.end
                && sent >= self.last.heard()
            {
                // The engine could only say that nothing came. This call may still report why.
                self.last.failed(sent, ev.now, fault.clone());
            }
            let is_undone = self.answered_late(asked, it, ev) && is_unanswered;
            return if is_undone {
                ForCaller::IsUndoneLate.into()
            } else {
                ForCaller::GoesOn.into()
            };
        };
        let flight = self.requests.change(n).flight.take();
        let flight = flight.expect("the request was found by its flight");
        match self.requests[n].state {
            // The message was faster than the reply.
            RequestState::Won(_) => {
                if is_on(Mutant::UndoIsAlwaysWritten) && it.end.is_err() {
                    ev.fx.undo = Some(undo_of(&self.requests[n].lock, &asked.id));
                }
                let outcome = self.end_won(n);
                // The lease may have ended since, and a proxy may have run the command twice.
                self.answered_late(asked, it, ev);
                ForCaller::of(outcome).into()
            }
            RequestState::Confirming(_) if is_on(Mutant::LateAnswerUndoesConfirming) => {
                self.answered_late(asked, it, ev);
                ForCaller::GoesOn.into()
            }
            // The grant message has shown that the command has run: nothing else counts.
            RequestState::Confirming(_) => ForCaller::GoesOn.into(),
            RequestState::Sent => {
                let is_caller = matches!(flight.sender, Sender::Caller(_));
                let ended = self.apply(n, flight, it, ev);
                if !is_caller && self.requests.existing(asked.no).is_some() {
                    self.end_part(asked.no, ev);
                }
                if !is_caller && let Some(n) = self.requests.existing(asked.no) {
                    self.retire(n, ev);
                }
                ended
            }
            RequestState::Due(_) | RequestState::Queued(_) => {
                unreachable!("a request has no flight in these states")
            }
        }
    }

    fn end_won(&mut self, n: RequestNo) -> Option<Outcome> {
        match self.requests.remove(n).state {
            RequestState::Won(Some(lease)) => {
                let token = lease.run.first();
                Some(Outcome::Lease(lease, token))
            }
            _ => None,
        }
    }

    /// The request went on without this command, because the engine has ended it. Returns whether
    /// it is undone.
    fn answered_late(&mut self, asked: &Asked, it: AcquireEnd<'_>, ev: &mut LineEvent<'_>) -> bool {
        if it.is_held && !is_on(Mutant::WonIsForgotten) {
            return false;
        }
        // Its grant message came while its caller stood still: it becomes a lease.
        let is_confirming = |request: &Request| {
            matches!(request.state, RequestState::Confirming(_)) && request.id() == Some(&asked.id)
        };
        if self.requests.get(asked.no).is_some_and(is_confirming)
            && !is_on(Mutant::LateAnswerUndoesConfirming)
        {
            return false;
        }
        let proof = match it.end {
            Ok(Answer::Granted(_)) => Proof::AnyAnswer,
            Ok(Answer::Refused(_)) if asked.attempt.enters() => Proof::AnyAnswer,
            Err(fault) if !fault.may_have_run() => {
                ev.forget_attempt(&asked.id);
                return false;
            }
            Ok(Answer::Refused(_) | Answer::Busy { .. } | Answer::Skipped) => return false,
            _ => Proof::KeySeen,
        };
        ev.ids.push(IdFate::ToUndo {
            lock: Arc::clone(&asked.lock),
            id: asked.id.clone(),
            ttl: asked.ttl,
            ends_by: proof,
            counts: Counts::Lease,
        });
        true
    }

    fn apply<'t>(
        &mut self,
        n: RequestNo,
        flight: Flight,
        it: AcquireEnd<'t>,
        ev: &mut LineEvent<'_>,
    ) -> Applied<'t> {
        let sent = it.sent;
        let is_caller = matches!(flight.sender, Sender::Caller(_));
        let for_caller = match it.end {
            Ok(Answer::Granted(first)) => {
                let tokens = TokenBlock {
                    first,
                    count: flight.tokens,
                };
                return self.granted_now(n, (&flight, it.taker), tokens, sent, ev);
            }
            Ok(Answer::Refused(by)) => self.refused(n, &flight, by, (sent, it.known), ev),
            Ok(Answer::Skipped) => self.skipped(n, &flight, sent, ev),
            Ok(Answer::Busy { pause, cause }) => {
                self.busy(n, &flight, (pause, cause), sent, ev);
                ForCaller::GoesOn
            }
            Err(Fault::NotReplicated(error)) => {
                ev.undo(&self.requests[n], &flight.id, Proof::AnyAnswer);
                ForCaller::of(self.fail(n, is_caller, Failure::Rejected(error), ev))
            }
            Err(Fault::Rejected(error)) => {
                // It has not run, but for a place that was made before a grant to another failed.
                if flight.attempt.enters() && !is_on(Mutant::RejectedEnterIsForgotten) {
                    ev.undo(&self.requests[n], &flight.id, Proof::AnyAnswer)
                } else {
                    ev.forget(&flight.id)
                }
                ForCaller::of(self.fail(n, is_caller, Failure::Rejected(error), ev))
            }
            Err(fault) if !fault.may_have_run() => {
                ev.forget_attempt(&flight.id);
                ForCaller::of(self.not_answered(n, is_caller, sent, fault, ev))
            }
            end => {
                let fault = end.err().unwrap_or_else(|| Fault::Unknown(unexpected()));
                if is_on(Mutant::UnansweredIsForgotten) {
                    ev.forget(&flight.id)
                } else {
                    ev.undo(&self.requests[n], &flight.id, Proof::KeySeen)
                }
                if is_caller {
                    ev.fx.undo = Some(undo_of(&self.requests[n].lock, &flight.id));
                }
                ForCaller::of(self.not_answered(n, is_caller, sent, fault, ev))
            }
        };
        for_caller.into()
    }

    /// The reply to the acquiring command grants the lock.
    fn granted_now<'t>(
        &mut self,
        n: RequestNo,
        (flight, taker): (&Flight, Option<Taker<'t>>),
        tokens: TokenBlock,
        sent: Instant,
        ev: &mut LineEvent<'_>,
    ) -> Applied<'t> {
        let is_caller = matches!(flight.sender, Sender::Caller(_));
        let receiver = if is_caller {
            Receiver::Caller
        } else {
            self.receiver(&self.requests[n])
        };
        let is_closed = ev.is_closed && !is_on(Mutant::ClosedClientGives);
        if receiver == Receiver::Nobody || is_closed {
            let request = self.requests.remove(n);
            ev.undo(&request, &flight.id, Proof::AnyAnswer);
            let outcome = is_caller.then_some(Outcome::Failed(Failure::Closed));
            return ForCaller::of(outcome).into();
        }
        let asked = self.requests[n].terms;
        let terms = if is_caller {
            asked
        } else {
            self.receiver_terms(&self.requests[n])
        };
        if !fits(&asked, &terms) {
            // A renewal on the terms of its receiver confirms it.
            self.confirm_first(n, &flight.id, tokens, false, ev);
            return ForCaller::GoesOn.into();
        }
        let from = if is_on(Mutant::GrantCountsFromReply) {
            ev.now
        } else {
            sent
        };
        let Some(mut lease) = LeaseState::acquired(from, ev.now, &untaken(&terms)) else {
            self.expired_grant(n, flight, sent, ev);
            return ForCaller::GoesOn.into();
        };
        lease.may_last(asked.ttl);
        self.last.answered(sent, ev.now);
        self.count_wake(n, receiver, ev);
        let request = self.requests.remove(n);
        let grant = Grant {
            id: flight.id.clone(),
            tokens,
            lease,
            terms,
            in_queue: false,
            part: request.part.map(|part| part.terms.part),
            taker,
        };
        if flight.attempt.enters() {
            ev.forget(&flight.id);
        }
        Applied::Won(Win {
            lock: request.lock,
            grant,
            receiver,
            request: None,
        })
    }

    /// Counts the wake-up of a call whose request was granted the lock after a message.
    pub(super) fn count_wake(&mut self, n: RequestNo, receiver: Receiver, ev: &mut LineEvent<'_>) {
        let woken = std::mem::take(&mut self.requests.change(n).woken);
        if woken && matches!(receiver, Receiver::Waiter(_)) {
            ev.fx.wakes += 1;
        }
    }

    /// A lease has begun that a request had won.
    pub(super) fn won(
        &mut self,
        n: Option<RequestNo>,
        receiver: Receiver,
        lease: &Arc<HeldLease>,
        ev: &mut LineEvent<'_>,
    ) {
        let no = match receiver {
            Receiver::Waiter(no) => no,
            Receiver::Caller | Receiver::Nobody => {
                if let Some(n) = n {
                    let lease = Some(Arc::clone(lease));
                    self.requests.change(n).state = RequestState::Won(lease);
                }
                return;
            }
        };
        if let Some(n) = n {
            if self.requests[n].flight.is_some() && !is_on(Mutant::WonIsForgotten) {
                let mut request = self.requests.change(n);
                request.state = RequestState::Won(None);
                request.serves = Serves::Nobody;
            } else {
                self.requests.remove(n);
            }
        }
        let token = lease.run.first();
        self.end_waiter(no, Outcome::Lease(Arc::clone(lease), token), ev);
        self.retire_of(no, ev);
    }

    /// A lease has ended before the reply arrived that grants it.
    fn expired_grant(
        &mut self,
        n: RequestNo,
        flight: &Flight,
        sent: Instant,
        ev: &mut LineEvent<'_>,
    ) {
        if is_on(Mutant::ExpiredGrantIsKept) {
            ev.forget(&flight.id)
        } else {
            ev.undo(&self.requests[n], &flight.id, Proof::AnyAnswer)
        }
        if !is_on(Mutant::ExpiredGrantIsNoFailure) {
            self.note_silence(sent, Fault::Unknown(too_short()), ev);
        }
        self.due_after_failure(n, ev);
    }

    /// The part before was not granted, so Redis says nothing about this lock.
    fn skipped(
        &mut self,
        n: RequestNo,
        flight: &Flight,
        sent: Instant,
        ev: &mut LineEvent<'_>,
    ) -> ForCaller {
        self.last.answered(sent, ev.now);
        ev.forget(&flight.id);
        self.set_due(n, ev.now);
        ForCaller::GoesOn
    }

    // ------------------------------------------------------------------ failures

    /// A command of a request got no reply, or did not run. Returns the outcome of its caller if
    /// that waits for nothing more.
    pub(super) fn not_answered(
        &mut self,
        n: RequestNo,
        is_caller: bool,
        sent: Instant,
        fault: Fault,
        ev: &mut LineEvent<'_>,
    ) -> Option<Outcome> {
        let open = match &fault {
            Fault::Open(open) => Some(open.clone()),
            _ => None,
        };
        let start = self.once_since(n, is_caller);
        self.note_silence(sent, fault, ev);
        let Some(open) = open else {
            self.due_after_failure(n, ev);
            return None;
        };
        if let Some(start) = start {
            let failure = match self.requests[n].failures {
                // Whatever else the client asks about the name: nothing was sent for this call.
                0 => Failure::Open {
                    open,
                    since: None,
                    has_sent: false,
                },
                _ => self.failure(start),
            };
            return self.fail(n, is_caller, failure, ev);
        }
        self.due_after_failure(n, ev);
        self.set_due(n, ev.now.after(open.retry_in.min(OPEN_PAUSE)));
        None
    }

    /// Returns when the call began that a request serves, if that waits for its first reply only.
    fn once_since(&self, n: RequestNo, is_caller: bool) -> Option<Instant> {
        let request = &self.requests[n];
        match request.serves {
            _ if is_caller => request.once.then_some(request.since),
            Serves::One(no) => {
                let waiter = self.waiters.get(no);
                let waiter = waiter.filter(|waiter| waiter.wait == Wait::Once);
                waiter.map(|waiter| waiter.start)
            }
            Serves::Line | Serves::Nobody => None,
        }
    }

    /// Records that Redis has not answered: calls give up if that lasts.
    pub(super) fn note_silence(&mut self, sent: Instant, fault: Fault, ev: &LineEvent<'_>) {
        self.last.failed(sent, ev.now, fault);
        let give_up = ev.limits.unreachable_for;
        let at = self.last.gives_up_at(Instant::START, None, give_up);
        self.touch(at, at);
    }

    /// What a command that nobody owned had taken is released: the attempts that it refused are
    /// due.
    pub(super) fn undone(&mut self, ev: &mut LineEvent<'_>) {
        for n in self.requests.to_retry() {
            if let RequestState::Due(at) = self.requests[n].state
                && at > ev.now
            {
                // Calls that each hold a part of a lock would all ask in the same moment again.
                let pauses_until = self.requests[n].busy.map_or(ev.now, |busy| busy.until);
                self.set_due(n, at.min(pauses_until.max(ev.now)));
            }
        }
    }

    pub(super) fn due_after_failure(&mut self, n: RequestNo, ev: &mut LineEvent<'_>) {
        let mut request = self.requests.change(n);
        request.again = Instant::NEVER;
        let pause = request.pause_after_failure();
        drop(request);
        self.set_due(n, ev.now.after(pause));
    }

    /// The call fails that a command was sent for: it was rejected for a lasting reason, the
    /// breaker is open, or nobody was known to have the lock for too long. Returns the outcome if
    /// that is the caller.
    pub(super) fn fail(
        &mut self,
        n: RequestNo,
        is_caller: bool,
        failure: Failure,
        ev: &mut LineEvent<'_>,
    ) -> Option<Outcome> {
        let mut request = self.requests.change(n);
        request.failures = request.failures.max(1);
        drop(request);
        self.due_after_failure(n, ev);
        let outcome = Outcome::Failed(failure);
        if is_caller {
            // The next call must not wait behind it.
            self.retire(n, ev);
            return Some(outcome);
        }
        match self.receiver(&self.requests[n]) {
            Receiver::Waiter(no) => {
                self.end_waiter(no, outcome, ev);
                self.retire_of(no, ev);
            }
            Receiver::Caller | Receiver::Nobody => self.retire(n, ev),
        }
        None
    }
}

/// Returns whether a lease that was asked for on one call's terms is enough for another call.
pub(super) fn fits(asked: &LeaseTerms, wanted: &LeaseTerms) -> bool {
    asked.ttl >= wanted.ttl && asked.replicas == wanted.replicas
}

/// Returns the terms of a lease that no call has taken yet: its `max_hold` counts from then on.
pub(super) fn untaken(terms: &LeaseTerms) -> LeaseTerms {
    LeaseTerms {
        max_hold: Duration::MAX,
        ..*terms
    }
}

/// Why a call fails whose leases end before the replies that grant them.
pub(super) fn too_short() -> Cause {
    Cause::text("the reply took as long as the lease: ttl or max_hold too short")
}

pub(super) fn undo_of(lock: &Arc<dyn Primitive>, id: &HolderId) -> Command {
    let ids = vec![id.clone()];
    Command::new(lock, What::Undo { ids })
}
