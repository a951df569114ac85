//! The calls that run a closure under a lock, documented once for every kind.

use crate::error::Error;
use crate::lost::Lost;
use crate::with_error::WithError;

/// Implements the `with` calls of `$lock`, in pairs: one for a section that returns any value, and
/// one for a section that can fail.
///
/// Each line such as `$acquire: $with $with_result` names a call that acquires, and the pair that
/// uses it. `$unlock` releases the guard. `$make` is the code that makes the lock in the examples.
macro_rules! section_calls {
    (
        $lock:ident, $guard:ident, $unlock:ident, $make:literal,
        $acquire:ident: $with:ident $with_result:ident,
        $try:ident: $try_with:ident $try_with_result:ident,
        $try_for:ident: $try_with_for:ident $try_with_result_for:ident,
        $try_until:ident: $try_with_until:ident $try_with_result_until:ident $(,)?
    ) => {
        /// Running a section under the lock.
        impl $lock {
            #[doc = concat!(
                "Calls [`", stringify!($acquire), "`](Self::", stringify!($acquire),
                "), runs `section`, and releases."
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
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            ///
            /// # Errors
            ///
            #[doc = concat!(
                "- [`WithError::NotAcquired`](crate::WithError::NotAcquired) with an error of [`",
                stringify!($acquire), "`](Self::", stringify!($acquire), "): `section` has not run."
            )]
            /// - [`WithError::Lost`](crate::WithError::Lost) with the result of `section`:
            ///   `section` ran to its end and returned this result; the lock was lost before the
            ///   release. So `section` may have overlapped with another holder.
            ///
            /// A release that Redis does not confirm is not an error here, because the lease was
            /// valid by this client's clock until `section` ended. The release is repeated in the
            /// background.
            pub fn $with<T>(
                &self,
                section: impl FnOnce(&$guard) -> T,
            ) -> Result<T, crate::WithError<T>> {
                self.$with_result(|guard| Ok(section(guard)))
            }

            #[doc = concat!(
                "Calls [`", stringify!($acquire), "`](Self::", stringify!($acquire),
                "), runs a `section` that can fail, and releases."
            )]
            ///
            /// ```
            /// use leasehold::WithError;
            ///
            /// # let server = leasehold::testing::Server::start();
            /// # let client = server.client();
            #[doc = concat!("let report = ", $make, ";")]
            #[doc = concat!(
                "match report.", stringify!($with_result),
                "(|_| std::fs::read_to_string(\"report\")) {"
            )]
            ///     Ok(text) => println!("{text}"),
            ///     Err(WithError::Section(error)) => println!("cannot read it: {error}"),
            ///     Err(error) => println!("no lock: {error}"),
            /// }
            /// # Ok::<(), leasehold::Error>(())
            /// ```
            ///
            /// If the section fails with `Box<dyn Error>` or `anyhow::Error`, `?` does not convert
            /// the error. Write `.map_err(WithError::into_error)?`:
            ///
            /// ```
            /// use std::error::Error;
            /// use leasehold::{Client, WithError};
            ///
            /// fn pages(client: &Client) -> Result<u32, Box<dyn Error>> {
            #[doc = concat!("    let report = ", $make, ";")]
            #[doc = concat!(
                "    let pages = report.", stringify!($with_result),
                "(|_| -> Result<u32, Box<dyn Error>> {"
            )]
            ///         Ok(std::fs::read_to_string("pages")?.parse()?)
            ///     }).map_err(WithError::into_error)?;
            ///     Ok(pages)
            /// }
            /// # let server = leasehold::testing::Server::start();
            /// # assert!(pages(&server.client()).is_err(), "there is no such file");
            /// ```
            ///
            /// # Errors
            ///
            #[doc = concat!(
                "The errors of [`", stringify!($with), "`](Self::", stringify!($with), "), and"
            )]
            /// [`WithError::Section`](crate::WithError::Section) with the error of `section`.
            /// [`WithError::into_error`](crate::WithError::into_error) converts all of them to the
            /// error type of `section`. If `section` succeeded but its lease was lost, the
            /// conversion drops its value.
            pub fn $with_result<T, E>(
                &self,
                section: impl FnOnce(&$guard) -> Result<T, E>,
            ) -> Result<T, crate::WithError<T, E>> {
                let guard = self.$acquire().map_err(crate::WithError::NotAcquired)?;
                crate::api::sections::run(guard, section, $guard::$unlock)
            }

            crate::api::sections::try_section_calls!(
                $guard, $unlock, $make, $with $with_result,
                $try(): $try_with $try_with_result,
                "", [], "",
            );
            crate::api::sections::try_section_calls!(
                $guard, $unlock, $make, $with $with_result,
                $try_for(limit: ::std::time::Duration): $try_with_for $try_with_result_for,
                " `limit` does not bound the time that `section` takes.",
                ["use std::time::Duration;", "", "let second = Duration::from_secs(1);"],
                "second, ",
            );
            crate::api::sections::try_section_calls!(
                $guard, $unlock, $make, $with $with_result,
                $try_until(at: ::std::time::Instant): $try_with_until $try_with_result_until,
                " `at` does not bound the time that `section` takes.",
                [
                    "use std::time::{Duration, Instant};", "",
                    "let deadline = Instant::now() + Duration::from_secs(1);"
                ],
                "deadline, ",
            );
        }
    };
}
pub(crate) use section_calls;

