//! The life of one lease. No I/O.

pub(crate) mod handoff;
pub(crate) mod held;
pub(crate) mod schedule;
pub(crate) mod state;
pub(crate) mod undo;
pub(crate) mod undos;
