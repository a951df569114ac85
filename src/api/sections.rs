//! The calls that run a closure under a lock, documented once for every kind.

use crate::error::Error;
use crate::lost::Lost;
use crate::with_error::WithError;

/// Implements the calls `$with` and `$try_with` of `$lock`, by means of `$acquire` and `$try`.
///
/// `$unlock` releases the guard. `$make` is the code that makes the lock in the examples.
macro_rules! section_calls {
    (
        $lock:ident, $guard:ident, $unlock:ident, $make:literal,
        $acquire:ident: $with:ident, $try:ident: $try_with:ident $(,)?
    ) => {
        /// Running a section under the lock.
        impl $lock {
            #[doc = concat!(
                "Calls [`", stringify!($acquire), "`](Self::", stringify!($acquire),
                "), runs `section`, releases, and returns what `section` returned."
            )]
            ///
            /// The lock is also released if `section` panics.
            ///
            /// ```
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            #[doc = concat!("let report = ", $make, ";")]
            #[doc = concat!(
                "let text = report.", stringify!($with),
                "(|guard| format!(\"{:?}\", guard.holder_id()))?;"
            )]
            /// // The first `?` is for the lock, the second for a section that can fail.
            #[doc = concat!(
                "let pages = report.", stringify!($with), "(|_| \"12\".parse::<u32>())??;"
            )]
            /// # assert_eq!(pages, 12);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            ///
            /// # Errors
            ///
            #[doc = concat!(
                "- [`WithError::NotAcquired`](crate::WithError::NotAcquired) with an error of [`",
                stringify!($acquire), "`](Self::", stringify!($acquire), "): `section` has not run."
            )]
            /// - [`WithError::Lost`](crate::WithError::Lost) with the value of `section`: `section`
            ///   ran to its end and returned this value; the lock was lost before the release. So
            ///   `section` may have overlapped with another holder.
            ///
            /// A release that Redis does not confirm is not an error here, because the lease was
            /// valid by this client's clock until `section` ended. The release is repeated in the
            /// background.
            pub fn $with<T>(
                &self,
                section: impl FnOnce(&$guard) -> T,
            ) -> Result<T, crate::WithError<T>> {
                let guard = self.$acquire().map_err(crate::WithError::NotAcquired)?;
                crate::api::sections::run(guard, section, $guard::$unlock)
            }

            #[doc = concat!(
                "Calls [`", stringify!($try), "`](Self::", stringify!($try),
                "). If that call acquires, runs `section`, releases, and returns its value."
            )]
            ///
            /// Otherwise returns [`Taken`](crate::Taken), and `section` has not run.
            ///
            /// ```
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            #[doc = concat!("let report = ", $make, ";")]
            #[doc = concat!(
                "if let Err(taken) = report.", stringify!($try_with),
                "(|_| println!(\"writing\"))? {"
            )]
            ///     println!("not written: {taken}");
            /// }
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            ///
            /// # Errors
            ///
            #[doc = concat!(
                "The errors of [`", stringify!($with), "`](Self::", stringify!($with), ")."
            )]
            #[doc = concat!(
                "`NotAcquired` contains an error of [`", stringify!($try), "`](Self::",
                stringify!($try), ")."
            )]
            pub fn $try_with<T>(
                &self,
                section: impl FnOnce(&$guard) -> T,
            ) -> Result<Result<T, crate::Taken>, crate::WithError<T>> {
                match self.$try().map_err(crate::WithError::NotAcquired)? {
                    Ok(guard) => crate::api::sections::run(guard, section, $guard::$unlock).map(Ok),
                    Err(taken) => Ok(Err(taken)),
                }
            }
        }
    };
}
pub(crate) use section_calls;

/// Runs `section` under `guard`, and then releases it with `unlock`.
pub(super) fn run<G, T>(
    guard: G,
    section: impl FnOnce(&G) -> T,
    unlock: impl FnOnce(G) -> Result<(), Error>,
) -> Result<T, WithError<T>> {
    let value = section(&guard);
    let lost = match unlock(guard) {
        Err(Error::Lost(lost)) => lost,
        // Another program has replaced the key, and a client may have held the lock in between.
        Err(Error::WrongType { .. }) => Lost::Taken,
        // The section has called `fork`, and this is the child.
        Err(Error::Forked) => Lost::Forked,
        // `unlock` has logged the failure.
        Ok(()) | Err(_) => return Ok(value),
    };
    Err(WithError::Lost { lost, value })
}
