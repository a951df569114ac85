//! The calls on a lock, written once for every kind of lock.

pub(crate) mod acquire;
mod ask;
mod attempt;
mod cancellable;
pub(crate) mod downgrade;
pub(crate) mod list;
mod place;
pub(crate) mod query;
pub(crate) mod release;
pub(crate) mod renew;
mod replies;
mod set_place;
pub(crate) mod shutdown;
mod silence;
mod sleep;
mod take;
mod taken;
mod wait;
mod waiting_call;
