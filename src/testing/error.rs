//! Makes every variant of [`Error`], for mocks, fakes and tests of how a program handles errors.
//!
//! ```
//! use leasehold::{Error, testing};
//!
//! fn status(error: &Error) -> u16 {
//!     match error {
//!         Error::CircuitOpen { .. } | Error::Unreachable { .. } => 503,
//!         _ => 500,
//!     }
//! }
//!
//! assert_eq!(status(&testing::error::unreachable("redis-1:6379", "no reply in 1.0 s")), 503);
//! assert_eq!(status(&testing::error::closed()), 500);
//! ```

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Cause, Error};
use crate::lost::Lost;

/// Makes an [`Error::Config`] with this message.
///
/// ```
/// use leasehold::testing::error;
///
/// let error = error::config("a lock's name must not be empty");
/// assert_eq!(error.to_string(), "a lock's name must not be empty");
/// ```
pub fn config(message: impl Into<String>) -> Error {
    Error::Config(message.into())
}

/// Makes an [`Error::Unreachable`]; `cause` is the text of the last failure.
///
/// ```
/// use leasehold::testing::error;
///
/// let error = error::unreachable("redis-1:6379", "no reply in 1.0 s");
/// assert!(error.is_unreachable() && error.is_retryable());
/// ```
pub fn unreachable(server: impl Into<String>, cause: &str) -> Error {
    Error::Unreachable {
        server: server.into(),
        cause: Cause::text(cause),
    }
}

/// Makes an [`Error::CircuitOpen`]; `last` is the text of the last failure.
///
/// ```
/// use std::time::Duration;
/// use leasehold::{Error, testing::error};
///
/// let error = error::circuit_open("redis-1:6379", 5, "no reply", Duration::from_secs(2));
/// let Error::CircuitOpen { retry_in, .. } = error else { panic!("{error}") };
/// assert_eq!(format!("Retry-After: {}", retry_in.as_secs()), "Retry-After: 2");
/// ```
pub fn circuit_open(
    server: impl Into<String>,
    failures: u32,
    last: &str,
    retry_in: Duration,
) -> Error {
    Error::CircuitOpen {
        server: server.into(),
        failures,
        last: Cause::text(last),
        retry_in,
    }
}

/// Makes an [`Error::Refused`]; `answer` is the error that Redis replied.
///
/// ```
/// use leasehold::testing::error;
///
/// let error = error::refused("redis-1:6379", "acquire", "NOPERM no access to the key");
/// assert!(!error.is_retryable());
/// assert_eq!(error.server(), Some("redis-1:6379"));
/// ```
pub fn refused(
    server: impl Into<String>,
    command: &'static str,
    answer: impl Into<String>,
) -> Error {
    Error::Refused {
        server: server.into(),
        command,
        answer: answer.into(),
        retried_for: None,
    }
}

/// Makes an [`Error::Refused`] whose reason may pass: the call was repeated for `retried_for`.
///
/// ```
/// use std::time::Duration;
/// use leasehold::testing::error;
///
/// let time = Duration::from_secs(10);
/// let error = error::refused_for("redis-1:6379", "acquire", "upstream failure", time);
/// assert!(error.is_retryable());
/// ```
pub fn refused_for(
    server: impl Into<String>,
    command: &'static str,
    answer: impl Into<String>,
    retried_for: Duration,
) -> Error {
    Error::Refused {
        server: server.into(),
        command,
        answer: answer.into(),
        retried_for: Some(retried_for),
    }
}

/// Makes an [`Error::NotReplicated`].
///
/// ```
/// use leasehold::testing::error;
///
/// assert!(error::not_replicated("redis-1:6379", 1, 2).may_be_held());
/// ```
pub fn not_replicated(server: impl Into<String>, acknowledged: usize, wanted: usize) -> Error {
    Error::NotReplicated {
        server: server.into(),
        acknowledged,
        wanted,
    }
}

/// Makes an [`Error::WrongType`] about a key.
///
/// ```
/// use leasehold::testing::error;
///
/// let error = error::wrong_type("redis-1:6379", "lock:report");
/// assert!(error.to_string().contains("lock:report at redis-1:6379"));
/// ```
pub fn wrong_type(server: impl Into<String>, key: impl Into<String>) -> Error {
    Error::WrongType {
        server: server.into(),
        key: key.into(),
    }
}

/// Makes an [`Error::BadFence`] about a key.
///
/// ```
/// use leasehold::testing::error;
///
/// let error = error::bad_fence("redis-1:6379", "leasehold:fence:{lock:report}");
/// assert!(!error.is_retryable());
/// ```
pub fn bad_fence(server: impl Into<String>, key: impl Into<String>) -> Error {
    Error::BadFence {
        server: server.into(),
        key: key.into(),
    }
}

