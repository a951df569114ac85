//! What a peer did that no Redis does: told apart from an error of the network.

use std::fmt;
use std::io;

use redis::RedisError;

use crate::escape::Escaped;

/// The most of what was read that an error repeats, in bytes.
const SHOWN: usize = 40;

/// The peer broke the protocol: the connection is of no more use, and the peer may be no Redis at all.
///
/// It travels inside a [`RedisError`], as the payload of an [`io::Error`] of the kind `InvalidData`, and is found there by
/// [`Violation::of`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) kind: Kind,
    /// The beginning of the reply, at most 40 bytes. Not escaped: whoever shows it must do so.
    pub(crate) read: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The first byte of the reply begins no RESP value: the peer speaks another protocol.
    NotResp,
    /// The reply begins as RESP and goes on as none.
    Malformed,
    /// The reply is longer, has more elements or is nested deeper than any reply of a Redis to a command of ours.
    TooLarge,
    /// The message on a subscription did not end in time.
    Endless,
}

impl Violation {
    pub(crate) fn new(kind: Kind, reply: &[u8]) -> Self {
        let read = reply.get(..SHOWN).unwrap_or(reply).to_vec();
        Self { kind, read }
    }

    /// The violation that `error` is about, if it is about one.
    pub(crate) fn of(error: &RedisError) -> Option<&Self> {
        payload(error)
    }

    /// Whether the peer speaks another protocol.
    pub(crate) fn is_not_resp(&self) -> bool {
        self.kind == Kind::NotResp
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            Kind::NotResp => "this does not look like Redis: the reply",
            Kind::Malformed => "malformed reply, which",
            Kind::TooLarge => "reply beyond all limits, which",
            Kind::Endless => "message that did not end in time, which",
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

/// The peer took the connection and has never said anything on it, as a TLS port does that is spoken to without TLS.
///
/// It travels as a [`Violation`] does. The [`io::Error`] around it has the kind of the event (`TimedOut`, `UnexpectedEof`,
/// `ConnectionReset`, …), so [`RedisError::is_timeout`] and [`RedisError::is_connection_dropped`] say what they would say
/// without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoFirstReply {
    /// It said nothing until the deadline.
    Silent,
    /// It closed the connection.
    Closed,
}

impl NoFirstReply {
    /// What `error` says of the peer's first reply, if it is about that.
    pub(crate) fn of(error: &RedisError) -> Option<Self> {
        payload(error).copied()
    }

    /// `error`, which came before any reply.
    pub(crate) fn mark(error: RedisError) -> RedisError {
        let kind = match io_error(&error) {
            // A refusal that TLS found in what the peer said, or a violation.
            Some(error) if error.get_ref().is_some() => None,
            Some(error) => Some(error.kind()),
            None => None,
        };
        match kind {
            Some(kind @ (io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)) => {
                io::Error::new(kind, Self::Silent).into()
            }
            Some(kind) if error.is_connection_dropped() => {
                io::Error::new(kind, Self::Closed).into()
            }
            _ => error,
        }
    }
}

impl fmt::Display for NoFirstReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Silent => "the peer accepted the connection, and sent nothing in time",
            Self::Closed => "the peer accepted the connection, and closed it without a reply",
        })
    }
}

impl std::error::Error for NoFirstReply {}

/// What an error of the connection carries, if it carries a `T`.
pub(crate) fn payload<T: std::error::Error + 'static>(error: &RedisError) -> Option<&T> {
    io_error(error)?.get_ref()?.downcast_ref()
}

/// The error of the connection in one of the client library, which wraps it twice.
fn io_error(error: &RedisError) -> Option<&io::Error> {
    std::error::Error::source(error)?
        .downcast_ref::<std::sync::Arc<dyn std::error::Error + Send + Sync>>()?
        .downcast_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoke() {
        let violation = Violation::new(
            Kind::NotResp,
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
    fn silence_and_hanging_up_stay_what_they_are() {
        for (kind, expected) in [
            (io::ErrorKind::TimedOut, Some(NoFirstReply::Silent)),
            (io::ErrorKind::UnexpectedEof, Some(NoFirstReply::Closed)),
            (io::ErrorKind::ConnectionReset, Some(NoFirstReply::Closed)),
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
        let violation = RedisError::from(Violation::new(Kind::NotResp, b"x"));
        assert!(Violation::of(&NoFirstReply::mark(violation)).is_some());
    }
}
