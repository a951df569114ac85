//! The ends of commands that an entry has asked for: the only place where they take effect.

use std::sync::Arc;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::holder_id::HolderId;
use crate::kernel::Context;
use crate::kernel::command::Listens;
use crate::kernel::entry::{CONTENDED_FOR, Grant, LockEntry, Receiver};
use crate::kernel::lease::LeaseState;
use crate::kernel::mutant::{Mutant, is_on};
use crate::kernel::pending::Proof;
use crate::kernel::request::{
    Asked, Confirming, Flight, How, Place, Request, RequestNo, RequestState, Sender, Serves,
};
use crate::kernel::waiter::{Failure, Outcome, Wait, WaiterNo};
use crate::protocol::answer::{Answer, KeyState};
use crate::protocol::place::{
    Refreshed, TokenBlock, provisional, provisional_of, refresh_every,
};
use crate::protocol::refusal::RefusedName;
use crate::queue::next_attempt::next_attempt;
use crate::redis::Fault;
use crate::wait_policy::{Backoff, RECONNECT, WaitPolicy, jittered};
use std::time::Duration;

/// The least time from a command to the refresh that the expiry of the lock makes due.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// Pauses between attempts without a queue, while messages do not arrive.
const UNSUBSCRIBED: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// The pause after a refusal that was caused by a command of this client that nobody owns.
const OWN_ID_PAUSE: Duration = Duration::from_millis(50);

/// What an answer means for the call whose thread sent the command.
#[derive(Debug, Default)]
pub(super) struct ForCaller {
    pub(super) outcome: Option<Outcome>,
    pub(super) was_refused: bool,
}

impl LockEntry {
    /// Applies the end of an acquiring command, whoever sent it.
    pub(super) fn answered(
        &mut self,
        asked: &Asked,
        end: Result<Answer, Fault>,
        sent: Instant,
        cx: &mut Context<'_>,
    ) -> ForCaller {
        let found = self.index_of(asked.no).filter(|n| {
            let flight = self.requests[*n].flight.as_ref();
            flight.is_some_and(|flight| flight.id == asked.id)
        });
        let Some(n) = found else {
            self.answered_late(asked, end, cx);
            return ForCaller::default();
        };
        let flight = self.requests[n].flight.take().expect("found by its flight");
        match self.requests[n].state {
            // The message was faster than the reply.
            RequestState::Won(_) => {
                if is_on(Mutant::UndoIsAlwaysWritten) && end.is_err() {
                    cx.fx.undo = Some(undo_of(&self.requests[n], &asked.id));
                }
                ForCaller {
                    outcome: self.end_won(n),
                    was_refused: false,
                }
            }
            RequestState::Confirming(_) if is_on(Mutant::LateAnswerUndoesConfirming) => {
                self.answered_late(asked, end, cx);
                ForCaller::default()
            }
            // The grant message has shown that the command has run: nothing else counts.
            RequestState::Confirming(_) => ForCaller::default(),
            RequestState::Sent => {
                let is_caller = matches!(flight.sender, Sender::Caller(_));
                let for_caller = self.apply(n, flight, end, sent, cx);
                if !is_caller && let Some(n) = self.index_of(asked.no) {
                    self.retire(n, cx);
                }
                for_caller
            }
            RequestState::Due(_) | RequestState::Queued(_) => {
                unreachable!("no command is under way then")
            }
        }
    }

    fn end_won(&mut self, n: usize) -> Option<Outcome> {
        match self.requests.remove(n).state {
            RequestState::Won(Some(lease)) => {
                let token = lease.run.first();
                Some(Outcome::Lease(lease, token))
            }
            _ => None,
        }
    }

