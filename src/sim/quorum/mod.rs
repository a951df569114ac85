//! A simulation of clients and the servers of a quorum: the engine's rounds in virtual time.

mod actors;
mod check;
mod network;
pub(super) mod plan;
#[cfg(test)]
mod rules;
mod threads;
mod world;

pub(super) use world::World;
