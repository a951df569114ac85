//! Log records, statistics and metrics.
//!
//! # Log levels
//!
//! The crate logs through [`log`](https://docs.rs/log). The levels:
//!
//! - ERROR: a callback panicked; `leasehold-engine` panicked, which closes the client; a thread of
//!   the client cannot wait for its sockets.
//! - WARN:
//!   - a lease was lost, or had ended before its release;
//!   - a release was not confirmed and is repeated, or a `keep_for` was not confirmed;
//!   - a lock could not be released after a shutdown;
//!   - a lock was forced;
//!   - a circuit breaker opened, once for an outage; the master has moved; a sentinel names another
//!     master;
//!   - releases cannot be published or received; shared statistics are refused;
//!   - log records were dropped;
//!   - a setting was taken although it is not quite right; a name does not resolve, and the address
//!     that last answered a write is used;
//!   - a quorum has an even number of servers; no majority of a quorum answers;
//!   - a thread waits for a lock that it holds itself, or reads a name again under its own read
//!     guard (debug builds only).
//! - INFO: a circuit breaker closed; [`from_env`](crate::Client::from_env) found no server in the
//!   environment and uses the default one.
//! - DEBUG: every acquire, wait, renewal and release; connections that failed.
//! - TRACE: whole holder ids. Anyone who knows a holder id can release that lock.
//!
//! A slow logger delays no renewal, loss or wake-up: the thread `leasehold-callbacks` calls it for
//! the client's threads on which these depend. At most 1,000 records wait for it. If there are
//! more, the next one is followed by a record that says how many were dropped. Calls such as `lock`
//! log on the caller's thread.
//!
//! No level logs a password. Each record has those of these key-values that apply to it:
//!
//! | key | value |
//! |---|---|
//! | `name` | the name of the lock, or the first of several |
//! | `holder` | the holder id, shortened except at the level `TRACE` |
//! | `token` | the fencing token |
//! | `outcome` | what happened to the lock, in a few words |
//! | `ttl_ms`, `remaining_ms` | the ttl, and the time until the lease of the holder ends, in ms |
//! | `waited_us` | how long a call took to acquire the lock, in µs |
//! | `trace_id` | the identifier that [`trace_id`](crate::Mutex::trace_id) sets |
//! | `server` | the server, if the record is about one server |
//!
//! # Statistics
//!
//! [`Client::stats`] returns a snapshot of a client's counters and gauges; [`Stats`] and [`Totals`]
//! describe each number. Counting costs a few relaxed atomic additions per lock, and never blocks.
//!
//! With [`shared_stats`](crate::ClientBuilder::shared_stats), each client adds its [`Totals`] to
//! one Redis hash, `lock_stats`. Its fields have the names of the fields of `Totals`.
//! [`Client::shared_stats`] reads the sum. The thread `leasehold-engine` adds every two seconds
//! what was counted since, and a last time when the client ends. The sum may be too low, and is
//! never too high:
//!
//! - What a process counted in the two seconds before a crash is missing.
//! - An addition that Redis does not answer, or refuses, is not sent again.
//! - Counts from an outage are added after it, apart from the addition that found it.
//!
//! With the feature `metrics`, the thread `leasehold-callbacks` sends the same numbers to the
//! program's recorder every two seconds, and a last time when the client ends. Counts from before
//! the recorder was installed are not sent.
//!
//! | metric | kind | meaning |
//! |---|---|---|
//! | `leasehold_attempts_total` | counter | [`attempts`](crate::Totals::attempts) |
//! | `leasehold_acquired_total` | counter | locks acquired; `how`: `at_once`, `after_waiting` |
//! | `leasehold_refused_total` | counter | [`refused`](crate::Totals::refused) |
//! | `leasehold_timed_out_total` | counter | [`timed_out`](crate::Totals::timed_out) |
//! | `leasehold_cancelled_total` | counter | [`cancelled`](crate::Totals::cancelled) |
//! | `leasehold_failed_total` | counter | [`failed`](crate::Totals::failed) |
//! | `leasehold_released_total` | counter | [`released`](crate::Totals::released) |
//! | `leasehold_released_too_late_total` | counter | [`released_too_late`](crate::Totals::released_too_late) |
//! | `leasehold_lingering_lost_total` | counter | [`lingering_lost`](crate::Totals::lingering_lost) |
//! | `leasehold_lost_total` | counter | locks lost; `reason`: `expired`, `taken`, `deleted`, `max_hold`, `shut_down` |
//! | `leasehold_renewals_total` | counter | renewals; `outcome`: `ok`, `failed` |
//! | `leasehold_wakes_total` | counter | [`wakes`](crate::Totals::wakes) |
//! | `leasehold_spurious_wakes_total` | counter | [`spurious_wakes`](crate::Totals::spurious_wakes) |
//! | `leasehold_wait_seconds` | histogram | [`wait`](crate::Stats::wait); each value is at most a sixteenth plus 1 µs too high |
//! | `leasehold_hold_seconds` | histogram | [`hold`](crate::Stats::hold), with the same precision |
//! | `leasehold_command_seconds` | histogram | [`command`](crate::Stats::command), with the same precision |
//! | `leasehold_held` | gauge | [`held`](crate::Stats::held); `client` numbers the clients of the process |
//! | `leasehold_lingering` | gauge | [`lingering`](crate::Stats::lingering); `client` |
//! | `leasehold_waiting` | gauge | [`waiting`](crate::Stats::waiting); `client` |
//! | `leasehold_connections` | gauge | [`connections`](crate::Stats::connections); `client` |
//! | `leasehold_open_breakers` | gauge | [`open_breakers`](crate::Stats::open_breakers); `client` |
//! | `leasehold_renewal_lag_seconds` | gauge | [`renewal_lag`](crate::Stats::renewal_lag), after the first renewal; 0 while no lock is held; `client` |
//!
// `tests/async` runs the example.
#![cfg_attr(not(doctest), doc = include_str!("tracing.md"))]
//!
//! [`Client::shared_stats`]: crate::Client::shared_stats
//! [`Client::stats`]: crate::Client::stats
//! [`Stats`]: crate::Stats
//! [`Totals`]: crate::Totals
