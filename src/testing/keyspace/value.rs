//! The types of values, each with the name that TYPE reports.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(super) type StringValue = Vec<u8>;

/// Sorted by field. Redis's order is arbitrary.
pub(super) type HashValue = BTreeMap<Vec<u8>, Vec<u8>>;

pub(super) type ListValue = VecDeque<Vec<u8>>;

/// Sorted by member. Redis's order is arbitrary.
pub(super) type SetValue = BTreeSet<Vec<u8>>;

/// The score of each member. Each range sorts all members by score, because the sets of tests are
/// small.
pub(super) type SortedSetValue = BTreeMap<Vec<u8>, f64>;

#[derive(Clone, Debug)]
pub(super) enum Value {
    String(StringValue),
    Hash(HashValue),
    List(ListValue),
    Set(SetValue),
    SortedSet(SortedSetValue),
}

/// A type of values.
pub(super) trait ValueKind: Default {
    /// Returns the content of a value of this type; `None` for another type.
    fn of(value: &mut Value) -> Option<&mut Self>;
    fn into_value(self) -> Value;
    /// Returns true if Redis deletes a key with this value.
    fn is_empty(&self) -> bool;
}

/// Implements [`ValueKind`] for the type of a variant of [`Value`].
macro_rules! kind {
    ($type:ty, $variant:ident, $is_empty:expr) => {
        impl ValueKind for $type {
            fn of(value: &mut Value) -> Option<&mut Self> {
                match value {
                    Value::$variant(it) => Some(it),
                    _ => None,
                }
            }

            fn into_value(self) -> Value {
                Value::$variant(self)
            }

            fn is_empty(&self) -> bool {
                $is_empty(self)
            }
        }
    };
}

// Redis keeps an empty string, but deletes a key when its hash, list or set becomes empty.
kind!(StringValue, String, |_| false);
kind!(HashValue, Hash, HashValue::is_empty);
kind!(ListValue, List, ListValue::is_empty);
kind!(SetValue, Set, SetValue::is_empty);
kind!(SortedSetValue, SortedSet, SortedSetValue::is_empty);

impl Value {
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::String(_) => "string",
            Self::Hash(_) => "hash",
            Self::List(_) => "list",
            Self::Set(_) => "set",
            Self::SortedSet(_) => "zset",
        }
    }
}
