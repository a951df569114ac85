//! What the program's threads do in a call: acquire, hold, release, list and shut down.

pub(crate) mod acquire;
mod failure;
pub(crate) mod list;
pub(crate) mod query;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod shutdown;
mod taken;