/// Makes an [`Error::AttemptsUsedUp`].
///
/// ```
/// use leasehold::testing::error;
///
/// assert!(error::attempts_used_up(3).is_retryable());
/// ```
pub fn attempts_used_up(attempts: u32) -> Error {
    Error::AttemptsUsedUp { attempts }
}

/// Makes an [`Error::Lost`].
///
/// ```
/// use leasehold::testing::{error, lost};
///
/// assert_eq!(error::lost(lost::expired()).lost(), Some(lost::expired()));
/// ```
pub fn lost(lost: Lost) -> Error {
    Error::Lost(lost)
}

/// Makes an [`Error::Closed`].
///
/// ```
/// use leasehold::testing::error;
///
/// assert!(!error::closed().is_retryable());
/// ```
pub fn closed() -> Error {
    Error::Closed
}

/// Makes an [`Error::Forked`].
///
/// ```
/// use leasehold::testing::error;
///
/// assert!(!error::forked().may_be_held());
/// ```
pub fn forked() -> Error {
    Error::Forked
}

/// Makes an [`Error::Cancelled`].
///
/// ```
/// use leasehold::testing::error;
///
/// assert!(!error::cancelled().is_retryable());
/// ```
pub fn cancelled() -> Error {
    Error::Cancelled
}

/// Makes an [`Error::Shortage`] of what is `missing`.
///
/// ```
/// use std::io;
/// use leasehold::testing::error;
///
/// let error = error::shortage("no file descriptor left", io::Error::other("EMFILE"));
/// assert!(error.is_retryable() && !error.is_unreachable());
/// ```
pub fn shortage(missing: &'static str, cause: io::Error) -> Error {
    Error::Shortage {
        missing,
        cause: Arc::new(cause),
    }
}

/// Makes an [`Error::Thread`] about the thread with this name.
///
/// ```
/// use std::io;
/// use leasehold::testing::error;
///
/// let error = error::thread("leasehold-engine", io::Error::other("too many threads"));
/// assert!(error.to_string().contains("too many threads"));
/// ```
pub fn thread(name: &'static str, cause: io::Error) -> Error {
    Error::Thread {
        name,
        cause: Arc::new(cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has no wildcard arm, so a new variant does not compile until it is added here. Then also add
    /// its constructor.
    fn constructor(error: &Error) -> &'static str {
        match error {
            Error::Config(_) => "config",
            Error::Unreachable { .. } => "unreachable",
            Error::CircuitOpen { .. } => "circuit_open",
            Error::Refused { .. } => "refused",
            Error::NotReplicated { .. } => "not_replicated",
            Error::WrongType { .. } => "wrong_type",
            Error::BadFence { .. } => "bad_fence",
            Error::AttemptsUsedUp { .. } => "attempts_used_up",
            Error::Lost(_) => "lost",
            Error::Closed => "closed",
            Error::Forked => "forked",
            Error::Cancelled => "cancelled",
            Error::Shortage { .. } => "shortage",
            Error::Thread { .. } => "thread",
        }
    }

    #[test]
    fn every_variant_has_a_constructor_and_its_message() {
        let made = [
            (config("no such scheme"), "config", "no such scheme"),
            (unreachable("h:1", "no reply"), "unreachable", "h:1"),
            (
                circuit_open("h:1", 5, "no reply", Duration::from_secs(1)),
                "circuit_open",
                "after 5 failures at h:1 (last: no reply)",
            ),
            (refused("h:1", "acquire", "OOM full"), "refused", "OOM full"),
            (
                not_replicated("h:1", 1, 2),
                "not_replicated",
                "acknowledged to h:1",
            ),
            (wrong_type("h:1", "lock:a"), "wrong_type", "lock:a at h:1"),
            (
                bad_fence("h:1", "leasehold:fence:{lock:a}"),
                "bad_fence",
                "{lock:a} at h:1",
            ),
            (attempts_used_up(3), "attempts_used_up", "3 attempts"),
            (lost(Lost::Expired), "lost", "expired"),
            (closed(), "closed", "shut down"),
            (forked(), "forked", "made before fork"),
            (cancelled(), "cancelled", "was cancelled"),
            (
                shortage("no descriptor", io::Error::other("EMFILE")),
                "shortage",
                "no descriptor (EMFILE)",
            ),
            (
                thread("leasehold-engine", io::Error::other("no more")),
                "thread",
                "leasehold-engine: no more",
            ),
        ];
        for (error, name, text) in made {
            assert_eq!(constructor(&error), name);
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
