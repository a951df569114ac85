//! Sets of names above the kernel: a lease of the kernel for each name, all of which are needed.
//!
//! ```text
//! a call's thread ─▶ SetAcquire ──a call for each name, each after the one before──▶ kernel
//!                        │ all are granted                                             │
//!                        ▼                                                             │
//!                     SetLease ◀── what each part says: valid until then, lost ────────┘
//! ```
//!
//! No I/O, and no clock. Locks are taken in the order shard, lease, set: no method calls the kernel
//! under the lock of a set.

pub(crate) mod acquire;
mod at_once;
mod call;
mod cut;
pub(crate) mod holder;
mod in_queue;
pub(crate) mod lease;
pub(crate) mod names;
pub(crate) mod operation;
#[cfg(all(test, sim))]
mod tests;
pub(crate) mod tries;
mod watching;
