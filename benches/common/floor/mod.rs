//! Hand-written equivalents of the crate's calls: the costs with which benches compare it.

pub(crate) mod batched;
pub(crate) mod fair;
pub(crate) mod mutex;
pub(crate) mod pair;
pub(crate) mod permits;
