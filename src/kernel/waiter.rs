//! A waiting call of this client, the cell for its outcome, and the last reply about a name.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::error::{Cause, Error};
use crate::kernel::held::HeldLease;
use crate::parker::Parker;
use crate::protocol::primitive::Primitive;
use crate::protocol::refusal::RefusedName;
use crate::sync::Mutex;
use crate::token::FencingToken;
use crate::wait_policy::WaitPolicy;

/// Identifies a call. A later call never has the number of an earlier one.
pub(crate) type WaiterNo = u64;

/// How a call waits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wait {
    /// Leaves at its first refusal.
    Once,
    Queue(WaitPolicy),
}

impl Wait {
    /// Returns whether release messages wake the call.
    pub(crate) fn is_woken(&self) -> bool {
        matches!(self, Self::Queue(WaitPolicy::Wake))
    }
}

/// A parked call.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) no: WaiterNo,
    pub(crate) cell: Arc<WaiterCell>,
    pub(crate) lock: Arc<dyn Primitive>,
    pub(crate) terms: LeaseTerms,
    pub(crate) wait: Wait,
    pub(crate) start: Instant,
    pub(crate) deadline: Instant,
    /// When the client asks once more for this call's deadline.
    pub(crate) ask_at: Instant,
    /// When a call that waits by `Backoff` wants the next command.
    pub(crate) retry_at: Instant,
    /// How many replies have refused a call that waits by `Backoff`.
    pub(crate) refusals: u32,
}

/// Where the outcome of a parked call is put.
///
/// The call reads it even if it was never unparked: its naps last a second at most.
#[derive(Debug)]
pub(crate) struct WaiterCell {
    pub(crate) no: WaiterNo,
    pub(crate) outcome: Mutex<Option<Outcome>>,
    /// The call has waited for another holder, or behind another call.
    pub(crate) has_waited: AtomicBool,
    pub(crate) parker: Parker,
}

impl Waiter {
    pub(crate) fn note_waited(&self) {
        self.cell.has_waited.store(true, Ordering::Relaxed);
    }
}

impl WaiterCell {
    pub(crate) fn new(no: WaiterNo) -> Self {
        Self {
            no,
            outcome: Mutex::new(None),
            has_waited: AtomicBool::new(false),
            parker: Parker::new(),
        }
    }
}

/// The end of a call.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Lease(Arc<HeldLease>, FencingToken),
    /// Another holder has the lock, or this client itself.
    Refused(Option<Refused>),
    Failed(Failure),
}

/// Why a call failed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    Closed,
    Cancelled,
    /// The set must begin again, under another id.
    Restart,
    /// Redis has not answered since then, for this reason.
    Unreachable {
        since: Option<Instant>,
        cause: Option<Cause>,
    },
    Rejected(Error),
}

/// The last attempt before a deadline comes this early, unless the call is short or the server
/// distant.
const LAST_ATTEMPT: Duration = Duration::from_millis(250);

/// A refusal that arrived this long before a deadline still counts there.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// What Redis last said about a name.
#[derive(Debug, Default)]
pub(crate) struct LastReply {
    pub(crate) refused: Option<Refused>,
    /// When the first of the commands without a reply was sent.
    pub(crate) silent_since: Option<Instant>,
    /// Why the last command got no reply.
    pub(crate) cause: Option<Cause>,
    /// How long the last reply took.
    pub(crate) took: Duration,
}

/// A refusal.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) sent: Instant,
    pub(crate) arrived: Instant,
    /// When the lock ends, by the reply.
    pub(crate) until: Instant,
    pub(crate) by: Arc<RefusedName>,
}

impl LastReply {
    /// Returns whether a call may report at its deadline that the lock is taken.
    pub(crate) fn says_taken(&self, start: Instant, deadline: Instant) -> bool {
        self.refused.as_ref().is_some_and(|refused| {
            refused.sent >= start
                && (refused.until >= deadline || refused.arrived.after(FRESH_FOR) >= deadline)
        })
    }

    /// Records a reply: Redis has run a command that was sent at `sent`.
    pub(crate) fn answered(&mut self, sent: Instant, now: Instant) {
        self.silent_since = None;
        self.cause = None;
        self.took = sent.until(now);
    }

    /// Records that the command sent at `sent` got no reply.
    pub(crate) fn failed(&mut self, sent: Instant, cause: Option<Cause>) {
        self.silent_since.get_or_insert(sent);
        if cause.is_some() {
            self.cause = cause;
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
            until,
            by,
        };
        // The reply to a later command may have arrived first, over another connection.
        if self.refused.as_ref().is_none_or(|last| last.sent <= sent) {
            self.refused = Some(refused.clone());
        }
        refused
    }

    /// Records that a lease of this client ended by its release at `now`: until then, the lock was
    /// taken.
    pub(crate) fn held_until(&mut self, now: Instant, by: Arc<RefusedName>) {
        self.refused = Some(Refused {
            sent: now,
            arrived: now,
            until: now,
            by,
        });
    }

    /// Records that the lock was free or held by this client at `now`: it was not taken for longer.
    pub(crate) fn cut(&mut self, now: Instant) {
        if let Some(refused) = &mut self.refused {
            refused.until = refused.until.min(now);
        }
    }

    /// Returns when the client asks once more for a call that has this deadline.
    pub(crate) fn ask_at(&self, start: Instant, deadline: Instant) -> Instant {
        if deadline == Instant::NEVER {
            return Instant::NEVER;
        }
        let before = LAST_ATTEMPT.max(self.took.saturating_mul(3));
        deadline.before(before.min(start.until(deadline) / 2))
    }
}
