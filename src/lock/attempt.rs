//! One acquiring command: its verdict, its undo, and how long to retry without a reply.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::unbounded;

use crate::clock::Instant;
use crate::config::{LeaseTerms, Settings};
use crate::error::{Cause, Error};
use crate::holder::HolderId;
use crate::lease::handoff::HandoffRun;
use crate::lease::held::{HeldLease, Holding, Live};
use crate::lease::state::LeaseState;
use crate::lease::undo::{ReleaseReport, Undo};
use crate::lock::release::give_back_unseen;
use crate::logging;
use crate::lost::Lost;
use crate::protocol::answer::Answer;
use crate::protocol::keys::Keys;
use crate::protocol::one_or_many::OneOrMany;
use crate::redis::{Cap, Fault, Majority, OpenCircuit, ServerVotes, Undoable};
use crate::runtime::Runtime;
use crate::token::FencingToken;
use crate::wait_policy::{Backoff, RECONNECT};

/// Pause after a split vote: long enough for one of several callers to finish before the next
/// tries.
pub(crate) const SPLIT_VOTE_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(5), Duration::from_millis(100)).jitter(0.9);

/// The most tokens proposed in a row.
///
/// The second proposal is above all counters that the first met. A third is needed only if other
/// clients were faster in between.
const MAX_PROPOSALS: usize = 8;

/// The interval at which a waiting call checks whether an open breaker has closed.
const RETRY_CHECK_EVERY: Duration = Duration::from_millis(250);

/// After this many malformed replies in a row, the peer is not a Redis server.
const MAX_MALFORMED: u32 = 3;

/// A call that acquires a lock.
pub(crate) struct Attempt<'a> {
    pub(crate) runtime: &'a Arc<Runtime>,
    pub(crate) keys: &'a Arc<Keys>,
    pub(crate) settings: &'a Settings,
    pub(crate) terms: LeaseTerms,
    /// When the call began.
    pub(crate) start: Instant,
    /// When counting the silence of Redis starts.
    silence_counts_from: Cell<Instant>,
    /// Other calls of this client wait for the name.
    pub(crate) others_wait: Cell<bool>,
    /// The last cause reported by Redis or the system: more telling than "timed out".
    last_cause: RefCell<Option<Cause>>,
    /// Why the last command of this call failed, even if the call returned no error for it.
    failure: RefCell<Option<Cause>>,
    /// Malformed replies in a row.
    malformed: Cell<u32>,
    /// This call sent a command that was answered, or may yet be.
    has_sent: Cell<bool>,
}

/// The outcome of an attempt.
pub(crate) enum Attempted {
    Acquired(Arc<HeldLease>),
    /// The name with this index is held for this much longer; `None` if without end.
    Refused(usize, Option<Duration>),
    /// Several clients hold the name on some servers each; none on a majority.
    SplitVote,
}

/// The outcome of an attempt on one part of the names.
enum PartReply {
    /// Granted with these tokens by a command sent at this instant.
    Granted(OneOrMany<FencingToken>, Instant),
    Not(Proposed),
}

enum Proposed {
    Answered(Attempted),
    /// The proposed token was not above this one.
    TooLow(u64),
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(
        runtime: &'a Arc<Runtime>,
        keys: &'a Arc<Keys>,
        settings: &'a Settings,
        terms: LeaseTerms,
        start: Instant,
    ) -> Self {
        Self {
            runtime,
            keys,
            settings,
            terms,
            start,
            silence_counts_from: Cell::new(start),
            others_wait: Cell::new(false),
            last_cause: RefCell::default(),
            failure: RefCell::default(),
            malformed: Cell::new(0),
            has_sent: Cell::new(false),
        }
    }

    /// Tries once, under a fresh holder id.
    ///
    /// If no reply arrives, the undo is already on its way when this returns.
    pub(crate) fn try_once(&self, deadline: Instant) -> Result<Attempted, Fault> {
        if let Some(cause) = &*self.failure.borrow()
            && self.is_unreachable(Instant::now())
        {
            // A further command with no time for a reply would hide why there was none.
            return Err(Fault::NotRun(cause.clone()));
        }
        let until = self.reply_deadline(deadline);
        let mut above = 0;
        for _ in 0..MAX_PROPOSALS {
            match self.propose(until, deadline, above)? {
                Proposed::TooLow(counter) => above = counter,
                Proposed::Answered(attempted) => return Ok(attempted),
            }
        }
        Err(Fault::NotRun(Cause::text(
            "other clients used higher fencing tokens each time",
        )))
    }

