//! A line of the display of `leasehold top`.

use std::time::Duration;

use leasehold::Held;

use crate::json::Object;
use crate::permits;
use crate::record::Record;
use crate::table::Missing;

/// A line of the display.
pub(crate) struct Row {
    pub(crate) subject: Subject,
    pub(crate) waiting: Result<u64, Missing>,
    /// How long the first call in the queue has waited.
    pub(crate) longest: Option<Duration>,
    /// Changes of holder per second.
    pub(crate) changes: f64,
}

pub(crate) enum Subject {
    Lock(Record),
    Semaphore(Held),
}

impl Subject {
    pub(crate) fn is_held(&self) -> bool {
        match self {
            Self::Lock(record) => record.holder.is_some(),
            Self::Semaphore(_) => true,
        }
    }

    pub(crate) fn json(&self) -> Object {
        match self {
            Self::Lock(record) => record.json(),
            Self::Semaphore(held) => permits::json(held),
        }
    }

    /// Returns the name, the holder, the time left and the token as text.
    pub(crate) fn cells(&self) -> [String; 4] {
        match self {
            Self::Lock(record) => record.cells(),
            Self::Semaphore(held) => permits::cells(held),
        }
    }
}
