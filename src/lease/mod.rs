//! Leases: their states, hand-offs, releases and deadlines. No I/O.

pub(crate) mod handoff;
pub(crate) mod held;
pub(crate) mod release;
pub(crate) mod releases;
pub(crate) mod schedule;
pub(crate) mod state;
pub(crate) mod status;
