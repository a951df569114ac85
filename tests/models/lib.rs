//! Models of the protocol, one for each kind of queue or lock, and the search through their states.
//!
//! The tests in `tests/{permits,queue,rw,set}_model` say what is searched, and what must hold. The
//! models are a package of their own: a debug build optimizes this package alone, and the searches
//! are several times faster.

pub mod permits;
pub mod queue;
pub mod rw;
mod search;
pub mod set;

pub use search::{assert_found, searches_long};
