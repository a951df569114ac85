//! One attempt to take a lock, and how often it is made while Redis does not answer.

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
use crate::protocol::kind::{Acquired, Keys};
use crate::protocol::one_or_many::OneOrMany;
use crate::redis::{Cap, Fault, Majority, OpenCircuit, ServerVotes, Undoable};
use crate::runtime::Runtime;
use crate::token::FencingToken;
use crate::wait_policy::{Backoff, RECONNECT};

/// After a split vote: long enough for one of several to be through before the next comes.
pub(crate) const SPLIT_VOTE_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(5), Duration::from_millis(100)).jitter(0.9);

/// How often in a row a token is proposed. The second is above all counters that the first met, so
/// that a third is needed only where others were faster in between.
const MAX_PROPOSALS: usize = 8;

/// Between two looks whether a server is asked again.
const RETRY_CHECK_EVERY: Duration = Duration::from_millis(250);

/// With this many malformed replies in a row the peer is taken for no Redis.
const MAX_MALFORMED: u32 = 3;

/// A call that takes a lock.
pub(crate) struct Attempt<'a> {
    pub(crate) runtime: &'a Arc<Runtime>,
    pub(crate) keys: &'a Arc<Keys>,
    pub(crate) settings: &'a Settings,
    pub(crate) terms: LeaseTerms,
    /// When the call began.
    pub(crate) start: Instant,
    /// From when on silence of Redis counts.
    silence_counts_from: Cell<Instant>,
    /// Others wait for the name in this client.
    pub(crate) others_wait: Cell<bool>,
    /// The last thing that Redis or the system said, which tells more than that time ran out.
    last_cause: RefCell<Option<Cause>>,
    /// Why this call's last command came to nothing, whatever was said of that.
    failure: RefCell<Option<Cause>>,
    /// Malformed replies in a row.
    malformed: Cell<u32>,
    /// This call sent a command, and got a reply or may yet.
    has_sent: Cell<bool>,
}

/// What asking Redis came to.
pub(crate) enum Attempted {
    Acquired(Arc<HeldLease>),
    /// Somebody else holds this one of the names: for so long, `None` without an end.
    Refused(usize, Option<Duration>),
    /// Several hold it on some servers each, and nobody on a majority of them.
    SplitVote,
}

/// What asking for a part came to.
enum PartReply {
    /// Under these tokens, by what was sent then.
    Granted(OneOrMany<FencingToken>, Instant),
    Not(Proposed),
}

enum Proposed {
    Answered(Attempted),
    /// The token was not above this one.
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

