//! The error of a call that failed.

use std::time::Duration;

use crate::clock::Instant;
use crate::error::{Cause, Error};
use crate::kernel::failure::Failure;
use crate::protocol::primitive::Primitive;
use crate::runtime::Runtime;

/// Returns the error of a call for `lock` that fails at `now`.
pub(super) fn error(runtime: &Runtime, lock: &dyn Primitive, why: Failure, now: Instant) -> Error {
    match why {
        Failure::Closed => Error::Closed,
        Failure::Cancelled => Error::Cancelled,
        Failure::Rejected(error) => error,
        Failure::Unreachable { since, cause } => {
            let silence = since.map_or(Duration::ZERO, |since| since.until(now));
            let cause = cause.unwrap_or_else(|| match since {
                Some(since) if since < now => {
                    (runtime.deployment).no_outcome(lock.keys().key(0), since, now)
                }
                _ => Cause::silence("no reply before the deadline"),
            });
            runtime.deployment.unreachable(cause.unserved_for(silence))
        }
        Failure::Open {
            open,
            has_sent: false,
            ..
        } => (*open).into(),
        // The lock may be held for the call: the error must not claim that nothing was sent.
        Failure::Open { open, since, .. } => {
            let silence = since.map_or(Duration::ZERO, |since| since.until(now));
            let last = open.last_at(runtime.deployment.label());
            runtime.deployment.unreachable(last.unserved_for(silence))
        }
        Failure::Restart => unreachable!("a set begins again in place of this outcome"),
    }
}
