//! The record of a holding that ends: counters, log records, and the error of its holder.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use crate::cause::Rounded;
use crate::clock::Instant;
use crate::error::{Cause, Error};
use crate::holder_id::HolderId;
use crate::kernel::held::HeldLease;
use crate::kernel::holder::Facts;
use crate::kernel::unlock::Unlocked;
use crate::logging;
use crate::lost::Lost;
use crate::protocol::primitive::Primitive;
use crate::redis::IgnoredRelease;
use crate::runtime::Runtime;
use crate::set::lease::SetLease;
use crate::token::FencingToken;

/// The lease of a holding that ends: of a lock, or of a set.
pub(super) trait EndedLease {
    /// Returns whether the client renews it.
    fn is_renewed(&self) -> bool;

    /// Returns for how long a key may exist at `now` if no release arrives.
    fn key_may_last_at(&self, now: Instant) -> Duration;
}

impl EndedLease for HeldLease {
    fn is_renewed(&self) -> bool {
        Self::is_renewed(self)
    }

    fn key_may_last_at(&self, now: Instant) -> Duration {
        Self::key_may_last_at(self, now)
    }
}

impl EndedLease for SetLease {
    fn is_renewed(&self) -> bool {
        Self::is_renewed(self)
    }

    fn key_may_last_at(&self, now: Instant) -> Duration {
        Self::key_may_last_at(self, now)
    }
}

/// A holding of a lock, or of the locks of a set.
pub(super) struct EndRecord<'a> {
    pub(super) runtime: &'a Runtime,
    pub(super) lease: &'a dyn EndedLease,
    pub(super) locks: &'a [Arc<dyn Primitive>],
    /// The names, for messages.
    pub(super) what: &'a dyn Display,
    pub(super) id: &'a HolderId,
    pub(super) token: FencingToken,
    pub(super) facts: Facts,
}

impl EndRecord<'_> {
    /// Returns an earlier release at one of the servers that got no answer, if the server has
    /// answered nothing since.
    pub(super) fn ignored(&self) -> Option<IgnoredRelease> {
        let deployment = &self.runtime.deployment;
        (self.locks.iter()).find_map(|lock| deployment.ignored_release(lock))
    }

    /// Records a release that began at `start` and got no answer.
    fn note_ignored(&self, start: Instant, ignored: &IgnoredRelease) {
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

    /// Notes a release by the engine that got no answer in time.
    pub(super) fn note_unanswered<T>(&self, start: Instant, outcome: &Result<T, Error>) {
        if let Err(Error::Unreachable { cause, .. }) = outcome {
            let ignored = IgnoredRelease {
                cause: cause.clone(),
                was_refused: false,
            };
            self.note_ignored(start, &ignored);
        }
    }

    /// The engine sends the release that began at `start`: an earlier one got no answer.
    pub(super) fn left_to_the_engine(&self, start: Instant, cause: &Cause) -> Result<(), Error> {
        self.count(true, start);
        self.conclude(Unlocked::Unconfirmed, Some(self.sent_in_background(cause)))
    }

    /// Counts and logs the end of the releases that began at `start`, which found this.
    pub(super) fn ended(
        &self,
        unlocked: Unlocked,
        error: Option<Error>,
        start: Instant,
    ) -> Result<(), Error> {
        let is_lost =
            matches!(unlocked, Unlocked::Lost(_)) || matches!(error, Some(Error::WrongType { .. }));
        self.count(!is_lost, start);
        self.conclude(unlocked, error)
    }

    /// Logs the end of a release that found this, and returns the outcome for its holder.
    pub(super) fn conclude(&self, unlocked: Unlocked, error: Option<Error>) -> Result<(), Error> {
        match (unlocked, error) {
            (Unlocked::Lost(lost), _) => Err(Error::Lost(lost)),
            (_, Some(error)) => {
                self.log("release to be repeated", Some(&error));
                Err(error)
            }
            (Unlocked::Unconfirmed, None) => Err(self.unexpected()),
            (Unlocked::Released, None) => {
                self.log("released", None);
                Ok(())
            }
        }
    }

    /// The lease was lost before the holding ended at `now`.
    pub(super) fn was_lost(&self, lost: Lost, now: Instant) -> Result<(), Error> {
        self.count(false, now);
        self.log_lost(lost);
        Err(Error::Lost(lost))
    }

    fn unexpected(&self) -> Error {
        let cause = Cause::text("unexpected reply to the release script");
        self.runtime.deployment.unreachable(cause)
    }

    /// Counts the end of the holding.
    pub(super) fn count(&self, in_time: bool, now: Instant) {
        if let Some(since) = self.facts.since {
            self.runtime.meters.released(in_time, since.until(now));
        }
    }

    /// Logs how the holding ended.
    pub(super) fn log(&self, outcome: &str, error: Option<&Error>) {
        let (what, short) = (self.what, self.id.short());
        let why = error.map_or_else(String::new, |error| {
            let may_last = Rounded(self.lease.key_may_last_at(Instant::now()));
            format!(": {error}; without a release the key may stay for {may_last}")
        });
        logging::record!(
            if error.is_some() { log::Level::Warn } else { log::Level::Debug },
            name:% = what, holder:% = short, token = self.token.value(),
            outcome = outcome, ttl_ms = self.facts.ttl_ms,
            trace_id = self.facts.trace_id.as_deref();
            "{outcome} {what} (holder {short}){why}"
        );
    }

    fn log_lost(&self, lost: Lost) {
        let what = self.what;
        let why = match lost {
            Lost::Expired if self.lease.is_renewed() => {
                " (no renewal reached Redis in time, or this process stood still)"
            }
            Lost::Expired => " (it was not renewed: auto_renew is off)",
            _ => "",
        };
        logging::warn!(
            name:% = what, holder:% = self.id.short(), outcome:% = lost,
            ttl_ms = self.facts.ttl_ms, trace_id = self.facts.trace_id.as_deref();
            "the lease on {what} had ended before the release: {lost}{why}"
        );
    }
}