    /// Until when a reply to a command sent now is awaited.
    pub(crate) fn reply_deadline(&self, deadline: Instant) -> Instant {
        let now = Instant::now();
        let timeout = self.runtime.deployment.command_timeout();
        now.after(timeout).min(deadline).min(self.gives_up_at(now))
    }

    /// Tries with a token above `above`, if the client proposes tokens.
    fn propose(&self, until: Instant, deadline: Instant, above: u64) -> Result<Proposed, Fault> {
        let (runtime, keys) = (self.runtime, self.keys);
        runtime.meters.counters.attempts.up();
        let id = HolderId::fresh(&runtime.config.owner);
        logging::trace!(name:% = keys, holder:% = id.as_str(); "acquire {keys} as {}", id.as_str());
        let votes = runtime.deployment.votes();
        let asked = match keys.parts() {
            [all] => self.try_part(all, &id, votes.as_ref(), until, above)?,
            parts => self.try_each_part(parts, &id, deadline)?,
        };
        let (tokens, sent) = match asked {
            PartReply::Granted(tokens, sent) => (tokens, sent),
            PartReply::Not(proposed) => return Ok(proposed),
        };
        let now = Instant::now();
        match LeaseState::granted(sent, now, &self.terms) {
            Some(lease) => {
                let hold = self.hold(id, tokens, lease, votes, now, until)?;
                Ok(Proposed::Answered(Attempted::Acquired(hold)))
            }
            None => Err(self.undo(
                keys,
                &id,
                Cause::text("the reply took as long as the lease: ttl too short"),
            )),
        }
    }

    /// Tries to acquire the names that one script call can cover.
    ///
    /// If no reply arrives, the undo is already on its way when this returns.
    fn try_part(
        &self,
        part: &Arc<Keys>,
        id: &HolderId,
        votes: Option<&Arc<ServerVotes>>,
        until: Instant,
        above: u64,
    ) -> Result<PartReply, Fault> {
        let runtime = self.runtime;
        let acquire = runtime
            .deployment
            .acquire(part, id, self.terms.ttl, above, self.tokens_to_reserve())
            .acknowledged_by(self.terms.replicas);
        let undoable = Undoable {
            keys: part,
            id,
            ttl: self.terms.ttl,
            votes,
        };
        let answer = runtime
            .deployment
            .call_or_undo(acquire, until, Cap::Counted, Some(&undoable));
        self.note_sent(&answer);
        match answer {
            Ok((Answer::Granted(tokens), sent)) => Ok(PartReply::Granted(tokens, sent)),
            // The first run of the command was granted; a proxy or the network ran it again.
            Ok((Answer::Refused(refusal), _)) if refusal.holder == id.as_str().as_bytes() => {
                Err(self.undo(part, id, Cause::text("the acquire script ran twice")))
            }
            Ok((Answer::Refused(refusal), _)) if !runtime.endpoints.is_undoing(&refusal.holder) => {
                let attempted = Attempted::Refused(refusal.name, refusal.remaining);
                Ok(PartReply::Not(Proposed::Answered(attempted)))
            }
            // This client holds it: an earlier attempt or release had no reply.
            Ok((Answer::Refused(_), _)) => Err(Fault::NotRun(Cause::text(
                "an earlier attempt of this client, which got no reply, is being undone",
            ))),
            Ok((Answer::Split, _)) => Ok(PartReply::Not(Proposed::Answered(Attempted::SplitVote))),
            Ok((Answer::TooLow(counter), _)) => Ok(PartReply::Not(Proposed::TooLow(counter))),
            Ok(_) => Err(self.undo(
                part,
                id,
                Cause::text("unexpected reply to the acquire script"),
            )),
            Err(Fault::Unknown(cause)) => Err(self.undo(part, id, cause)),
            Err(Fault::NotReplicated(error)) => {
                self.undo(part, id, Cause::text("not acknowledged"));
                Err(Fault::Rejected(error))
            }
            Err(fault) => Err(fault),
        }
    }

