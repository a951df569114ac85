//! Queries: calls that only read, so they may be repeated after a failed connection.

use crate::clock::Instant;
use crate::error::Error;
use crate::redis::Fault;
use crate::runtime::Runtime;

/// Calls `ask` with the command timeout as its deadline, and once more if the server has not run
/// it, or has not replied.
///
/// The first call may have failed because its pooled connection was dead already. Only a second
/// failure says anything about Redis. Both calls share the deadline. If the client is shut down
/// meanwhile, fails with [`Error::Closed`]. The caller has checked that it is in the process that
/// made the client.
pub(crate) fn query<T>(
    runtime: &Runtime,
    mut ask: impl FnMut(Instant) -> Result<T, Fault>,
) -> Result<T, Error> {
    runtime.check_not_closed()?;
    let until = Instant::now().after(runtime.deployment.command_timeout());
    let answer = match ask(until) {
        Err(Fault::NotRun(_) | Fault::Unknown(_)) if Instant::now() < until => ask(until),
        answer => answer,
    };
    answer.map_err(|fault| {
        if runtime.is_closed() {
            Error::Closed
        } else {
            runtime.deployment.error(fault)
        }
    })
}
