//! The waiting calls of this client. No I/O.

pub(crate) mod answers;
#[cfg(test)]
mod handoff_model;
pub(crate) mod held_leases;
pub(crate) mod local;
pub(crate) mod local_queue;
pub(crate) mod local_ticket;
pub(crate) mod name_places;
pub(crate) mod place_ticket;
pub(crate) mod places;
pub(crate) mod position;
mod recent;
pub(crate) mod sets;
