//! How calls wait for a lock, and in which order they get it.
//!
//! # Which order
//!
//! | lock | order within a client | order between clients |
//! |---|---|---|
//! | [`Mutex`] | first come, first served | the first to ask after a release |
//! | [`FairMutex`] | first come, first served | first come, first served |
//! | [`RwLock`] | first come, first served | first come, first served; neighbouring readers together |
//! | [`Semaphore`] | first come, first served | first come, first served |
//! | [`MutexAll`] | the queue of each name | the queue of each name, one after the other |
//!
//! A set waits in the same queues as fair locks of its names; [`MutexAll`] describes what it keeps
//! while it waits. A fair lock and a plain one with the same name are one lock, but plain calls
//! ignore the queue of the fair one. [`FairMutex`] describes the queue, and what a process that
//! dies in it costs the others. `try_lock` never waits; on a plain lock it may overtake calls that
//! do.
//!
//! # How a call waits
//!
#![doc = include_str!("../../docs/wait_and_wake.svg")]
//!
//! - A call that is refused subscribes to the release, waits until Redis has confirmed that, asks
//!   once more, and only then sleeps. So it misses no release in between.
//! - Only the first waiter of a name in each client talks to Redis. The others sleep behind it, in
//!   memory: a thousand threads that wait for one name cost Redis as much as one.
//! - A waiter also wakes when the lease of the holder would expire, and after the
//!   [`backstop`](crate::ClientBuilder::backstop), 1 s unless set. So a lost message delays it by
//!   that time at most.
//! - If Redis forbids pub/sub, waiters retry after growing pauses instead.
//!   [`WaitPolicy::Backoff`](crate::WaitPolicy::Backoff) selects that behaviour for one lock.
//!
//! # Local hand-offs
//!
//! If another thread of the same client waits, a release hands it the lease without asking Redis.
//! The new holder has its own guard, its own `lost()` channel and a higher fencing token. After a
//! bounded run of hand-offs the lock is released in Redis, and other clients go first.
//! [`Mutex::local_handoffs`](crate::Mutex::local_handoffs) sets the bound, and 0 turns hand-offs
//! off.
//!
//! # Deadlines
//!
//! `lock` waits without a limit, through other holders and short outages. `try_lock_for` and
//! `try_lock_until` return in time even if Redis is dead, hung or unreachable.
//! [`Mutex::try_lock_for`](crate::Mutex::try_lock_for) states when that is `None` and when it is an
//! error.
//!
//! [`FairMutex`]: crate::FairMutex
//! [`Mutex`]: crate::Mutex
//! [`MutexAll`]: crate::MutexAll
//! [`RwLock`]: crate::RwLock
//! [`Semaphore`]: crate::Semaphore
