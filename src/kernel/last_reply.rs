//! What Redis last said about a name: whether its calls may report that the lock is taken, and when
//! they give up because it says nothing.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::{Cause, Error};
use crate::kernel::failure::{Failure, Refused};
use crate::kernel::fault::{Fault, OpenCircuit};
use crate::mutant::{Mutant, is_on};
use crate::protocol::refusal::RefusedName;

/// The last attempt before a deadline comes this early, unless the call is short or the server
/// distant.
const LAST_ATTEMPT: Duration = Duration::from_millis(250);

/// A refusal that was confirmed this long before a deadline still counts there.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// After this many malformed replies in a row, the peer is not a Redis server.
const MAX_MALFORMED: u32 = 3;

/// After this many refusals, a server that has never run a script of this client never will.
const MAX_REJECTED: u32 = 3;

/// What Redis last said about a name.
#[derive(Debug, Default)]
pub(crate) struct LastReply {
    refused: Option<Box<Refused>>,
    /// When the first of the commands without a reply was sent.
    pub(crate) silent_since: Option<Instant>,
    /// Boxed: most entries never have one, and it would be most of their size.
    failure: Option<Box<LastFailure>>,
    /// When the last command was sent that has run, or may run.
    ran: Instant,
    /// When the last reply arrived.
    heard: Instant,
    /// How long the last reply took.
    pub(crate) took: Duration,
}

/// The failures since the last reply.
#[derive(Debug, Default)]
struct LastFailure {
    /// Why the last command got no reply.
    cause: Option<Cause>,
    /// The last cause that Redis or the system has named.
    said: Option<Cause>,
    /// The breaker that stopped a command.
    open: Option<Box<OpenCircuit>>,
    /// When the last command was sent, or should have been, that the breaker did not stop.
    tried: Instant,
    /// Malformed replies in a row, and refusals of a server that has never run a script.
    malformed: u32,
    rejected: u32,
    /// Why the calls that had begun by then fail at once.
    hopeless: Option<(Instant, Failure)>,
}

impl LastReply {
    /// Returns the last refusal.
    pub(crate) fn refusal(&self) -> Option<Refused> {
        self.refused.as_deref().cloned()
    }

    /// Returns whether a reply, or a lease of this client, has ever refused a call.
    pub(crate) fn has_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Returns whether a call may report at its deadline that the lock is taken.
    pub(crate) fn says_taken(&self, start: Instant, deadline: Instant) -> bool {
        let refused = self.refused.as_ref();
        refused.is_some_and(|refused| refused.says_taken(start, deadline))
    }

    /// Returns whether a command has failed since the last reply.
    pub(crate) fn has_failed(&self) -> bool {
        self.silent_since.is_some() || self.failure.is_some()
    }

    /// Records a reply: Redis has run a command that was sent at `sent`.
    pub(crate) fn answered(&mut self, sent: Instant, now: Instant) {
        *self = Self {
            refused: self.refused.take(),
            ran: self.ran.max(sent),
            heard: now,
            took: sent.until(now),
            ..Self::default()
        };
    }

    /// Records why the command sent at `sent` has no outcome.
    pub(crate) fn failed(&mut self, sent: Instant, now: Instant, fault: Fault) {
        self.note_silence(sent);
        let cause = match fault {
            Fault::NotReplicated(_) | Fault::Rejected(_) => return,
            Fault::Open(open) => {
                self.failure.get_or_insert_default().open = Some(open);
                return;
            }
            // No time was left to connect again: the refusal remains the reason.
            Fault::NotRun(cause) if cause.is_silence() => {
                let before = self.failure.as_ref();
                cause.or_refusal_before(before.and_then(|before| before.said.as_ref()))
            }
            Fault::NotRun(cause) => cause,
            Fault::Unknown(cause) => {
                self.ran = self.ran.max(sent);
                cause
            }
        };
        let failure = self.failure.get_or_insert_default();
        failure.tried = failure.tried.max(sent);
        failure.count_hopeless(&cause, now);
        let cause = cause.or_said_before(&mut failure.said);
        if says_nothing(&cause) {
            self.silent_since = None;
        }
        failure.cause = Some(cause);
    }

    /// The engine has ended the command of a thread that stands still.
    pub(crate) fn overdue(&mut self, sent: Instant) {
        self.note_silence(sent);
        self.ran = self.ran.max(sent);
    }

