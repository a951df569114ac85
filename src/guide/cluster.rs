//! Locks in a Redis Cluster.
//!
//! ```
//! use leasehold::Client;
//!
//! let client = Client::open("redis+cluster://user:password@h1:7000,h2:7000/")?;
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! The URL lists some of the nodes; the client learns the others from them. All nodes use the same
//! user and password. That user must be allowed `CLUSTER SLOTS` and `ASKING`: see the
//! [permissions](crate::guide::operations#permissions-of-the-redis-user).
//!
//! - **Announced addresses.** The nodes announce where they are reached. If this machine cannot
//!   reach them there, as with containers or network address translation, set `cluster-announce-ip`
//!   at the nodes, or [`ClientBuilder::address_map`](crate::ClientBuilder::address_map). With TLS,
//!   each node's certificate must be for the announced name or address: see
//!   [operations](crate::guide::operations#tls).
//! - **Where a name is.** The keys of a name are in one slot, and the master of that slot keeps the
//!   lock. Calls go directly to it. A name with a `}` but no hash tag (`a}b`, `{}a`) would have
//!   keys in different slots; it fails with [`Error::Config`].
//! - **Releases are broadcast.** A release is published with `PUBLISH` on the master of the slot,
//!   where the waiters are subscribed, and the cluster forwards it to all nodes. A sharded channel
//!   would be in another slot than the lock.
//! - **Connections.** A client has one subscriber connection for each master in use. The same
//!   [threads](crate::guide::threads) serve all of them.
//! - **A promoted replica.** Calls, renewals and waiters follow. The client asks at once whether
//!   the new master has its leases. A client in which no call acquires, releases or waits for
//!   anything there notices the change at its next renewal, at most a third of the ttl later.
//! - **Nodes that disagree.** A node may be out of date. After a fault, the client asks at most
//!   five nodes for the slots, masters first, and waits at most 300 ms for the slower ones after
//!   enough others have answered. What most of them say of each slot counts. A master that works
//!   keeps its slots until most of them name another one, or it redirects a call (`MOVED`). A
//!   master that cannot be reached is not taken again from a node that has named it.
//! - **A slot that moves.** Its held locks stay held, and are renewed. Meanwhile Redis runs a call
//!   with several keys only if all of them exist on one node. A free name has no lock key, so it
//!   cannot be acquired until the slot has moved: calls wait for that, within their deadlines. For
//!   the same reason, a plain lock may be released without being passed on. A fair lock, a
//!   read-write lock or a semaphore may be neither passed on nor released until then. Calls that
//!   wait keep their order for 3 s, or for the ttl if that is shorter. If the slot moves for
//!   longer, they enter the queue again, in any order.
//!
//! [Guarantees and limitations](crate::guide::guarantees) apply here too, including those of a
//! failover.
//!
//! [`Error::Config`]: crate::Error::Config
