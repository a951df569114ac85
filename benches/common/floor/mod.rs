//! Hand-written equivalents of the crate's calls. Their cost is the floor: what no client that
//! sends the same commands can go below.

/// Joins files of `src/protocol` to the source of a script.
macro_rules! source {
    ($($name:literal),+) => {
        concat!($(include_str!(concat!("../../../src/protocol/", $name, ".lua"))),+)
    };
}

pub(crate) mod batched;
pub(crate) mod fair;
pub(crate) mod mutex;
pub(crate) mod own_queue;
pub(crate) mod pair;
pub(crate) mod permits;
pub(crate) mod polling;
pub(crate) mod readers;
pub(crate) mod redisson;
