//! Locks on a master that sentinels replace when it fails.
//!
//! ```
//! use leasehold::Client;
//!
//! let client = Client::open("redis+sentinel://user:password@h1:26379,h2:26379/mymaster/0")?;
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! The URL lists the sentinels, and names the master and its database. The user and password are
//! the master's; `?sentinel_user=…&sentinel_pass=…` sets those of the sentinels.
//! [`ClientBuilder::sentinel`](crate::ClientBuilder::sentinel) takes the same values as separate
//! arguments.
//!
//! The client asks all sentinels in parallel for the master's address, and uses the first address
//! that it receives. It also subscribes at each sentinel to the announcements of failovers. After a
//! failover, the client closes every connection to the old master. It then immediately asks the new
//! master about every lease that it holds, and reports a lease that is missing there as lost. It
//! repeats recent releases there, because the new master may have received the leases and not their
//! releases.
//!
//! # What a failover can cost
//!
//! Redis replicates after it has replied. If a master dies before a lock has reached the replica
//! that is promoted, two holders are possible until the first one asks the new master.
//! [`min_replicas`](crate::Mutex::min_replicas) makes a lease count only once that many replicas
//! have it. If *all* replicas must acknowledge, any promoted replica has the lock. With fewer, a
//! failover may promote one that does not have it.
//!
//! `FAILOVERS=8 cargo bench --bench failovers` counts the failovers in which two processes held the
//! lock at the same time. Several processes contend for a lock on a master with two replicas and
//! three sentinels, and the master is killed, paused or failed over manually. Two holders were rare
//! without `min_replicas`, and did not occur with it. Each holder passes its fencing token to
//! a resource that rejects a token below the last one. It never accepted a token twice, so
//! the accepted tokens always rose.
