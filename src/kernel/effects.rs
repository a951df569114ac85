//! The effects of a decision. A thread carries them out when it has dropped all locks.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::{OnLost, OnRenew};
use crate::holder_id::HolderId;
use crate::kernel::command::{Command, What};
use crate::kernel::failure::Failure;
use crate::kernel::fault::Fault;
use crate::kernel::holder::Holder;
use crate::kernel::operation::OperationCell;
use crate::lost::Lost;
use crate::name::{Listed, Name};
use crate::parker::Parker;
use crate::protocol::primitive::Primitive;
use crate::token::FencingToken;

/// The effects of a kernel call, in the order in which its caller carries them out.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// The undo to write behind the unanswered command, on its connection, without waiting.
    pub(crate) undo: Option<Command>,
    /// Calls whose outcome is stored, or that must read the clock, to be unparked.
    pub(crate) wake: Parked,
    /// Holders whose operation has ended, to be unparked.
    pub(crate) operations: Vec<Arc<OperationCell>>,
    /// How many calls the end of the client has ended.
    pub(crate) closed: usize,
    /// The engine must run by then: it is woken if it would sleep longer.
    pub(crate) engine_by: Option<Instant>,
    /// Locks whose messages somebody waits for now. Each has the number of its change: the effects
    /// of two threads can be carried out in the wrong order.
    pub(crate) listen: Vec<(Arc<dyn Primitive>, u64)>,
    /// Names for whose messages nobody waits any more, unless somebody has listened under a higher
    /// number.
    pub(crate) unlisten: Vec<(Name, u64)>,
    /// Releases that the engine, which has ended, cannot send: each is sent once.
    pub(crate) orphans: Vec<Command>,
    /// The leases of the parts of wholes that have ended with one of them: they are given up.
    pub(crate) over: Vec<AnyLease>,
    /// Leases that were found lost. Their `lost()` channels have been served.
    pub(crate) lost: Vec<Told>,
    /// Leases that were lost while they lingered: nobody held them.
    pub(crate) lingering_lost: Vec<(Arc<dyn Primitive>, HolderId, Lost)>,
    /// The ends of renewals and changes of ttl, but for those that found a loss.
    pub(crate) renewed: Vec<Renewal>,
    /// Each part of something was renewed once more.
    pub(crate) wholes_renewed: Vec<WholeRenewed>,
    /// Holdings that began: leases that were granted, and hand-offs.
    #[cfg(sim)]
    pub(crate) began: Vec<(AnyLease, FencingToken)>,
    /// How many acquiring commands have begun.
    pub(crate) attempts: u32,
    /// How many calls another thread has woken, and how many of them found the lock taken.
    pub(crate) wakes: u32,
    pub(crate) spurious_wakes: u32,
    /// Values that may own a user's closure: the engine and the subscriber pass them to the thread
    /// of the callbacks.
    pub(crate) discard: Vec<Discard>,
}

/// A lease: without its type, because the methods of leases have effects themselves.
pub(crate) type AnyLease = Arc<dyn Any + Send + Sync>;

/// Something that a thread sleeps on.
pub(crate) trait Sleeper: std::fmt::Debug + Send + Sync {
    fn parker(&self) -> &Parker;
}

/// Parked calls to wake. A thread that panics before it carries out its effects wakes them, too:
/// a call sleeps until its deadline unless somebody wakes it.
#[derive(Debug, Default)]
pub(crate) struct Parked(Vec<Arc<dyn Sleeper>>);

impl Parked {
    pub(crate) fn push(&mut self, call: Arc<dyn Sleeper>) {
        self.0.push(call);
    }

    #[cfg(sim)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Parker> {
        self.0.iter().map(|call| call.parker())
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        for call in &self.0 {
            call.parker().unpark();
        }
    }
}

