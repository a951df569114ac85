//! Leases: their states and hand-offs. No I/O.

pub(crate) mod handoff;
pub(crate) mod state;
pub(crate) mod status;
