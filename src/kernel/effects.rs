//! The effects of a decision. A thread carries them out when it has dropped all locks.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::{OnLost, OnRenew};
use crate::kernel::command::{Command, What};
use crate::kernel::fault::Fault;
use crate::kernel::held::HeldLease;
use crate::kernel::holder::Holder;
use crate::kernel::lease::OperationCell;
use crate::kernel::part::PartListener;
use crate::kernel::undo::PendingRelease;
use crate::kernel::waiter::{Failure, WaiterCell};
use crate::lost::Lost;
use crate::name::{Listed, Name};
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
    /// Wholes that have ended with one of their parts: the other parts are given up.
    pub(crate) over: Vec<Arc<dyn PartListener>>,
    /// Leases that were found lost. Their `lost()` channels have been served.
    pub(crate) lost: Vec<Told>,
    /// Leases that were lost while they lingered: nobody held them.
    pub(crate) lingering_lost: Vec<(Arc<HeldLease>, Lost)>,
    /// The ends of renewals and changes of ttl, but for those that found a loss.
    pub(crate) renewed: Vec<Renewal>,
    /// Each part of something was renewed once more.
    pub(crate) wholes_renewed: Vec<WholeRenewed>,
    /// Holdings that began: leases that were granted, and hand-offs.
    #[cfg(sim)]
    pub(crate) began: Vec<(Arc<HeldLease>, FencingToken)>,
    /// How many acquiring commands have begun.
    pub(crate) attempts: u32,
    /// How many calls another thread has woken, and how many of them found the lock taken.
    pub(crate) wakes: u32,
    pub(crate) spurious_wakes: u32,
    /// Values that may own a user's closure: the engine and the subscriber pass them to the thread
    /// of the callbacks.
    pub(crate) discard: Vec<Discard>,
}

/// Parked calls to wake. A thread that panics before it carries out its effects wakes them, too:
/// a call sleeps until its deadline unless somebody wakes it.
#[derive(Debug, Default)]
pub(crate) struct Parked(Vec<Arc<WaiterCell>>);

impl Parked {
    pub(crate) fn push(&mut self, cell: Arc<WaiterCell>) {
        self.0.push(cell);
    }

    #[cfg(sim)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<WaiterCell>> {
        self.0.iter()
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        for cell in &self.0 {
            cell.unpark();
        }
    }
}

/// A loss to report to the holder.
#[derive(Clone)]
pub(crate) struct Told {
    pub(crate) lease: Arc<HeldLease>,
    /// The names of the whole that is lost, if the lease is a part of one.
    pub(crate) whole: Option<Arc<[Name]>>,
    pub(crate) lost: Lost,
    pub(crate) token: FencingToken,
    pub(crate) trace_id: Option<Arc<str>>,
    pub(crate) on_lost: Option<Arc<OnLost>>,
}

impl Told {
    /// Returns the names that are lost.
    pub(crate) fn names(&self) -> Listed<'_> {
        Listed(self.whole.as_deref().unwrap_or(&self.lease.lock.names))
    }
}

/// The end of a renewal or a change of ttl.
#[derive(Debug)]
pub(crate) struct Renewal {
    pub(crate) lease: Arc<HeldLease>,
    pub(crate) end: Result<Confirmed, Fault>,
}

/// Each part of something was renewed once more: its holder wants to know.
pub(crate) struct WholeRenewed {
    pub(crate) names: Arc<[Name]>,
    /// The lease of the first name, and its token.
    pub(crate) lease: Arc<HeldLease>,
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
        write!(f, "{:?} of {:?}", self.lost, self.lease.id)
    }
}

/// A value to be dropped outside of all locks.
pub(crate) enum Discard {
    Holder(Holder),
    Lease(Arc<HeldLease>),
    Listener(Arc<dyn PartListener>),
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

    pub(super) fn orphan(&mut self, release: &PendingRelease) {
        let what = What::Undo {
            ids: vec![release.id.clone()],
        };
        let has_it = |it: &Command| it.what == what && Arc::ptr_eq(&it.lock, &release.lock);
        if !self.orphans.iter().any(has_it) {
            self.orphans.push(Command::new(&release.lock, what));
        }
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
