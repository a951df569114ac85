//! A waiting call of this client, and the cell for its outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(all(test, any(sim, threads)))]
use std::time::Duration;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::kernel::effects::Sleeper;
use crate::kernel::failure::{Failure, Refused};
use crate::kernel::held::HeldLease;
use crate::kernel::holder::{Holder, Taker};
use crate::parker::Parker;
use crate::protocol::primitive::Primitive;
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

    /// Returns whether a call with this number of refusals has made its last attempt.
    pub(crate) fn is_used_up(&self, refusals: u32) -> bool {
        match self {
            Self::Queue(WaitPolicy::Backoff(backoff)) => {
                backoff.limit().is_some_and(|limit| refusals >= limit)
            }
            Self::Queue(_) | Self::Once => false,
        }
    }
}

/// The terms of a call: a lock, a lease, and a wait.
#[derive(Clone)]
pub(crate) struct CallTerms {
    pub(crate) lock: Arc<dyn Primitive>,
    pub(crate) terms: LeaseTerms,
    pub(crate) wait: Wait,
    pub(crate) deadline: Instant,
    pub(crate) holder: Holder,
    /// The engine sends all commands: the call can be cancelled.
    pub(crate) by_engine: bool,
}

impl CallTerms {
    pub(super) fn taker(&self) -> Taker<'_> {
        Taker {
            holder: &self.holder,
            max_hold: self.terms.max_hold,
        }
    }
}

#[cfg(all(test, any(sim, threads)))]
impl CallTerms {
    /// Returns the terms of a call that waits without a deadline, for a lease without renewals.
    pub(crate) fn endless(lock: &Arc<dyn Primitive>, ttl: Duration) -> Self {
        Self {
            lock: Arc::clone(lock),
            terms: LeaseTerms {
                ttl,
                renew_every: None,
                max_hold: Duration::MAX,
                replicas: None,
                handoffs: 0,
                linger: Duration::ZERO,
            },
            wait: Wait::Queue(WaitPolicy::Wake),
            deadline: Instant::NEVER,
            holder: Holder::default(),
            by_engine: false,
        }
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

/// Where the outcome of a parked call is put, before its thread is unparked.
#[derive(Debug)]
pub(crate) struct WaiterCell {
    pub(crate) outcome: Mutex<Option<Outcome>>,
    /// The call has waited for another holder, or behind another call.
    pub(crate) has_waited: AtomicBool,
    pub(crate) parker: Parker,
    /// The parker of a thread that waits for several calls: it sleeps on this one instead.
    pub(crate) signal: Option<Arc<Parker>>,
}

impl Waiter {
    /// Returns whether a call that comes at `now` and does not wait must not go ahead of this one,
    /// which was refused. A call that sleeps by `Backoff`, without a place in a queue, has no turn.
    pub(crate) fn is_ahead(&self, now: Instant) -> bool {
        let has_turn = match self.wait {
            Wait::Once => false,
            Wait::Queue(WaitPolicy::Wake) => true,
            Wait::Queue(WaitPolicy::Backoff(_)) => self.lock.queue().is_some(),
        };
        has_turn && self.cell.has_waited() && now < self.deadline
    }

    pub(crate) fn note_waited(&self) {
        self.cell.has_waited.store(true, Ordering::Relaxed);
    }
}

impl WaiterCell {
    pub(crate) fn has_waited(&self) -> bool {
        self.has_waited.load(Ordering::Relaxed)
    }

    pub(crate) fn new() -> Self {
        Self {
            outcome: Mutex::new(None),
            has_waited: AtomicBool::new(false),
            parker: Parker::new(),
            signal: None,
        }
    }
}

impl Sleeper for WaiterCell {
    /// Returns the parker that the thread of the call sleeps on.
    fn parker(&self) -> &Parker {
        self.signal.as_deref().unwrap_or(&self.parker)
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
