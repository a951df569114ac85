//! Reasons why no connection could be made that the next attempt may not meet.

use std::fmt;
use std::io;

use redis::RedisError;

use crate::violation::{io_error, payload};

/// Why no connection could be made, although waiting calls may go on.
///
/// A [`RedisError`] carries it as the payload of an [`io::Error`]; [`ConnectFailure::of`] finds it
/// there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConnectFailure {
    /// The client could not try: a callback failed, or a file cannot be used.
    Local(String),
    /// The server rejected credentials that are asked for again at the next connect.
    Rejected(String),
    /// The peer closed the connection instead of a reply to this command of the log-on.
    ClosedAt(&'static str),
    /// A certificate has expired, or is for another name than the announced address. Unlike the
    /// others, this lasts until somebody changes that.
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "no TLS"))]
    Certificate(String),
    /// The peer accepted the connection and sent nothing until the deadline, like a TLS port
    /// addressed without TLS.
    Silent,
    /// The peer accepted the connection and closed it before it sent anything, instead of a reply
    /// to this command if one is named.
    ClosedUnheard(Option<&'static str>),
}

impl ConnectFailure {
    /// Returns the failure that `error` carries, if any.
    pub(crate) fn of(error: &RedisError) -> Option<&Self> {
        payload(error)
    }

    /// Returns the failure that `error` carries, if the peer has not sent anything.
    pub(crate) fn unheard(error: &RedisError) -> Option<&Self> {
        Self::of(error).filter(|it| matches!(it, Self::Silent | Self::ClosedUnheard(_)))
    }

    /// Returns whether the peer accepted the connection and sent nothing in time.
    pub(crate) fn is_silence(error: &RedisError) -> bool {
        Self::of(error) == Some(&Self::Silent)
    }

    /// Marks `error`, which came before any reply, if it is a timeout or a closed connection.
    ///
    /// [`RedisError::is_timeout`] and [`RedisError::is_connection_dropped`] return what they would
    /// without the mark.
    pub(crate) fn mark(error: RedisError) -> RedisError {
        // A payload is a TLS error about the peer's data, or a violation.
        let is_bare = io_error(&error).is_some_and(|error| error.get_ref().is_none());
        if is_bare && error.is_timeout() {
            Self::Silent.into()
        } else if is_bare && error.is_connection_dropped() {
            Self::ClosedUnheard(None).into()
        } else {
            error
        }
    }

    /// Returns whether the server or the network caused it.
    pub(crate) fn is_servers_fault(&self) -> bool {
        !matches!(self, Self::Local(_) | Self::Rejected(_))
    }
}

impl fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(what) | Self::Certificate(what) => f.write_str(what),
            Self::Rejected(answer) => write!(
                f,
                "the server rejected the credentials, which are asked for again at each connect: \
                 {answer}"
            ),
            Self::ClosedAt(command) => write!(f, "the peer closed the connection at {command}"),
            Self::Silent => {
                f.write_str("the peer accepted the connection and sent nothing in time")
            }
            Self::ClosedUnheard(command) => {
                f.write_str("the peer accepted the connection and closed it without a reply")?;
                command.map_or(Ok(()), |command| write!(f, " to {command}"))
            }
        }
    }
}

impl std::error::Error for ConnectFailure {}

impl From<ConnectFailure> for RedisError {
    fn from(failure: ConnectFailure) -> Self {
        let kind = match &failure {
            ConnectFailure::Local(_) => io::ErrorKind::Other,
            ConnectFailure::Rejected(_) => io::ErrorKind::PermissionDenied,
            ConnectFailure::Certificate(_) => io::ErrorKind::InvalidData,
            ConnectFailure::Silent => io::ErrorKind::TimedOut,
            ConnectFailure::ClosedAt(_) | ConnectFailure::ClosedUnheard(_) => {
                io::ErrorKind::UnexpectedEof
            }
        };
        io::Error::new(kind, failure).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::violation::{Violation, ViolationKind};

    #[test]
    fn a_marked_error_keeps_its_kind() {
        for (kind, expected) in [
            (io::ErrorKind::TimedOut, Some(ConnectFailure::Silent)),
            (
                io::ErrorKind::UnexpectedEof,
                Some(ConnectFailure::ClosedUnheard(None)),
            ),
            (
                io::ErrorKind::ConnectionReset,
                Some(ConnectFailure::ClosedUnheard(None)),
            ),
            (io::ErrorKind::PermissionDenied, None),
        ] {
            let plain = RedisError::from(io::Error::from(kind));
            let marked = ConnectFailure::mark(plain.clone());
            assert_eq!(ConnectFailure::of(&marked), expected.as_ref());
            assert_eq!(marked.is_timeout(), plain.is_timeout());
            assert_eq!(
                marked.is_connection_dropped(),
                plain.is_connection_dropped()
            );
        }
        let violation = RedisError::from(Violation::new(ViolationKind::NotResp, b"x"));
        assert!(Violation::of(&ConnectFailure::mark(violation)).is_some());
    }
}
