//! A reply as it came from a server.

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
