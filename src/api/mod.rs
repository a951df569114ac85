//! The public types: clients, locks and guards.

pub(crate) mod builder;
pub(crate) mod calls;
pub(crate) mod client;
pub(crate) mod env;
pub(crate) mod fair_mutex;
pub(crate) mod guard;
pub(crate) mod mutex;
pub(crate) mod mutex_all;
pub(crate) mod mutex_all_guard;
pub(crate) mod rw_lock;
pub(crate) mod rw_lock_guards;
pub(crate) mod sections;
pub(crate) mod semaphore;
pub(crate) mod semaphore_permit;
pub(crate) mod settings;
mod unwind;
