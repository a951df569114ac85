//! The public types: clients, locks and guards.

pub(crate) mod builder;
pub(crate) mod calls;
pub(crate) mod client;
pub(crate) mod env;
pub(crate) mod fair_mutex;
pub(crate) mod guards;
pub(crate) mod lease;
pub(crate) mod mutex;
pub(crate) mod mutex_all;
pub(crate) mod rw_lock;
pub(crate) mod sections;
pub(crate) mod semaphore;
pub(crate) mod settings;
#[cfg(all(test, feature = "testing"))]
mod tests;
mod unwind;