    /// The request went on without this command, because the engine has ended it.
    fn answered_late(&mut self, asked: &Asked, end: Result<Answer, Fault>, cx: &mut Context<'_>) {
        if is_on(Mutant::LateAnswerIsIgnored) {
            return;
        }
        if self.holds(&asked.id) && !is_on(Mutant::WonIsForgotten) {
            return;
        }
        let proof = match end {
            Ok(Answer::Granted(_)) => Proof::AnyAnswer,
            Ok(Answer::Refused(_)) if asked.how == How::Enter => Proof::AnyAnswer,
            Err(fault) if !fault.may_have_run() => return,
            Ok(Answer::Refused(_)) => return,
            _ => Proof::KeySeen,
        };
        let cx_parts = (cx.now, &mut *cx.fx);
        (cx.kernel).undo(&asked.lock, &asked.id, asked.ttl, proof, cx_parts);
    }

    fn apply(
        &mut self,
        n: usize,
        flight: Flight,
        end: Result<Answer, Fault>,
        sent: Instant,
        cx: &mut Context<'_>,
    ) -> ForCaller {
        let is_caller = matches!(flight.sender, Sender::Caller(_));
        match end {
            Ok(Answer::Granted(tokens)) => {
                let first = *tokens.first().expect("every grant has a token");
                let tokens = TokenBlock {
                    first,
                    count: flight.tokens,
                };
                ForCaller {
                    outcome: self.granted_now(n, &flight, tokens, sent, cx),
                    was_refused: false,
                }
            }
            Ok(Answer::Refused(by)) => self.refused(n, &flight, by, sent, cx),
            Err(Fault::NotReplicated(error) | Fault::Rejected(error)) => {
                self.undo(&self.requests[n], &flight.id, Proof::AnyAnswer, cx);
                let failure = Failure::Rejected(error);
                ForCaller {
                    outcome: self.fail(n, is_caller, failure, cx),
                    was_refused: false,
                }
            }
            Err(fault) if !fault.may_have_run() => {
                cx.kernel.table.forget_id(&flight.id);
                self.not_answered(n, sent, fault, cx);
                ForCaller::default()
            }
            end => {
                let fault = end.err().unwrap_or_else(|| Fault::Unknown(unexpected()));
                self.undo(&self.requests[n], &flight.id, Proof::KeySeen, cx);
                if is_caller {
                    cx.fx.undo = Some(undo_of(&self.requests[n], &flight.id));
                }
                self.not_answered(n, sent, fault, cx);
                ForCaller::default()
            }
        }
    }

    /// The reply to the acquiring command grants the lock.
    fn granted_now(
        &mut self,
        n: usize,
        flight: &Flight,
        tokens: TokenBlock,
        sent: Instant,
        cx: &mut Context<'_>,
    ) -> Option<Outcome> {
        let is_caller = matches!(flight.sender, Sender::Caller(_));
        let receiver = match is_caller {
            true => Receiver::Caller,
            false => self.receiver(&self.requests[n]),
        };
        let is_closed = cx.kernel.is_closed() && !is_on(Mutant::ClosedClientGives);
        if receiver == Receiver::Nobody || is_closed {
            let request = self.requests.remove(n);
            self.undo(&request, &flight.id, Proof::AnyAnswer, cx);
            return is_caller.then_some(Outcome::Failed(Failure::Closed));
        }
        let asked = self.requests[n].terms;
        let terms = match is_caller {
            true => asked,
            false => self.receiver_terms(&self.requests[n]),
        };
        if !fits(&asked, &terms) {
            self.confirm_first(n, &flight.id, tokens, false, cx);
            return None;
        }
        let Some(lease) = LeaseState::acquired(sent, cx.now, &terms) else {
            // It has ended before its reply arrived.
            match is_on(Mutant::ExpiredGrantIsKept) {
                true => cx.kernel.table.forget_id(&flight.id),
                false => self.undo(&self.requests[n], &flight.id, Proof::AnyAnswer, cx),
            }
            if !is_on(Mutant::ExpiredGrantIsNoFailure) {
                self.note_silence(sent, Fault::Unknown(too_short()), cx);
            }
            self.due_after_failure(n, cx);
            return None;
        };
        self.last.answered(sent, cx.now);
        let request = self.requests.remove(n);
        let grant = Grant {
            id: flight.id.clone(),
            tokens,
            lease,
            terms,
            by_release: false,
        };
        let lease = self.hold(&request.lock, grant, cx);
        self.give(lease, receiver, cx)
    }

