//! What this process or its machine has run out of.

use std::fmt;
use std::io;
use std::sync::Arc;

use redis::RedisError;
use rustix::io::Errno;

use crate::violation::{io_error, payload};

/// A failure that says nothing about the server: something is missing here.
///
/// A [`RedisError`] carries it as the payload of an [`io::Error`], or the error of the operating
/// system; [`Shortage::of`] finds both.
#[derive(Clone, Debug)]
pub(crate) struct Shortage {
    pub(crate) missing: Missing,
    pub(crate) cause: Arc<io::Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The thread with this name could not be started.
    Thread(&'static str),
    /// Something that a connection or a pipe needs.
    ForConnection(&'static str),
}

impl Shortage {
    pub(crate) fn of_thread(name: &'static str, cause: io::Error) -> Self {
        Self {
            missing: Missing::Thread(name),
            cause: Arc::new(cause),
        }
    }

    /// Returns what kept a pipe from being made.
    pub(crate) fn of_pipe(cause: io::Error) -> Self {
        let missing = missing(&cause).unwrap_or("this machine has no pipe left");
        Self {
            missing: Missing::ForConnection(missing),
            cause: Arc::new(cause),
        }
    }

    /// Returns the shortage that kept a connection from being made, if it was one.
    pub(crate) fn of(error: &RedisError) -> Option<Self> {
        if let Some(shortage) = payload::<Self>(error) {
            return Some(shortage.clone());
        }
        let error = io_error(error)?;
        Some(Self {
            missing: Missing::ForConnection(missing(error)?),
            // An `io::Error` is not `Clone`, and `missing` has found its code.
            cause: Arc::new(io::Error::from_raw_os_error(error.raw_os_error()?)),
        })
    }
}

/// Returns what is missing, if the system could not make a socket for that reason.
fn missing(error: &io::Error) -> Option<&'static str> {
    Some(match Errno::from_io_error(error)? {
        Errno::MFILE => {
            "this process has no file descriptor left: raise its limit (ulimit -n), or find what \
             leaves descriptors open"
        }
        Errno::NFILE => "this machine has no file descriptor left",
        Errno::NOBUFS | Errno::NOMEM => "this machine has no memory left for a connection",
        _ => return None,
    })
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = &self.cause;
        match self.missing {
            Missing::Thread(name) => write!(f, "cannot start the thread {name}: {cause}"),
            Missing::ForConnection(missing) => write!(f, "{missing} ({cause})"),
        }
    }
}

impl std::error::Error for Shortage {}

impl From<Shortage> for RedisError {
    fn from(shortage: Shortage) -> Self {
        io::Error::other(shortage).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_found_in_an_error() {
        let emfile = || io::Error::from_raw_os_error(Errno::MFILE.raw_os_error());
        let found = Shortage::of(&emfile().into()).unwrap().to_string();
        assert!(found.contains("no file descriptor left"), "{found}");
        let thread = Shortage::of_thread("leasehold-dial", emfile());
        let found = Shortage::of(&thread.into()).unwrap();
        assert_eq!(found.missing, Missing::Thread("leasehold-dial"));
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert!(Shortage::of(&refused.into()).is_none());
    }
}
