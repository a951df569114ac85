//! Hand-written equivalents of the crate's calls: the costs with which benches compare it.

/// Joins files of `src/protocol` to the source of a script.
macro_rules! source {
    ($($name:literal),+) => {
        concat!($(include_str!(concat!("../../../src/protocol/", $name, ".lua"))),+)
    };
}

pub(crate) mod batched;
pub(crate) mod fair;
pub(crate) mod mutex;
pub(crate) mod pair;
pub(crate) mod permits;
pub(crate) mod polling;