    /// Asks Redis once, under a fresh holder id. Where no answer comes, the undo is on its way when
    /// this returns.
    pub(crate) fn try_once(&self, deadline: Instant) -> Result<Attempted, Fault> {
        if let Some(cause) = &*self.failure.borrow()
            && self.is_unreachable(Instant::now())
        {
            // A command without time for an answer would only hide why there was none.
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
            "other clients went on to higher fencing tokens each time",
        )))
    }

    /// Until when an answer is waited for.
    pub(crate) fn reply_deadline(&self, deadline: Instant) -> Instant {
        let now = Instant::now();
        let timeout = self.runtime.deployment.command_timeout();
        now.after(timeout).min(deadline).min(self.gives_up_at(now))
    }

    /// Asks under a token above `above`, where it is the client that proposes it.
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
                Cause::text("the answer took as long as the lease: ttl too short"),
            )),
        }
    }

    /// Asks for what one script can be about. Where no answer comes, the undo is on its way when this
    /// returns.
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
        let wanted = acquire.wanted();
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
            Ok((reply, sent)) => match Acquired::read(&reply, wanted) {
                Some(Acquired::Granted(tokens)) => Ok(PartReply::Granted(tokens, sent)),
                // Its first run was granted, and something between us and Redis ran it again.
                Some(Acquired::Refused(refusal)) if refusal.holder == id.as_str().as_bytes() => {
                    Err(self.undo(part, id, Cause::text("the acquire script ran twice")))
                }
                Some(Acquired::Refused(refusal))
                    if !runtime.endpoints.is_undoing(&refusal.holder) =>
                {
                    let attempted = Attempted::Refused(refusal.name, refusal.remaining);
                    Ok(PartReply::Not(Proposed::Answered(attempted)))
                }
                Some(Acquired::Split) => {
                    Ok(PartReply::Not(Proposed::Answered(Attempted::SplitVote)))
                }
                Some(Acquired::TooLow(counter)) => Ok(PartReply::Not(Proposed::TooLow(counter))),
                // Nobody but ourselves: an earlier attempt or release without an answer.
                Some(Acquired::Refused(_)) => Err(Fault::NotRun(Cause::text(
                    "a lease of this client, about which no answer came, is being undone",
                ))),
                None => Err(self.undo(
                    part,
                    id,
                    Cause::text("the acquire script gave an answer that is not its own"),
                )),
            },
            Err(Fault::Unknown(cause)) => Err(self.undo(part, id, cause)),
            Err(Fault::NotReplicated(error)) => {
                self.undo(part, id, Cause::text("not acknowledged"));
                Err(Fault::Rejected(error))
            }
            Err(fault) => Err(fault),
        }
    }

    /// Asks for one part after the other, each in a command's time, and gives back those before one that
    /// is not granted.
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
                    // There is a token for each name before those of this part.
                    let attempted = Attempted::Refused(tokens.len() + name, remaining);
                    Ok(PartReply::Not(Proposed::Answered(attempted)))
                }
                asked => asked,
            };
        }
        let first = first.unwrap_or(self.start);
        Ok(PartReply::Granted(tokens.into_iter().collect(), first))
    }

    /// Undoes what was granted, before this returns if there is time.
    fn give_back(&self, parts: &[Arc<Keys>], id: &HolderId, until: Instant) {
        let (told, found) = unbounded();
        let told = Arc::new(ReleaseReport::new(Majority::each(parts.len()), told));
        let end = Instant::now().after(self.terms.ttl);
        for part in parts {
            let (part, told) = (Arc::clone(part), Arc::clone(&told));
            self.runtime.undo(Undo::told(part, id.clone(), end, told));
        }
        drop(told);
        // What was found changes nothing.
        let _ = found.recv_timeout(Instant::now().until(until));
    }

    /// The lock is held from now on, unless the client is closed.
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
        // Whatever is granted comes with a token.
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
            // The shutdown that runs beside us may have seen this lease, or not.
            give_back_unseen(runtime, &hold, until);
            return Err(Fault::Rejected(Error::Closed));
        }
        self.log_granted(&hold);
        Ok(hold)
    }

    /// How many tokens are reserved: more than one where there is somebody to hand the lock on to.
    fn tokens_to_reserve(&self) -> u64 {
        match self.others_wait.get() {
            true => u64::from(self.terms.handoffs) + 1,
            false => 1,
        }
    }

    /// Of the call that this attempt is for.
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

    /// Undoes, in the background, what may have been acquired under `id` or may yet be.
    pub(crate) fn undo(&self, keys: &Arc<Keys>, id: &HolderId, cause: Cause) -> Fault {
        let until = Instant::now().after(self.terms.ttl);
        self.runtime
            .undo(Undo::of_acquire(Arc::clone(keys), id.clone(), until));
        Fault::Unknown(cause)
    }

    /// Asks Redis until it answers, or the deadline has come.
    pub(crate) fn try_until_answered(&self, deadline: Instant) -> Result<Attempted, Error> {
        let (mut failures, mut splits) = (0, 0);
        loop {
            match self.try_once(deadline) {
                Ok(Attempted::SplitVote) => {
                    let pause = SPLIT_VOTE_BACKOFF.pause(splits);
                    splits += 1;
                    if Instant::now().after(pause) >= deadline {
                        // Somebody else did hold it on some servers.
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

    /// How long to wait after a fault before the next look, or the error to give up with.
    pub(crate) fn pause_after(
        &self,
        fault: Fault,
        failures: u32,
        deadline: Instant,
    ) -> Result<Duration, Error> {
        self.runtime.check_open()?;
        let cause = match fault {
            Fault::NotReplicated(error) | Fault::Rejected(error) => return Err(error),
            Fault::NotRun(cause) | Fault::Unknown(cause) | Fault::Redirected(_, cause) => cause,
            Fault::Open(open) => return self.pause_while_open(*open, deadline),
        };
        self.check_is_redis(&cause)?;
        let cause = cause.or_said_before(&mut self.last_cause.borrow_mut());
        self.failure.replace(Some(cause.clone()));
        let now = Instant::now();
        if now >= deadline || self.is_unreachable(now) {
            return Err(self.unreachable(cause, now));
        }
        // A connection that had died unnoticed costs one attempt and no pause.
        let pause = match failures {
            0 => Duration::ZERO,
            _ => RECONNECT.pause(failures - 1),
        };
        Ok(pause.min(now.until(deadline.min(self.gives_up_at(now)))))
    }

    /// Errors where the peer will not become a Redis: at once if it speaks another protocol, else after some malformed
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

    /// How long a waiting call pauses while its server is not asked. That another call was answered is
    /// told to nobody, so it is looked for.
    fn pause_while_open(&self, open: OpenCircuit, deadline: Instant) -> Result<Duration, Error> {
        self.runtime.watch(self.keys);
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

    /// For a call that gives up while its server's breaker is open. One that has sent a command must
    /// not say that nothing was sent: the lock may be held for it.
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

    /// For a call that gives up at `now`.
    fn unreachable(&self, cause: Cause, now: Instant) -> Error {
        let cause = cause.unserved_for(self.silence(now));
        self.runtime.deployment.unreachable(cause)
    }

    /// For a call that gives up at `now` while others wait for an answer on its behalf.
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

    /// Notes whether the command that came to `answer` was sent.
    pub(crate) fn note_sent<T>(&self, answer: &Result<T, Fault>) {
        let was_sent = match answer {
            Ok(_) | Err(Fault::Unknown(_) | Fault::NotReplicated(_)) => true,
            Err(Fault::NotRun(_) | Fault::Open(_) | Fault::Redirected(..) | Fault::Rejected(_)) => {
                false
            }
        };
        self.has_sent.set(self.has_sent.get() || was_sent);
        if answer.is_ok() {
            self.malformed.set(0);
        }
    }

    /// Whether Redis has not answered for too long to wait for it any more.
    pub(crate) fn is_unreachable(&self, now: Instant) -> bool {
        self.silence(now) >= self.runtime.config.unreachable_for
    }

    /// Notes that this call slept because the lock was held, and asks again. Others may have met a
    /// long silence meanwhile, which ends only with an answer: this call asks Redis before it gives up.
    pub(crate) fn restart_silence(&self) {
        let now = Instant::now();
        if self.is_unreachable(now) {
            self.silence_counts_from.set(now);
        }
    }

    /// When this call gives up, if Redis stays as silent as it is at `now`.
    pub(crate) fn gives_up_at(&self, now: Instant) -> Instant {
        let since = self.silent_since(now);
        since.after(self.runtime.config.unreachable_for)
    }

    /// For how long at `now` this call has been without an answer.
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

    /// Which of the names this client holds at this moment: the first that it does.
    pub(crate) fn held_here(&self) -> Option<usize> {
        self.keys.names.iter().position(|name| {
            let holder = self.runtime.waiters.holder(name);
            holder.is_some_and(|hold| hold.lease(|lease| lease.covers(Instant::now())))
        })
    }

    pub(crate) fn log_granted(&self, hold: &HeldLease) {
        // The clock is not free, and this line is seldom wanted.
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

    /// Somebody else holds the lock, or came before: `outcome` says what follows from that.
    pub(crate) fn log_refused(&self, outcome: &str, remaining: Option<Duration>) {
        logging::debug!(
            name:% = self.keys, outcome = outcome, ttl_ms = self.terms.ttl.as_millis() as u64,
            remaining_ms = remaining.map(|left| left.as_millis() as u64),
            trace_id = self.settings.trace_id.as_deref();
            "{outcome} {}: somebody holds it, or waits before this call", self.keys
        );
    }
}
