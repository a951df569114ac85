//! `std::sync` for a fleet: blocking locks that hold across processes and machines, kept in Redis or Valkey.
//!
//! For programs without an async runtime: worker pools, batch jobs, payment and booking services,
//! cron. A waiting thread sleeps on a channel and is woken by the release itself, not by polling. A
//! held lock is renewed in the background. A holder that has lost its lock knows it, even when the
//! network is dead.
//!
//! ```no_run
//! use std::time::Duration;
//! use leasehold::Client;
//!
//! let client = Client::open("redis://127.0.0.1:6379")?;
//! let account = client.mutex("account:123");
//!
//! let guard = account.lock()?; // waits for its turn, asleep
//! // … nobody else in the fleet is in here …
//! guard.ensure_held()?; // before what must not be done twice
//! guard.unlock()?;
//!
//! if let Some(_guard) = account.try_lock_for(Duration::from_millis(200))? {
//!     // Released when `_guard` goes out of scope.
//! }
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! Start at [`Client`], [`Mutex`] and [`MutexGuard`]. [`Client::mutex_all`] takes several names, all or none, and
//! [`Client::fair_mutex`] serves whoever came first.
//!
//! # Guarantees
//!
//! - **One holder.** As long as Redis keeps what it was told (see the limitations), at most one
//!   guard of a name says [`is_held`](MutexGuard::is_held) at a time, in all processes together.
//! - **Loss is known.** `is_held` turns false at the instant from which somebody else could hold the
//!   lock, by our own clock, whatever threads and sockets do; [`lost`](MutexGuard::lost) and
//!   [`on_lost`](Mutex::on_lost) follow within scheduling. The clock goes on while the machine is
//!   suspended (Linux; elsewhere a suspended machine may believe in its lease for longer).
//! - **Tokens rise.** Every holder's [fencing token](FencingToken) is higher than those before it.
//! - **Three answers.** *Held by another* is `None`, *Redis could not be asked* is `Err`, *ended
//!   before we released* is [`Lost`]. None is ever folded into another: see
//!   [`try_lock_for`](Mutex::try_lock_for). No path grants a lock because Redis is away.
//! - **Deadlines hold.** `try_lock_for(200 ms)` is back in that time with Redis dead, hung, slow or
//!   refusing: name resolution, connecting, waiting and retries included.
//! - **Nothing is left behind.** An attempt whose answer never came is undone, and the undo cannot
//!   touch a later lease.
//! - **All or none.** [`mutex_all`](Client::mutex_all) takes several names in one step: no order of callers can
//!   deadlock, and a call that waits holds none of them. In a cluster it is a step for [each slot](MutexAll#all-or-none).
//! - **First come, first served**, in all processes together, where [`fair_mutex`](Client::fair_mutex) asks for it. One that
//!   dies while it waits costs the others 4 s at the most, a lost message 1 s: see [`FairMutex`].
//! - **Waiting is quiet.** One thread of a client asks Redis for a name, the others wait behind it;
//!   a release wakes one. A lost message costs at most [`backstop`](ClientBuilder::backstop).
//!
//! # Limitations
//!
//! - **A pause no lock can see.** Between `ensure_held` and the write that it guards, a process may
//!   be paused for longer than the lease. Only [fencing](FencingToken) helps.
//! - **Failover.** Replication is asynchronous: a replica that is promoted before it heard of a lock
//!   lets a second holder in. Its fencing token is still higher, if the servers' clocks agree better
//!   than the failover takes. [`min_replicas`](Mutex::min_replicas) makes a lease count only when
//!   replicas have it: with all of them acknowledging, whichever is promoted knows it; with fewer, a
//!   failover can still make two holders.
//! - **Replicated expiry is absolute time**: skew between a master's clock and its replica's shortens
//!   or lengthens leases after a failover.
//! - **A Redis that forgets.** An evicting `maxmemory-policy` deletes held locks; so do `FLUSHALL` and
//!   a restart without persistence. The holder learns of it at its next renewal. Until then the lock may
//!   still go [from thread to thread](Mutex::local_handoffs) of its client, under fencing tokens that are
//!   lower than that of whoever came in elsewhere.
//! - **A restart can bring a released lock back** from an old snapshot, for up to its ttl.
//! - **With Sentinel**, an old master that is alive but cut off goes on granting locks to whoever
//!   reaches it, for as long as it does not know that it was replaced. A sentinel that is behind may
//!   send a new client there.
//! - **In a cluster** a master that is cut off goes on granting locks to whoever reaches it, until its
//!   `cluster-node-timeout` is over. A client that holds locks there, and neither waits for any nor
//!   takes or releases one, notices a failover at its next renewal. Every release is broadcast to all nodes (by `PUBLISH`: a sharded
//!   channel would lie in another slot than the lock). While a slot is on its way to another node,
//!   what is held in it stays held, renewed and released, but a free name cannot be taken as long as
//!   its keys are apart: calls wait for that, within their deadlines. A name with a `}` and no hash
//!   tag is an [`Error::Config`]: its keys would be in different slots.
//! - **Plain locks barge**: [`Mutex`] knows nothing of the queue of a [`FairMutex`] of its name, and may overtake it.
//! - **In a cluster a fair lock** is neither passed on nor released while its slot is on its way to another node: that is
//!   repeated until the slot has arrived, or the lease has run out.
//! - **A set of names** has no queue of its own: where each of them is wanted all the time, it may wait long. In a cluster, one
//!   that is in several slots may be seen half-taken for a moment.
//! - **A quorum** breaks with [a server that forgets](#limits-of-a-quorum).
//! - **A reply that trickles in byte by byte** can overrun a deadline: a socket's timeout counts from
//!   the last byte.
//! - **A name server that lies** can send you to another Redis; with TLS (`rediss://`) it cannot.
//! - **Not reentrant, not poisoned**: see [`Mutex`].
//! - **`fork`** without `exec` does not take the client's threads along: make the client afterwards.
//!
//! # TLS and rights
//!
//! With the feature `tls`, `rediss://`, `rediss+sentinel://` and `rediss+cluster://` encrypt. `ClientBuilder::tls_root`
//! takes the place of the authorities that the system trusts, and `ClientBuilder::tls_client_cert`
//! is for servers that ask for a certificate. Both hold for every connection of the client. A
//! certificate that is not trusted, by either side, is [`Error::Refused`] at once. The sentinels'
//! word for the master, mostly an address, is what the master's certificate must be for; in a cluster the word of
//! `CLUSTER SLOTS` for each node.
//!
//! A user of Redis with no more rights than are needed:
//!
//! ```text
//! ACL SETUSER leasehold reset on >password resetchannels ~lock:* ~leasehold:* &lock_release:* &leasehold:* +evalsha +eval +get +set +del +time +pttl +pexpire +rpush +lpop +lindex +lrem +hset +hget +hdel +publish +subscribe +unsubscribe +ping +client|setname +select +role +wait +cluster|slots +asking
//! ```
//!
//! What misses a right is [`Error::Refused`], and names the rights that the command or script needs.
//! Without `+subscribe`, `+publish` or one of the channels, waiters look again after growing pauses.
//! [`Client::list`] needs `+scan` too, [`Mutex::waiting`] `+pubsub|numsub` and [`FairMutex::waiting`] `+llen`: no right that
//! locking needs.
//! Sharing [statistics](#statistics) takes `~lock_stats +hincrby`, and reading them `+hgetall`.
//! The README has the user of an operator, and says what else can be spared, and what a user of the sentinels needs.
//!
//! # A quorum of servers
//!
//! [`Client::quorum`] takes several servers that know nothing of each other (Redlock). A lock is held by whoever has it on
//! a majority of all of them; validity counts from before the first was asked. All are asked in one go, and the call is
//! over once enough answers are in, the fastest server's first. A minority may be dead, hung or slow: one that does not
//! answer costs one timeout, is left aside from then on, and has its vote again once it answers a probe. A lease is renewed,
//! and known to be lost, by a majority of all. With fewer than a majority there, every call is an [`Error::Unreachable`]
//! within its deadline, and what it took is given back.
//!
//! What it gives: no single server can stop the locks, and no failover is needed. What it does not: safety against a server
//! that forgets. Let each keep its data (`appendonly yes`, `appendfsync always`), or start it again no sooner than the longest
//! ttl after it went down. The servers must be independent: no replicas of each other, not on one machine. All clients must
//! be given the same ones. Take 3 or 5: of an even number no more may fail than of one server less (a warning says so).
//!
//! ## Why tokens rise over a quorum
//!
//! The servers know nothing of each other, so the client proposes the token: its clock in
//! microseconds, moved ahead of every counter it has heard of. A server grants a proposal only if nobody has the key there and
//! the token is above its counter; in the same step it keeps the token as its new counter, with the whole block that local
//! hand-offs may use. To hold the lock is to have been granted one token under one holder id by a majority of all servers.
//!
//! * Any two majorities share a server. That server granted to both holders, one after the other, and by then its counter had
//!   reached all of the first one's tokens: the second one's are higher.
//! * Without expiry before its time and without forgetting, the first one's key kept the shared server from granting while
//!   its lease was valid. So there is one holder at a time, and tokens rise in the order in which holders come to hold.
//!   Validity counts from before the request was sent, so it ends no later than any key that was granted to it; a renewal
//!   counts only if a majority of *all* servers renewed, so there is still a server in it that anybody else would need.
//! * A proposal that is too low at one server is given up and undone everywhere, and made again with a higher token and a
//!   fresh id. Votes of two ids, or for two tokens, do not add up: no one of them may have come from a majority.
//!
//! ## Limits of a quorum
//!
//! * *A key that expires early* (a server's clock jumps ahead; eviction; deletion by hand) can make two holders. Their tokens
//!   still differ, whoever asks for the lock after another came to hold it still gets a higher token, and the one that the
//!   shared server granted last has the higher one: a fenced resource that has seen it refuses the other. The one that is
//!   superseded may be the last to learn of its majority, so "who was told last" and "whose token is higher" can then differ.
//!   A token handed on locally is as old as the lease that it belongs to.
//! * *A server that forgets* (restarts empty, FLUSHALL, an old snapshot, failover to a replica that lagged) breaks both
//!   promises, and one is enough: A is granted by 1 and 2, server 1 restarts, B is granted by 1 and 3, and nothing there is
//!   above B's token. What is left is that tokens follow the clients' clocks, and rise as far as those agree. A server that
//!   stays away for the longest ttl keeps exclusion; only one that keeps its data (`appendfsync always`) keeps the fence too.
//! * Counters live for a day after the last grant: one set by a clock more than a day ahead can expire before others reach it.
//! * Clocks must run at the same pace, but for the drift taken off validity; a pause between check and write leaves the fence.
//!
//! `tests/quorum_model` searches three servers and two to three attempts exhaustively. It finds no counter-example within the
//! promises, and it does find one for early expiry, for a server that forgets, and for each of eight mistakes made on purpose.
//!
//! # When Redis is away
//!
//! No call grants a lock because Redis cannot be asked. A server that failed five times in a row is not
//! asked for a while: calls fail at once with [`Error::CircuitOpen`], while renewals and releases go
//! through and waiting calls wait on; see [`ClientBuilder::breaker`]. [`Client::health`] says how the
//! servers and threads do.
//!
//! # Choosing a ttl
//!
//! With renewal on, as it is unless switched off, the ttl is not how long the work may take but how
//! long the fleet waits for a holder that died, and how long a holder survives without Redis. The
//! default of 10 s suits most. Choose it longer than the longest pause you expect of a process
//! (garbage of other runtimes on the machine, a live migration) and than a restart of Redis; no
//! shorter than ten times the [`command_timeout`](ClientBuilder::command_timeout) that you set.
//!
//! Without renewal the ttl must be longer than the work, or the work must check
//! [`remaining`](MutexGuard::remaining) as it goes.
//!
//! # Threads
//!
//! A client has no thread until its first lock is taken. From then on, in a cluster with an io and a
//! subscriber thread for each master in use:
//!
//! | thread | from | what it does |
//! |---|---|---|
//! | `leasehold-timer` | the first lock | keeps the leases' deadlines, says what to renew; no I/O |
//! | `leasehold-io` | the first lock | renewals in batches, repeated releases, shared statistics; a connection of its own; one for each server of a quorum |
//! | `leasehold-subscriber` | the first waiter | hears releases; a connection of its own; one for each server of a quorum |
//! | `leasehold-sentinel` | the first lock, where there are sentinels | one for each: hears when the master moves |
//! | `leasehold-callbacks` | the first lock with a callback | runs `on_lost` and `on_renew` |
//! | `leasehold-dial` | only while connecting, or looking for who keeps the slots of a cluster | makes connections |
//!
//! Never one per lock. The last client, lock or guard to be dropped ends and joins them.
//!
//! Calls go out on the threads that make them. Up to eight at a time have a connection each; when more
//! come to a server nearby (a trip of up to 0.2 ms), they go together over one, and one of the callers
//! reads the answers for all. To a server farther away each has a connection, up to
//! [`max_connections`](ClientBuilder::max_connections), beyond which they go together there too. A
//! release waits 5 ms for that at most. What waits for replicas has a connection to itself.
//!
//! A thread that waits for a reply or for a lock sleeps. [`ClientBuilder::spin`] lets a call spin before
//! it sleeps until Redis replies, where cores are to spare.
//!
//! # Log levels
//!
//! Through [`log`](https://docs.rs/log), with `name`, `holder` (shortened), `ttl_ms`, `outcome` and
//! `trace_id` as key-values:
//!
//! - ERROR: a callback panicked.
//! - WARN: a quorum has an even number of servers; the master has moved; a server is not asked for a while;
//!   shared statistics are refused; a lease was lost or had ended before its release; a release was not confirmed or was
//!   forced; releases are not heard, or cannot be announced; a thread waits for itself (debug builds).
//! - INFO: calls go to a server again that was not asked for a while.
//! - DEBUG: every lock taken, waited for, renewed and released; connections that failed.
//! - TRACE: whole holder ids. Whoever knows one can release that lock.
//!
//! No level shows a password.
//!
//! # Statistics
//!
//! [`Client::stats`] is a snapshot of what a client has counted and does now: see [`Stats`] and
//! [`Totals`] for what each number means. Counting is a few relaxed atomic additions for each lock;
//! it takes no lock and reads no clock for them.
//!
//! With [`shared_stats`](ClientBuilder::shared_stats), each client adds its [`Totals`] to one hash in
//! Redis, `lock_stats` unless [named otherwise](ClientBuilder::shared_stats_key), whose fields have
//! the same names. [`Client::shared_stats`] reads the sum. Beside the hash each client keeps a mark of
//! what it has added, `leasehold:tally:{lock_stats}:<uuid>`, so that an addition whose answer got lost
//! counts once; it goes away an hour after the last one.
//!
//! With the feature `metrics`, the same numbers go to the program's recorder, once a second from the
//! thread `leasehold-io`, and a last time when the client ends. What was counted before there was a
//! recorder is not told.
//!
//! | metric | kind | what |
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
//! | `leasehold_wait_seconds` | histogram | [`wait`](Stats::wait); each time is at most a sixteenth too long |
//! | `leasehold_hold_seconds` | histogram | [`hold`](Stats::hold); so here |
//! | `leasehold_command_seconds` | histogram | [`command`](Stats::command); so here |
//! | `leasehold_held` | gauge | [`held`](Stats::held); `client` numbers the clients of the process |
//! | `leasehold_waiting` | gauge | [`waiting`](Stats::waiting); `client` |
//! | `leasehold_connections` | gauge | [`connections`](Stats::connections); `client` |
//! | `leasehold_renewal_lag_seconds` | gauge | [`renewal_lag`](Stats::renewal_lag), once there is one; `client` |
//!
//! # Features
//!
//! - `tls`: `rediss://` through rustls, with `ring`.
//! - `cli`: the program `leasehold`, which runs a command under a lock and shows the locks: see the README. The library
//!   is the same with and without it.
//! - `metrics`: [statistics](#statistics) for the recorder of the
//!   [`metrics`](https://docs.rs/metrics) facade.
//!
//! # Minimum supported Rust version
//!
//! 1.88. Raising it is not a breaking change, and is said in the changelog.

