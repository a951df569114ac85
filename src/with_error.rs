//! The error of the calls that run a section under a lock.

use std::fmt;

use crate::error::Error;
use crate::lost::Lost;

/// The reason why a section did not run, or lost its lock before the release.
///
/// The error of `with` and `try_with`, such as [`Mutex::with`](crate::Mutex::with). It keeps the
/// value of a section that has run, because a section is never repeated. If the section can fail,
/// its value is a `Result`.
///
/// `?` converts a `WithError` to [`Error`]. The conversion drops the value. The `Error` does not
/// say whether the section has run, even if it [is retryable](Error::is_retryable): to try again,
/// match on [`NotAcquired`](Self::NotAcquired) before converting.
///
/// ```
/// use leasehold::WithError;
///
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// match client.mutex("report").with(|_| "the report") {
///     Ok(report) => println!("{report}"),
///     Err(WithError::Lost { lost, value }) => {
///         println!("{value} is written, and may have been written by another, too: {lost}");
///     }
///     Err(WithError::NotAcquired(error)) => println!("not written: {error}"),
/// }
/// ```
#[derive(Clone)]
pub enum WithError<T> {
    /// The lock was not acquired, and the section has not run.
    NotAcquired(Error),
    /// The section ran to its end and returned `value`; the lock was lost before the release.
    ///
    /// It is not known when the lock was lost: while the section ran, or after its last effect. So
    /// the section may have overlapped with another holder. What it has committed counts, and must
    /// not be repeated: `value` tells. If the resource compares [fencing
    /// tokens](crate::guide::fencing), a section that has written was not overtaken before.
    Lost {
        /// Why the lock was lost.
        lost: Lost,
        /// What the section returned.
        value: T,
    },
}

impl<T> WithError<T> {
    /// Returns the value of a section that has run, although it lost its lock.
    ///
    /// For a section whose writes are [fenced](crate::guide::fencing): the resource has decided,
    /// and what it has committed counts.
    ///
    /// ```
    /// use leasehold::{Client, Error, WithError};
    ///
    /// fn pages(client: &Client) -> Result<u32, Error> {
    ///     let report = client.mutex("report");
    ///     report.with(|_| 12).or_else(WithError::into_value)
    /// }
    /// # let server = leasehold::testing::Server::start();
    /// # assert_eq!(pages(&server.client())?, 12);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The error of [`NotAcquired`](Self::NotAcquired): the section has not run.
    pub fn into_value(self) -> Result<T, Error> {
        match self {
            Self::NotAcquired(error) => Err(error),
            Self::Lost { value, .. } => Ok(value),
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

impl<T> fmt::Display for WithError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAcquired(error) => error.fmt(f),
            Self::Lost { lost, .. } => write!(
                f,
                "the section ran to its end, and this error keeps its value; \
                 the lock was lost before the release: {lost}"
            ),
        }
    }
}

/// Does not show the section's value, which need not implement `Debug`.
impl<T> fmt::Debug for WithError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAcquired(error) => f.debug_tuple("NotAcquired").field(error).finish(),
            Self::Lost { lost, .. } => f
                .debug_struct("Lost")
                .field("lost", lost)
                .finish_non_exhaustive(),
        }
    }
}

impl<T> std::error::Error for WithError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // `Display` shows this error, so the chain of sources goes on with its cause.
            Self::NotAcquired(error) => error.source(),
            Self::Lost { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_of_a_section_outlives_the_loss_of_its_lock() {
        struct NotDebug(u8);
        let lost = WithError::Lost {
            lost: Lost::Taken,
            value: NotDebug(7),
        };
        assert_eq!(format!("{lost:?}"), "Lost { lost: Taken, .. }");
        assert_eq!(
            lost.to_string(),
            "the section ran to its end, and this error keeps its value; \
             the lock was lost before the release: another holder has the lock"
        );
        assert_eq!(lost.into_value().map(|value| value.0).unwrap(), 7);
    }
}