    /// A grant to a place, or one that is too old: a renewal must confirm it.
    pub(super) fn confirm_first(
        &mut self,
        n: usize,
        id: &HolderId,
        tokens: TokenBlock,
        by_release: bool,
        cx: &mut Context<'_>,
    ) {
        self.requests[n].state = RequestState::Confirming(Confirming {
            id: id.clone(),
            tokens,
            by_release,
            retry_at: cx.now,
            renewing: false,
        });
        self.touch(cx.now, cx.now);
    }

    /// The reply to the acquiring command refuses the lock.
    fn refused(
        &mut self,
        n: usize,
        flight: &Flight,
        by: RefusedName,
        sent: Instant,
        cx: &mut Context<'_>,
    ) -> ForCaller {
        let asked = self.requests[n].terms;
        let is_own_id = by.holder == flight.id.as_str().as_bytes();
        // A place can have been granted meanwhile, for the provisional time at most: the next
        // refresh finds that. Otherwise the command has run twice.
        let lasts = by.remaining.is_none_or(|left| left > provisional(asked.ttl));
        if is_own_id && (flight.how != How::Enter || lasts) {
            self.undo(&self.requests[n], &flight.id, Proof::KeySeen, cx);
            self.due_after_failure(n, cx);
            return ForCaller::default();
        }
        // An attempt for a deadline is made because the command of the line has no reply.
        let is_for_deadline = match self.requests[n].serves {
            Serves::One(no) => self.line.iter().any(|waiter| waiter.no == no),
            Serves::Line | Serves::Nobody => false,
        };
        if self.is_of_nobody(&by, is_for_deadline, cx) {
            return self.refused_by_nobody(n, flight, by.remaining, sent, cx);
        }
        let by = Arc::new(by);
        self.last.refused(sent, cx.now, Arc::clone(&by));
        self.contended_until = cx.now.after(CONTENDED_FOR);
        self.requests[n].failures = 0;
        self.requests[n].refusals += 1;
        if self.requests[n].once {
            return self.refused_once(n, flight, by, cx);
        }
        let used_up = self.count_refusal(self.requests[n].serves, sent, cx.now);
        if flight.how == How::Enter {
            self.queued(n, flight, sent, by.remaining, cx);
        } else {
            cx.kernel.table.forget_id(&flight.id);
            self.due_after_refusal(n, by.remaining, cx);
        }
        if let Some(no) = used_up {
            self.end_waiter(no, Outcome::Refused(Some(by)), cx);
            self.retire_own(no, cx);
        }
        ForCaller {
            outcome: None,
            was_refused: true,
        }
    }

    /// A command of this client that nobody owns has the lock: no refusal, because the lock is free
    /// once that command is undone, or somebody's once its reply is read.
    fn refused_by_nobody(
        &mut self,
        n: usize,
        flight: &Flight,
        remaining: Option<Duration>,
        sent: Instant,
        cx: &mut Context<'_>,
    ) -> ForCaller {
        self.last.answered(sent, cx.now);
        self.requests[n].failures = 0;
        if flight.how == How::Enter {
            self.queued(n, flight, sent, remaining, cx);
            return ForCaller::default();
        }
        cx.kernel.table.forget_id(&flight.id);
        let request = &mut self.requests[n];
        request.refusals += 1;
        let can_queue = request.lock.queue().is_some() && !request.once;
        let pause = if can_queue { Duration::ZERO } else { OWN_ID_PAUSE };
        self.set_due(n, cx.now.after(pause));
        ForCaller::default()
    }

