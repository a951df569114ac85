//! What the client asks Redis for, on behalf of one waiting call or of all calls in a line.
//!
//! ```text
//!          ┌────── no reply (the id becomes a pending release), not run, refused ──────┐
//!          ▼                                                                           │
//! (none)─▶Due ──the caller's thread or the engine──▶ Sent ──granted──▶ lease ─▶ (none)  │
//!          ▲                                          │ │ └──grant message first──▶ Won ──the end
//!          │                        refused, has place│ │    of its command──▶ (none)
//!          │ place is gone                            ▼ ▼ grant message, but too old
//!          ├──────── Queued ──message or refresh: granted──▶ lease ─▶ (none)
//!          │          │  └──too old, or to be confirmed──▶ Confirming ──ours──▶ lease, or Won
//!          │          └──nobody left to serve: pending release ─▶ (none)   │
//!          └───────────────────────────────────────── gone, foreign ───────┘
//! nobody left to serve: Due ─▶ (none); Sent, Won ─▶ serves Nobody: the end of its command ends it
//! ```

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::holder_id::HolderId;
use crate::kernel::command::{Attempt, Listens};
use crate::kernel::held::HeldLease;
use crate::kernel::part::PartTerms;
use crate::kernel::waiter::WaiterNo;
use crate::protocol::place::TokenBlock;
use crate::protocol::primitive::{Admission, Primitive};
use crate::wait_policy::RECONNECT;

/// Identifies a request. A later request never has the number of an earlier one.
pub(crate) type RequestNo = u64;

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) no: RequestNo,
    pub(crate) serves: Serves,
    pub(crate) lock: Arc<dyn Primitive>,
    /// The terms of its commands.
    pub(crate) terms: LeaseTerms,
    pub(crate) state: RequestState,
    /// When it was made.
    pub(crate) since: Instant,
    /// The acquiring command that has not ended. The state is `Sent`, `Won` or `Confirming` then.
    pub(crate) flight: Option<Flight>,
    /// How often it was refused. After the first time, its commands enter the queue.
    pub(crate) refusals: u32,
    /// Another thread has made it look: its next end counts as a wake-up of a call.
    pub(crate) woken: bool,
    /// A refusal ends it: it takes no place, and nobody asks again.
    pub(crate) once: bool,
    /// Commands in a row that got no reply.
    pub(crate) failures: u32,
    /// A wake-up came while a command was under way: look again then, or when that ends if it is
    /// later. `NEVER` if none came.
    pub(crate) again: Instant,
    /// Nobody was known to have the lock, and no reply has said otherwise since.
    pub(crate) busy: Option<Busy>,
    /// It asks for a part.
    pub(crate) part: Option<Box<PartRequest>>,
}

/// The fields of a request for a part, besides those of each request.
#[derive(Clone, Debug)]
pub(crate) struct PartRequest {
    pub(crate) terms: PartTerms,
    /// A command was sent: it is the only one of a call that does not wait.
    pub(crate) is_sent: bool,
}

/// A lock that nobody is known to have, and that was not granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy {
    /// When the first command was sent that found it so.
    pub(crate) since: Instant,
    /// It pauses until then: messages do not end the pause.
    pub(crate) until: Instant,
}

/// Whom a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Serves {
    /// The calls in the line, and the one whose thread has sent its command.
    Line,
    One(WaiterNo),
    /// Its call has left. It lives until its command has ended.
    Nobody,
}

/// Who sends an acquiring command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// The thread of this call, which has never parked.
    Caller(WaiterNo),
    Engine,
}

/// An acquiring command that has not ended.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) id: HolderId,
    pub(crate) attempt: Attempt,
    pub(crate) tokens: u64,
    pub(crate) sent: Instant,
    pub(crate) sender: Sender,
}

/// An acquiring command, as its sender names it when it has ended.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) lock: Arc<dyn Primitive>,
    pub(crate) no: RequestNo,
    pub(crate) id: HolderId,
    pub(crate) attempt: Attempt,
    pub(crate) ttl: Duration,
}

#[derive(Debug)]
pub(crate) enum RequestState {
    /// The next acquiring command is due then, under a fresh id.
    Due(Instant),
    Sent,
    /// Granted by a message. Contains the lease until its caller has read the reply.
    Won(Option<Arc<HeldLease>>),
    Queued(Place),
    Confirming(Confirming),
}