mod acquire;
mod answers;
mod attempt;
mod bell;
mod builder;
mod client;
mod clock;
mod config;
mod env;
mod error;
mod escape;
mod expected;
mod fair;
mod fair_mutex;
mod few;
mod guard;
mod handoff;
#[cfg(test)]
mod handoff_model;
mod health;
mod hold;
mod holder;
mod kind;
mod lease;
mod leases;
mod list;
mod lost;
#[cfg(feature = "metrics")]
mod metrics_facade;
mod mutex;
mod mutex_all;
mod mutex_all_guard;
mod name;
mod places;
mod queue;
mod release;
mod renew;
mod renewed;
mod replicas;
mod scripts;
mod server;
mod settings;
mod shutdown;
mod stats;
mod threads;
#[cfg(feature = "tls")]
mod tls;
mod token;
mod undo;
mod url;
mod vigil;
mod wait;
mod waiters;

pub use crossbeam_channel;

pub use builder::ClientBuilder;
pub use client::Client;
pub use error::{Cause, Error};
pub use fair_mutex::FairMutex;
pub use guard::MutexGuard;
pub use health::{BreakerState, Health, HealthPart, HealthState};
pub use holder::{Holder, HolderId};
pub use list::Held;
pub use lost::Lost;
pub use mutex::Mutex;
pub use mutex_all::MutexAll;
pub use mutex_all_guard::MutexAllGuard;
pub use name::Name;
pub use release::Unlocked;
pub use renewed::Renewed;
pub use shutdown::ShutdownReport;
pub use stats::{Latency, Stats, Totals};
pub use token::FencingToken;
pub use wait::{Backoff, WaitPolicy};
