//! The error of the calls that run a section under a lock.

use std::convert::Infallible;
use std::fmt;

use crate::error::Error;
use crate::lost::Lost;

/// The reason why a section did not run, failed, or lost its lock before the release.
///
/// The error of `with` and its variants, such as [`Mutex::with`](crate::Mutex::with). A section
/// that has run is never repeated, and its result is kept in the error: see
/// [`into_result`](Self::into_result). `E` is the error of a section that can fail, as in
/// [`Mutex::with_result`](crate::Mutex::with_result).
///
/// `?` converts a `WithError` to [`Error`] if the section cannot fail or fails with an `Error`. The
/// conversion drops the value of a section that has lost its lock. The `Error` does not say whether
/// the section has run, even if it [is retryable](Error::is_retryable): to try again, match on
/// [`NotAcquired`](Self::NotAcquired) before converting.
///
/// ```
/// use leasehold::WithError;
///
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// match client.mutex("report").with(|_| "the report") {
///     Ok(report) => println!("{report}"),
///     Err(WithError::Lost { lost, result: Ok(report), .. }) => {
///         println!("{report} is written, and may have been written by another, too: {lost}");
///     }
///     Err(error) => println!("not written: {error}"),
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub enum WithError<T, E = Infallible> {
    /// The lock was not acquired, and the section has not run.
    NotAcquired(Error),
    /// The section failed. It held the lock until its end.
    Section(E),
    /// The section ran to its end and returned `result`; the lock was lost before the release.
    ///
    /// It is not known when the lock was lost: while the section ran, or after its last effect. So
    /// the section may have overlapped with another holder. What it has committed counts, and must
    /// not be repeated: `result` tells. If the resource compares [fencing
    /// tokens](crate::guide::fencing), a section that has written was not overtaken before.
    #[non_exhaustive]
    Lost {
        /// Why the lock was lost.
        lost: Lost,
        /// What the section returned.
        result: Result<T, E>,
    },
}

impl<T, E> WithError<T, E> {
    /// Returns what the section returned; `None` if it has not run.
    ///
    /// ```
    /// use leasehold::{Error, WithError};
    ///
    /// let failed: WithError<i32, &str> = WithError::Section("no paper");
    /// assert_eq!(failed.into_result(), Some(Err("no paper")));
    /// let not_run: WithError<i32> = WithError::NotAcquired(Error::Closed);
    /// assert_eq!(not_run.into_result(), None);
    /// ```
    pub fn into_result(self) -> Option<Result<T, E>> {
        match self {
            Self::NotAcquired(_) => None,
            Self::Section(error) => Some(Err(error)),
            Self::Lost { result, .. } => Some(result),
        }
    }

    /// Returns the value of a section that succeeded but lost its lock; otherwise `None`.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let pages = client.mutex("report").with(|_| vec!["first", "last"]);
    /// // Whether another holder has printed them too does not matter here.
    /// let pages = pages.or_else(|error| error.into_value().ok_or("nothing was printed"));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn into_value(self) -> Option<T> {
        self.into_result()?.ok()
    }

    /// Returns the section's own error if it failed, otherwise the lock's error as that type.
    ///
    /// A section that succeeded and then lost its lock becomes [`Error::Lost`], although its work
    /// has been done. If it must not be repeated, for example because its write was
    /// [fenced](crate::guide::fencing) and committed, use [`into_value`](Self::into_value).
    ///
    /// For a caller with one error type:
    ///
    /// ```
    /// use std::error::Error;
    /// use leasehold::{Client, WithError};
    ///
    /// fn length_of_report(client: &Client) -> Result<usize, Box<dyn Error>> {
    ///     let report = client.mutex("report");
    ///     let read = |_: &_| Ok(std::fs::read_to_string("report")?.len());
    ///     report.with_result(read).map_err(WithError::into_error)
    /// }
    /// ```
    pub fn into_error(self) -> E
    where
        E: From<Error>,
    {
        match self {
            Self::NotAcquired(error) => error.into(),
            Self::Section(error)
            | Self::Lost {
                result: Err(error), ..
            } => error,
            Self::Lost { lost, .. } => Error::Lost(lost).into(),
        }
    }

    /// Returns why the lock was lost before its release; `None` if it was not.
    ///
    /// ```
    /// use leasehold::{Error, WithError};
    ///
    /// let not_run: WithError<()> = WithError::NotAcquired(Error::Closed);
    /// assert_eq!(not_run.lost(), None);
    /// ```
    pub fn lost(&self) -> Option<Lost> {
        match self {
            Self::Lost { lost, .. } => Some(*lost),
            _ => None,
        }
    }
}

