//! The manual, by topic. These modules contain only documentation.

pub mod guarantees;
pub mod observability;
pub mod outages;
pub mod permissions;
pub mod quorum;
pub mod testing;
pub mod threads;
pub mod ttl;