/// A loss to report to the holder.
#[derive(Clone)]
pub(crate) struct Told {
    pub(crate) lock: Arc<dyn Primitive>,
    /// The names of the whole that is lost, if the lease is a part of one.
    pub(crate) whole: Option<Arc<[Name]>>,
    pub(crate) id: HolderId,
    pub(crate) token: FencingToken,
    pub(crate) lost: Lost,
    pub(crate) ttl_ms: u64,
    pub(crate) trace_id: Option<Arc<str>>,
    pub(crate) on_lost: Option<Arc<OnLost>>,
}

impl Told {
    /// Returns the names that are lost.
    pub(crate) fn names(&self) -> Listed<'_> {
        Listed(self.whole.as_deref().unwrap_or(&self.lock.names))
    }
}

/// The end of a renewal or a change of ttl.
pub(crate) struct Renewal {
    pub(crate) lock: Arc<dyn Primitive>,
    pub(crate) id: HolderId,
    pub(crate) token: FencingToken,
    pub(crate) ttl_ms: u64,
    pub(crate) trace_id: Option<Arc<str>>,
    pub(crate) on_renew: Option<Arc<OnRenew>>,
    pub(crate) end: Result<Confirmed, Fault>,
}

impl std::fmt::Debug for Renewal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {:?}", self.end, self.id)
    }
}

/// Each part of something was renewed once more: its holder wants to know.
pub(crate) struct WholeRenewed {
    pub(crate) names: Arc<[Name]>,
    /// Those of the lease of the first name.
    pub(crate) id: HolderId,
    pub(crate) token: FencingToken,
    /// Until when all parts last now.
    pub(crate) until: Instant,
    /// How long the last of these renewals took.
    pub(crate) took: Duration,
    pub(crate) on_renew: Arc<OnRenew>,
}

impl std::fmt::Debug for WholeRenewed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} until {:?}", Listed(&self.names), self.until)
    }
}

/// A renewal that the server has confirmed.
#[derive(Debug)]
pub(crate) struct Confirmed {
    /// How late it was.
    pub(crate) lag: Duration,
    /// How long the lease lasts now; `None` after a change of ttl.
    pub(crate) remaining: Option<Duration>,
    pub(crate) took: Duration,
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {:?}", self.lost, self.id)
    }
}

/// A shared value that may own a user's closure.
pub(crate) trait MayOwnClosure: Send + Sync {
    fn has_callbacks(&self) -> bool;
}

/// A value to be dropped outside of all locks.
pub(crate) enum Discard {
    Holder(Holder),
    Shared(Arc<dyn MayOwnClosure>),
    #[expect(dead_code, reason = "it is only dropped")]
    OnRenew(Arc<OnRenew>),
}

impl Discard {
    /// Returns whether it may own a user's closure.
    pub(crate) fn has_callbacks(&self) -> bool {
        match self {
            Self::Holder(holder) => holder.has_callbacks(),
            Self::Shared(shared) => shared.has_callbacks(),
            Self::OnRenew(_) => true,
        }
    }
}

impl std::fmt::Debug for Discard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("discard")
    }
}

impl Effects {
    pub(super) fn engine_by(&mut self, at: Instant) {
        self.engine_by = Some(self.engine_by.map_or(at, |before| before.min(at)));
    }

    pub(super) fn orphan(&mut self, lock: &Arc<dyn Primitive>, id: &HolderId) {
        let what = What::Undo {
            ids: vec![id.clone()],
        };
        let has_it = |it: &Command| it.what == what && Arc::ptr_eq(&it.lock, lock);
        if !self.orphans.iter().any(has_it) {
            self.orphans.push(Command::new(lock, what));
        }
    }

    /// The value is dropped outside of all locks.
    pub(super) fn discard(&mut self, shared: Arc<dyn MayOwnClosure>) {
        self.discard.push(Discard::Shared(shared));
    }

    /// Stores the result of an operation; its holder is woken.
    pub(super) fn operation_ended(
        &mut self,
        cell: &Arc<OperationCell>,
        result: Result<(), Failure>,
    ) {
        *cell.result.lock() = Some(result);
        self.operations.push(Arc::clone(cell));
    }
}
