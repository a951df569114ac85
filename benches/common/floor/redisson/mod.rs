//! Redisson's lock, fair lock, semaphore and read-write lock by hand. Each script sends the
//! commands of the original in their order. The documentation of each module names the Redisson
//! classes that it rewrites, as of Redisson's commit 66863978.
//!
//! Three differences favour Redisson:
//! * The first wait subscribes, for the whole run. In the original each call that must wait
//!   subscribes, tries again, and unsubscribes when it ends.
//! * A release message that arrives between an attempt and its wait ends the wait. The original
//!   ignores a writer's message at that moment, and sleeps for the remaining ttl that the attempt
//!   returned.
//! * Nothing renews a lease: the sections are shorter than its 30 s.

mod channel;
mod lock;
mod permits;
mod readers;

pub use channel::Channel;
pub use lock::RedissonLock;
pub use permits::RedissonPermits;
pub use readers::RedissonReaders;
