//! The reply of a command, before it is written to a connection or handed to a script.

/// A reply of the Redis protocol, version 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Status(&'static str),
    Int(i64),
    /// A string, or nil.
    Bulk(Option<Vec<u8>>),
    /// A list, or the nil that takes the place of one.
    Array(Option<Vec<Self>>),
    /// The text with its code first: `WRONGTYPE Operation …`.
    Error(String),
}

impl Reply {
    pub(crate) const OK: Self = Self::Status("OK");
    pub(crate) const NIL: Self = Self::Bulk(None);

    pub(crate) fn bulk(text: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(Some(text.into()))
    }

    pub(crate) fn array(items: impl IntoIterator<Item = Self>) -> Self {
        Self::Array(Some(items.into_iter().collect()))
    }

    /// Returns the number of items of a collection.
    pub(crate) fn count(items: usize) -> Self {
        // No collection in memory has 2^63 items.
        Self::Int(i64::try_from(items).unwrap_or(i64::MAX))
    }

    pub(crate) fn flag(flag: bool) -> Self {
        Self::Int(i64::from(flag))
    }
}