    /// Tries one part after the other, each within a command timeout.
    ///
    /// If one is not granted, gives back those before it.
    fn try_each_part(
        &self,
        parts: &[Arc<Keys>],
        id: &HolderId,
        deadline: Instant,
    ) -> Result<PartReply, Fault> {
        let mut tokens = Vec::new();
        let mut first = None;
        for (n, part) in parts.iter().enumerate() {
            let asked = self.try_part(part, id, None, self.reply_deadline(deadline), 0);
            if let Ok(PartReply::Granted(more, sent)) = asked {
                tokens.extend_from_slice(&more);
                first.get_or_insert(sent);
                continue;
            }
            let before = parts.get(..n).unwrap_or_default();
            self.give_back(before, id, self.reply_deadline(deadline));
            return match asked {
                Ok(PartReply::Not(Proposed::Answered(Attempted::Refused(name, remaining)))) => {
                    // `tokens` has one for each name before those of this part.
                    let attempted = Attempted::Refused(tokens.len() + name, remaining);
                    Ok(PartReply::Not(Proposed::Answered(attempted)))
                }
                asked => asked,
            };
        }
        let first = first.unwrap_or(self.start);
        Ok(PartReply::Granted(tokens.into_iter().collect(), first))
    }

    /// Undoes granted parts, and waits for that until `until`.
    fn give_back(&self, parts: &[Arc<Keys>], id: &HolderId, until: Instant) {
        let (told, found) = unbounded();
        let told = Arc::new(ReleaseReport::new(Majority::each(parts.len()), told));
        let end = Instant::now().after(self.terms.ttl);
        for part in parts {
            let (part, told) = (Arc::clone(part), Arc::clone(&told));
            self.runtime.undo(Undo::told(part, id.clone(), end, told));
        }
        drop(told);
        // The outcome is the same whatever the undo found.
        let _ = found.recv_timeout(Instant::now().until(until));
    }

    /// Records that the lock is held, unless the client is closed.
    pub(crate) fn hold(
        &self,
        id: HolderId,
        tokens: OneOrMany<FencingToken>,
        lease: LeaseState,
        votes: Option<Arc<ServerVotes>>,
        since: Instant,
        until: Instant,
    ) -> Result<Arc<HeldLease>, Fault> {
        let (runtime, keys) = (self.runtime, self.keys);
        // Every grant has a token.
        let token = *tokens.first().expect("a token of what is held");
        let hold = Arc::new(HeldLease {
            keys: Arc::clone(keys),
            id,
            tokens,
            votes,
            serial: runtime.next_serial(),
            replicas: self.terms.replicas,
            run: HandoffRun::new(token, self.tokens_to_reserve(), since),
            live: Live::new(lease, self.holding(token, since)),
        });
        for before in runtime.waiters.granted(&hold) {
            let Some(before) = before.upgrade() else {
                continue;
            };
            before.lose(Lost::Taken);
            runtime.reschedule(&before);
        }
        runtime.reschedule(&hold);
        if runtime.is_closed() {
            // A concurrent shutdown may have missed this lease.
            give_back_unseen(runtime, &hold, until);
            return Err(Fault::Rejected(Error::Closed));
        }
        self.log_granted(&hold);
        Ok(hold)
    }

    /// How many tokens to reserve: more than one if the lock can be handed off.
    fn tokens_to_reserve(&self) -> u64 {
        match self.others_wait.get() {
            true => u64::from(self.terms.handoffs) + 1,
            false => 1,
        }
    }

    /// Returns the share of the lease that belongs to this call.
    pub(crate) fn holding(&self, token: FencingToken, since: Instant) -> Holding {
        Holding {
            token,
            since: Some(since),
            handoffs: self.terms.handoffs,
            trace_id: self.settings.trace_id.clone(),
            on_lost: self.settings.on_lost.clone(),
            on_renew: self.settings.on_renew.clone(),
        }
    }

    /// Undoes in the background what was or may yet be acquired under `id`.
    pub(crate) fn undo(&self, keys: &Arc<Keys>, id: &HolderId, cause: Cause) -> Fault {
        let until = Instant::now().after(self.terms.ttl);
        self.runtime
            .undo(Undo::of_acquire(Arc::clone(keys), id.clone(), until));
        Fault::Unknown(cause)
    }

