//! How calls wait for a lock, and in which order they get it.
//!
//! # Which order
//!
//! | lock | order within a client | order between clients |
//! |---|---|---|
//! | [`Mutex`] | first come, first served | first come, first served; a first attempt may overtake |
//! | [`FairMutex`] | first come, first served | first come, first served |
//! | [`RwLock`] | first come, first served | first come, first served; neighbouring readers together |
//! | [`Semaphore`] | first come, first served | first come, first served |
//! | [`MutexAll`] | the queue of each name | the queue of each name, one after the other |
//!
//! Calls for the plain lock, the fair lock, the read-write lock and sets of a name wait in the same
//! queue. All calls of a client for a plain lock share one place and hand the lock to each other.
//! Each call for a fair lock or a read-write lock has its own place. [`MutexAll`] describes what a
//! set keeps while it waits, and [`FairMutex`] what a process that dies in the queue costs the
//! others. `try_lock` never waits. It takes a plain lock that is free, even if other clients wait
//! in its queue: [`Mutex`] says when that happens. It never goes ahead of a call of its own client
//! that waits for the name, for whatever kind of lock.
//!
//! # How a call waits
//!
#![doc = include_str!("../../docs/grant.svg")]
//!
//! - A call that is refused enters the queue and sleeps. Meanwhile a thread of its client
//!   subscribes; no call waits for the confirmation. The release makes the first in the queue the
//!   holder and sends its client a message. The call then returns without another command.
//! - A client asks once for all its calls for a plain lock, and nothing while it has the lock
//!   itself. The calls sleep in a line, in memory: a thousand threads that wait for one name cost
//!   Redis as much as one. (Each call for a fair lock, a read-write lock or a semaphore has its own
//!   entry; a client refreshes all of them in one command.)
//! - Each client refreshes its places every 0.9 s, or more often if the ttl is shorter than 4 s. A
//!   lost message delays it by that time at most.
//! - If Redis forbids pub/sub, waiters receive no grants. Then each client asks about every 0.2 s,
//!   or after growing pauses of at most a second where there is no queue. Calls with
//!   [`WaitPolicy::Backoff`](crate::WaitPolicy::Backoff) ask after the pauses that the policy sets,
//!   or at their next refresh if that is sooner.
//!
//! Over a quorum, and in a client that is built with
//! [`queues(false)`](crate::ClientBuilder::queues), there is no queue. After the release, each client
//! asks for its first waiter, and the first to ask gets the lock. A waiter also asks when the lease
//! of the holder would expire, and after 1 s.
//!
//! # Several databases of one server
//!
//! The numbered databases of a server have their own keys, so locks of the same name in two of them
//! are independent, and so are their queues. But pub/sub has no databases. A release that finds
//! nobody in its queue is published, and wakes the waiters of that name in the other databases,
//! too. Each client that waits there then sends one command, which costs the server about 0.1 ms
//! and leaves the call in its place. No lock is granted to the wrong database. If two applications
//! use the same names often, give each its own
//! [`channel_prefix`](crate::ClientBuilder::channel_prefix): then neither wakes the other.
//!
//! # Local hand-offs
//!
//! If another call of the same client waits for a plain lock, a release hands it the lease without
//! asking Redis. The new holder has its own guard, its own `lost()` channel and a higher fencing
//! token. After a bounded run of hand-offs the lock is released in Redis, and the next client in
//! the queue gets it. [`Mutex::local_handoffs`](crate::Mutex::local_handoffs) sets the bound, and 0
//! turns hand-offs off. Other kinds of lock have none.
//!
//! [`Mutex::linger`](crate::Mutex::linger) extends this to a call that comes a little later: the
//! client keeps the lease for that time after `unlock`, and a thread that locks the name again in a
//! loop asks Redis once for each run. Clients that wait elsewhere pay for it: they get the lock
//! after the run, at most a second, and that time more.
//!
//! # Deadlines
//!
//! `lock` waits without a limit, through other holders and short outages. `try_lock_for` returns in
//! time even if Redis is dead, hung or unreachable.
//! [`Mutex::try_lock_for`](crate::Mutex::try_lock_for) states when that is
//! [`Taken`](crate::Taken), which names the holder, and when it is an error.
//!
//! # Cancelling
//!
//! A call of a lock with a [`CancelToken`](crate::CancelToken) ends with
//! [`Error::Cancelled`](crate::Error::Cancelled) as soon as another thread cancels the token, even
//! while Redis does not answer. The client itself goes on. What the call has sent is undone in the
//! background: its place leaves the queue, and a lock that it is granted after all is released.
//! [`Client::shutdown`](crate::Client::shutdown) and the drop of the last client wait for that, for
//! a limited time.
//!
//! [`FairMutex`]: crate::FairMutex
//! [`Mutex`]: crate::Mutex
//! [`MutexAll`]: crate::MutexAll
//! [`RwLock`]: crate::RwLock
//! [`Semaphore`]: crate::Semaphore
