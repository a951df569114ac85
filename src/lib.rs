//! `std::sync` for a fleet: blocking locks across processes and machines, kept in Redis or Valkey.
//!
//! The crate is for programs without an async runtime: worker pools, batch jobs, payment and
//! booking services, cron jobs. A waiting thread sleeps on a channel and is woken by the release,
//! not by polling. A background thread renews held locks. If a lock is lost, its holder finds out
//! from a local clock, even when the network is down.
//!
//! ```no_run
//! use std::time::Duration;
//! use leasehold::Client;
//!
//! let client = Client::open("redis://127.0.0.1:6379")?;
//! let account = client.mutex("account:123");
//!
//! let guard = account.lock()?; // sleeps until the lock is granted
//! // … no other client holds `account:123` here …
//! guard.ensure_held()?; // before a step that must not be done twice
//! guard.unlock()?;
//!
//! if let Some(_guard) = account.try_lock_for(Duration::from_millis(200))? {
//!     // Released when `_guard` goes out of scope.
//! }
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! Start with [`Client`], [`Mutex`] and [`MutexGuard`]. [`Client::mutex_all`] locks several names
//! together, and [`Client::fair_mutex`] grants a lock in the order of the requests.
//!
//! # Guarantees
//!
//! - **One holder.** If Redis keeps its data (see the limitations), at most one guard of a name
//!   returns true from [`is_held`](MutexGuard::is_held) at a time, across all processes.
//! - **A loss is noticed.** `is_held` returns false from the moment at which another client could
//!   get the lock. It reads a local clock, so no blocked thread or socket can delay it.
//!   [`lost`](MutexGuard::lost) and [`on_lost`](Mutex::on_lost) follow as soon as the timer thread
//!   is scheduled. On Linux the clock counts the time for which the machine is suspended; on other
//!   systems a machine that was suspended may believe in its lease for longer.
//! - **Tokens rise.** Every holder's [fencing token](FencingToken) is higher than all earlier ones.
//! - **Three outcomes, never mixed.** `None` means that another holder has the lock. `Err` means
//!   that Redis could not be asked or refused. [`Lost`] means that the lock ended before its holder
//!   released it. [`try_lock_for`](Mutex::try_lock_for) states the rule. leasehold never grants a
//!   lock because Redis is unreachable.
//! - **Deadlines hold.** `try_lock_for(200 ms)` returns in that time even if Redis is dead, hung,
//!   slow or refuses connections. The time covers name resolution, connecting, waiting and retries.
//! - **Failed attempts are undone.** An acquire that got no reply is released under its own holder
//!   id, so the undo cannot touch a later lease.
//! - **All or none.** [`mutex_all`](Client::mutex_all) acquires several names in one step. Callers
//!   cannot deadlock, whatever order they name them in, and a waiting call holds none of the names.
//!   In a cluster there is one step for [each slot](MutexAll#all-or-none).
//! - **First come, first served.** [`fair_mutex`](Client::fair_mutex) grants the lock in the order
//!   of the requests, across all processes. A process that dies while it waits delays the others by
//!   at most 4 s, a lost message by at most 1 s: see [`FairMutex`].
//! - **Waiting is quiet.** For each name, only one thread of a client asks Redis; the others wait
//!   behind it. A release wakes one thread. A lost message delays a waiter by at most
//!   [`backstop`](ClientBuilder::backstop) each time.
//!
//! # Limitations
//!
//! - **A pause between check and write.** A process can be paused for longer than its lease between
//!   `ensure_held` and the write that it guards. No lock can prevent that; only
//!   [fencing](FencingToken) helps.
//! - **Failover.** Redis replicates asynchronously. If a replica that does not have a lock yet is
//!   promoted, a second holder can acquire it. The second holder's fencing token is still higher if
//!   the servers' clocks differ by less than the failover takes.
//!   With [`min_replicas`](Mutex::min_replicas) a lease counts only once that many replicas have
//!   acknowledged it. If all replicas must acknowledge, any promoted replica has the lock. With
//!   fewer, a failover can still lead to two holders.
//! - **Replicated expiry is an absolute time.** If the clocks of a master and its replica differ,
//!   leases become shorter or longer after a failover.
//! - **A server's clock that steps forward** ends leases early, because Redis measures expiry by its
//!   wall clock. The holder finds out at its next renewal. Until then another client may have
//!   acquired the lock.
//! - **Memory in Redis.** Each distinct name leaves its last fencing token in Redis: about 130 bytes,
//!   for a day.
//! - **Memory of unanswered calls.** The client remembers each acquiring call without a reply until
//!   its ttl has passed, to undo it: about 0.7 KiB each, without a limit. Calls whose deadlines are
//!   shorter than Redis takes to reply, with a long ttl, add up.
//! - **A lost message** delays a waiter by at most [`backstop`](ClientBuilder::backstop) each time it
//!   asks Redis. A waiter that finds the lock taken again by then can wait longer.
//! - **A Redis that loses data.** An evicting `maxmemory-policy` deletes held locks; so do
//!   `FLUSHALL` and a restart without persistence. The holder finds out at its next renewal. Until
//!   then another client may have acquired the lock, while the original client keeps handing it
//!   [between its own threads](Mutex::local_handoffs). The new holder's fencing token is higher.
//! - **A restart can bring a released lock back** from an old snapshot, for up to its ttl.
//! - **With Sentinel**, an old master that is alive but partitioned keeps granting locks to clients
//!   that can reach it, until it learns that it was replaced. A sentinel with outdated information
//!   may send a new client there.
//! - **In a cluster** a partitioned master keeps granting locks to clients that can reach it until
//!   `cluster-node-timeout` has passed.
//!   - A client that holds locks there notices a failover at its next renewal, or earlier if it
//!     waits for, acquires or releases a lock there.
//!   - Every release is broadcast to all nodes by `PUBLISH`. A sharded channel would be in another
//!     slot than the lock.
//!   - While a slot migrates to another node, held locks stay held, and are renewed and released. A
//!     free name cannot be acquired while its keys are on two nodes; calls wait for that, within
//!     their deadlines.
//!   - A name with a `}` and no hash tag is an [`Error::Config`], because its keys would be in
//!     different slots.
//! - **Plain locks barge.** [`Mutex`] ignores the queue of a [`FairMutex`] of the same name and may
//!   overtake it.
//! - **A fair lock in a cluster** is neither granted to the next waiter nor released while its slot
//!   migrates. The release is repeated until the slot has arrived or the lease has expired.
//! - **A set of names** has no queue. If each of its names is in constant demand, a call may wait
//!   for long. In a cluster, a set that spans several slots is briefly visible half-acquired.
//! - **A quorum** does not tolerate [servers that lose data](#limits-of-a-quorum).
//! - **Spoofed DNS** can point a client at a different Redis. TLS (`rediss://`) prevents that.
//! - **Not reentrant, not poisoned**: see [`Mutex`].
//! - **`fork`** without `exec` does not copy the client's threads. Create the client after the
//!   fork.
//!
//! # TLS and permissions
//!
//! With the feature `tls`, the schemes `rediss://`, `rediss+sentinel://` and `rediss+cluster://`
//! encrypt every connection of the client. `ClientBuilder::tls_root` replaces the system's
//! certificate authorities, and `ClientBuilder::tls_client_cert` sets a certificate for servers
//! that require one. If either side does not trust the other's certificate, the call fails at once
//! with [`Error::Refused`].
//!
//! With Sentinel, the master's certificate must be valid for the host that the sentinels report,
//! usually an address. In a cluster, each node's certificate must be valid for the host that
//! `CLUSTER SLOTS` reports.
//!
//! A Redis user with no more permissions than locking needs:
//!
//! ```text
//! ACL SETUSER leasehold reset on >password resetchannels ~lock:* ~leasehold:* &lock_release:* &leasehold:* +evalsha +eval +get +set +del +time +pttl +pexpire +rpush +lpop +lindex +lrem +hset +hget +hdel +publish +subscribe +unsubscribe +ping +client|setname +select +role +wait +cluster|slots +asking
//! ```
//!
//! A missing permission fails with [`Error::Refused`]; the message lists the permissions that the
//! command or script needs. Without `+subscribe`, `+publish` or one of the channels, waiters retry
//! after growing pauses. Some calls need permissions that locking does not:
//!
//! - [`Client::list`] needs `+scan`.
//! - [`Mutex::waiting`] needs `+pubsub|numsub`, and [`FairMutex::waiting`] needs `+llen`.
//! - Sharing [statistics](#statistics) needs `~lock_stats +hincrby`; reading them needs `+hgetall`.
//!
//! The README lists which permissions are optional, and those of an operator and of a user on the
//! sentinels.
//!
//! # A quorum of servers
//!
//! [`Client::quorum`] takes several independent servers (the Redlock algorithm). A client holds a
//! lock once a majority of all servers has granted it. Validity counts from before the first
//! request was sent. The client sends to all servers at once and returns as soon as enough replies
//! have arrived. A minority of the servers may be dead, hung or slow. A server that does not reply
//! costs one timeout; the client then skips it until it replies to a probe. Renewing a lease and
//! declaring it lost also need a majority of all servers. If fewer are reachable, every call fails
//! with [`Error::Unreachable`] within its deadline and releases what it was granted.
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
//! ## Why tokens rise over a quorum
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
//! ## Limits of a quorum
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
//! `tests/quorum_model` searches all interleavings of two to three attempts at three servers. It
//! finds no counter-example while the assumptions hold. It does find one for early expiry, one for
//! a server that loses data, and one for each of eight deliberate mistakes.
//!
//! # When Redis is unreachable
//!
//! leasehold never grants a lock because Redis is unreachable. After five failures in a row, a
//! circuit breaker opens for that server: calls fail at once with [`Error::CircuitOpen`]. Renewals
//! and releases bypass the breaker, and waiting calls keep waiting; see [`ClientBuilder::breaker`].
//! [`Client::health`] reports the state of servers and background threads.
//!
//! # Choosing a ttl
//!
//! Renewal is on by default. The ttl then does not limit how long the work may take. It is the time
//! for which other clients wait after a holder died, and the time for which a holder survives
//! without Redis. The default of 10 s suits most programs.
//!
//! - Choose a ttl longer than the longest pause you expect of a process, such as a live migration
//!   of its machine, and longer than a restart of Redis takes.
//! - Choose at least ten times the [`command_timeout`](ClientBuilder::command_timeout).
//!
//! Without renewal the ttl must be longer than the work, or the work must check
//! [`remaining`](MutexGuard::remaining) while it runs.
//!
//! # Threads
//!
//! A client starts no thread until it acquires its first lock. In a cluster it runs one io and one
//! subscriber thread for each master in use; over a quorum, one of each for each server.
//!
//! | thread | started by | purpose |
//! |---|---|---|
//! | `leasehold-timer` | the first lock | tracks the leases' deadlines and schedules renewals; no I/O |
//! | `leasehold-io` | the first lock | sends renewals in batches, repeated releases and shared statistics over its own connection |
//! | `leasehold-replicas` | the first renewal under `min_replicas` | sends renewals that replicas must acknowledge; at most eight for each server |
//! | `leasehold-subscriber` | the first waiter | receives release notifications over its own connection |
//! | `leasehold-sentinel` | the first lock, with Sentinel | one per sentinel: receives master changes |
//! | `leasehold-callbacks` | the first lock with a callback | runs `on_lost` and `on_renew` |
//! | `leasehold-dial` | connecting, and reading a cluster's slots | opens connections, then ends |
//!
//! There is never a thread per lock. Dropping the last client, lock or guard ends and joins the
//! threads.
//!
//! A call sends its command on the caller's thread. With up to eight calls at a time, each has its
//! own connection. With more:
//!
//! - If the server is near (a round trip of at most 0.2 ms), the calls share one connection: one of
//!   the callers sends them in one write and reads all replies.
//! - If the server is farther away, each call keeps its own connection, up to
//!   [`max_connections`](ClientBuilder::max_connections). Calls beyond that share one.
//! - A release waits at most 5 ms for a shared connection. A call that waits for replicas always
//!   has its own.
//!
//! A thread that waits for a reply or for a lock sleeps. [`ClientBuilder::spin`] lets a call spin
//! for the reply before it sleeps, for machines with idle cores.
//!
//! # Log levels
//!
//! The crate logs through [`log`](https://docs.rs/log), with the key-values `name`, `holder`
//! (shortened), `ttl_ms`, `outcome` and `trace_id`:
//!
//! - ERROR: a callback panicked; the background threads could not be started.
//! - WARN:
//!   - a lease was lost, or had ended before its release;
//!   - a lock was forced;
//!   - a circuit breaker opened; the master has moved;
//!   - releases cannot be published or received; shared statistics are refused;
//!   - a quorum has an even number of servers;
//!   - a thread waits for a lock that it holds itself (debug builds only).
//! - INFO: a circuit breaker closed.
//! - DEBUG: every acquire, wait, renewal and release; connections that failed.
//! - TRACE: whole holder ids. Anyone who knows a holder id can release that lock.
//!
//! No level logs a password.
//!
//! # Statistics
//!
//! [`Client::stats`] returns a snapshot of a client's counters and gauges; [`Stats`] and [`Totals`]
//! describe each number. Counting costs a few relaxed atomic additions per lock. It takes no lock
//! and reads no clock.
//!
//! With [`shared_stats`](ClientBuilder::shared_stats), each client adds its [`Totals`] to one Redis
//! hash, `lock_stats` unless [set otherwise](ClientBuilder::shared_stats_key). Its fields have the
//! names of the fields of `Totals`. [`Client::shared_stats`] reads the sum. Each client also
//! records what it has added in the key `leasehold:tally:{lock_stats}:<uuid>`, so that an addition
//! whose reply was lost counts only once. That key expires an hour after the client's last
//! addition.
//!
//! With the feature `metrics`, the thread `leasehold-io` sends the same numbers to the program's
//! recorder once a second, and a last time when the client ends. Counts from before the recorder
//! was installed are not sent.
//!
//! | metric | kind | meaning |
//! |---|---|---|
//! | `leasehold_attempts_total` | counter | [`attempts`](Totals::attempts) |
//! | `leasehold_acquired_total` | counter | locks acquired; `how`: `at_once`, `after_waiting` |
//! | `leasehold_refused_total` | counter | [`refused`](Totals::refused) |
//! | `leasehold_timed_out_total` | counter | [`timed_out`](Totals::timed_out) |
//! | `leasehold_failed_total` | counter | [`failed`](Totals::failed) |
//! | `leasehold_released_total` | counter | [`released`](Totals::released) |
//! | `leasehold_released_too_late_total` | counter | [`released_too_late`](Totals::released_too_late) |
//! | `leasehold_lost_total` | counter | locks lost; `reason`: `expired`, `taken`, `deleted`, `max_hold`, `shut_down` |
//! | `leasehold_renewals_total` | counter | renewals; `outcome`: `ok`, `failed` |
//! | `leasehold_wakes_total` | counter | [`wakes`](Totals::wakes); `source`: `message`, `local`, `hand_off`, `ttl`, `backstop`, `reconnect` |
//! | `leasehold_spurious_wakes_total` | counter | [`spurious_wakes`](Totals::spurious_wakes) |
//! | `leasehold_wait_seconds` | histogram | [`wait`](Stats::wait); each value is at most a sixteenth too high |
//! | `leasehold_hold_seconds` | histogram | [`hold`](Stats::hold), as precise |
//! | `leasehold_command_seconds` | histogram | [`command`](Stats::command), as precise |
//! | `leasehold_held` | gauge | [`held`](Stats::held); `client` numbers the clients of the process |
//! | `leasehold_waiting` | gauge | [`waiting`](Stats::waiting); `client` |
//! | `leasehold_connections` | gauge | [`connections`](Stats::connections); `client` |
//! | `leasehold_renewal_lag_seconds` | gauge | [`renewal_lag`](Stats::renewal_lag), after the first renewal; `client` |
//!
//! # Features
//!
//! - `tls`: `rediss://` through rustls, with `ring`.
//! - `cli`: the program `leasehold`, which runs a command under a lock and shows locks: see the
//!   README. It does not change the library.
//! - `metrics`: sends [statistics](#statistics) to the recorder of the
//!   [`metrics`](https://docs.rs/metrics) facade.
//!
//! # Minimum supported Rust version
//!
//! 1.88. Raising it is not a breaking change; the changelog announces it.

mod advice;
mod api;
mod cause;
mod clock;
mod config;
mod dialers;
mod error;
mod error_reply;
mod escape;
mod health;
mod holder;
mod lease;
mod lock;
mod logging;
mod lost;
mod name;
mod protocol;
mod queue;
mod random;
mod redis;
mod renewed;
mod replicas;
mod runtime;
mod stats;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
mod token;
mod url;
mod violation;
mod wait_policy;

pub use crossbeam_channel;

pub use api::builder::ClientBuilder;
pub use api::client::Client;
pub use api::fair_mutex::FairMutex;
pub use api::guard::MutexGuard;
pub use api::mutex::Mutex;
pub use api::mutex_all::MutexAll;
pub use api::mutex_all_guard::MutexAllGuard;
pub use error::{Cause, Error};
pub use health::{BreakerState, Health, HealthPart, HealthState};
pub use holder::{Holder, HolderId};
pub use lock::list::Held;
pub use lock::release::Unlocked;
pub use lock::shutdown::ShutdownReport;
pub use lost::Lost;
pub use name::Name;
pub use renewed::Renewed;
pub use stats::{Latency, Stats, Totals};
pub use token::FencingToken;
pub use wait_policy::{Backoff, WaitPolicy};
