//! Checks that need no second process: the imports and the documents of the repository,
//! models of the protocol, and the form of what is serialized.

mod layers;
mod lease_model;
mod permits_model;
mod queue_model;
mod quorum_model;
mod repository;
mod rustdoc;
mod rw_model;
#[cfg(feature = "serde")]
mod serialize;
