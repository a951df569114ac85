//! What calls on a lock do, written once for every kind of lock.

pub(crate) mod acquire;
pub(crate) mod attempt;
pub(crate) mod fair_wait;
pub(crate) mod list;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod shutdown;
pub(crate) mod wait_state;
