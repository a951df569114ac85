//! The waiting calls of this client. No I/O.

pub(crate) mod answers;
pub(crate) mod fair;
pub(crate) mod fair_queue;
pub(crate) mod fair_ticket;
#[cfg(test)]
mod handoff_model;
pub(crate) mod held_leases;
pub(crate) mod local;
pub(crate) mod local_queue;
pub(crate) mod local_ticket;
pub(crate) mod parker;
pub(crate) mod position;
mod recent;
pub(crate) mod sets;
