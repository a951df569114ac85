//! What the program's threads do in a call: acquire, hold, release, list and shut down.

pub(crate) mod acquire;
mod end_record;
mod failure;
pub(crate) mod hold;
pub(crate) mod list;
pub(crate) mod query;
pub(crate) mod release;
pub(crate) mod renew;
mod running;
pub(crate) mod set;
pub(crate) mod set_holding;
pub(crate) mod shutdown;
mod taken;