/// A place in the queue in Redis.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) id: HolderId,
    /// When the last command was sent whose reply said that the place waits: a grant is newer.
    pub(crate) seen: Instant,
    pub(crate) refresh_at: Instant,
    /// When it is refreshed at the latest, unless a message comes.
    pub(crate) regular: Instant,
    /// A refresh at `regular` or later may be late by this much: no sleep is cut short for it.
    pub(crate) slack: Duration,
    pub(crate) refreshing: bool,
    /// Whether it has an inbox, as of the last command.
    pub(crate) listens: Listens,
}

/// A grant that Redis must confirm.
#[derive(Debug)]
pub(crate) struct Confirming {
    pub(crate) id: HolderId,
    pub(crate) tokens: TokenBlock,
    pub(crate) in_queue: bool,
    /// The longest ttl that was asked for: one of a call that has left, or a longer one since.
    pub(crate) longest: Duration,
    pub(crate) retry_at: Instant,
    pub(crate) renewing: bool,
}

/// The requests whose places one command refreshes: a line's place, or those of calls that have one
/// each, with one admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RefreshGroup {
    of_line: bool,
    admission: Admission,
}

impl RefreshGroup {
    pub(super) const ALL: [Self; 4] = [
        Self::new(false, Admission::Exclusive),
        Self::new(false, Admission::Shared),
        Self::new(true, Admission::Exclusive),
        Self::new(true, Admission::Shared),
    ];

    const fn new(of_line: bool, admission: Admission) -> Self {
        Self { of_line, admission }
    }
}

impl Place {
    /// Returns when the engine must be awake for the next refresh.
    pub(super) fn awake_by(&self) -> Instant {
        if self.refresh_at < self.regular {
            // Nobody else learns that the lock has expired.
            self.refresh_at
        } else {
            self.refresh_at.after(self.slack)
        }
    }
}

impl Request {
    /// Returns the longest ttl that its commands ask for.
    pub(super) fn key_may_get(&self) -> Duration {
        match &self.state {
            RequestState::Confirming(grant) => grant.longest.max(self.terms.ttl),
            _ => self.terms.ttl,
        }
    }

    pub(crate) fn new(
        no: RequestNo,
        serves: Serves,
        lock: &Arc<dyn Primitive>,
        terms: LeaseTerms,
        due: Instant,
    ) -> Self {
        Self {
            no,
            serves,
            lock: Arc::clone(lock),
            terms,
            state: RequestState::Due(due),
            since: due,
            flight: None,
            refusals: 0,
            woken: false,
            once: false,
            failures: 0,
            again: Instant::NEVER,
            busy: None,
            part: None,
        }
    }

    /// Counts a failure, and returns the pause after it. A pooled connection that had died
    /// unnoticed costs one attempt and no pause.
    pub(super) fn pause_after_failure(&mut self) -> Duration {
        let before = self.failures;
        self.failures = before.saturating_add(1);
        match before {
            0 => Duration::ZERO,
            before => RECONNECT.pause(before - 1),
        }
    }

    /// Returns whether the next command joins the queue if it is refused.
    pub(super) fn enters(&self, is_contended: bool) -> bool {
        let is_first = self.refusals == 0 && !is_contended && self.lock.has_local_queue();
        self.lock.queue().is_some() && !self.once && !is_first
    }

    /// Returns the holder id that may hold something in Redis for this request.
    pub(crate) fn id(&self) -> Option<&HolderId> {
        match &self.state {
            RequestState::Queued(place) => Some(&place.id),
            RequestState::Confirming(grant) => Some(&grant.id),
            RequestState::Due(_) | RequestState::Sent | RequestState::Won(_) => {
                self.flight.as_ref().map(|flight| &flight.id)
            }
        }
    }

    /// Returns the call whose own thread has the acquiring command under way.
    pub(crate) fn caller(&self) -> Option<WaiterNo> {
        match self.flight.as_ref()?.sender {
            Sender::Caller(no) => Some(no),
            Sender::Engine => None,
        }
    }

    /// Returns whether it has sent its only command: it asks for a part, and does not wait.
    pub(crate) fn is_part_over(&self) -> bool {
        self.once && self.part.as_ref().is_some_and(|it| it.is_sent)
    }

    pub(crate) fn group(&self) -> Option<RefreshGroup> {
        let admission = self.lock.queue()?.admission();
        Some(RefreshGroup::new(self.serves == Serves::Line, admission))
    }
}
