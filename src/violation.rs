//! Errors of a peer that may not be Redis: replies that no Redis server sends, and no reply at all.

use std::fmt;
use std::io;

use redis::RedisError;

use crate::escape::Escaped;

/// How many bytes of the reply an error quotes.
const SHOWN: usize = 40;

/// The peer violated the protocol: the connection must be closed, and the peer may not be Redis.
///
/// A [`RedisError`] carries it as the payload of an [`io::Error`] of kind `InvalidData`;
/// [`Violation::of`] finds it there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) kind: ViolationKind,
    /// The first bytes of the reply, at most 40. They are not escaped.
    pub(crate) read: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ViolationKind {
    /// The first byte starts no RESP value: the peer speaks another protocol.
    NotResp,
    /// The first byte starts no TLS record, although the connection uses TLS.
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "no TLS"))]
    NotTls,
    /// The reply is invalid RESP after its first byte, does not fit the command, or answers no
    /// command.
    Malformed,
    /// The reply is longer, larger or more deeply nested than any Redis reply to our commands.
    TooLarge,
    /// A message on a subscription was not complete in time.
    Endless,
}

impl Violation {
    pub(crate) fn new(kind: ViolationKind, reply: &[u8]) -> Self {
        let read = reply.get(..SHOWN).unwrap_or(reply);
        // A peer may send back what it reads, and a password follows this word of the log-on.
        let auth = read.windows(4).position(|word| word == b"AUTH");
        let read = auth.and_then(|at| read.get(..at + 4)).unwrap_or(read);
        let read = read.to_vec();
        Self { kind, read }
    }

    /// Returns the violation that `error` carries, if any.
    pub(crate) fn of(error: &RedisError) -> Option<&Self> {
        payload(error)
    }

    /// Returns true if `error` is a reply beyond the limits.
    pub(crate) fn is_too_large(error: &RedisError) -> bool {
        Self::of(error).is_some_and(|violation| violation.kind == ViolationKind::TooLarge)
    }

    /// Returns true if the peer speaks another protocol.
    pub(crate) fn is_not_redis(&self) -> bool {
        matches!(self.kind, ViolationKind::NotResp | ViolationKind::NotTls)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            ViolationKind::NotResp => "this does not look like Redis: the reply",
            ViolationKind::NotTls => "this does not look like Redis with TLS: the reply",
            ViolationKind::Malformed => "malformed reply: it",
            ViolationKind::TooLarge => "reply larger than the limits: it",
            ViolationKind::Endless => "message not complete in time: it",
        };
        write!(f, "{what} begins \"{}\"", Escaped::whole(&self.read))
    }
}

impl std::error::Error for Violation {}

impl From<Violation> for RedisError {
    fn from(violation: Violation) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, violation).into()
    }
}

/// The peer accepted the connection and never sent anything, like a TLS port addressed without TLS.
///
/// A [`RedisError`] carries it as it carries a [`Violation`]. The [`io::Error`] around it keeps the
/// kind of the event (`TimedOut`, `UnexpectedEof`, `ConnectionReset`, …), so
/// [`RedisError::is_timeout`] and [`RedisError::is_connection_dropped`] return what they would
/// without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoFirstReply {
    /// It sent nothing until the deadline.
    Silent,
    /// It closed the connection, instead of a reply to this command if one is named.
    Closed(Option<&'static str>),
}

impl NoFirstReply {
    /// Returns the event that `error` carries, if any.
    pub(crate) fn of(error: &RedisError) -> Option<Self> {
        payload(error).copied()
    }

    /// Returns the error of a peer that closed the connection instead of a reply to `command`.
    pub(crate) fn closed_at(command: &'static str) -> RedisError {
        io::Error::new(io::ErrorKind::UnexpectedEof, Self::Closed(Some(command))).into()
    }

    /// Marks `error`, which came before any reply, if it is a timeout or a closed connection.
    pub(crate) fn mark(error: RedisError) -> RedisError {
        // A payload is a TLS error about the peer's data, or a violation.
        let bare = io_error(&error).filter(|error| error.get_ref().is_none());
        match bare.map(io::Error::kind) {
            Some(kind @ (io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)) => {
                io::Error::new(kind, Self::Silent).into()
            }
            Some(kind) if error.is_connection_dropped() => {
                io::Error::new(kind, Self::Closed(None)).into()
            }
            _ => error,
        }
    }
}

impl fmt::Display for NoFirstReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent => {
                f.write_str("the peer accepted the connection and sent nothing in time")
            }
            Self::Closed(command) => {
                f.write_str("the peer accepted the connection and closed it without a reply")?;
                command.map_or(Ok(()), |command| write!(f, " to {command}"))
            }
        }
    }
}

impl std::error::Error for NoFirstReply {}

/// Returns the payload of type `T` that an I/O error carries, if any.
pub(crate) fn payload<T: std::error::Error + 'static>(error: &RedisError) -> Option<&T> {
    io_error(error)?.get_ref()?.downcast_ref()
}

/// Returns the I/O error inside an error of the `redis` crate, which wraps it twice.
pub(crate) fn io_error(error: &RedisError) -> Option<&io::Error> {
    std::error::Error::source(error)?
        .downcast_ref::<std::sync::Arc<dyn std::error::Error + Send + Sync>>()?
        .downcast_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_is_found_inside_the_error() {
        let violation = Violation::new(
            ViolationKind::NotResp,
            b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\nmore",
        );
        assert_eq!(violation.read.len(), 40);
        let error = RedisError::from(violation.clone());
        assert_eq!(Violation::of(&error), Some(&violation));
        assert!(!error.is_timeout() && !error.is_connection_dropped());
        assert!(
            error
                .to_string()
                .contains("begins \"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\\r\\n\""),
            "{error}"
        );
        assert_eq!(NoFirstReply::of(&error), None);
    }

    #[test]
    fn a_marked_error_keeps_its_kind() {
        for (kind, expected) in [
            (io::ErrorKind::TimedOut, Some(NoFirstReply::Silent)),
            (
                io::ErrorKind::UnexpectedEof,
                Some(NoFirstReply::Closed(None)),
            ),
            (
                io::ErrorKind::ConnectionReset,
                Some(NoFirstReply::Closed(None)),
            ),
            (io::ErrorKind::PermissionDenied, None),
        ] {
            let plain = RedisError::from(io::Error::from(kind));
            let marked = NoFirstReply::mark(plain.clone());
            assert_eq!(NoFirstReply::of(&marked), expected);
            assert_eq!(marked.is_timeout(), plain.is_timeout());
            assert_eq!(
                marked.is_connection_dropped(),
                plain.is_connection_dropped()
            );
        }
        let violation = RedisError::from(Violation::new(ViolationKind::NotResp, b"x"));
        assert!(Violation::of(&NoFirstReply::mark(violation)).is_some());
    }
}
