//! Helpers for the calls that acquire a lock, and the calls that `Mutex`, `FairMutex` and
//! `MutexAll` share: these differ only in their guard, and are documented once.

use std::sync::Arc;
use std::time::Duration;

use crate::api::guards::MutexGuard;
use crate::clock::Instant;
use crate::config::Settings;
use crate::error::Error;
use crate::lock::acquire::{WaitLimit, acquire};
use crate::lock::shutdown::Core;
use crate::protocol::primitive::Primitive;
use crate::taken::Taken;

/// Why a call without a deadline has a guard unless it fails.
pub(super) const ENDLESS: &str = "without a deadline, only an error ends the wait without the lock";

/// Returns the wait limit of a call that waits for at most `limit`.
pub(super) fn wait_limit(limit: Duration) -> WaitLimit {
    match limit.is_zero() {
        true => WaitLimit::None,
        false => WaitLimit::Until(Instant::now().after(limit)),
    }
}

/// Acquires the lock of `keys`; returns who has it if it was not granted by the `limit`.
pub(super) fn guard(
    core: &Arc<Core>,
    keys: &Arc<dyn Primitive>,
    settings: &Settings,
    limit: WaitLimit,
) -> Result<Result<MutexGuard, Taken>, Error> {
    let hold = acquire(&core.runtime, keys, settings, limit)?;
    Ok(hold.map(|hold| MutexGuard::new(Arc::clone(core), hold)))
}

/// Implements `try_lock_until` and the `with` calls of `$lock`, by means of its `lock`, `try_lock`
/// and `try_lock_for`. `$make` is the code of the examples that makes the lock.
macro_rules! lock_calls {
    ($lock:ident, $guard:ident, $make:literal) => {
        /// Acquiring until a point in time.
        impl $lock {
            /// Acquires the lock, waiting until `at` at the latest.
            ///
            /// Decides between `Taken` and an error as [`try_lock_for`](Self::try_lock_for) does.
            /// An `at` in the past asks once, as [`try_lock`](Self::try_lock) does.
            ///
            /// ```
            /// use std::time::{Duration, Instant};
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            ///
            /// let deadline = Instant::now() + Duration::from_secs(2); // of the whole request
            #[doc = concat!("let guard = ", $make, ".try_lock_until(deadline)?;")]
            /// # assert!(guard.is_ok());
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            ///
            /// # Errors
            ///
            /// The errors of [`try_lock_for`](Self::try_lock_for).
            pub fn try_lock_until(
                &self,
                at: ::std::time::Instant,
            ) -> Result<Result<$guard, crate::Taken>, crate::Error> {
                self.try_lock_for(crate::clock::left_until(at))
            }
        }

        crate::api::sections::section_calls!(
            $lock, $guard, unlock, $make,
            lock: with, try_lock: try_with,
        );
    };
}
pub(crate) use lock_calls;