    /// Returns whether a command of this client, which nobody here owns, caused a refusal.
    fn is_of_nobody(&self, by: &RefusedName, is_for_deadline: bool, cx: &Context<'_>) -> bool {
        if is_on(Mutant::OwnIdRefuses) {
            return false;
        }
        let is_abandoned = |request: &&Request| {
            let is_unanswered = matches!(request.state, RequestState::Sent);
            request.serves == Serves::Nobody || is_for_deadline && is_unanswered
        };
        let mut ids = self.requests.iter().filter(is_abandoned);
        let pending = cx.kernel.pending.lock();
        match by.names_holder() {
            true => {
                pending.has(&by.holder)
                    || ids.any(|it| it.id().is_some_and(|id| id.as_str().as_bytes() == by.holder))
            }
            false => {
                pending.has_unanswered(&self.name)
                    || ids.any(|it| it.serves == Serves::Nobody && it.flight.is_some())
            }
        }
    }

    /// The refusal of a call that leaves at its first one, or of an attempt for a deadline.
    fn refused_once(
        &mut self,
        n: usize,
        flight: &Flight,
        by: Arc<RefusedName>,
        cx: &mut Context<'_>,
    ) -> ForCaller {
        let request = self.requests.remove(n);
        cx.kernel.table.forget_id(&flight.id);
        let outcome = Outcome::Refused(Some(by));
        if let Sender::Caller(_) = flight.sender {
            return ForCaller {
                outcome: Some(outcome),
                was_refused: true,
            };
        }
        if let Serves::One(no) = request.serves
            && self.waiter(no).is_some_and(|waiter| waiter.wait == Wait::Once)
        {
            self.end_waiter(no, outcome, cx);
        }
        ForCaller::default()
    }

    /// The call has a place in the queue.
    fn queued(
        &mut self,
        n: usize,
        flight: &Flight,
        sent: Instant,
        remaining: Option<Duration>,
        cx: &mut Context<'_>,
    ) {
        let again = self.take_again(n);
        let at = match again {
            true => cx.now,
            false => self.refresh_at(n, sent, remaining, cx.now),
        };
        self.requests[n].state = RequestState::Queued(Place {
            id: flight.id.clone(),
            seen: sent,
            refresh_at: at,
            refreshing: false,
            listens: flight.listens,
        });
        self.touch_refresh(n, at);
    }

    pub(super) fn touch_refresh(&mut self, n: usize, at: Instant) {
        // A place lasts much longer than this: no sleep is cut short for it.
        let lasts = provisional(self.requests[n].terms.ttl);
        let slack = Duration::from_millis(100).min(lasts / 4);
        self.touch(at, at.after(slack));
    }

    /// Returns when a place is refreshed after a reply that says that it waits.
    fn refresh_at(
        &self,
        n: usize,
        sent: Instant,
        remaining: Option<Duration>,
        now: Instant,
    ) -> Instant {
        let request = &self.requests[n];
        let every = refresh_every(request.terms.ttl);
        if let Some(at) = self.backs_off_until(request.serves) {
            return at.min(sent.after(every));
        }
        let every = match self.is_listening {
            true => every,
            // No message announces a grant: only a refresh finds it.
            false => every / 4,
        };
        next_attempt(sent.after(every), now, remaining, sent.after(SHORTEST_PAUSE)).0
    }

    /// Returns when the call at the front wants the next command, if it waits by `Backoff` and no
    /// call behind it by `Wake`.
    fn backs_off_until(&self, serves: Serves) -> Option<Instant> {
        let waiter = match serves {
            Serves::Line => self.line.front(),
            Serves::One(no) => self.waiter(no),
            Serves::Nobody => None,
        }?;
        let backs_off = matches!(waiter.wait, Wait::Queue(WaitPolicy::Backoff(_)));
        (backs_off && !self.wakes(serves)).then_some(waiter.retry_at)
    }

