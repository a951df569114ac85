//! A reply as it came from a server.

use std::time::Duration;

use redis::Value;

/// A reply, without the types of the redis crate.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Nil,
    Int(i64),
    Text(Vec<u8>),
    /// A simple string such as `OK`; no script of leasehold replies with one.
    Status(String),
    List(Vec<Self>),
    Other,
}

impl Reply {
    pub(super) fn into_list(self) -> Option<Vec<Self>> {
        match self {
            Self::List(items) => Some(items),
            _ => None,
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

impl From<Value> for Reply {
    fn from(value: Value) -> Self {
        match value {
            Value::Nil => Self::Nil,
            Value::Int(n) => Self::Int(n),
            Value::BulkString(text) => Self::Text(text),
            Value::SimpleString(text) => Self::Status(text),
            Value::Okay => Self::Status("OK".into()),
            Value::Array(items) => Self::List(items.into_iter().map(Self::from).collect()),
            // RESP2 sends a flat list instead.
            Value::Map(pairs) => {
                let items = pairs.into_iter().flat_map(|(key, value)| [key, value]);
                Self::List(items.map(Self::from).collect())
            }
            _ => Self::Other,
        }
    }
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
