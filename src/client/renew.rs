//! The requests of a holder to the engine: a renewal, another ttl, or to become a reader.

use std::sync::Arc;

use crossbeam_channel::Receiver;

use crate::client::failure;
use crate::clock::{Instant, nap, wall_at_start};
use crate::error::{Cause, Error};
use crate::kernel::failure::Failure;
use crate::kernel::held::HeldLease;
use crate::kernel::operation::{OperationCell, Wanted};
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::parker::Parker;
use crate::protocol::primitive::Primitive;
use crate::runtime::Runtime;
use crate::set::operation::SetOperation;
use crate::token::FencingToken;

/// A lease, and the token of one of its holders.
#[derive(Clone, Copy)]
pub(crate) struct Holding<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) lease: &'a Arc<HeldLease>,
    pub(crate) token: FencingToken,
}

impl Holding<'_> {
    /// Makes the lease of a writer that of a reader. Returns within the command timeout.
    ///
    /// The holder counts as a reader from before the command is sent: if no reply arrives, the
    /// command may have run, or may run later. Every later renewal repeats it. Until one has run,
    /// other readers stay locked out. So this cannot fail; a loss is reported as usual.
    pub(crate) fn downgrade(self, reader: &Arc<dyn Primitive>) {
        let until = Instant::now().after(self.runtime.deployment.command_timeout());
        // A failure on a connection that had died unnoticed is repeated at once; a later one by a
        // renewal.
        for _ in 0..2 {
            match self.operate(Wanted::Downgrade(Arc::clone(reader)), until) {
                Err(Error::Unreachable { .. }) if Instant::now() < until => {}
                _ => return,
            }
        }
    }

    /// Returns the status of the lease for this holder, and tells a loss that it finds.
    pub(crate) fn status(self) -> LeaseStatus {
        let (lease, token, now) = (self.lease, self.token, Instant::now());
        let wall = wall_at_start();
        (self.runtime).decide(|kernel, fx| kernel.status_of(lease, token, wall, now, fx))
    }

    /// Returns a channel that receives one message on loss.
    pub(crate) fn listen(self) -> Receiver<Lost> {
        (self.runtime).decide(|_, fx| self.lease.listen(self.token, Instant::now(), fx))
    }

    /// Returns an error unless the lease is certainly held now by this holder.
    pub(crate) fn ensure_held(self) -> Result<(), Error> {
        check_held(self.status())
    }

    /// Has the engine send what is wanted, and waits for the reply until `until`.
    pub(crate) fn operate(self, what: Wanted, until: Instant) -> Result<(), Error> {
        let (lease, token, now) = (self.lease, self.token, Instant::now());
        let cell = (self.runtime).decide(|kernel, fx| kernel.operate(lease, token, what, now, fx));
        let Some(cell) = cell else {
            return self.ensure_held();
        };
        let result = self.wait_for(&cell, until);
        self.ensure_held()?;
        result
    }

    /// Waits for the end of an operation of the lease, until `until` at most.
    pub(super) fn wait_for(self, cell: &Arc<OperationCell>, until: Instant) -> Result<(), Error> {
        let pending = (self.lease, cell);
        wait_for(self.runtime, &*self.lease.lock, &pending, until)
    }
}

/// An operation that the engine sends: of a lease, or of each part of a set.
pub(super) trait Pending {
    /// Returns the result once there is one.
    fn result(&self) -> Option<Result<(), Failure>>;

    /// The parker of the caller until it looks at the result again.
    fn parker(&self) -> &Parker;

    /// The caller waits no more.
    fn cancel(&self);
}

impl Pending for (&Arc<HeldLease>, &Arc<OperationCell>) {
    fn result(&self) -> Option<Result<(), Failure>> {
        self.1.result.lock().take()
    }

    fn parker(&self) -> &Parker {
        &self.1.parker
    }

    fn cancel(&self) {
        self.0.cancel(self.1);
    }
}

impl Pending for SetOperation {
    fn result(&self) -> Option<Result<(), Failure>> {
        Self::result(self)
    }

    fn parker(&self) -> &Parker {
        Self::parker(self)
    }

    fn cancel(&self) {
        Self::cancel(self);
    }
}

/// Waits for the end of an operation of `lock`, until `until` at most.
pub(super) fn wait_for(
    runtime: &Runtime,
    lock: &dyn Primitive,
    pending: &impl Pending,
    until: Instant,
) -> Result<(), Error> {
    let error = |why, now| failure::error(runtime, lock, why, now);
    let start = Instant::now();
    loop {
        let now = Instant::now();
        if let Some(result) = pending.result() {
            return result.map_err(|why| error(why, now));
        }
        if now >= until {
            pending.cancel();
            let why = Failure::Unreachable {
                since: Some(start),
                cause: Some(Cause::no_reply(start.until(now))),
            };
            return Err(error(why, now));
        }
        pending.parker().park(now.after(nap(now, until)));
    }
}

/// Returns an error unless a lease with this status is certainly held.
pub(crate) fn check_held(status: LeaseStatus) -> Result<(), Error> {
    match status {
        LeaseStatus::Held(_) => Ok(()),
        LeaseStatus::InDoubt => Err(Error::Lost(Lost::Expired)),
        LeaseStatus::Lost(lost) => Err(Error::Lost(lost)),
        // Of the calls that end a holding, only `keep_for` leaves its guard.
        LeaseStatus::Released => Err(Error::Lost(Lost::Kept)),
    }
}
