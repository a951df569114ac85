//! A reply as it came from a server.

use std::str::FromStr;
use std::time::Duration;

use redis::ServerError;

/// A reply, or a message on a subscription.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Nil,
    Int(i64),
    Text(Vec<u8>),
    /// A simple string such as `OK`; no script of leasehold replies with one.
    Status(String),
    /// A list, or the keys and values of a map.
    List(Vec<Self>),
    Error(ServerError),
    /// In RESP3, what a server sends without having been asked.
    Push(Vec<Self>),
    Other,
}

impl Reply {
    /// Returns an error reply as an error.
    pub(crate) fn into_result(self) -> Result<Self, ServerError> {
        match self {
            Self::Error(error) => Err(error),
            reply => Ok(reply),
        }
    }

    pub(crate) fn into_list(self) -> Option<Vec<Self>> {
        match self {
            Self::List(items) => Some(items),
            _ => None,
        }
    }

    pub(crate) fn into_text(self) -> Option<Vec<u8>> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns a text, or `Some(None)` if there is none.
    #[expect(
        clippy::option_option,
        reason = "there may be no text, and the reply may be malformed"
    )]
    pub(crate) fn into_text_or_nil(self) -> Option<Option<Vec<u8>>> {
        match self {
            Self::Nil => Some(None),
            reply => reply.into_text().map(Some),
        }
    }

    pub(super) fn int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns a number that is not negative.
    pub(crate) fn count(&self) -> Option<u64> {
        u64::try_from(self.int()?).ok()
    }
}

/// Reads a number from its decimal digits, without a sign.
pub(crate) fn read_digits<T: FromStr>(digits: &[u8]) -> Option<T> {
    let digits = digits.iter().all(u8::is_ascii_digit).then_some(digits)?;
    str::from_utf8(digits).ok()?.parse().ok()
}

/// Reads a number from PTTL, or from a script that replies like it: -1 is a key without expiry, -2
/// a key that does not exist. Any other negative number is invalid: returns `None`.
#[expect(
    clippy::option_option,
    reason = "a key may not expire, and a number may be no valid reply"
)]
pub(super) fn read_pttl(pttl: i64) -> Option<Option<Duration>> {
    match pttl {
        -1 => Some(None),
        -2 => Some(Some(Duration::ZERO)),
        left => Some(Some(Duration::from_millis(left.try_into().ok()?))),
    }
}
