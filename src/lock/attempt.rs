//! One acquiring command: its verdict and its undo.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crossbeam_channel::unbounded;

use crate::cancel::CancelToken;
use crate::clock::Instant;
use crate::config::{LeaseTerms, Settings};
use crate::error::{Cause, Error};
use crate::holder_id::HolderId;
use crate::lease::handoff::HandoffRun;
use crate::lease::held::{HeldLease, Holding, LeaseCell};
use crate::lease::release::{Release, ReleaseReport};
use crate::lease::state::LeaseState;
use crate::lock::release::give_back_unseen;
use crate::lock::silence::Silence;
use crate::logging;
use crate::lost::Lost;
use crate::protocol::answer::Answer;
use crate::protocol::one_or_many::OneOrMany;
use crate::protocol::primitive::{Acquire, Primitive, Queueing};
use crate::protocol::refusal::RefusedName;
use crate::protocol::script::Call;
use crate::queue::places::SharedPlace;
use crate::redis::{Cap, Fault, Majority, ServerVotes, Undoable};
use crate::runtime::Runtime;
use crate::runtime::endpoint::BeingReleased;
use crate::token::FencingToken;
use crate::wait_policy::Backoff;

/// The cause of the error if a lease has expired before the reply that grants it.
pub(crate) const TTL_TOO_SHORT: &str =
    "the reply took as long as the lease: ttl or max_hold too short";

/// The most tokens that an attempt proposes to a quorum, one after the other.
///
/// The second proposal is above all counters that the first met. A third is needed only if other
/// clients were faster in between.
const MAX_PROPOSALS: usize = 8;

/// Pause after a split vote: long enough for one of several callers to finish before the next
/// tries.
pub(crate) const SPLIT_VOTE_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(5), Duration::from_millis(100)).jitter(0.9);

/// A call that acquires a lock.
pub(crate) struct Attempt<'a> {
    pub(crate) runtime: &'a Arc<Runtime>,
    pub(crate) keys: &'a Arc<dyn Primitive>,
    pub(crate) settings: &'a Settings,
    pub(crate) terms: LeaseTerms,
    /// When the call began.
    pub(crate) start: Instant,
    pub(crate) deadline: Instant,
    pub(crate) silence: Silence<'a>,
}

/// The outcome of an attempt.
pub(crate) enum Attempted {
    Acquired(Arc<HeldLease>),
    Refused(Arc<RefusedName>),
    /// Several calls each hold the name on some servers, and none on a majority.
    SplitVote,
}

