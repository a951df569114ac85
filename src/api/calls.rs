//! The calls of every kind of lock that differ only in their guard, documented once.

/// Implements these calls of `$lock` with its `lock`, `try_lock` and `try_lock_for`. `$make` is the
/// code of the examples that makes the lock.
macro_rules! lock_calls {
    ($lock:ident, $guard:ident, $make:literal) => {
        /// Acquiring until a point in time.
        impl $lock {
            /// Acquires the lock, waiting until `at` at the latest.
            ///
            /// Decides between `None` and an error as [`try_lock_for`](Self::try_lock_for) does.
            /// An `at` in the past asks once, as [`try_lock`](Self::try_lock) does.
            ///
            /// ```
            /// use std::time::{Duration, Instant};
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            ///
            /// let deadline = Instant::now() + Duration::from_secs(2); // of the whole request
            #[doc = concat!("let guard = ", $make, ".try_lock_until(deadline)?;")]
            /// # assert!(guard.is_some());
            /// # Ok::<(), leasehold::Error>(())
            /// ```
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
        }

        crate::api::sections::section_calls!(
            $lock, $guard, unlock, $make,
            lock: with with_result,
            try_lock: try_with try_with_result,
            try_lock_for: try_with_for try_with_result_for,
        );
    };
}
pub(crate) use lock_calls;