    /// A call has parked behind its request: its policy decides when that asks again.
    pub(super) fn pace(&mut self, no: WaiterNo, cx: &mut Context<'_>) {
        for n in 0..self.requests.len() {
            let serves = self.requests[n].serves;
            if ![Serves::Line, Serves::One(no)].contains(&serves) {
                continue;
            }
            let wakes = self.wakes(serves);
            let until = self.backs_off_until(serves);
            match &mut self.requests[n].state {
                // Its place needs an inbox now.
                RequestState::Queued(place) if wakes && place.listens == Listens::No => {
                    place.refresh_at = cx.now;
                    self.requests[n].again = true;
                    self.touch(cx.now, cx.now);
                }
                RequestState::Queued(place) => {
                    place.refresh_at = until.map_or(place.refresh_at, |at| at.min(place.refresh_at));
                    let at = place.refresh_at;
                    self.touch_refresh(n, at);
                }
                RequestState::Due(at) if until.is_some_and(|until| *at < until) => {
                    *at = until.unwrap_or(*at);
                }
                _ => {}
            }
        }
    }

    /// The next command after a refusal without a place.
    fn due_after_refusal(&mut self, n: usize, remaining: Option<Duration>, cx: &mut Context<'_>) {
        let again = self.take_again(n);
        let request = &self.requests[n];
        let backstop = cx.kernel.limits.backstop;
        let at = match self.backs_off_until(request.serves) {
            Some(at) => at,
            None if again || request.lock.queue().is_some() => cx.now,
            None => {
                let pause = match self.is_listening {
                    true => jittered(backstop),
                    false => UNSUBSCRIBED.pause(request.refusals - 1).min(backstop),
                };
                next_attempt(cx.now.after(pause), cx.now, remaining, cx.now).0
            }
        };
        self.set_due(n, at);
    }

    /// Returns whether a wake-up came while a command was under way.
    fn take_again(&mut self, n: usize) -> bool {
        let again = std::mem::take(&mut self.requests[n].again);
        again && !is_on(Mutant::WakeUpIsForgotten)
    }

    fn set_due(&mut self, n: usize, at: Instant) {
        self.requests[n].state = RequestState::Due(at);
        self.touch(at, at);
    }

    /// Counts a refusal for the call that waits by `Backoff`. Returns its number after its last
    /// attempt.
    fn count_refusal(&mut self, serves: Serves, sent: Instant, now: Instant) -> Option<WaiterNo> {
        let waiter = match serves {
            Serves::Line => self.line.front_mut(),
            Serves::One(no) => self.own.iter_mut().find(|waiter| waiter.no == no),
            Serves::Nobody => None,
        };
        let waiter = waiter?;
        let Wait::Queue(WaitPolicy::Backoff(backoff)) = &waiter.wait else {
            return None;
        };
        // An earlier command was not its own attempt.
        if sent < waiter.retry_at {
            return None;
        }
        waiter.retry_at = now.after(backoff.pause(waiter.refusals));
        waiter.refusals += 1;
        let limit = backoff.limit()?;
        (waiter.refusals >= limit).then_some(waiter.no)
    }

    // ------------------------------------------------------------------ failures

    /// A command of a request got no reply, or did not run.
    fn not_answered(
        &mut self,
        n: usize,
        sent: Instant,
        fault: Fault,
        cx: &mut Context<'_>,
    ) {
        self.note_silence(sent, fault, cx);
        self.due_after_failure(n, cx);
    }

    /// Records that Redis has not answered: calls give up if that lasts.
    fn note_silence(&mut self, sent: Instant, fault: Fault, cx: &Context<'_>) {
        let cause = match fault {
            Fault::NotRun(cause) | Fault::Unknown(cause) => Some(cause),
            Fault::Open(_) | Fault::NotReplicated(_) | Fault::Rejected(_) => None,
        };
        self.last.failed(sent, cause);
        let give_up = cx.kernel.limits.unreachable_for;
        if let Some(since) = self.last.silent_since {
            self.touch(since.after(give_up), since.after(give_up));
        }
    }

    pub(super) fn due_after_failure(&mut self, n: usize, cx: &mut Context<'_>) {
        let request = &mut self.requests[n];
        // A pooled connection that had died unnoticed costs one attempt and no pause.
        let pause = match request.failures {
            0 => Duration::ZERO,
            failures => RECONNECT.pause(failures - 1),
        };
        request.failures = request.failures.saturating_add(1);
        request.again = false;
        self.set_due(n, cx.now.after(pause));
    }

