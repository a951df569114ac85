//! Redisson's semaphore and read-write lock by hand. Each script sends the commands of the original
//! in their order. Rewritten from the classes that the modules name, as of Redisson's commit
//! 66863978.
//!
//! Two differences favour Redisson:
//! * The first wait subscribes for the whole run. The original subscribes for each wait, tries
//!   again after that, and unsubscribes at the end.
//! * A message that arrives between an attempt and its wait ends the wait. The original ignores a
//!   writer's release at that moment, and sleeps until the lease would end.

mod channel;
mod permits;
mod readers;

pub use permits::RedissonPermits;
pub use readers::RedissonReaders;
