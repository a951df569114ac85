//! What is counted, logged and reported of a holding that ends.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use crate::cause::Rounded;
use crate::clock::Instant;
use crate::error::{Cause, Error};
use crate::holder_id::HolderId;
use crate::logging;
use crate::lost::Lost;
use crate::protocol::primitive::Primitive;
use crate::redis::IgnoredRelease;
use crate::runtime::Runtime;
use crate::token::FencingToken;

/// A holding of a lock, or of the locks of a set.
pub(super) struct EndRecord<'a> {
    pub(super) runtime: &'a Runtime,
    pub(super) locks: &'a [Arc<dyn Primitive>],
    /// What is held, for messages.
    pub(super) what: &'a dyn Display,
    pub(super) id: &'a HolderId,
    pub(super) token: FencingToken,
    /// When the holding began.
    pub(super) since: Option<Instant>,
    pub(super) trace_id: Option<Arc<str>>,
    pub(super) ttl_ms: u64,
}

impl EndRecord<'_> {
    /// Returns an earlier release at one of the servers that got no answer, if the server has
    /// answered nothing since.
    pub(super) fn ignored(&self) -> Option<IgnoredRelease> {
        let deployment = &self.runtime.deployment;
        (self.locks.iter()).find_map(|lock| deployment.ignored_release(lock))
    }

    /// Records a release that began at `start` and got no answer.
    pub(super) fn note_ignored(&self, start: Instant, ignored: &IgnoredRelease) {
        for lock in self.locks {
            (self.runtime.deployment).note_ignored_release(lock, start, ignored);
        }
    }

    /// Returns the error of a release that is only sent in the background: each of many releases
    /// would wait for a whole command timeout. An earlier one got no answer for this `cause`.
    pub(super) fn sent_in_background(&self, cause: &Cause) -> Error {
        self.runtime.deployment.unreachable(Cause::silence(format!(
            "no answer since an earlier release failed ({cause}); this release is repeated in the \
             background"
        )))
    }

    /// Returns the error of a release that began at `start` and failed. Releases that follow at
    /// once do not wait as long.
    pub(super) fn not_released(&self, start: Instant, ignored: IgnoredRelease) -> Error {
        self.note_ignored(start, &ignored);
        let cause = ignored.cause.unserved_for(start.until(Instant::now()));
        self.runtime.deployment.unreachable(cause)
    }

    pub(super) fn unexpected(&self) -> Error {
        let cause = Cause::text("unexpected reply to the release script");
        self.runtime.deployment.unreachable(cause)
    }

    /// Counts the end of the holding.
    pub(super) fn count(&self, in_time: bool, now: Instant) {
        if let Some(since) = self.since {
            self.runtime.meters.released(in_time, since.until(now));
        }
    }

    /// Logs how the holding ended. `may_last` returns for how long a key may exist if no release
    /// arrives.
    pub(super) fn log(
        &self,
        outcome: &str,
        error: Option<&Error>,
        may_last: impl FnOnce(Instant) -> Duration,
    ) {
        let (what, short) = (self.what, self.id.short());
        let why = error.map_or_else(String::new, |error| {
            let may_last = Rounded(may_last(Instant::now()));
            format!(": {error}; without a release the key may stay for {may_last}")
        });
        logging::record!(
            if error.is_some() { log::Level::Warn } else { log::Level::Debug },
            name:% = what, holder:% = short, token = self.token.value(),
            outcome = outcome, ttl_ms = self.ttl_ms, trace_id = self.trace_id.as_deref();
            "{outcome} {what} (holder {short}){why}"
        );
    }

    pub(super) fn log_lost(&self, lost: Lost, is_renewed: bool) {
        let what = self.what;
        let why = match lost {
            Lost::Expired if is_renewed => {
                " (no renewal reached Redis in time, or this process stood still)"
            }
            Lost::Expired => " (it was not renewed: auto_renew is off)",
            _ => "",
        };
        logging::warn!(
            name:% = what, holder:% = self.id.short(), outcome:% = lost,
            ttl_ms = self.ttl_ms, trace_id = self.trace_id.as_deref();
            "the lease on {what} had ended before the release: {lost}{why}"
        );
    }
}