    /// Retries until Redis replies or the deadline passes.
    pub(crate) fn try_until_answered(&self, deadline: Instant) -> Result<Attempted, Error> {
        let (mut failures, mut splits) = (0, 0);
        loop {
            match self.try_once(deadline) {
                Ok(Attempted::SplitVote) => {
                    let pause = SPLIT_VOTE_BACKOFF.pause(splits);
                    splits += 1;
                    if Instant::now().after(pause) >= deadline {
                        // Another client held it on some servers.
                        return Ok(Attempted::Refused(0, Some(pause)));
                    }
                    std::thread::sleep(pause);
                }
                Ok(attempted) => return Ok(attempted),
                Err(Fault::Open(open)) => {
                    return Err(self.open_circuit_error(*open, Instant::now()));
                }
                Err(fault) => {
                    let pause = self.pause_after(fault, failures, deadline)?;
                    failures += 1;
                    std::thread::sleep(pause);
                }
            }
        }
    }

    /// Returns how long to pause after a fault before the next attempt.
    ///
    /// Fails with the error of the call if it must give up.
    pub(crate) fn pause_after(
        &self,
        fault: Fault,
        failures: u32,
        deadline: Instant,
    ) -> Result<Duration, Error> {
        self.runtime.check_open()?;
        let cause = match fault {
            Fault::NotReplicated(error) | Fault::Rejected(error) => return Err(error),
            Fault::NotRun(cause) | Fault::Unknown(cause) => cause,
            Fault::Open(open) => return self.pause_while_open(*open, deadline),
        };
        self.check_is_redis(&cause)?;
        let cause = cause.or_said_before(&mut self.last_cause.borrow_mut());
        self.failure.replace(Some(cause.clone()));
        let now = Instant::now();
        if now >= deadline || self.is_unreachable(now) {
            return Err(self.unreachable(cause, now));
        }
        // A pooled connection that had died unnoticed costs one attempt and no pause.
        let pause = match failures {
            0 => Duration::ZERO,
            _ => RECONNECT.pause(failures - 1),
        };
        Ok(pause.min(now.until(deadline.min(self.gives_up_at(now)))))
    }

    /// Fails if the peer is not a Redis server.
    ///
    /// It fails at once if the peer speaks another protocol, otherwise after several malformed
    /// replies in a row.
    fn check_is_redis(&self, cause: &Cause) -> Result<(), Error> {
        let malformed = self.malformed.get() + u32::from(cause.is_malformed());
        self.malformed.set(malformed);
        let cause = match cause {
            cause if cause.is_not_redis() => cause.clone(),
            cause if malformed >= MAX_MALFORMED => cause.last_malformed(malformed),
            _ => return Ok(()),
        };
        Err(self.runtime.deployment.unreachable(cause))
    }

    /// Returns how long a waiting call pauses while the breaker is open.
    ///
    /// A reply to another call wakes no waiter, so the waiting call checks for one.
    fn pause_while_open(&self, open: OpenCircuit, deadline: Instant) -> Result<Duration, Error> {
        self.runtime.probe_breaker(self.keys);
        let now = Instant::now();
        if self.is_unreachable(now) {
            let last = open.last_at(self.runtime.deployment.label());
            let cause = self.failure.take().unwrap_or(last);
            return Err(self.unreachable(cause, now));
        }
        if now >= deadline {
            return Err(self.open_circuit_error(open, now));
        }
        let end = deadline.min(self.gives_up_at(now));
        Ok(open.retry_in.min(RETRY_CHECK_EVERY).min(now.until(end)))
    }

    /// Returns the error of a call that gives up while the breaker is open.
    ///
    /// If the call has sent a command, the error must not claim that nothing was sent: the lock may
    /// be held for it.
    fn open_circuit_error(&self, open: OpenCircuit, now: Instant) -> Error {
        match self.failure.take() {
            Some(cause) => self.unreachable(cause, now),
            None if self.has_sent.get() => {
                let last = open.last_at(self.runtime.deployment.label());
                self.unreachable(last, now)
            }
            None => open.into(),
        }
    }