impl<T> From<WithError<T>> for Error {
    fn from(error: WithError<T>) -> Self {
        match error {
            WithError::NotAcquired(error) => error,
            WithError::Lost { lost, .. } => Self::Lost(lost),
        }
    }
}

impl<T> From<WithError<T, Self>> for Error {
    fn from(error: WithError<T, Self>) -> Self {
        error.into_error()
    }
}

impl<T, E: fmt::Display> fmt::Display for WithError<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAcquired(error) => error.fmt(f),
            Self::Section(error) => error.fmt(f),
            Self::Lost { lost, result } => {
                // `source` is the section's own error.
                let returned = match result {
                    Ok(_) => "returned a value, which this error keeps",
                    Err(_) => "returned an error",
                };
                write!(
                    f,
                    "the section ran to its end and {returned}; \
                     the lock was lost before the release: {lost}"
                )
            }
        }
    }
}

/// Does not show the section's value, which need not implement `Debug`.
impl<T, E: fmt::Debug> fmt::Debug for WithError<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAcquired(error) => f.debug_tuple("NotAcquired").field(error).finish(),
            Self::Section(error) => f.debug_tuple("Section").field(error).finish(),
            Self::Lost { lost, result } => {
                let result = result.as_ref().map(|_| format_args!(".."));
                f.debug_struct("Lost")
                    .field("lost", lost)
                    .field("result", &result)
                    .finish()
            }
        }
    }
}

impl<T, E: std::error::Error + 'static> std::error::Error for WithError<T, E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // `Display` shows these errors, so the chain of sources goes on with their causes.
            Self::NotAcquired(error) => error.source(),
            Self::Section(error) => error.source(),
            Self::Lost { result, .. } => result.as_ref().err().map(|error| error as _),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::io;

    use super::*;

    #[test]
    fn the_value_of_a_section_outlives_the_loss_of_its_lock() {
        struct NotDebug(u8);
        let lost: WithError<_> = WithError::Lost {
            lost: Lost::Taken,
            result: Ok(NotDebug(7)),
        };
        assert_eq!(lost.lost(), Some(Lost::Taken));
        assert_eq!(format!("{lost:?}"), "Lost { lost: Taken, result: Ok(..) }");
        assert_eq!(
            lost.to_string(),
            "the section ran to its end and returned a value, which this error keeps; \
             the lock was lost before the release: another holder has the lock"
        );
        assert_eq!(lost.into_value().map(|value| value.0), Some(7));
    }

    #[test]
    fn the_error_of_a_section_is_shown_once_and_kept() {
        let failure = || io::Error::other("no paper");
        let failed: WithError<u8, _> = WithError::Section(failure());
        assert_eq!(failed.to_string(), "no paper");
        assert!(failed.source().is_none());
        let lost: WithError<u8, _> = WithError::Lost {
            lost: Lost::Expired,
            result: Err(failure()),
        };
        assert_eq!(
            lost.to_string(),
            "the section ran to its end and returned an error; \
             the lock was lost before the release: the lease expired"
        );
        let shown = format!("{lost:?}");
        assert!(shown.contains("result: Err(Custom"), "{shown}");
        assert_eq!(lost.source().unwrap().to_string(), "no paper");
        assert_eq!(
            lost.into_result().unwrap().unwrap_err().to_string(),
            "no paper"
        );
    }

    #[test]
    fn a_section_error_that_lock_errors_convert_to_is_the_only_one() {
        type Outcome = Box<dyn std::error::Error>;
        let of = |error: WithError<(), Outcome>| error.into_error().to_string();
        assert_eq!(of(WithError::Section("no paper".into())), "no paper");
        assert_eq!(
            of(WithError::NotAcquired(Error::Closed)),
            Error::Closed.to_string()
        );
        let lost = |result| WithError::Lost {
            lost: Lost::Deleted,
            result,
        };
        assert_eq!(of(lost(Ok(()))), Error::Lost(Lost::Deleted).to_string());
        assert_eq!(of(lost(Err("no paper".into()))), "no paper");
        let error = Error::from(WithError::<(), Error>::Section(Error::Closed));
        assert!(matches!(error, Error::Closed));
    }
}
