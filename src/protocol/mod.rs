//! The wire protocol: keys, scripts, their calls, and the meaning of their replies. No I/O.

pub(crate) mod answer;
pub(crate) mod cohort;
pub(crate) mod fair;
pub(crate) mod keys;
pub(crate) mod mutex;
pub(crate) mod one_or_many;
pub(crate) mod permits_out;
pub(crate) mod place;
pub(crate) mod primitive;
pub(crate) mod probe;
pub(crate) mod queue_keys;
pub(crate) mod redirect;
pub(crate) mod refusal;
pub(crate) mod renew_many;
pub(crate) mod reply;
pub(crate) mod rw_lock;
pub(crate) mod script;
pub(crate) mod semaphore;
pub(crate) mod slot;
pub(crate) mod verb;

#[cfg(test)]
mod tests;
