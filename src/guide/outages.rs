//! How calls behave while Redis is unreachable.
//!
//! leasehold never grants a lock because Redis is unreachable. After five failures in a row, a
//! circuit breaker opens for that server: calls fail at once with [`Error::CircuitOpen`]. Renewals
//! and releases bypass the breaker, and waiting calls keep waiting; see [`ClientBuilder::breaker`].
//! [`Client::health`] reports the state of servers and background threads.
//!
//! [`Client::health`]: crate::Client::health
//! [`ClientBuilder::breaker`]: crate::ClientBuilder::breaker
//! [`Error::CircuitOpen`]: crate::Error::CircuitOpen