    /// A command was rejected for a lasting reason: the call that it was sent for fails. Returns the
    /// outcome if that is the caller.
    fn fail(
        &mut self,
        n: usize,
        is_caller: bool,
        failure: Failure,
        cx: &mut Context<'_>,
    ) -> Option<Outcome> {
        self.requests[n].failures = self.requests[n].failures.max(1);
        self.due_after_failure(n, cx);
        let outcome = Outcome::Failed(failure);
        if is_caller {
            return Some(outcome);
        }
        match self.receiver(&self.requests[n]) {
            Receiver::Waiter(no) => {
                self.end_waiter(no, outcome, cx);
                self.retire_of(no, cx);
            }
            Receiver::Caller | Receiver::Nobody => self.retire(n, cx),
        }
        None
    }

    // ------------------------------------------------------------------ places and grants

    /// A place was granted the lock; validity counts from `seen`, never from a refresh.
    pub(super) fn grant(
        &mut self,
        n: usize,
        id: &HolderId,
        tokens: TokenBlock,
        seen: Instant,
        cx: &mut Context<'_>,
    ) {
        self.contended_until = cx.now.after(CONTENDED_FOR);
        self.last.silent_since = None;
        self.requests[n].failures = 0;
        let receiver = self.receiver(&self.requests[n]);
        if receiver == Receiver::Nobody || cx.kernel.is_closed() {
            if self.requests[n].caller().is_some() {
                // The client is closed: the end of the caller's command gives it back.
                return;
            }
            // The grant shows that its acquiring command has run.
            let request = self.requests.remove(n);
            self.undo(&request, id, Proof::AnyAnswer, cx);
            return;
        }
        let asked = self.requests[n].terms;
        let terms = self.receiver_terms(&self.requests[n]);
        let lasts = provisional_of(refresh_every(asked.ttl)).min(asked.ttl);
        let lease = LeaseState::granted(seen, cx.now, lasts, &terms);
        match lease.filter(|_| fits(&asked, &terms) && terms.replicas.is_none()) {
            Some(lease) => {
                let grant = Grant {
                    id: id.clone(),
                    tokens,
                    lease,
                    terms,
                    by_release: true,
                };
                self.win(n, grant, cx);
            }
            None => self.confirm_first(n, id, tokens, true, cx),
        }
    }

    /// A request has got its lease. It stays, as `Won`, until its acquiring command has ended.
    fn win(&mut self, n: usize, grant: Grant, cx: &mut Context<'_>) {
        let receiver = self.receiver(&self.requests[n]);
        let lock = Arc::clone(&self.requests[n].lock);
        let lease = self.hold(&lock, grant, cx);
        if receiver == Receiver::Caller {
            self.requests[n].state = RequestState::Won(Some(lease));
            return;
        }
        if self.requests[n].flight.is_some() && !is_on(Mutant::WonIsForgotten) {
            self.requests[n].state = RequestState::Won(None);
            self.requests[n].serves = Serves::Nobody;
        } else {
            self.requests.remove(n);
        }
        self.give(lease, receiver, cx);
    }

