//! How calls behave while Redis is unreachable.
//!
//! # The circuit breaker
//!
//! After five failed attempts in a row, a circuit breaker opens for that server. An attempt to
//! write fails if it gets no connection, no reply within the [`command_timeout`], or an [error that
//! may pass](#errors-that-may-pass). A call can make several attempts, so three calls may be
//! enough. While the breaker is open, one call or probe is sent at a time, and at most one starts
//! in a second. What the others do:
//!
//! - **`try_lock`** and other calls that do not wait fail at once with [`Error::CircuitOpen`],
//!   instead of waiting for their timeout.
//! - **`try_lock_for`** waits, since the breaker may close. If it is still open at the deadline,
//!   the call fails with `CircuitOpen`.
//! - **`lock`** keeps waiting. It fails with [`Error::Unreachable`], or with the [error that may
//!   pass](#errors-that-may-pass), once the server has been unreachable for
//!   [`ClientBuilder::unreachable_for`]. So do calls whose deadline is later.
//! - **Renewals, releases and reads** bypass the breaker. A read that fails does not count.
//!
//! Only an answered write closes the breaker, and only a write counts for `unreachable_for` and for
//! [`Client::health`]. While writes are paused (`CLIENT PAUSE`, `FAILOVER`, a shutdown that waits
//! for its replicas) a server answers reads, and no lock can be acquired, renewed or released.
//!
//! `CircuitOpen` names the server, its last failure and when to retry. [`ClientBuilder::breaker`]
//! sets the number of attempts, and lists what does not count.
//! `examples/fail_fast.rs` answers HTTP requests with 503 and `Retry-After` on `CircuitOpen` and on
//! `Unreachable`.
//!
//! - A refused connection is tried again until the call's deadline, like any other failure, because
//!   a server that restarts refuses connections for a moment. So `try_lock`, `ping` and `health`
//!   take the whole [`command_timeout`] against a port at which nothing listens.
//! - A call that sent a command before the breaker opened fails with [`Error::Unreachable`], or
//!   with the error that may pass: its lock may be held.
//! - If the name of a server does not resolve, the client connects to [the address that last
//!   answered a write](crate::guide::guarantees#limitations), for up to a minute.
//! - Over a quorum, the breaker applies to the majority; a single failing server is merely skipped.
//!
//! # Errors that may pass
//!
//! A server or a proxy may refuse a call for a reason that passes: it loads its data, is being
//! demoted, or has lost its own connection. Only an error that names a lasting reason ends a call
//! at once: a missing permission, password, command or memory, or a key of the wrong type. After
//! any other error
//!
//! - the call is undone in the background, since the script may have run before the error;
//! - a waiting call tries again after a pause, until its deadline or
//!   [`ClientBuilder::unreachable_for`]. `try_lock` does so for the command timeout;
//! - the error at the end is [`Error::Refused`] with the text of the server. It is
//!   [retryable](crate::Error::is_retryable), and counts as [unreachable](crate::Error::is_unreachable).
//!
//! If the server has never run a script of this client, the call ends with the third error that
//! this crate does not know: it may be no Redis at all. The same rules hold for the reply to `WAIT`
//! ([`min_replicas`](crate::Mutex::min_replicas)).
//!
//! # What holders and waiters see
//!
//! - **A holder** keeps its lock until its lease ends: [`is_held`](crate::Lease::is_held)
//!   stays true while the lease [is certain](crate::guide::ttl#how-long-a-lease-is-certain): by
//!   default for about 56 % of the ttl. The client repeats the renewal until then. If no renewal
//!   succeeds, the holder receives [`Lost::Expired`](crate::Lost::Expired).
//! - **A waiter** sleeps, and asks again as soon as the server answers.
//! - **A release** that got no reply is repeated in the background until it succeeds or the lease
//!   has ended. Until the server serves anything, further releases go to the background at once,
//!   so that all of them together take about one command timeout. If the server replies that it
//!   cannot serve now, each of them asks once.
//!   A process that ends while the server hangs may not have sent them: those locks then last for
//!   their ttl. [`Client::shutdown`](crate::Client::shutdown) waits for them, and reports the rest.
//!
//! # Many clients that connect at once
//!
//! A server that has restarted may have more new connections than it can serve. The client gives
//! each more time: if a server accepts a connection and does not reply to the log-on within
//! [`connect_timeout`](crate::ClientBuilder::connect_timeout), the limit of the next connection
//! is eight times as long, up to 30 s, and the pauses between them grow to 3 s. If the server
//! closes connections soon after they were made, the pauses grow to 5 s. A refused connection is
//! tried again within half a second.
//!
//! So a server that accepts connections and hangs can hold up the client for up to 30 s after DNS
//! or a balancer leads elsewhere: the client finishes the log-on that it waits for first. A move
//! that Sentinel names ends it at once.
//!
//! # Shortages in this process
//!
//! If the process or its machine has no file descriptor, memory or thread left for a connection,
//! the server is not the reason: neither the breaker nor [`Client::health`] counts it. A call that
//! does not wait fails with [`Error::Shortage`] or [`Error::Thread`], which say what is missing. A
//! call that waits goes on until its deadline. Held locks are renewed and released over the
//! connections that exist.
//!
//! # Health checks
//!
//! [`Client::health`] checks every server by a write that changes nothing, and reports what works
//! and since when, the last failure, the latency, and whether the breaker lets calls through.
//! `is_healthy()` suits a load balancer: `examples/health_endpoint.rs` serves it over HTTP.
//!
//! [`Client::health`]: crate::Client::health
//! [`command_timeout`]: crate::ClientBuilder::command_timeout
//! [`ClientBuilder::breaker`]: crate::ClientBuilder::breaker
//! [`ClientBuilder::unreachable_for`]: crate::ClientBuilder::unreachable_for
//! [`Error::CircuitOpen`]: crate::Error::CircuitOpen
//! [`Error::Refused`]: crate::Error::Refused
//! [`Error::Shortage`]: crate::Error::Shortage
//! [`Error::Thread`]: crate::Error::Thread
//! [`Error::Unreachable`]: crate::Error::Unreachable
