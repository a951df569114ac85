//! Locks over several independent servers (the Redlock algorithm).
//!
//! [`Client::quorum`] takes the servers, and so does the URL `redis+quorum://h1,h2,h3`. A client
//! holds a lock once a majority of all servers has granted it. Validity counts from before the
//! first request was sent. The client sends to all servers at once and returns as soon as enough
//! replies have arrived. A minority of the servers may be dead, hung or slow. A server that does
//! not reply costs one timeout; the client then skips it until it replies to a probe. Renewing a
//! lease and declaring it lost also need a majority of all servers. If fewer are reachable, every
//! call fails with [`Error::Unreachable`] within its deadline and releases what it was granted.
//!
//! [`Mutex`](crate::Mutex) and [`MutexAll`](crate::MutexAll) work over a quorum.
//! [`FairMutex`](crate::FairMutex), [`RwLock`](crate::RwLock), [`Semaphore`](crate::Semaphore) and
//! [`min_replicas`](crate::Mutex::min_replicas) fail with [`Error::Config`](crate::Error::Config).
//! There is no queue: the first client to ask after a release gets the lock.
//!
//! A quorum keeps locks available when any single server fails, without a failover. It does not
//! tolerate servers that lose data:
//!
//! - Let each server persist every write (`appendonly yes`, `appendfsync always`), or restart it no
//!   sooner than the longest ttl after it went down.
//! - The servers must be independent: not replicas of each other, and not on one machine.
//! - All clients must use the same servers.
//! - Use 3 or 5. An even number tolerates no more failures than one fewer, and logs a warning.
//!
//! # Why tokens rise over a quorum
//!
//! The servers share no counter, so the client proposes the token: its clock in microseconds, moved
//! ahead of the counters that it has seen on the servers. A server grants a proposal only if the
//! key is free and the token is above the server's counter. In the same step the server raises its
//! counter to the last token of the block reserved for local hand-offs. A client holds the lock
//! once a majority of all servers has granted the same token to the same holder id.
//!
//! * Any two majorities share a server. That server granted to both holders, one after the other.
//!   When it granted to the second, its counter had reached all of the first holder's tokens, so
//!   the second holder's tokens are higher.
//! * If no key expires early and no server loses data, the first holder's key prevented the shared
//!   server from granting again while the first lease was valid. So there is one holder at a time,
//!   and tokens rise in the order in which clients become holders. Validity counts from before the
//!   request was sent, so it ends no later than any key granted to that request. A renewal counts
//!   only if a majority of *all* servers renewed, so any other client would still need a server
//!   that has the renewed key.
//! * If a server finds a proposal too low, the client releases it everywhere and proposes a higher
//!   token under a new holder id. Votes for different holder ids or different tokens are never
//!   added up, because neither id may have had a majority.
//!
//! # Limits of a quorum
//!
//! * *A key that expires early* (a server's clock jumps ahead, an eviction, a manual deletion) can
//!   lead to two holders. Their tokens still differ. A client that requests the lock after another
//!   became its holder still gets a higher token. Of two overlapping holders, the one that the
//!   shared server granted last has the higher token, and a fenced resource that has seen that
//!   token rejects the other. The holder with the lower token may still be the last to learn that
//!   it has a majority, so the order of learning and the order of tokens can then differ. A token
//!   that was handed to another thread is as old as the lease that it belongs to.
//! * *A server that loses data* (an empty restart, `FLUSHALL`, an old snapshot, a failover to a
//!   lagging replica) breaks both promises; one such server is enough. Servers 1 and 2 grant to A,
//!   server 1 restarts empty, servers 1 and 3 grant to B, and no counter there is above B's token.
//!   Tokens then only follow the clients' clocks, and rise as far as those agree. A server that
//!   stays down for the longest ttl preserves mutual exclusion. Only a server that keeps its data
//!   (`appendfsync always`) also preserves the order of tokens.
//! * Counters expire a day after the last grant. A counter that was set by a clock more than a day
//!   ahead can expire before other clients' clocks reach it.
//! * The clocks must run at the same rate, within the drift that is subtracted from the validity. A
//!   pause between check and write still needs fencing.
//!
//! `tests/quorum_model` searches all interleavings of two to three attempts at three servers, with
//! releases that run late, are lost, or overtake their acquire on another connection. It finds no
//! violation of these promises while the assumptions hold, and no key that outlives its release. It
//! does find a violation for early expiry, for a server that loses data, and for each of ten
//! deliberate mistakes in the protocol.
//!
//! [`Client::quorum`]: crate::Client::quorum
//! [`Error::Unreachable`]: crate::Error::Unreachable