impl Attempt<'_> {
    /// Returns an error if the client is shut down, or if the call is cancelled.
    pub(crate) fn check_not_ended(&self) -> Result<(), Error> {
        self.runtime.check_open()?;
        let token = self.settings.cancel.as_ref();
        match token.is_some_and(CancelToken::is_cancelled) {
            true => Err(Error::Cancelled),
            false => Ok(()),
        }
    }

    /// Returns whether the client is shut down, or the call is cancelled.
    pub(crate) fn is_ended(&self) -> bool {
        self.check_not_ended().is_err()
    }

    /// How many tokens to reserve: more than one if the lock can be handed off.
    pub(crate) fn tokens(&self, others_wait: bool) -> u64 {
        match others_wait {
            true => u64::from(self.terms.handoffs) + 1,
            false => 1,
        }
    }

    /// Tries once, under a fresh holder id; a grant reserves this number of `tokens`.
    ///
    /// Also returns when the command was sent. If no reply arrives, the undo is already on its way
    /// when this returns.
    pub(crate) fn try_once(
        &self,
        tokens: u64,
        queueing: Queueing<'_>,
    ) -> Result<(Attempted, Instant), Fault> {
        if let Some(cause) = self.silence.final_failure() {
            return Err(Fault::NotRun(cause));
        }
        let mut above = 0;
        for _ in 0..MAX_PROPOSALS {
            let (runtime, keys) = (self.runtime, self.keys);
            runtime.meters.counters.attempts.up();
            let id = keys.fresh_id(&runtime.config.owner);
            logging::trace!(
                name:% = keys, holder:% = id.as_str(); "acquire {keys} as {}", id.as_str()
            );
            let votes = runtime.deployment.votes(&id);
            let request = Acquire {
                id: &id,
                ttl: self.terms.ttl,
                tokens,
                proposed: None,
                queueing,
            };
            let (answer, sent) = self.try_parts(request, votes.as_ref(), above)?;
            let attempted = match answer {
                Answer::Granted(granted) => {
                    Attempted::Acquired(self.hold_granted(id, granted, sent, votes, tokens)?)
                }
                Answer::Refused(refusal) => Attempted::Refused(Arc::new(refusal)),
                Answer::TooLow(counter) => {
                    above = counter;
                    continue;
                }
                _ => Attempted::SplitVote,
            };
            return Ok((attempted, sent));
        }
        Err(Fault::NotRun(Cause::text(
            "other clients used higher fencing tokens each time",
        )))
    }

    /// Tries one part of the keys after the other. Most locks have one part.
    ///
    /// If one is not granted, gives back those before it.
    fn try_parts(
        &self,
        request: Acquire<'_>,
        votes: Option<&Arc<ServerVotes>>,
        above: u64,
    ) -> Result<(Answer, Instant), Fault> {
        let parts = self.keys.parts();
        let mut granted: Option<(OneOrMany<FencingToken>, Instant)> = None;
        for (n, part) in parts.iter().enumerate() {
            let answer = match self.check_not_ended() {
                // Before the first part the callers check this.
                Err(ended) if n > 0 => Err(Fault::Rejected(ended)),
                _ => self.try_part(part, request, votes, above),
            };
            match (answer, &mut granted) {
                (Ok((Answer::Granted(tokens), sent)), None) => granted = Some((tokens, sent)),
                (Ok((Answer::Granted(more), _)), Some((tokens, _))) => {
                    *tokens = tokens.iter().chain(&*more).copied().collect();
                }
                (answer, None) => return answer,
                (answer, Some((tokens, _))) => {
                    let before = parts.get(..n).unwrap_or_default();
                    self.give_back(before, request.id);
                    let (mut answer, sent) = answer?;
                    if let Answer::Refused(refusal) = &mut answer {
                        // There is a token for each name before those of this part.
                        refusal.name += tokens.len();
                    }
                    return Ok((answer, sent));
                }
            }
        }
        // `Keys::check` rejects a lock without names.
        let (tokens, sent) = granted.expect("a lock has a part");
        Ok((Answer::Granted(tokens), sent))
    }

    /// Tries to acquire the names that one script call can cover.
    fn try_part(
        &self,
        part: &Arc<dyn Primitive>,
        request: Acquire<'_>,
        votes: Option<&Arc<ServerVotes>>,
        above: u64,
    ) -> Result<(Answer, Instant), Fault> {
        let (runtime, id) = (self.runtime, request.id);
        let acquire = runtime.deployment.acquire(part, request, above);
        let before = runtime.endpoints.being_released(part.key(0).name);
        let (answer, sent) = self.send(acquire, part, id, votes)?;
        match answer {
            // The first run of the command was granted; a proxy or the network ran it again.
            Answer::Refused(refusal) if refusal.holder == id.as_str().as_bytes() => {
                Err(self.undo(part, id, Cause::text("the acquire script ran twice")))
            }
            // This client holds it: an earlier attempt or release had no reply.
            Answer::Refused(refusal) if self.may_be_own(part, &refusal, &before) => {
                Err(Fault::NotRun(Cause::text(
                    "an earlier call of this client, which got no reply, is being undone or \
                     repeated",
                )))
            }
            Answer::Granted(_) | Answer::Refused(_) | Answer::Split | Answer::TooLow(_) => {
                Ok((answer, sent))
            }
            _ => Err(self.undo_unread(part, id)),
        }
    }

    /// Returns whether the refusal may come from a lease that this client is releasing, or was
    /// releasing `before` it sent the command.
    fn may_be_own(
        &self,
        part: &Arc<dyn Primitive>,
        refusal: &RefusedName,
        before: &BeingReleased,
    ) -> bool {
        let endpoints = &self.runtime.endpoints;
        if refusal.names_holder() {
            return before.contains(&refusal.holder) || endpoints.is_releasing(&refusal.holder);
        }
        // A refusal because of readers or permits names no holder: this client may be one of them.
        before.has_unanswered() || endpoints.has_unanswered(part.key(0).name)
    }

    /// Sends `call`, which acquires `part` under `id`; returns its reply and when it was sent.
    ///
    /// Waits for the reply for at most the command timeout. If no reply shows what the call did,
    /// its undo is already on its way when this returns.
    pub(crate) fn send(
        &self,
        call: Call<'_>,
        part: &Arc<dyn Primitive>,
        id: &HolderId,
        votes: Option<&Arc<ServerVotes>>,
    ) -> Result<(Answer, Instant), Fault> {
        let undoable = Undoable {
            keys: part,
            id,
            ttl: self.terms.ttl,
            votes,
        };
        let answer = self.runtime.deployment.call_or_undo(
            call.acknowledged_by(self.terms.replicas),
            self.silence.reply_deadline(),
            Cap::Counted,
            Some(&undoable),
        );
        self.silence.note_sent(&answer);
        match answer {
            Err(Fault::Unknown(cause)) => Err(self.undo(part, id, cause)),
            Err(Fault::NotReplicated(error)) => {
                self.undo(part, id, Cause::text("not acknowledged"));
                Err(Fault::Rejected(error))
            }
            answer => answer,
        }
    }

    /// Releases granted parts. Unless the call has ended, waits for the replies, for at most the
    /// command timeout.
    fn give_back(&self, parts: &[Arc<dyn Primitive>], id: &HolderId) {
        let until = self.silence.reply_deadline();
        let (sender, found) = unbounded();
        let report = || Arc::new(ReleaseReport::new(Majority::each(parts.len()), sender));
        let report = (!self.is_ended()).then(report);
        let end = Instant::now().after(self.terms.ttl);
        for part in parts {
            self.runtime.release(Release {
                report: report.clone(),
                ..Release::new(Arc::clone(part), id.clone(), end)
            });
        }
        drop(report);
        // The outcome is the same whatever the release found.
        let _ = found.recv_timeout(Instant::now().until(until));
    }

    /// Holds what the command sent at `sent` was granted; undoes it if that has already expired.
    pub(crate) fn hold_granted(
        &self,
        id: HolderId,
        granted: OneOrMany<FencingToken>,
        sent: Instant,
        votes: Option<Arc<ServerVotes>>,
        tokens: u64,
    ) -> Result<Arc<HeldLease>, Fault> {
        let now = Instant::now();
        match LeaseState::acquired(sent, now, &self.terms) {
            Some(lease) => {
                let token = *granted.first().expect("every grant has a token");
                let run = HandoffRun::new(token, tokens, now);
                self.hold(id, granted, lease, votes, run)
            }
            None => Err(self.undo(self.keys, &id, Cause::text(TTL_TOO_SHORT))),
        }
    }

    /// Records that the lock is held since `run` began, unless the client is closed.
    pub(crate) fn hold(
        &self,
        id: HolderId,
        granted: OneOrMany<FencingToken>,
        lease: LeaseState,
        votes: Option<Arc<ServerVotes>>,
        run: HandoffRun,
    ) -> Result<Arc<HeldLease>, Fault> {
        let (runtime, keys) = (self.runtime, self.keys);
        let holding = self.holding(run.first(), run.granted());
        let hold = Arc::new(HeldLease {
            keys: Arc::clone(keys),
            id,
            tokens: granted,
            votes,
            serial: runtime.next_serial(),
            replicas: self.terms.replicas,
            run,
            cell: LeaseCell::new(lease, holding),
            downgraded: OnceLock::new(),
        });
        let evicted = runtime.waiters.granted(&hold);
        for evicted in evicted.iter().filter_map(Weak::upgrade) {
            evicted.lose(Lost::Taken, Instant::now());
            runtime.reschedule(&evicted);
        }
        runtime.reschedule(&hold);
        if runtime.is_closed() {
            // A concurrent shutdown may have missed this lease.
            give_back_unseen(runtime, &hold, self.silence.reply_deadline());
            return Err(Fault::Rejected(Error::Closed));
        }
        self.log_granted(&hold);
        Ok(hold)
    }

    /// Returns what this call holds of a lease, from `since` on and under `token`.
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

    /// Undoes in the background what was or may yet be acquired under `id`. Returns the fault with
    /// which the caller ends this attempt.
    pub(crate) fn undo(&self, keys: &Arc<dyn Primitive>, id: &HolderId, cause: Cause) -> Fault {
        let until = Instant::now().after(self.terms.ttl);
        self.runtime
            .release(Release::undo(Arc::clone(keys), id.clone(), until));
        Fault::Unknown(cause)
    }

    /// Like [`undo`](Self::undo), for a command with a reply that its script cannot give.
    pub(crate) fn undo_unread(&self, keys: &Arc<dyn Primitive>, id: &HolderId) -> Fault {
        let cause = Cause::text("unexpected reply to the acquire script");
        self.undo(keys, id, cause)
    }

    /// Returns the index of the first name that this client holds now: Redis would refuse it.
    pub(crate) fn held_here(&self) -> Option<usize> {
        Some(self.held_by_this_client()?.0)
    }

    /// Returns the lease that makes [`held_here`](Self::held_here) return its name.
    pub(crate) fn held_by_this_client(&self) -> Option<(usize, Arc<HeldLease>)> {
        self.first_name_held(self.keys.is_shared())
    }

    /// Returns whether this client has a lease that excludes all others: its other calls wait for
    /// the end of that lease.
    ///
    /// They do not wait for readers of this client, which other readers could join without end.
    pub(crate) fn is_held_alone(&self) -> bool {
        self.first_name_held(true).is_some()
    }

    /// Returns the first name that a lease of this client keeps from others, by its index, and the
    /// lease. A reader's lease counts unless the lock is wanted by a reader (`is_shared`).
    fn first_name_held(&self, is_shared: bool) -> Option<(usize, Arc<HeldLease>)> {
        self.keys.names.iter().enumerate().find_map(|(n, name)| {
            let holder = self.runtime.waiters.excludes(name, is_shared)?;
            let holds = holder.lease(|lease| lease.covers(Instant::now()));
            holds.then_some((n, holder))
        })
    }

    /// Returns what this client knows about the lock, if its calls share a place in Redis.
    pub(crate) fn shared(&self) -> Option<SharedPlace> {
        self.keys.calls_share_a_place().then(|| {
            let shared_places = &self.runtime.waiters.shared_places;
            shared_places.shared(self.keys.key(0).name)
        })
    }

    pub(crate) fn log_granted(&self, hold: &HeldLease) {
        // Called for a record only: reading the clock costs time.
        let waited = || self.start.until(Instant::now());
        logging::debug!(
            name:% = hold.keys, holder:% = hold.id.short(), token = hold.token().value(),
            ttl_ms = self.terms.ttl.as_millis() as u64, waited_us = waited().as_micros() as u64,
            outcome = "acquired", trace_id = hold.trace_id().as_deref();
            "acquired {} (holder {}, token {}, ttl {:?}, waited {:?})",
            hold.keys, hold.id.short(), hold.token(), self.terms.ttl, waited()
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
