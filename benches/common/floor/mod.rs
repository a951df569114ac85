//! Hand-written equivalents of the crate's calls. Their cost is the floor: no client that sends the
//! same commands can be cheaper.

pub mod batched;
pub mod fair;
pub mod line;
pub mod mutex;
pub mod own_queue;
pub mod pair;
pub mod permits;
pub mod polling;
pub mod readers;
pub mod redisson;
