//! The client's threads, and the state they share with each other and with callers.

pub(crate) mod callbacks;
mod calls;
pub(crate) mod commands;
pub(crate) mod effects;
pub(crate) mod endpoint;
pub(crate) mod engine;
#[cfg(feature = "testing")]
pub(crate) mod live_clients;
pub(crate) mod snapshot;
pub(crate) mod state;
pub(crate) mod subscriber;
pub(crate) mod wake;
pub(crate) mod worker;

pub(crate) use crate::runtime::state::Runtime;
