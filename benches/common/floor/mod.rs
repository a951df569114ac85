//! The same work by hand: what a lock costs without this crate.

pub(crate) mod batched;
pub(crate) mod fair;
pub(crate) mod mutex;
pub(crate) mod pair;