/// Implements the pair of calls for one call that tries to acquire, with its `$limit`.
///
/// `$bound` is a sentence about that limit. The examples begin with the lines `$line`, and pass the
/// limit as `$argument`.
macro_rules! try_section_calls {
    (
        $guard:ident, $unlock:ident, $make:literal, $with:ident $with_result:ident,
        $try:ident($($limit:ident: $limit_type:ty)?): $try_with:ident $try_with_result:ident,
        $bound:literal, [$($line:literal),*], $argument:literal $(,)?
    ) => {
        #[doc = concat!(
            "Calls [`", stringify!($try), "`](Self::", stringify!($try),
            "). If that call acquires, runs `section`, and releases."
        )]
        ///
        #[doc = concat!("Otherwise returns `None`, and `section` has not run.", $bound)]
        ///
        /// ```
        $(#[doc = $line])*
        /// # let server = leasehold::testing::Server::start();
        /// # let client = server.client();
        #[doc = concat!("let report = ", $make, ";")]
        #[doc = concat!(
            "if report.", stringify!($try_with), "(", $argument,
            "|_| println!(\"writing\"))?.is_none() {"
        )]
        ///     println!("another holder is writing it");
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
            $($limit: $limit_type,)?
            section: impl FnOnce(&$guard) -> T,
        ) -> Result<Option<T>, crate::WithError<T>> {
            self.$try_with_result($($limit,)? |guard| Ok(section(guard)))
        }

        #[doc = concat!(
            "Calls [`", stringify!($try), "`](Self::", stringify!($try),
            "). If that call acquires, runs a `section` that can fail, and releases."
        )]
        ///
        #[doc = concat!("Otherwise returns `None`, and `section` has not run.", $bound)]
        ///
        /// ```
        $(#[doc = $line])*
        /// # let server = leasehold::testing::Server::start();
        /// # let client = server.client();
        #[doc = concat!("let report = ", $make, ";")]
        #[doc = concat!(
            "let pages = report.", stringify!($try_with_result), "(", $argument,
            "|_| \"12\".parse::<u32>());"
        )]
        /// assert!(matches!(pages, Ok(Some(12))), "{pages:?}");
        /// # Ok::<(), leasehold::Error>(())
        /// ```
        ///
        /// # Errors
        ///
        #[doc = concat!(
            "The errors of [`", stringify!($with_result), "`](Self::",
            stringify!($with_result), ")."
        )]
        #[doc = concat!(
            "`NotAcquired` contains an error of [`", stringify!($try), "`](Self::",
            stringify!($try), ")."
        )]
        pub fn $try_with_result<T, E>(
            &self,
            $($limit: $limit_type,)?
            section: impl FnOnce(&$guard) -> Result<T, E>,
        ) -> Result<Option<T>, crate::WithError<T, E>> {
            let guard = self.$try($($limit)?).map_err(crate::WithError::NotAcquired)?;
            let run = |guard| crate::api::sections::run(guard, section, $guard::$unlock);
            guard.map(run).transpose()
        }
    };
}
pub(crate) use try_section_calls;

/// Runs `section` under `guard`, and then releases it with `unlock`.
pub(super) fn run<G, T, E>(
    guard: G,
    section: impl FnOnce(&G) -> Result<T, E>,
    unlock: impl FnOnce(G) -> Result<(), Error>,
) -> Result<T, WithError<T, E>> {
    let result = section(&guard);
    let lost = match unlock(guard) {
        Err(Error::Lost(lost)) => lost,
        // Another program has replaced the key, and a client may have held the lock in between.
        Err(Error::WrongType { .. }) => Lost::Taken,
        // The section has called `fork`, and this is the child.
        Err(Error::Forked) => Lost::Forked,
        // `unlock` has logged the failure.
        Ok(()) | Err(_) => return result.map_err(WithError::Section),
    };
    Err(WithError::Lost { lost, result })
}
