//! The guarantees of the locks, and the conditions under which they do not hold.
//!
//! # Guarantees
//!
//! - **One holder.** If Redis keeps its data (see the limitations), at most one exclusive guard of
//!   a name (of a mutex, a set or a writer) returns true from
//!   [`is_held`](crate::Lease::is_held) at a time, across all processes. Meanwhile no reader's
//!   guard of that name does. A semaphore has at most as many permits out as the largest number
//!   that a client passes.
//! - **A loss is noticed.** `is_held` returns false from the moment at which another client could
//!   get the lock, unless the key is deleted or replaced by force (see the limitations). It reads a
//!   local clock, so no blocked thread or socket can delay it.
//!   [`lost`](crate::Lease::lost) and [`on_lost`](crate::Mutex::on_lost) follow as soon as the
//!   engine thread is scheduled. After the process was stopped (`SIGSTOP`, a frozen cgroup) or the
//!   machine suspended, they follow within a second, or with the first call of `is_held`. On Linux
//!   the clock counts the time for which the machine is suspended. For other systems, see the
//!   limitation about a paused machine.
//! - **Tokens rise.** The [fencing token](crate::FencingToken) of every holder of a mutex, and of
//!   every writer, is higher than all earlier ones. Readers share the token of the last writer. If
//!   Redis has lost the last token, this holds only if the server's clock is not behind the time at
//!   which that token was drawn; readers can then share the token of an earlier writer again. The
//!   limitations list what a failover and a quorum can change.
//! - **Three outcomes, never mixed.** `Taken` means that another holder has the lock. `Err` means
//!   that Redis refused, or could not be asked. [`Lost`] means that the lock ended before its
//!   holder released it. [`try_lock_for`](crate::Mutex::try_lock_for) states the rule. leasehold
//!   never grants a lock because Redis is unreachable.
//! - **Deadlines hold.** `try_lock_for(200 ms)` returns in that time even if Redis is dead, hung,
//!   slow or refuses connections. The time covers name resolution, connecting, waiting and retries.
//! - **Failed attempts are undone.** An acquire that got no reply is released under its own holder
//!   id, so the undo cannot touch a later lease.
//! - **All or none.** [`mutex_all`](crate::Client::mutex_all) returns a guard only while all names
//!   are held, and the loss of one is the loss of all. Callers cannot deadlock, whatever order they
//!   name them in, and a set gets its turn however busy its names are: see
//!   [`MutexAll`](crate::MutexAll#waiting).
//! - **First come, first served.** [`fair_mutex`](crate::Client::fair_mutex) grants the lock in the
//!   order of the requests, across all processes. A process that is killed, stopped or cut off
//!   while it waits delays the other waiting calls by at most 3 s. If it is killed, it does so only
//!   if a grant was on its way to it, in a cluster, or if the user lacks `+pubsub|numsub`. After
//!   any of these, `try_lock` is refused for at most 3 s. A lost message delays the others by at
//!   most 0.9 s: see [`FairMutex`].
//! - **Waiting is quiet.** Only one thread of a client asks Redis for a plain lock; the others wait
//!   behind it. A client refreshes the places of all calls for a name in one command, every
//!   0.9 s. A lost message delays a waiter by at most 0.9 s, or by 1 s where there is no queue.
//!
//! # Limitations
//!
//! - **A pause between check and write.** A process can be paused for longer than its lease between
//!   `ensure_held` and the write that it guards. No lock can prevent that; only
//!   [fencing](crate::FencingToken) helps.
//! - **A machine that is paused by its hypervisor, migrated or restored, and a process that is
//!   checkpointed.** The clock of the machine stands still meanwhile. So `is_held` can stay true,
//!   although the lease is over, until the next renewal is answered. This is noticed earlier where
//!   the wall clock is set right afterwards: once it has run ahead of the other clock by more than
//!   what is left of the lease, `is_held` is false until a renewal is confirmed, and the client
//!   renews at once. If the wall clock stands still, too, or is set right late, only
//!   [fencing](crate::FencingToken) helps: a call that is granted a lock during the pause goes on
//!   under its token, although there are higher ones. Outside of Linux, all this holds for a
//!   machine that is suspended, too.
//! - **A copy of a process, or of its machine,** that goes on from an image while the original goes
//!   on is a second holder. Redis cannot tell the two apart: they have the same holder id and the
//!   same fencing token. Do not start a second process from one image while locks are held.
//! - **Both processes of `leasehold run` killed at one instant**, the program and its supervisor:
//!   the command goes on without the lock. If one of them is killed, the other ends the command.
//! - **Failover.** Redis replicates asynchronously. If a replica that does not have a lock yet is
//!   promoted, a second holder can acquire it. The second holder's fencing token is still higher if
//!   the servers' clocks differ by less than the failover takes. With
//!   [`min_replicas`](crate::Mutex::min_replicas) a lease counts only once that many replicas have
//!   acknowledged it, which [limits this](crate::guide::sentinel#what-a-failover-can-cost).
//! - **Replicated expiry is an absolute time.** If the clocks of a master and its replica differ,
//!   leases become shorter or longer after a failover.
//! - **Clocks that run at different rates.** A server's clock may be faster than the holder's by 10
//!   % (with a ttl of more than 111 s: by 1 %, and by another 10 s in one ttl), which [the
//!   ttl](crate::guide::ttl#how-long-a-lease-is-certain) makes up for. That covers a clock that NTP
//!   slews by up to 8.3 %. If more than that is slewed, a key can end while `is_held` is true.
//! - **A server's clock that steps forward** ends leases early, because Redis measures expiry by
//!   its wall clock. The holder finds out at its next renewal. Until then another client may have
//!   acquired the lock.
//! - **A server's clock that steps back** ends no lease early. The key of a holder that has
//!   crashed, the lease of a reader and a permit last longer by the step. Calls that had died in a
//!   queue before delay the others as if they had died after the step: for 3 s. Fencing tokens
//!   rise: by one for each holder, until the clock is there again.
//! - **Memory in Redis.** Each distinct name leaves its last fencing token in Redis: about 130
//!   bytes, for 24 to 25 hours.
//! - **Memory of unanswered calls.** The client remembers each acquiring call without a reply until
//!   its ttl has passed, to undo it: about 0.7 KiB each, without a limit. So memory grows if calls
//!   have a long ttl and deadlines that are shorter than Redis takes to reply.
//! - **A Redis that loses data.** An evicting `maxmemory-policy` deletes held locks; so do
//!   `FLUSHALL` and a restart without persistence. The holder finds out at its next renewal. Until
//!   then another client may have acquired the lock, while the original client keeps handing it
//!   [between its own threads](crate::Mutex::local_handoffs). The new holder's fencing token is
//!   higher.
//! - **A lock taken away by force.** After [`force_unlock`](crate::Mutex::force_unlock),
//!   `leasehold unlock --force` or a `DEL` of the key, another client can acquire the lock at once.
//!   The holder finds out when it receives the release message, if its client listens for one, and
//!   otherwise at its next renewal: `is_held` returns true until then.
//! - **A restart can bring a released lock back** from an old snapshot, for up to its ttl.
//! - **With Sentinel**, an old master that is alive but partitioned keeps granting locks to clients
//!   that can reach it, until it learns that it was replaced. A sentinel with outdated information
//!   may send a new client there, if no other sentinel answers that client in time:
//!   [if the sentinels disagree](crate::guide::sentinel#if-the-sentinels-disagree).
//! - **In a cluster** a partitioned master keeps granting locks to clients that can reach it until
//!   `cluster-node-timeout` has passed. [Cluster](crate::guide::cluster) lists what else differs
//!   there.
//! - **A first attempt can overtake.** The first attempt of a plain lock takes a name that is free,
//!   even if calls wait in its queue: see [`Mutex`](crate::Mutex#fairness).
//! - **A lease can linger.** With [`Mutex::linger`](crate::Mutex::linger) the key stays after
//!   `unlock`. If the process dies in that time, the name is free again after the ttl, although
//!   nobody held it.
//! - **Busy processors slow every hand-over.** The next holder sleeps until it gets the lock, and
//!   nobody holds the lock until the operating system runs that process. With an idle core this
//!   takes microseconds; if other programs keep all cores busy, up to several ms each time. A loop
//!   that polls with `SET NX` avoids the wait, because it takes the lock again that it has just
//!   released, and lets the others starve. Measured with eight processes and empty sections, while
//!   six busy loops ran on the same two cores: an eighth of the acquisitions of such loops. The
//!   longer the sections, the smaller the difference. What helps: an idle core, a higher priority
//!   (`nice`, CPU shares) for the processes that lock, and more work under each lock.
//! - **A set of names** has no queue over a quorum, or in a client with
//!   [`queues(false)`](crate::ClientBuilder::queues). If each of its names is in constant demand
//!   there, a call may wait for a long time. A set that waits, or that is being refused, is visible
//!   half-acquired: [`MutexAll`](crate::MutexAll#all-or-none) describes what it has, and for how
//!   long.
//! - **A reader that crashes** keeps writers out until its own lease ends, whatever other readers
//!   do.
//! - **A fair lock, a read-write lock or a semaphore** is available for one server, Sentinel and
//!   Cluster. Redis ends the leases of readers and permits by the clock of the master: after a
//!   failover to a replica with another clock, they end earlier or later by the difference.
//! - **A quorum** [heals](crate::guide::quorum#healing) a server that has lost its data, one at a
//!   time. It does not tolerate [several that lose
//!   data](crate::guide::quorum#limits-of-a-quorum) within one renewal.
//! - **DNS that does not answer.** If the name of the server does not resolve in half of the
//!   [`connect_timeout`](crate::ClientBuilder::connect_timeout), the client connects to the address
//!   that last answered a write, for at most a minute after the last answer of DNS. In that time
//!   the address may have been given to a demoted server, or to a server of somebody else: TLS
//!   detects the latter. While connections are in use, the client looks the name up every 30 s.
//! - **A name with several addresses** must lead to one master and its replicas. The client tries
//!   the addresses side by side, first the one that last answered a write, and last those whose
//!   server takes no writes (a replica, or a server that loads its data). If two of them take
//!   writes, two clients can hold one lock. A client that has connections to both logs an error,
//!   and its calls that lock fail with [`Error::Config`](crate::Error::Config). Two processes that
//!   see one server each cannot find out. The same holds for [a balancer before two
//!   masters](crate::guide::operations#balancers).
//! - **Spoofed DNS** can point a client at a different Redis. TLS (`rediss://`) prevents that.
//! - **Not reentrant, not poisoned**: see [`Mutex`].
//! - **`fork`** without `exec` copies a client, but not its threads. The copy holds nothing, and
//!   its calls fail: [make a client in the child](crate::guide::threads#fork).
//!
//! [`FairMutex`]: crate::FairMutex
//! [`Lost`]: crate::Lost
//! [`Mutex`]: crate::Mutex