    /// Returns the error of a call that gives up at `now`.
    fn unreachable(&self, cause: Cause, now: Instant) -> Error {
        let cause = cause.unserved_for(self.silence(now));
        self.runtime.deployment.unreachable(cause)
    }

    /// Returns the error of a call that gives up at `now` while others await a reply on its behalf.
    pub(crate) fn unreachable_for_others(&self, now: Instant) -> Error {
        let silence = self.silence(now);
        let deployment = &self.runtime.deployment;
        let silent_since = |part: &&Arc<Keys>| {
            deployment.silent_since(part.key(0), now, self.silence_counts_from.get())
        };
        let part = self.keys.parts().iter().min_by_key(silent_since);
        let cause = part.and_then(|part| deployment.last_failure(part.key(0)));
        self.unreachable(cause.unwrap_or_else(|| Cause::no_reply(silence)), now)
    }

    /// Records whether the command with this outcome was sent.
    pub(crate) fn note_sent<T>(&self, answer: &Result<T, Fault>) {
        let was_sent = match answer {
            Ok(_) | Err(Fault::Unknown(_) | Fault::NotReplicated(_)) => true,
            Err(Fault::NotRun(_) | Fault::Open(_) | Fault::Rejected(_)) => false,
        };
        self.has_sent.set(self.has_sent.get() || was_sent);
        if answer.is_ok() {
            self.malformed.set(0);
        }
    }

    /// Returns whether Redis has been silent for too long to keep waiting.
    pub(crate) fn is_unreachable(&self, now: Instant) -> bool {
        self.silence(now) >= self.runtime.config.unreachable_for
    }

    /// Restarts the measure of silence after a sleep, if it had become too long meanwhile.
    ///
    /// The silence that others met while this call slept ends only with a reply: this call tries
    /// Redis before it gives up.
    pub(crate) fn restart_silence(&self) {
        let now = Instant::now();
        if self.is_unreachable(now) {
            self.silence_counts_from.set(now);
        }
    }

    /// Returns when this call gives up if Redis stays silent.
    pub(crate) fn gives_up_at(&self, now: Instant) -> Instant {
        let since = self.silent_since(now);
        since.after(self.runtime.config.unreachable_for)
    }

    /// How long this call has been without a reply at `now`.
    fn silence(&self, now: Instant) -> Duration {
        self.silent_since(now).until(now)
    }

    fn silent_since(&self, now: Instant) -> Instant {
        let deployment = &self.runtime.deployment;
        let each = |part: &Arc<Keys>| {
            deployment.silent_since(part.key(0), now, self.silence_counts_from.get())
        };
        let first = self.keys.parts().iter().map(each).min();
        first.unwrap_or(now)
    }

    /// Returns the index of the first name that this client holds now.
    pub(crate) fn held_here(&self) -> Option<usize> {
        self.keys.names.iter().position(|name| {
            let holder = self.runtime.waiters.holder(name);
            holder.is_some_and(|hold| hold.lease(|lease| lease.covers(Instant::now())))
        })
    }

    pub(crate) fn log_granted(&self, hold: &HeldLease) {
        // Reading the clock costs time, and debug records are rarely enabled.
        let mut is_wanted = false;
        logging::contain(|| is_wanted = log::log_enabled!(log::Level::Debug));
        if !is_wanted {
            return;
        }
        let waited = self.start.until(Instant::now());
        logging::debug!(
            name:% = hold.keys, holder:% = hold.id.short(), token = hold.token().value(),
            ttl_ms = self.terms.ttl.as_millis() as u64, waited_us = waited.as_micros() as u64,
            outcome = "acquired", trace_id = hold.trace_id().as_deref();
            "acquired {} (holder {}, token {}, ttl {:?}, waited {waited:?})",
            hold.keys, hold.id.short(), hold.token(), self.terms.ttl
        );
    }

    /// Logs a refusal; `outcome` says what follows from it.
    pub(crate) fn log_refused(&self, outcome: &str, remaining: Option<Duration>) {
        logging::debug!(
            name:% = self.keys, outcome = outcome, ttl_ms = self.terms.ttl.as_millis() as u64,
            remaining_ms = remaining.map(|left| left.as_millis() as u64),
            trace_id = self.settings.trace_id.as_deref();
            "{outcome} {}: the lock is held, or other calls are ahead in its queue", self.keys
        );
    }
}