    /// Applies the end of a refresh.
    pub(super) fn refreshed(
        &mut self,
        of: &[(RequestNo, HolderId)],
        end: Result<Answer, Fault>,
        sent: Instant,
        cx: &mut Context<'_>,
    ) {
        let (found, by) = match end {
            Ok(Answer::Places(found, by)) if found.len() == of.len() => (found, Arc::new(by)),
            end => {
                let fault = end.err().unwrap_or_else(|| Fault::Unknown(unexpected()));
                return self.not_refreshed(of, &fault, sent, cx);
            }
        };
        self.last.answered(sent, cx.now);
        let waits = found.iter().any(|place| matches!(place, Refreshed::Waiting(_)));
        let counts = is_on(Mutant::OwnIdRefusesPlaces);
        if waits && (counts || !self.is_of_nobody(&by, false, cx)) {
            self.last.refused(sent, cx.now, Arc::clone(&by));
            self.contended_until = cx.now.after(CONTENDED_FOR);
        }
        for ((no, id), found) in of.iter().zip(found) {
            // A place that was granted or given up in the meantime is left alone.
            let Some((n, seen)) = self.place(*no, id) else {
                continue;
            };
            self.requests[n].failures = 0;
            match found {
                Refreshed::Waiting(remaining) => self.still_waits(n, sent, remaining, &by, cx),
                Refreshed::Granted(token) => {
                    let from_refresh = is_on(Mutant::GrantCountsFromRefresh);
                    let seen = if from_refresh { sent } else { seen };
                    self.grant(n, id, TokenBlock::one(token), seen, cx);
                }
                Refreshed::Gone => {
                    cx.kernel.table.forget_id(id);
                    self.set_due(n, cx.now);
                    self.retire(n, cx);
                }
            }
        }
    }

    /// Returns the request that has this place, and when the place was last seen to wait.
    fn place(&self, no: RequestNo, id: &HolderId) -> Option<(usize, Instant)> {
        let n = self.index_of(no)?;
        match &self.requests[n].state {
            RequestState::Queued(place) if place.id == *id => Some((n, place.seen)),
            _ => None,
        }
    }

    fn still_waits(
        &mut self,
        n: usize,
        sent: Instant,
        remaining: Option<Duration>,
        by: &Arc<RefusedName>,
        cx: &mut Context<'_>,
    ) {
        let no = self.requests[n].no;
        if let RequestState::Queued(place) = &mut self.requests[n].state {
            place.seen = place.seen.max(sent);
            place.refreshing = false;
        }
        if let Some(no) = self.count_refusal(self.requests[n].serves, sent, cx.now) {
            self.end_waiter(no, Outcome::Refused(Some(Arc::clone(by))), cx);
            self.retire_of(no, cx);
        }
        // That may have ended the last call which it served.
        let Some(n) = self.index_of(no) else {
            return;
        };
        let again = self.take_again(n);
        let at = match again {
            true => cx.now,
            false => self.refresh_at(n, sent, remaining, cx.now),
        };
        if let RequestState::Queued(place) = &mut self.requests[n].state {
            place.refresh_at = at;
        }
        self.touch_refresh(n, at);
    }

    fn not_refreshed(
        &mut self,
        of: &[(RequestNo, HolderId)],
        fault: &Fault,
        sent: Instant,
        cx: &mut Context<'_>,
    ) {
        for (no, id) in of {
            let Some((n, _)) = self.place(*no, id) else {
                continue;
            };
            if let Fault::Rejected(error) = fault {
                let failure = Failure::Rejected(error.clone());
                self.undo(&self.requests[n], id, Proof::AnyAnswer, cx);
                self.fail(n, false, failure, cx);
                continue;
            }
            let failures = self.requests[n].failures;
            self.requests[n].failures = failures.saturating_add(1);
            let pause = match failures {
                0 => Duration::ZERO,
                failures => RECONNECT.pause(failures - 1),
            };
            let at = cx.now.after(pause);
            if let RequestState::Queued(place) = &mut self.requests[n].state {
                place.refreshing = false;
                place.refresh_at = at;
            }
            self.touch(at, at);
            self.note_silence(sent, fault.clone(), cx);
        }
    }