    /// A command that was sent at `sent` has no reply. If others were answered since, that is not
    /// because Redis is silent: its thread has not read the reply.
    fn note_silence(&mut self, sent: Instant) {
        let since = if is_on(Mutant::LateReaderIsSilence) {
            sent
        } else {
            sent.max(self.heard)
        };
        self.silent_since.get_or_insert(since);
    }

    /// Returns when the last reply arrived.
    pub(crate) fn heard(&self) -> Instant {
        self.heard
    }

    /// Returns since when Redis has been silent to a call that began at `start`, if it is. A
    /// command that was sent at `under_way` has no reply yet.
    fn silent_since(&self, start: Instant, under_way: Option<Instant>) -> Option<Instant> {
        let cause = self.failure.as_ref().and_then(|it| it.cause.as_ref());
        let says_nothing_of_it = cause.is_some_and(says_nothing);
        let under_way = under_way
            .filter(|_| !says_nothing_of_it)
            .map(|sent| sent.max(self.heard));
        let since = self.silent_since.into_iter().chain(under_way).min();
        since.map(|since| since.max(start))
    }

    /// Returns when a call that began at `start` gives up. A command that was sent at `under_way`
    /// has no reply yet.
    pub(crate) fn gives_up_at(
        &self,
        start: Instant,
        under_way: Option<Instant>,
        unreachable_for: Duration,
    ) -> Instant {
        let hopeless = self.failure.as_ref().and_then(|it| it.hopeless.as_ref());
        if hopeless.is_some_and(|it| start <= it.0) {
            return Instant::START;
        }
        let since = self.silent_since(start, under_way);
        since.map_or(Instant::NEVER, |since| since.after(unreachable_for))
    }

    /// Returns why a call that began at `start` fails.
    pub(crate) fn failure(&self, start: Instant, under_way: Option<Instant>) -> Failure {
        let since = self.silent_since(start, under_way);
        let Some(last) = &self.failure else {
            return Failure::Unreachable { since, cause: None };
        };
        // A command of an earlier call may be under way: the breaker has admitted one.
        let is_tried = last.tried >= start || under_way.is_some_and(|sent| sent >= start);
        match (&last.hopeless, &last.open) {
            (Some(it), _) if start <= it.0 => it.1.clone(),
            (_, Some(open)) if last.cause.is_none() || !is_tried => Failure::Open {
                open: open.clone(),
                since,
                has_sent: self.ran >= start,
            },
            _ => Failure::Unreachable {
                since,
                cause: last.cause.clone(),
            },
        }
    }

    /// Records a refusal, and returns it.
    pub(crate) fn refused(&mut self, sent: Instant, now: Instant, by: Arc<RefusedName>) -> Refused {
        self.answered(sent, now);
        let until = by
            .remaining
            .map_or(Instant::NEVER, |remaining| sent.after(remaining));
        let refused = Refused {
            sent,
            arrived: now,
            confirmed: now,
            until,
            by,
            is_said: true,
        };
        self.note(refused.clone());
        refused
    }

    /// Records a refusal, unless one of a later command is known: the reply to that may have
    /// arrived first, over another connection.
    pub(crate) fn note(&mut self, refused: Refused) {
        if (self.refused.as_ref()).is_none_or(|last| last.sent <= refused.sent) {
            self.refused = Some(Box::new(refused));
        }
    }

    /// Records that nobody is known to have the lock, and that it was not granted.
    pub(crate) fn busy(&mut self, sent: Instant, now: Instant, by: Arc<RefusedName>) -> Refused {
        // The reply can be as old as its command.
        let refused = Refused {
            arrived: sent,
            confirmed: sent,
            is_said: false,
            ..self.refused(sent, now, by)
        };
        if let Some(last) = self.refused.as_mut().filter(|last| last.sent == sent) {
            **last = refused.clone();
        }
        refused
    }

    /// The reply to a refresh does not say since when the holder has the lock: an earlier one did.
    pub(crate) fn with_age(&self, by: Arc<RefusedName>, now: Instant) -> Arc<RefusedName> {
        let is_same = |last: &&Refused| by.names_holder() && last.by.holder == by.holder;
        let last = self.refused.as_deref().filter(is_same);
        let age = last.and_then(|last| Some((last.by.detail?, last.arrived.until(now))));
        match age {
            Some((age, since)) if by.detail.is_none() => Arc::new(RefusedName {
                detail: Some(age.saturating_add(since.as_millis() as u64)),
                ..RefusedName::clone(&by)
            }),
            _ => by,
        }
    }

