//! What the holder of a lease asks the engine for: a renewal, another ttl, or to become a reader.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::client::failure;
use crate::clock::{Instant, nap};
use crate::config::check_ttl;
use crate::error::{Cause, Error};
use crate::kernel::held::HeldLease;
use crate::kernel::lease::{LeaseStatus, OperationCell, Wanted};
use crate::kernel::waiter::Failure;
use crate::lost::Lost;
use crate::protocol::primitive::Primitive;
use crate::runtime::Runtime;
use crate::token::FencingToken;

/// Renews the lease for its full ttl; waits for the reply until `until`.
pub(crate) fn renew(
    runtime: &Runtime,
    lease: &Arc<HeldLease>,
    token: FencingToken,
    until: Instant,
) -> Result<(), Error> {
    operate(runtime, lease, token, Wanted::Renew, until)
}

/// Sets another ttl, which can be shorter.
pub(crate) fn set_ttl(
    runtime: &Runtime,
    lease: &Arc<HeldLease>,
    token: FencingToken,
    ttl: Duration,
) -> Result<(), Error> {
    check_ttl(ttl)?;
    let until = Instant::now().after(runtime.deployment.command_timeout());
    operate(runtime, lease, token, Wanted::SetTtl(ttl), until)
}

/// Makes the lease of a writer that of a reader. Returns within the command timeout.
///
/// The holder counts as a reader from before the command is sent: if no reply arrives, the command
/// may have run, or may run later. Every later renewal repeats it. Until one has run, other readers
/// stay locked out. So this cannot fail; a loss is reported as usual.
pub(crate) fn downgrade(
    runtime: &Runtime,
    lease: &Arc<HeldLease>,
    token: FencingToken,
    reader: Arc<dyn Primitive>,
) {
    let until = Instant::now().after(runtime.deployment.command_timeout());
    // A failure on a connection that had died unnoticed is repeated at once; a later one by a
    // renewal.
    for _ in 0..2 {
        let wanted = Wanted::Downgrade(Arc::clone(&reader));
        match operate(runtime, lease, token, wanted, until) {
            Err(Error::Unreachable { .. }) if Instant::now() < until => {}
            _ => return,
        }
    }
}

/// Returns the status of the lease for the holder of `token`, and tells a loss that it finds.
pub(crate) fn status(
    runtime: &Runtime,
    lease: &Arc<HeldLease>,
    token: FencingToken,
) -> LeaseStatus {
    runtime.decide(|_, fx| lease.status_for(token, Instant::now(), fx))
}

/// Returns a channel that receives one message on loss.
pub(crate) fn listen(
    runtime: &Runtime,
    lease: &Arc<HeldLease>,
    token: FencingToken,
) -> Receiver<Lost> {
    runtime.decide(|_, fx| lease.listen(token, Instant::now(), fx))
}

/// Returns an error unless the lease is certainly held now by the holder with `token`.
pub(crate) fn ensure_held(
    runtime: &Runtime,
    lease: &Arc<HeldLease>,
    token: FencingToken,
) -> Result<(), Error> {
    match status(runtime, lease, token) {
        LeaseStatus::Held(_) => Ok(()),
        LeaseStatus::Lost(lost) => Err(Error::Lost(lost)),
        // Of the calls that end a holding, only `keep_for` leaves its guard.
        LeaseStatus::Released => Err(Error::Lost(Lost::Kept)),
    }
}

fn operate(
    runtime: &Runtime,
    lease: &Arc<HeldLease>,
    token: FencingToken,
    what: Wanted,
    until: Instant,
) -> Result<(), Error> {
    let now = Instant::now();
    let cell = runtime.decide(|kernel, fx| kernel.operate(lease, token, what, now, fx));
    let Some(cell) = cell else {
        return ensure_held(runtime, lease, token);
    };
    let result = wait_for(runtime, lease, &cell, until);
    ensure_held(runtime, lease, token)?;
    result
}

/// Waits for the end of an operation of the lease, until `until` at most.
pub(super) fn wait_for(
    runtime: &Runtime,
    lease: &HeldLease,
    cell: &Arc<OperationCell>,
    until: Instant,
) -> Result<(), Error> {
    let start = Instant::now();
    loop {
        let now = Instant::now();
        if let Some(result) = cell.result.lock().take() {
            return result.map_err(|why| failure::error(runtime, &*lease.lock, why, now));
        }
        if now >= until {
            lease.cancel(cell);
            let why = Failure::Unreachable {
                since: Some(start),
                cause: Some(Cause::no_reply(start.until(now))),
            };
            return Err(failure::error(runtime, &*lease.lock, why, now));
        }
        cell.parker.park_timeout(nap(now, until));
    }
}
