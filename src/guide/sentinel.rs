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
//! [`ClientBuilder::sentinel`](crate::ClientBuilder::sentinel) takes the same without a URL.
//!
//! The client asks all sentinels at once, and subscribes to each for a failover. After one, it
//! closes every connection to the old master. Holders ask at once whether the new master has their
//! lease, and are notified if it does not. Recent releases are repeated on the new master.
//!
//! # What a failover can cost
//!
//! Redis replicates after it has replied. If a master dies before a lock has reached the replica
//! that is promoted, two holders are possible until the first one's next renewal.
//! [`min_replicas`](crate::Mutex::min_replicas) makes a lease count only once that many replicas
//! have it. If *all* replicas must acknowledge, any promoted replica has the lock. With fewer, a
//! failover may promote one that does not have it.
//!
//! `FAILOVERS=8 cargo bench --bench failovers` counts how often two holders coincide: contending
//! processes, one master, two replicas and three sentinels, and a master that is killed, paused and
//! failed over manually. Two holders are rare without `min_replicas`, and did not occur with it.
//! The fenced resource never took an older token after a newer one.