    /// Records that a lease of this client ended at `end`, by its release or by the clock: until
    /// then, the lock was taken.
    pub(crate) fn held_until(&mut self, end: Instant, by: Arc<RefusedName>) {
        if self.refused.as_ref().is_some_and(|last| last.sent > end) {
            return;
        }
        self.refused = Some(Box::new(Refused::until_now(end, end, by)));
    }

    /// Records that the lock was free or held by this client at `now`: it was not taken for longer.
    /// Returns whether a refusal had named a later time.
    pub(crate) fn cut(&mut self, now: Instant) -> bool {
        let refused = self.refused.as_mut().filter(|refused| refused.until > now);
        refused.map(|refused| refused.until = now).is_some()
    }

    /// Records that a holder has released the lock at `now`: until then it was taken, if Redis has
    /// said so before. Returns whether a refusal had named a later time.
    pub(super) fn released(&mut self, now: Instant) -> bool {
        if let Some(refused) = self.refused.as_mut().filter(|refused| refused.is_said)
            && !is_on(Mutant::ReleaseMessageProvesNothing)
        {
            refused.confirmed = now;
        }
        self.cut(now)
    }

    /// Returns when the client asks once more for a call that has this deadline.
    pub(crate) fn ask_at(&self, start: Instant, deadline: Instant) -> Instant {
        last_attempt(start, deadline, self.took)
    }
}

impl LastFailure {
    /// Calls fail at once if the peer is not a Redis server, or never runs a script.
    fn count_hopeless(&mut self, cause: &Cause, now: Instant) {
        self.malformed += u32::from(cause.is_malformed());
        let refusal = cause.refusal().filter(|refusal| refusal.may_last);
        self.rejected += u32::from(refusal.is_some());
        let not_redis = |cause| Failure::unreachable(Some(cause));
        let failure = match refusal {
            _ if cause.is_not_redis() => not_redis(cause.clone()),
            _ if self.malformed >= MAX_MALFORMED => not_redis(cause.last_malformed(self.malformed)),
            Some(refusal) if self.rejected >= MAX_REJECTED => Failure::Rejected(Error::Refused {
                server: refusal.server.clone(),
                command: refusal.command,
                answer: refusal.answer.clone(),
                retried_for: None,
            }),
            _ => return,
        };
        (self.malformed, self.rejected) = (0, 0);
        self.hopeless = Some((now, failure));
    }
}

impl Refused {
    /// Returns a refusal by something of this client, which is known to have the lock until `now`
    /// only.
    pub(crate) fn until_now(sent: Instant, now: Instant, by: Arc<RefusedName>) -> Self {
        Self {
            sent,
            arrived: now,
            confirmed: now,
            until: now,
            by,
            is_said: false,
        }
    }

    /// Returns the refusal with this index of its name.
    pub(crate) fn of_name(self, name: usize) -> Self {
        let by = RefusedName {
            name,
            ..RefusedName::clone(&self.by)
        };
        Self {
            by: Arc::new(by),
            ..self
        }
    }

    /// Returns whether a call may report at its deadline that the lock is taken.
    pub(crate) fn says_taken(&self, start: Instant, deadline: Instant) -> bool {
        let is_fresh = self.confirmed.after(FRESH_FOR) >= deadline;
        self.sent >= start && (self.until >= deadline || is_fresh)
    }
}

/// Returns when a call asks for the last time. The last reply `took` this long.
pub(crate) fn last_attempt(start: Instant, deadline: Instant, took: Duration) -> Instant {
    if deadline == Instant::NEVER {
        return Instant::NEVER;
    }
    let before = LAST_ATTEMPT.max(took.saturating_mul(3));
    deadline.before(before.min(start.until(deadline) / 2))
}

/// Returns whether a failure is no silence of Redis: a shortage in this process, or a slot that
/// moves between nodes which answer.
fn says_nothing(cause: &Cause) -> bool {
    cause.shortage().is_some() || cause.is_of_moving_slot()
}
