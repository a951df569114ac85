//! Queries: calls that only read, and that are repeated if a connection has failed.

use crate::clock::Instant;
use crate::error::Error;
use crate::redis::Fault;
use crate::runtime::Runtime;

/// Calls `ask` with the command timeout as its deadline, and once more after a fault that `repeats`
/// accepts.
///
/// The pooled connection may have been dead already: only a second failure says anything about
/// Redis.
pub(super) fn query<T>(
    runtime: &Runtime,
    repeats: impl Fn(&Fault) -> bool,
    ask: impl Fn(Instant) -> Result<T, Fault>,
) -> Result<T, Error> {
    runtime.check_open()?;
    let until = Instant::now().after(runtime.deployment.command_timeout());
    let answer = match ask(until) {
        Err(fault) if repeats(&fault) && Instant::now() < until => ask(until),
        answer => answer,
    };
    answer.map_err(|fault| runtime.deployment.error(fault))
}

/// Returns true if a query with this fault may be repeated: no reply has come.
pub(super) fn may_repeat(fault: &Fault) -> bool {
    matches!(fault, Fault::NotRun(_) | Fault::Unknown(_))
}
