//! The calls of every kind of lock that differ only in their guard, documented once.

use crate::error::Error;
use crate::lock::release::Unlocked;

/// Implements these calls of `$lock` with its `lock`, `try_lock` and `try_lock_for`.
macro_rules! lock_calls {
    ($lock:ident, $guard:ident) => {
        /// Acquiring until a point in time, and for a closure.
        impl $lock {
            /// Acquires the lock like [`try_lock_for`](Self::try_lock_for), waiting until `at` at
            /// the latest.
            ///
            /// An `at` in the past asks once, like [`try_lock`](Self::try_lock).
            ///
            /// # Errors
            ///
            /// The errors of [`try_lock_for`](Self::try_lock_for).
            pub fn try_lock_until(
                &self,
                at: ::std::time::Instant,
            ) -> Result<Option<$guard>, crate::Error> {
                self.try_lock_for(crate::clock::left_until(at))
            }

            /// Acquires the lock like [`lock`](Self::lock), runs `section`, and releases the lock.
            ///
            /// The lock is also released if `section` panics.
            ///
            /// ```
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            /// let total = client.mutex("report").with(|guard| {
            ///     format!("written under token {}", guard.fencing_token())
            /// })?;
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            ///
            /// # Errors
            ///
            /// - The errors of [`lock`](Self::lock): `section` has not run.
            /// - [`Error::Lost`](crate::Error::Lost): `section` has run, but the lock was lost
            ///   before it ended, so `section` may have overlapped with another holder.
            ///
            /// A release that Redis does not confirm is not an error here, because the lock was
            /// held until `section` ended. The release is repeated in the background.
            pub fn with<T>(&self, section: impl FnOnce(&$guard) -> T) -> Result<T, crate::Error> {
                crate::api::calls::run(self.lock()?, section, $guard::unlock)
            }

            /// Runs `section` under the lock if [`try_lock`](Self::try_lock) acquires it; otherwise
            /// returns `None`.
            ///
            /// Releases like [`with`](Self::with). After `None`, `section` has not run.
            ///
            /// # Errors
            ///
            /// The errors of [`try_lock`](Self::try_lock) and [`with`](Self::with).
            pub fn try_with<T>(
                &self,
                section: impl FnOnce(&$guard) -> T,
            ) -> Result<Option<T>, crate::Error> {
                let run = |guard| crate::api::calls::run(guard, section, $guard::unlock);
                self.try_lock()?.map(run).transpose()
            }
        }
    };
}
pub(crate) use lock_calls;

/// Runs `section` under `guard`, and then releases it with `unlock`.
pub(super) fn run<G, T>(
    guard: G,
    section: impl FnOnce(&G) -> T,
    unlock: impl FnOnce(G) -> Result<Unlocked, Error>,
) -> Result<T, Error> {
    let result = section(&guard);
    match unlock(guard) {
        Ok(Unlocked::AlreadyLost(lost)) => Err(Error::Lost(lost)),
        // `unlock` has logged the failure.
        Ok(Unlocked::Released) | Err(_) => Ok(result),
    }
}
