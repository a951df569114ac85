//! Errors of a peer that may not be Redis: replies that no Redis server sends.

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
    /// Advice, with a leading separator; empty if the usual advice for the text is enough.
    hint: String,
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
        Self {
            kind,
            read: read.to_vec(),
            hint: String::new(),
        }
    }

    /// Returns this violation with what helps.
    pub(crate) fn with_hint(self, hint: String) -> Self {
        Self { hint, ..self }
    }

    /// Returns whether the peer speaks TLS, if the two sides differ in that.
    pub(crate) fn speaks_tls(&self) -> Option<bool> {
        match (self.kind, &*self.read) {
            // The alert with which a TLS server answers plain text.
            (ViolationKind::NotResp, [0x15, 0x03, ..]) => Some(true),
            (ViolationKind::NotTls, [b'-', ..]) => Some(false),
            _ => None,
        }
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
        let (read, hint) = (Escaped::whole(&self.read), &self.hint);
        write!(f, "{what} begins \"{read}\"{hint}")
    }
}

impl std::error::Error for Violation {}

impl From<Violation> for RedisError {
    fn from(violation: Violation) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, violation).into()
    }
}

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
    }
}
