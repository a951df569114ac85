//! Queries: calls that only read, so they may be repeated after a failed connection.

use crate::clock::Instant;
use crate::error::Error;
use crate::redis::Fault;
use crate::runtime::Runtime;

/// Calls `ask` with the command timeout as its deadline, and once more after a fault that `repeats`
/// accepts.
///
/// The first call may have failed because its pooled connection was dead already. Only a second
/// failure says anything about Redis. Both calls share the deadline.
pub(crate) fn query<T>(
    runtime: &Runtime,
    repeats: impl Fn(&Fault) -> bool,
    mut ask: impl FnMut(Instant) -> Result<T, Fault>,
) -> Result<T, Error> {
    runtime.check_open()?;
    let until = Instant::now().after(runtime.deployment.command_timeout());
    let answer = match ask(until) {
        Err(fault) if repeats(&fault) && Instant::now() < until => ask(until),
        answer => answer,
    };
    answer.map_err(|fault| runtime.deployment.error(fault))
}

/// Returns whether a query with this fault may be repeated: the server has not run it, or has not
/// replied.
pub(crate) fn may_repeat(fault: &Fault) -> bool {
    matches!(fault, Fault::NotRun(_) | Fault::Unknown(_))
}
