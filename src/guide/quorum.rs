//! Locks over several independent servers (the Redlock algorithm).
//!
//! Pass the servers to [`Client::quorum`], or in one URL: `redis+quorum://h1,h2,h3`. A client holds
//! a lock once a majority of all servers has granted it. The lease's validity counts from before
//! the first request was sent. The client sends to all servers at once and returns as soon as
//! enough replies have arrived. A minority of the servers may be dead, hung or slow. A server that
//! stops replying can cost the calls in progress one timeout. The client then skips it until it
//! replies to a probe. Renewing a lease and declaring it lost also need a majority of all servers.
//! If no majority is reachable, every call fails with [`Error::Unreachable`] within its deadline,
//! and an acquiring call releases its lock on the servers that granted it.
//!
//! [`Mutex`](crate::Mutex) and [`MutexAll`](crate::MutexAll) work over a quorum.
//! [`FairMutex`](crate::FairMutex), [`RwLock`](crate::RwLock), [`Semaphore`](crate::Semaphore) and
//! [`min_replicas`](crate::Mutex::min_replicas) fail with [`Error::Config`](crate::Error::Config).
//! There is no queue: the first client to ask after a release gets the lock. If the servers answer
//! but never agree on a holder, such as because of keys without an expiry that another program has
//! left, [`lock`](crate::Mutex::lock) fails with [`Error::Unreachable`] after
//! [`unreachable_for`](crate::ClientBuilder::unreachable_for), and names the reason.
//!
//! A quorum keeps locks available when any single server fails, without a failover, and it heals: a
//! server that comes back without its data, or after more than a ttl, gets the keys of the leases
//! that are held back with their next renewals ([healing](#healing)). It does not tolerate several
//! servers that lose data within one renewal:
//!
//! - Let each server persist every write (`appendonly yes`, `appendfsync always`), or restart it no
//!   sooner than the longest ttl after it went down.
//! - The servers must be independent: not replicas of each other, and not on one machine. If two of
//!   the addresses lead to one server, calls that lock fail with
//!   [`Error::Config`](crate::Error::Config), which names both. A client finds this by its first
//!   calls, and also if an address leads to another server later.
//! - All clients must use the same servers.
//! - Use 3 or 5 servers. An even number tolerates no more failures than the odd number below it, so
//!   the client logs a warning.
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
//! * If a proposal fails because servers find its token too low, the client releases it on every
//!   server that may have granted it. It then proposes a higher token under a new holder id. Votes
//!   for different holder ids or different tokens are never added up: together they can look like
//!   a majority that no single proposal had.
//!
//! # Healing
//!
//! A lease that is held for long outlives restarts of all servers, one after the other, although
//! each loses its data. When a renewal finds the key gone at a server, and the connection of this
//! client that had last confirmed it there has ended since, the next renewal sets it again: once a
//! majority of *other* servers has confirmed the lease in that renewal. So restart the servers of a
//! quorum one at a time, and the next one only once `EXISTS lock:<name>` says that the key of each
//! lease that must last is back at this one. That takes a renewal or two (a third of the ttl each)
//! and the time to connect again; up to a ttl more if the attempt of another client has taken the
//! name at the empty server.
//!
//! * What is released stays released. `force_unlock`, `DEL` and `FLUSHALL` end no connection, so a
//!   key that they remove is not set again, and a lease that too few servers have is lost. A server
//!   that is being healed at that moment may set the key just after the release: it goes with the
//!   lease's guard, or within a ttl.
//! * A key that expires at a server while the connection lives is not set again, either: it cannot
//!   be told from a deleted one.
//! * At the server that was healed, the key has another holder id: the last three digits are a
//!   number, which is 000 for a fresh lease. [`inspect`](crate::Mutex::inspect), lists and
//!   `force_unlock` know it as the same holder. A number that may have been taken is not used again
//!   for the lease, so that a command that runs late finds none of its later keys. After 4,095 of
//!   them a lease is not healed any more; a server that answers each renewal with an error, because
//!   it is full, uses up one each time.
//! * The counter of that server is raised to the last token of the lease, and never lowered.
//!
//! # Limits of a quorum
//!
//! * *A key that expires early* (a server's clock jumps ahead, an eviction, a manual deletion) can
//!   lead to two holders. Their tokens still differ. A client that requests the lock after another
//!   became its holder still gets a higher token. Of two overlapping holders, the one that the
//!   shared server granted last has the higher token, and a fenced resource that has seen that
//!   token rejects the other. The holder with the lower token may still be the last to learn that
//!   it has a majority, so the order of learning and the order of tokens can then differ. A local
//!   hand-off uses a token that was reserved when its lease was granted. So in these orders its
//!   holder counts as if it had become the holder at that time.
//! * *A server that loses data* (an empty restart, `FLUSHALL`, an old snapshot, a failover to a
//!   lagging replica) breaks both mutual exclusion and the order of tokens. One such server is
//!   enough, until A's lease is whole and renewed again: servers 1 and 2 grant to A, server 1
//!   restarts empty, and servers 1 and 3 grant to B. Neither of these two knows A's token, so B's
//!   token can be lower. Tokens then follow the
//!   clients' clocks alone, and rise only as far as these agree. If the server stays down for the
//!   longest ttl, mutual exclusion holds. The order of tokens holds only if the server keeps its
//!   data (`appendfsync always`).
//! * *A lease that is not whole.* A lock is held once a majority has granted it. Until its first
//!   renewal, the last servers may not have its key: one of 3 that refused it, or was slow to
//!   connect. If another server loses its data before that, the lease is lost.
//! * *A key that an operator deletes at single servers*, one after the other, more than a renewal
//!   apart, and each time while the connection of the holder to that server breaks, looks like
//!   restarts: the lease lives on. [`force_unlock`](crate::Mutex::force_unlock) releases a lock at
//!   all servers at once, and so ends it.
//! * Counters expire 25 hours after the last grant. A counter that was set by a clock further ahead
//!   can expire before other clients' clocks reach it. Later tokens can then be lower.
//! * The clocks must run at the same rate, within the
//!   [margin](crate::guide::ttl#how-long-a-lease-is-certain) that is taken off the ttl. A holder
//!   that pauses between its check of the lease and its write still needs fencing.
//!
//! `tests/checks/quorum_model` searches all interleavings of up to three attempts at three servers,
//! with releases that run late, are lost, or overtake their acquire on another connection. It finds
//! no violation of these promises while the assumptions hold, and no key that outlives its release.
//! The same holds if servers restart without their data while each lease is whole, and are joined
//! again. It does find a violation for early expiry, for a server that loses data before that, and
//! for each of twelve deliberate mistakes in the protocol.
//!
//! [`Client::quorum`]: crate::Client::quorum
//! [`Error::Unreachable`]: crate::Error::Unreachable
