//! The threads and connections of a client.
//!
//! A client starts no lasting thread before its first call that acquires a lock. How many it has
//! does not depend on the number of servers and locks. Two of the threads have a pipe, which wakes
//! them.
//!
//! | thread | started by | purpose |
//! |---|---|---|
//! | `leasehold-engine` | the first lock | tracks the leases' deadlines; sends the commands of waiting calls after their first ones, renewals, repeated releases and shared statistics to all servers, and never waits for one of them; over its own connections if that leaves one to the calls |
//! | `leasehold-subscriber` | the first waiter; with Sentinel, the first lock | receives releases and grants over a connection to each server with waiters, and master changes over one to each sentinel |
//! | `leasehold-callbacks` | the first lock with a callback; the first log record of another thread in this table; with the feature `metrics`, two seconds after the first lock | runs `on_lost` and `on_renew`; after these, for the other threads, the program's logger and recorder |
//! | `leasehold-dial` | connecting, finding the master, and reading a cluster's slots | opens connections, looks up a host name, or asks a sentinel or a node; then ends |
//!
//! If a connection of `leasehold-subscriber` ends while no call waits, the next call that waits
//! has it made again. So a proxy may close connections on which a client sends nothing. If an
//! address leads to another server than before, for example after a failover behind a proxy, the
//! thread connects again within about 3 s, while a call waits. Behind a proxy that leads the calls
//! and the subscription to different servers at the same time, it does so every 30 s. The thread
//! does not wake while nothing arrives and no call waits; with Sentinel, it sends each sentinel a
//! `PING` every 5 s.
//!
//! There is never a thread per lock. Dropping the last client, lock or guard ends the threads and
//! waits for them, for at most one command timeout. The drop does not wait for `leasehold-dial`,
//! since nothing can interrupt the look-up of a host name.
//!
//! A panic of `leasehold-engine` would be a bug. It closes the client: every lease counts as lost,
//! with the reason [`Lost::ShutDown`](crate::Lost::ShutDown), since nobody would renew it.
//!
//! A call without a [`CancelToken`] sends its first commands, and its release, on the caller's
//! thread; a call with one, a call that waits, and all calls over a quorum leave theirs to
//! `leasehold-engine`. Over a quorum, all calls that lock, and the releases of their guards, share
//! one connection to each server. Elsewhere each call has its own connection with up to eight calls
//! at a time, or [`max_connections`](crate::ClientBuilder::max_connections) if that is fewer. With
//! more:
//!
//! - If the server is near (a round trip of at most 0.2 ms), the calls share one connection: one of
//!   the callers sends them in one write and reads all replies.
//! - If the server is farther away, each call has its own connection, up to `max_connections`. The
//!   calls beyond that wait for a connection and then share its next write.
//! - A release waits at most 5 ms for a shared connection, and then gets its own. A call that waits
//!   for replicas always has its own.
//!
//! A held lock needs no new connection while one works: if the server accepts no further one, as at
//! its `maxclients` or after a change of the password, renewals, releases and other calls share
//! those that exist.
//!
//! A thread that waits for a reply or for a lock sleeps.
//!
//! # Fork
//!
//! A child that `fork` makes has a copy of the client, but not its threads. The copy must not use
//! the connections, whose replies the parent reads. So each call compares the process id before
//! anything else, and in the child:
//!
//! - Calls fail at once with [`Error::Forked`](crate::Error::Forked), also those with a
//!   [`CancelToken`] from before the fork. Make another client, and other tokens.
//! - A guard holds nothing: [`is_held`](crate::Lease::is_held) is false, and
//!   [`ensure_held`](crate::Lease::ensure_held) fails. The parent still has the lock.
//! - Dropping a guard, a lock or a client sends nothing, and waits for nothing. Their memory and
//!   the copies of the sockets stay until the child ends or calls `exec`.
//! - A channel that [`lost`](crate::Lease::lost) returned before the fork never receives
//!   anything, and `on_lost` is never called.
//!
//! The parent goes on as before. Like any program with several threads, it should not fork at the
//! moment at which a thread starts or ends: std's own locks may then be locked for ever in the
//! child. A server that forks its workers does so best before it makes a client. The check cannot
//! see that a process is a child if it has the same process id as the parent: this happens only in
//! another PID namespace.
//!
//! [`CancelToken`]: crate::CancelToken
