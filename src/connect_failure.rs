//! Reasons why no connection could be made that the next attempt may not meet.

use std::fmt;
use std::io;

use redis::RedisError;

use crate::violation::payload;

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
    /// A certificate has expired. Unlike the others, this lasts until a certificate is replaced.
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "no TLS"))]
    Expired(String),
}

impl ConnectFailure {
    /// Returns the failure that `error` carries, if any.
    pub(crate) fn of(error: &RedisError) -> Option<&Self> {
        payload(error)
    }

    /// Returns whether the server or the network caused it.
    pub(crate) fn is_servers_fault(&self) -> bool {
        matches!(self, Self::ClosedAt(_) | Self::Expired(_))
    }
}

impl fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(what) | Self::Expired(what) => f.write_str(what),
            Self::Rejected(answer) => write!(
                f,
                "the server rejected the credentials, which are asked for again at each connect: \
                 {answer}"
            ),
            Self::ClosedAt(command) => write!(f, "the peer closed the connection at {command}"),
        }
    }
}

impl std::error::Error for ConnectFailure {}

impl From<ConnectFailure> for RedisError {
    fn from(failure: ConnectFailure) -> Self {
        let kind = match &failure {
            ConnectFailure::Local(_) => io::ErrorKind::Other,
            ConnectFailure::Rejected(_) => io::ErrorKind::PermissionDenied,
            ConnectFailure::Expired(_) => io::ErrorKind::InvalidData,
            ConnectFailure::ClosedAt(_) => io::ErrorKind::UnexpectedEof,
        };
        io::Error::new(kind, failure).into()
    }
}
