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
//! `rediss+sentinel://` encrypts the connections to the sentinels and to the master.
//! `?sentinel_tls=no` leaves out TLS for the sentinels, and `redis+sentinel://` with
//! `?sentinel_tls=yes` leaves it out for the master;
//! [`ClientBuilder::sentinel_tls`](crate::ClientBuilder::sentinel_tls) does the same. Without TLS to
//! the sentinels, anyone who can change that traffic chooses the master, and can read the password
//! of the sentinels. With TLS to the master, that server must have a certificate that the client
//! trusts.
//!
//! The client asks all sentinels in parallel for the master's address, and subscribes at each
//! sentinel to the announcements of failovers. After a failover, the client closes every connection
//! to the old master. It then immediately asks the new master about every lease that it holds, and
//! reports a lease that is missing there as lost. It repeats recent releases there, because the new
//! master may have received the leases and not their releases.
//!
//! If the sentinels name an address that only reaches the master from elsewhere, as with containers
//! or network address translation, set `replica-announce-ip` at the servers, or
//! [`ClientBuilder::address_map`](crate::ClientBuilder::address_map). The error of a client that
//! has reached no master says which address the sentinels name.
//!
//! # If the sentinels disagree
//!
//! A sentinel that comes back with an old configuration names an old master, which may still be
//! writable. A client that followed it would hold locks together with the clients that stayed. So
//! the client decides by what all sentinels say:
//!
//! - The highest epoch of a configuration wins, even if one sentinel alone has it. The sentinels
//!   decide in the same way. An epoch below that of most sentinels never counts. If the address
//!   with the highest epoch that the client has heard of does not answer, the client uses another
//!   one only if more than half of the configured sentinels name it. If every sentinel that answers
//!   is out of date, the client goes on trying the master that it knows.
//! - Some users may not ask for the epoch: this needs `+sentinel|master`. Without epochs, the
//!   client leaves a master that serves only if more than half of the configured sentinels name
//!   another one. It leaves a master that does not serve for any address that a sentinel names.
//! - The client moves to a server only after that server has answered `ROLE` as a master. If an
//!   address does not answer so, the client tries the other addresses first for the next 10 s, and
//!   keeps its connections to a master that serves. Only if more than half of the sentinels name
//!   such an address, the client gives up the old master nevertheless.
//! - Several names of one sentinel count once: this needs `+sentinel|myid`. One sentinel is its own
//!   majority.
//! - If the sentinels were set up again, and their epochs count from zero, the client follows them
//!   after 10 s in which most of them said so.
//!
//! The client waits at most 300 ms for the slower sentinels after enough others have answered. What
//! they answer later counts at the next question. It asks when a sentinel announces a failover,
//! after each subscription, and every 10 s, or every 2 s while the sentinels disagree. Each
//! subscription proves every 5 s that it is alive (`PING`), so a failover is noticed within about
//! 10 s even if a proxy or a sentinel hangs. A warning in the log names each sentinel that has
//! disagreed for more than 3 s.
//!
//! A new client can still be misled if no other sentinel answers it in time.
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
