//! Helpers for the calls that acquire a lock.

use std::sync::Arc;
use std::time::Duration;

use crate::api::lease::Lease;
use crate::client::acquire::{self, WaitLimit};
use crate::client::hold::Hold;
use crate::client::set;
use crate::client::shutdown::Core;
use crate::clock::Instant;
use crate::config::Settings;
use crate::error::Error;
use crate::protocol::primitive::Primitive;
use crate::set::names::SetNames;
use crate::taken::Taken;

/// Why a call without a deadline has a guard unless it fails.
pub(super) const ENDLESS: &str = "without a deadline, only an error ends the wait without the lock";

/// Returns the wait limit of a call that waits for at most `limit`.
pub(super) fn wait_limit(limit: Duration) -> WaitLimit {
    if limit.is_zero() {
        WaitLimit::None
    } else {
        WaitLimit::Until(Instant::now().after(limit))
    }
}

/// Acquires the lock of `keys`; returns [`Taken`] if it was not granted by the `limit`.
pub(super) fn acquire(
    core: &Arc<Core>,
    keys: &Arc<dyn Primitive>,
    settings: &Settings,
    limit: WaitLimit,
) -> Result<Result<Lease, Taken>, Error> {
    let acquired = acquire::acquire(&core.runtime, keys, settings, limit)?;
    let lease = |(lease, token)| Lease::new(Arc::clone(core), Hold::One(lease, token));
    Ok(acquired.map(lease))
}

/// Acquires all names; returns [`Taken`] if they were not granted by the `limit`.
pub(super) fn acquire_set(
    core: &Arc<Core>,
    names: &Arc<SetNames>,
    settings: &Settings,
    limit: WaitLimit,
) -> Result<Result<Lease, Taken>, Error> {
    let acquired = set::acquire(&core.runtime, names, settings, limit)?;
    let lease = |hold| Lease::new(Arc::clone(core), Hold::Set(hold));
    Ok(acquired.map(lease))
}
