//! The example's own data in the Redis of `REDIS_URL`. Your program has its own connection and its
//! own names.

use std::env;

use super::run::{Outcome, RUN};

/// Returns a key for the example's data that no other data in that Redis uses.
pub(crate) fn key(name: &str) -> String {
    format!("{}:{name}", env::var(RUN).unwrap_or_default())
}

/// Returns a connection to the same Redis, for the example's data.
pub(crate) fn connect() -> Outcome<redis::Connection> {
    Ok(redis::Client::open(env::var("REDIS_URL")?)?.get_connection()?)
}