    /// Applies the end of a renewal that confirms a grant under `terms`.
    pub(super) fn confirmed(
        &mut self,
        (no, id): (RequestNo, &HolderId),
        terms: &LeaseTerms,
        end: Result<Answer, Fault>,
        sent: Instant,
        cx: &mut Context<'_>,
    ) {
        let Some(n) = self.index_of(no) else {
            return;
        };
        let (tokens, by_release) = match &self.requests[n].state {
            RequestState::Confirming(grant) if grant.id == *id => (grant.tokens, grant.by_release),
            _ => return,
        };
        match (end.as_ref().ok().and_then(Answer::key_state), end) {
            (Some(KeyState::Ours), _) => {
                if cx.kernel.is_closed() {
                    // Its caller's reply ends it.
                    return;
                }
                let wanted = self.receiver_terms(&self.requests[n]);
                if !fits(terms, &wanted) {
                    return self.confirm_first(n, id, tokens, by_release, cx);
                }
                let Some(lease) = LeaseState::acquired(sent, cx.now, terms) else {
                    // The reply took as long as the lease.
                    self.note_silence(sent, Fault::Unknown(too_short()), cx);
                    return self.confirm_first(n, id, tokens, by_release, cx);
                };
                let grant = Grant {
                    id: id.clone(),
                    tokens,
                    lease,
                    terms: *terms,
                    by_release,
                };
                self.win(n, grant, cx);
            }
            (Some(KeyState::Gone | KeyState::Foreign), _) => {
                self.last.answered(sent, cx.now);
                if self.requests[n].flight.is_some() {
                    // Its acquiring command is still under way: that ends it.
                    self.requests[n].state = RequestState::Sent;
                    return;
                }
                cx.kernel.table.forget_id(id);
                self.set_due(n, cx.now);
                self.retire(n, cx);
            }
            (None, Err(Fault::NotReplicated(error) | Fault::Rejected(error))) => {
                if self.requests[n].caller().is_none() {
                    self.requests[n].flight = None;
                    self.undo(&self.requests[n], id, Proof::AnyAnswer, cx);
                    self.fail(n, false, Failure::Rejected(error), cx);
                } else {
                    self.retry_confirming(n, cx);
                }
            }
            (None, end) => {
                let fault = end.err().unwrap_or_else(|| Fault::Unknown(unexpected()));
                self.note_silence(sent, fault, cx);
                self.retry_confirming(n, cx);
            }
        }
    }

    fn retry_confirming(&mut self, n: usize, cx: &mut Context<'_>) {
        let failures = self.requests[n].failures;
        self.requests[n].failures = failures.saturating_add(1);
        let at = cx.now.after(RECONNECT.pause(failures));
        if let RequestState::Confirming(grant) = &mut self.requests[n].state {
            grant.renewing = false;
            grant.retry_at = at;
        }
        self.touch(at, at);
    }

    /// The engine ends the commands of callers whose threads stand still.
    pub(super) fn end_overdue(&mut self, cx: &mut Context<'_>) {
        if is_on(Mutant::StoppedCallerBlocks) {
            return;
        }
        for n in (0..self.requests.len()).rev() {
            let request = &self.requests[n];
            if matches!(request.state, RequestState::Won(_)) || request.caller().is_none() {
                continue;
            }
            let flight = request.flight.as_ref().expect("its caller sent one");
            let at = self.caller_overdue_at(flight.sent, cx);
            if at > cx.now {
                continue;
            }
            let flight = self.requests[n].flight.take().expect("as above");
            if let RequestState::Sent = self.requests[n].state {
                self.undo(&self.requests[n], &flight.id, Proof::KeySeen, cx);
                self.last.failed(flight.sent, None);
                self.due_after_failure(n, cx);
            }
            self.retire(n, cx);
        }
    }
}

/// Returns whether a lease that was asked for on one call's terms fits another call.
fn fits(asked: &LeaseTerms, wanted: &LeaseTerms) -> bool {
    asked.ttl == wanted.ttl
        && asked.renew_every == wanted.renew_every
        && asked.replicas == wanted.replicas
}

/// Why a call fails whose leases end before the replies that grant them.
fn too_short() -> crate::error::Cause {
    crate::error::Cause::text("the reply took as long as the lease: ttl or max_hold too short")
}

fn unexpected() -> crate::error::Cause {
    crate::error::Cause::text("unexpected reply to a script")
}

fn undo_of(request: &Request, id: &HolderId) -> crate::kernel::Command {
    let ids = vec![id.clone()];
    crate::kernel::Command::new(&request.lock, crate::kernel::command::What::Undo { ids })
}
